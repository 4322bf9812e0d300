"""forward_targets, sm_80's and Hopper's, behind targets_sort, on the CPU: partials have forward's bits, and scores of
the columns that rows list are exact: operands are small integers."""
import numpy
import pytest
from cpu_kernel import f32, i32, kernels, needs_emit, needs_llc
from forward_case import ROWS, VOCAB, beside_forward, bits
from test_forward_emit import Whole

pytestmark = [needs_llc, needs_emit]

IGNORED, NONE, UNTOUCHED = -100, 0x7FFFFFFF, 7.5
OF_BIT, OF_WORD = 64, 64 * 24
ARCHES = ["sm_80", "sm_90a"]
HEADS = {"plain": {}, "entropy": {"entropy": 1}, "bias": {"entropy": 1, "bias": 1},
         "capped": {"entropy": 1, "bias": 1, "softcap": 1}}


def targets_of(k, low=0, high=VOCAB):
    """Row by row: spread, all in one tile, one again and again, some and all elsewhere or ignored, edges of tiles."""
    random = numpy.random.default_rng(k)
    ids = random.integers(low, high, (ROWS, k))
    ids[1::7] = low + 640 + numpy.arange(k) % 64
    ids[2::7] = ids[2::7, :1]
    ids[3::7, ::2] = IGNORED
    ids[4::14], ids[11::14] = IGNORED, high + 5
    ids[5::7] = numpy.resize(low + numpy.array([0, 63, 64, 127, 128, 191, 192, 255, 256, 767, 768, high - low - 1]), k)
    return ids


def sort(folder, case, ids, low=0, width=VOCAB, dtype="int64"):
    """What targets_sort writes for the active rows of a case; and that it is sorted."""
    n, k, words = ROWS, ids.shape[1], -(-width // OF_WORD)
    out = {"list_column": numpy.full((n, k), -7, numpy.int32), "target_place": numpy.full((n, k), -7, numpy.int16),
           "target_block": numpy.full((n, words), -7, numpy.int32), "list_length": numpy.full(n, -7, numpy.int32),
           "list_target": numpy.full(n, -7, numpy.int32), "list_row": numpy.full((n, k), -7, numpy.int32),
           "target_offsets": numpy.full(n, -7, numpy.int64), "target_total": i32([-7]), "bound": f32([1] * n),
           "target_weight": f32(numpy.arange(n))}
    kernels(folder, kind="targets", target_dtype=dtype)[0]["targets_sort"].named(
        n, target=ids.astype(dtype), targets=k, ignore_index=IGNORED, vocab_offset=low, vocab_valid=width,
        index=case.index, scale=case.scale, count=case.count, block_words=words, **out)
    assert out["target_total"][0] == case.active * k
    for a, row in enumerate(case.index):
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
        more = row * abs(case.scale[a]) * numpy.log(2)
        assert abs(out["bound"][a] - (1 + more)) <= 1e-6 * (1 + more)
    for name in ("list_column", "target_place", "target_block", "list_length", "list_target", "list_row"):
        assert (out[name][case.active:] == -7).all(), name
    return out


def hold(folder, arch, head, active, k, chunks=((0, ROWS),), **tune):
    case = Whole(HEADS[head], active)
    ids = targets_of(k)
    lists = sort(folder, case, ids)
    score = numpy.full((ROWS, k), UNTOUCHED, numpy.float32)
    more = {name: lists[name] for name in ("list_column", "target_place", "target_block")}
    more |= {"row_of": case.index, "score": score, "targets": k, "block_words": lists["target_block"].shape[1]}
    for (plain, _), (made, _) in beside_forward(folder, arch, case, "forward_targets", more, chunks, **tune):
        assert (bits(plain) == bits(made)).all(), "partials"
    ids, wanted = ids[case.index], numpy.full((ROWS, k), UNTOUCHED)
    here, mine = (ids >= 0) & (ids < VOCAB), numpy.take_along_axis(case.raw(), numpy.clip(ids, 0, VOCAB - 1), 1)
    wanted[case.index] = numpy.where(here, mine, UNTOUCHED)
    assert numpy.array_equal(score, f32(wanted), equal_nan=True)
    assert here.sum() > k * 30


@pytest.mark.parametrize("head,active,k",
                         [("plain", ROWS, 12), ("entropy", 61, 64), ("bias", ROWS, 2), ("capped", 61, 7)])
@pytest.mark.parametrize("arch", ARCHES)
def test_scores_of_the_columns_that_rows_list(folder, arch, head, active, k):
    hold(folder, arch, head, active, k)


@pytest.mark.parametrize("arch", ARCHES)
def test_as_many_as_there_may_be_in_chunks_of_rows(folder, arch):
    hold(folder, arch, "plain", 61, 512, chunks=((0, 33), (33, 64), (64, ROWS)))


@pytest.mark.parametrize("tune", ["cooperative,256x192,stages=3", "ping-pong,128x128,cluster=1",
                                  "ping-pong,64x256,stages=3", "cooperative,128x64"])
def test_hopper_other_tilings(folder, tune):
    hold(folder, "sm_90a", "entropy", ROWS - 3, 40, tune=tune)


@pytest.mark.parametrize("dtype,k", [("int32", 3), ("int64", 129)])
def test_lists_of_a_shard(folder, dtype, k):
    """Columns count from its first row of weight; a vocabulary of several words of bits."""
    case = Whole(HEADS["plain"], 61)
    random = numpy.random.default_rng(4)
    sort(folder, case, random.integers(0, 20000, (ROWS, k)), low=5000, width=9000, dtype=dtype)
