"""Best columns and ranks, kernel by kernel on the CPU, against a sort of all scores: rows of every shape, lists that
overflow, slices of any number. Operands are such that scores are exact, so that ties are ties."""
import numpy
import pytest
from cpu_kernel import INFINITY, NAN, f32, needs_emit, needs_llc
from flpgen_tool import from_bf16, to_bf16
from forward_case import DEPTH, ROWS, Case, bits
from top_case import LEAF, UNIT, Run, Tops, plain

pytestmark = [needs_llc, needs_emit]

ARCHES = ["sm_80", "sm_90a"]
VOCAB = 4 * UNIT + 1309
KINDS = ["whole", "ascending", "descending", "equal", "two", "sharp", "steps"]


class Exact(Case):
    """kind: of the scores of all rows, or one after the other of KINDS. A row of NaN; scales of either sign, two tiny.
    few: columns whose bias is above -inf; None: most"""

    def __init__(self, head, active, vocab=VOCAB, kind=None, negative=True, few=None):
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
            banned = slice(None, None, 97) if few is None else random.permutation(vocab)[few:]
            bias[banned] = -INFINITY
            self.bias = to_bf16(bias)
        self.target = random.integers(0, vocab, active).astype(numpy.int32)
        self.scale = f32(2.0**random.integers(-1, 2, active) * 1.37)
        if negative:
            self.scale[8::15] *= -1
        self.scale[[12, 40]] = 2.0**-30, -2.0**-40
        if self.bias is not None:                      # -inf is a score then, inf is none
            self.scale = numpy.abs(self.scale)
        self.hidden[self.index[3]] = to_bf16(numpy.full(DEPTH, NAN))
        self.gathered[:active] = self.hidden[self.index]
        x = from_bf16(self.hidden[self.index]).astype(float) @ from_bf16(self.weight).astype(float).T
        if self.bias is not None:
            x += from_bf16(self.bias)
        self.t = f32(f32(x) * self.scale[:, None])


def best_of(t, best):
    """The first columns of a sort by falling score, then rising id, of those above -inf."""
    order = numpy.lexsort((numpy.arange(t.size), -t.astype(float)))[:best]
    return order[t[order] > -INFINITY]


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
            assert (numpy.abs(run.logprob[row, :len(want)] - wanted) <= error * scale).all()
            assert abs(run.rest[row] - numpy.exp(numpy.delete(logs, want) - lse).sum()) < 1e-5
            assert (run.ids[row, len(want):] == -1).all() and (run.logprob[row, len(want):] == -INFINITY).all()
            assert len(want) == best or run.rest[row] == 0
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


@pytest.mark.parametrize("best,places", [(1, 16), (20, 24), (128, 256), (128, 1024)])
@pytest.mark.parametrize("arch", ARCHES)
def test_lists_that_overflow(folder, arch, best, places):
    """Few places: nearly every row is lost, in the first slice or in a later one, and comes out right."""
    tops, case = Tops(folder, arch, {}), Exact({}, ROWS)
    run = Run(tops, case, best, places=places, ends=[LEAF, UNIT])
    hold(run, case)
    if places < LEAF:
        assert run.lost[0] == ROWS - 1, "all but the row of NaN"
    same_bits(tops, case, run)


@pytest.mark.parametrize("kind", ["ascending", "descending", "equal", "steps"])
def test_rows_of_one_shape(folder, kind):
    tops, case = Tops(folder, "sm_90a", {}), Exact({}, ROWS, kind=kind, negative=False)
    run = Run(tops, case, 33, ends=[LEAF, UNIT, 3 * UNIT])
    hold(run, case)
    kept = case.active - 1 - 2 * (kind == "ascending")            # but of NaN; two scales are as good as equal scores
    assert (run.lost[0] > kept - 3) == (kind in ("ascending", "steps")) and (kind != "equal" or run.lost[0] == 0)


@pytest.mark.long
@pytest.mark.parametrize("arch", ARCHES)
def test_bias(folder, arch):
    """Some of -inf, which are no candidates; then all but a few."""
    head = {"bias": 1, "entropy": 1}
    tops = Tops(folder, arch, head)
    for few in (None, 13, 20, 21):
        case = Exact(head, 61, few=few)
        for places in (1024, 64):
            run = Run(tops, case, 20, places=places, ends=[LEAF, UNIT])
            hold(run, case)
            same_bits(tops, case, run)


@pytest.mark.long
@pytest.mark.parametrize("places", [1024, 32])
@pytest.mark.parametrize("arch", ARCHES)
def test_softcap(folder, arch, places):
    """Scores are rounded, so near ones may change places."""
    head = {"softcap": 1, "entropy": 1}
    tops, case = Tops(folder, arch, head), Case(head, 61)
    t, run = case.scores()[0], Run(Tops(folder, arch, head), case, 20, places=places, ends=[LEAF])
    log, ids = t * numpy.log(2), run.ids[case.index] - 1000
    got, best = numpy.take_along_axis(t, ids, 1), -numpy.sort(-t, 1)[:, :20]
    assert all(len(set(row)) == 20 for row in ids.tolist()) and numpy.abs(got - best).max() < 2e-5
    lse = numpy.log(numpy.exp(log - log.max(1, keepdims=True)).sum(1)) + log.max(1)
    assert numpy.abs(run.logprob[case.index] - (best * numpy.log(2) - lse[:, None])).max() < 2e-5
    mine = numpy.take_along_axis(t, case.target[:, None], 1)
    assert ((t > mine + 2e-5).sum(1) <= run.rank[case.index]).all()
    assert (run.rank[case.index] <= (t > mine - 2e-5).sum(1)).all() and (run.lost[0] == 61) == (places == 32)
    same_bits(tops, case, run)


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("vocab,best", [(2, 2), (40, 40), (130, 128), (767, 128), (1025, 128)])
def test_small_vocabularies(folder, arch, vocab, best):
    """As many best as columns, and fewer columns than a tile has; nothing is left then."""
    tops, case = Tops(folder, arch, {}), Exact({}, ROWS, vocab=vocab)
    run = Run(tops, case, best, places=1056)
    hold(run, case)
    if best == vocab:
        assert (run.rest[case.index[[0, 1, 2, 4]]] == 0).all()
    assert run.lost[0] == 0
    same_bits(tops, case, run)


@pytest.mark.parametrize("arch", ARCHES)
def test_rank_alone_and_best_alone(folder, arch):
    tops, case = Tops(folder, arch, {}), Exact({}, 61)
    ranks, best = Run(tops, case, 0), Run(tops, case, 20, rank=False, ends=[LEAF, UNIT])
    hold(ranks, case)
    hold(best, case)
    assert (best.rank[case.index] <= 0).all()
    same_bits(tops, case, ranks)
