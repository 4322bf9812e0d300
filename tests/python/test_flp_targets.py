"""K targets a row: one has the bits of a plain target, torch.func takes them."""
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


def test_explain_knows_them():
    (hidden, weight, _), target, _ = problem()
    info = flp.explain(hidden, weight, target, loss="forward_kl")
    assert info.rung == "eager" and info.step["products"] == 4
