"""The signs of what forward_keep keeps (largest.lua), on the CPU: flpgen check sees nothing of them."""
import numpy
import pytest
from cpu_kernel import f32, kernels, matrix_map, needs_emit, needs_llc
from flpgen_tool import from_bf16
from forward_case import ROWS, VOCAB, Case, run

pytestmark = [needs_llc, needs_emit]

STRIDE = 1536             # of kept


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_signs_say_which_scores_are_below_the_maximum(folder, arch):
    """Of the expanded form all but some of the largest; of the plain one, with slopes, none has a sign."""
    case = Case({"entropy": 1}, 61)
    made, tile = kernels(folder, kind="forward_keep", arch=arch, **case.head)
    reference = f32(numpy.zeros(ROWS))
    reference[:case.active] = case.scores()[0].max(1)
    for slope in (0, 1):
        kept = numpy.zeros((ROWS, STRIDE), numpy.uint16)
        to = {"kept_map": matrix_map(kept[:, :VOCAB], 16)} if tile["cluster"] else {"kept": kept, "kept_stride": STRIDE}
        run(made, tile, case, "forward_keep", VOCAB, reference=reference, slope=slope, **to)
        negative = numpy.signbit(from_bf16(kept[:case.active, :VOCAB])).mean()
        assert negative == 0 if slope else 0.99 < negative < 1
