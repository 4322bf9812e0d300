"""linear_logprob(topk=..., rank=...): the best tokens and the target's rank against float64 torch, on both engines; what
is refused."""
import pytest
import torch

import flp
from flp_reference import DEVICE, DTYPES, VALUE_TOLERANCE, close, doubles, problem, reference

pytestmark = pytest.mark.usefixtures("engine")

N, V, K = 13, 331, 20
OPTIONS = [{}, {"entropy": True}, {"temperature": 0.7, "scale": -1.5}, {"softcap": 5.0, "bias": True, "entropy": True},
           {"temperature": "rows", "bias": True}]


def scores(hidden, weight, bias, options):
    """Log-probabilities (n,V) in float64."""
    wide = [None if tensor is None else tensor.detach() for tensor in doubles(hidden, weight, bias)]
    every = torch.arange(weight.shape[0], device=DEVICE)
    rows = [reference(wide[0], wide[1], token.expand(hidden.shape[0]), wide[2], **options)[0] for token in every]
    return torch.stack(rows, 1)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_values(dtype, options):
    options = dict(options)
    with_bias, entropy = options.pop("bias", False), options.pop("entropy", False)
    if options.get("temperature") == "rows":
        options["temperature"] = torch.linspace(0.5, 2.0, N, device=DEVICE)
    hidden, weight, target, bias = problem(n=N, vocab=V, dtype=dtype, bias=with_bias)
    plain = flp.linear_logprob(hidden, weight, target, bias, entropy=entropy, **options)
    *values, top, rank = flp.linear_logprob(hidden, weight, target, bias, entropy=entropy, topk=K, rank=True, **options)
    for mine, other in zip(values, plain if entropy else (plain,)):
        assert torch.equal(mine, other)
    want = scores(hidden, weight, bias, options)
    best, ids = want.topk(K, 1)
    close(top.logprobs, best)
    assert (top.ids == ids).all() and top.ids.dtype is target.dtype
    assert (want.gather(1, top.ids) - best).abs().max() < 1e-6
    assert (top.rest.double() - (1 - best.exp().sum(1))).abs().max() < VALUE_TOLERANCE
    assert torch.equal(rank.long(), (want > want.gather(1, target[:, None])).sum(1)) and rank.dtype is torch.int32
    assert (top.logprobs.double().exp().sum(1) + top.rest.double() - 1).abs().max() < 1e-5
    flp.check()


def test_the_best_token_is_argmax_and_has_the_logprob_of_a_target():
    hidden, weight, target, _ = problem(n=N, vocab=V)
    _, top = flp.linear_logprob(hidden, weight, target, topk=3)
    assert torch.equal(top.ids[:, 0], (hidden @ weight.t()).argmax(1))
    for place in range(3):
        logprob, rank = flp.linear_logprob(hidden, weight, top.ids[:, place], rank=True)
        assert torch.equal(logprob, top.logprobs[:, place])
        assert (rank == place).all()


def test_shapes_and_what_comes_back():
    hidden, weight, target, _ = problem(n=12, vocab=V, target_dtype=torch.int32)
    hidden, target = hidden.view(3, 4, -1), target.view(3, 4)
    logprob, entropy, top, rank = flp.linear_logprob(hidden, weight, target, entropy="detached", topk=5, rank=True)
    assert logprob.shape == entropy.shape == rank.shape == top.rest.shape == (3, 4)
    assert top.ids.shape == top.logprobs.shape == (3, 4, 5) and top.ids.dtype is torch.int32
    assert isinstance(top, flp.Top) and top._fields == ("ids", "logprobs", "rest")
    only_rank = flp.linear_logprob(hidden, weight, target, rank=True)
    assert len(only_rank) == 2 and torch.equal(only_rank[1], rank)
    assert isinstance(flp.linear_logprob(hidden, weight, target, topk=0), torch.Tensor)


def test_gradients_are_those_without():
    hidden, weight, target, bias = problem(n=N, vocab=V, bias=True)
    grads = []
    for options in ({}, {"topk": 4, "rank": True}, {"topk": 4}):
        leaves = [tensor.clone().requires_grad_() for tensor in (hidden, weight, bias)]
        logprob, entropy, *more = flp.linear_logprob(leaves[0], leaves[1], target, leaves[2], entropy=True, **options)
        (logprob * torch.linspace(-1, 2, N, device=DEVICE) + 0.3 * entropy).sum().backward()
        grads.append([leaf.grad for leaf in leaves])
        assert not any(each.requires_grad for part in more for each in (part if isinstance(part, tuple) else (part,)))
    for mine in grads[1:]:
        assert all(torch.equal(one, other) for one, other in zip(mine, grads[0]))


def test_rows_without_work_and_bad_rows():
    hidden, weight, target, _ = problem(n=5, vocab=V)
    target[1], target[2] = -100, V
    hidden[3, 0] = float("nan")
    logprob, top, rank = flp.linear_logprob(hidden, weight, target, topk=2, rank=True, rows=[0, 1, 2, 3])
    assert (top.ids[1:] == -1).all() and (top.ids[0] >= 0).all() and rank[1:].tolist() == [-1] * 4
    for row, wanted in ((1, 0.0), (4, 0.0)):
        assert (top.logprobs[row] == wanted).all() and top.rest[row] == wanted and logprob[row] == wanted
    for row in (2, 3):
        assert top.logprobs[row].isnan().all() and top.rest[row].isnan() and logprob[row].isnan()
    with pytest.raises(flp.DataError, match="1 row"):
        flp.check()


