"""flp.cross_entropy on the stand-in for libcuda that runs kernels on the CPU: prints errors against float64 as JSON. As
torch_case.py, run by test_cross_entropy.py."""
import json
import sys

import torch

import torch_case
from torch_case import flp, pretend, relative
from flp._library import _plans

N, D, V, STREAM = 72, 40, 1100, 6
DTYPES = {"bf16": (torch.bfloat16, 1e-2), "fp16": (torch.float16, 4e-3), "fp32": (torch.float32, 2e-5)}
SMOOTHED = {"label_smoothing": 0.1, "z_loss": 1e-2}
CASES = {"bf16": ("bf16", SMOOTHED), "fp16": ("fp16", SMOOTHED), "fp32": ("fp32", SMOOTHED),
         "z": ("bf16", {"z_loss": 0.05}), "whole": ("bf16", {"label_smoothing": 1.0}),
         "strong": ("bf16", {"label_smoothing": 0.9, "z_loss": 0.3, "scale": 0.3}), "frozen": ("bf16", SMOOTHED),
         "bias": ("bf16", {**SMOOTHED, "bias": True}), "softcap": ("bf16", {**SMOOTHED, "softcap": 4.0}),
         "softcap bias fp16": ("fp16", {**SMOOTHED, "softcap": 4.0, "bias": True}),
         "softcap z": ("bf16", {"z_loss": 0.05, "softcap": 6.0}), "low lse": ("bf16", {"z_loss": 0.05, "low": True}),
         "vanishing": ("bf16", {"z_loss": 0.5, "vanishing": True}), "none": ("bf16", {**SMOOTHED, "reduction": "none"}),
         "small budget": ("bf16", {**SMOOTHED, "budget": 1 << 20}), "rows": ("bf16", {**SMOOTHED, "temperature": True})}


def exact(h, w, b, target, row_weight, options):
    t = h @ w.t() * options.get("scale", 1.0)
    t = t if b is None else t + b
    if "softcap" in options:
        t = options["softcap"] * torch.tanh(t / options["softcap"])
    t = t / options.get("temperature", torch.ones(()))[..., None]
    lse = torch.logsumexp(t, -1)
    e, counted = options.get("label_smoothing", 0.0), target != -100
    nll = lse - t.gather(-1, target.clamp(min=0)[:, None])[:, 0]
    each = (1 - e) * nll + e * (lse - t.mean(-1)) + options.get("z_loss", 0.0) * lse * lse
    return torch.where(counted & (row_weight != 0), each * row_weight, torch.zeros_like(each))


def step(name, dtype, given):
    dtype, tolerance = DTYPES[dtype]
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(N, D, generator=generator)
    weight = 0.3 * torch.randn(V, D, generator=generator) + 0.05
    bias = torch.randn(V, generator=generator) if given.pop("bias", False) else None
    if given.pop("temperature", False):
        given["temperature"] = torch.rand(N, generator=generator) + 0.6
    if given.pop("low", False):      # lse far below 0 in some rows: p's factor changes sign, and is 0 near lse = -10
        bias = -12 + torch.randn(V, generator=generator)
    if given.pop("vanishing", False):  # lse = -1: without the logprob nothing pulls at p
        bias = torch.full((V,), -1.0 - torch.tensor(float(V)).log().item())
        hidden[::5] = 0
    hidden, weight = hidden.to(dtype).requires_grad_(), weight.to(dtype).requires_grad_(name != "frozen")
    bias = None if bias is None else bias.to(dtype).requires_grad_(name not in ("low lse", "vanishing"))
    target = torch.randint(V, (N,), generator=generator)
    target[3] = target[40] = -100
    row_weight = torch.rand(N, generator=generator)
    row_weight[6] = 0
    leaves = [leaf for leaf in (hidden, weight, bias) if leaf is not None and leaf.requires_grad]
    given = {"reduction": "sum", **given}
    upstream = torch.rand(N, generator=generator) if given["reduction"] == "none" else None
    results = []
    for _ in range(2):
        loss = flp.cross_entropy(hidden, weight, target, bias, row_weight=row_weight, **given)
        results.append([loss, *torch.autograd.grad(loss, leaves, upstream)])
    wide = [None if leaf is None else leaf.detach().double().requires_grad_(leaf.requires_grad)
            for leaf in (hidden, weight, bias)]
    options = {key: value.double() if isinstance(value, torch.Tensor) else value for key, value in given.items()}
    want_each = exact(*wide, target, row_weight.double(), options)
    want = want_each if upstream is not None else want_each.sum()
    gradients = torch.autograd.grad(want, [leaf for leaf in wide if leaf is not None and leaf.requires_grad],
                                    None if upstream is None else upstream.double())
    loss, *got = results[0]
    modes = {flp_mode(plan) for plan in _plans.existing() if plan.key.loss}
    return {"loss": ((loss.double() - want).norm() / want.norm()).item(), "errors": relative(got, gradients),
            "tolerance": tolerance, "rungs": sorted({_plans.rung_name(plan.rung) for plan in _plans.existing()}),
            "modes": sorted(modes), "again": all(torch.equal(a, b) for a, b in zip(*results))}


def flp_mode(plan):
    from flp._library import _c
    layout = _c.new_layout()
    _c.check(_c.get(), _c.get().flp_plan_layout(plan.handle, _c.PASS_STEP, N, 0, layout))
    return layout.mode


def main():
    pretend()
    found = {}
    for name in sys.argv[1:] or CASES:
        dtype, given = CASES[name]
        flp.clear_plans()
        torch_case.MODE_P = 0 if "softcap" in given and "label_smoothing" in given else STREAM
        found[name] = step(name, dtype, dict(given))
    print(json.dumps(found))


main()
