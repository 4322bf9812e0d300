"""The kernels of listed columns that make the gradients of weight and bias, on the CPU, against NumPy."""
import ctypes
import mmap
import os

import numpy
import pytest
from cpu_kernel import INFINITY, NAN, f32, i32, kernels, needs_emit, needs_llc, wide
from flpgen_tool import from_bf16, to_bf16

pytestmark = [needs_llc, needs_emit]

DIGITS, BITS, BLOCK, WIDE, SLICE = 512, 9, 4096, 64, 256  # FLP_LIST_*
THREADS, COLUMNS, WARPS = 256, 4, 8  # of a CTA: threads of list_starts, columns of list_weight, warps of a wide one
MARK = 0x4000                                             # 2.0 in bf16, where nothing is to be written
ROUNDING = {"bf16": 2.0**-8, "fp16": 2.0**-11, "fp32": 0.0}


@pytest.fixture(scope="module")
def made(folder):
    return kernels(folder, kind="listed_weight")[0]


# ---- the order of entries ----

def sort_pass(made, columns, shift, order, most=None):
    """One pass, each of its kernels looked at. order: None for entries as they are; most: list_count, where the number
    of columns is on the device"""
    count, blocks = len(columns), -(-len(columns) // BLOCK)
    digits = i32(numpy.full(DIGITS * blocks + 8, -7))
    counted_there = {"list_count": count} if most is None else {"list_count": most, "list_total": i32([count])}
    given = {"list_column": columns, "shift": shift, "list_digit": digits, "from": order, **counted_there}
    grid = -(-(most or count) // BLOCK)
    made["list_digits"].named(grid, **given)
    mine = columns if order is None else columns[order]
    digit = (mine.view(numpy.uint32) >> shift) % DIGITS
    counted = numpy.zeros((DIGITS, blocks), int)
    numpy.add.at(counted, (digit, numpy.arange(count) // BLOCK), 1)
    assert (digits[:-8].reshape(DIGITS, blocks) == counted).all()
    made["list_scan"].named(1, list_digit=digits, **counted_there)
    assert (digits[:-8] == numpy.cumsum(counted.ravel()) - counted.ravel()).all() and (digits[-8:] == -7).all()
    to = i32(numpy.full(count + 8, -7))
    made["list_place"].named(grid, **given, to=to)
    assert (to[count:] == -7).all()
    return to[:count].copy()


def stable(columns):
    return numpy.argsort(columns.view(numpy.uint32), kind="stable")


@pytest.mark.parametrize("count", [1, 33, BLOCK, BLOCK + 1, 3 * BLOCK + 77])
def test_one_pass(made, count):
    random = numpy.random.default_rng(count)
    for columns in (random.integers(-1, DIGITS - 1, count), numpy.full(count, 77), numpy.full(count, -1),
                    numpy.where(random.random(count) < 0.9, -1, 500), numpy.arange(count)[::-1] % (DIGITS - 1)):
        columns = i32(columns)
        assert (sort_pass(made, columns, 0, None) == stable(columns)).all()


@pytest.mark.parametrize("vocab, passes", [(151936, 2), (2**18 - 1, 2), (2**20, 3), (2**31 - 1, 4)])
def test_passes(made, vocab, passes):
    """As many as V needs, so that the last column's digits are not all ones."""
    random = numpy.random.default_rng(passes)
    columns = random.integers(-1, vocab, 2 * BLOCK + 100)
    columns[random.permutation(len(columns))[:900]] = numpy.repeat([vocab - 1, -1, 0], 300)
    columns, order = i32(columns), None
    for i in range(passes):
        order = sort_pass(made, columns, i * BITS, order)
    assert (order == stable(columns)).all()


def test_scan_of_many_blocks(made):
    """Several rounds of the one CTA, of which the last is not whole."""
    for blocks in (1, 31, 32, 33, 100):
        numbers = i32(numpy.random.default_rng(blocks).integers(0, 9, DIGITS * blocks + 8))
        expected = numpy.cumsum(numbers[:-8]) - numbers[:-8]
        behind = numbers[-8:].copy()
        made["list_scan"].named(1, list_digit=numbers, list_count=BLOCK * blocks - blocks)
        assert (numbers[:-8] == expected).all() and (numbers[-8:] == behind).all()


def starts_of(made, columns, order, vocab, most=None):
    start = i32(numpy.full(vocab + 9, -7))
    made["list_starts"].named(-(-(vocab + 1) // THREADS), order=order, list_column=columns,
                              list_count=most or len(columns), list_total=most and i32([len(columns)]),
                              vocab_valid=vocab, list_start=start)
    assert (start[vocab + 1:] == -7).all()
    return start[:vocab + 1]


@pytest.mark.parametrize("count", [0, 1, 1000])
def test_starts(made, count):
    """Most columns are empty, the first and the last one among them or not; entries without a column are last."""
    random = numpy.random.default_rng(count)
    for vocab, low, high in ((3000, -1, 3000), (255, 40, 41), (256, -1, 0), (257, 0, 257)):
        columns = i32(random.integers(low, high, count))
        order = i32(stable(columns))
        expected = numpy.searchsorted(columns[order].view(numpy.uint32), numpy.arange(vocab + 1))
        assert (starts_of(made, columns, order, vocab) == expected).all()


# ---- sums ----

class Lists:
    """Entries of rows in ascending order. counts: column -> number of its rows; gaps: entries without a column before
    each that has one, and behind the last; bits of dz: few, so that doubles add products without rounding"""

    def __init__(self, counts, vocab, depth, dtype="bf16", gaps=0.3, seed=1):
        random = numpy.random.default_rng(seed)
        self.vocab, self.depth, self.dtype = vocab, depth, dtype
        active = max(counts.values(), default=0) + 5
        pairs = sorted((row, column) for column, count in counts.items() for row in random.permutation(active)[:count])
        total = int(len(pairs) * (1 + gaps)) + 1
        places = numpy.sort(random.permutation(total)[:len(pairs)])
        self.column, self.row = i32(numpy.full(total, -1)), i32(random.integers(0, active, total))
        self.dz = f32(numpy.full(total, NAN))
        if pairs:
            self.row[places], self.column[places] = numpy.array(pairs).T
        self.dz[places] = from_bf16(to_bf16(f32(random.standard_normal(len(pairs)))))
        self.n = active + 4
        self.index = i32(numpy.sort(random.permutation(self.n)[:active]))
        self.hidden = from_bf16(to_bf16(f32(random.standard_normal((self.n, depth)))))
        self.order = i32(stable(self.column))
        self.start = i32(numpy.searchsorted(self.column[self.order].view(numpy.uint32), numpy.arange(vocab + 1)))

    def entries(self, v):
        """dz and row of hidden of each entry of a column, in order."""
        at = self.order[self.start[v]:self.start[v + 1]]
        return self.dz[at], self.index[self.row[at]]

    def exact(self):
        """The sums in double, those of the absolute values, and the number of entries of each column."""
        dw, size = numpy.zeros((2, self.vocab, self.depth))
        db, count = numpy.zeros(self.vocab), numpy.diff(self.start)
        for v in numpy.flatnonzero(count):
            dz, rows = self.entries(v)
            products = dz[:, None].astype(float) * self.hidden[rows]
            dw[v], size[v], db[v] = products.sum(0), numpy.abs(products).sum(0), dz.astype(float).sum()
        return dw, size, db, count

    def in_order(self, v):
        """The sum of a column as it is documented, one rounding to fp32 an entry."""
        dz, rows = self.entries(v)

        def add(part):
            total, bias = numpy.zeros(self.depth, numpy.float32), numpy.float32(0)
            for g, row in zip(dz[part], rows[part]):
                total = f32(g.astype(float) * self.hidden[row] + total)
                bias = bias + g
            return total, bias

        if len(dz) < WIDE:
            return add(slice(None))
        total, bias = add(slice(0, None, WARPS))
        for warp in range(1, WARPS):
            of_warp = add(slice(warp, None, WARPS))
            total, bias = total + of_warp[0], bias + of_warp[1]
        return total, bias


def placed(values, dtype, aligned):
    """A matrix of a dtype whose rows start at 16 bytes, or at none of 4 or 8 of them."""
    rows, columns = values.shape
    stride = columns + (8 if aligned else 1)
    kind = {"bf16": numpy.uint16, "fp16": numpy.float16, "fp32": numpy.float32}[dtype]
    memory = numpy.zeros(rows * stride + 32, kind)
    first = -memory.ctypes.data % 16 // memory.itemsize + (0 if aligned else 1)
    out = memory[first:first + rows * stride].reshape(rows, stride)
    out[:] = MARK
    with numpy.errstate(over="ignore"):
        out[:, :columns] = to_bf16(f32(values)) if dtype == "bf16" else values
    return out


def sums(made, lists, out="fp32", aligned=True, add=False, weight=True, bias=True, before=None, beyond=3,
         hidden=None, bias_before=None, most=None, grid=None):
    """grad_weight, grad_bias, and what stood in the first. before: its values; bias_before: those of the second, which
    is added to then; hidden: where else than anywhere; most: list_count, where the number of entries is on the device;
    grid: CTAs of list_weight_wide"""
    vocab, depth = lists.vocab, lists.depth
    hidden = placed(lists.hidden, lists.dtype, aligned) if hidden is None else hidden
    if before is None:
        before = numpy.random.default_rng(8).standard_normal((vocab + beyond, depth)) if add else numpy.full(
            (vocab + beyond, depth), NAN)
    dw = placed(before, out, aligned)
    db = placed(numpy.full((1, vocab + beyond), NAN) if bias_before is None else bias_before[None], out, aligned)[0]
    kept, bias_kept = dw.copy(), db.copy()
    given = dict(order=lists.order, list_start=lists.start, list_row=lists.row, list_dz=lists.dz, index=lists.index,
                 vocab_valid=vocab, list_count=most or len(lists.order), depth=depth,
                 list_total=most and i32([len(lists.order)]),
                 hidden=hidden, hidden_stride=hidden.shape[1],
                 weight_out=dw if weight else None, weight_out_stride=dw.shape[1], weight_out_is_f32=out == "fp32",
                 bias_out=db if bias else None, bias_out_is_f32=out == "fp32", add=add,
                 add_bias=bias_before is not None)
    made["list_weight"].named(-(-vocab // COLUMNS), **given)
    grid = grid or max(-(-len(lists.order) // WIDE) * -(-depth // SLICE), 1)
    made["list_weight_wide"].named(grid, **given, list_column=lists.column)

    def words(array):
        return array.view(f"u{array.itemsize}")

    assert (words(dw[vocab:]) == words(kept[vocab:])).all() and (words(dw[:, depth:]) == words(kept[:, depth:])).all()
    assert (words(db[vocab:]) == words(bias_kept[vocab:])).all()
    return dw[:vocab, :depth], db[:vocab], kept[:vocab, :depth]


COUNTS = {2: 1, 5: 2, 6: 3, 9: 4, 10: 5, 40: 31, 41: 32, 42: 33, 43: WIDE - 1, 44: WIDE, 45: WIDE + 1, 46: 71, 60: 300,
          63: WIDE, 64: 1, 130: 260, 131: 9, 140: 127, 198: 64}
DTYPES = [("bf16", "fp32", 16), ("bf16", "bf16", 16), ("bf16", "bf16", 2), ("bf16", "fp32", 4), ("fp16", "fp16", 16),
          ("fp16", "fp32", 16), ("fp16", "fp16", 2), ("fp32", "fp32", 16), ("fp32", "fp32", 4)]


@pytest.mark.parametrize("add, add_bias", [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("depth", [72, 1024])
@pytest.mark.parametrize("dtype, out, alignment", DTYPES)
def test_sums(folder, dtype, out, alignment, depth, add, add_bias):
    made = kernels(folder, kind="listed_weight", dtype=dtype, alignment=alignment)[0]
    lists = Lists(COUNTS, 200, depth, dtype)
    bias_before = numpy.random.default_rng(9).standard_normal(203) if add_bias else None
    dw, db, before = sums(made, lists, out, alignment == 16, add, bias_before=bias_before)
    exact, size, bias, count = lists.exact()
    count = count[:, None]
    if add:
        exact, size = exact + wide(before), size + numpy.abs(wide(before))
    bound = (count + 1) * 2.0**-24 * size + ROUNDING[out] * (1.01 * numpy.abs(exact) + 2.0**-14)
    assert (numpy.abs(wide(dw) - exact) <= bound).all()
    untouched = numpy.flatnonzero(count == 0)
    assert len(untouched) > 150
    assert (dw[untouched] == before[untouched]).all() if add else (wide(dw[untouched]) == 0).all()
    of_dz = numpy.bincount(numpy.maximum(lists.column, 0), numpy.where(lists.column < 0, 0, numpy.abs(lists.dz)), 200)
    if add_bias:
        kept = placed(bias_before[None], out, alignment == 16)[0, :200]
        assert (db[untouched] == kept[untouched]).all()
        bias, of_dz = bias + wide(kept), of_dz + numpy.abs(wide(kept))
    bound = (count[:, 0] + 1) * 2.0**-24 * of_dz + ROUNDING[out] * (1.01 * numpy.abs(bias) + 2.0**-14)
    assert (numpy.abs(wide(db) - bias) <= bound).all()


@pytest.mark.parametrize("depth", [8, 264, 1024])
def test_order_of_sums(made, depth):
    """To the bit, and whatever stands between the entries: how many blocks there are moves nothing."""
    found = []
    for gaps in (0, 0.3, 20):
        lists = Lists(COUNTS, 200, depth)
        if gaps != 0.3:
            spread(lists, gaps)
        dw, db, _ = sums(made, lists)
        found.append((dw, db))
        assert len(lists.order) > BLOCK or gaps < 20
    for v in range(200):
        total, bias = lists.in_order(v)
        assert (dw[v] == total).all() and db[v] == bias
    assert all((dw == found[0][0]).all() and (db == found[0][1]).all() for dw, db in found[1:])


def spread(lists, gaps):
    """The same entries with other gaps."""
    real = numpy.flatnonzero(lists.column >= 0)
    total = int(len(real) * (1 + gaps))
    places = numpy.sort(numpy.random.default_rng(5).permutation(total)[:len(real)])
    column, row, dz = i32(numpy.full(total, -1)), i32(numpy.zeros(total)), f32(numpy.full(total, NAN))
    column[places], row[places], dz[places] = lists.column[real], lists.row[real], lists.dz[real]
    lists.column, lists.row, lists.dz, lists.order = column, row, dz, i32(stable(column))


@pytest.mark.parametrize("count", [WIDE - 1, WIDE, WIDE + 1, 2 * WIDE + 3])
def test_wide_columns_that_begin_anywhere(made, count):
    """A column of `first` entries goes before, another wide one stands behind, then entries without a column."""
    for first in (*range(0, 66, 5), 62, 63, 64):
        lists = Lists({1: first, 4: count, 5: WIDE}, 7, 8, gaps=0.1, seed=first)
        dw, db, _ = sums(made, lists)
        for v in range(7):
            total, bias = lists.in_order(v)
            assert (dw[v] == total).all() and db[v] == bias, (first, v)


def many_wide(depth):
    """300 wide columns among others: more pairs of a place and a slice than the 256 that a CTA looks at together."""
    return Lists({v: (1, 63, 64, 65, 130)[v % 5] for v in range(500)}, 500, depth, gaps=0.1)


@pytest.mark.parametrize("depth", [8, 520])
def test_wide_columns_of_any_grid(made, depth):
    """The same bits of one CTA that does everything, of a few with several rounds, and of more than there is to do."""
    lists = many_wide(depth)
    expected = sums(made, lists)
    for v in range(0, 500, 7):
        total, bias = lists.in_order(v)
        assert (expected[0][v] == total).all() and expected[1][v] == bias
    for grid in (1, 3, 64, 5000):
        found = sums(made, lists, grid=grid)
        assert (found[0] == expected[0]).all() and (found[1] == expected[1]).all(), grid
    before = numpy.random.default_rng(3).standard_normal((503, depth))
    added = sums(made, lists, "bf16", True, True, before=before, bias_before=before[:, 0])
    few = sums(made, lists, "bf16", True, True, before=before, bias_before=before[:, 0], grid=3)
    assert (few[0] == added[0]).all() and (few[1] == added[1]).all()
    only_bias = sums(made, lists, weight=False, grid=3)
    assert (only_bias[1] == expected[1]).all()


def survives(work):
    """1 if another process does it without a fault."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("count", [0, 1, BLOCK - 1, BLOCK, 2 * BLOCK + 77])
def test_entries_counted_on_the_device(made, count):
    """From columns to sums, with room for five blocks: the same orders and bits as without, and nothing is read behind
    the entries there are, where memory ends. Another process tries."""
    counts = {3: 90, 70: 1, 600: 40, 1999: 64, 0: 2}
    lists = Lists(counts, 2000, 16, gaps=41)
    lists.column, lists.row, lists.dz = lists.column[:count], lists.row[:count], lists.dz[:count]
    lists.order = i32(stable(lists.column))
    lists.start = i32(numpy.searchsorted(lists.column[lists.order].view(numpy.uint32), numpy.arange(2001)))
    assert len(lists.column) == count and (lists.start[-1] > WIDE) == (count > 1)
    expected, most = sums(made, lists), 5 * BLOCK

    def everything():
        lists.column, lists.row, lists.dz = (before_a_hole(a) for a in (lists.column, lists.row, lists.dz))
        first = before_a_hole(sort_pass(made, lists.column, 0, None, most))
        order = before_a_hole(sort_pass(made, lists.column, BITS, first, most))
        assert (order == lists.order).all()
        lists.start, lists.order = starts_of(made, lists.column, order, 2000, most), order
        for grid in (2, 80):
            found = sums(made, lists, most=most, grid=grid)
            assert (found[0] == expected[0]).all() and (found[1] == expected[1]).all()

    assert survives(everything)


def test_sorted_by_its_own_kernels(made):
    """From columns to sums, in two passes."""
    counts = {3: 90, 70: 1, 600: 40, 1999: 64, 0: 2}
    lists = Lists(counts, 2000, 16, gaps=30)
    expected = sums(made, lists)
    order = sort_pass(made, lists.column, BITS, sort_pass(made, lists.column, 0, None))
    lists.start, lists.order = starts_of(made, lists.column, order, 2000), order
    found = sums(made, lists)
    assert len(order) > BLOCK and (found[0] == expected[0]).all() and (found[1] == expected[1]).all()
    assert (numpy.flatnonzero(found[0].any(1)) == sorted(counts)).all()


@pytest.mark.parametrize("alignment", [16, 2])
def test_rows_without_a_gradient(folder, alignment):
    """Entries of dz 0, of either sign, add nothing, whatever their rows hold; NaN stays NaN in its column alone."""
    made = kernels(folder, kind="listed_weight", alignment=alignment)[0]
    lists = Lists({1: 3, 2: 63, 3: 64, 4: 200, 5: 90, 6: 7, 9: 1}, 12, 40)
    silent = lists.index[[0, 7, 50, 120, 203]]
    for i, row in enumerate(silent):
        of_row = numpy.flatnonzero(lists.index[lists.row] == row)
        lists.dz[of_row[lists.column[of_row] >= 0]] = 0 if i % 2 else -0.0
    expected = sums(made, lists, aligned=alignment == 16)
    assert numpy.isfinite(expected[0]).all()
    lists.hidden[silent] = numpy.array([NAN, INFINITY, -INFINITY, NAN, 1e38])[:, None]
    found = sums(made, lists, aligned=alignment == 16)
    assert (found[0] == expected[0]).all() and (found[1] == expected[1]).all()
    for v in (2, 5):
        at = lists.order[lists.start[v]]
        lists.dz[at] = NAN
    dw, db, _ = sums(made, lists, aligned=alignment == 16)
    assert (numpy.isnan(dw).all(1) == numpy.isin(numpy.arange(12), (2, 5))).all()
    assert (numpy.isnan(db) == numpy.isin(numpy.arange(12), (2, 5))).all()
    others = numpy.delete(numpy.arange(12), (2, 5))
    assert (dw[others] == expected[0][others]).all()


def test_an_infinite_row_that_counts(made):
    lists = Lists({1: 3, 4: 70}, 6, 16)
    for v in (1, 4):
        lists.hidden[lists.entries(v)[1][0], 5] = INFINITY
    dw = sums(made, lists)[0]
    assert (~numpy.isfinite(dw[[1, 4], 5])).all() and numpy.isfinite(numpy.delete(dw, 5, 1)).all()


@pytest.mark.parametrize("out", ["fp32", "bf16"])
def test_one_gradient_alone(made, out):
    """The same bits; what is not asked for stays as it is, and the other's add does not reach the bias."""
    lists = Lists(COUNTS, 200, 264)
    both = sums(made, lists, out)
    only_weight, only_bias = sums(made, lists, out, bias=False), sums(made, lists, out, weight=False)
    assert (only_weight[0] == both[0]).all() and (only_bias[1] == both[1]).all()
    assert numpy.isnan(wide(only_weight[1])).all() and numpy.isnan(wide(only_bias[0])).all()
    added = sums(made, lists, out, add=True, before=numpy.zeros((203, 264)))
    assert (added[0] == both[0]).all() and (added[1] == both[1]).all()


def test_nothing_listed(made):
    """Zeros, or what stood there to the bit; entries may all be without a column."""
    lists = Lists({}, 9, 24)
    lists.column, lists.row, lists.dz = i32([-1] * 70), i32([0] * 70), f32([NAN] * 70)
    lists.order, lists.start = i32(range(70)), i32([0] * 10)
    dw, db, _ = sums(made, lists)
    assert (dw == 0).all() and (db == 0).all()
    before = numpy.resize([NAN, -0.0, 1e-40, INFINITY], (12, 24))
    dw, db, kept = sums(made, lists, add=True, before=before)
    assert (dw.view(numpy.uint32) == kept.view(numpy.uint32)).all() and (db == 0).all()
    db = sums(made, lists, add=True, before=before, bias_before=before[:, 0])[1]
    assert (db.view(numpy.uint32) == f32(before[:9, 0]).view(numpy.uint32)).all()


def before_a_hole(words):
    """A copy that ends where memory does."""
    size = -(-words.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = mmap.mmap(-1, size + mmap.PAGESIZE)
    first = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    assert protect(ctypes.c_void_p(first + size), ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
    out = numpy.frombuffer(memory, words.dtype, words.size, size - words.nbytes).reshape(words.shape)
    out[:] = words
    return out


@pytest.mark.parametrize("alignment", [16, 2])
def test_nothing_behind_hidden_is_read(folder, alignment):
    """D is no multiple of a slice, and the last row ends where memory does. Another process tries."""
    made = kernels(folder, kind="listed_weight", alignment=alignment)[0]
    lists = Lists({1: 70, 3: 5}, 4, 72)
    last = lists.index[lists.row[lists.column >= 0]].max()
    hidden = before_a_hole(to_bf16(lists.hidden[:last + 1]))
    assert survives(lambda: sums(made, lists, aligned=alignment == 16, hidden=hidden))