def test_of_equal_scores_the_lowest_id():
    hidden, weight = torch.ones(2, 8, device=DEVICE), torch.zeros(300, 8, device=DEVICE)
    weight[7::50] = 1
    _, top, rank = flp.linear_logprob(hidden, weight, torch.tensor([57, 299], device=DEVICE), topk=9, rank=True)
    assert top.ids.tolist() == [[7, 57, 107, 157, 207, 257, 0, 1, 2]] * 2 and rank.tolist() == [0, 6]


def test_tokens_of_no_probability_are_not_among_the_best():
    hidden, weight, target, _ = problem(n=2, vocab=40)
    bias = torch.full((40,), -torch.inf, device=DEVICE)
    bias[3], bias[20] = 0, 0
    _, top, rank = flp.linear_logprob(hidden, weight, torch.tensor([3, 5], device=DEVICE), bias, topk=4, rank=True)
    assert (top.ids[:, 2:] == -1).all() and (top.logprobs[:, 2:] == -torch.inf).all() and (top.rest == 0).all()
    assert set(top.ids[0, :2].tolist()) == {3, 20} and rank[1] == 2


def test_all_tokens():
    hidden, weight, target, _ = problem(n=3, vocab=40)
    _, top = flp.linear_logprob(hidden, weight, target, topk=40)
    assert (top.ids.sort(1).values == torch.arange(40, device=DEVICE)).all() and (top.rest == 0).all()


@pytest.mark.parametrize("options, kind, says", [
    ({"topk": -1}, ValueError, "topk is -1 (accepted: 0 to 128, and at most the 331 tokens of the vocabulary)"),
    ({"topk": 129}, ValueError, "topk is 129"),
    ({"topk": "7"}, TypeError, "topk is"),
    ({"topk": 2.5}, TypeError, "topk is"),
    ({"rank": 1}, TypeError, "rank is of type int (accepted: True or False)"),
    ({"topk": 3, "save": True}, ValueError, "save is True (accepted: None or False with topk"),
    ({"rank": True, "tail": 2**-9}, ValueError, "tail is 0.001953125 (accepted: None or 0 with rank"),
], ids=str)
def test_refusals(options, kind, says):
    hidden, weight, target, _ = problem(n=N, vocab=V)
    with pytest.raises(kind) as refused:
        flp.linear_logprob(hidden, weight, target, **options)
    assert says in str(refused.value)


def test_refused_with_lists_and_of_small_heads():
    hidden, weight, target, _ = problem(n=2, vocab=40)
    keep = torch.tensor([0, 1, 2], device=DEVICE), target
    for field, options in (("topk", {"topk": 3}), ("rank", {"rank": True})):
        with pytest.raises(ValueError, match="%s is .* with keep" % field):
            flp.linear_logprob(hidden, weight, target, keep=keep, **options)
    with pytest.raises(ValueError, match="at most the 40 tokens"):
        flp.linear_logprob(hidden, weight, target, topk=41)


def test_score_moves_the_best_tokens_to_their_places():
    hidden, weight, _, _ = problem(n=10, vocab=V)
    tokens = torch.randint(V, (2, 5), device=DEVICE)
    scores = flp.score(hidden.view(2, 5, -1), weight, tokens, topk=3, rank=True, lengths=torch.tensor([5, 3], device=DEVICE))
    _, top, rank = flp.linear_logprob(hidden.view(2, 5, -1)[:, :-1], weight, tokens[:, 1:], topk=3, rank=True)
    for row, column in scores.mask.nonzero().tolist():
        assert torch.equal(scores.top.ids[row, column], top.ids[row, column - 1])
        assert torch.equal(scores.top.logprobs[row, column], top.logprobs[row, column - 1])
        assert scores.top.rest[row, column] == top.rest[row, column - 1]
        assert scores.rank[row, column] == rank[row, column - 1]
    assert (scores.top.ids[~scores.mask] == -1).all() and (scores.rank[~scores.mask] == -1).all()
    kept = scores.keep(sequences=torch.tensor([True, False], device=DEVICE))
    assert (kept.top.ids[1] == -1).all() and torch.equal(kept.top.ids[0], scores.top.ids[0])
    packed = flp.score(hidden, weight, tokens.flatten(), cu_seqlens=torch.tensor([0, 5, 8], device=DEVICE), topk=3)
    assert torch.equal(packed.top.ids[1:5], scores.top.ids[0, 1:]) and packed.rank is None
    wrong = flp.score(hidden, weight, tokens.flatten(), cu_seqlens=torch.tensor([1, 5, 8], device=DEVICE), topk=3)
    assert (wrong.top.ids == -1).all() and flp.score(hidden.view(2, 5, -1), weight, tokens).top is None
