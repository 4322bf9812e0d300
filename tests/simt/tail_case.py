"""Tail mode whole on the stand-in for libcuda that runs kernels on the CPU: prints what it found as JSON.

As modes_case.py, whose Runner it takes, run by test_tail_mode.py. The weight is the identity, so that hidden states are
the scores and grad_hidden is dz: what a pass left out are the elements of it that are 0, element by element.
"""
import json
import sys
from dataclasses import dataclass

import numpy

from modes_case import (
    Case, Problem, Runner, added, aligned, at, bf16, c, error, even_cuts, judge, same_bits, shards, summed)

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


class TailRunner(Runner):
    def __init__(self, problem, **options):
        super().__init__(problem, **options)
        self.report = aligned((4,), numpy.float32)

    def ask(self, spec):
        spec.tail = self.problem.case.tail

    def target(self):
        return self.problem.sent

    def args(self, which):
        args = super().args(which)
        if which in (c.PASS_BACKWARD, c.PASS_STEP):
            args.tail_report = at(self.report)
        return args


def left_out(problem, got, g, e):
    """Σ|dz| of elements that are left out, and of all."""
    dz = problem.gradients(g, e)["hidden"]  # the weight is the identity
    return float(numpy.abs(dz[(got == 0) & (dz != 0)]).sum()), float(numpy.abs(dz).sum())


def summary(problem, got, plain, report, g, e):
    """Of a pass's gradients, beside recompute mode's of the same plan. A bad row is left to the caller."""
    want = added(problem, problem.gradients(g, e))
    good = {**got, "hidden": numpy.where(problem.sent[:, None] == problem.target[:, None], got["hidden"], 0)}
    exact = {**plain, "hidden": numpy.where(problem.sent[:, None] == problem.target[:, None], plain["hidden"], 0)}
    left, total = left_out(problem, good["hidden"], g, e)
    return {"error": error(good, want), "of_R": error(exact, want), "left": left, "sum": total,
            "report": [float(value) for value in report], "live": int(problem.live(problem.g, problem.e).sum()),
            "nan_rows": numpy.isnan(got["hidden"]).any(1).nonzero()[0].tolist(),
            "zero_rows": (got["hidden"] == 0).all(1).nonzero()[0].tolist()}


def whole(problem):
    """Forward and backward of one head; twice, as what is saved stays; and recompute mode of the same plan."""
    case, runner = problem.case, TailRunner(problem)
    saved = runner.saved()
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
    runners = shards(problem, TailRunner, even_cuts(problem.case))
    saved = [runner.saved() for runner in runners]
    stats = runners[0].combine([runner.partial(memory) for runner, memory in zip(runners, saved)])["stats"]

    def total(memories):
        return summed(runners, stats, problem.g, problem.e, memories)

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
