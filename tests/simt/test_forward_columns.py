"""forward_columns over slices, sm_80's and Hopper's, on the CPU: partials have forward's bits, and the weight's rows that
Hopper's rounds meanwhile, for the next slice, those of rounding to nearest even, or two terms of them."""
import numpy
import pytest
from cpu_kernel import kernels, matrix_map, needs_emit, needs_llc
from flpgen_tool import to_bf16
from forward_case import DEPTH, ROWS, VOCAB, Case, bits, run

pytestmark = [needs_llc, needs_emit]

HEADS = {"entropy": {"entropy": 1}, "capped": {"bias": 1, "softcap": 1}}
STRIDE = DEPTH + 8


def depth_of(terms):
    """Of the rows that are made ahead: two terms of it need not fill one of the products' K."""
    return DEPTH if terms == 1 else DEPTH // 16 * 8


def sliced(made, tile, case, ahead, terms):
    """Partials and target scores of two launches, of which each rounds rows of `ahead` into an array of its own."""
    groups, unit = -(-VOCAB // tile["unit_columns"]), min(tile["unit_columns"], VOCAB)
    part, zy = numpy.full((groups, 3, ROWS), 7.5, numpy.float32), numpy.full(ROWS, 7.5, numpy.float32)
    made_ahead = []
    for begin, end in ((0, unit), (unit, VOCAB)):
        if begin == end:
            continue
        own = {"weight": numpy.ascontiguousarray(case.weight[begin:end])}
        if tile["cluster"]:
            made_ahead.append(numpy.full((len(ahead) + 1, DEPTH), 0x1234, numpy.uint16))
            own = {"weight_map": matrix_map(own["weight"], tile["columns"] // tile["cluster"]), "ahead_source": ahead,
                   "ahead_stride": STRIDE, "ahead_out": made_ahead[-1], "ahead_rows": len(ahead) if begin == 0 else 0,
                   "ahead_depth": depth_of(terms)}
        run(made, tile, case, "forward_columns", end - begin, part=part, zy=zy, column_begin=begin,
            bias=None if case.bias is None else case.bias[begin:end], **own)
    return part, zy, made_ahead


def rounded_terms(ahead, terms):
    """What stands in each row: its first elements rounded, then what is left of them."""
    rest, found = ahead[:, :depth_of(terms)].copy(), []
    for _ in range(terms):
        words = to_bf16(rest.astype(float)).reshape(rest.shape)
        found.append(words)
        with numpy.errstate(invalid="ignore"):
            rest = rest - (words.astype(numpy.uint32) << 16).view(numpy.float32)
    return numpy.hstack(found)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("arch, terms", [("sm_80", 1), ("sm_90a", 1), ("sm_90a", 2), ("sm_100f", 1), ("sm_100f", 2)])
def test_slices_have_the_bits_of_forward_and_the_next_is_made_meanwhile(folder, arch, terms, head):
    head = HEADS[head]
    case = Case(head, 61)
    ahead = numpy.float32(numpy.random.default_rng(2).standard_normal((77, STRIDE)))
    ahead[3, :6] = [numpy.inf, -numpy.inf, 1 + 2**-8, 1 + 3 * 2**-8, 1e-40, -0.0]  # ties, a subnormal
    made, tile = kernels(folder, kind="forward_columns", arch=arch, **head)
    plain = run(*kernels(folder, kind="forward", arch=arch, **head), case, "forward", VOCAB)
    part, zy, rounded = sliced(made, tile, case, ahead, terms)
    assert numpy.array_equal(bits(part), bits(plain[0])) and numpy.array_equal(bits(zy), bits(plain[1]))
    if arch == "sm_80":
        return
    expected = rounded_terms(ahead, terms)
    rows, rest = rounded[0][:-1, :expected.shape[1]], rounded[0][:-1, expected.shape[1]:]
    nan = (expected & 0x7fff) > 0x7f80
    assert numpy.array_equal(rows[~nan], expected[~nan]) and ((rows[nan] & 0x7fff) > 0x7f80).all() and (rest == 0x1234).all()
    assert (rounded[0][-1] == 0x1234).all() and (rounded[1] == 0x1234).all()
