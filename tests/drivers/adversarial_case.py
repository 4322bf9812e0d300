"""Hostile operands for a head: what a row, a bias, an id, a temperature or an upstream gradient may hold and still be
the caller's right. Everything comes from one generator, so a try is repeated by its seed and number."""
from dataclasses import dataclass, field

import numpy

LOSS = "grpo+k3+entropy"
BF16, FP16, FP32 = "bf16", "fp16", "fp32"


@dataclass(frozen=True)
class Shape:
    """What a plan is made for."""
    vocab: int = 33
    depth: int = 16
    dtype: str = BF16
    entropy: int = 2
    grads: int = 7
    bias: bool = True
    softcap: float = 0.0
    per_row: bool = True
    wide: bool = True         # gradients in fp32
    accumulate: bool = False
    narrow_ids: bool = False  # int32
    loss: bool = False
    chunk_rows: int = 0
    chunk_vocab: int = 0
    mode: int = 0


def narrowed(x, dtype):
    """float64 -> what memory holds, and its value in float64."""
    with numpy.errstate(over="ignore", invalid="ignore"):
        if dtype == FP16:
            bits = numpy.asarray(x, numpy.float16)
            return bits, bits.astype(numpy.float64)
        single = numpy.asarray(x, numpy.float32)
    if dtype == FP32:
        return single, single.astype(numpy.float64)
    wide = single.view(numpy.uint32).astype(numpy.uint64)
    bits = ((wide + 0x7FFF + (wide >> 16 & 1)) >> 16).astype(numpy.uint16)
    bits[numpy.isnan(single)] = 0x7FC0
    return bits, widened(bits, dtype)


def widened(stored, dtype):
    if dtype == BF16 and stored.dtype == numpy.uint16:
        return (stored.astype(numpy.uint32) << 16).view(numpy.float32).astype(numpy.float64)
    return stored.astype(numpy.float64)


@dataclass
class Case:
    """One problem; arrays are float64 with the values that memory holds."""
    shape: Shape
    n: int
    shards: int
    valid: int                    # real rows of the last shard's weight
    hidden: numpy.ndarray = None  # (n, depth)
    weight: numpy.ndarray = None  # (shards * vocab, depth)
    bias: numpy.ndarray = None
    target: numpy.ndarray = None
    temperature: numpy.ndarray = None
    scale: float = 1.0
    ignore: int = -100
    rows: numpy.ndarray = None    # a list with repeats, or None
    g: numpy.ndarray = None
    e: numpy.ndarray = None
    pads: dict = field(default_factory=dict)  # elements between rows: hidden, weight, grad_hidden, grad_weight
    tight: bool = False           # the smallest workspace
    words: list = field(default_factory=list)

    @property
    def total(self):
        return (self.shards - 1) * self.shape.vocab + self.valid


def one_in(random, odds):
    return random.integers(odds) == 0


def pick(random, *values):
    return values[random.integers(len(values))]


def draw_hidden(case, random):
    """Each row of its own kind."""
    shape, out = case.shape, random.standard_normal((case.n, case.shape.depth))
    large = 1e3 if shape.dtype == FP16 else 1e4
    for row in range(case.n):
        kind = pick(random, "plain", "plain", "plain", "tiny", "large", "zero", "sharp", "nan", "inf")
        if kind == "tiny":
            out[row] *= 1e-3
        elif kind == "large":
            out[row] *= pick(random, 30, 300, large)
        elif kind == "zero":
            out[row] = 0
        elif kind == "sharp":  # one column has all the probability
            out[row] = 20 * case.weight[random.integers(case.total)]
        elif kind == "nan" and one_in(random, 3):
            out[row, random.integers(shape.depth)] = numpy.nan
        elif kind == "inf" and one_in(random, 3):
            out[row, random.integers(shape.depth)] = pick(random, 1, -1) * numpy.inf
    return out


