"""K targets a row whole on the stand-in for libcuda that runs kernels on the CPU: prints what it found as JSON.

As modes_case.py, whose Runner it takes, run by test_targets.py. Row by row targets are drawn by Zipf's law, repeated,
all the same, ignored in part or all, or outside the vocabulary (see Rows).
"""
import json
import sys
from dataclasses import dataclass

import numpy

from modes_case import Case, Problem, Runner, added, aligned, at, bf16, c, copied, error, same_bits, wide

IGNORED = -100
DTYPES = {"bf16": c.DTYPE_BF16, "fp16": c.DTYPE_FP16, "fp32": c.DTYPE_FP32}


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
        self.store()

    def store(self):
        case = self.case
        if case.dtype == "bf16":
            return
        kind = numpy.float16 if case.dtype == "fp16" else numpy.float32
        for name in ("hidden", "weight", "bias"):
            exact = kind(getattr(self, name))
            setattr(self, f"{name}_bits", exact.view(numpy.uint16) if kind == numpy.float16 else exact)
            setattr(self, name, exact.astype(float))

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

    def gradients(self, g, e):
        logp, p, slope, _, entropy, _ = self.rows()
        g = numpy.where(self.counts(), g, 0)
        live = self.active() & ((g != 0).any(1) | (e != 0))
        sums = numpy.zeros_like(p)
        for row in numpy.flatnonzero(live):
            numpy.add.at(sums[row], self.targets[row][self.counts()[row]], g[row][self.counts()[row]])
        dz = sums - g.sum(1)[:, None] * p - e[:, None] * p * (numpy.where(p > 0, logp, 0) + entropy[:, None])
        dz = numpy.where(live[:, None], dz * slope, 0)
        self.dz = dz
        return {"hidden": dz @ self.weight, "weight": dz.T @ numpy.where(live[:, None], self.hidden, 0),
                "bias": dz.sum(0)}


class TargetsRunner(Runner):
    """A plan of the whole head or of one shard. targets: 0 for one target a row"""

    def __init__(self, problem, begin=0, end=0, targets=None, **options):
        new_spec, case = c.new_spec, problem.case
        self.begin, self.end = begin, end or case.vocab
        self.targets = case.targets if targets is None else targets

        def new():
            spec = new_spec()
            spec.targets, spec.dtype = self.targets, DTYPES[case.dtype]
            spec.target_dtype = c.DTYPE_INT64 if case.ids == "int64" else c.DTYPE_INT32
            return spec

        c.new_spec = new
        super().__init__(problem, **options)
        c.new_spec = new_spec

    def args(self, which):
        args, case, p = super().args(which), self.problem.case, self.problem
        sized = slice(self.begin, self.end)
        matrix = numpy.zeros_like(p.weight_bits)
        matrix[:self.end - self.begin] = p.weight_bits[sized]
        bias = numpy.zeros_like(p.bias_bits)
        bias[:self.end - self.begin] = p.bias_bits[sized]
        targets = p.targets if self.targets else p.targets[:, 0]
        self.arrays += [copied(p.hidden_bits, p.hidden_bits.dtype), copied(matrix, matrix.dtype),
                        copied(bias, bias.dtype), copied(targets, case.ids),
                        copied(numpy.flatnonzero(p.asked()), numpy.int32)]
        hidden, weight, bias, target, rows = self.arrays[-5:]
        args.hidden, args.weight, args.bias, args.target = at(hidden), at(weight), at(bias), at(target)
        args.bias = at(bias) if case.bias else None
        args.vocab_offset, args.vocab_valid, args.vocab_total = self.begin, self.end - self.begin, case.vocab
        if case.subset:
            args.rows, args.row_count = at(rows), len(rows)
        return args

    def gradient_arrays(self, args):
        out = super().gradient_arrays(args)
        if "bias" in out and self.problem.case.dtype == "fp32":
            out["bias"] = aligned(out["bias"].shape, numpy.float32)
            args.grad_bias = at(out["bias"])
        return out

    def shapes(self):
        return {"logprob": (self.targets,) if self.targets else (), "stats": (4,),
                **({"entropy": ()} if self.problem.case.entropy else {})}

    def forward(self, saved=None):
        args = self.args(c.PASS_FORWARD)
        out = self.give(args, self.shapes())
        self.run(args, c.PASS_FORWARD)
        return out

    def backward(self, stats, g, e, saved=None):
        args = self.args(c.PASS_BACKWARD)
        self.lend(args, {"stats": stats, **({} if g is None else {"grad_logprob": g}),
                         **({"grad_entropy": e} if self.problem.case.entropy == c.ENTROPY_BACKWARD else {})})
        out = self.gradient_arrays(args)
        self.run(args, c.PASS_BACKWARD)
        return {name: wide16(array, self.problem.case.dtype) for name, array in out.items()}

    def partial(self):
        args = self.args(c.PASS_FORWARD)
        out = self.give(args, {"partial": (4,), "partial_targets": (self.targets,)})
        self.run(args, c.PASS_FORWARD)
        return out

    def combine(self, parts):
        args = self.args(c.PASS_COMBINE)
        args.hidden = args.weight = args.bias = None
        args.vocab_offset, args.vocab_valid = 0, 0
        args.vocab_total, args.shard_count = self.problem.case.vocab, len(parts)
        for name in ("partial", "partial_targets"):
            self.lend(args, {name: numpy.stack([part[name] for part in parts])})
        out = self.give(args, self.shapes())
        self.run(args, c.PASS_COMBINE)
        return out

    def bad_rows(self):
        status = c.get().flp_plan_check(self.plan, None)
        return 0 if status == 0 else int(c.get().flp_error_detail().decode().split()[0])


def wide16(array, dtype):
    if dtype == "fp16" and array.dtype == numpy.uint16:
        return array.view(numpy.float16).astype(float)
    return wide(array)


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
    case = problem.case
    cuts = [case.vocab * i // case.shards // 8 * 8 for i in range(case.shards)] + [case.vocab]
    runners = [TargetsRunner(problem, begin, end, mode=case.mode) for begin, end in zip(cuts, cuts[1:])]
    forward = runners[0].combine([runner.partial() for runner in runners])
    parts = [runner.backward(forward["stats"], problem.g, problem.e) for runner in runners]
    got = {"hidden": sum(part["hidden"] for part in parts)}
    for name in ("weight", "bias"):
        if name in parts[0]:
            got[name] = numpy.concatenate([part[name][:r.end - r.begin] for part, r in zip(parts, runners)])
    single = TargetsRunner(problem).forward()
    return {**judged(problem, forward, got, problem.e),
            "beside_whole": float(numpy.nanmax(numpy.abs(forward["logprob"] - single["logprob"])))}


def main():
    problem = Rows(TargetsCase(**json.loads(sys.argv[1])))
    json.dump((sharded if problem.case.shards > 1 else whole)(problem), sys.stdout)


if __name__ == "__main__":
    main()
