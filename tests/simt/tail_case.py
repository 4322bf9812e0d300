"""Tail mode whole on the stand-in for libcuda that runs kernels on the CPU: prints what it found as JSON.

As modes_case.py, whose Runner it takes, run by test_tail_mode.py. The weight is the identity, so that hidden states are
the scores and grad_hidden is dz: what a pass left out are the elements of it that are 0, element by element.
"""
import json
import sys
from dataclasses import dataclass

import numpy

from modes_case import Case, Problem, Runner, added, aligned, at, bf16, c, error, judge, same_bits, wide

BAD = 3  # the row whose target is outside the vocabulary


@dataclass
class TailCase(Case):
    """vocab is hidden. kind: what rows are like; shards: of the vocabulary"""
    vocab: int = 1104
    hidden: int = 1104
    rows: int = 24
    tail: float = 2.0**-9
    kind: str = "mixed"   # sharp, flat, or some of each
    shards: int = 1
    bad: bool = False
    upstream: float = 1.0  # of every third row, beside 1


class Rows(Problem):
    """Scores of rows like a trained model's: a target above a dozen others above noise; or noise."""

    def __init__(self, case):
        random = numpy.random.default_rng(7)
        super().__init__(case)
        scores = 0.5 * random.standard_normal((case.rows, case.vocab))
        if case.masked:
            self.target[::5] = -100
        for row, target in enumerate(self.target):
            if case.kind == "flat" or (case.kind == "mixed" and row % 4 == 2):
                continue
            others = random.choice(case.vocab, 12, replace=False)
            scores[row, others] += 12 - 0.8 * numpy.arange(12)
            scores[row, max(target, 0)] += 10 + 4 * random.uniform()
        self.hidden_bits, self.hidden = bf16(scores)
        self.weight_bits, self.weight = bf16(numpy.eye(case.vocab))
        self.g[::3] *= case.upstream
        chosen = self.rows()[3]
        self.old, self.ref = (numpy.float32(chosen + 0.1 * random.standard_normal(case.rows)) for _ in range(2))
        self.sent = self.target.copy()
        if case.bad:
            self.sent[BAD] = case.vocab + 5
            self.target[BAD] = -100

    def live(self):
        return (self.target >= 0) & ((self.g != 0) | (self.e != 0))

    def dz(self, g, e):
        """As grad_hidden, whose weight is the identity."""
        return self.gradients(g, e)["hidden"]


class TailRunner(Runner):
    """A plan with spec.tail of the whole head, or of one shard; saved memory of its own."""

    def __init__(self, problem, begin=0, end=0, **options):
        new_spec, case = c.new_spec, problem.case
        self.begin, self.end = begin, end or case.vocab

        def new():
            spec = new_spec()
            spec.tail = case.tail
            return spec

        c.new_spec = new
        super().__init__(problem, **options)
        c.new_spec = new_spec
        self.report = aligned((4,), numpy.float32)

    def args(self, which):
        args, case = super().args(which), self.problem.case
        self.arrays[1] = aligned((case.vocab, case.hidden), numpy.uint16)
        self.arrays[1][:self.end - self.begin] = self.problem.weight_bits[self.begin:self.end]
        self.arrays[2] = aligned((case.vocab,), numpy.uint16)
        self.arrays[2][:self.end - self.begin] = self.problem.bias_bits[self.begin:self.end]
        self.arrays[3][...] = self.problem.sent
        args.weight, args.bias = at(self.arrays[1]), at(self.arrays[2]) if case.bias else None
        args.vocab_offset, args.vocab_valid, args.vocab_total = self.begin, self.end - self.begin, case.vocab
        if which in (c.PASS_BACKWARD, c.PASS_STEP):
            args.tail_report = at(self.report)
        return args

    def partial(self, saved):
        args = self.args(c.PASS_FORWARD)
        if self.problem.case.old_lse:
            self.lend(args, {"old_lse": self.problem.rows()[5] + 0.3})
        out = self.give(args, {"partial": (4,)})
        self.run(args, c.PASS_FORWARD_SAVED, saved)
        return out["partial"]

    def combine(self, partials):
        args, entropy = self.args(c.PASS_COMBINE), self.problem.case.entropy
        args.hidden = args.weight = args.bias = None
        args.vocab_offset, args.vocab_valid = 0, 0
        args.vocab_total, args.shard_count = self.problem.case.vocab, len(partials)
        self.arrays.append(aligned((len(partials), *partials[0].shape), numpy.float32))
        self.arrays[-1][...] = partials
        args.partial = at(self.arrays[-1])
        out = self.give(args, {"logprob": (), "stats": (4,), **({"entropy": ()} if entropy else {})})
        self.run(args, c.PASS_COMBINE)
        return out

    def bad_rows(self):
        status = c.get().flp_plan_check(self.plan, None)
        return 0 if status == 0 else int(c.get().flp_error_detail().decode().split()[0])


