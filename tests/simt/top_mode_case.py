"""Best columns and ranks whole on the stand-in for libcuda that runs kernels on the CPU: prints what it found as JSON.

As modes_case.py, run by test_top_mode.py. Hidden states pick columns of the weight, so that scores are exact: rows whose
scores ascend along the vocabulary, of which every list overflows, descend, are equal, or are whole numbers.
"""
import ctypes
import json
import sys
from dataclasses import dataclass

import numpy

from modes_case import aligned, at, bf16, c, copied

LN2 = float(numpy.log(2))


@dataclass
class TopCase:
    vocab: int = 3 * 3072 + 1309
    hidden: int = 40
    rows: int = 150
    topk: int = 20
    rank: bool = True
    shards: int = 1
    only: str = "best"    # outputs: best, all


class Rows:
    def __init__(self, case):
        random, v = numpy.random.default_rng(3), numpy.arange(case.vocab)
        weight = random.integers(-3, 4, (case.vocab, case.hidden)).astype(float)
        weight[:, 0], weight[:, 1] = v // 256, v % 256
        hidden = numpy.zeros((case.rows, case.hidden))
        for row in range(case.rows):
            if row % 4 < 3:
                hidden[row, :2] = numpy.array([1, 2.0**-8]) * (1, -1, 0)[row % 4]
            else:
                hidden[row, 2:] = random.integers(-2, 3, case.hidden - 2)
        self.hidden_bits, self.hidden = bf16(hidden)
        self.weight_bits, self.weight = bf16(weight)
        self.target = random.integers(0, case.vocab, case.rows)
        self.sent = self.target.copy()
        self.sent[[8, 9]] = -100, case.vocab        # left out, bad
        self.t = self.hidden @ self.weight.T


def call(case, problem, begin, end):
    """Outputs of forward over these columns of the vocabulary."""
    lib, spec, options, plan = c.get(), c.new_spec(), c.new_options(), ctypes.c_void_p()
    spec.vocab, spec.hidden, spec.topk, spec.rank = case.vocab, case.hidden, case.topk, int(case.rank)
    assert lib.flp_plan_create(ctypes.byref(spec), ctypes.byref(options), ctypes.byref(plan)) == 0, lib.flp_error_detail()
    n, args = case.rows, c.new_args()
    held = [copied(problem.hidden_bits, numpy.uint16), copied(problem.weight_bits[begin:end], numpy.uint16),
            copied(problem.sent, numpy.int64)]
    args.n, args.hidden, args.weight, args.target = n, *map(at, held)
    args.vocab_offset, args.vocab_valid, args.vocab_total = begin, end - begin, case.vocab
    out = {"top_ids": aligned((n, case.topk), numpy.int64), "top_logprob": aligned((n, case.topk), numpy.float32)}
    if end - begin == case.vocab:
        out |= {"top_rest": aligned((n,), numpy.float32)} | ({"rank": aligned((n,), numpy.int32)} if case.rank else {})
        if case.only == "all":
            out |= {"logprob": aligned((n,), numpy.float32), "stats": aligned((n, 4), numpy.float32)}
    if end - begin < case.vocab:
        out["partial"] = aligned((n, 4), numpy.float32)
    for name, array in out.items():
        setattr(args, name, at(array))
    bytes_ = ctypes.c_size_t()
    assert lib.flp_plan_workspace(plan, c.PASS_FORWARD, n, 2**40, ctypes.byref(bytes_)) == 0, lib.flp_error_detail()
    held.append(aligned((bytes_.value,), numpy.uint8))
    args.workspace, args.workspace_bytes = at(held[-1]), bytes_.value
    assert lib.flp_execute(plan, ctypes.byref(args)) == 0, lib.flp_error_detail().decode()
    return {name: array.copy() for name, array in out.items()}


def judge(case, problem, got, begin, end):
    """Names of the outputs that are wrong."""
    wrong, whole = set(), end - begin == case.vocab
    for row in range(case.rows):
        if row in (8, 9):
            value = numpy.nan if row == 9 else 0
            fits = {"top_ids": got["top_ids"][row] == -1}
            fits |= {name: numpy.array_equal(got[name][row], got[name][row] * 0 + value, equal_nan=True)
                     for name in ("top_logprob", "top_rest") if name in got}
            if "rank" in got:
                fits["rank"] = got["rank"][row] == -1
        else:
            t = problem.t[row]
            lse = numpy.log(numpy.exp(t - t.max()).sum()) + t.max() if whole else 0
            best = begin + numpy.lexsort((numpy.arange(end - begin), -t[begin:end]))[:case.topk]
            fits = {"top_ids": got["top_ids"][row] == best,
                    "top_logprob": numpy.abs(got["top_logprob"][row] - (t[best] - lse)) < 1e-5 * (1 + numpy.abs(t[best]))}
            if whole:
                fits["top_rest"] = abs(got["top_rest"][row] - numpy.exp(numpy.delete(t, best) - lse).sum()) < 1e-5
                if case.rank:
                    fits["rank"] = got["rank"][row] == (t > t[problem.target[row]]).sum()
        wrong |= {name for name, fit in fits.items() if not numpy.all(fit)}
    return sorted(wrong)


def main():
    case = TopCase(**json.loads(sys.argv[1]))
    problem, found = Rows(case), {"wrong": [], "again": True}
    cuts = [case.vocab * i // case.shards // 8 * 8 for i in range(case.shards)] + [case.vocab]
    for begin, end in zip(cuts, cuts[1:]):
        runs = [call(case, problem, begin, end) for _ in range(2)]
        found["wrong"] += judge(case, problem, runs[0], begin, end)
        found["again"] &= all(numpy.array_equal(runs[0][name], runs[1][name], equal_nan=True) for name in runs[0])
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
