"""K targets a row: flp.linear_logprob, shards, logprob_head and the torch form beside torch in float64, and refusals."""
import pytest
import torch

import flp
from flp import _c, _check, _eager_torch, _plans, _run

B, T, D, V, K = 2, 7, 24, 57, 5
IGNORED = -100


def problem(seed=0, k=K, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(B, T, D, generator=generator).to(dtype).requires_grad_()
    weight = (torch.randn(V, D, generator=generator) / 2).to(dtype).requires_grad_()
    bias = torch.randn(V, generator=generator).to(dtype).requires_grad_()
    target = torch.randint(V, (B, T, k), generator=generator)
    target[0, 0] = IGNORED
    if k > 3:
        target[0, 1, 2:], target[1, 1, 3] = IGNORED, target[1, 1, 0]  # some ignored; one id twice
    return hidden, weight, bias, target, torch.randn(B, T, k, generator=generator), torch.randn(B, T, generator=generator)


def exact(hidden, weight, bias, target, temperature=1.0, softcap=None):
    scores = hidden.double() @ weight.double().T + (0 if bias is None else bias.double())
    scores = softcap * torch.tanh(scores / softcap) if softcap else scores
    logp = torch.log_softmax(scores / temperature, -1)
    counted = target != IGNORED
    entropy = -(logp.exp() * logp).sum(-1).masked_fill(~counted.any(-1), 0)
    return logp.gather(-1, target.clamp(min=0)).masked_fill(~counted, 0), entropy


def expect_close(got, want, tolerance=2e-6):
    for mine, true in zip(got, want):
        error = (mine.double() - true.double()).norm() / true.double().norm().clamp(min=1e-9)
        assert error < tolerance, error


def gradients(results, upstream, leaves):
    return torch.autograd.grad(sum((result * grad).sum() for result, grad in zip(results, upstream)), leaves)


@pytest.mark.parametrize("k", [1, 2, K, 40])
@pytest.mark.parametrize("options", [{}, {"temperature": 0.6, "softcap": 6.0}])
def test_values_and_gradients(k, options):
    hidden, weight, bias, target, *upstream = problem(k=k)
    results = flp.linear_logprob(hidden, weight, target, bias, entropy=True, **options)
    assert results[0].shape == target.shape and results[1].shape == (B, T)
    want = exact(hidden, weight, bias, target, **options)
    expect_close(results, want)
    leaves = hidden, weight, bias
    expect_close(gradients(results, upstream, leaves), gradients(want, upstream, leaves), 5e-6)
    assert torch.equal(flp.linear_logprob(hidden.detach(), weight, target, bias, **options), results[0])


def test_one_target_has_the_bits_of_today():
    hidden, weight, bias, target, upstream, _ = problem(k=1)
    flat = flp.linear_logprob(hidden, weight, target[..., 0], bias)
    one = flp.linear_logprob(hidden, weight, target, bias)
    assert one.shape == (B, T, 1) and torch.equal(one[..., 0], flat)
    leaves = hidden, weight, bias
    for a, b in zip(gradients([one], [upstream], leaves), gradients([flat], [upstream[..., 0]], leaves)):
        assert torch.equal(a, b)


def test_rows_and_accumulated_gradients():
    hidden, weight, _, target, upstream, _ = problem(3)
    rows, buffer = torch.tensor([2, 9, 13]), torch.zeros(V, D)
    logprob = flp.linear_logprob(hidden, weight, target, rows=rows, chunk_rows=2, grad_weight_accumulate=buffer)
    want = torch.zeros(B * T, K, dtype=torch.float64)
    whole = exact(hidden, weight, None, target)[0].reshape(B * T, K)
    want[rows] = whole[rows]
    expect_close([logprob.reshape(B * T, K)], [want])
    (logprob * upstream).sum().backward()
    expect_close([buffer], gradients([want.reshape(B, T, K)], [upstream], [weight]), 5e-6)
    assert weight.grad is None


def test_bad_ids_are_nan_and_counted():
    hidden, weight, _, target, *_ = problem(4)
    target[1, 2, 3] = V
    logprob = flp.linear_logprob(hidden, weight, target)
    assert logprob[1, 2].isnan().all() and not logprob[1, 3].isnan().any()
    with pytest.raises(flp.DataError):
        flp.check()


def test_shards_by_hand():
    hidden, weight, bias, target, *upstream = problem(5)
    cuts = 0, 20, V
    common = {"vocab_total": V}
    partials = [flp.linear_logprob_partial(hidden, weight[a:b].contiguous(), target, bias[a:b].contiguous(),
                                           vocab_offset=a, entropy=True, **common) for a, b in zip(cuts, cuts[1:])]
    assert partials[0].shape == (B * T, 4 + K)
    logprob, entropy, stats = flp.combine_partials(partials, target, entropy=True, **common)
    want = exact(hidden, weight, bias, target)
    expect_close((logprob, entropy), want)
    made = [flp.linear_logprob_backward(hidden, weight[a:b].contiguous(), target, stats, *upstream,
                                        bias[a:b].contiguous(), vocab_offset=a, **common)
            for a, b in zip(cuts, cuts[1:])]
    got = sum(part[0] for part in made), torch.cat([part[1] for part in made]), torch.cat([part[2] for part in made])
    expect_close(got, gradients(want, upstream, (hidden, weight, bias)), 5e-6)


def torch_form(ops, settings):
    """A plan of the torch form, as device tensors have it where no kernel runs."""
    return _plans.Plan(_run.key_of(ops, settings, 0), None, _c.RUNG_EAGER, "a test")


def test_the_torch_form():
    hidden, weight, bias, target, *upstream = problem(6)
    target[1, 4, 2] = -7  # outside: the whole row
    lead, flat, weight_, bias_, ids, scalar, _, _ = _check.prepare(hidden, weight, target, bias, 0.8, None, several=True)
    settings = _check.Settings(scalar, 7.0, 1.0, IGNORED, None, True)
    ops = _run.Operands(*(tensor.detach() for tensor in (flat, weight_, bias_)), ids)
    plan, n = torch_form(ops, settings), B * T
    logprob, entropy, stats = torch.empty(n, K), torch.empty(n), torch.empty(n, 4)
    _eager_torch.forward(plan, ops, settings, logprob, entropy, stats)
    with torch.no_grad():
        want = flp.linear_logprob(hidden, weight, target, bias, temperature=0.8, softcap=7.0, entropy=True)
    assert torch.equal(logprob.isnan(), want[0].reshape(n, K).isnan()) and logprob[B * T - 3].isnan().all()
    torch.testing.assert_close(logprob, want[0].reshape(n, K), equal_nan=True, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(entropy, want[1].reshape(n), equal_nan=True, rtol=1e-5, atol=1e-5)
    results = flp.linear_logprob(hidden, weight, target, bias, temperature=0.8, softcap=7.0, entropy=True)
    keep = (target != -7).all(-1)
    exact_ones = gradients([results[0][keep], results[1][keep]], [upstream[0][keep], upstream[1][keep]],
                           (hidden, weight, bias))
    made = torch.empty(n, D), torch.empty(V, D), torch.empty(V)
    grads = [(upstream[0] * keep[..., None]).reshape(n, K), (upstream[1] * keep).reshape(n)]
    _eager_torch.backward(plan, ops, settings, stats, grads, *made)
    expect_close([made[0].reshape(hidden.shape), *made[1:]], exact_ones, 1e-5)
    # two shards, and their merge
    parts, scores = torch.empty(2, n, 4), torch.empty(2, n, K)
    for shard, (a, b) in enumerate(((0, 20), (20, V))):
        own = _check.Settings(scalar, 7.0, 1.0, IGNORED, None, True)
        own.offset, own.valid, own.total = a, b - a, V
        cut = _run.Operands(ops.hidden, ops.weight[a:b], ops.bias[a:b], ids)
        _eager_torch.partial(plan, cut, own, parts[shard], scores[shard])
    merged = torch.empty(n, K), torch.empty(n), torch.empty(n, 4)
    settings.total = V
    _eager_torch.combine(plan, parts, ids, None, None, settings, *merged, scores)
    torch.testing.assert_close(merged[0], logprob, equal_nan=True, rtol=1e-5, atol=1e-5)


def test_torch_func_and_plain_compositions():
    if not hasattr(torch, "func"):
        pytest.skip("this torch has no torch.func")
    hidden, weight, bias, target, upstream, _ = problem(7)
    grad = torch.func.grad(lambda h: (flp.linear_logprob(h, weight.detach(), target) * upstream).sum())(hidden.detach())
    want = gradients([exact(hidden, weight, None, target)[0]], [upstream], [hidden])
    expect_close([grad], want, 5e-6)


@pytest.mark.parametrize("options, message", [
    ({"keep": (torch.zeros(15, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))}, r"target is of shape .* .accepted: one target a row with keep"),
    ({"save": True}, "save is True .accepted: None or False with several targets a row"),
    ({"old_lse": torch.zeros(B, T)}, "old_lse is a tensor .accepted: None with several targets"),
    ({"tail": 2**-9}, "tail is 0.00195.* .accepted: None or 0 with several targets"),
    ({"tail_report": torch.zeros(4)}, "tail_report is a tensor .accepted: None with several targets"),
], ids=lambda value: next(iter(value)) if isinstance(value, dict) else "")
def test_options_that_do_not_go_together(options, message):
    hidden, weight, _, target, *_ = problem()
    with pytest.raises(ValueError, match=message):
        flp.linear_logprob(hidden, weight, target, **options)


@pytest.mark.parametrize("shape, message", [
    ((B, T, 0), "K = 0 .accepted: K from 1 to 512"), ((B, T, 513), "K = 513 .accepted: K from 1 to 512"),
    ((B, T + 1, K), r"\(2, 7\), as hidden without its last dimension, or \(2, 7, K\) with K targets a row"),
    ((B, T, K, 1), "target is of shape"), ((B,), "target is of shape")])
def test_shapes_that_are_refused(shape, message):
    hidden, weight, *_ = problem()
    with pytest.raises(ValueError, match=message):
        flp.linear_logprob(hidden, weight, torch.zeros(shape, dtype=torch.int64))


def test_who_takes_one_target_alone_says_so():
    hidden, weight, _, target, *_ = problem()
    with pytest.raises(ValueError, match="target is of shape"):
        flp.policy_loss("nll", hidden, weight, target)
    with pytest.raises(ValueError, match="tokens is of shape"):
        flp.score(hidden, weight, target)


def test_explain_knows_them():
    hidden, weight, _, target, *_ = problem()
    info = flp.explain(hidden, weight, target, loss="forward_kl")
    assert info.rung == "eager" and info.step["products"] == 4
