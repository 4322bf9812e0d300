#!/usr/bin/env python3
"""Operands of two dtypes beside torch.mm(..., out_dtype=torch.float32) on this machine's GPU: values, bits, gradients.

    FLP_LIBRARY=build/release/lib/libflp.so python3 tests/gpu/mixed_bits.py --json tests/gpu/evidence/mixed_bits.json
    ... --cpu       without a GPU, at small sizes: to try the script

A row is one dtype of 16 bits, the operand that is float32 beside it, and `mixed`:

  different_bits  logprobs whose bits are not those of the call with the operand rounded before: 0 with "round"
  error           of logprobs, in nats, from float64's log_softmax of torch.mm's scores: of the rounded operands with
                  "round"; with "split" of both as they are, in float64
  exact_error     the same of multiples of 1/8, of which no sum is rounded in any order; of "round" alone
  grad_error      of the gradients of hidden and weight, relative L2 from those of float64 on the same operands

`failed` counts the rows that break a limit. Exit status 0 if none does, 1 if one does, 3 without a GPU.
"""
import sys
from pathlib import Path

import torch

TREE = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TREE / "runtime" / "python"))
import flp  # noqa: E402
import ways  # noqa: E402

FULL, TINY = (512, 32003, 4096), (70, 331, 64)  # rows, V, D: the last tile of V is not whole
EXACT_DEPTH = 256
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
EXACT_LIMIT = 2e-6  # nats
GRAD_LIMITS = {"bfloat16": 6e-3, "float16": 1e-3}  # as tests/support/flp_reference.py has them
LIMITS = {"round": 1e-4, "split": 2e-4}  # nats: what tensor cores cut off sums of D, and of 2·D, products in float32


def scores(hidden, weight):
    """Sums in float32 of operands of 16 bits, as torch has them."""
    if hidden.is_cuda:
        return torch.mm(hidden, weight.t(), out_dtype=torch.float32)
    return hidden.float() @ weight.float().t()


def logprobs(values, target):
    return values.double().log_softmax(1).gather(1, target[:, None])[:, 0]


def upstream(target):
    return torch.linspace(-1, 1, len(target), device=target.device)


def gradients(values, operands, target):
    """Those of hidden and weight in float64, of these scores."""
    dz = -values.double().softmax(1)
    dz[torch.arange(len(target), device=target.device), target] += 1
    dz *= upstream(target).double()[:, None]
    hidden, weight = operands
    return dz @ weight.double(), dz.t() @ hidden.double()


def greatest(values):
    return values.double().abs().max().item()


def trained(operands, target, mixed):
    """-> logprob, and the gradients of hidden and weight"""
    leaves = [tensor.clone().requires_grad_() for tensor in operands]
    logprob = flp.linear_logprob(*leaves, target, mixed=mixed)
    logprob.backward(upstream(target))
    return logprob.detach(), [leaf.grad for leaf in leaves]


def mixture(hidden, weight, dtype, wide):
    """The operands of which `wide` stays float32, and both rounded."""
    narrow = hidden.to(dtype), weight.to(dtype)
    return (narrow[0], weight) if wide == "weight" else (hidden, narrow[1]), narrow


def exact_error(dtype, wide, rows, vocab, device):
    """The greatest error of rounded operands whose scores torch.mm gives exactly."""
    generator = torch.Generator(device=device).manual_seed(1)
    hidden, weight = ((torch.randn(count, EXACT_DEPTH, device=device, generator=generator) * 4).round() / 8
                      for count in (rows, vocab))
    target = torch.randint(vocab, (rows,), device=device, generator=generator)
    given, narrow = mixture(hidden * (1 + 2**-12), weight * (1 + 2**-12), dtype, wide)  # rounds to what stands above
    assert torch.equal(narrow[0].float(), hidden) and torch.equal(narrow[1].float(), weight)
    got = flp.linear_logprob(*given, target, mixed="round")
    return greatest(got - logprobs(scores(*narrow), target))


def row_of(dtype, wide, mixed, sizes, device):
    """-> one row, with `failed`: what breaks its limit"""
    rows, vocab, depth = sizes
    generator = torch.Generator(device=device).manual_seed(0)
    hidden = torch.randn(rows, depth, device=device, generator=generator)
    weight = torch.randn(vocab, depth, device=device, generator=generator) * (2 / depth**0.5)
    target = torch.randint(vocab, (rows,), device=device, generator=generator)
    given, narrow = mixture(hidden, weight, DTYPES[dtype], wide)
    logprob, grads = trained(given, target, mixed)
    taken = narrow if mixed == "round" else [tensor.double() for tensor in given]
    exact = scores(*narrow) if mixed == "round" else taken[0] @ taken[1].t()
    row = {"dtype": dtype, "wide": wide, "mixed": mixed, "error": greatest(logprob - logprobs(exact, target)),
           "grad_error": max(((got - want).norm() / want.norm()).item()
                             for got, want in zip(grads, gradients(exact, taken, target)))}
    limits = {"error": LIMITS[mixed], "grad_error": GRAD_LIMITS[dtype]}
    if mixed == "round":
        before = flp.linear_logprob(*narrow, target)
        row["different_bits"] = (logprob != before).sum().item()
        row["exact_error"] = exact_error(DTYPES[dtype], wide, rows, vocab, device)
        limits.update(different_bits=0, exact_error=EXACT_LIMIT)
    flp.check()
    return {**row, "limits": limits, "failed": [name for name, limit in limits.items() if not row[name] <= limit]}


def rows_of(sizes, device):
    return [row_of(dtype, wide, mixed, sizes, device) for dtype in DTYPES for wide in ("weight", "hidden")
            for mixed in ("round", "split")]


def line_of(row):
    return "%(dtype)s, float32 %(wide)s, %(mixed)s: error %(error).1e, of gradients %(grad_error).1e:" % row


if __name__ == "__main__":
    sys.exit(ways.judge("mixed_bits.py", __doc__, (FULL, TINY), rows_of, line_of))
