"""Steps of built-in losses over rows of weight 0 that hold anything, and over ratios up to the end of float32: the same
rows on libflp's CPU rung and on kernels that run on the CPU. Prints what differs as JSON. As torch_case.py, run by
test_torch.py."""
import json
import math
import sys

import torch

import torch_case
from torch_case import flp, pretend
from flp._library import _c, _plans, _programs
from flp._passes import _run
from flp._tensors import _check

N, D, V, K, TOLERANCE = 40, 40, 900, 5, {"bf16": 2e-2, "fp16": 5e-3, "fp32": 1e-4}
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
TARGETS = {"target_logprob", "teacher_logprob"}
IDLE = torch.arange(N) % 4 == 1          # rows of weight 0
STREAM, RECOMPUTE = 6, 0


class Rows:
    """One batch. bad: what the rows of weight 0 hold, in turn."""

    def __init__(self, program, dtype, bad):
        generator = torch.Generator().manual_seed(5)

        def normal(*shape):
            return torch.randn(*shape, generator=generator)

        self.program, many = program, bool(program.inputs & TARGETS)
        self.hidden, self.weight, self.bias = normal(N, D), 0.3 * normal(V, D), normal(V)
        self.target = torch.stack([torch.randperm(V, generator=generator)[:K] for _ in range(N)])
        logp = torch.log_softmax(self.hidden @ self.weight.t() + self.bias, -1).gather(1, self.target)
        self.teacher = (logp + 0.3 * normal(N, K)).clamp(max=-1)
        self.old, self.ref = (logp[:, 0] + 0.2 * normal(N) for _ in range(2))
        self.advantage, self.row_weight = normal(N), torch.rand(N, generator=generator) + 0.5
        self.vectors = {name: torch.rand(N, generator=generator) for name in program.vectors}
        if bad:
            self.spoil(IDLE.nonzero()[:, 0].tolist())
        if not many:
            self.target, self.teacher = self.target[:, 0].contiguous(), None
        self.hidden, self.weight, self.bias = (x.to(DTYPES[dtype]) for x in (self.hidden, self.weight, self.bias))

    def spoil(self, rows):
        nan, infinity = math.nan, math.inf
        if "mean_score" not in self.program.inputs:
            self.bias[::7] = -infinity
        self.target[~IDLE] = self.target[~IDLE] // 7 * 7 + 1
        self.target[:, 1:] = (self.target[:, :1] + 7 * torch.arange(1, K)) % (V - 6)
        self.row_weight[rows] = 0
        self.row_weight[rows[0]] = -0.0
        self.hidden[rows[0::6]] = nan
        self.hidden[rows[1::6], 3] = infinity
        self.target[rows[2::6], 0] = 7                                   # its score is -inf
        self.old[rows[3::6]], self.ref[rows[3::6]] = -infinity, nan
        self.advantage[rows[4::6]], self.teacher[rows[4::6]] = nan, nan
        self.old[rows[5::6]], self.advantage[rows[5::6]], self.teacher[rows[5::6]] = -800, -infinity, -infinity
        for values in self.vectors.values():
            values[rows[0::2]] = nan

    def step(self, device, mode, wide=0):
        _run.device_of, torch_case.MODE_P = lambda tensor: device, mode
        ops = _run.Operands(self.hidden, self.weight, self.bias, self.target)
        settings = _check.Settings(1.0, None, 1.0, -100, None, False)
        settings.detached, settings.wide_grads = True, wide
        parameters = {name: 0.1 for name in ("beta", "entropy_weight", "z_loss", "label_smoothing")
                      if name in self.program.parameters}
        loss = _run.Loss(self.program, parameters, self.old, self.ref, self.advantage, self.row_weight, self.vectors,
                         self.teacher)
        made = _run.step(ops, settings, 7, loss)
        return [made.loss, made.metrics, *made.gradients]


def apart(got, want):
    """Relative distance; infinite where one has a number and the other has none."""
    got, want = got.double(), want.double()
    if not want.numel():
        return 0.0
    if not torch.equal(got.isfinite(), want.isfinite()):
        return math.inf
    got, want = got.nan_to_num(0, 0, 0), want.nan_to_num(0, 0, 0)
    scale = want.abs().max().clamp(min=1e-30)
    return ((got / scale - want / scale).norm() / (want / scale).norm().clamp(min=1e-30)).item()


def weightless(name, dtype, mode):
    """Rows of weight 0 beside the other rung, and beside the same rows with nothing bad in them."""
    rows, program = {}, _programs.builtin(name)
    for device in (_c.DEVICE_HOST, 0):
        loss, metrics, hidden, weight, bias = rows[device] = Rows(program, dtype, True).step(device, mode)
        zeros = [loss[IDLE], metrics[:, IDLE], hidden[IDLE]]
        if any(x.ne(0).any() for x in zeros) or not all(x.isfinite().all() for x in rows[device]):
            return "on %s: loss %s, %s of the gradients no numbers" % (
                "kernels" if device == 0 else "the CPU rung", loss[IDLE].tolist(),
                [int((~x.isfinite()).sum()) for x in (hidden, weight, bias)])
    error = max(apart(*pair) for pair in zip(rows[0], rows[_c.DEVICE_HOST]))
    return None if error < TOLERANCE[dtype] else "rungs are %g apart" % error


