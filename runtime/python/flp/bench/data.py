"""The tensors that every subject computes on: random, of a seed, with scores of a spread that a trained head has."""
import math

import torch

TORCH_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
# Normal draws at once: bounds the fp32 copy that is rounded to the dtype.
DRAW_ELEMENTS = 1 << 26


def normal(shape, sigma, dtype, device, generator):
    """A tensor of normal numbers of the given spread, drawn in fp32 and rounded."""
    out = torch.empty(shape, dtype=dtype, device=device)
    flat = out.view(-1)
    for start in range(0, flat.numel(), DRAW_ELEMENTS):
        part = flat[start:start + DRAW_ELEMENTS]
        part.copy_(torch.randn(part.shape, device=device, generator=generator).mul_(sigma))
    return out


class Head:
    """weight (V,D) and bias (V) or None."""

    def __init__(self, options, device):
        generator = torch.Generator(device=device).manual_seed(options.seed)
        dtype = TORCH_DTYPES[options.dtype]
        self.weight = normal((options.vocab, options.hidden), 1.5 / math.sqrt(options.hidden), dtype, device, generator)
        self.bias = normal((options.vocab,), 0.5, dtype, device, generator) if options.bias else None


class Data:
    """A head with n rows: hidden (N,D), target (N) int64, and upstream gradients (N) float32."""

    def __init__(self, options, head, n, device):
        generator = torch.Generator(device=device).manual_seed(options.seed + 1 + n)
        self.weight, self.bias = head.weight, head.bias
        self.hidden = normal((n, options.hidden), 1.0, head.weight.dtype, device, generator)
        self.target = torch.randint(options.vocab, (n,), device=device, generator=generator)
        self.grad_logprob = torch.randn(n, device=device, generator=generator)
        self.grad_entropy = torch.randn(n, device=device, generator=generator)

    def upstream(self, case, any_upstream):
        """The gradients of logprob and entropy that reach each row; a mean of losses sends -1/N to each logprob."""
        if not any_upstream:
            return torch.full_like(self.grad_logprob, -1.0 / case.n), None
        return self.grad_logprob, self.grad_entropy if case.entropy == "backward" else None