def draw_bias(case, random):
    out = random.standard_normal(case.shards * case.shape.vocab) * pick(random, 1, 1, 100)
    special = pick(random, "", "", "", "", "-inf", "-inf", "some -inf", "all -inf", "inf", "nan")
    at = random.integers(case.total)
    if special == "some -inf":
        out[random.random(len(out)) < 0.5] = -numpy.inf
    elif special == "all -inf" and one_in(random, 2):
        out[:] = -numpy.inf
    elif special in ("-inf", "inf", "nan") and (special == "-inf" or one_in(random, 3)):
        out[at] = float(special)
    case.words.append(f"bias {special or 'plain'}")
    return out


def draw_targets(case, random):
    shape = case.shape
    out = random.integers(0, case.total, case.n)
    case.ignore = int(pick(random, -100, -100, 0, case.total - 1))
    low, high = (-2**31, 2**31 - 1) if shape.narrow_ids else (-2**63, 2**63 - 1)
    for row in range(case.n):
        if one_in(random, 6):
            out[row] = case.ignore
        elif one_in(random, 12):
            out[row] = pick(random, low, high, -1, case.total, -2**31, 2**31 - 1)
    return out


def draw_temperature(case, random):
    """By row 1e-6 to 1e6, and what is none; else one for all."""
    if not case.shape.per_row:
        return numpy.full(case.n, numpy.float32(pick(random, 1, 0.7, 1e-3, 1e4)))
    out = 10 ** random.uniform(-1, 1, case.n)
    for row in range(case.n):
        if one_in(random, 6):
            out[row] = 10 ** random.uniform(-6, 6)
        elif one_in(random, 16):
            out[row] = pick(random, 0.0, -0.0, -1.0, numpy.inf, -numpy.inf, numpy.nan)
    return out.astype(numpy.float32)


def draw_upstream(case, random):
    g, e = random.standard_normal((2, case.n))
    for x in (g, e):
        x[random.random(case.n) < 0.3] = 0
        if case.shape.dtype != FP16 and one_in(random, 4):
            x[random.integers(case.n)] *= pick(random, 1e-20, 1e6, 1e15)
        if one_in(random, 8):
            x[random.integers(case.n)] = numpy.nan
    if case.shape.entropy != 2:
        e[:] = 0
    return g.astype(numpy.float32), e.astype(numpy.float32)


def draw(shape, random, most_rows=24):
    shards = 1 if shape.loss else int(pick(random, 1, 1, 1, 2))
    valid = shape.vocab if one_in(random, 2) else int(random.integers(1, shape.vocab + 1))
    case = Case(shape, n=int(random.integers(1, most_rows + 1)), shards=shards, valid=valid)
    weight = random.standard_normal((shards * shape.vocab, shape.depth)) * pick(random, 1e-3, 0.3, 1, 1)
    if one_in(random, 6):
        weight[:] = weight[0]  # all columns are equal
        case.words.append("equal columns")
    case.weight = narrowed(weight, shape.dtype)[1]
    case.hidden = narrowed(draw_hidden(case, random), shape.dtype)[1]
    case.bias = narrowed(draw_bias(case, random), shape.dtype)[1] if shape.bias else numpy.zeros(len(weight))
    case.temperature = draw_temperature(case, random)
    case.target = draw_targets(case, random)
    # scores of log2(e)·|t| up to 2^29 and beyond 2^31, where hidden and temperature alone do not reach
    case.scale = float(numpy.float32(pick(random, 1, 1, 1, 1, -2, 0, 1e-6, 1e3, 1e6)))
    if one_in(random, 3):
        case.rows = random.integers(0, case.n, random.integers(1, 2 * case.n + 1)).astype(numpy.int32)
        if one_in(random, 4):
            case.rows[random.integers(len(case.rows))] = pick(random, -1, case.n, 2**31 - 1, -2**31)
    case.g, case.e = draw_upstream(case, random)
    case.pads = {name: int(pick(random, 0, 0, 8, 24)) for name in ("hidden", "weight", "grad_hidden", "grad_weight")}
    case.tight = bool(one_in(random, 3))
    return case
