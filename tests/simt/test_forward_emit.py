"""forward_emit, sm_80's and Hopper's, on the CPU: partials have forward's bits, and what is listed is exactly what is
above the floors. Operands are small integers, so that raw scores are exact, and one fused multiply-add rounds once."""
import numpy
import pytest
from cpu_kernel import f32, folder, kernels, matrix_map, needs_emit, needs_llc  # noqa: F401
from flpgen_tool import from_bf16, to_bf16
from forward_case import CAP_IN, DEPTH, LOG2E, ROWS, VOCAB, Case, bits, run

pytestmark = [needs_llc, needs_emit]

NAN, INFINITY = numpy.nan, numpy.inf
UNTOUCHED = -7            # in lists
LOWEST = -2.0**30         # the lowest floor
ARCHES = ["sm_80", "sm_90a"]
HEADS = {"plain": {}, "entropy": {"entropy": 1}, "bias": {"entropy": 1, "bias": 1}}


class Whole(Case):
    """Integers from -3 to 3; scales of either sign, times `of`, two tiny; biases of -inf; a row of NaN."""

    def __init__(self, head, active, of=1.0):
        super().__init__(head, active)
        random = numpy.random.default_rng(11)
        self.hidden = to_bf16(random.integers(-3, 4, (ROWS, DEPTH)).astype(float))
        self.weight = to_bf16(random.integers(-3, 4, (VOCAB, DEPTH)).astype(float))
        if self.bias is not None:
            bias = random.integers(-9, 10, VOCAB).astype(float)
            bias[::97] = -INFINITY
            self.bias = to_bf16(bias)
        self.scale = f32(self.scale * of)
        self.scale[4::7] *= -1
        self.scale[[12, 40]] = 2.0**-30, -2.0**-40
        self.hidden[self.index[3]] = to_bf16(numpy.full(DEPTH, NAN))
        self.gathered[:active] = self.hidden[self.index]

    def above(self, floor):
        """t - floor (active, VOCAB), exact but for one rounding to fp32"""
        x = from_bf16(self.hidden[self.index]).astype(float) @ from_bf16(self.weight).astype(float).T
        if self.bias is not None:
            x += from_bf16(self.bias)
        return f32(self.scale[:, None].astype(float) * x - floor[:self.active, None].astype(float))


