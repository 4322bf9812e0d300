"""An adapter on the head on the stand-in for libcuda that runs kernels on the CPU: prints what it found as JSON.

As modes_case.py, run by test_lora_mode.py. Gradients are compared by the relative Frobenius error with float64 on the same
operands, u rounded as the kernels round it; those of chunks with those of one pass.
"""
import ctypes
import json
import sys
from dataclasses import dataclass

import numpy

from modes_case import aligned, at, bf16, c, copied

DTYPES = {"bf16": c.DTYPE_BF16, "fp16": c.DTYPE_FP16, "fp32": c.DTYPE_FP32}
WORDS = {"bf16": numpy.uint16, "fp16": numpy.float16, "fp32": numpy.float32}
GRADS = {"hidden": c.GRAD_HIDDEN, "bias": c.GRAD_BIAS, "a": c.GRAD_LORA_A, "b": c.GRAD_LORA_B}


@dataclass
class LoraCase:
    """vocab, hidden, rows, rank; scale: s; mode, chunk_rows, chunk_vocab: of backward; wide: gradients in fp32"""
    vocab: int = 1100
    hidden: int = 72
    rows: int = 150
    rank: int = 24
    dtype: str = "bf16"
    scale: float = 0.75
    grads: tuple = ("hidden", "a", "b")
    bias: bool = False
    softcap: float = 0.0
    entropy: int = c.ENTROPY_FORWARD
    masked: bool = False
    mode: int = 0
    chunk_rows: int = 0
    chunk_vocab: int = 0
    wide: bool = False
    valid: int = 0
    padding: int = 0      # elements behind each row of A and B
    alignment: int = 16
    zero: str = ""        # "b": B is 0, "scale": s is
    loss: str = ""


def stored(x, dtype):
    """What memory holds, and the same in float64."""
    if dtype == "bf16":
        return bf16(x)
    bits = numpy.asarray(x, WORDS[dtype])
    return bits, bits.astype(numpy.float64)


def wide(bits, dtype):
    if dtype == "bf16":
        return (bits.astype(numpy.uint32) << 16).view(numpy.float32).astype(numpy.float64)
    return bits.astype(numpy.float64)


class Rows:
    def __init__(self, case):
        self.case, random = case, numpy.random.default_rng(11)
        self.valid = case.valid or case.vocab
        normal = random.standard_normal
        self.bits, self.value = {}, {}
        for name, x in {"hidden": normal((case.rows, case.hidden)), "weight": normal((case.vocab, case.hidden)) * 0.3,
                        "a": normal((case.rank, case.hidden)) * 0.2, "b": normal((case.vocab, case.rank)) * 0.2,
                        "bias": normal(case.vocab)}.items():
            self.bits[name], self.value[name] = stored(x * (name != "b" or case.zero != "b"), case.dtype)
        self.target = random.integers(0, self.valid, case.rows)
        self.g, self.e = (numpy.float32(normal(case.rows)) for _ in range(2))
        if case.masked:
            self.target[::5] = -100
            self.g[3::5] = self.e[3::5] = 0
        self.scale = 0.0 if case.zero == "scale" else case.scale

    def truth(self):
        """logprob, entropy and gradients in float64."""
        case, v, valid = self.case, self.value, self.valid
        u = stored(self.scale * (v["hidden"] @ v["a"].T), case.dtype)[1]
        z = v["hidden"] @ v["weight"][:valid].T + u @ v["b"][:valid].T + (v["bias"][:valid] if case.bias else 0)
        slope = numpy.ones_like(z)
        if case.softcap:
            bent = numpy.tanh(z / case.softcap)
            z, slope = case.softcap * bent, 1 - bent**2
        t = z / 0.8
        lse = numpy.log(numpy.exp(t - t.max(1, keepdims=True)).sum(1)) + t.max(1)
        logp = t - lse[:, None]
        p, entropy = numpy.exp(logp), -(numpy.exp(logp) * logp).sum(1)
        live = self.target >= 0
        hot = numpy.zeros_like(p)
        hot[live, self.target[live]] = 1
        e = self.e * (case.entropy == c.ENTROPY_BACKWARD)
        dz = self.g[:, None] * (hot - p) - e[:, None] * p * (logp + entropy[:, None])
        dz = dz * slope / 0.8 * live[:, None]
        total = dz @ v["b"][:valid]
        pad = numpy.zeros((case.vocab - valid, case.rank))
        return {"logprob": numpy.where(live, (logp * hot).sum(1), 0), "entropy": numpy.where(live, entropy, 0),
                "hidden": dz @ v["weight"][:valid] + self.scale * total @ v["a"], "a": self.scale * total.T @ v["hidden"],
                "b": numpy.vstack([dz.T @ u, pad]),
                "bias": numpy.concatenate([dz.sum(0), numpy.zeros(case.vocab - valid)])}


def padded(x, padding):
    out = aligned((len(x), x.shape[1] + padding), x.dtype)
    out[:, :x.shape[1]] = x
    return out