RATIOS = [0.0, 40.0, 56.0, 70.0, 84.0, 88.5, 300.0]
MOST_RATIO = 85.0  # above it a gradient's elements may be beyond float32 where the loss is not


def ratios(name, dtype, mode):
    """One row whose log ratio is d, advantage -1, its reference d above: losses agree; gradients too, and are finite while
    the loss is."""
    program, wide = _programs.builtin(name), 7
    for d in RATIOS:
        rows = Rows(program, dtype, False)
        rows.row_weight[:], rows.advantage[7] = 1, -1
        scores = rows.hidden.float() @ rows.weight.float().t() + rows.bias.float()
        logprob = torch.log_softmax(scores[7], -1)[rows.target[7]]
        rows.old[7], rows.ref[7] = logprob - d, logprob + d
        host, kernels = rows.step(_c.DEVICE_HOST, mode, wide), rows.step(0, mode, wide)
        if apart(kernels[0], host[0]) > 1e-3 or (d < MOST_RATIO and not host[0][7].isfinite()):
            return "d = %g: losses %s, %s" % (d, host[0][7].item(), kernels[0][7].item())
        pairs = list(zip(kernels[2:], host[2:])) if d < MOST_RATIO else []
        pairs += [(got[7], want[7]) for got, want in pairs[:1]]
        errors = [apart(*pair) for pair in pairs]
        if not all(want.isfinite().all() for _, want in pairs) or not all(error < TOLERANCE[dtype] for error in errors):
            return "d = %g: gradients are %s apart" % (d, errors)
    return None


def clipped(name, dtype, mode):
    """Where the clipped branch is taken the gradient is exactly 0."""
    rows = Rows(_programs.builtin(name), dtype, False)
    rows.advantage[7], rows.old[7] = 1, -500
    for device in (_c.DEVICE_HOST, 0):
        loss, _, hidden, weight, bias = rows.step(device, mode)
        if hidden[7].ne(0).any() or not all(x.isfinite().all() for x in (loss, hidden, weight, bias)):
            return "device %d: %s" % (device, hidden[7, :3].tolist())
    return None


WAYS = {"recompute": {"save": False}, "save": {"save": True}, "direction": {"save": True, "frozen": True}, "tail": {"tail": 1e-6}}


def upstream(size, entropy, first=0.0):
    """Gradients of rows whose upstream gradients are of that size: from scores made again, from what forward kept, and of
    a frozen head. first: what is added to the scores of the first columns, which what is kept refers to."""
    rows, errors = Rows(_programs.builtin("nll"), "bf16", False), {}
    rows.bias[:800] += first
    each = size * (1 + torch.arange(N) / N)

    def gradients(device, frozen=False, **options):
        _run.device_of = lambda tensor: device
        leaves = [x.detach().requires_grad_() for x in (rows.hidden, rows.weight)]
        weight = leaves[1].detach() if frozen else leaves[1]
        out = flp.linear_logprob(leaves[0], weight, rows.target, rows.bias, entropy=entropy, **options)
        logprob, *others = out if entropy else (out,)
        return torch.autograd.grad([logprob, *others], leaves[:1] if frozen else leaves, [each] * (1 + len(others)))

    want = gradients(_c.DEVICE_HOST)
    for name, options in WAYS.items():
        errors[name] = [apart(*pair) for pair in zip(gradients(0, **options), want)]
    good = all(x.isfinite().all() for x in want) and max(map(max, errors.values())) < 3e-2
    return None if good else "%s apart" % errors


def steps_of(names, modes):
    return [(name, dtype, mode) for name in names for dtype, mode in modes]


MODES = [("bf16", STREAM), ("bf16", RECOMPUTE), ("fp16", RECOMPUTE), ("fp32", RECOMPUTE)]
LOSSES = ["nll", "token_entropy", "reinforce+entropy", "grpo+k2", "dapo+k1", "cispo", "nll+z_loss"]  # one reads no weight
DISTILLED = ["forward_kl", "reverse_kl", "jsd"]
KINDS = {
    "weightless": (weightless, steps_of(LOSSES, MODES[:1]) + steps_of(["ppo+k3", "cross_entropy"], MODES)
                   + steps_of(DISTILLED, MODES[1:2]) + steps_of(["jsd+entropy"], MODES[2:])),
    "weightless steps": (weightless, steps_of(["ppo+k3", "cross_entropy"], MODES[:1])),
    "ratios": (ratios, steps_of(["reinforce+k3", "ppo+entropy"], MODES) + steps_of(["ppo"], MODES[:1])),
    "clipped": (clipped, steps_of(["ppo", "grpo", "dapo"], MODES)),
    "upstream": (upstream, [(size, entropy) for size in (1e-30, 1.0, -1e20, -1e25, 1e35) for entropy in (False, True)]
                 + [(size, entropy, -100.0) for size in (1e-20, 1e30) for entropy in (False, True)]),
}


def main():
    pretend()
    found = {}
    for kind in sys.argv[1:] or KINDS:
        judge, cases = KINDS[kind]
        for case in cases:
            flp.clear_plans()
            found[" ".join(map(str, (kind, *case)))] = judge(*case)
    print(json.dumps({"rungs": sorted({_plans.rung_name(plan.rung) for plan in _plans.existing()}), "found": found}))


main()