def left_out(problem, got, g, e):
    """Σ|dz| of elements that are left out, and of all."""
    dz = problem.dz(g, e)
    return float(numpy.abs(dz[(got == 0) & (dz != 0)]).sum()), float(numpy.abs(dz).sum())


def summary(problem, got, plain, report, g, e):
    """Of a pass's gradients, beside recompute mode's of the same plan. A bad row is left to the caller."""
    want = added(problem, problem.gradients(g, e))
    good = {**got, "hidden": numpy.where(problem.sent[:, None] == problem.target[:, None], got["hidden"], 0)}
    exact = {**plain, "hidden": numpy.where(problem.sent[:, None] == problem.target[:, None], plain["hidden"], 0)}
    left, total = left_out(problem, good["hidden"], g, e)
    return {"error": error(good, want), "of_R": error(exact, want), "left": left, "sum": total,
            "report": [float(value) for value in report], "live": int(problem.live().sum()),
            "nan_rows": numpy.isnan(got["hidden"]).any(1).nonzero()[0].tolist(),
            "zero_rows": (got["hidden"] == 0).all(1).nonzero()[0].tolist()}


def whole(problem):
    """Forward and backward of one head; twice, as what is saved stays; and recompute mode of the same plan."""
    case, runner = problem.case, TailRunner(problem)
    saved = aligned((runner.saved_bytes(),), numpy.uint8)
    forward, plain = runner.forward(saved), runner.forward()
    counted = [runner.bad_rows()]
    got = runner.backward(forward["stats"], problem.g, problem.e, saved)
    counted.append(runner.bad_rows())
    report = runner.report.copy()
    again = runner.backward(forward["stats"], problem.g, problem.e, saved)
    layouts = [runner.layout(which) for which in (c.PASS_FORWARD_SAVED, c.PASS_BACKWARD_SAVED)]
    recomputed = runner.backward(forward["stats"], problem.g, problem.e)
    return {**summary(problem, got, recomputed, report, problem.g.astype(float), problem.e.astype(float)),
            "same_bits": same_bits(forward, plain), "bad": counted, "exact_report": runner.report.tolist(),
            "again": all(numpy.array_equal(got[name], again[name], equal_nan=True) for name in got),
            "modes": [layout.mode for layout in layouts], "products": [layout.products for layout in layouts],
            "launches": [layout.launches for layout in layouts], "rows": case.rows}


def sharded(problem):
    """The sum over shards, each with lists, bounds and sums of its own."""
    case = problem.case
    cuts = [case.vocab * i // case.shards // 8 * 8 for i in range(case.shards)] + [case.vocab]
    runners = [TailRunner(problem, begin, end) for begin, end in zip(cuts, cuts[1:])]
    saved = [aligned((runner.saved_bytes(),), numpy.uint8) for runner in runners]
    partials = [runner.partial(memory) for runner, memory in zip(runners, saved)]
    stats = runners[0].combine(partials)["stats"]

    def total(memories):
        parts = [runner.backward(stats, problem.g, problem.e, memory) for runner, memory in zip(runners, memories)]
        weights = [part["weight"][:runner.end - runner.begin] for part, runner in zip(parts, runners)]
        assert all((part["weight"][runner.end - runner.begin:] == 0).all() for part, runner in zip(parts, runners))
        return {"hidden": sum(part["hidden"] for part in parts), "weight": numpy.concatenate(weights)}

    got = total(saved)
    report = sum(runner.report for runner in runners)
    return summary(problem, got, total([None] * len(runners)), report, problem.g.astype(float), problem.e.astype(float))


def stepped(problem):
    """A step of a loss, beside recompute mode's gradients of it."""
    runner = TailRunner(problem, loss=problem.case.loss)
    base = runner.forward()
    _, g, e, parameters = judge(problem, base["logprob"].astype(float))
    rows, got, layout = runner.step(parameters)
    report = runner.report.copy()
    recomputed = runner.backward(base["stats"], numpy.float32(g), numpy.float32(e))
    return {**summary(problem, got, recomputed, report, g, e), "mode": layout.mode, "products": layout.products,
            "same_bits": same_bits(rows, base)}


def main():
    problem = Rows(TailCase(**json.loads(sys.argv[1])))
    make = stepped if problem.case.loss else sharded if problem.case.shards > 1 else whole
    json.dump(make(problem), sys.stdout)


if __name__ == "__main__":
    main()
