"""forward_keep, sm_80's and Hopper's, on the CPU: partials have forward's bits, and what is kept is 2^(t - reference)."""
import numpy
import pytest
from cpu_kernel import kernels, matrix_map, needs_emit, needs_llc
from flpgen_tool import from_bf16, to_bf16
from forward_case import DEPTH, ROWS, SENTINEL, VOCAB, Case, bits, run

pytestmark = [needs_llc, needs_emit]

FIRST = 768
STRIDE = 1536             # of kept
HEADS = {
    "plain": {},
    "entropy": {"entropy": 1},
    "all": {"entropy": 1, "bias": 1, "softcap": 1},
}


def keep(case, arch, folder, slope=0, **tune):
    """Runs what a forward pass that keeps runs -> (part, zy) of forward, of forward_keep, reference, kept."""
    plain, tile = kernels(folder, kind="forward", arch=arch, **case.head)
    keeping, keep_tile = kernels(folder, kind="forward_keep", arch=arch, **case.head, **tune)
    kept_kernels, _ = kernels(folder, kind="kept")
    before, _ = run(plain, tile, case, "forward", min(FIRST, VOCAB))
    reference = numpy.full(ROWS, numpy.nan, numpy.float32)
    kept_kernels["keep_reference"].named(1, part=before, index=case.index, count=case.count, row_end=ROWS,
                                         reference=reference)
    kept = numpy.full((ROWS, STRIDE), SENTINEL, numpy.uint16)
    to = {"kept_map": matrix_map(kept[:, :VOCAB], 16)} if tile["cluster"] else {"kept": kept, "kept_stride": STRIDE}
    with_kept = run(keeping, keep_tile, case, "forward_keep", VOCAB, reference=reference, slope=slope, **to)
    return run(plain, tile, case, "forward", VOCAB), with_kept, reference, kept


def hold(case, forward, with_kept, reference, kept, is_map, slope=0):
    """Everything that abi.h defines of a launch."""
    (t, slopes), active = case.scores(), case.active
    for plain, keeping in zip(forward, with_kept):
        assert (bits(plain) == bits(keeping)).all()
    assert numpy.abs(reference[:active] - 60 - t[:, :FIRST].max(1)).max() < 1e-3
    assert numpy.isnan(reference[active:]).all()
    expected = numpy.exp2(t - reference[:active, None].astype(float)) * slopes**slope
    found = from_bf16(kept[:active, :VOCAB]).astype(float)
    if case.head.get("entropy") and not slope:
        assert 0.99 < numpy.signbit(found).mean() < 1  # all but some of the largest scores are below the maximum
        found = abs(found)
    normal = expected > 2.0**-125
    error = (found / expected - 1)[normal]
    assert numpy.abs(error).max() < 2**-8 and abs(error.mean()) < 1e-4 and found[~normal].max(initial=0) < 2.0**-124
    assert (kept[active:, :VOCAB] == 0).all()
    assert (kept[:, VOCAB:] == (SENTINEL if is_map else 0)).all()


@pytest.mark.parametrize("head,active", [("plain", ROWS), ("entropy", 61), ("all", ROWS), ("all", 61)])
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_keeps(folder, arch, head, active):
    case = Case(HEADS[head], active)
    hold(case, *keep(case, arch, folder), arch == "sm_90a")


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_keeps_slopes_of_a_softcap(folder, arch):
    case = Case(HEADS["all"], 61)
    hold(case, *keep(case, arch, folder, slope=1), arch == "sm_90a", slope=1)


@pytest.mark.parametrize("tune", ["cooperative,256x192,stages=3", "ping-pong,128x128,cluster=1"])
def test_hopper_other_tilings(folder, tune):
    case = Case(HEADS["entropy"], ROWS - 3)
    hold(case, *keep(case, "sm_90a", folder, tune=tune), True)


class Wide(Case):
    """A head of three groups of columns, the last one not whole."""

    VOCAB = 6961

    def __init__(self, head, active):
        super().__init__(head, active)
        random = numpy.random.default_rng(17)
        self.weight = to_bf16(random.standard_normal((self.VOCAB, DEPTH)) * 0.8)
        self.bias = to_bf16(random.standard_normal(self.VOCAB)) if head.get("bias") else None
        self.target = random.integers(-1, self.VOCAB, active).astype(numpy.int32)
        self.target[:4] = 3071, 3072, 6143, 6144     # on both sides of a chunk's edge

    def launch(self, keeping, tile, begin, end, reference, part, zy):
        """Columns [begin, end) -> kept of them."""
        columns = end - begin
        kept = numpy.full((ROWS, -(-columns // 64) * 64), SENTINEL, numpy.uint16)
        if tile["cluster"]:
            own = {"weight_map": matrix_map(self.weight[begin:end], tile["columns"] // tile["cluster"]),
                   "kept_map": matrix_map(kept[:, :columns], 16)}
        else:
            own = {"weight": self.weight[begin:], "kept": kept, "kept_stride": kept.shape[1]}
        run(keeping, tile, self, "forward_keep", columns, part=part, zy=zy, column_begin=begin, reference=reference,
            bias=None if self.bias is None else self.bias[begin:], slope=1 if self.head.get("softcap") else 0, **own)
        return kept[:, :columns]


@pytest.mark.parametrize("arch,tune", [("sm_80", {}), ("sm_90a", {}),
                                       ("sm_90a", {"tune": "cooperative,256x192,stages=3"})], ids=["sm_80", "sm_90a", "tuned"])
@pytest.mark.parametrize("head", ["entropy", "all"])
def test_chunks_of_columns_have_the_bits_of_one_launch(folder, arch, tune, head):
    """Partials, target scores and exponentials alike, whatever the chunks and their order."""
    case = Wide(HEADS[head], 61)
    keeping, tile = kernels(folder, kind="forward_keep", arch=arch, **case.head, **tune)
    reference = numpy.random.default_rng(3).uniform(40, 80, ROWS).astype(numpy.float32)
    groups = -(-case.VOCAB // tile["unit_columns"])

    def run_chunks(edges):
        part, zy = numpy.full((groups, 3, ROWS), 7.5, numpy.float32), numpy.full(ROWS, 7.5, numpy.float32)
        kept = numpy.full((ROWS, case.VOCAB), SENTINEL, numpy.uint16)
        for begin, end in edges:
            kept[:, begin:end] = case.launch(keeping, tile, begin, end, reference, part, zy)
        return part, zy, kept

    whole = run_chunks([(0, case.VOCAB)])
    assert (whole[0][:, :, :61] != 7.5).all() and (whole[2] != SENTINEL).all() and (whole[1][:4] != 7.5).all()
    assert (whole[1][:61][case.target < 0] == 7.5).all()
    unit = tile["unit_columns"]
    assert 3072 % unit == 0
    for edges in ([(3072, 6144), (0, 3072), (6144, case.VOCAB)], [(0, 6144), (6144, case.VOCAB)],
                  [(0, unit), (unit, 6144 - unit), (6144 - unit, 6144), (6144, case.VOCAB)]):
        for one, other in zip(whole, run_chunks(edges)):
            assert one.tobytes() == other.tobytes(), edges


def test_other_dtypes_are_refused(folder):
    for arch in ("sm_80", "sm_90a"):
        with pytest.raises(AssertionError, match="dtype: fp16 lacks the range of exponentials; bf16 is accepted"):
            kernels(folder, kind="forward_keep", arch=arch, dtype="fp16")
    with pytest.raises(AssertionError, match="kept.lua:.*dtype: fp32 lacks"):
        kernels(folder, kind="kept", dtype="fp32")
