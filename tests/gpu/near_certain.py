#!/usr/bin/env python3
"""Gradients of rows that are nearly certain, in every mode, against float64 on this machine's GPU.

    FLP_LIBRARY=build/release/lib/libflp.so python3 tests/gpu/near_certain.py --json tests/gpu/evidence/near_certain.json
    ... --cpu       without a GPU, at small sizes: to try the script

In a row p of one column is 1 - eps; it is the target's or another one's. The upstream gradient is of logprob, of the
entropy, or of both (1 and 1e-3). `error` is the relative L2 error of the gradient of hidden, then of weight:

  recompute, save, tail    flp.linear_logprob
  stream                   flp.policy_loss("reinforce", ..., entropy_weight=1), whose advantage the upstream gradient is
  direction                flp.linear_logprob of a frozen head, where the upstream gradient is of logprob alone

Groups of equal rewards have advantage 0 and an entropy bonus: upstream of the entropy alone. The limit is LIMIT; of
logprob's upstream at a target of eps of 1e-4 or less, where float32 rounds 1 - p, what recompute mode has, and a half more.
`failed` counts the rows that break it. Exit status 0 if none does, 1 if one does, 3 without a GPU.
"""
import sys
from pathlib import Path

import torch

TREE = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TREE / "runtime" / "python"))
import flp  # noqa: E402
import ways  # noqa: E402

FULL, TINY = (512, 8192, 1024), (48, 1100, 40)  # rows, V, D
EPSILONS = 0.3, 1e-1, 1e-2, 1e-3, 1e-4, 1e-6
UPSTREAM = {"logprob": (1.0, 0.0), "entropy": (0.0, 1.0), "both": (1.0, 1e-3)}
BEST = "target", "another"
LIMIT = 4e-3
BUDGET = 4 << 30


def head(sizes, device):
    """-> weight (V, D), whose rows have length 1 before they are rounded, and targets (N)"""
    rows, vocab, depth = sizes
    generator = torch.Generator(device=device).manual_seed(5)
    weight = torch.randn(vocab, depth, device=device, generator=generator)
    target = torch.randint(vocab, (rows,), device=device, generator=generator)
    return (weight / weight.norm(dim=1, keepdim=True)).bfloat16(), target


def hidden_of(weight, best, eps):
    """Random rows with so much of the best column's weight in them that its p is 1 - eps."""
    generator = torch.Generator(device=weight.device).manual_seed(6)
    base = torch.randn(len(best), weight.shape[1], device=weight.device, generator=generator)
    low, high = (torch.full((len(best),), value, device=weight.device) for value in (0.0, 400.0))
    for _ in range(40):
        size = (low + high) / 2
        hidden = (base + size[:, None] * weight[best].float()).bfloat16()
        p = (hidden.double() @ weight.double().t()).softmax(1).gather(1, best[:, None])[:, 0]
        low, high = torch.where(p < 1 - eps, size, low), torch.where(p < 1 - eps, high, size)
    return (base + high[:, None] * weight[best].float()).bfloat16()


def exact(hidden, weight, target, of_logprob, of_entropy):
    """Gradients of hidden and weight in float64."""
    logp = (hidden.double() @ weight.double().t()).log_softmax(1)
    p = logp.exp()
    dz = -of_logprob.double()[:, None] * p
    dz.scatter_add_(1, target[:, None], of_logprob.double()[:, None])
    dz -= of_entropy.double()[:, None] * p * (logp - (p * logp).sum(1, keepdim=True))
    return dz @ weight.double(), dz.t() @ hidden.double()


def trained(hidden, weight, target, of_logprob, of_entropy, **options):
    leaves = [tensor.clone().requires_grad_() for tensor in (hidden, weight)]
    logprob, entropy = flp.linear_logprob(*leaves, target, entropy=True, budget=BUDGET, **options)
    torch.autograd.backward((logprob, entropy), (of_logprob, of_entropy))
    return [leaf.grad for leaf in leaves]


def streamed(hidden, weight, target, of_logprob, of_entropy):
    """A policy's loss is -advantage·logprob - entropy_weight·entropy a token, so that the entropy's upstream is a number."""
    leaves = [tensor.clone().requires_grad_() for tensor in (hidden, weight)]
    loss, _ = flp.policy_loss("reinforce", leaves[0][None], leaves[1], target[None], of_logprob[None], total=1.0,
                              entropy_weight=of_entropy[0].item(), budget=BUDGET)
    loss.backward()
    return [-leaf.grad for leaf in leaves]


def directed(hidden, weight, target, of_logprob, save):
    leaf = hidden.clone().requires_grad_()
    flp.linear_logprob(leaf, weight, target, save=save, budget=BUDGET).backward(of_logprob)
    return [leaf.grad]


def row_of(sizes, device, best, eps, upstream, save=True):
    """-> one row: errors by mode, and the modes that break their limit. save: None where there may be no such mode"""
    weight, target = head(sizes, device)
    hidden = hidden_of(weight, target if best == "target" else (target + 1) % len(weight), eps)
    of_logprob, of_entropy = (factor * torch.linspace(0.5, 1.5, len(target), device=device)
                              for factor in UPSTREAM[upstream])
    constant = torch.full_like(of_entropy, UPSTREAM[upstream][1])
    given = hidden, weight, target, of_logprob
    wanted, wanted_of_stream = exact(*given, of_entropy), exact(*given, constant)
    made = {"recompute": (trained(*given, of_entropy, save=False), wanted),
            "save": (trained(*given, of_entropy, save=save), wanted),
            "tail": (trained(*given, of_entropy, tail=2**-9), wanted),
            "stream": (streamed(*given, constant), wanted_of_stream)}
    if upstream == "logprob":
        made["direction"] = directed(*given, save), wanted
    error = {mode: [((one.double() - want).norm() / want.norm()).item() for one, want in zip(*pair)]
             for mode, pair in made.items()}
    flp.check()
    limit = LIMIT
    if best == "target" and eps <= 1e-4 and upstream != "entropy":
        limit = max(limit, 1.5 * max(error["recompute"]))
    return {"best": best, "eps": eps, "upstream": upstream, "error": error, "limit": limit,
            "failed": [mode for mode, both in error.items() if not max(both) <= limit]}


def rows_of(sizes, device, has_save=False):
    save = True if has_save or device.type == "cuda" else None
    return [row_of(sizes, device, best, eps, upstream, save)
            for best in BEST for eps in EPSILONS for upstream in UPSTREAM]


def line_of(row):
    errors = "; ".join(f"{mode} {' '.join('%.1e' % one for one in both)}" for mode, both in row["error"].items())
    return "best %(best)s, eps %(eps)g, %(upstream)s: " % row + errors


if __name__ == "__main__":
    sys.exit(ways.judge("near_certain.py", __doc__, (FULL, TINY), rows_of, line_of))
