"""The kernels of listed columns on the CPU, against NumPy in double and the portable forward's bits."""
import numpy
import pytest
from cpu_kernel import (
    INFINITY, LOG2E, LOWEST, NAN, bits, f32, i32, kernels, matrix, needs_emit, needs_llc, stored, wide)

pytestmark = [needs_llc, needs_emit]

UNTOUCHED = 7.5             # what outputs hold before
WARPS = 8                   # rows of a CTA of list_reduce and list_dz


class Lists:
    """Rows with lists of ids, and what list_sort is called with. lists: one a row of the call; index: the active ones;
    target: of each active row, in this shard, or -1"""

    def __init__(self, lists, index, target, valid, offset=0, total=None, ids=numpy.int64):
        self.lists, self.index, self.target = [numpy.asarray(ids_of, ids) for ids_of in lists], i32(index), i32(target)
        self.offsets = numpy.cumsum([0, *map(len, lists)]).astype(numpy.int64)
        self.ids = numpy.concatenate([*self.lists, numpy.zeros(1, ids)])  # one more, so that there is always a pointer
        self.count, self.active = int(self.offsets[-1]), len(self.index)
        self.valid, self.offset, self.total = valid, offset, total or offset + valid
        self.column, self.row = i32(numpy.full(self.count + 1, -1)), i32(numpy.full(self.count + 1, -7))
        self.length, self.of_target = i32([-7] * (self.active + 1)), i32([-7] * (self.active + 1))
        self.state, self.errors = i32([0]), i32([0])
        self.row_class = numpy.zeros(len(self.lists) + 1, numpy.uint8)  # 0: active

    def places(self, a):
        """The entries of active row a, after list_sort."""
        first = self.offsets[self.index[a]]
        return numpy.arange(first, first + max(self.length[a], 0))

    def check(self, made):
        made["list_check"].named(-(-len(self.lists) // 256), offsets=self.offsets, n=len(self.lists),
                                 list_count=self.count, list_state=self.state)

    def sort(self, made, **more):
        made["list_sort"].named(
            self.active + 1, offsets=self.offsets, ids=self.ids, vocab_offset=self.offset, vocab_valid=self.valid,
            vocab_total=self.total, index=self.index, local_target=self.target, count=i32([self.active]),
            list_state=self.state, list_column=self.column, list_length=self.length, list_target=self.of_target,
            row_class=self.row_class, **{"list_row": self.row, "error_word": self.errors, **more})

    def is_bad(self, a):
        row = self.lists[self.index[a]].astype(object)
        outside = any(not 0 <= v < self.total for v in row)
        return outside or (self.target[a] >= 0 and self.target[a] + self.offset not in row)

    def hold(self):
        """Everything that abi.h says of list_sort."""
        column, row = numpy.full(self.count + 1, -1), numpy.full(self.count + 1, -7)
        for a, r in enumerate(self.index):
            assert self.row_class[r] == (2 if self.is_bad(a) else 0)  # ROW_BAD
            if self.is_bad(a):
                assert (self.length[a], self.of_target[a]) == (-1, -1)
                continue
            here = numpy.unique(self.lists[r].astype(numpy.int64)) - self.offset
            here = here[(here >= 0) & (here < self.valid)]
            first = self.offsets[r]
            column[first:first + len(here)], row[first:first + len(here)] = here, a
            assert self.length[a] == len(here)
            expected = -1 if self.target[a] < 0 else first + list(here).index(self.target[a])
            assert self.of_target[a] == expected
        assert (self.column == column).all() and (self.row == row).all()
        assert (self.length[self.active], self.of_target[self.active]) == (-7, -7)
        assert self.errors[0] == sum(self.is_bad(a) for a in range(self.active))


def some_lists(random, vocab):
    """Sorted, unsorted with duplicates, all of V, one id, 17 ids, none."""
    some = random.permutation(vocab)
    return [numpy.sort(some[:40]), numpy.concatenate([some[:70], some[20:50], some[:5]]), random.permutation(vocab),
            some[3:4], some[40:57], some[:0]]


def one_of(random, row):
    return row[random.integers(len(row))] if len(row) else -1


@pytest.fixture(scope="module", params=["int64", "int32"])
def sorting(folder, request):
    """The module for ids of either width, and that width."""
    return kernels(folder, kind="listed", target_dtype=request.param)[0], numpy.dtype(request.param)


def test_sort(sorting):
    random = numpy.random.default_rng(1)
    lists = some_lists(random, 300)
    index = [0, 1, 2, 4, 5]
    case = Lists(lists, index, [one_of(random, lists[r]) for r in index], 300, ids=sorting[1])
    case.sort(sorting[0])
    case.hold()
    assert case.errors[0] == 0
    case.row[:] = -7
    case.sort(sorting[0], list_row=None)
    assert (case.row == -7).all()


def test_sort_of_a_shard(sorting):
    """Ids of other shards are not its own; a target there needs no entry. The last columns of the shard are padding."""
    random = numpy.random.default_rng(2)
    lists = [*some_lists(random, 1000), numpy.arange(700, 1000)]
    case = Lists(lists, range(7), [-1, -1, 77, -1, -1, -1, -1], 250, 400, 1000, sorting[1])
    case.target[1] = next(v - 400 for v in lists[1] if 400 <= v < 650)
    case.sort(sorting[0])
    case.hold()
    assert case.errors[0] == 0 and case.length[6] == 0 < case.length[1]


def test_sort_of_many_windows(sorting):
    """Three windows of columns; ids at their edges."""
    vocab, window = 600000, 262144
    edges = [0, 31, 32, window - 1, window, window + 1, 2 * window - 1, 2 * window, vocab - 1]
    random = numpy.random.default_rng(3)
    first = random.permutation(numpy.concatenate([edges, edges, random.integers(0, vocab, 300)]))
    lists = [first, [vocab - 1], [window]]
    case = Lists(lists, [0, 1, 2], [window, vocab - 1, window], vocab, ids=sorting[1])
    case.sort(sorting[0])
    case.hold()
    assert case.errors[0] == 0


def test_sort_refuses_ids_and_targets(sorting):
    """An id below 0, at the vocabulary's end, beyond 32 bits; a list that lacks its target, an empty one."""
    made, ids = sorting
    lists = [[5, -1, 7], [5, 300], [5, 7, 8], [5, 7], [], [5, 6]]
    if ids == numpy.int64:
        lists += [[5, 2**32 + 6], [5, -2**63], [5, 2**63 - 1], [5, -2**32 + 6], [5, -2**63 + 4]]
    case = Lists(lists, range(len(lists)), [5, 5, 5, 6, 6, 6] + [5] * (len(lists) - 6), 300, ids=ids)
    case.sort(made)
    case.hold()
    assert case.errors[0] == len(lists) - 2 and list(case.length[[2, 5]]) == [3, 2]
    case.sort(made, error_word=None)
    assert case.errors[0] == len(lists) - 2


def test_a_difference_that_wraps_is_no_target(sorting):
    """-2^63 less the shard's first column is positive in 64 bits."""
    if sorting[1] == numpy.int32:
        pytest.skip("ids of 32 bits do not wrap")
    case = Lists([[-2**63, 405], [-2**63 + 410, 405]], [0, 1], [5, 5], 250, 400, 1000)
    case.sort(sorting[0])
    case.hold()
    assert case.errors[0] == 2


@pytest.mark.parametrize("offsets,bad", [((0, 3, 2, 4), 1), ((-1, 2, 3, 4), 1), ((0, 2, 3, 5), 1), ((0, -3, 2, 3), 2),
                                         ((2**40, 2**40, 2**40 + 1, 3), 3), ((0, 2, 2, 4), 0)])
def test_offsets(sorting, offsets, bad):
    """The caller's data: rows are counted, and no row has a list then."""
    case = Lists([[5, 7], [6], [8]], [0, 1, 2], [5, 6, 8], 300, ids=sorting[1])
    case.offsets, case.count = numpy.array(offsets, numpy.int64), 4
    case.check(sorting[0])
    assert case.state[0] == bad
    if bad:
        case.sort(sorting[0])
        assert (case.length[:3] == -1).all() and (case.of_target[:3] == -1).all() and case.errors[0] == 3
        assert (case.column == -1).all()


class Head:
    """Operands of a head and sorted lists over its columns. unit: softcap in place of 1; alignment: as in the key"""

    def __init__(self, folder, dtype="bf16", alignment=16, depth=72, bias=False, cap_in=0.0, seed=5, lists=None):
        random = numpy.random.default_rng(seed)
        self.folder, self.dtype, self.depth, self.cap_in, self.vocab = folder, dtype, depth, cap_in, 100
        self.alignment = alignment if dtype != "fp32" else max(alignment, 4)
        self.made = kernels(folder, kind="listed", dtype=dtype, alignment=self.alignment)[0]
        lists = lists or some_lists(random, self.vocab)
        self.hidden, self.hidden_stride, self.h = matrix(dtype, random.standard_normal((len(lists), depth)), alignment)
        self.weight, self.weight_stride, self.w = matrix(dtype, random.standard_normal((self.vocab, depth)), alignment)
        self.bias = stored(dtype, random.standard_normal(self.vocab)) if bias else None
        target = [one_of(random, row) for row in lists]
        self.lists = Lists(lists, range(len(lists)), target, self.vocab)
        self.scale = f32(LOG2E * random.uniform(0.5, 2, len(lists)) * (1 / cap_in if cap_in else 1))
        self.lists.sort(self.made)
        self.entries = [self.lists.places(a) for a in range(self.active)]
        self.score, self.zy = f32(numpy.full(self.lists.count + 1, UNTOUCHED)), f32(numpy.full(self.active, UNTOUCHED))

    @property
    def active(self):
        return self.lists.active

    def common(self):
        return {"offsets": self.lists.offsets, "index": self.lists.index, "count": i32([self.active]),
                "list_length": self.lists.length, "list_score": self.score}

    def product(self):
        return {"weight": self.weight, "weight_stride": self.weight_stride, "depth": self.depth,
                "list_column": self.lists.column}

    def make_scores(self):
        common = self.common()
        self.made["list_scores"].named(
            self.active + 1, hidden=self.hidden, hidden_stride=self.hidden_stride, bias=self.bias, zy=self.zy,
            list_target=self.lists.of_target, cap_in=self.cap_in, capped=int(self.cap_in > 0), **self.product(),
            **common)

    def forward_scores(self):
        """What forward has as raw score of each entry, its target: a row of the call for each entry."""
        rows = i32(numpy.concatenate([numpy.full(len(e), r) for r, e in zip(self.lists.index, self.entries)]))
        columns = i32(numpy.concatenate([self.lists.column[e] for e in self.entries]))
        made, tile = kernels(self.folder, kind="forward", dtype=self.dtype, alignment=self.alignment,
                             bias=int(self.bias is not None))
        n, zy = len(rows), f32(numpy.full(len(rows), UNTOUCHED))
        bands, groups = -(-n // tile["rows"]), -(-self.vocab // tile["unit_columns"])
        made["forward"].named(
            bands * groups, hidden=self.hidden, hidden_stride=self.hidden_stride, weight=self.weight,
            weight_stride=self.weight_stride, bias=self.bias, index=rows, local_target=columns,
            scale=f32(numpy.ones(n)), count=i32([n]), depth=self.depth, vocab_valid=self.vocab, row_end=n, bands=bands,
            groups=groups, part=f32(numpy.zeros((groups, 3, n))), capacity=n, zy=zy)
        return zy

    def x(self, a):
        """Raw scores of a row's entries in double."""
        column = self.lists.column[self.entries[a]]
        x = self.w[column] @ self.h[self.lists.index[a]]
        return x if self.bias is None else x + wide(self.bias)[column]

    def reduce(self):
        part = f32(numpy.full((3, self.active + 2), UNTOUCHED))
        self.made["list_reduce"].named(-(-self.active // WARPS) + 1, scale=self.scale, part=part,
                                       capacity=self.active + 2, **self.common())
        return part


@pytest.mark.parametrize("alignment", [16, 2])
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("depth,bias,cap_in", [(72, True, 0), (8, True, 0.2), (328, False, 0)])
def test_scores_have_the_bits_of_forward(folder, dtype, alignment, depth, bias, cap_in):
    head = Head(folder, dtype, alignment, depth, bias, cap_in, seed=0)
    head.make_scores()
    forward, at = head.forward_scores(), 0
    assert not numpy.isnan(forward).any()
    touched = numpy.concatenate(head.entries)
    assert (numpy.delete(head.score, touched) == UNTOUCHED).all()
    for a, entries in enumerate(head.entries):
        raw = forward[at:at + len(entries)]
        at += len(entries)
        assert numpy.abs(raw - head.x(a)).max(initial=0) < 2e-5 * depth**0.5
        found = head.score[entries]
        if cap_in:
            assert numpy.abs(found - numpy.tanh(cap_in * raw.astype(float))).max(initial=0) < 1e-6
        else:
            assert (bits(found) == bits(raw)).all()
        if len(entries):
            assert bits(head.zy[a:a + 1]) == bits(raw[head.lists.of_target[a] - entries[0]:][:1])
    assert head.zy[5] == UNTOUCHED and len(head.entries[5]) == 0


@pytest.mark.parametrize("alignment", [16, 2])
def test_scores_of_infinite_weights(folder, alignment):
    """What stands in for columns of D that do not exist is zero in both operands: 0 times an infinity is NaN."""
    head = Head(folder, "bf16", alignment)
    head.weight[::3, 64] = 0x7F80             # D is 72: the last 8 columns are a stage of 32 that is not whole
    head.make_scores()
    forward, found = head.forward_scores(), head.score[numpy.concatenate(head.entries)]
    assert numpy.isinf(forward).sum() > 50 and not numpy.isnan(forward).any() and (bits(found) == bits(forward)).all()


def test_scores_of_bad_rows(folder):
    """No scores, and NaN in the place of the target's."""
    head = Head(folder, lists=[[1, 2, 300], [4, 5], [6, 7, 8]])
    head.make_scores()
    assert list(head.lists.length[:3]) == [-1, 2, 3]
    assert numpy.isnan(head.zy[0]) and not numpy.isnan(head.zy[1:]).any()
    assert (head.score[:3] == UNTOUCHED).all() and not (head.score[3:8] == UNTOUCHED).any()
    part = head.reduce()
    assert numpy.isnan(part[:, 0]).all() and not numpy.isnan(part[:, 1:3]).any()


def test_order_and_duplicates_change_no_bit(folder):
    random = numpy.random.default_rng(8)
    row = random.permutation(100)[:60]
    twice = random.permutation(numpy.concatenate([row, row[:30]]))
    found = []
    for lists in ([row[:10], numpy.sort(row), row[:1]], [twice[:3], twice, twice[:70]]):
        head = Head(folder, lists=lists)
        head.scale[:] = 1.3
        head.make_scores()
        found.append((bits(head.score[head.entries[1]]), bits(head.reduce()[:, 1]), head.lists.column[head.entries[1]]))
    assert all((first == second).all() for first, second in zip(*found))


def with_scores(folder, scores, scale):
    """A head whose rows list columns 0, 1, 2 ..., with these in place of scores."""
    head = Head(folder, lists=[numpy.arange(len(row)) for row in scores])
    for entries, row in zip(head.entries, scores):
        head.score[entries] = row
    head.scale[:] = scale
    return head


@pytest.mark.parametrize("scale", [1.4, -0.7, 1e-30, 3e5])
def test_reduce(folder, scale):
    random = numpy.random.default_rng(9)
    scores = [f32(random.standard_normal(length) * 20 + 1000) for length in (90, 33, 32, 1, 100, 7, 64, 2, 5)]
    scores[4][::3] = -INFINITY if scale > 0 else INFINITY
    head = with_scores(folder, scores, scale)
    m, s, q = head.reduce()[:, :9].astype(float)
    for a, row in enumerate(scores):
        t = row.astype(float) * float(numpy.float32(scale))
        assert m[a] == numpy.float32(t.max())
        u = t - m[a]
        e = numpy.exp2(u)
        assert abs(s[a] / e.sum() - 1) < 2e-6
        weighted = numpy.where(e == 0, 0, e * numpy.where(e == 0, 0, u)).sum()
        assert abs(q[a] - weighted) <= 2e-6 * numpy.abs(e * numpy.where(e == 0, 0, u)).sum()


def test_reduce_of_what_is_no_number(folder):
    """NaN, an infinity, nothing above -inf, and no entries at all."""
    scores = [f32([1, NAN, 2]), f32([1, INFINITY]), f32([-INFINITY] * 40), f32([]), f32([3])]
    part = with_scores(folder, scores, 1.0).reduce()
    assert numpy.isnan(part[1, :2]).all()
    assert (part[:, 2] == [LOWEST, 0, 0]).all() and (part[:, 3] == [LOWEST, 0, 0]).all()
    assert (part[:, 4] == [3, 1, 0]).all() and (part[:, 5:] == UNTOUCHED).all()
