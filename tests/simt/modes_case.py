"""One problem in score, recompute, save and stream modes on the stand-in for libcuda that runs kernels on the CPU:
prints what it found as JSON.

Run with FLP_LIBRARY and the stand-ins in the environment (test_modes.py) and a JSON object of settings, see Case. Device
memory of the stand-in is host memory, so arrays of numpy are passed as they are. Gradients are compared with float64 by the
relative Frobenius error; recompute mode on the same inputs is the measure of save and stream modes.
"""
import ctypes
import importlib
import json
import sys
import types
from dataclasses import dataclass, replace
from pathlib import Path

import numpy

FLP = Path(__file__).resolve().parents[2] / "runtime" / "python" / "flp"
LOG2E = 1.4426950408889634


def bindings():
    """flp._library._c without the package around it, which needs torch."""
    package = types.ModuleType("flp")
    package.__path__ = [str(FLP)]
    sys.modules["flp"] = package
    return importlib.import_module("flp._library._c")


c = bindings()
DTYPES = {"bf16": c.DTYPE_BF16, "fp16": c.DTYPE_FP16, "fp32": c.DTYPE_FP32}


@dataclass
class Case:
    """vocab, hidden, rows; what the spec asks for; and rows that ask something special of save or stream mode."""
    vocab: int = 1100
    hidden: int = 40
    rows: int = 150
    entropy: int = c.ENTROPY_FORWARD
    grads: int = 3
    bias: bool = False
    softcap: float = 0.0
    per_row_temperature: bool = False
    grad_weight_fp32: bool = True
    accumulate: bool = False
    masked: bool = False     # some targets are the ignore index, some rows have no upstream gradient
    spread: bool = False     # one row whose largest scores are 288 octaves above those of the first columns
    spread_row: int = 7      # which
    spread_size: float = 100
    nan_row: bool = False    # a row of NaN and one with an infinity, both without upstream gradient
    old_lse: bool = False
    vocab_valid: int = 0
    loss: str = ""           # of the step; "" leaves stream mode out
    chunk_rows: int = 64     # of the step
    step_mode: int = 6
    peaked: bool = False     # scores as of a trained model, shifted by a constant through the bias
    near_cap: float = 0      # all scores near this many times the softcap; at 5 times 1 - tanh² is 2e-4
    sums: bool = False       # the weight's gradient in bf16 over chunks of rows, beside fp32 sums that are rounded here


def bf16(x):
    """float64 -> (uint16 bits, the same values in float64), rounded to nearest even."""
    bits = numpy.asarray(x, numpy.float32).view(numpy.uint32).astype(numpy.uint64)
    bits = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(numpy.uint32)
    nan = numpy.isnan(x)
    bits[nan] = 0x7FC0
    return bits.astype(numpy.uint16), (bits << 16).view(numpy.float32).astype(numpy.float64)


def stored(x, dtype):
    """What memory holds of a dtype, and the same in float64."""
    if dtype == "bf16":
        return bf16(x)
    bits = numpy.asarray(x, {"fp16": numpy.float16, "fp32": numpy.float32}[dtype])
    return bits, bits.astype(float)


def device_memory():
    """An arena of the stand-in's device memory, which is the only memory that its memset fills."""
    arena = ctypes.c_void_p()
    assert c.get().flp_arena_create(0, arena) == 0, c.get().flp_error_detail().decode()
    return arena


def aligned(shape, dtype, arena=[]):
    """An array of device memory, poisoned; kept until the process ends."""
    arena = arena or arena.append(device_memory()) or arena
    size, start = int(numpy.prod(shape)) * numpy.dtype(dtype).itemsize, ctypes.c_void_p()
    status = c.get().flp_arena_take(arena[0], max(size, 1), None, start)
    assert status == 0, c.get().flp_error_detail().decode()
    block = numpy.frombuffer((ctypes.c_uint8 * size).from_address(start.value), numpy.uint8)
    block[...] = 0xFF
    return block.view(dtype).reshape(shape)


def copied(x, dtype):
    out = aligned(numpy.shape(x), dtype)
    out[...] = x
    return out


def at(array):
    return array.ctypes.data if array is not None else None


