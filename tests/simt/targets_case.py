"""K targets a row whole on the stand-in for libcuda that runs kernels on the CPU: prints what it found as JSON.

As modes_case.py, whose Runner it takes, run by test_targets.py. Row by row targets are drawn by Zipf's law, repeated,
all the same, ignored in part or all, or outside the vocabulary (see Rows).
"""
import json
import sys
from dataclasses import dataclass

import numpy

from modes_case import (
    DTYPES, Case, Problem, Runner, added, at, bf16, c, copied, error, even_cuts, same_bits, shards, stored, summed,
    wide)

IGNORED = -100


@dataclass
class TargetsCase(Case):
    """kind: drawn of each row by its number, or "same": one id K times; mode, chunk_rows, chunk_vocab: of backward"""
    vocab: int = 3400
    hidden: int = 24
    rows: int = 70
    targets: int = 6
    kind: str = "mixed"
    dtype: str = "bf16"
    mode: int = 0
    chunk_rows: int = 0
    chunk_vocab: int = 0
    shards: int = 1
    subset: bool = False   # rows are listed
    ids: str = "int64"
    bad: bool = False


class Rows(Problem):
    def __init__(self, case):
        random = numpy.random.default_rng(9)
        super().__init__(case)
        k, vocab = case.targets, case.vocab
        order = random.permutation(vocab)
        rank = numpy.minimum(vocab ** random.uniform(0, 1, (case.rows, k)) - 1, vocab - 1).astype(int)
        self.targets = order[rank] if case.kind == "mixed" else numpy.repeat(self.target[:, None], k, 1)
        self.g = numpy.float32(random.standard_normal((case.rows, k)))
        if case.kind == "mixed":
            uniform = random.integers(0, vocab, (case.rows, k))
            self.targets[1::4] = uniform[1::4]
            self.targets[2::4] = numpy.arange(k) % vocab                    # neighbours
            self.targets[3::8] = self.targets[3::8, :1]                     # one, again and again
            self.targets[5::6, 1::2] = IGNORED
            self.targets[4] = IGNORED
            self.g[6] = 0
            self.g[7, 1:], self.g[7, 0] = 0, 1
            self.targets[9], self.g[9] = [vocab - 1, *[0] * (k - 1)], [1, -1, *[0] * (k - 2)]  # a sum of 0
            self.g[4::9] = numpy.float32(random.uniform(0, 1, self.g[4::9].shape) / k)
            self.hidden[10:18] = 8 * self.weight[self.targets[10:18, 0]]      # p near 1 at a target
            self.hidden_bits, self.hidden = bf16(self.hidden)
        if case.bad:
            self.targets[3, k // 2], self.targets[8, 0] = vocab, -1
        for name in ("hidden", "weight", "bias"):
            bits, value = stored(getattr(self, name), case.dtype)
            setattr(self, f"{name}_bits", bits)
            setattr(self, name, value)

    def counts(self):
        return self.targets != IGNORED

    def outside(self):
        return (self.counts() & ((self.targets < 0) | (self.targets >= self.case.vocab))).any(1)

    def asked(self):
        rows = numpy.ones(self.case.rows, bool)
        if self.case.subset:
            rows[::3] = False
        return rows

    def active(self):
        return self.asked() & self.counts().any(1) & ~self.outside()

    def wanted_logprob(self):
        logp = self.rows()[0]
        safe = numpy.clip(self.targets, 0, self.case.vocab - 1)
        out = numpy.where(self.counts(), numpy.take_along_axis(logp, safe, 1), 0)
        out[self.asked() & self.outside()] = numpy.nan
        out[~self.asked()] = 0
        return out

    def of_targets(self, g):
        g, sums = numpy.where(self.counts(), g, 0), numpy.zeros((self.case.rows, self.case.vocab))
        for row in range(self.case.rows):
            mine = self.counts()[row] & (self.targets[row] < self.case.vocab) & (self.targets[row] >= 0)
            numpy.add.at(sums[row], self.targets[row][mine], g[row][mine])
        return sums, g.sum(1)

    def live(self, g, e):
        return self.active() & ((numpy.where(self.counts(), g, 0) != 0).any(1) | (e != 0))


class TargetsRunner(Runner):
    """targets: 0 for one target a row"""

    def __init__(self, problem, targets=None, **options):
        self.targets = problem.case.targets if targets is None else targets
        self.shape = (self.targets,) if self.targets else ()
        self.bias_kind = numpy.float32 if problem.case.dtype == "fp32" else numpy.uint16
        super().__init__(problem, **options)

    def ask(self, spec):
        case = self.problem.case
        spec.targets, spec.dtype = self.targets, DTYPES[case.dtype]
        spec.target_dtype = c.DTYPE_INT64 if case.ids == "int64" else c.DTYPE_INT32

    def target(self):
        ids = self.problem.targets.astype(self.problem.case.ids)
        return ids if self.targets else ids[:, 0]

    def args(self, which):
        args = super().args(which)
        if self.problem.case.subset:
            self.arrays.append(copied(numpy.flatnonzero(self.problem.asked()), numpy.int32))
            args.rows, args.row_count = at(self.arrays[-1]), len(self.arrays[-1])
        return args

    def wide(self, array):
        return wide16(array, self.problem.case.dtype)


def wide16(array, dtype):
    if dtype == "fp16" and array.dtype == numpy.uint16:
        return array.view(numpy.float16).astype(float)
    return wide(array)


def rounding_of_sums(problem):
    """Of a row whose targets are nearly all of the mass: what float32 leaves of their sum less the sum of all, times a row of
    weight. What remains of the gradient may be smaller."""
    return 2.0**-23 * numpy.abs(problem.g).sum(1) * numpy.linalg.norm(problem.weight.astype(float), axis=1).max()


def judged(problem, forward, got, e):
    """Errors of a pass beside float64."""
    want = problem.wanted_logprob()
    gradients = added(problem, problem.gradients(problem.g.astype(float), e.astype(float)))
    good = ~problem.outside() | ~problem.asked()
    found = {"logprob": float(numpy.abs(forward["logprob"] - want)[good].max()),
             "nan_rows": numpy.isnan(forward["logprob"]).all(1).nonzero()[0].tolist(),
             "nan_values": int(numpy.isnan(forward["logprob"]).sum()),
             "zeros": bool((forward["logprob"][~problem.counts() & good[:, None]] == 0).all())}
    if "entropy" in forward:
        live = problem.active()
        found["entropy"] = float(numpy.abs(forward["entropy"] - problem.rows()[4])[live].max())
    if got is not None:
        kept = {**got, **({"hidden": numpy.where(good[:, None], got["hidden"], 0)} if "hidden" in got else {})}
        found["error"] = error(kept, gradients)
        if "hidden" in got:
            size = numpy.linalg.norm(gradients["hidden"], axis=1)
            off = numpy.linalg.norm(kept["hidden"] - gradients["hidden"], axis=1)
            off = numpy.maximum(off - rounding_of_sums(problem), 0)
            found["worst_row"] = float((off / numpy.maximum(size, 1e-30))[size > 0].max())
            found["nan_gradients"] = numpy.isnan(got["hidden"]).any(1).nonzero()[0].tolist()
            upstream = ((problem.g != 0) & problem.counts()).any(1) | (e != 0)
            idle = good & ~(problem.active() & upstream)
            found["zero_gradients"] = bool((got["hidden"][idle] == 0).all())
    return found


def whole(problem):
    case = problem.case
    runner = TargetsRunner(problem, mode=case.mode, chunk_rows=case.chunk_rows, chunk_vocab=case.chunk_vocab)
    forward = runner.forward()
    bad = [runner.bad_rows()]
    got = runner.backward(forward["stats"], problem.g, problem.e)
    bad.append(runner.bad_rows())
    again = runner.backward(forward["stats"], problem.g, problem.e)
    layouts = [runner.layout(which) for which in (c.PASS_FORWARD, c.PASS_BACKWARD)]
    out = {**judged(problem, forward, got, problem.e), "bad": bad, "modes": [layout.mode for layout in layouts],
           "chunks": layouts[1].chunks, "products": [layout.products for layout in layouts],
           "again": all(numpy.array_equal(got[name], again[name], equal_nan=True) for name in got)}
    if case.entropy == c.ENTROPY_BACKWARD:
        g, problem.g = problem.g, numpy.zeros_like(problem.g)
        out["entropy_alone"] = error(
            {name: numpy.nan_to_num(x) for name, x in runner.backward(forward["stats"], None, problem.e).items()},
            added(problem, problem.gradients(problem.g.astype(float), problem.e.astype(float))))
        problem.g = g
    if case.kind == "same":
        out.update(beside_one(problem, forward, got))
    return out


def beside_one(problem, forward, got):
    """The same target K times beside K = 1, whose gradient is the sum."""
    one = TargetsRunner(problem, targets=0)
    alone = one.forward()
    problem.target = problem.targets[:, 0]
    summed = numpy.float32(problem.g.astype(float).sum(1))
    single = one.backward(alone["stats"], summed, problem.e)
    repeated = {**alone, "logprob": numpy.repeat(alone["logprob"][:, None], problem.case.targets, 1)}
    return {"same_bits": same_bits(forward, repeated), "apart": error(got, single)}


def sharded(problem):
    def make(problem, **columns):
        return TargetsRunner(problem, mode=problem.case.mode, **columns)

    runners = shards(problem, make, even_cuts(problem.case))
    forward = runners[0].combine([runner.partial() for runner in runners])
    got = summed(runners, forward["stats"], problem.g, problem.e, [None] * len(runners))
    single = TargetsRunner(problem).forward()
    return {**judged(problem, forward, got, problem.e),
            "beside_whole": float(numpy.nanmax(numpy.abs(forward["logprob"] - single["logprob"])))}


def main():
    problem = Rows(TargetsCase(**json.loads(sys.argv[1])))
    json.dump((sharded if problem.case.shards > 1 else whole)(problem), sys.stdout)


if __name__ == "__main__":
    main()
