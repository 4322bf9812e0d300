"""Sums of 20 and 24 bits for a weight's gradient in bf16, over chunks of rows (templates/common/sums.lua), by sm_80's kernel
and Hopper's on the CPU: the bits that the rule gives, and what stands in memory between two chunks."""
import shutil

import numpy
import pytest
from cpu_kernel import TREE, Kernel, kernels, matrix_map, needs_emit, needs_llc
from flpgen_tool import flpgen, from_bf16, needs_flpgen, to_bf16

pytestmark = [needs_llc, needs_emit]

VOCAB, DEPTH, OUT_STRIDE, DZ_STRIDE = 331, 320, 328, 384
CHUNKS, COUNT = [(0, 64), (64, 128), (128, 192), (192, 230)], 141      # of active rows; the last chunk has none
FIRST, SECOND, LAST = 1 | 4, 1 | 2 | 4, 1 | 2 | 8    # FLP_PRODUCT_: WANTED is 1, READ_ACC 2, WRITE_ACC 4, WRITE_OUT 8
OUT_F32, GUARD = 16, 4096


LOW = pytest.mark.parametrize("low_bits", [4, 8])    # beside the upper 16


def rounded(x, low_bits):
    """float32 with the upper 16 + low_bits bits of a float32, to nearest, halves away from zero."""
    half = numpy.uint32(1 << (15 - low_bits))
    upper = numpy.uint32(0xFFFFFFFF << (16 - low_bits) & 0xFFFFFFFF)
    return numpy.where(numpy.isnan(x), x, ((x.view(numpy.uint32) + half) & upper).view(numpy.float32))


class Operands:
    """dz of active rows and the rows of hidden, with columns of hidden that ask something special."""

    def __init__(self):
        random = numpy.random.default_rng(17)
        rows = CHUNKS[-1][1]
        dz = random.standard_normal((rows, DZ_STRIDE)) * 1e-2
        hidden = random.standard_normal((rows, DEPTH))
        hidden[70, 5] = numpy.nan
        hidden[3, 6] = numpy.inf
        hidden[80, 9] = -numpy.inf
        hidden[:, 7] = 0                       # dz of 2^127·(2 - 2^-7): the sum is 2^128 - 2^104, which rounds to 2^128
        hidden[:3, 7], dz[:3, 21] = [1, 2**-8, 2**-16], from_bf16(numpy.array([0x7F7F], numpy.uint16))[0]
        hidden[:, 8] *= 2.0**-40               # dz of 2^-100: subnormal numbers
        dz[:, 22] = 2.0**-97
        dz[:3, 22] = 2.0**-100
        self.dz, self.hidden = to_bf16(dz), to_bf16(hidden)
        self.dz[COUNT:], self.hidden[COUNT:] = 0, 0
        self.dz[CHUNKS[-1][0]:] = 0x7FC0       # NaN: no active row is there, so dz holds anything


def padded(size):
    return numpy.full(size + GUARD, 0xA5, numpy.uint8)


