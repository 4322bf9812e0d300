"""forward_emit, sm_80's and Hopper's, on the CPU: partials have forward's bits, and what is listed is exactly what is
above the floors. Operands are small integers, so that raw scores are exact, and one fused multiply-add rounds once."""
import numpy
import pytest
from cpu_kernel import INFINITY, LOWEST, NAN, f32, kernels, needs_emit, needs_llc
from flpgen_tool import to_bf16
from forward_case import CAP_IN, DEPTH, LOG2E, ROWS, VOCAB, Case, beside_forward, bits

pytestmark = [needs_llc, needs_emit]

UNTOUCHED = -7            # in lists
SHARES = numpy.array([8, 5, 5, 4, 4, 2, 2, 2])        # places of each bin, of 32
WIDTH, BINS = 3, len(SHARES)
CROWD = 5                 # columns of one thread in a block of 64 that may make a bin overflow
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
        return f32(self.scale[:, None].astype(float) * self.raw() - floor[:self.active, None].astype(float))


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


def emit(case, arch, folder, floor, capacity, chunks=((0, ROWS),), threshold=-2.0**20, gate=None, **tune):
    """(part, zy) of forward, of forward_emit, and counts by bin and entries of the lists."""
    count, entry = numpy.zeros((ROWS, BINS), numpy.int32), numpy.full((ROWS, capacity, 2), UNTOUCHED, numpy.int32)
    gate = numpy.zeros(ROWS, numpy.float32) if gate is None else gate
    lists = {"floor": floor, "emit_gate": gate, "emit_count": count, "emit_entry": entry,
             "emit_capacity": capacity, "log2_threshold": threshold}
    return beside_forward(folder, arch, case, "forward_emit", lists, chunks, **tune), count, entry


def bins_of(score):
    """Which bin a score above the floor goes to."""
    return numpy.minimum(f32(score) * numpy.float32(1 / WIDTH), BINS - 1).astype(int)


def listed(count, entry, a):
    """What stands in each bin of a row, as dictionaries, and whether the bin overflowed."""
    places, bins = SHARES * entry.shape[1] // 32, []
    over = count[a] > places                           # as a rule full; a crowded one need not be
    for b, first in enumerate(numpy.cumsum(places) - places):
        mine = entry[a, first:first + places[b]]
        length = (mine[:, 0] != UNTOUCHED).sum()
        assert (mine[length:] == UNTOUCHED).all() and (over[b] or length == count[a, b])
        bins.append(dict(zip(mine[:length, 0].tolist(), mine[:length, 1].copy().view(numpy.float32).tolist())))
        assert len(bins[b]) == length, "a column stands twice"
    return bins, over