class Problem:
    """Operands of a case, rounded to bf16, with float64 copies for the reference."""

    def __init__(self, case):
        self.case, random = case, numpy.random.default_rng(5)
        hidden = random.standard_normal((case.rows, case.hidden))
        weight = random.standard_normal((case.vocab, case.hidden)) * 0.3
        self.target = random.integers(0, case.vocab_valid or case.vocab, case.rows)
        if case.peaked:
            hidden += 3 * weight[self.target] / 0.3
        if case.spread:
            weight[:768, 0], weight[768:, 0] = -1, 1
            hidden[:, 0] = 0
            hidden[case.spread_row, 0] = case.spread_size
        if case.nan_row:
            hidden[11], hidden[12, 3] = numpy.nan, numpy.inf
        if case.near_cap:
            hidden *= 0.05
        self.hidden_bits, self.hidden = bf16(hidden)
        self.weight_bits, self.weight = bf16(weight)
        bias = random.standard_normal(case.vocab)
        self.bias_bits, self.bias = bf16(numpy.full(case.vocab, case.near_cap * case.softcap) if case.near_cap else bias)
        self.temperature = numpy.float32(random.uniform(0.6, 1.5, case.rows))
        self.g = numpy.float32(random.standard_normal(case.rows))
        self.e = numpy.float32(random.standard_normal(case.rows) * (case.entropy == c.ENTROPY_BACKWARD))
        if case.masked:
            self.target[::5] = -100
            self.g[3::5] = self.e[3::5] = 0
        if case.nan_row:
            self.g[11:13] = self.e[11:13] = 0
        self.advantage = numpy.float32(random.standard_normal(case.rows))
        self.row_weight = numpy.float32(random.uniform(0.5, 1.5, case.rows))
        chosen = numpy.nan_to_num(self.rows()[3])  # a policy near this one, so that no row outweighs all others
        self.old, self.ref = (numpy.float32(chosen + 0.1 * random.standard_normal(case.rows)) for _ in range(2))
        self.start = numpy.float32(random.standard_normal((case.vocab, case.hidden))) if case.accumulate else None
        self.keep = []  # arrays that the library reads

    def raw(self, valid):
        return self.hidden @ self.weight[:valid].T + (self.bias[:valid] if self.case.bias else 0)

    def scores(self):
        """t in nats and dt/dz, both (rows, vocab_valid)."""
        valid = self.case.vocab_valid or self.case.vocab
        z = self.raw(valid)
        slope = numpy.ones_like(z)
        if self.case.softcap:
            bent = numpy.tanh(z / self.case.softcap)
            z, slope = self.case.softcap * bent, 1 - bent**2
        scale = (self.temperature if self.case.per_row_temperature else numpy.full(len(z), 0.8, numpy.float32))
        scale = scale.astype(numpy.float64)[:, None]
        return z / scale, slope / scale

    def rows(self):
        """Probabilities, logprob, entropy, lse."""
        t, slope = self.scores()
        top = t.max(1, keepdims=True)
        lse = (top + numpy.log(numpy.exp(t - top).sum(1, keepdims=True)))
        logp = t - lse
        p = numpy.exp(logp)
        entropy = -(p * numpy.where(p > 0, logp, 0)).sum(1)
        chosen = logp[numpy.arange(len(t)), numpy.maximum(self.target, 0)]
        return logp, p, slope, chosen, entropy, lse[:, 0]

    def of_targets(self, g):
        """Upstream gradients by column, and of all of a row's targets."""
        sums = numpy.zeros((self.case.rows, self.case.vocab_valid or self.case.vocab))
        sums[numpy.arange(len(g)), numpy.maximum(self.target, 0)] = g
        return sums, g

    def live(self, g, e):
        return (self.target >= 0) & ((g != 0) | (e != 0))

    def grad_scores(self, g, e):
        """dz in float64; inactive rows give nothing."""
        logp, p, slope, _, entropy, _ = self.rows()
        sums, total = self.of_targets(g)
        dz = sums - total[:, None] * p - e[:, None] * p * (numpy.where(p > 0, logp, 0) + entropy[:, None])
        return numpy.where(self.live(g, e)[:, None], dz * slope, 0)

    def gradients(self, g, e):
        """float64 gradients of Σ g·logprob + e·entropy."""
        dz = self.grad_scores(g, e)
        valid = dz.shape[1]
        weight, bias = numpy.zeros_like(self.weight), numpy.zeros(self.case.vocab)
        weight[:valid], bias[:valid] = dz.T @ numpy.where(self.live(g, e)[:, None], self.hidden, 0), dz.sum(0)
        return {"hidden": dz @ self.weight[:valid], "weight": weight, "bias": bias}


