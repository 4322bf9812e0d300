"""flp.distill_loss on the stand-in for libcuda that runs kernels on the CPU: prints errors against float64 as JSON. As
torch_case.py, run by test_loss_targets.py."""
import json

import torch

from torch_case import flp, pretend, relative
from flp._library import _plans

N, D, V, K = 40, 40, 900, 6
DTYPES = {"bf16": (torch.bfloat16, 1e-2), "fp16": (torch.float16, 4e-3), "fp32": (torch.float32, 2e-5)}


def divergence(name, log_p, log_q, counted):
    p, q = log_p.exp() * counted, log_q.exp() * counted
    rest_p, rest_q = 1 - p.sum(-1), 1 - q.sum(-1)
    if name == "forward_kl":
        return (p * (log_p - log_q)).sum(-1) + rest_p * (rest_p / rest_q).log()
    return (q * (log_q - log_p)).sum(-1) + rest_q * (rest_q / rest_p).log()


def step(name, dtype, tolerance, frozen=False, **options):
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(N, D, generator=generator).to(dtype).requires_grad_()
    weight = (0.3 * torch.randn(V, D, generator=generator)).to(dtype).requires_grad_(not frozen)
    teacher = torch.log_softmax(2 * torch.randn(N, V, generator=generator), -1)
    teacher, target = teacher.topk(K, -1)
    target = target.clone()
    target[3] = target[4, 2:] = -100
    row_weight = torch.rand(N, generator=generator)
    row_weight[6] = 0
    counted = (target != -100).double()
    leaves = [leaf for leaf in (hidden, weight) if leaf.requires_grad]
    results = []
    for _ in range(2):
        loss, _ = flp.distill_loss(hidden, weight, target, teacher, loss=name, row_weight=row_weight, **options)
        results.append([loss, *torch.autograd.grad(loss, leaves)])
    h, w = hidden.detach().double().requires_grad_(), weight.detach().double().requires_grad_()
    scores = (h @ w.t()) / options.get("temperature", 1.0)
    log_q = torch.log_softmax(scores, -1).gather(-1, target.clamp(min=0))
    each = divergence(name, torch.where(counted > 0, teacher.double(), torch.zeros((), dtype=torch.float64)), log_q, counted)
    exact = (torch.where(counted.any(-1), each, torch.zeros_like(each)) * row_weight).sum()
    loss, *got = results[0]
    want = torch.autograd.grad(exact, [h, w][:len(leaves)])
    rungs = {_plans.rung_name(plan.rung) for plan in _plans.existing()}
    return {"loss": abs(loss.item() - exact.item()) / abs(exact.item()), "errors": relative(got, want),
            "tolerance": tolerance, "rungs": sorted(rungs),
            "again": all(torch.equal(a, b) for a, b in zip(*results))}


def main():
    pretend()
    found = {dtype: step("forward_kl", *given) for dtype, given in DTYPES.items()}
    found["reverse"] = step("reverse_kl", *DTYPES["bf16"], temperature=0.8)
    found["frozen"] = step("forward_kl", *DTYPES["bf16"], frozen=True)
    print(json.dumps(found))


main()
