"""Divergences of two heads whose vocabulary two processes share, on kernels that run on the CPU, beside the same call
of whole heads: prints what differs as JSON. arguments: of OPTIONS, none: all. As torch_case.py, run by test_torch.py."""
import json
import os
import sys
import tempfile

import torch

from torch_case import flp, pretend
from flp._functions import _diverge
from flp._library import _plans

N, D, E, V, CUT, PADDING = 70, 24, 16, 331, 210, 5
ROWS = {"temperature": torch.linspace(0.5, 2, N), "teacher_temperature": 1.5}
OPTIONS = {"plain": {}, "scaled": {"scale": -0.6, "temperature": 0.7}, "rows": ROWS, "capped": {"softcap": 8.0},
           "mask": {"mask": torch.arange(N) % 4 != 1}, "frozen": {}, "none on a rank": {},
           "chunks": {"budget": 250_000}}  # with room for the gradient of all scores on one rank
LEAVES = "hidden", "weight", "teacher_hidden", "teacher_weight"
KINDS = "jsd", "reverse_kl", "lk", "total_variation"


def operands(name, dtype):
    generator = torch.Generator().manual_seed(4)
    draw = {field: torch.randn(*shape, generator=generator) for field, shape in (
        ("hidden", (N, D)), ("weight", (V, D)), ("bias", (V,)), ("teacher_hidden", (N, E)), ("teacher_weight", (V, E)),
        ("teacher_bias", (V,)))}
    draw["weight"] *= 0.4
    if name == "none on a rank":  # no score above -inf there
        draw["bias"][CUT:] = draw["teacher_bias"][CUT:] = -torch.inf
    if name == "plain":
        draw["hidden"][5], draw["teacher_hidden"][6] = 1e12, -1e12  # beyond the limit
    return {field: values.to(dtype) for field, values in draw.items()}


def of_rank(given, rank):
    """This rank's rows of both heads, of which the last are padding on the second."""
    part = slice(0, CUT) if rank == 0 else slice(CUT, V)
    cut = {field: values[part] if "weight" in field or "bias" in field else values for field, values in given.items()}
    if rank == 1:
        cut = {field: torch.cat([values, values[:PADDING]]) if values.shape[0] == V - CUT else values
               for field, values in cut.items()}
    return cut, part


def called(function, given, kind, options, leaves, **more):
    leaves = {field: values.clone().requires_grad_(field in leaves) for field, values in given.items()}
    biases = leaves["bias"], leaves["teacher_bias"]
    found = function(*(leaves[name] for name in LEAVES), kind, *biases, **options, **more)
    weights = torch.linspace(-1, 1, N)
    torch.where(found.value.isfinite(), found.value * weights, torch.zeros(())).sum().backward()
    return [values.detach() for values in found], {field: leaf.grad for field, leaf in leaves.items()
                                                   if leaf.requires_grad}


def differences(rank, name, kind, dtype):
    given, options = operands(name, dtype), OPTIONS[name]
    leaves = ("hidden",) if name == "frozen" else ("hidden", "weight", "bias")
    whole, whole_grads = called(flp.divergence, given, kind, options, leaves)
    cut, part = of_rank(given, rank)
    place = {"vocab_offset": part.start, "vocab_valid": part.stop - part.start, "vocab_total": V}
    found, grads = called(flp.parallel.divergence, cut, kind, options, leaves, **place)
    wrong = ["values %d: %.1e" % (at, (one - other).abs().max()) for at, (one, other) in enumerate(zip(whole, found))
             if not torch.allclose(one.float(), other.float(), rtol=1e-5, atol=2e-6, equal_nan=True)]
    for field, grad in grads.items():
        want = whole_grads[field] if field == "hidden" else whole_grads[field][part]
        real = grad if field == "hidden" else grad[:len(want)]
        error = (real - want).double().nan_to_num().norm() / want.double().nan_to_num().norm().clamp(min=1e-30)
        if not error < (1e-5 if dtype is torch.float32 else 8e-3) or not torch.equal(real.isnan(), want.isnan()) \
                or len(grad) > len(want) and grad[len(want):].any():
            wrong.append("gradient of %s: %.1e" % (field, error))
    return wrong


def exchanges(rank):
    """How often ranks exchange numbers of a call and its backward pass, of two of them."""
    cut, part = of_rank(operands("frozen", torch.bfloat16), rank)
    cut["weight"].requires_grad_()
    place = {"vocab_offset": part.start, "vocab_valid": part.stop - part.start, "vocab_total": V}
    made, counts = flp.parallel._group.Group.lists, []
    flp.parallel._group.Group.lists = lambda group, *given: counts.append(1) or made(group, *given)
    for _ in range(2):
        before = len(counts)
        found = flp.parallel.divergence(*(cut[name] for name in LEAVES), **place)
        found.value.sum().backward()
        yield len(counts) - before


def run(rank, store, names):
    pretend()
    torch.distributed.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)
    found, kept, made = {}, [], _diverge.gradients_of_kept
    _diverge.gradients_of_kept = lambda problem, *given: (problem.group and kept.append(name)) or made(problem, *given)
    with flp.phase("all"):
        for name in names:
            for kind in KINDS if name in ("plain", "rows") else KINDS[:1]:
                for dtype in (torch.float32, torch.bfloat16):
                    found["%s %s %s" % (name, kind, dtype)] = differences(rank, name, kind, dtype)
    counted = 0
    try:
        flp.check()
    except flp.DataError as error:
        counted = int(error.detail.split()[0])
    keys = [plan.key for plan in _plans.existing()]
    return {"found": found, "counted": counted, "kept": kept[:], "exchanges": list(exchanges(rank)), "shards": sum(
        key.raw_scores and not key.grads and key.vocab in (CUT, V - CUT) for key in keys)}


if __name__ == "__main__":
    store, names = tempfile.mktemp(), sys.argv[1:] or list(OPTIONS)
    ours, theirs = os.pipe()
    if os.fork() == 0:
        with os.fdopen(theirs, "w") as answer:
            json.dump(run(1, store, names), answer)
        os._exit(0)
    os.close(theirs)
    first = run(0, store, names)
    with os.fdopen(ours) as answer:
        print(json.dumps([first, json.load(answer)]))
