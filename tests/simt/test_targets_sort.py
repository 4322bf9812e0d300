"""targets_sort on the CPU, to the bit: flpgen check sees nothing of the bound of dz and of a list without a target."""
import numpy
import pytest
from cpu_kernel import LOG2E, f32, i32, kernels, needs_emit, needs_llc

pytestmark = [needs_llc, needs_emit]

IGNORED, NONE = -100, 0x7FFFFFFF
OF_BIT, OF_WORD = 64, 64 * 24
ROWS, ACTIVE = 70, 61


@pytest.mark.parametrize("dtype,k", [("int32", 3), ("int64", 129)])
def test_lists_of_a_shard(folder, dtype, k):
    """Columns count from its first row of weight; a vocabulary of several words of bits. Some rows have targets in one
    block, one target again and again, some or all elsewhere or ignored."""
    random = numpy.random.default_rng(4)
    low, width = 5000, 9000
    ids, words = random.integers(0, 20000, (ROWS, k)), -(-width // OF_WORD)
    ids[1::7], ids[2::7], ids[3::7, ::2] = low + 640 + numpy.arange(k) % 64, ids[2::7, :1], IGNORED
    ids[4::14], ids[11::14] = IGNORED, low + width + 5
    index, scale = i32(numpy.sort(random.permutation(ROWS)[:ACTIVE])), f32(LOG2E * random.uniform(-2, 2, ACTIVE))
    out = {"list_column": numpy.full((ROWS, k), -7, numpy.int32),
           "target_place": numpy.full((ROWS, k), -7, numpy.int16),
           "target_block": numpy.full((ROWS, words), -7, numpy.int32), "list_length": numpy.full(ROWS, -7, numpy.int32),
           "list_target": numpy.full(ROWS, -7, numpy.int32), "list_row": numpy.full((ROWS, k), -7, numpy.int32),
           "target_offsets": numpy.full(ROWS, -7, numpy.int64), "target_total": i32([-7]), "bound": f32([1] * ROWS),
           "target_weight": f32(numpy.arange(ROWS))}
    kernels(folder, kind="targets", target_dtype=dtype)[0]["targets_sort"].named(
        ROWS, target=ids.astype(dtype), targets=k, ignore_index=IGNORED, vocab_offset=low, vocab_valid=width,
        index=index, scale=scale, count=i32([ACTIVE]), block_words=words, **out)
    assert out["target_total"][0] == ACTIVE * k
    for a, row in enumerate(index):
        local = ids[row] - low
        local = numpy.where((ids[row] != IGNORED) & (local >= 0) & (local < width), local, NONE)
        order = numpy.argsort(local, kind="stable")
        assert (out["list_column"][a] == local[order]).all() and (out["target_place"][a] == order).all()
        assert out["list_length"][a] == (local != NONE).sum() and out["list_target"][a] == -1
        assert (out["list_row"][a] == a).all() and out["target_offsets"][row] == a * k
        wanted = numpy.zeros(words, numpy.int64)
        for column in local[local != NONE]:
            wanted[column // OF_WORD] |= 1 << column % OF_WORD // OF_BIT
        assert (out["target_block"][a] == wanted).all()
        more = row * abs(scale[a]) * numpy.log(2)
        assert abs(out["bound"][a] - (1 + more)) <= 1e-6 * (1 + more)
    for name in ("list_column", "target_place", "target_block", "list_length", "list_target", "list_row"):
        assert (out[name][ACTIVE:] == -7).all(), name
