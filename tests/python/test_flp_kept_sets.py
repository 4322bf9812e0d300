"""linear_logprob(keep=...): values and gradients over kept tokens against float64 torch, on both engines; what is refused;
bad lists."""
import pytest
import torch

import flp
from flp_kept_sets import kept_reference, lists
from flp_reference import DEVICE, DTYPES, GRAD_TOLERANCE, VALUE_TOLERANCE, close, doubles, problem, relative

pytestmark = pytest.mark.usefixtures("engine")

N, V = 13, 331
OPTIONS = [{}, {"entropy": True}, {"temperature": 0.7, "scale": -1.5}, {"softcap": 5.0, "bias": True, "entropy": True},
           {"temperature": "rows", "entropy": True, "bias": True}, {"rows": [0, 4, 5, 12], "entropy": True}]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_values_and_gradients(dtype, options):
    options = dict(options)
    with_bias, entropy = options.pop("bias", False), options.pop("entropy", False)
    if options.get("temperature") == "rows":
        options["temperature"] = torch.linspace(0.5, 2.0, N, device=DEVICE)
    hidden, weight, target, bias = problem(n=N, vocab=V, dtype=dtype, bias=with_bias)
    target[3] = -100
    offsets, ids, mask = lists(target)
    wide = doubles(hidden, weight, bias)
    want_logprob, want_entropy = kept_reference(mask, wide[0], wide[1], target, wide[2], **options)
    narrow = [None if tensor is None else tensor.requires_grad_() for tensor in (hidden, weight, bias)]
    got = flp.linear_logprob(hidden, weight, target, bias, entropy=entropy, keep=(offsets, ids), **options)
    got_logprob, got_entropy = got if entropy else (got, None)
    close(got_logprob.detach(), want_logprob)
    assert abs(float(got_logprob[0])) < 1e-15  # its set is the target alone
    upstream = torch.linspace(-1, 2, N, device=DEVICE)
    want_loss, got_loss = (want_logprob * upstream).sum(), (got_logprob * upstream).sum()
    if entropy:
        close(got_entropy.detach(), want_entropy)
        want_loss, got_loss = want_loss + 0.3 * want_entropy.sum(), got_loss + 0.3 * got_entropy.sum()
    want_loss.backward()
    got_loss.backward()
    for mine, exact in zip(narrow, wide):
        if mine is not None:
            assert mine.grad.dtype is dtype
            assert relative(mine.grad, exact.grad) < GRAD_TOLERANCE[dtype]
    assert not weight.grad[~mask.any(0)].any()
    flp.check()


def test_order_and_repeats_change_nothing():
    hidden, weight, target, _ = problem(n=N, vocab=V)
    weight.requires_grad_()
    results = []
    for shuffle in (True, False):
        offsets, ids, _ = lists(target, shuffle=shuffle)
        logprob = flp.linear_logprob(hidden, weight, target, keep=(offsets, ids))
        results.append((logprob.detach(), torch.autograd.grad(logprob.sum(), weight)[0]))
    assert all(torch.equal(one, other) for one, other in zip(*results))


def test_all_tokens_kept_is_the_whole_softmax():
    hidden, weight, target, _ = problem(n=4, vocab=97)
    offsets = torch.arange(5, device=DEVICE) * 97
    ids = torch.arange(97, device=DEVICE).flip(0).repeat(4)
    kept, entropy, mass = flp.linear_logprob(hidden, weight, target, entropy=True, keep=(offsets, ids), kept_mass=True)
    whole = flp.linear_logprob(hidden, weight, target, entropy=True)
    close(kept, whole[0])
    close(entropy, whole[1])
    assert mass.abs().max() < VALUE_TOLERANCE


def test_kept_mass_is_that_under_the_whole_softmax():
    hidden, weight, target, _ = problem(n=N, vocab=V)
    hidden.requires_grad_()
    offsets, ids, mask = lists(target)
    logprob, mass = flp.linear_logprob(hidden, weight, target, keep=(offsets, ids), kept_mass=True)
    scores = torch.log_softmax(hidden.detach().double() @ weight.double().t(), 1)
    close(mass, scores.masked_fill(~mask, -torch.inf).logsumexp(1))
    assert logprob.requires_grad and not mass.requires_grad and float(mass.max()) <= 0


@pytest.mark.parametrize("case", ["no target", "empty", "too large", "negative"])
def test_a_bad_list_makes_its_own_row_nan(case):
    hidden, weight, target, _ = problem(n=3, vocab=V)
    hidden.requires_grad_(), weight.requires_grad_()
    own = {"no target": [(int(target[1]) + 1) % V], "empty": [], "too large": [int(target[1]), V],
           "negative": [int(target[1]), -1]}[case]
    ids = torch.tensor([int(target[0]), 5, *own, int(target[2]), 7, 9], device=DEVICE)
    offsets = torch.tensor([0, 2, 2 + len(own), 5 + len(own)], device=DEVICE)
    logprob = flp.linear_logprob(hidden, weight, target, keep=(offsets, ids))
    logprob.sum().backward()
    assert torch.isnan(logprob).tolist() == [False, True, False]
    assert torch.isnan(hidden.grad).any(1).tolist() == [False, True, False]
    assert not torch.isnan(weight.grad).any()
    with pytest.raises(flp.DataError, match="2 (row|bad)"):
        flp.check()


