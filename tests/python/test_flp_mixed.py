"""Operands of two dtypes on both engines: rounded ones have the bits of a call with the rounded operand; both forms, what
tests/gpu/mixed_bits.py compares with torch.mm(..., out_dtype=torch.float32) and float64."""
import pytest
import torch

import flp
import mixed_bits
from flp_reference import DEVICE, problem

pytestmark = pytest.mark.usefixtures("engine")

N, V = 70, 331
NARROW = [torch.bfloat16, torch.float16]


def operands(dtype, wide, bias=False, seed=0):
    """hidden, weight, bias of which `wide` is float32, target; the same with all of dtype."""
    torch.manual_seed(seed)
    hidden, weight, target, b = problem(n=N, vocab=V, dtype=torch.float32, bias=bias)
    exact = {"hidden": hidden.detach(), "weight": weight.detach(), "bias": None if b is None else b.detach()}

    def leaf(tensor, to):
        return None if tensor is None else tensor.to(to).clone().detach().requires_grad_()

    mixed = {name: leaf(tensor, torch.float32 if name in wide else dtype) for name, tensor in exact.items()}
    narrow = {name: leaf(tensor, dtype) for name, tensor in exact.items()}
    return mixed, narrow, target


def call(tensors, target, **options):
    return flp.linear_logprob(tensors["hidden"], tensors["weight"], target, tensors["bias"], entropy=True, **options)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("wide", [("weight",), ("weight", "bias"), ("hidden",), ("hidden", "bias"), ("bias",)], ids=str)
def test_a_rounded_operand_has_the_bits_of_one_rounded_before(dtype, wide):
    mixed, narrow, target = operands(dtype, wide, bias=True)
    got, want = call(mixed, target, mixed="round"), call(narrow, target)
    assert torch.equal(got[0], want[0]) and torch.equal(got[1], want[1])
    for values in (got, want):
        (values[0].sum() + 0.1 * values[1].sum()).backward()
    for name, tensor in mixed.items():
        assert tensor.grad.dtype is tensor.dtype
        assert torch.equal(tensor.grad.to(dtype), narrow[name].grad), name  # float32 is what the other rounds once
    flp.check()


def test_one_dtype_needs_no_word_and_autocast_leaves_the_call_alone():
    mixed, narrow, target = operands(torch.bfloat16, ("weight",))
    assert torch.equal(call(narrow, target, mixed="split")[0], call(narrow, target)[0])
    with torch.autocast(DEVICE, torch.bfloat16):
        under = call(mixed, target, mixed="split")[0]
    assert torch.equal(under, call(mixed, target, mixed="split")[0])


@pytest.mark.parametrize("mixed", ["round", "split"])
@pytest.mark.parametrize("wide", ["weight", "hidden"])
@pytest.mark.parametrize("dtype", mixed_bits.DTYPES)
def test_torch_mm_with_a_float32_result(dtype, wide, mixed):
    row = mixed_bits.row_of(dtype, wide, mixed, mixed_bits.TINY, torch.device(DEVICE))
    assert row["failed"] == [] and row["error"] > 0, row
    assert mixed == "round" or row["error"] < (1e-4 if dtype == "bfloat16" else 1e-5), row


class Cut(torch.autograd.Function):
    """float32 to bfloat16 without the lowest bits."""

    @staticmethod
    def forward(_ctx, tensor):
        return (tensor.contiguous().view(torch.int32) & -65536).view(torch.float32).bfloat16()

    @staticmethod
    def backward(_ctx, gradient):
        return gradient.float()


@pytest.mark.parametrize("wide", ["weight", "hidden"])
def test_an_operand_that_is_rounded_otherwise_is_found(monkeypatch, wide):
    """What the script of the GPU machines says of a call that leaves off the lowest bits instead."""
    ours = flp.linear_logprob

    def call(hidden, weight, target, mixed=None):
        cut = mixed and [Cut.apply(tensor) if tensor.dtype is torch.float32 else tensor for tensor in (hidden, weight)]
        return ours(*cut or (hidden, weight), target)

    monkeypatch.setattr(flp, "linear_logprob", call)
    row = mixed_bits.row_of("bfloat16", wide, "round", mixed_bits.TINY, torch.device(DEVICE))
    assert {"error", "different_bits"} <= set(row["failed"]), row
