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
    """Forward, combine and backward of a head whose columns are divided among runners; of one runner that has all."""

    def __init__(self, problem, runners):
        self.problem, self.runners = problem, runners
        self.saved = [runner.saved() for runner in runners]

    def forward(self):
        if len(self.runners) == 1:
            return self.runners[0].forward(self.saved[0])
        return self.runners[0].combine([runner.partial(saved) for runner, saved in zip(self.runners, self.saved)])

    def backward(self, stats, g):
        return m.summed(self.runners, stats, g, self.problem.e, self.saved)["hidden"]


def bits(array):
    """A number for what an array holds, to compare it with that of another run."""
    return int.from_bytes(hashlib.sha256(numpy.ascontiguousarray(array)).digest()[:6], "big")


def main():
    settings = json.loads(sys.argv[1])
    chunks = Chunks(**{name: settings.pop(name) for name in list(settings) if name in Chunks.__dataclass_fields__})
    problem = m.Problem(m.Case(grads=1, **settings))
    plain = m.Runner(problem)
    base = plain.forward()
    valid = problem.case.vocab_valid or problem.case.vocab

    def make(problem, **columns):
        return m.Runner(problem, keep=1, mode=DIRECTION, chunk_rows=chunks.direction_rows,
                        chunk_vocab=chunks.direction_vocab, **columns)

    head = Shards(problem, m.shards(problem, make, [*range(0, valid, chunks.shard or valid), valid]))
    layout = head.runners[0].layout(c.PASS_FORWARD_SAVED)
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
