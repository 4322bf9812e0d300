"""Best columns and ranks whole on the stand-in for libcuda that runs kernels on the CPU: prints what it found as JSON.

As modes_case.py, run by test_top_mode.py. Hidden states pick columns of the weight, so that scores are exact: rows whose
scores ascend along the vocabulary, of which every list overflows, descend, are equal, or are whole numbers.
"""
import json
import sys
from dataclasses import dataclass

import numpy

from modes_case import Case, Problem, Runner, aligned, at, bf16, c, even_cuts, shards

LN2 = float(numpy.log(2))


@dataclass
class TopCase(Case):
    vocab: int = 3 * 3072 + 1309
    entropy: int = c.ENTROPY_NONE
    grads: int = 0
    topk: int = 20
    rank: bool = True
    shards: int = 1
    only: str = "best"    # outputs: best, all


class Rows(Problem):
    def __init__(self, case):
        super().__init__(case)
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


class TopRunner(Runner):
    def ask(self, spec):
        spec.topk, spec.rank = self.problem.case.topk, int(self.problem.case.rank)

    def target(self):
        return self.problem.sent

    def forward(self):
        case, args = self.problem.case, self.args(c.PASS_FORWARD)
        n, args.temperature = case.rows, 1
        out = {"top_ids": aligned((n, case.topk), numpy.int64), "top_logprob": aligned((n, case.topk), numpy.float32)}
        if case.shards > 1:
            out["partial"] = aligned((n, 4), numpy.float32)
        else:
            out["top_rest"] = aligned((n,), numpy.float32)
            out |= {"rank": aligned((n,), numpy.int32)} if case.rank else {}
        if case.only == "all":
            out |= {"logprob": aligned((n,), numpy.float32), "stats": aligned((n, 4), numpy.float32)}
        for name, array in out.items():
            setattr(args, name, at(array))
        self.run(args, c.PASS_FORWARD)
        return out


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
    problem, found = Rows(TopCase(**json.loads(sys.argv[1]))), {"wrong": [], "again": True}
    for runner in shards(problem, TopRunner, even_cuts(problem.case)):
        first, again = runner.forward(), runner.forward()
        found["wrong"] += judge(problem.case, problem, first, runner.begin, runner.end)
        found["again"] &= all(numpy.array_equal(first[name], again[name], equal_nan=True) for name in first)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
