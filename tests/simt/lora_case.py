"""An adapter on the head on the stand-in for libcuda that runs kernels on the CPU: prints what it found as JSON.

As modes_case.py, run by test_lora_mode.py. Gradients are compared by the relative Frobenius error with float64 on the same
operands, u rounded as the kernels round it; those of chunks with those of one pass.
"""
import json
import sys
from dataclasses import dataclass

import numpy

from modes_case import DTYPES, Case, Problem, Runner, aligned, at, c, error, stored

GRADS = {"hidden": c.GRAD_HIDDEN, "bias": c.GRAD_BIAS, "a": c.GRAD_LORA_A, "b": c.GRAD_LORA_B}


@dataclass
class LoraCase(Case):
    """scale: s; of: gradients; mode, chunk_rows, chunk_vocab: of backward; wide: gradients in fp32"""
    hidden: int = 72
    rank: int = 24
    dtype: str = "bf16"
    scale: float = 0.75
    of: tuple = ("hidden", "a", "b")
    mode: int = 0
    chunk_rows: int = 0
    chunk_vocab: int = 0
    wide: bool = False
    padding: int = 0      # elements behind each row of A and B
    alignment: int = 16
    zero: str = ""        # "b": B is 0, "scale": s is


class Rows(Problem):
    def __init__(self, case):
        self.a = None  # of what the base draws
        super().__init__(case)
        random = numpy.random.default_rng(11)
        normal = random.standard_normal
        for name, x in {"hidden": normal((case.rows, case.hidden)), "weight": normal((case.vocab, case.hidden)) * 0.3,
                        "a": normal((case.rank, case.hidden)) * 0.2, "b": normal((case.vocab, case.rank)) * 0.2,
                        "bias": normal(case.vocab)}.items():
            bits, value = stored(x * (name != "b" or case.zero != "b"), case.dtype)
            setattr(self, f"{name}_bits", bits)
            setattr(self, name, value)
        self.target = random.integers(0, case.vocab_valid or case.vocab, case.rows)
        self.g, self.e = (numpy.float32(normal(case.rows)) for _ in range(2))
        if case.masked:
            self.target[::5] = -100
            self.g[3::5] = self.e[3::5] = 0
        self.e *= case.entropy == c.ENTROPY_BACKWARD
        self.scale = 0.0 if case.zero == "scale" else case.scale

    def u(self):
        return stored(self.scale * (self.hidden @ self.a.T), self.case.dtype)[1]

    def raw(self, valid):
        return super().raw(valid) + (0 if self.a is None else self.u() @ self.b[:valid].T)

    def gradients(self, g, e):
        found, dz = super().gradients(g, e), self.grad_scores(g, e)
        sums, of_b = dz @ self.b[:dz.shape[1]], numpy.zeros_like(self.b)
        of_b[:dz.shape[1]] = dz.T @ self.u()
        return {"hidden": found["hidden"] + self.scale * sums @ self.a, "bias": found["bias"],
                "a": self.scale * sums.T @ self.hidden, "b": of_b}


def padded(x, padding):
    out = aligned((len(x), x.shape[1] + padding), x.dtype)
    out[:, :x.shape[1]] = x
    return out


class LoraRunner(Runner):
    """rank: 0 for a head without the adapter"""

    def __init__(self, problem, rank, **options):
        self.rank, self.bias_kind = rank, problem.bias_bits.dtype
        super().__init__(problem, **options)

    def ask(self, spec):
        case = self.problem.case
        spec.dtype, spec.lora_rank, spec.alignment = DTYPES[case.dtype], self.rank, case.alignment
        spec.grads = sum(GRADS[one] for one in case.of if self.rank or one in ("hidden", "bias"))
        spec.grad_hidden_dtype = spec.grad_lora_dtype = c.DTYPE_FP32 if case.wide else 0
        spec.grad_weight_dtype = 0

    def args(self, which):
        args, p, case = super().args(which), self.problem, self.problem.case
        if self.rank:
            self.arrays += [padded(p.a_bits, case.padding), padded(p.b_bits, case.padding)]
            args.lora_a, args.lora_b, args.lora_scale = at(self.arrays[-2]), at(self.arrays[-1]), p.scale
            args.lora_a_stride, args.lora_b_stride = case.hidden + case.padding, case.rank + case.padding
        return args

    def gradient_arrays(self, args):
        case, own = self.problem.case, self.problem.hidden_bits.dtype
        shapes = {"hidden": (case.rows, case.hidden), "bias": (case.vocab,), "a": (case.rank, case.hidden),
                  "b": (case.vocab, case.rank)}
        out = {}
        for name in case.of:
            if self.rank or name in ("hidden", "bias"):
                out[name] = aligned(shapes[name], numpy.float32 if case.wide and name != "bias" else own)
                setattr(args, f"grad_lora_{name}" if name in "ab" else f"grad_{name}", at(out[name]))
        return out

    def vectors(self):
        return {"advantage": self.problem.g}


def main():
    settings = json.loads(sys.argv[1])
    problem = Rows(LoraCase(**settings))
    case, found = problem.case, {}
    runner = LoraRunner(problem, case.rank, loss=case.loss, mode=case.mode, chunk_rows=case.chunk_rows,
                        chunk_vocab=case.chunk_vocab)
    if case.loss:
        made, got, layout = runner.step([])
        again = runner.step([])[1]
        problem.g = numpy.float32(numpy.where(problem.target >= 0, -problem.g, 0))  # of reinforce: -advantage·logprob
    else:
        made, layout = runner.forward(), runner.layout(c.PASS_BACKWARD)
        got, again = (runner.backward(made["stats"], problem.g, problem.e) for _ in range(2))
    live, (_, _, _, chosen, entropy, _) = problem.target >= 0, problem.rows()
    logprob = numpy.where(live, chosen, 0)
    if case.loss:
        found["loss"] = error({"": made["loss"]}, {"": problem.g * logprob})[""]
    else:
        found["entropy"] = float(numpy.abs(made["entropy"] - numpy.where(live, entropy, 0)).max())
    found["logprob"] = float(numpy.abs(made["logprob"] - logprob).max())
    found["mode"], found["chunks"], found["products"] = layout.mode, layout.chunks, layout.products
    found["error"] = error(got, problem.gradients(problem.g.astype(float), problem.e.astype(float)))
    found["finite"] = all(bool(numpy.isfinite(x).all()) for x in got.values())
    found["again"] = all(numpy.array_equal(got[name], again[name]) for name in got)
    if case.zero:
        plain = LoraRunner(problem, 0)
        alone = plain.forward()
        found["same_bits"] = all(numpy.array_equal(made[name], alone[name]) for name in made)
        found["same_gradient"] = bool(numpy.array_equal(
            got["hidden"], plain.backward(alone["stats"], problem.g, problem.e)["hidden"]))
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
