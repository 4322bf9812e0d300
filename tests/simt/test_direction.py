"""The small kernels of direction mode on the CPU, against NumPy in double."""
import numpy
import pytest
from cpu_kernel import BLOCK, INFINITY, NAN, f32, i32, kernels, made, needs_emit, needs_llc  # noqa: F401
from flpgen_tool import from_bf16, to_bf16

pytestmark = [needs_llc, needs_emit]

LIMIT = 2.0**30           # FLP_SCORE_LIMIT
LEAST_SCALE = 2.0**-9     # of capped rows, as kept.lua has it
SENTINEL = 0x4000


def aligned(shape, kind, fill):
    """At 256 bytes, as the caller's memory is: a vector that is not at 16 bytes ends the test."""
    count = int(numpy.prod(shape)) * numpy.dtype(kind).itemsize
    raw = numpy.zeros(count + 256, numpy.uint8)
    start = -raw.ctypes.data % 256
    array = raw[start:start + count].view(kind).reshape(shape)
    array[...] = fill
    return array


# ---- strike ----

@pytest.mark.parametrize("begin,end", [(0, 40), (3072, 3112), (0, 7000)])
def test_strike_zeroes_targets_of_its_columns_alone(made, begin, end):
    """Rows from 5 on of 290; the last 10 are not active; -1 is a target on another shard."""
    count, row_begin, row_end, stride = 280, 5, 290, 7040
    random = numpy.random.default_rng(2)
    target = i32(random.integers(0, 7000, row_end))
    target[row_begin:row_begin + 40] = begin + numpy.arange(40)     # every column of a narrow chunk
    target[[50, 51, 52, 53, 54]] = -1, begin - 1, end, end - 1, begin
    kept = numpy.full((row_end - row_begin, stride), SENTINEL, numpy.uint16)
    made["direction_strike"].named(2, local_target=target, count=i32([count]), row_begin=row_begin, row_end=row_end,
                                   column_begin=begin, column_end=end, kept=kept, kept_stride=stride)
    expected = numpy.full_like(kept, SENTINEL)
    mine = [a for a in range(row_begin, count) if begin <= target[a] < end]
    expected[[a - row_begin for a in mine], [target[a] - begin for a in mine]] = 0
    assert len(mine) >= 40 and (kept == expected).all()


# ---- finish ----