def floors_of(case):
    """By active row, again and again: above none, all, a tenth, three, none at all, the largest as rounded, half."""
    with numpy.errstate(invalid="ignore"):
        t = case.above(numpy.zeros(ROWS)).astype(float)
    t = numpy.where(numpy.isnan(t), 0, t)
    ordered = numpy.sort(numpy.where(numpy.isfinite(t), t, numpy.nanmin(t[numpy.isfinite(t)])), 1)
    floor = numpy.full(ROWS, NAN)
    for a in range(case.active):
        floor[a] = [ordered[a, -1] + 1, LOWEST, ordered[a, -VOCAB // 10], ordered[a, -3], INFINITY, ordered[a, -1],
                    ordered[a, VOCAB // 2]][a % 7]
    floor[9] = NAN
    return f32(floor)


def emit(case, arch, folder, floor, capacity, chunks=((0, ROWS),), **tune):
    """(part, zy) of forward, of forward_emit, and counts, columns and scores of the lists. chunks: of rows, a launch
    each"""
    plain, plain_tile = kernels(folder, kind="forward", arch=arch, **case.head)
    emitting, tile = kernels(folder, kind="forward_emit", arch=arch, **case.head, **tune)
    count, column = numpy.zeros(ROWS, numpy.int32), numpy.full((ROWS, capacity), UNTOUCHED, numpy.int32)
    score = numpy.full((ROWS, capacity), 7.5, numpy.float32)
    lists = {"floor": floor, "emit_count": count, "emit_column": column, "emit_score": score, "emit_capacity": capacity}
    found = []
    for begin, end in chunks:
        both = []
        for made, shape, name, more in ((plain, plain_tile, "forward", {}), (emitting, tile, "forward_emit", lists)):
            maps = {"gathered_map": matrix_map(case.gathered[begin:], shape["rows"])} if shape["cluster"] else {}
            both.append(run(made, shape, case, name, VOCAB, row_begin=begin, row_end=end, **maps, **more))
        found.append(both)
    return found, count, column, score


def listed(count, column, score, a):
    """What stands in the list of a row, as a dictionary."""
    length = min(count[a], column.shape[1])
    assert (column[a, length:] == UNTOUCHED).all() and (score[a, length:] == 7.5).all()
    pairs = dict(zip(column[a, :length].tolist(), score[a, :length].tolist()))
    assert len(pairs) == length, "a column stands twice"
    return pairs


def hold(case, floor, capacity, found, count, column, score, error=0.0, margin=0.0):
    """error: of scores that a softcap rounds; margin: columns nearer to the floor may be listed or not"""
    for plain, emitting in found:
        for one, other in zip(plain, emitting):
            assert (bits(one) == bits(other)).all()
    with numpy.errstate(invalid="ignore"):
        above = case.above(floor)
    expected = (above > 0).sum(1)
    assert (column[case.active:] == UNTOUCHED).all() and (count[case.active:] == 0).all()
    for a in range(case.active):
        pairs = listed(count, column, score, a)
        sure, maybe = (numpy.flatnonzero(above[a] > limit) for limit in (margin, -margin))
        assert count[a] == expected[a] if margin == 0 else len(sure) <= count[a] <= len(maybe)
        assert set(pairs) <= set(maybe) and (count[a] > capacity or set(sure) <= set(pairs))
        for v, value in pairs.items():
            assert value == above[a, v] or abs(value - above[a, v]) <= error
    return count


@pytest.mark.parametrize("head,active", [("plain", ROWS), ("entropy", 61), ("bias", ROWS)])
@pytest.mark.parametrize("arch", ARCHES)
def test_lists_what_is_above_the_floors(folder, arch, head, active):
    case = Whole(HEADS[head], active)
    floor = floors_of(case)
    count = hold(case, floor, 300, *emit(case, arch, folder, floor, 300))
    assert count[0] == 0 and count[3] == 0 and count[9] == 0, "none; a row of NaN; a floor of NaN"
    assert count[8] > VOCAB * 0.9 and 100 < count[2] < 200 and count[5] <= 1


@pytest.mark.parametrize("arch", ARCHES)
def test_scores_near_10000_keep_their_digits(folder, arch):
    """A column is listed whose rounded score is the floor, and its exact one above it."""
    case = Whole(HEADS["entropy"], 61, of=37.0)
    exact = case.above(numpy.zeros(ROWS)).astype(float)
    with numpy.errstate(invalid="ignore"):
        x = from_bf16(case.hidden[case.index]).astype(float) @ from_bf16(case.weight).astype(float).T
        t = case.scale[:, None].astype(float) * x
        floor = f32(numpy.full(ROWS, NAN))
        floor[:61] = f32(numpy.nanmax(numpy.where(numpy.isnan(t), -1, t), 1))
    count = hold(case, floor, 8, *emit(case, arch, folder, floor, 8))
    assert numpy.nanmax(exact) > 5000 and 5 < (count > 0).sum() < 56


@pytest.mark.parametrize("arch", ARCHES)
def test_counts_go_on_beyond_the_capacity(folder, arch):
    """Row 2's list just fits, and then lacks a place."""
    case = Whole(HEADS["plain"], ROWS)
    floor = floors_of(case)
    with numpy.errstate(invalid="ignore"):
        fits = int((case.above(floor)[2] > 0).sum())
    for capacity in (fits, fits - 1):
        assert hold(case, floor, capacity, *emit(case, arch, folder, floor, capacity))[2] == fits


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("active", [ROWS, 61])
def test_chunks_of_rows(folder, arch, active):
    case = Whole(HEADS["entropy"], active)
    floor = floors_of(case)
    hold(case, floor, 300, *emit(case, arch, folder, floor, 300, chunks=((0, 33), (33, 64), (64, ROWS))))


@pytest.mark.parametrize("tune", ["cooperative,256x192,stages=3", "ping-pong,128x128,cluster=1"])
def test_hopper_other_tilings(folder, tune):
    case = Whole(HEADS["entropy"], ROWS - 3)
    floor = floors_of(case)
    hold(case, floor, 300, *emit(case, "sm_90a", folder, floor, 300, tune=tune))


def test_sorted_lists_are_the_same_everywhere(folder):
    """Of each architecture, tiling and chunks of rows."""
    case = Whole(HEADS["plain"], 61)
    floor, lists = floors_of(case), []
    sort = kernels(folder, kind="emitted")[0]["emit_sort"]
    for arch, tune in (("sm_80", {}), ("sm_90a", {}), ("sm_90a", {"tune": "cooperative,128x64"})):
        chunks = ((0, ROWS),) if tune else ((0, 9), (9, ROWS))
        _, count, column, score = emit(case, arch, folder, floor, 300, chunks, **tune)
        sort.named(ROWS, count=case.count, row_end=ROWS, emit_count=count, emit_column=column, emit_score=score,
                   emit_capacity=300)
        whole = count <= 300
        lists.append((count, column[whole], score[whole]))
    assert 40 < whole.sum() and 100 < lists[0][0][2] <= 300
    assert all((numpy.diff(column[:length]) > 0).all() for length, column in zip(count[whole], column[whole]))
    for other in lists[1:]:
        assert all(mine.tobytes() == its.tobytes() for mine, its in zip(lists[0], other))


class Capped(Case):
    """Scores of a softcap, of either sign."""

    def __init__(self, head, active):
        super().__init__(head, active)
        self.scale[4::7] *= -1

    def above(self, floor):
        return self.scores()[0] - floor[:self.active, None].astype(float)


@pytest.mark.parametrize("arch", ARCHES)
def test_softcap(folder, arch):
    case = Capped({"entropy": 1, "bias": 1, "softcap": 1}, 61)
    floor = floors_of(case)
    floor[1::7] = -100
    size = LOG2E * 2 / CAP_IN                        # of the largest |t|
    count = hold(case, floor, 300, *emit(case, arch, folder, floor, 300), error=2**-21 * size, margin=2**-20 * size)
    assert count[8] == VOCAB and count[0] == 0 and 100 < count[2] < 200 and (case.scale < 0).any()
