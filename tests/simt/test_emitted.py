"""The kernels before and behind forward_emit on the CPU: floors, and lists in order."""
import numpy
import pytest
from cpu_kernel import INFINITY, LOG2E, LOWEST, NAN, f32, i32, kernels, needs_emit, needs_llc

pytestmark = [needs_llc, needs_emit]



@pytest.fixture(scope="module")
def emitted(folder):
    return kernels(folder, kind="emitted")[0]


COUNT, ROWS, BEGIN, CALLERS, THRESHOLD = 300, 310, 5, 400, -9.5


class Known:
    """What may be known of rows before their first tile."""

    def __init__(self):
        random = numpy.random.default_rng(1)
        self.part = f32(random.standard_normal((3, ROWS)) * 40)
        self.old_lse = f32(random.standard_normal(CALLERS) * 30)
        self.zy = f32(random.standard_normal(ROWS) * 25)
        self.old_logprob = f32(-numpy.exp(random.standard_normal(CALLERS) * 2))
        self.scale = f32(LOG2E * random.uniform(-1, 2, ROWS))
        self.target = i32(random.integers(-1, 3, ROWS))
        self.index = i32(numpy.sort(random.permutation(CALLERS)[:ROWS]))

    def floors(self, emitted, given, capped=0):
        """floor and emit_count of a launch that is given some of part, old_lse, zy and old_logprob."""
        floor, gate, count = f32([7.5] * ROWS), f32([7.5] * ROWS), i32([[77] * 8] * ROWS)
        emitted["emit_floor"].named(
            2, **{name: getattr(self, name) for name in given}, capacity=ROWS, index=self.index,
            local_target=self.target, scale=self.scale, count=i32([COUNT]), cap_in=0.05, capped=capped, row_begin=BEGIN, row_end=ROWS,
            log2_threshold=THRESHOLD, floor=floor, emit_gate=gate, emit_count=count)
        for array, before in ((floor, 7.5), (gate, 7.5), (count, 77)):
            assert (array[:BEGIN] == before).all() and (array[COUNT:] == before).all()
        assert (gate[BEGIN:COUNT] == 0).all() and (count[BEGIN:COUNT] == 0).all()
        return floor[BEGIN:COUNT].astype(float)

    def expected(self, given, capped=0):
        mine = slice(BEGIN, COUNT)
        known = numpy.full(COUNT - BEGIN, -INFINITY)
        if "part" in given:
            known = numpy.maximum(known, self.part[0, :COUNT - BEGIN])
        if "old_lse" in given:
            known = numpy.maximum(known, self.old_lse[self.index[mine]].astype(float) * LOG2E)
        if "zy" in given:
            x = self.zy[mine].astype(float)
            t = self.scale[mine].astype(float) * (numpy.tanh(0.05 * x) if capped else x)
            if "old_logprob" in given:
                t -= self.old_logprob[self.index[mine]].astype(float) * LOG2E
            known = numpy.maximum(known, numpy.where(self.target[mine] >= 0, t, -INFINITY))
        return numpy.maximum(known + THRESHOLD, LOWEST)


@pytest.mark.parametrize("capped", [0, 1])
@pytest.mark.parametrize("given", [(), ("part",), ("old_lse",), ("zy",), ("old_logprob",), ("zy", "old_logprob"),
                                   ("part", "old_lse", "zy", "old_logprob")],
                         ids=["nothing", "part", "old_lse", "zy", "no zy", "old_logprob", "all"])
def test_floor(emitted, given, capped):
    """A logprob says something beside the score that it belongs to, where this shard has that."""
    known = Known()
    found, expected = known.floors(emitted, given, capped), known.expected(given, capped)
    assert numpy.abs(found - expected).max() < 2e-5
    assert "part" in given or "old_lse" in given or (found[known.target[BEGIN:COUNT] < 0] == LOWEST).all()


ABOVE = -2.5


@pytest.mark.parametrize("count", [COUNT, BEGIN, BEGIN + 33])
def test_flat_rows(emitted, count):
    """Rows of a chunk whose sum is above: NaN, rows of another chunk and those that are not active do not count."""
    random = numpy.random.default_rng(2)
    part, floor, flat = f32(random.standard_normal((3, ROWS))), f32(random.standard_normal(ROWS)), i32([7, 9])
    part[1] = numpy.exp(part[1])
    part[0, 3], part[1, 4], floor[BEGIN + 7], part[0, 9] = NAN, NAN, NAN, INFINITY
    emitted["flat_rows"].named(2, part=part, capacity=ROWS, floor=floor, above=ABOVE, count=i32([count]),
                               row_begin=BEGIN, row_end=ROWS, flat=flat)
    lse = part[0].astype(float) + numpy.log2(part[1].astype(float))
    expected = (lse[:count - BEGIN] > floor[BEGIN:count].astype(float) + ABOVE).sum()
    assert flat.tolist() == [7 + expected, 9] and (expected > 0) == (count > BEGIN)


@pytest.mark.parametrize("flat,count,decides,want", [
    (199, 300, 1, 0), (200, 300, 1, 1), (0, 0, 1, 0), (2**30, 2**30, 1, 1), (300, 300, 0, 0), (0, 300, 0, 1)])
def test_flat_gate(emitted, flat, count, decides, want):
    """Two thirds decide, once; the order that is not taken has no rows, and the exact one says how many it has."""
    for wants in (0, 1):
        words, active, report = i32([flat, 0 if decides else want]), i32([count]), f32([5, 6, 7, 8])
        emitted["flat_gate"].named(1, flat=words, wants=wants, decides=decides, count=active, report=report)
        assert words.tolist() == [flat, want]
        assert active.tolist() == [count if want == wants else 0]
        assert report.tolist() == ([0, 0, count, 0] if want == wants else [5, 6, 7, 8])


