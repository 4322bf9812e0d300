"""The products of saved exponentials with a factor a row, sm_80's and Hopper's, and losses by active row, on the CPU
against NumPy in double."""
import numpy
import pytest
from cpu_kernel import Kernel, kernels, matrix_map, needs_emit, needs_llc
from flpgen_tool import flpgen, from_bf16, needs_flpgen, to_bf16

pytestmark = [needs_llc, needs_emit]

ROWS, COUNT, BEGIN, VOCAB, DEPTH, STRIDE = 150, 140, 3, 331, 72, 384
WANTED, WRITE_OUT, OUT_F32 = 1, 8, 16     # FLP_PRODUCT_*


class Case:
    """kept of active rows [BEGIN, ROWS), of which COUNT exist, and what both products read."""

    def __init__(self):
        random = numpy.random.default_rng(11)
        self.kept = numpy.zeros((ROWS - BEGIN, STRIDE), numpy.uint16)
        self.kept[:COUNT - BEGIN, :VOCAB] = to_bf16(numpy.exp2(random.standard_normal((COUNT - BEGIN, VOCAB)) * 3 - 20))
        self.weight = to_bf16(random.standard_normal((VOCAB, DEPTH)))
        self.scaled = numpy.zeros((ROWS - BEGIN, DEPTH), numpy.uint16)   # what keep_gather makes
        self.scaled[:COUNT - BEGIN] = to_bf16(random.standard_normal((COUNT - BEGIN, DEPTH)))
        self.index = numpy.sort(random.permutation(200)[:ROWS]).astype(numpy.int32)
        self.factor = random.standard_normal(ROWS).astype(numpy.float32) * 1e6
        self.factor[BEGIN + 2] = 0

    def common(self, factor):
        return {"index": self.index, "count": numpy.array([COUNT], numpy.int32), "depth": DEPTH, "row_begin": BEGIN,
                "row_end": ROWS, "column_end": VOCAB, "factor": self.factor if factor else None}

    def hold(self, grad_hidden, grad_weight, factor):
        kept = from_bf16(self.kept[:COUNT - BEGIN, :VOCAB]).astype(float)
        expected = kept @ from_bf16(self.weight).astype(float)
        if factor:
            expected *= self.factor[BEGIN:COUNT, None]
        assert numpy.abs(grad_hidden[self.index[BEGIN:COUNT]] - expected).max() < 1e-5 * numpy.abs(expected).max()
        others = numpy.setdiff1d(range(200), self.index[BEGIN:COUNT])
        assert (grad_hidden[others] == 7.5).all() and (not factor or (grad_hidden[self.index[BEGIN + 2]] == 0).all())
        expected = kept.T @ from_bf16(self.scaled[:COUNT - BEGIN]).astype(float)
        assert numpy.abs(grad_weight - expected).max() < 1e-5 * numpy.abs(expected).max()


def outputs():
    return numpy.full((200, DEPTH), 7.5, numpy.float32), numpy.full((VOCAB, DEPTH), 7.5, numpy.float32)


@pytest.mark.parametrize("factor", [True, False])
def test_portable(folder, factor):
    case, (grad_hidden, grad_weight) = Case(), outputs()
    for name, size, operand, out in (("grad_hidden", ROWS - BEGIN, case.weight, grad_hidden),
                                     ("grad_weight", VOCAB, case.scaled, grad_weight)):
        made, tile = kernels(folder, kind=name, out_dtype="fp32")
        tiles = -(-size // tile["rows"])
        values = {**case.common(factor), "dz": case.kept, "dz_stride": STRIDE, "operand": operand, "operand_stride": DEPTH,
                  "tiles_m": tiles, "tiles_n": 1, "out": out, "out_stride": DEPTH, "write_out": 1}
        if name == "grad_weight":
            values["index"] = None
        made[name].named(tiles, **values)
    case.hold(grad_hidden, grad_weight, factor)


@pytest.mark.parametrize("factor", [True, False])
def test_hopper(folder, factor):
    case, (grad_hidden, grad_weight) = Case(), outputs()
    made, tile = kernels(folder, kind="products", arch="sm_90a")
    scaled, flags = matrix_map(case.scaled, 64), WANTED | WRITE_OUT | OUT_F32
    made["products_map"].named(
        2 * tile["cluster"], **case.common(factor), dz_map=matrix_map(case.kept[:, :VOCAB], 64),
        weight_map=matrix_map(case.weight, 64), hidden_map=scaled, gathered_map=scaled, n=200,
        hidden_out=grad_hidden, hidden_out_stride=DEPTH, hidden_flags=flags, weight_out=grad_weight, weight_out_stride=DEPTH,
        weight_flags=flags, turn=numpy.zeros(1, numpy.int32))
    case.hold(grad_hidden, grad_weight, factor)


@pytest.fixture(scope="module")
def loss(folder):
    """reinforce+entropy: -weight·advantage·logprob and the entropy bonus."""
    document = flpgen("loss", "show", "reinforce+entropy", "--emit", "ir", "--json").json()
    return Kernel(document["ir"], "loss_rows", 256, folder), len(document["metrics"])


@needs_flpgen
def test_losses_by_active_row(loss):
    """Active rows [2, 30) of which 25 exist; the other rows keep what they have."""
    kernel, metrics = loss
    random = numpy.random.default_rng(13)
    n, begin, end, count = 50, 2, 30, 25
    inputs = {name: random.standard_normal(n).astype(numpy.float32)
              for name in ("logprob", "entropy", "old_logprob", "ref_logprob", "advantage", "weight")}
    index = numpy.sort(random.permutation(n)[:count]).astype(numpy.int32)

    def run(grid, **values):
        out = {name: numpy.full(n, 7.5, numpy.float32) for name in ("loss", "grad_logprob", "grad_entropy")}
        out["metrics"] = numpy.full((max(metrics, 1), n), 7.5, numpy.float32)
        kernel.named(grid, **inputs, parameter0=0.01, parameter1=0.01, n=n, **values, **out)
        return out

    everywhere = run(1)
    listed = run(1, index=index, count=numpy.array([count], numpy.int32), row_begin=begin, row_end=end)
    mine = index[begin:]
    others = numpy.setdiff1d(range(n), mine)
    assert (everywhere["grad_logprob"] != 7.5).all()
    for name, values in listed.items():
        assert (values[..., mine] == everywhere[name][..., mine]).all() and (values[..., others] == 7.5).all()


@needs_flpgen
def test_losses_of_rows_without_work(loss):
    kernel, metrics = loss
    row_class = numpy.array([0, 1, 2, 0, 1] * 60, numpy.uint8)   # active, left out, bad
    n = len(row_class)
    out, by_metric = numpy.full(n, 7.5, numpy.float32), numpy.full((max(metrics, 1), n), 7.5, numpy.float32)
    kernel.named(2, n=n, row_class=row_class, loss=out, metrics=by_metric)
    for values in (out, *by_metric[:metrics]):
        assert (values[row_class == 0] == 7.5).all() and (values[row_class == 1] == 0).all()
        assert numpy.isnan(values[row_class == 2]).all()
