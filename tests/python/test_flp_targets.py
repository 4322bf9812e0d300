"""K targets a row: one has the bits of a plain target, torch.func takes them, and what is refused."""
import pytest
import torch

import flp
from flp_reference import reference, relative

B, T, D, V, K = 2, 7, 24, 57, 5


def problem(k=K):
    generator = torch.Generator().manual_seed(0)
    leaves = [torch.randn(*shape, generator=generator) for shape in ((B, T, D), (V, D), (V,))]
    target = torch.randint(V, (B, T, k), generator=generator)
    target[0, 0] = -100
    return [leaf.requires_grad_() for leaf in leaves], target, torch.randn(B, T, k, generator=generator)


def test_one_target_has_the_bits_of_today():
    leaves, target, upstream = problem(k=1)
    hidden, weight, bias = leaves
    flat = flp.linear_logprob(hidden, weight, target[..., 0], bias)
    one = flp.linear_logprob(hidden, weight, target, bias)
    assert one.shape == (B, T, 1) and torch.equal(one[..., 0], flat)
    for a, b in zip(torch.autograd.grad(one, leaves, upstream), torch.autograd.grad(flat, leaves, upstream[..., 0])):
        assert torch.equal(a, b)


@pytest.mark.skipif(not hasattr(torch, "func"), reason="this torch has no torch.func")
def test_torch_func():
    (hidden, weight, _), target, upstream = problem()
    grad = torch.func.grad(lambda h: (flp.linear_logprob(h, weight.detach(), target) * upstream).sum())(hidden.detach())
    want = torch.autograd.grad(reference(hidden, weight, target)[0], hidden, upstream)[0]
    assert relative(grad, want) < 5e-6


@pytest.mark.parametrize("shape, message", [
    ((B, T, 0), "K = 0 .accepted: K from 1 to 512"), ((B, T, 513), "K = 513 .accepted: K from 1 to 512"),
    ((B, T + 1, K), r"\(2, 7\), as hidden without its last dimension, or \(2, 7, K\) with K targets a row"),
    ((B, T, K, 1), "target is of shape"), ((B,), "target is of shape")])
def test_shapes_that_are_refused(shape, message):
    (hidden, weight, _), *_ = problem()
    with pytest.raises(ValueError, match=message):
        flp.linear_logprob(hidden, weight, torch.zeros(shape, dtype=torch.int64))


def test_who_takes_one_target_alone_says_so():
    (hidden, weight, _), target, _ = problem()
    with pytest.raises(ValueError, match="target is of shape"):
        flp.policy_loss("nll", hidden, weight, target)
    with pytest.raises(ValueError, match="tokens is of shape"):
        flp.score(hidden, weight, target)


def test_explain_knows_them():
    (hidden, weight, _), target, _ = problem()
    info = flp.explain(hidden, weight, target, loss="forward_kl")
    assert info.rung == "eager" and info.step["products"] == 4