class Rows:
    """Partials of `count` active rows among more, and the references that were chosen for them. spread: lse - reference"""

    def __init__(self, count, spread, row_begin=0):
        random = numpy.random.default_rng(6)
        self.count, self.row_begin, self.row_end, n = count, row_begin, count + 3, count + 9
        self.index = i32(numpy.sort(random.permutation(n)[:count]))
        self.partial = f32(numpy.full((n, 4), NAN))
        m, s = random.standard_normal(count) * 20, random.uniform(1, 500, count)
        self.zy = random.standard_normal(count) * 3
        self.partial[self.index] = f32(numpy.stack([m, s, numpy.zeros(count), self.zy], 1))
        lse = self.partial[self.index, 0].astype(float) + numpy.log2(self.partial[self.index, 1].astype(float))
        self.reference = f32(lse - spread)
        self.scale = f32(numpy.full(count, 8.0))
        self.record = f32(numpy.full((count, 4), 7.5))
        self.slope = f32(numpy.full(count, 7.5))

    def finish(self, made, capped=0, cap_in=0.0):
        """-> redo; reference, record and slope change in place."""
        blocks = -(-(self.row_end - self.row_begin) // BLOCK)
        redo = i32([-1] * blocks)
        made["direction_finish"].named(
            blocks, partial=self.partial, reference=self.reference, slope=self.slope, cap_in=cap_in, record=self.record,
            index=self.index, scale=self.scale, count=i32([self.count]), capped=capped, row_begin=self.row_begin,
            row_end=self.row_end, redo=redo)
        return redo

    def expect_left(self, before, rows):
        assert (self.reference[rows] == before[rows]).all() and (self.record[rows] == 7.5).all()

    def expect_restarted(self, rows):
        m = self.partial[self.index[rows], 0]
        assert (self.reference[rows] == m).all()
        assert (self.record[rows] == numpy.stack([m, m * 0 + 1, m * 0, m * 0], 1)).all()


def test_finish_of_rows_in_range(made):
    rows = Rows(70, numpy.linspace(-65.9, 99.9, 70))
    before = rows.reference.copy()
    assert list(rows.finish(made)) == [0]
    rows.expect_left(before, slice(None))
    assert (rows.slope == 1).all()


@pytest.mark.parametrize("spread", [-66.1, 100.1, -INFINITY, INFINITY])
def test_finish_redoes_the_block_of_a_row_out_of_range(made, spread):
    """Block 1 of 3; the last has one row."""
    every = numpy.full(2 * BLOCK + 1, 3.0)
    every[BLOCK + 77] = spread
    rows = Rows(2 * BLOCK + 1, every)
    before = rows.reference.copy()
    assert list(rows.finish(made)) == [0, rows.count, 0]
    rows.expect_left(before, numpy.r_[0:BLOCK, 2 * BLOCK])
    rows.expect_restarted(slice(BLOCK, 2 * BLOCK))


def test_finish_counts_blocks_from_the_chunks_first_row(made):
    every = numpy.full(2 * BLOCK, 3.0)
    every[BLOCK + 500] = 200
    rows = Rows(2 * BLOCK, every, row_begin=500)
    before = rows.reference.copy()
    assert list(rows.finish(made)) == [0, rows.count]
    rows.expect_left(before, slice(0, 500 + BLOCK))
    rows.expect_restarted(slice(500 + BLOCK, None))
    assert (rows.slope[:500] == 7.5).all() and (rows.slope[500:] == 1).all()


def test_finish_beyond_the_last_active_row(made):
    """Blocks without an active row say 0 too."""
    rows = Rows(40, 0.0)
    rows.row_end = 3 * BLOCK
    assert list(rows.finish(made)) == [0, 0, 0]


def test_finish_leaves_rows_that_are_lost(made):
    """Scores that are NaN or infinite stay so whatever is redone; a shard of nothing but -inf has a sum of 0."""
    rows = Rows(60, 3.0)
    rows.partial[rows.index[[3, 4, 5]], 0] = NAN, INFINITY, NAN
    rows.partial[rows.index[6], 1] = INFINITY
    rows.partial[rows.index[7], 1] = NAN
    assert list(rows.finish(made)) == [0]
    rows.partial[rows.index[9], :2] = -LIMIT, 0
    assert list(rows.finish(made)) == [60]
    assert rows.reference[9] == -LIMIT and numpy.isnan(rows.reference[3])


@pytest.mark.parametrize("cap_in", [0.11, 0.7])
def test_finish_has_the_caps_slope_at_the_target(made, cap_in):
    """On another shard the score is -inf, and the slope anything but NaN."""
    rows = Rows(90, 0.0)
    rows.partial[rows.index[8], 3] = -INFINITY
    assert list(rows.finish(made, capped=1, cap_in=cap_in)) == [0]
    expected = numpy.cosh(cap_in * rows.zy)**-2.0
    expected[8] = 0
    assert numpy.abs(rows.slope - expected).max() < 1e-6


def test_finish_redoes_flat_caps(made):
    rows = Rows(64, 0.0)
    rows.scale[:] = -LEAST_SCALE
    assert list(rows.finish(made, capped=1, cap_in=0.1)) == [0]
    rows.scale[9] = LEAST_SCALE * 0.999
    assert list(rows.finish(made)) == [0]
    assert list(rows.finish(made, capped=1, cap_in=0.1)) == [64]


# ---- rows ----

class Heads:
    """Sums of `count` active rows among more, with records, slopes and the weight's rows. stride: of weight and out"""

    def __init__(self, depth, stride, out_is_f32, count=41):
        random = numpy.random.default_rng(8)
        n, vocab = count + 9, 30
        self.count, self.depth, self.n, self.out_is_f32 = count, depth, n, out_is_f32
        self.index = i32(numpy.sort(random.permutation(n)[:count]))
        self.target = i32(random.integers(-1, vocab, count))
        self.reference = f32(random.standard_normal(count) * 10)
        self.record = aligned((count, 4), numpy.float32, random.standard_normal((count, 4)))
        self.record[:, 0] = self.reference - random.uniform(-30, 50, count)      # {m, A, 0, dz_y}
        self.record[:, 2] = 0
        self.slope = f32(random.uniform(0, 1, count))
        power = numpy.exp2(self.record[:, 0].astype(float) - self.reference)
        self.sums = aligned((count, depth), numpy.float32, random.standard_normal((count, depth)) * power[:, None])
        self.weight = aligned((vocab, stride), numpy.uint16, to_bf16(random.standard_normal((vocab, stride))))
        self.out = aligned((n, stride), numpy.float32 if out_is_f32 else numpy.uint16, SENTINEL)

    def rows(self, module):
        module["direction_rows"].named(
            -(-self.n // 8), sums=self.sums, reference=self.reference, slope=self.slope, record=self.record,
            index=self.index, local_target=self.target, count=i32([self.count]), weight=self.weight,
            weight_stride=self.weight.shape[1], depth=self.depth, out=self.out, out_stride=self.out.shape[1],
            out_is_f32=self.out_is_f32)
        return self.out.astype(float) if self.out_is_f32 else from_bf16(self.out).astype(float)

    def terms(self):
        """What each element is the sum of, in double."""
        m, a, _, dz_y = self.record.astype(float).T
        factor = a * numpy.exp2(self.reference.astype(float) - m)
        pull = numpy.where(self.target >= 0, dz_y * self.slope, 0)
        weight = from_bf16(self.weight[numpy.maximum(self.target, 0), :self.depth]).astype(float)
        return factor[:, None] * self.sums.astype(float), pull[:, None] * weight

    def hold(self, found, rows=slice(None)):
        """rows: of the active ones, those that are compared"""
        got, (sums, pulls) = found[self.index[rows], :self.depth], self.terms()
        want, size = (sums + pulls)[rows], (numpy.abs(sums) + numpy.abs(pulls))[rows]
        rounding = 0 if self.out_is_f32 else 2.0**-8
        assert (numpy.abs(got - want) <= 4e-6 * size + rounding * numpy.abs(want)).all()  # 2^(k - m) of an fp32 difference

    def expect_untouched(self):
        others = numpy.setdiff1d(numpy.arange(self.n), self.index)
        assert (self.out[others] == SENTINEL).all() and (self.out[:, self.depth:] == SENTINEL).all()


# alignment, depth, stride of weight and out
SHAPES = [(16, 256, 256), (16, 272, 272), (16, 75, 80), (16, 76, 80), (16, 4, 8), (8, 76, 76), (4, 74, 74), (2, 75, 75),
          (2, 75, 77)]


@pytest.mark.parametrize("out_is_f32", [0, 1])
@pytest.mark.parametrize("alignment,depth,stride", SHAPES)
def test_rows(folder, alignment, depth, stride, out_is_f32):
    heads = Heads(depth, stride, out_is_f32)
    heads.hold(heads.rows(kernels(folder, kind="kept", alignment=alignment)[0]))
    heads.expect_untouched()


@pytest.mark.parametrize("out_is_f32", [0, 1])
def test_rows_without_an_upstream_gradient_are_zeros(made, out_is_f32):
    """Whatever their sums, statistics and the weight hold; one that has a gradient keeps its NaN."""
    heads = Heads(80, 80, out_is_f32)
    heads.sums[[1, 2, 3, 5]] = NAN
    heads.sums[4, 7] = INFINITY
    heads.reference[2], heads.slope[3], heads.record[[1, 4], 0] = NAN, NAN, NAN
    heads.record[[1, 2, 3, 4], 1:] = 0
    heads.target[[1, 2, 3, 4]] = 0, 1, 2, -1
    heads.weight[2, 5] = 0x7F80
    found = heads.rows(made)
    assert (found[heads.index[[1, 2, 3, 4]], :80] == 0).all() and numpy.isnan(found[heads.index[5], :80]).all()
    others = numpy.flatnonzero((heads.target != 2) & ~numpy.isin(numpy.arange(heads.count), [1, 2, 3, 4, 5]))
    heads.hold(found, others)


def test_rows_take_no_weight_where_it_adds_nothing(made):
    """A target on another shard, and a slope of 0: an infinite weight does not matter."""
    heads = Heads(80, 80, 1)
    heads.target[[1, 2]] = -1, 3
    heads.slope[2] = 0
    heads.weight[[0, 3]] = 0x7F80
    found = heads.rows(made)
    factor = heads.record[:, 1].astype(float) * numpy.exp2(heads.reference.astype(float) - heads.record[:, 0])
    want = factor[[1, 2], None] * heads.sums[[1, 2]]
    assert (numpy.abs(found[heads.index[[1, 2]]] - want) <= 1e-6 * numpy.abs(want)).all()


def test_rows_are_linear_in_the_upstream_gradient(made):
    """To the bit in powers of 2; a tiny or a huge gradient loses nothing although 2^(reference - m) is far from 1."""
    heads = Heads(72, 72, 1)
    record = heads.record.copy()
    once = heads.rows(made).copy()
    assert (heads.rows(made) == once).all()
    for factor in (2.0, 2.0**-110, 2.0**90):
        heads.record[:, 1], heads.record[:, 3] = record[:, 1] * factor, record[:, 3] * factor
        assert (heads.rows(made)[heads.index] == once[heads.index] * factor).all(), factor
