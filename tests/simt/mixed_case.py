"""Operands of two dtypes whole on the stand-in for libcuda that runs kernels on the CPU: prints what it found as JSON.

As modes_case.py, whose Runner it takes, run by test_mixed.py. One operand and the bias, or the bias alone, are fp32. With
"round" every output is compared bit by bit with a plan of one dtype whose operands were rounded here; with both, with
float64 on what stands in memory.
"""
import json
import sys
from dataclasses import dataclass

import numpy

from modes_case import DTYPES, Case, Problem, Runner, at, c, copied, error, judge, same_bits, stored


@dataclass
class MixedCase(Case):
    vocab: int = 7000
    hidden: int = 40
    rows: int = 70
    dtype: str = "bf16"
    wide: str = "weight"     # hidden, weight, or none: the bias alone
    wide_bias: bool = False
    mixed: str = "round"
    budget: int = 1 << 40    # of forward: a small one has several slices, and chunks of rows; or
    slices: int = 0          # the least that has so many launches as these slices take that are made ahead
    mode: int = 0
    chunk_rows: int = 0
    chunk_vocab: int = 2000
    keep: int = 0            # a mode that keeps something, beside a plan of one dtype
    alignment: int = 16
    bias_at: int = 0         # elements of a larger one before an fp32 bias, as of a shard's


class Operands(Problem):
    """exact: fp32 operands; .hidden, .weight and .bias what products take: exact for split, else rounded."""

    def __init__(self, case):
        super().__init__(case)
        random = numpy.random.default_rng(3)
        self.exact = {"hidden": numpy.float32(random.standard_normal((case.rows, case.hidden))),
                      "weight": numpy.float32(random.standard_normal((case.vocab, case.hidden)) * 0.3),
                      "bias": numpy.float32(random.standard_normal(case.vocab))}
        self.is_wide = {"hidden": case.wide == "hidden", "weight": case.wide == "weight", "bias": case.wide_bias}
        for name, exact in self.exact.items():
            bits, rounded = stored(exact.astype(float), case.dtype)
            setattr(self, f"{name}_bits", bits)
            setattr(self, name, exact.astype(float) if case.mixed == "split" and self.is_wide[name] else rounded)


class MixedRunner(Runner):
    """is_mixed: of operands as they are, else of rounded ones in a plan of one dtype."""

    bias_kind = numpy.float32

    def __init__(self, problem, is_mixed, **options):
        self.is_mixed = is_mixed
        super().__init__(problem, **options)

    def ask(self, spec):
        case = self.problem.case
        spec.dtype, spec.alignment, spec.grad_bias_dtype = DTYPES[case.dtype], case.alignment, c.DTYPE_FP32
        if self.is_mixed:
            spec.mixed = c.MIXED_SPLIT if case.mixed == "split" else c.MIXED_ROUND
            for name, wide in self.problem.is_wide.items():
                setattr(spec, f"{name}_dtype", c.DTYPE_FP32 if wide else DTYPES[case.dtype])

    def layout(self, which):
        layout = c.new_layout()
        budget = self.problem.case.budget if which == c.PASS_FORWARD else 1 << 40
        self.check(c.get().flp_plan_layout(self.plan, which, self.problem.case.rows, budget, layout))
        return layout

    def args(self, which):
        args, p = super().args(which), self.problem
        for name in ("hidden", "weight", "bias"):
            if self.is_mixed and p.is_wide[name] and (name != "bias" or p.case.bias):
                before = p.case.bias_at if name == "bias" else 0
                self.arrays.append(copied(numpy.pad(p.exact[name], (before, 0)) if before else p.exact[name], numpy.float32))
                setattr(args, name, at(self.arrays[-1][before:]))
        return args


def main():
    case = MixedCase(**json.loads(sys.argv[1]))
    problem = Operands(case)
    shape = {"mode": case.mode, "chunk_rows": case.chunk_rows, "chunk_vocab": case.chunk_vocab}
    narrow, runner = (MixedRunner(problem, is_mixed, keep=case.keep, **shape) for is_mixed in (False, True))
    layouts = [runner.layout(which) for which in (c.PASS_FORWARD, c.PASS_BACKWARD)]
    out = {"launches": [x.launches for x in layouts], "chunks": [x.chunks for x in layouts],
           "bytes": [x.bytes for x in layouts], "modes": [x.mode for x in layouts],
           "products": [x.products for x in layouts]}
    saved = [x.saved() if case.keep else None for x in (narrow, runner)]
    before, after = (x.forward(s) for x, s in zip((narrow, runner), saved))
    out["forward_bits"] = same_bits(before, after)
    g, e = problem.g, problem.e
    gradients = [x.backward(y["stats"], g, e, s) for x, y, s in zip((narrow, runner), (before, after), saved)]
    out["gradient_bits"] = all(numpy.array_equal(gradients[0][name], gradients[1][name]) for name in gradients[0])
    rows = problem.rows()
    live = problem.target >= 0
    out["logprob"] = float(numpy.abs(after["logprob"] - rows[3])[live].max())
    out["entropy"] = float(numpy.abs(after["entropy"] - rows[4])[live].max()) if case.entropy else 0.0
    out["error"] = error(gradients[1], problem.gradients(g.astype(float), e.astype(float)))
    if case.loss:
        shape = {"mode": case.step_mode, "chunk_rows": 32} if case.wide != "weight" else {"chunk_vocab": case.chunk_vocab}
        steps = [MixedRunner(problem, is_mixed, loss=case.loss, **shape) for is_mixed in (False, True)]
        parameters = judge(problem, before["logprob"].astype(float))[3]
        (rows_a, grads_a, layout_a), (rows_b, grads_b, layout_b) = (x.step(parameters) for x in steps)
        out["step"] = {"rows": same_bits(rows_a, rows_b), "modes": [layout_a.mode, layout_b.mode],
                       "gradients": all(numpy.array_equal(grads_a[name], grads_b[name]) for name in grads_a)}
    json.dump(out, sys.stdout)


if __name__ == "__main__":
    main()
