"""Best columns and ranks, kernel by kernel on the CPU, against a sort of all scores: rows of every shape, lists that
overflow, slices of any number. Operands are such that scores are exact, so that ties are ties."""
import numpy
import pytest
from cpu_kernel import f32, folder, needs_emit, needs_llc  # noqa: F401
from flpgen_tool import from_bf16, to_bf16
from forward_case import CAP_IN, DEPTH, ROWS, Case
from top_case import LEAF, UNIT, Run, Tops, bits, plain

pytestmark = [needs_llc, needs_emit]

NAN, INFINITY = numpy.nan, numpy.inf
ARCHES = ["sm_80", "sm_90a"]
VOCAB = 4 * UNIT + 1309
KINDS = ["whole", "ascending", "descending", "equal", "two", "sharp", "steps"]


class Exact(Case):
    """kind: of the scores of all rows, or one after the other of KINDS. A row of NaN; scales of either sign, two tiny."""

    def __init__(self, head, active, vocab=VOCAB, kind=None, negative=True):
        super().__init__(head, active)
        random = numpy.random.default_rng(11)
        v = numpy.arange(vocab)
        # columns of weight that a row of hidden picks: bf16 numbers whose sums are exact
        shapes = {"whole": None, "ascending": [v // 256, v % 256], "descending": [-(v // 256), -(v % 256)],
                  "equal": [v * 0, v * 0], "two": [(v % 3 == 1) * 1, v * 0], "sharp": [(v % 997 == 5) * 64, v % 7],
                  "steps": [v // 512, v * 0]}
        weight = random.integers(-3, 4, (vocab, DEPTH)).astype(float)
        hidden = numpy.zeros((ROWS, DEPTH))
        for place, (name, shape) in enumerate(shapes.items()):
            if shape:
                weight[:, 2 * place], weight[:, 2 * place + 1] = shape
        for row in range(ROWS):
            shape = kind or KINDS[row % len(KINDS)]
            place = KINDS.index(shape)
            if shape == "whole":
                hidden[row, 16:] = random.integers(-3, 4, DEPTH - 16)
            else:
                hidden[row, 2 * place:2 * place + 2] = {"steps": (1, 0), "two": (1, 0)}.get(shape, (1, 2.0**-8))
        self.hidden, self.weight = to_bf16(hidden), to_bf16(weight)
        if self.bias is not None:
            bias = random.integers(-9, 10, vocab).astype(float)
            bias[::97] = -INFINITY
            self.bias = to_bf16(bias)
        self.target = random.integers(0, vocab, active).astype(numpy.int32)
        self.scale = f32(2.0**random.integers(-1, 2, active) * 1.37)
        if negative:
            self.scale[8::15] *= -1
        self.scale[[12, 40]] = 2.0**-30, -2.0**-40
        self.hidden[self.index[3]] = to_bf16(numpy.full(DEPTH, NAN))
        self.gathered[:active] = self.hidden[self.index]
        x = from_bf16(self.hidden[self.index]).astype(float) @ from_bf16(self.weight).astype(float).T
        if self.bias is not None:
            x += from_bf16(self.bias)
        self.t = f32(f32(x) * self.scale[:, None])


def best_of(t, best):
    """The first columns of a sort by falling score, then rising id."""
    return numpy.lexsort((numpy.arange(t.size), -t.astype(float)))[:best]


def hold(run, case, t=None, error=2e-6):
    """All outputs of a run of all rows."""
    t, best = case.t if t is None else t, run.best
    assert set(numpy.unique(run.ids[numpy.setdiff1d(numpy.arange(run.n), case.index)])) <= {-5}
    for a in range(case.active):
        row = case.index[a]
        if numpy.isnan(t[a]).any():
            assert (run.ids[row] == -1).all() and numpy.isnan(run.logprob[row]).all() and run.rank[row] == -1
            assert not best or numpy.isnan(run.rest[row])
            continue
        if best:
            want = best_of(t[a], best)
            assert (run.ids[row, :len(want)] == want + 1000).all(), (a, run.ids[row], want + 1000, t[a, want])
            logs = t[a].astype(float) * numpy.log(2)
            lse = numpy.log(numpy.exp(logs - logs.max()).sum()) + logs.max()
            wanted = logs[want] - lse
            scale = numpy.maximum(1, numpy.abs(logs[want]) + abs(lse))
            finite = numpy.isfinite(wanted)
            assert (run.logprob[row, :len(want)][~finite] == -INFINITY).all()
            assert (numpy.abs(run.logprob[row, :len(want)] - wanted)[finite] <= error * scale[finite]).all()
            assert abs(run.rest[row] - numpy.exp(numpy.delete(logs, want) - lse).sum()) < 1e-5
            assert (run.ids[row, len(want):] == -1).all()
        if (run.targets != 7.5).any():
            assert run.rank[row] == (t[a] > t[a, case.target[a]]).sum(), a


def same_bits(tops, case, run):
    for one, other in zip(plain(tops, case), (run.part, run.zy)):
        assert (bits(one) == bits(other)).all()


@pytest.mark.parametrize("active", [ROWS, 61])
@pytest.mark.parametrize("arch", ARCHES)
def test_rows_of_every_shape(folder, arch, active):
    """In three slices and a sample; rows that ascend are lost and redone."""
    tops, case = Tops(folder, arch, {"entropy": 1}), Exact({"entropy": 1}, active)
    run = Run(tops, case, 20, ends=[LEAF, UNIT, 2 * UNIT])
    hold(run, case)
    same_bits(tops, case, run)
    assert (run.targets[:active] == run.zy[:active])[numpy.arange(active) != 3].all(), "top_target has forward's bits"
    lost = {KINDS[case.index[run.lost[1 + i]] % len(KINDS)] for i in range(run.lost[0])}
    assert "ascending" in lost and not lost & {"equal", "two"}