class Runner:
    """A plan of a problem, or of columns begin to end of its vocabulary, and calls of it."""
    shape = ()               # of a row's logprobs
    bias_kind = numpy.uint16  # what the bias's gradient is

    def __init__(self, problem, keep=0, loss="", mode=0, chunk_rows=0, chunk_vocab=0, begin=0, end=0):
        self.problem, case = problem, problem.case
        self.begin, self.end = begin, end or case.vocab_valid or case.vocab
        spec, options = c.new_spec(), c.new_options()
        spec.vocab, spec.hidden, spec.entropy, spec.grads = case.vocab, case.hidden, case.entropy, case.grads
        spec.has_bias, spec.softcap, spec.per_row_temperature = case.bias, case.softcap, case.per_row_temperature
        spec.grad_hidden_dtype = c.DTYPE_FP32
        spec.grad_weight_dtype = c.DTYPE_FP32 if case.grad_weight_fp32 else c.DTYPE_BF16
        spec.accumulate_grad_weight, spec.keep = case.accumulate, keep
        if loss:
            self.program = ctypes.create_string_buffer(c.LOSS_BYTES_MAX)
            size = ctypes.c_size_t()
            self.check(c.get().flp_loss_builtin_bytes(loss.encode(), self.program, c.LOSS_BYTES_MAX, size))
            spec.loss, spec.loss_bytes = ctypes.addressof(self.program), size.value
        self.ask(spec)
        options.rung, options.mode, options.chunk_rows, options.chunk_vocab = c.RUNG_JIT, mode, chunk_rows, chunk_vocab
        self.plan = ctypes.c_void_p()
        self.check(c.get().flp_plan_create(spec, options, self.plan))

    def ask(self, spec):
        """What a kind of cases asks for beside."""

    def check(self, status):
        assert status == 0, c.get().flp_error_detail().decode()

    def bad_rows(self):
        status = c.get().flp_plan_check(self.plan, None)
        return 0 if status == 0 else int(c.get().flp_error_detail().decode().split()[0])

    def layout(self, which):
        layout = c.new_layout()
        self.check(c.get().flp_plan_layout(self.plan, which, self.problem.case.rows, 1 << 40, layout))
        return layout

    def args(self, which):
        p, case, args = self.problem, self.problem.case, c.new_args()
        setattr(args, "pass", which)
        mine = slice(self.begin, self.end)
        self.arrays = [copied(x, x.dtype) for x in (p.hidden_bits, only(p.weight_bits, mine), only(p.bias_bits, mine),
                                                    self.target(), p.temperature)]
        hidden, weight, bias, target, temperature = map(at, self.arrays)
        args.n, args.hidden, args.weight, args.target = case.rows, hidden, weight, target
        args.bias = bias if case.bias else None
        args.temperature_rows = temperature if case.per_row_temperature else None
        args.temperature, args.vocab_offset, args.vocab_valid = 0.8, self.begin, self.end - self.begin
        args.vocab_total = case.vocab_valid or case.vocab
        return args

    def target(self):
        """Ids as the call has them."""
        return self.problem.target

    def lend(self, args, values):
        """Fields of args that point at copies of arrays."""
        for name, value in values.items():
            self.arrays.append(copied(value, numpy.float32))
            setattr(args, name, at(self.arrays[-1]))

    def give(self, args, names):
        out = {name: aligned((self.problem.case.rows,) + shape, numpy.float32) for name, shape in names.items()}
        for name, array in out.items():
            setattr(args, name, at(array))
        return out

    def gradient_arrays(self, args):
        case, out = self.problem.case, {}
        if case.grads & 1:
            out["hidden"] = aligned((case.rows, case.hidden), numpy.float32)
            args.grad_hidden = at(out["hidden"])
        if case.grads & 2:
            kind = numpy.float32 if case.grad_weight_fp32 else numpy.uint16
            out["weight"] = aligned((case.vocab, case.hidden), kind)
            if case.accumulate:
                out["weight"][...] = self.problem.start
            args.grad_weight = at(out["weight"])
        if case.grads & 4:
            out["bias"] = aligned((case.vocab,), self.bias_kind)
            args.grad_bias = at(out["bias"])
        return out

    def run(self, args, which, saved=None):
        layout = self.layout(which)
        workspace = aligned((max(layout.bytes, 1),), numpy.uint8)
        args.workspace, args.workspace_bytes = at(workspace), layout.bytes
        if saved is not None:
            args.saved, args.saved_bytes = at(saved), saved.nbytes
        call = c.get().flp_step if getattr(args, "pass") == c.PASS_STEP else c.get().flp_execute
        self.check(call(self.plan, args))
        return layout

    def values(self):
        return {"logprob": self.shape, "stats": (4,), **({"entropy": ()} if self.problem.case.entropy else {})}

    def wide(self, array):
        return wide(array)

    def forward(self, saved=None):
        args = self.args(c.PASS_FORWARD)
        out = self.give(args, self.values())
        if saved is not None and self.problem.case.old_lse:
            self.lend(args, {"old_lse": numpy.nan_to_num(self.problem.rows()[5]) + 0.3})
        self.run(args, c.PASS_FORWARD if saved is None else c.PASS_FORWARD_SAVED, saved)
        return out

    def partial(self, saved=None):
        """Forward of a shard."""
        args = self.args(c.PASS_FORWARD)
        out = self.give(args, {"partial": (4,), **({"partial_targets": self.shape} if self.shape else {})})
        if saved is not None and self.problem.case.old_lse:
            self.lend(args, {"old_lse": self.problem.rows()[5] + 0.3})
        self.run(args, c.PASS_FORWARD if saved is None else c.PASS_FORWARD_SAVED, saved)
        return out

    def combine(self, parts):
        args = self.args(c.PASS_COMBINE)
        args.hidden = args.weight = args.bias = None
        args.vocab_offset, args.vocab_valid, args.shard_count = 0, 0, len(parts)
        self.lend(args, {name: numpy.stack([part[name] for part in parts]) for name in parts[0]})
        out = self.give(args, self.values())
        self.run(args, c.PASS_COMBINE)
        return out

    def backward(self, stats, g, e, saved=None):
        args = self.args(c.PASS_BACKWARD)
        self.lend(args, {"stats": stats, **({} if g is None else {"grad_logprob": g}),
                         **({"grad_entropy": e} if self.problem.case.entropy == c.ENTROPY_BACKWARD else {})})
        out = self.gradient_arrays(args)
        self.run(args, c.PASS_BACKWARD if saved is None else c.PASS_BACKWARD_SAVED, saved)
        return {name: self.wide(array) for name, array in out.items()}

    def saved(self):
        """Memory for what forward keeps."""
        size = ctypes.c_size_t()
        self.check(c.get().flp_plan_saved(self.plan, self.problem.case.rows, 1 << 40, size))
        return aligned((size.value,), numpy.uint8)

    def vectors(self):
        p = self.problem
        return {"old_logprob": p.old, "ref_logprob": p.ref, "advantage": p.advantage, "row_weight": p.row_weight}

    def step(self, parameters):
        p, args = self.problem, self.args(c.PASS_STEP)
        self.lend(args, self.vectors())
        if p.case.old_lse:
            self.lend(args, {"old_lse": p.rows()[5] + 0.3})
        out = self.give(args, {"logprob": (), "loss": (), **({"entropy": ()} if p.case.entropy else {})})
        gradients = self.gradient_arrays(args)
        args.loss_parameters = held = (ctypes.c_double * len(parameters))(*parameters) if parameters else None
        layout = self.run(args, c.PASS_STEP)
        return out, {name: self.wide(array) for name, array in gradients.items()}, layout