class Runner:
    def __init__(self, case, rows, rank, budget=2**40):
        self.case, self.rows, self.rank, self.budget = case, rows, rank, budget
        lib, spec, options, plan = c.get(), c.new_spec(), c.new_options(), ctypes.c_void_p()
        spec.dtype, spec.vocab, spec.hidden, spec.entropy = DTYPES[case.dtype], case.vocab, case.hidden, case.entropy
        spec.grads = sum(GRADS[one] for one in case.grads if rank or one in ("hidden", "bias"))
        spec.has_bias, spec.softcap, spec.lora_rank, spec.alignment = case.bias, case.softcap, rank, case.alignment
        if case.wide:
            spec.grad_hidden_dtype = spec.grad_lora_dtype = c.DTYPE_FP32
        options.mode, options.chunk_rows, options.chunk_vocab = case.mode, case.chunk_rows, case.chunk_vocab
        if case.loss:
            size, held = ctypes.c_size_t(), ctypes.create_string_buffer(c.LOSS_BYTES_MAX)
            assert lib.flp_loss_builtin_bytes(case.loss.encode(), held, len(held), ctypes.byref(size)) == 0
            spec.loss, spec.loss_bytes = ctypes.cast(held, ctypes.c_void_p), size.value
        assert lib.flp_plan_create(ctypes.byref(spec), ctypes.byref(options), ctypes.byref(plan)) == 0, lib.flp_error_detail()
        self.plan, self.lib, v = plan, lib, rows.bits
        self.held = [copied(v[name], WORDS[case.dtype]) for name in ("hidden", "weight", "bias")]
        self.held += [copied(rows.target, numpy.int64), copied(rows.g, numpy.float32), copied(rows.e, numpy.float32),
                      padded(v["a"], case.padding), padded(v["b"], case.padding)]
        self.out = {name: aligned(shape, numpy.float32) for name, shape in
                    {"logprob": case.rows, "entropy": case.rows, "stats": (case.rows, 4), "loss": case.rows}.items()}
        kind = numpy.float32 if case.wide else WORDS[case.dtype]
        self.grad = {"hidden": aligned((case.rows, case.hidden), kind), "bias": aligned((case.vocab,), WORDS[case.dtype]),
                     "a": aligned((case.rank, case.hidden), kind), "b": aligned((case.vocab, case.rank), kind)}

    def args(self, which):
        case, args = self.case, c.new_args()
        hidden, weight, bias, target, g, e, a, b = map(at, self.held)
        args.n, args.hidden, args.weight, args.target, args.temperature = case.rows, hidden, weight, target, 0.8
        args.vocab_valid = self.rows.valid
        setattr(args, "pass", which)
        if case.bias:
            args.bias = bias
        if self.rank:
            args.lora_a, args.lora_b, args.lora_scale = a, b, self.rows.scale
            args.lora_a_stride, args.lora_b_stride = case.hidden + case.padding, case.rank + case.padding
        if which == c.PASS_FORWARD:
            args.logprob, args.entropy, args.stats = (at(self.out[name]) for name in ("logprob", "entropy", "stats"))
        if which == c.PASS_STEP:
            args.logprob, args.loss, args.advantage = at(self.out["logprob"]), at(self.out["loss"]), g
        if which == c.PASS_BACKWARD:
            args.stats, args.grad_logprob = at(self.out["stats"]), g
            if case.entropy == c.ENTROPY_BACKWARD:
                args.grad_entropy = e
        if which != c.PASS_FORWARD:
            for name in case.grads:
                if self.rank or name in ("hidden", "bias"):
                    setattr(args, f"grad_lora_{name}" if name in "ab" else f"grad_{name}", at(self.grad[name]))
        return args

    def go(self, which):
        args, layout = self.args(which), c.new_layout()
        status = self.lib.flp_plan_layout(self.plan, which, self.case.rows, self.budget, ctypes.byref(layout))
        assert status == 0, self.lib.flp_error_detail()
        space = aligned((layout.bytes,), numpy.uint8)
        args.workspace, args.workspace_bytes = at(space), layout.bytes
        run = self.lib.flp_step if which == c.PASS_STEP else self.lib.flp_execute
        assert run(self.plan, ctypes.byref(args)) == 0, self.lib.flp_error_detail().decode()
        return layout


def error(got, wanted):
    return float(numpy.linalg.norm(got - wanted) / max(numpy.linalg.norm(wanted), 1e-30))


def gradients(runner):
    case = runner.case
    return {name: runner.grad[name].astype(numpy.float64) if case.wide and name != "bias" else
            wide(runner.grad[name], case.dtype) for name in case.grads}


def main():
    case = LoraCase(**json.loads(sys.argv[1]))
    rows = Rows(case)
    truth, found = rows.truth(), {}
    runner = Runner(case, rows, case.rank)
    if case.loss:
        layout = runner.go(c.PASS_STEP)
        rows.g = numpy.where(rows.target >= 0, -rows.g, 0).astype(numpy.float32)  # of reinforce: -advantage·logprob
        truth = rows.truth()
        found["loss"] = error(runner.out["loss"], rows.g * truth["logprob"])
    else:
        runner.go(c.PASS_FORWARD)
        found["entropy"] = float(numpy.abs(runner.out["entropy"] - truth["entropy"]).max())
        layout = runner.go(c.PASS_BACKWARD)
    found["logprob"] = float(numpy.abs(runner.out["logprob"] - truth["logprob"]).max())
    found["mode"], found["chunks"], found["products"] = layout.mode, layout.chunks, layout.products
    first = {name: runner.grad[name].copy() for name in case.grads}
    found["error"] = {name: error(got, truth[name]) for name, got in gradients(runner).items()}
    found["finite"] = all(bool(numpy.isfinite(got).all()) for got in gradients(runner).values())
    runner.go(c.PASS_STEP if case.loss else c.PASS_BACKWARD)
    found["again"] = all(numpy.array_equal(runner.grad[name], first[name]) for name in case.grads)
    if case.zero:
        plain = Runner(case, rows, 0)
        plain.go(c.PASS_FORWARD)
        found["same_bits"] = all(numpy.array_equal(runner.out[name], plain.out[name])
                                 for name in ("logprob", "entropy", "stats"))
        plain.go(c.PASS_BACKWARD)
        found["same_gradient"] = bool(numpy.array_equal(runner.grad["hidden"], plain.grad["hidden"]))
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
