"""The list of cases of support/flp_cases.py on kernels that run on the CPU: prints what differs from float64 as JSON,
{case: differences}, and the rungs that ran. arguments: the dtype of heads that name none; of how many parts of the list
this is which. Or `same`: {pair: results whose bits differ}; or `near certain` and eps: rows of tests/gpu/near_certain.py at
small sizes. Or `explained`, a number of rows and a budget: what flp.explain_divergence says, and what the call does. As
torch_case.py, run by test_torch.py."""
import dataclasses
import json
import sys
from pathlib import Path

import torch

from torch_case import flp, pretend

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / folder) for folder in ("support", "gpu")]
import near_certain  # noqa: E402
from flp._functions import _diverge  # noqa: E402
from flp._library import _plans  # noqa: E402
from flp_beside import SAME_BESIDES  # noqa: E402
from flp_cases import BF16, BIAS, CASES, FILE, FP16, WHOLE, case, differences, unlike  # noqa: E402

OF_NO_KERNEL = ("losses.", "sequence_logprob", "delight", "divergence_payload", "gate", "logprob_head",
                "CrossEntropyHead")
LORA = {"entropy": True, "save": False, "frozen": ("weight", "a", "b")}
SCORED = {"entropy": True, "frozen": ("hidden", "weight", "bias"), **BIAS}
# Pairs with the same bits.
SAME = [
    *[(case("linear_logprob", entropy=True, **head, **dtype),
       case("linear_logprob", entropy=True, mixed="round", **head, **dtype, **{f"{wide}_dtype": torch.float32}))
      for dtype in (BF16, FP16) for head in ({}, {**WHOLE, "bias": None}) for wide in ("weight", "hidden")],
    *[(case("linear_logprob", **LORA, **dtype), case("linear_logprob", "no b", lora="@lora", **LORA, **dtype))
      for dtype in ({}, BF16, FP16)],
    *[(case("linear_logprob", **SCORED, **dtype), case("linear_logprob", target="@again", **SCORED, **dtype))
      for dtype in ({}, BF16)],
    *SAME_BESIDES,
]


# dz of fp16 has one scale, which the largest row sets; scores that it does not hold are infinite
NOT_IN_FP16 = {"far down", "score beyond", "teacher score beyond"}


def has_kernels(row):
    """A test of steps has those of a rule of a file; what a payload is made of has none."""
    return not row.function.startswith(OF_NO_KERNEL) and row.options.get("rule") != FILE


def rows_of(dtype):
    for row in CASES:
        if not has_kernels(row):
            continue
        if dtype == torch.float16 and NOT_IN_FP16 & set(row.edges):
            continue
        if dtype == torch.float16 and "reference" in row.options and row.function == "policy_loss":  # is refused
            continue
        yield row if row.dtype != torch.float32 or row.weight_dtype else dataclasses.replace(row, dtype=dtype)


def all_cases(dtype, parts, part):
    found, rungs = {}, set()
    with flp.phase("all"):
        for row in list(rows_of(getattr(torch, dtype)))[int(part)::int(parts)]:
            try:
                found[str(row)] = differences(row)
            except Exception as error:  # of this row alone
                found[str(row)] = [f"{type(error).__name__}: {error}"]
            rungs |= {plan.rung for plan in _plans.existing()}
    return {"found": found, "rungs": sorted(rungs)}


def explained(n, budget):
    """PlanInfo of two heads, and of the same call its chunks of gradients and the bytes of what they hold."""
    generator = torch.Generator().manual_seed(2)
    heads = [torch.randn(rows, depth, generator=generator).bfloat16() for depth in (24, 16) for rows in (n, 331)]
    heads[:2] = (tensor.requires_grad_() for tensor in heads[:2])
    info, chunks, made = flp.explain_divergence(*heads, "jsd", budget=budget), [], _diverge._Call.diverge

    def noting(call, *given):
        chunks.append(sum(tensor.numel() * tensor.element_size() for tensor in (call.x, call.y, call.dx)))
        return made(call, *given)

    _diverge._Call.diverge = noting
    flp.divergence_loss(*heads, "jsd", budget=budget)
    _diverge._Call.diverge = made
    try:
        flp.divergence_loss(*heads, "jsd", budget=60_000)
        refused = ""
    except flp.BudgetError as error:
        refused = str(error)
    drafts = flp.explain_divergence(heads[0], heads[1][:200], *heads[2:], "jsd", teacher_ids=torch.arange(200))
    return {"step": info.step, "text": str(info), "chunks": chunks, "drafts": [drafts.step["products"], str(drafts)],
            "ways": ways(heads, budget), "refused": refused}


def ways(heads, budget):
    """Backward passes of flp.divergence: from gradients of scores that forward kept, from scores made anew in this
    budget, and of a frozen head. By name the products of forward and backward, the bytes kept, and the largest
    distance of a gradient from that of flp.divergence_loss, over its largest element"""
    weights, found = torch.linspace(-1, 1, len(heads[0])), {}
    for name, trained, more in (("kept", 2, {}), ("anew", 2, {"budget": budget}), ("frozen", 1, {"budget": budget})):
        own = [heads[0], heads[1] if trained == 2 else heads[1].detach(), *heads[2:]]
        info, leaves = flp.explain_divergence(*own, "jsd", **more), own[:trained]
        value = (flp.divergence(*own, "jsd", **more).value * weights).sum()
        pairs = zip(torch.autograd.grad(value, leaves, retain_graph=True), torch.autograd.grad(
            flp.divergence_loss(*own, "jsd", row_weight=weights, **more)[0], leaves))
        apart = max(((one - other).abs().max() / other.abs().max()).item() for one, other in pairs)
        again = torch.autograd.grad(2 * value, leaves)
        found[name] = {"products": [info.forward["products"], info.backward["products"]], "apart": apart,
                       "saved": info.forward.get("saved_bytes", 0), "again": len(again)}
    return found


def main(kind, *arguments):
    pretend()
    if kind == "explained":
        return explained(*map(int, arguments))
    if kind == "near certain":
        near_certain.EPSILONS = [float(eps) for eps in arguments]
        return near_certain.rows_of(near_certain.TINY, torch.device("cpu"), has_save=True)
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    return {str(pair[1]): unlike(*pair) for pair in SAME} if kind == "same" else all_cases(kind, *arguments)


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