def only(values, rows):
    """These rows in front, zeros behind them."""
    return numpy.concatenate([values[rows], numpy.zeros_like(values[:len(values) - len(values[rows])])])


def shards(problem, make, cuts):
    """Runners of parts of the vocabulary, which cuts divide."""
    return [make(problem, begin=begin, end=end) for begin, end in zip(cuts, cuts[1:])]


def even_cuts(case):
    return [case.vocab * i // case.shards // 8 * 8 for i in range(case.shards)] + [case.vocab]


def summed(runners, stats, g, e, saved):
    """Gradients of shards as those of the whole head. saved: of each"""
    parts = [runner.backward(stats, g, e, memory) for runner, memory in zip(runners, saved)]
    got = {"hidden": sum(part["hidden"] for part in parts)}
    for name in parts[0].keys() - {"hidden"}:
        assert all((part[name][runner.end - runner.begin:] == 0).all() for part, runner in zip(parts, runners))
        got[name] = numpy.concatenate([part[name][:runner.end - runner.begin] for part, runner in zip(parts, runners)])
    return got


def wide(array):
    if array.dtype == numpy.uint16:
        return (array.astype(numpy.uint32) << 16).view(numpy.float32).astype(numpy.float64)
    return array.astype(numpy.float64)


def error(got, want):
    """Relative Frobenius error of each gradient."""
    return {name: float(numpy.linalg.norm(got[name] - want[name]) / max(numpy.linalg.norm(want[name]), 1e-30))
            for name in got}


def added(problem, gradients):
    """What a caller who accumulates expects."""
    if problem.start is not None and "weight" in gradients:
        gradients = {**gradients, "weight": gradients["weight"] + problem.start}
    return gradients


def same_bits(a, b):
    return all(numpy.array_equal(a[name].view(numpy.uint32), b[name].view(numpy.uint32)) for name in a if name in b)


def judge(problem, logprob):
    """GRPO with k3 and an entropy bonus: losses and derivatives by logprob and entropy, float64."""
    clip, beta, bonus = 0.2, 0.04, 0.01 * ("entropy" in problem.case.loss)
    live = problem.target >= 0
    w, a = problem.row_weight.astype(float), problem.advantage.astype(float)
    ratio, d = numpy.exp(logprob - problem.old), problem.ref - logprob
    bounded = numpy.clip(ratio, 1 - clip, 1 + clip)
    loss = w * (-numpy.minimum(ratio * a, bounded * a) + beta * (numpy.exp(d) - d - 1))
    by_logprob = w * (numpy.where(bounded * a < ratio * a, 0, -ratio * a) + beta * (1 - numpy.exp(d)))
    return (numpy.where(live, loss, 0), numpy.where(live, by_logprob, 0), numpy.where(live, -w * bonus, 0),
            [clip, clip, beta] + ([0.01] if bonus else []))


def run_saved(problem, plain, base, out):
    """Save mode beside score and recompute modes."""
    runner = Runner(problem, keep=1)
    saved = runner.saved()
    forward = runner.forward(saved)
    want = added(problem, problem.gradients(problem.g.astype(float), problem.e.astype(float)))
    got = runner.backward(forward["stats"], problem.g, problem.e, saved)
    recomputed = plain.backward(base["stats"], problem.g, problem.e)
    out["S"] = {"same_bits": same_bits(forward, base), "error": error(got, want), "of_R": error(recomputed, want),
                "finite": all(bool(numpy.isfinite(x).all()) for x in got.values())}


def run_step(problem, plain, base, out):
    """A step, beside the same loss on score mode's logprobs and recompute mode's gradients of it."""
    runner = Runner(problem, loss=problem.case.loss, mode=problem.case.step_mode, chunk_rows=problem.case.chunk_rows)
    loss, g, e, parameters = judge(problem, base["logprob"].astype(float))
    entropy = base["entropy"].astype(float) if "entropy" in base else 0
    if "entropy" in problem.case.loss:
        loss = loss + numpy.where(problem.target >= 0, e * entropy, 0)
    rows, got, layout = runner.step(parameters)
    want = added(problem, problem.gradients(g, e))
    recomputed = plain.backward(base["stats"], numpy.float32(g), numpy.float32(e))
    out["P"] = {"same_bits": same_bits(rows, base), "error": error(got, want), "of_R": error(recomputed, want),
                "loss": float(numpy.abs(rows["loss"] - loss).max()), "mode": layout.mode, "chunks": layout.chunks}


def weight_gradient(problem, base, fp32, step):
    """The weight's gradient of a step in stream mode or of a backward pass by rows, in chunks, and float64's."""
    case = replace(problem.case, grad_weight_fp32=fp32)
    problem = Problem(case)
    runner = Runner(problem, loss=case.loss if step else "", mode=6 if step else 3, chunk_rows=case.chunk_rows)
    if step:
        _, g, e, parameters = judge(problem, base["logprob"].astype(float))
        _, got, layout = runner.step(parameters)
    else:
        g, e, layout = problem.g.astype(float), problem.e.astype(float), runner.layout(c.PASS_BACKWARD)
        got = runner.backward(base["stats"], problem.g, problem.e)
    assert layout.chunks > 2 and layout.mode == (6 if step else 3)
    return got["weight"], problem.gradients(g, e)["weight"]


def run_sums(problem, base, out):
    """Errors of the weight's gradient in bf16, and of one summed in fp32 that is rounded to bf16 here."""
    for name, step in (("P", True), ("R_ROWS", False)):
        split, want = weight_gradient(problem, base, False, step)
        wide_sums, _ = weight_gradient(problem, base, True, step)
        rounded = bf16(wide_sums)[1]
        out[name] = {kind: error({"weight": got}, {"weight": want})["weight"]
                     for kind, got in (("split", split), ("rounded", rounded), ("fp32", wide_sums))}
        out[name]["apart"] = float((split != rounded).mean())


def main():
    problem = Problem(Case(**json.loads(sys.argv[1])))
    plain, out = Runner(problem), {}
    base = plain.forward()
    if problem.case.sums:
        run_sums(problem, base, out)
        json.dump(out, sys.stdout)
        return
    run_saved(problem, plain, base, out)
    if problem.case.loss:
        run_step(problem, plain, base, out)
    json.dump(out, sys.stdout)


if __name__ == "__main__":
    main()
