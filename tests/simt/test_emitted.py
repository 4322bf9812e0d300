"""The kernels before and behind forward_emit on the CPU: floors, and lists in order."""
import numpy
import pytest
from cpu_kernel import f32, folder, i32, kernels, needs_emit, needs_llc  # noqa: F401

pytestmark = [needs_llc, needs_emit]

LOG2E = 1.4426950408889634
NAN, INFINITY = numpy.nan, numpy.inf
LOWEST = -2.0**30


@pytest.fixture(scope="module")
def emitted(folder):  # noqa: F811
    return kernels(folder, kind="emitted")[0]


COUNT, ROWS, BEGIN, CALLERS, THRESHOLD = 300, 310, 5, 400, -9.5


class Known:
    """What may be known of rows before their first tile."""

    def __init__(self):
        random = numpy.random.default_rng(1)
        self.part = f32(random.standard_normal((3, ROWS)) * 40)
        self.old_lse = f32(random.standard_normal(CALLERS) * 30)
        self.zy = f32(random.standard_normal(ROWS) * 25)
        self.scale = f32(LOG2E * random.uniform(-1, 2, ROWS))
        self.target = i32(random.integers(-1, 3, ROWS))
        self.index = i32(numpy.sort(random.permutation(CALLERS)[:ROWS]))

    def floors(self, emitted, given, capped=0):
        """floor and emit_count of a launch that is given some of part, old_lse and zy."""
        floor, count = f32([7.5] * ROWS), i32([77] * ROWS)
        emitted["emit_floor"].named(
            2, **{name: getattr(self, name) for name in given}, capacity=ROWS, index=self.index,
            local_target=self.target, scale=self.scale, count=i32([COUNT]), cap_in=0.05, capped=capped, row_begin=BEGIN, row_end=ROWS,
            log2_threshold=THRESHOLD, floor=floor, emit_count=count)
        for array, before in ((floor, 7.5), (count, 77)):
            assert (array[:BEGIN] == before).all() and (array[COUNT:] == before).all()
        assert (count[BEGIN:COUNT] == 0).all()
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
            known = numpy.maximum(known, numpy.where(self.target[mine] >= 0, t, -INFINITY))
        return numpy.maximum(known + THRESHOLD, LOWEST)


@pytest.mark.parametrize("capped", [0, 1])
@pytest.mark.parametrize("given", [(), ("part",), ("old_lse",), ("zy",), ("part", "old_lse", "zy")],
                         ids=["nothing", "part", "old_lse", "zy", "all"])
def test_floor(emitted, given, capped):
    known = Known()
    found, expected = known.floors(emitted, given, capped), known.expected(given, capped)
    assert numpy.abs(found - expected).max() < 2e-5
    assert given not in ((), ("zy",)) or (found[known.target[BEGIN:COUNT] < 0] == LOWEST).all()


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


@pytest.mark.parametrize("capacity", [1024, 100, 1])
def test_sort(emitted, capacity):
    lengths = [length for length in (*range(6), 31, 32, 33, 63, 64, 65, 99, 100, 127, 511, 512, 1000, 1023, 1024)
               if length <= capacity]
    counts = i32([*lengths, capacity + 1, 5000, 3])
    random = numpy.random.default_rng(capacity)
    column = i32([random.permutation(152000)[:capacity] for _ in counts])
    column[:, capacity // 2] = 0x7ffffffe
    score = f32(random.standard_normal(column.shape))
    before, kept = (column.copy(), score.copy()), counts.copy()
    emitted["emit_sort"].named(len(counts) - 1, count=i32([len(counts) - 1]), row_begin=1, row_end=len(counts),
                               emit_count=counts, emit_column=column, emit_score=score, emit_capacity=capacity)
    assert (counts == kept).all()
    for a in range(len(counts)):
        length = min(counts[a], capacity) if 0 < a < len(counts) - 1 else 0     # the others are no rows of the launch
        order = [*numpy.argsort(before[0][a, :length]), *range(length, capacity)]
        assert (column[a] == before[0][a, order]).all() and (score[a] == before[1][a, order]).all()
