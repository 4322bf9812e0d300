"""The kernels behind forward_keep on the CPU, against NumPy in double."""
import numpy
import pytest
from cpu_kernel import (  # noqa: F401
    BLOCK, INFINITY, LN2, LOG2E, NAN, f32, i32, kernels, made, needs_emit, needs_llc, wide)
from flpgen_tool import to_bf16

pytestmark = [needs_llc, needs_emit]


def test_other_dtypes_are_refused(folder):
    for kind, arch in (("forward_keep", "sm_80"), ("forward_keep", "sm_90a"), ("kept", "sm_80")):
        with pytest.raises(AssertionError, match="dtype: fp16 lacks the range of exponentials; bf16 is accepted"):
            kernels(folder, kind=kind, arch=arch, dtype="fp16")


def test_reference(made):
    count, rows = 300, 310
    random = numpy.random.default_rng(1)
    part, old_lse = f32(random.standard_normal(rows) * 40), f32(random.standard_normal(400) * 30)
    index = i32(numpy.sort(random.permutation(400)[:rows]))
    for given, expected in (({"part": part}, part[:count - 5] + numpy.float32(60)),
                            ({"old_lse": old_lse}, old_lse[index[5:count]].astype(float) * LOG2E + 20)):
        reference = f32([NAN] * rows)
        made["keep_reference"].named(2, **given, index=index, count=i32([count]), row_begin=5, row_end=rows,
                                     reference=reference)
        assert numpy.isnan(reference[:5]).all() and numpy.isnan(reference[count:]).all()
        assert numpy.abs(reference[5:count] - expected).max() < 1e-5