def crowd_of(columns):
    """How many of these columns one thread has of a block, at most."""
    columns = numpy.asarray(columns)
    return numpy.unique(columns // 64 * 4 + columns % 8 // 2, return_counts=True)[1].max(initial=0)


def hold(case, floor, capacity, found, count, entry, error=0.0, margin=0.0):
    """Counts of the rows, by bin. error: of scores that a softcap rounds; margin: columns nearer to the floor may be
    listed or not, and those nearer to the edge of a bin be in either"""
    for plain, emitting in found:
        for one, other in zip(plain, emitting):
            assert (bits(one) == bits(other)).all()
    with numpy.errstate(invalid="ignore"):
        above = case.above(floor)
    assert (entry[case.active:] == UNTOUCHED).all() and (count[case.active:] == 0).all()
    for a in range(case.active):
        bins, over = listed(count, entry, a)
        lost = BINS - numpy.argmax(over[::-1]) if over.any() else 0      # bins up to the highest that overflowed
        for b in range(lost, BINS):
            sure = [v for v in numpy.flatnonzero(above[a] > margin)
                    if bins_of(above[a, v] - margin) == bins_of(above[a, v] + margin) == b]
            maybe = [v for v in numpy.flatnonzero(above[a] > -margin)
                     if bins_of(max(above[a, v] - margin, 0)) <= b <= bins_of(above[a, v] + margin)]
            assert set(sure) <= set(bins[b]) <= set(maybe) and len(sure) <= count[a, b] <= len(maybe)
        if lost:
            most, places = numpy.flatnonzero(above[a] > -margin), SHARES[lost - 1] * capacity // 32
            most = most[bins_of(above[a, most] + margin) >= lost - 1]
            crowd = crowd_of(most)
            assert len(most) > places or crowd >= CROWD and VOCAB // 128 * crowd > places
        for pairs in bins:
            for v, value in pairs.items():
                assert above[a, v] > -margin and (value == above[a, v] or abs(value - above[a, v]) <= error)
    return count


@pytest.mark.parametrize("head,active", [("plain", ROWS), ("entropy", 61), ("bias", ROWS)])
@pytest.mark.parametrize("arch", ARCHES)
def test_lists_what_is_above_the_floors(folder, arch, head, active):
    case = Whole(HEADS[head], active)
    floor = floors_of(case)
    count = hold(case, floor, 1024, *emit(case, arch, folder, floor, 1024))
    total = count.sum(1)
    assert total[0] == 0 and total[3] == 0 and total[9] == 0, "none; a row of NaN; a floor of NaN"
    assert count[8, -1] > 20 and 100 < total[2] < 200 and total[5] <= 1


@pytest.mark.parametrize("arch", ARCHES)
def test_scores_near_10000_keep_their_digits(folder, arch):
    """A column is listed whose rounded score is the floor, and its exact one above it."""
    case = Whole(HEADS["entropy"], 61, of=37.0)
    exact = case.above(numpy.zeros(ROWS)).astype(float)
    with numpy.errstate(invalid="ignore"):
        t = case.scale[:, None].astype(float) * case.raw()
        floor = f32(numpy.full(ROWS, NAN))
        floor[:61] = f32(numpy.nanmax(numpy.where(numpy.isnan(t), -1, t), 1))
    count = hold(case, floor, 32, *emit(case, arch, folder, floor, 32))
    assert numpy.nanmax(exact) > 5000 and 5 < (count > 0).any(1).sum() < 56


@pytest.mark.parametrize("arch", ARCHES)
def test_bins_above_one_that_overflows_are_whole(folder, arch):
    """Fewer places: what is above a bin that overflows still stands."""
    case = Whole(HEADS["plain"], ROWS)
    with numpy.errstate(invalid="ignore"):
        t = case.above(numpy.zeros(ROWS)).astype(float)
    floor, whole = f32(t.max(1) - 24), []
    for capacity in (1024, 32):
        count = hold(case, floor, capacity, *emit(case, arch, folder, floor, capacity))
        over = count > SHARES * capacity // 32
        above = numpy.cumsum(over[:, ::-1], 1)[:, ::-1] == 0
        whole.append((count * (above & over.any(1)[:, None])).sum())
    assert whole[0] < whole[1] and whole[1] > 10


@pytest.mark.long
@pytest.mark.parametrize("arch", ARCHES)
def test_a_column_on_the_edge_of_a_bin_that_is_lost(folder, arch):
    """It is in the bin above, however late it comes."""
    case = Whole(HEADS["plain"], ROWS)
    case.scale[:] = 0.125
    t = case.above(numpy.zeros(ROWS))
    floor = numpy.floor(t.max(1)) - numpy.float32(18)
    count = hold(case, floor, 32, *emit(case, arch, folder, floor, 32))
    over = count > SHARES
    lost = numpy.where(over.any(1), BINS - numpy.argmax(over[:, ::-1], 1), 0)
    assert ((case.above(floor) == WIDTH * lost[:, None]) & (lost > 0)[:, None]).sum() > 10


@pytest.mark.parametrize("arch", ARCHES)
def test_flat_rows_stop_counting(folder, arch):
    """Every column of a row with the lowest floor is above it, in its last bin: few are counted."""
    case = Whole(HEADS["plain"], ROWS)
    floor = f32(numpy.full(ROWS, LOWEST))
    count = hold(case, floor, 32, *emit(case, arch, folder, floor, 32))
    kept = numpy.arange(ROWS) != 3                     # the row of NaN
    assert (count[kept, -1] > 2).all() and count[kept].sum(1).mean() < VOCAB / 2


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("active", [ROWS, 61])
def test_chunks_of_rows(folder, arch, active):
    case = Whole(HEADS["entropy"], active)
    floor = floors_of(case)
    hold(case, floor, 320, *emit(case, arch, folder, floor, 320, chunks=((0, 33), (33, 64), (64, ROWS))))


@pytest.mark.parametrize("tune", ["cooperative,256x192,stages=3", "ping-pong,128x128,cluster=1"])
def test_hopper_other_tilings(folder, tune):
    case = Whole(HEADS["entropy"], ROWS - 3)
    floor = floors_of(case)
    hold(case, floor, 320, *emit(case, "sm_90a", folder, floor, 320, tune=tune))


def partial_of(case):
    """(ROWS, 4): what forward sums of rows, by row: the largest t, Σ 2^(t - it)"""
    with numpy.errstate(invalid="ignore"):
        t = case.above(numpy.zeros(ROWS)).astype(float)
    partial = numpy.zeros((ROWS, 4), numpy.float32)
    partial[case.index, 0] = t.max(1)
    partial[case.index, 1] = numpy.exp2(t - t.max(1)[:, None]).sum(1)
    return partial


@pytest.mark.parametrize("arch,columns", [("sm_80", 3072), ("sm_90a", 768)])
def test_gates_rise_by_what_leaves_have_of_the_lse(folder, arch, columns):
    """To the bin of the largest part plus the threshold."""
    case, threshold, gate = Whole(HEADS["plain"], 61), -4.0, numpy.zeros(ROWS, numpy.float32)
    case.scale = f32(numpy.abs(case.scale) / 8)
    t = case.above(numpy.zeros(ROWS)).astype(float)
    lse = [numpy.log2(numpy.exp2(t[:, begin:begin + columns]).sum(1)) for begin in range(0, VOCAB, columns)]
    first = numpy.arange(61) % BINS                    # the bin of the largest; 1 above its lower edge
    floor = numpy.full(ROWS, NAN, numpy.float32)
    floor[:61] = numpy.max(lse, 0) + threshold - 3 * first - 1
    emit(case, arch, folder, floor, 1024, threshold=threshold, gate=gate)
    assert numpy.isnan(t[3]).any() and gate[3] == 0 and (gate[61:] == 0).all()
    expected = WIDTH * first
    alive = numpy.arange(61) != 3
    assert (numpy.abs(gate[:61] - expected)[alive] <= 1e-4).all() and (gate[:61] <= expected).all()


@pytest.mark.parametrize("arch", ARCHES)
def test_what_is_below_a_gate_is_not_listed(folder, arch):
    """All that is above is, in whole bins; a gate of +inf leaves nothing; gates never fall."""
    case = Whole(HEADS["plain"], ROWS)
    t = case.above(numpy.zeros(ROWS))
    floor = f32(numpy.floor(numpy.nan_to_num(t.max(1))) - 24)
    first = numpy.arange(ROWS) % (BINS + 1)
    gate = f32(numpy.where(first < BINS, first * WIDTH * (1 - 2.0**-20), INFINITY))
    before = gate.copy()
    _, count, entry = emit(case, arch, folder, floor, 1024, gate=gate)
    above = case.above(floor)
    for a in range(ROWS):
        bins, over = listed(count, entry, a)
        assert gate[a] >= before[a] and not count[a, :first[a]].any()
        for b in range(BINS - numpy.argmax(over[::-1]) if over.any() else first[a], BINS):
            assert set(bins[b]) == {v for v in numpy.flatnonzero(above[a] > 0) if bins_of(above[a, v]) == b}
    assert count.sum() > 100


@pytest.mark.parametrize("threshold", [-2.0**20, -6.0])
def test_sorted_lists_are_the_same_everywhere(folder, threshold):
    """Of each architecture, tiling and chunks of rows."""
    case = Whole(HEADS["plain"], 61)
    floor, lists, partial = floors_of(case), [], partial_of(case)
    sort = kernels(folder, kind="emitted")[0]["emit_sort"]
    for arch, tune in (("sm_80", {}), ("sm_90a", {}), ("sm_90a", {"tune": "cooperative,128x64"})):
        chunks = ((0, ROWS),) if tune else ((0, 9), (9, ROWS))
        _, words, entry = emit(case, arch, folder, floor, 1024, chunks, threshold, **tune)
        found, floors = numpy.zeros(ROWS, numpy.int32), floor.copy()
        column, score = numpy.zeros((ROWS, 1024), numpy.int32), numpy.zeros((ROWS, 1024), numpy.float32)
        sort.named(ROWS, count=case.count, index=case.index, partial=partial, log2_threshold=threshold, floor=floor,
                   emit_count=words, emit_entry=entry, emit_capacity=1024, tail_floor=floors,
                   tail_found=found, tail_column=column, tail_score=score)
        lengths = numpy.where(found[:61] > 1024, 0, found[:61])
        lists.append([(floors[a].tobytes(), column[a, :length].tobytes(), score[a, :length].tobytes())
                      for a, length in enumerate(lengths)])
        for a, length in enumerate(lengths):
            assert (numpy.diff(column[a, :length]) > 0).all() and (score[a, :length] >= 0).all()
            assert floors[a] == floor[a] or length < 1024
    assert 10 < (lengths > 0).sum() < 61 and (40 if threshold > -10 else 100) < lengths.max() <= 200
    assert lists[0] == lists[1] == lists[2]


class Capped(Case):
    """Scores of a softcap, of either sign."""

    def __init__(self, head, active):
        super().__init__(head, active)
        self.scale[4::7] *= -1

    def above(self, floor):
        return self.scores()[0] - floor[:self.active, None].astype(float)


@pytest.mark.long
@pytest.mark.parametrize("arch", ARCHES)
def test_softcap(folder, arch):
    case = Capped({"entropy": 1, "bias": 1, "softcap": 1}, 61)
    floor = floors_of(case)
    floor[1::7] = -100
    size = LOG2E * 2 / CAP_IN                        # of the largest |t|
    count = hold(case, floor, 1024, *emit(case, arch, folder, floor, 1024), error=2**-21 * size, margin=2**-20 * size)
    assert count[8, -1] > 20 and count[0].sum() == 0 and 100 < count[2].sum() < 200 and (case.scale < 0).any()