@pytest.mark.parametrize("offsets", [[0, 4, 2, 6], [-1, 2, 4, 6], [0, 2, 4, 7]], ids=str)
def test_offsets_that_do_not_ascend_make_every_row_nan(offsets):
    hidden, weight, target, _ = problem(n=3, vocab=V)
    ids = torch.stack([target, target], 1).flatten()
    logprob = flp.linear_logprob(hidden, weight, target, keep=(torch.tensor(offsets, device=DEVICE), ids))
    assert torch.isnan(logprob).all()
    with pytest.raises(flp.DataError):
        flp.check()


def test_lists_may_begin_behind_others():
    """Rows of a batch share the ids of all: their offsets are a slice."""
    hidden, weight, target, _ = problem(n=N, vocab=V)
    offsets, ids, _ = lists(target)
    whole = flp.linear_logprob(hidden, weight, target, keep=(offsets, ids))
    part = flp.linear_logprob(hidden[5:9], weight, target[5:9], keep=(offsets[5:10], ids))
    assert torch.equal(part, whole[5:9])


@pytest.mark.parametrize("cut", [2, 130, 329])
def test_shards(cut):
    hidden, weight, target, _ = problem(n=N, vocab=V)
    offsets, ids, _ = lists(target)
    keep = (offsets, ids)
    want, want_entropy = flp.linear_logprob(hidden, weight, target, entropy=True, keep=keep)
    places = [(slice(0, cut), 0), (slice(cut, V), cut)]
    parts = [flp.linear_logprob_partial(hidden, weight[own], target, vocab_offset=offset, vocab_total=V, entropy=True,
                                        keep=keep) for own, offset in places]
    logprob, entropy, stats = flp.combine_partials(parts, target, vocab_total=V, entropy=True)
    close(logprob, want)
    close(entropy, want_entropy)
    upstream = torch.linspace(-1, 1, N, device=DEVICE)
    exact = doubles(hidden, weight)
    _, _, mask = lists(target)
    (kept_reference(mask, *exact, target)[0] * upstream).sum().backward()
    made = [flp.linear_logprob_backward(hidden, weight[own], target, stats, upstream, needs=("hidden", "weight"),
                                        vocab_offset=offset, vocab_total=V, keep=keep) for own, offset in places]
    assert relative(made[0][0] + made[1][0], exact[0].grad) < 1e-5
    assert relative(torch.cat([made[0][1], made[1][1]]), exact[1].grad) < 1e-5


def test_a_caller_s_buffer_is_added_to():
    hidden, weight, target, _ = problem(n=N, vocab=V)
    offsets, ids, _ = lists(target)
    weight.requires_grad_()
    want, = torch.autograd.grad(flp.linear_logprob(hidden, weight, target, keep=(offsets, ids)).sum(), weight)
    buffer = torch.ones(V, hidden.shape[1], device=DEVICE)
    flp.linear_logprob(hidden, weight, target, keep=(offsets, ids), grad_weight_accumulate=buffer).sum().backward()
    assert torch.allclose(buffer - 1, want, atol=1e-6) and weight.grad is None


@pytest.mark.parametrize("ids, targets", [(torch.int32, torch.int64), (torch.int64, torch.int32)], ids=str)
def test_ids_and_targets_of_two_dtypes(ids, targets):
    hidden, weight, target, _ = problem(n=N, vocab=V)
    offsets, tokens, _ = lists(target)
    want = flp.linear_logprob(hidden, weight, target, keep=(offsets, tokens))
    got = flp.linear_logprob(hidden, weight, target.to(targets), keep=(offsets.int(), tokens.to(ids)))
    assert torch.equal(got, want)


def test_no_rows():
    hidden, weight, target, _ = problem(n=0, vocab=V)
    empty = torch.zeros(0, dtype=torch.int64, device=DEVICE)
    weight.requires_grad_()
    logprob = flp.linear_logprob(hidden, weight, target, keep=(torch.zeros(1, dtype=torch.int64, device=DEVICE), empty))
    logprob.sum().backward()
    assert logprob.shape == (0,) and not weight.grad.any()


REFUSED = [
    ({"keep": torch.zeros(3)}, TypeError, "keep is of type Tensor"),
    ({"keep": (torch.zeros(4), torch.zeros(3, dtype=torch.int64))}, TypeError, r"keep\[0\] \(offsets\) is of dtype"),
    ({"keep": (torch.zeros(3, dtype=torch.int64), torch.zeros(3, dtype=torch.int64))}, ValueError, r"\(4,\), one more"),
    ({"keep": (torch.zeros(4, dtype=torch.int64), torch.zeros(3, 1, dtype=torch.int64))}, ValueError, "one dimension"),
    ({"keep": (torch.zeros(4, dtype=torch.int64), [1, 2])}, TypeError, r"keep\[1\] \(token_ids\) is of type list"),
    ({"keep": None, "kept_mass": True}, ValueError, "kept_mass is True"),
    ({"save": True}, ValueError, "save is True"), ({"chunk_rows": 8}, ValueError, "chunk_rows is 8"),
    ({"old_lse": torch.zeros(3)}, ValueError, "old_lse is a tensor"),
]


@pytest.mark.parametrize("given, error, words", REFUSED, ids=[words for _, _, words in REFUSED])
def test_what_is_refused(given, error, words):
    hidden, weight, target, _ = problem(n=3, vocab=V)
    given = {"keep": (torch.arange(4), target.cpu()), **given}
    if isinstance(given["keep"], tuple):
        given["keep"] = tuple(part.to(DEVICE) if isinstance(part, torch.Tensor) else part for part in given["keep"])
    with pytest.raises(error, match=words):
        flp.linear_logprob(hidden, weight, target, **given)