class Rows:
    """Saved exponentials of random rows, with statistics and records that belong to them. spread: lse - reference of
    each"""

    def __init__(self, count, vocab, spread, entropy, seed=3):
        random = numpy.random.default_rng(seed)
        n, self.count, self.vocab = count + 9, count, vocab
        self.stride = -(-vocab // 64) * 64
        t = random.standard_normal((count, vocab)) * 3
        m, lse = t.max(1), numpy.log2(numpy.exp2(t).sum(1))
        self.t = t + (numpy.broadcast_to(spread, count) - lse)[:, None]        # above the reference
        self.reference = f32(random.standard_normal(count) * 100)
        self.target = i32(random.integers(-1, vocab, count))
        self.index = i32(numpy.sort(random.permutation(n)[:count]))
        p = numpy.exp2(t - lse[:, None])
        self.logprob = numpy.where(self.target < 0, -INFINITY, numpy.log(p[numpy.arange(count), self.target]))
        self.stats = f32(numpy.full((n, 4), NAN))
        m_log2 = self.reference + (m - lse + spread)
        self.stats[self.index] = f32(numpy.stack([m_log2, lse - m, self.logprob, lse * LN2], 1))
        self.shift = self.reference.astype(float) - self.stats[self.index, 0]  # as fp32 has it
        self.scale = f32(numpy.full(count, 8.0))
        self.record = f32(random.standard_normal((count, 4)))
        self.record[:, 0] = self.stats[self.index, 0]
        if not entropy:
            self.record[:, 2] = 0
        self.kept = numpy.full((count + 3, self.stride), 0x4000, numpy.uint16)
        with numpy.errstate(over="ignore"):
            self.kept[:count, :vocab] = to_bf16(numpy.exp2(self.t))
        self.kept[:count, vocab:] = 0

    def finish(self, made, plain, capped=0):
        blocks = -(-(self.count + 3) // BLOCK)
        factor, redo = f32([NAN] * self.count), i32([-1] * blocks)
        made["keep_finish"].named(
            blocks, stats=self.stats, record=self.record, reference=self.reference, index=self.index,
            local_target=self.target, scale=self.scale, count=i32([self.count]), capped=capped, row_end=self.count + 3, vocab_valid=self.vocab, plain=plain,
            kept=self.kept, kept_stride=self.stride, factor=factor, redo=redo)
        return factor, redo


def test_finish_of_plain_rows(made):
    rows = Rows(70, 150, numpy.linspace(-60, 90, 70), entropy=False)
    before = rows.kept.copy()
    factor, redo = rows.finish(made, plain=1)
    assert list(redo) == [0]
    expected = rows.record[:, 1] * numpy.exp2(rows.shift)
    assert numpy.abs(factor / expected - 1).max() < 1e-5
    mine = numpy.flatnonzero(rows.target >= 0)
    lse = rows.stats[rows.index, 0].astype(float) + rows.stats[rows.index, 1] - rows.reference
    exchanged = (numpy.expm1(rows.logprob) * numpy.exp2(lse))[mine]
    assert numpy.abs(wide(rows.kept[mine, rows.target[mine]]) / exchanged - 1).max() < 2**-8
    before[mine, rows.target[mine]] = rows.kept[mine, rows.target[mine]]
    assert (before == rows.kept).all()  # and nothing else
    again = rows.kept.copy()
    assert (rows.finish(made, plain=1)[0] == factor).all() and (again == rows.kept).all()


def capped_rows(below):
    """Plain rows whose target, where they have one, is `below` short of the cap; its slope, of 0 where below is less
    than 2^-25, is in kept as forward_keep stores it. -> rows, those with a target, their slopes"""
    rows = Rows(len(below), 150, 0.0, entropy=False)
    t = rows.stats[rows.index, :2].astype(float).sum(1) + rows.logprob * LOG2E
    random = numpy.random.default_rng(4)
    rows.scale[:] = numpy.where(random.random(rows.count) < 0.3, -1, 1) * t / (1 - below)
    rows.scale[rows.target < 0] = 9
    mine = numpy.flatnonzero(rows.target >= 0)
    slope = (1 - (t / rows.scale.astype(float))**2 if below[0] > 2**-25 else numpy.zeros(rows.count))[mine]
    rows.kept[mine, rows.target[mine]] = to_bf16(numpy.exp2(rows.t[mine, rows.target[mine]]) * slope)
    return rows, mine, slope


def test_finish_of_capped_plain_rows(made):
    """The target's element keeps the slope of the cap, which kept has already elsewhere: from lse + logprob, or, near the
    cap, from kept."""
    rows, mine, slope = capped_rows(numpy.concatenate([numpy.full(9, 1e-6), numpy.geomspace(1e-6, 0.7, 61)]))
    before = rows.kept.copy()
    _, redo = rows.finish(made, plain=1, capped=1)
    assert list(redo) == [0]
    spread = rows.stats[rows.index, 0].astype(float) + rows.stats[rows.index, 1] - rows.reference
    exchanged = (numpy.expm1(rows.logprob) * numpy.exp2(spread))[mine] * slope
    error = numpy.abs(wide(rows.kept[mine, rows.target[mine]]) / exchanged - 1)
    assert error.max() <= 2**-8 + 2**-9
    before[mine, rows.target[mine]] = rows.kept[mine, rows.target[mine]]
    assert (before == rows.kept).all()


def test_finish_of_plain_rows_at_the_cap(made):
    """Where tanh is 1 to fp32 there is no gradient, and what lse + logprob are rounded to makes none."""
    rows, mine, _ = capped_rows(numpy.linspace(-1e-7, 1e-8, 70))
    rows.finish(made, plain=1, capped=1)
    assert (wide(rows.kept[mine, rows.target[mine]]) == 0).all()


def test_finish_redoes_plain_rows_whose_slope_is_lost(made):
    """Near the cap, of a target whose exponential has vanished; if it has an upstream gradient."""
    rows = Rows(64, 150, 0.0, entropy=False)
    rows.target[:], rows.scale[:] = 7, 1e4
    stats = rows.stats[rows.index[9]]             # a view
    for logprob_log2, below, expected in ((-101, 1e-7, 0), (-104, 0.1, 0), (-104, 1e-7, 64)):
        stats[2] = logprob_log2 * LN2
        rows.scale[9] = (stats[:2].astype(float).sum() + stats[2].astype(float) * LOG2E) / (1 - below)
        assert list(rows.finish(made, plain=1, capped=1)[1]) == [expected], (logprob_log2, below)
        assert list(rows.finish(made, plain=1, capped=0)[1]) == [0]
    rows.record[9, 1:] = 0
    assert list(rows.finish(made, plain=1, capped=1)[1]) == [0]


@pytest.mark.parametrize("plain,least", [(1, 2.0**-9), (0, 4.0)])
def test_finish_redoes_flat_caps(made, plain, least):
    rows = Rows(64, 150, 0.0, entropy=False)
    rows.target[:], rows.scale[:] = -1, -least
    rows.stats[:, 3] = rows.stats[:, :2].sum(1) * LN2  # so that t is 0 on average
    assert list(rows.finish(made, plain, capped=1)[1]) == [0]
    rows.scale[9] = least * 0.999
    assert list(rows.finish(made, plain, capped=1)[1]) == [64] and list(rows.finish(made, plain)[1]) == [0]


def test_finish_redoes_expanded_rows_near_the_cap(made):
    """Those whose mean t is less than log2(e) short of the cap; not so in the plain form, nor without a cap."""
    rows = Rows(64, 150, 0.0, entropy=True)
    rows.target[:] = -1
    mean = (rows.stats[:, :2].sum(1) - rows.stats[:, 3] * LOG2E)[rows.index]
    sign = numpy.where(numpy.arange(64) % 2, -1, 1)
    rows.scale[:] = sign * (numpy.abs(mean) + 4.5)
    assert list(rows.finish(made, plain=0, capped=1)[1]) == [0]
    for row in numpy.argsort(numpy.abs(mean))[-2:]:
        for distance, expected in ((LOG2E + 0.01, 0), (LOG2E - 0.01, 64), (0, 64)):
            rows.scale[row] = sign[row] * (numpy.abs(mean[row]) + distance)
            assert list(rows.finish(made, plain=0, capped=1)[1]) == [expected], (row, distance)
            assert list(rows.finish(made, plain=0)[1]) == list(rows.finish(made, plain=1, capped=1)[1]) == [0]
        rows.scale[row] = sign[row] * (numpy.abs(mean[row]) + 4.5)


def test_finish_redoes_expanded_rows_whose_target_is_near_the_cap(made):
    """Where it has a gradient of its own: an unlikely target near -cap, the row's mean far from it."""
    rows = Rows(64, 150, 0.0, entropy=True)
    rows.target[:], rows.scale[:] = 7, 1e4
    rows.stats[rows.index[9]] = 3, 2, -40 * LN2, 4 * LN2     # lse 5, the target's t -35, the mean 1
    rows.reference[9] = 3
    for distance, expected in ((LOG2E + 0.01, 0), (LOG2E - 0.01, 64)):
        rows.scale[9] = 35 + distance
        assert list(rows.finish(made, plain=0, capped=1)[1]) == [expected], distance
    rows.target[9] = -1
    assert list(rows.finish(made, plain=0, capped=1)[1]) == [0]


@pytest.mark.parametrize("plain", [1, 0])
def test_finish_redoes_blocks(made, plain):
    """Blocks 0 and 2 of 4 have a row out of range; the last has one row."""
    count = 3 * BLOCK + 1
    spread = numpy.full(count, 3.0)
    spread[[5, 2 * BLOCK + 1023]] = -66.5, 100.5
    spread[[BLOCK, BLOCK + 1]] = -65.5, 99.5
    rows = Rows(count, 40, spread, entropy=not plain)
    before = rows.kept.copy()
    factor, redo = rows.finish(made, plain)
    assert list(redo) == [count, 0, count, 0]
    if plain:
        redone = numpy.repeat(redo > 0, BLOCK)[:count]
        assert (factor[redone] == 1).all() and (factor[~redone] != 1).all()
        assert (before[:count][redone] == rows.kept[:count][redone]).all()
    else:
        assert (factor == 1).all() and (before == rows.kept).all()


@pytest.mark.parametrize("plain", [1, 0])
def test_finish_of_rows_that_are_lost(made, plain):
    """Row 1: NaN scores without upstream gradient; 2: the same with one; 3: a reference that is none; 4, in the expanded
    form: a target that has vanished."""
    rows = Rows(64, 150, 0.0, entropy=True)
    rows.stats[rows.index[[1, 2]], :] = NAN
    rows.kept[[1, 2], :150] = 0x7FC0
    rows.record[1, 1:] = 0
    rows.record[2, 1:] = NAN
    rows.record[9, 1:] = 0
    factor, redo = rows.finish(made, plain)
    assert list(redo) == [0] and (rows.kept[1] == 0).all() and numpy.isnan(wide(rows.kept[2, :150])).all()
    assert (rows.kept[[0, 3], :150] != 0).all()
    assert factor[1] == 0 and factor[9] == 0
    assert numpy.isnan(factor[2]) if plain else (numpy.delete(factor, [1, 9]) == 1).all()
    rows.target[4], rows.stats[rows.index[4], 2] = 7, -100 * LN2
    assert list(rows.finish(made, plain)[1]) == [0]
    rows.stats[rows.index[4], 2] = -130 * LN2
    assert list(rows.finish(made, plain)[1]) == [0 if plain else 64]
    rows.stats[rows.index[4], 2], rows.reference[3] = -1, NAN
    factor, redo = rows.finish(made, plain)
    assert list(redo) == [64] and factor[1] == 0 and factor[9] == 0 and (numpy.delete(factor, [1, 9]) == 1).all()