def test_old_logprobs_that_are_no_estimate(emitted):
    """An infinite one counts for nothing, a positive one for no more than the score; NaN leaves no floor."""
    known, given = Known(), ("zy", "old_logprob")
    at = numpy.arange(BEGIN, BEGIN + 6)
    known.target[at] = [1, 1, 1, 1, -1, 1]
    known.old_logprob[known.index[at]] = [-INFINITY, INFINITY, 3, NAN, NAN, -INFINITY]
    known.zy[at[5]] = -INFINITY * numpy.sign(known.scale[at[5]])
    found, score = known.floors(emitted, given), known.expected(("zy",))
    assert numpy.abs(found[:3] - score[:3]).max() < 2e-5
    assert numpy.isnan(found[3]) and (found[4:6] == LOWEST).all()


def test_floor_of_what_is_no_number(emitted):
    """NaN in any of them, or in the first columns' sum: no floor. -inf counts for nothing; where all are, LOWEST."""
    known, given = Known(), ("part", "old_lse", "zy")
    at = numpy.arange(BEGIN, BEGIN + 7)
    known.target[at] = 1
    known.part[0, 0] = known.part[1, 1] = known.old_lse[known.index[at[2]]] = known.zy[at[3]] = NAN
    known.old_lse[known.index[at[4]]] = -INFINITY
    for a in at[5:7]:
        known.part[0, a - BEGIN] = LOWEST if a == at[5] else -INFINITY
        known.old_lse[known.index[a]] = -INFINITY
        known.zy[a] = -INFINITY * numpy.sign(known.scale[a])
    found = known.floors(emitted, given)
    assert numpy.isnan(found[:4]).all() and numpy.isfinite(found[4:]).all()
    assert abs(found[4] - known.expected(given)[4]) < 2e-5 and (found[5:7] == LOWEST).all()


SHARES = numpy.array([8, 5, 5, 4, 4, 2, 2, 2])        # places of each bin, of 32


@pytest.mark.parametrize("capacity", [1024, 96, 32])
def test_sort(emitted, capacity):
    """Lists of every length, of bins that are empty, full or lost, or below what the row needs."""
    places, random = SHARES * capacity // 32, numpy.random.default_rng(capacity)
    firsts = numpy.cumsum(places) - places
    counts = [places, 0 * places, *(places * (numpy.arange(8) == b) for b in range(8))]
    counts += [random.integers(0, places + 1) for _ in range(20)]
    for lost in range(8):                              # the highest bin that has overflowed; others below it may have
        over = random.integers(0, places + 1)
        over[lost] = places[lost] + 1 + 1000 * (lost % 2)
        over[lost // 2] += places[lost // 2] + 1 if lost else 0
        counts.append(over)
    needed = [0] * len(counts)                         # the first bin that the row needs
    for first in range(8):
        over = random.integers(0, places + 1)
        over[first - 2:first] = 5000                   # those below may have overflowed
        over[-1] += 5000 * (first == 7)
        counts.append(over)
        needed.append(first)
    counts = i32([*counts, places])
    last = len(counts) - 1                             # no active row
    column = i32([random.permutation(152000)[:capacity] for _ in counts])
    column[:, 0] = 0x7ffffffe
    score = f32(random.uniform(0, 3, column.shape)) + f32(numpy.repeat(numpy.arange(8) * 3, places))
    floor = f32(random.integers(-99, 99, len(counts)))
    # of every LSE, sums that are not 1, and rows elsewhere than active ones
    index = i32(random.permutation(len(counts) + 5)[:len(counts)])
    partial = f32(random.standard_normal((len(counts) + 5, 4)))
    for a, first in enumerate(needed):
        s = random.uniform(0.1, 400)
        lse = floor[a] + 9.75 + (3 * first + random.uniform(0.1, 2.9) if first else random.uniform(-50, 2.9))
        partial[index[a], :2] = lse - numpy.log2(s), s
    partial[index[1]] = NAN                            # a row that is bad
    arrays = column, score, counts, floor
    before, found = [x.copy() for x in arrays], i32([77] * len(counts))
    made = [numpy.full_like(x, 77) for x in (column, score, floor)]
    emitted["emit_sort"].named(last + 1, count=i32([last]), index=index, partial=partial, log2_threshold=-9.75, floor=floor, emit_count=counts,
                               emit_entry=numpy.stack([column, score.view(numpy.int32)], 2), emit_capacity=capacity, tail_column=made[0], tail_score=made[1],
                               tail_floor=made[2], tail_found=found)
    assert all((now == was).all() for now, was in zip(arrays, before)), "read alone"
    assert all((x[last] == 77).all() for x in (*made, found))
    column, score, floor = made
    for a in range(last):
        over = numpy.flatnonzero(before[2][a, needed[a]:] > places[needed[a]:])
        lost = needed[a] + (over[-1] + 1 if over.size else 0)
        mine = [first + j for b, first in enumerate(firsts) if b >= lost for j in range(before[2][a, b])]
        order = sorted(mine, key=lambda place: before[0][a, place])
        assert found[a] == (capacity + 1 if lost == 8 else len(mine)) and floor[a] == before[3][a] + 3 * lost
        assert (column[a, :len(mine)] == before[0][a, order]).all()
        assert (score[a, :len(mine)] == before[1][a, order] - f32([3 * lost])).all()