class Portable:
    def __init__(self, folder, **fields):
        (made, tile), (wide, _) = kernels(folder, kind="grad_weight", out_dtype="bf16", **fields), kernels(
            folder, kind="grad_weight", out_dtype="fp32", **fields)
        self.kernel, self.wide = made["grad_weight"], wide["grad_weight"]
        self.panel = (tile["rows"], tile["columns"])

    def run(self, given, chunk, flags, out, low=None, low_bits=8):
        begin, end = chunk
        tiles = [-(-size // tile) for size, tile in zip((VOCAB, DEPTH), self.panel)]
        (self.kernel if out.dtype == numpy.uint16 else self.wide).named(
            tiles[0] * tiles[1], dz=given.dz[begin:], dz_stride=DZ_STRIDE, operand=given.hidden[begin:],
            operand_stride=DEPTH, count=numpy.array([COUNT], numpy.int32), depth=DEPTH, row_begin=begin, row_end=end,
            column_end=VOCAB, tiles_m=tiles[0], tiles_n=tiles[1], acc=low, acc_stride=low_bits, out=out, out_stride=OUT_STRIDE,
            read_acc=flags & 2, write_acc=flags & 4, write_out=flags & 8)


class Hopper:
    def __init__(self, folder, **fields):
        made, self.tile = kernels(folder, kind="products", arch="sm_90a", **fields)
        self.kernel = made["products_map"]
        self.panel = (self.tile["rows"] * self.tile["cluster"], self.tile["columns"])

    def run(self, given, chunk, flags, out, low=None, low_bits=8):
        begin, end = chunk
        rows = matrix_map(given.hidden[begin:end], 64)
        self.kernel.named(
            2 * self.tile["cluster"], count=numpy.array([COUNT], numpy.int32), depth=DEPTH, n=1000, row_begin=begin,
            row_end=end, column_end=VOCAB, dz_map=matrix_map(given.dz[begin:end, :VOCAB], 64), weight_map=rows,
            hidden_map=rows, gathered_map=rows, weight_acc=low, weight_acc_stride=low_bits, weight_out=out,
            weight_out_stride=OUT_STRIDE,
            weight_flags=flags | (OUT_F32 if out.dtype == numpy.float32 else 0), turn=numpy.zeros(1, numpy.int32))


def chunk_sums(made, given):
    """What each chunk adds, in float32."""
    sums = []
    for chunk in CHUNKS:
        out = numpy.full((VOCAB, OUT_STRIDE), 7.5, numpy.float32)
        made.run(given, chunk, 1 | 8, out)
        sums.append(out[:, :DEPTH])
    return sums


def same(got, want):
    """Equal bits, but for which NaN."""
    nan = numpy.isnan(want)
    return (numpy.isnan(got) == nan).all() and (got[~nan].view(numpy.uint32) == want[~nan].view(numpy.uint32)).all()


# A thread's 32 sums of each tile to memory and back: what comes back in logprob, lower bits in entropy, halves in stats.
ROUND_TRIP = """return function(k, spec)
  local S = k.import "sums" (k, LOW_BITS)
  k.kernel {entry = "select", threads = 32, body = function(p)
    local low = S.place(p.entropy, {sums = 32, threads = 32}, k.ctaid(), k.tid())
    local bits, highs = {}, {}
    local first = (k.ctaid() * 32 + k.tid()) * 32
    for i = 1, 32 do bits[i] = S.round(k.load(k.f32, p.scores, first + (i - 1))) end
    for i = 1, 32, 2 do highs[i] = S.high(bits[i], bits[i + 1]); k.store(p.stats, (first + i) >> 1, highs[i]) end
    low.store(0, bits, 0); low.store(1, bits, 16)
    for i = 1, 32, 2 do
      local sums = S.join(highs[i], low.load((i - 1) // 16), (i - 1) % 16)
      for e = 1, 2 do k.store(p.logprob, first + (i - 2 + e), sums[e]) end
    end
  end}
  k.kernel {entry = "select_grad", threads = 32, body = function() end}
end
"""


@needs_flpgen
@LOW
def test_every_kind_of_number_goes_to_memory_and_back(tmp_path, low_bits):
    shutil.copytree(TREE / "templates", tmp_path / "templates")
    (tmp_path / "templates" / "common" / "select.lua").write_text(ROUND_TRIP.replace("LOW_BITS", str(low_bits)))
    ir = flpgen("gen", "--op", "select", "--vocab", "64", "--dtype", "fp32", "--template-dir", tmp_path / "templates",
                "--emit", "ir").out
    kernel, tiles = Kernel(ir, "select", 32, tmp_path), 3
    bits = numpy.random.default_rng(23).integers(0, 1 << 32, tiles * 1024, numpy.uint32)    # NaN of every kind, too
    half = 1 << (15 - low_bits)
    bits[:12] = [0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001, 0xFF800001, 0x7F800000, 0xFF800000, 0x7F7FFFFF, 0xFF800000 - half,
                 0x7F800000 - half - 1, half - 1, half, 0x80000000 + half]
    x, back, halves = (numpy.zeros(len(bits), kind) for kind in (numpy.float32, numpy.float32, numpy.uint16))
    x.view(numpy.uint32)[:], size = bits, len(bits) * low_bits // 8
    low = padded(size)
    kernel.named(tiles, scores=x, logprob=back, entropy=low, stats=halves)
    want = rounded(x, low_bits)
    assert same(back, want) and numpy.isnan(back[:4]).all() and numpy.isinf(back[4:8]).all() and numpy.isfinite(back[8])
    assert (from_bf16(halves)[~numpy.isnan(x)] == from_bf16((want.view(numpy.uint32) >> 16).astype(numpy.uint16))[
        ~numpy.isnan(x)]).all()
    assert (low[size:] == 0xA5).all()
    each = low[:size] if low_bits == 8 else numpy.stack([low[:size] & 15, low[:size] >> 4], 1).reshape(-1)
    # vector, thread, sum -> the order of sums
    lower = each.reshape(tiles, 2, 32, 16).transpose(0, 2, 1, 3).reshape(-1)
    number = ~numpy.isnan(x)
    assert (lower[number] == (want.view(numpy.uint32)[number] >> (16 - low_bits) & ((1 << low_bits) - 1))).all()


WAYS = [(Portable, {}), (Portable, {"alignment": 2}), (Hopper, {}), (Hopper, {"hidden": DEPTH, "tune": "128x64"}),
        (Hopper, {"tune": "cooperative,256x192,cluster=1"}), (Hopper, {"tune": "128x64,cluster=1"})]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: f"{way[0].__name__}-{'-'.join(map(str, way[1].values()))}")
@LOW
def test_sums_over_chunks(folder, way, low_bits):
    made, given = way[0](folder, **way[1]), Operands()
    sums = chunk_sums(made, given)
    assert (sums[-1] == 0).all(), "no active rows"
    size = numpy.prod([-(-extent // tile) * tile for extent, tile in zip((VOCAB, DEPTH), made.panel)])
    size = int(size) * low_bits // 8
    low, out = padded(size), numpy.full((VOCAB, OUT_STRIDE), 0x1234, numpy.uint16)
    want = None
    with numpy.errstate(all="ignore"):
        for i, chunk in enumerate(CHUNKS):
            made.run(given, chunk, FIRST if i == 0 else LAST if i + 1 == len(CHUNKS) else SECOND, out, low, low_bits)
            want = sums[0] if i == 0 else want + sums[i]
            if i + 1 < len(CHUNKS):
                want = rounded(want, low_bits)
                nan = numpy.isnan(want)
                assert (out[:, :DEPTH][~nan] == (want.view(numpy.uint32) >> 16)[~nan]).all(), "the upper bits"
                assert numpy.isnan(from_bf16(out[:, :DEPTH])[nan]).all()
    assert same(from_bf16(out[:, :DEPTH]), from_bf16(to_bf16(want)))
    assert (out[:, DEPTH:] == 0x1234).all() and (low[size:] == 0xA5).all()
    assert numpy.isnan(want[:, [5, 6, 9]]).any() and numpy.isposinf(want[21, 7]) and numpy.isfinite(want[:21, 7]).all()
    assert 0 < abs(rounded(sums[0], low_bits)[22, 8]) < 2.0**-126, "a subnormal number"


@pytest.mark.parametrize("way", [(Portable, {}), (Hopper, {})], ids=["portable", "hopper"])
@LOW
def test_errors_are_those_of_sums_in_float32(folder, way, low_bits):
    made, given = way[0](folder, **way[1]), Operands()
    given.hidden[:, 5:10] = to_bf16(numpy.random.default_rng(3).standard_normal((len(given.hidden), 5)))
    given.dz[:3, 21:23] = 0
    low, out = padded(1 << 20), numpy.zeros((VOCAB, OUT_STRIDE), numpy.uint16)
    for i, chunk in enumerate(CHUNKS):
        made.run(given, chunk, FIRST if i == 0 else LAST if i + 1 == len(CHUNKS) else SECOND, out, low, low_bits)
    exact = from_bf16(given.dz[:COUNT, :VOCAB]).astype(float).T @ from_bf16(given.hidden[:COUNT]).astype(float)
    wide = numpy.zeros((VOCAB, DEPTH), numpy.float32)
    for part in chunk_sums(made, given):
        wide += part

    def error(got):
        return numpy.linalg.norm(from_bf16(got) - exact) / numpy.linalg.norm(exact)

    assert error(out[:, :DEPTH]) <= 1.05 * error(to_bf16(wide))
