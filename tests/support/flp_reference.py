"""linear_logprob in float64, problems to try it on, and the device that the tests run on."""
import os

import torch

import flp_exact

DEVICE = os.environ.get("FLP_TEST_DEVICE", "cpu")
DTYPES = [torch.bfloat16, torch.float16, torch.float32]
# Relative L2 of gradients: one rounding to the dtype, and dz in the operand's dtype on a GPU.
GRAD_TOLERANCE = {torch.bfloat16: 6e-3, torch.float16: 1e-3, torch.float32: 5e-6}
# Absolute, in nats, for scores of order 1 at the depths used here: a few fp32 roundings of the products.
VALUE_TOLERANCE = 2e-5


def problem(n=13, vocab=331, depth=64, dtype=torch.float32, bias=False, seed=0, target_dtype=torch.int64):
    """hidden (n,D), weight (V,D), target (n), bias (V) or None; scores have a standard deviation near 2."""
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(n, depth, generator=generator)
    weight = torch.randn(vocab, depth, generator=generator) * (2 / depth**0.5)
    target = torch.randint(0, vocab, (n,), generator=generator).to(target_dtype)
    offset = torch.randn(vocab, generator=generator).to(dtype) if bias else None
    made = (hidden.to(dtype), weight.to(dtype), target, offset)
    return tuple(None if tensor is None else tensor.to(DEVICE) for tensor in made)


def exact(hidden, weight, target, bias=None, temperature=1.0, softcap=None, scale=1.0, **options):
    """What flp_exact.py finds, the entropy too, differentiable, on the device of hidden. Inactive rows give 0."""
    given = {"hidden": hidden.double(), "weight": weight.double(), "target": target, "bias": bias,
             "temperature": temperature, "softcap": softcap, "scale": scale, **options}
    found = flp_exact.linear_logprob(entropy=True, **{name: on_cpu(value) for name, value in given.items()})
    return {name: value.to(hidden.device) for name, value in found.items() if isinstance(value, torch.Tensor)}


def reference(*given, **options):
    """logprob and entropy of exact."""
    found = exact(*given, **options)
    return found["logprob"], found["entropy"]


def on_cpu(value):
    if isinstance(value, tuple):
        return tuple(map(on_cpu, value))
    return value.cpu() if isinstance(value, torch.Tensor) else value


def doubles(*tensors):
    """Float64 copies that require gradients; None stays."""
    return [None if tensor is None else tensor.detach().double().requires_grad_() for tensor in tensors]


def rounds_by_place():
    """Whether torch's own product, of the shape that the torch form always asks for, rounds a row by where it stands.
    OpenBLAS does so on some processors; what the torch form is for, cuBLAS, does not."""
    hidden, weight, _, _ = problem(n=256, vocab=2048)
    order = torch.randperm(256, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    return not torch.equal(hidden[order] @ weight.t(), (hidden @ weight.t())[order])


def relative(got, want):
    """Relative L2 distance, against the norm of what is wanted."""
    want = want.double()
    return float((got.double() - want).norm() / want.norm().clamp_min(1e-30))


def close(got, want):
    """Values in nats are float32 and near those wanted, in float64."""
    assert got.dtype is torch.float32
    off = (got.double() - want).abs().max() if got.numel() else 0
    assert torch.allclose(got.double(), want.double(), atol=VALUE_TOLERANCE, rtol=1e-5), off
