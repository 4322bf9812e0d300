"""One frozen head in direction mode on the stand-in for libcuda that runs kernels on the CPU, beside recompute mode: prints
what it found as JSON. Run as modes_case.py is, whose cases these are, with the settings of Chunks beside them.

One forward pass serves several backward passes, each with another upstream gradient; shards of the vocabulary keep their
own part, and the sum of their gradients is the whole head's.
"""
import hashlib
import json
import sys
from dataclasses import dataclass

import modes_case as m
import numpy

c = m.c
DIRECTION = 7


@dataclass
class Chunks:
    """Of direction mode; shards: columns of each, the last of which takes the rest. 0: the planner's choice, one shard"""
    direction_rows: int = 0
    direction_vocab: int = 0
    shard: int = 0


class Shards:
    """Forward, combine and backward of a head whose columns are divided among shards."""

    def __init__(self, problem, runner, width):
        self.problem, self.runner = problem, runner
        valid = problem.case.vocab_valid or problem.case.vocab
        self.edges = [(begin, min(begin + width, valid)) for begin in range(0, valid, width)]
        self.saved = [m.aligned((runner.saved_bytes(),), numpy.uint8) for _ in self.edges]

    def args(self, which, shard):
        args, (begin, end) = self.runner.args(which), self.edges[shard]
        args.weight += begin * self.problem.case.hidden * 2
        args.bias = args.bias + begin * 2 if args.bias else None
        args.vocab_offset, args.vocab_valid, args.vocab_total = begin, end - begin, self.edges[-1][1]
        return args

    def forward(self):
        rows, count = self.problem.case.rows, len(self.edges)
        partials = m.aligned((count, rows, 4), numpy.float32)
        for shard in range(count):
            args = self.args(c.PASS_FORWARD, shard)
            args.partial = m.at(partials[shard])
            self.runner.run(args, c.PASS_FORWARD_SAVED, self.saved[shard])
        args = self.runner.args(c.PASS_COMBINE)
        args.hidden = args.weight = args.bias = None
        args.vocab_valid, args.vocab_total = 0, self.edges[-1][1]
        args.partial, args.shard_count = m.at(partials), count
        out = self.runner.give(args, {"logprob": (), "stats": (4,), **({"entropy": ()} if self.problem.case.entropy else {})})
        self.runner.run(args, c.PASS_COMBINE)
        return out

    def backward(self, stats, g):
        total = 0
        for shard, saved in enumerate(self.saved):
            args = self.args(c.PASS_BACKWARD, shard)
            self.runner.lend(args, {"stats": stats, "grad_logprob": g})
            out = self.runner.gradient_arrays(args)
            self.runner.run(args, c.PASS_BACKWARD_SAVED, saved)
            total = total + m.wide(out["hidden"])
        return total


class Whole:
    def __init__(self, problem, runner):
        self.problem, self.runner = problem, runner
        self.saved = m.aligned((runner.saved_bytes(),), numpy.uint8)

    def forward(self):
        return self.runner.forward(self.saved)

    def backward(self, stats, g):
        return self.runner.backward(stats, g, self.problem.e, self.saved)["hidden"]


def bits(array):
    """A number for what an array holds, to compare it with that of another run."""
    return int.from_bytes(hashlib.sha256(numpy.ascontiguousarray(array)).digest()[:6], "big")


def main():
    settings = json.loads(sys.argv[1])
    chunks = Chunks(**{name: settings.pop(name) for name in list(settings) if name in Chunks.__dataclass_fields__})
    problem = m.Problem(m.Case(grads=1, **settings))
    plain = m.Runner(problem)
    base = plain.forward()
    runner = m.Runner(problem, keep=1, mode=DIRECTION, chunk_rows=chunks.direction_rows, chunk_vocab=chunks.direction_vocab)
    layout = runner.layout(c.PASS_FORWARD_SAVED)
    head = Shards(problem, runner, chunks.shard) if chunks.shard else Whole(problem, runner)
    forward = head.forward()
    other = numpy.float32(numpy.random.default_rng(21).standard_normal(len(problem.g)) * (problem.g != 0))
    once, twice, again = (head.backward(forward["stats"], numpy.float32(g)) for g in (problem.g, problem.g * 2, problem.g))
    errors = {}
    for name, g, got in (("g", problem.g, again), ("other", other, head.backward(forward["stats"], other))):
        want = problem.gradients(g.astype(float), problem.e.astype(float))["hidden"]
        recomputed = plain.backward(base["stats"], g, problem.e)["hidden"]
        errors[name] = [m.error({"x": x}, {"x": want})["x"] for x in (got, recomputed)]
    json.dump({"same_bits": m.same_bits(forward, base), "chunks": layout.chunks, "mode": layout.mode,
               "again": bool((once == again).all()), "linear": bool((2 * once == twice).all()),
               "finite": bool(numpy.isfinite(once).all()), "errors": errors,
               "zeros": bool((once[problem.g == 0] == 0).all()), "blocks": [bits(once[a:a + 1024]) for a in range(0, len(once), 1024)]},
              sys.stdout)


if __name__ == "__main__":
    main()
