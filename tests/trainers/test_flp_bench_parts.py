"""The measuring parts of flp.bench: bursts, rounds, GEMM baselines, memory, the fp64 reference, the record's text."""
import json
import math
import time
import types

import pytest
import torch
from flp_bench_tool import parsed, tensors_of

from flp.bench import baseline, cases, clock, cublaslt, memory, record, reference, rounds
from flp.bench.peers import seam


class FakeClock:
    """Each call takes as long as its text."""

    def __init__(self):
        self.log = []

    def burst(self, call, repeats):
        ms = sum(call() for _ in range(repeats))
        self.log.append((call.__name__, ms))
        return ms

    def synchronize(self):
        pass


def test_bursts_are_long_enough_and_rounds_are_shuffled():
    def quick():
        return 0.5

    def slow():
        return 9.0

    def third():
        return 2.0

    timer = FakeClock()
    subjects = [rounds.Subject(call.__name__, call) for call in (quick, slow, third)]
    assert rounds.measure(subjects, timer, 8, 10.0, 1) == 8
    assert [subject.summary() for subject in subjects] == [(0.5, 0.5, 0.5), (9.0, 9.0, 9.0), (2.0, 2.0, 2.0)]
    taken = timer.log[6:]  # after two bursts each to size them
    assert all(ms >= 10 for _, ms in taken)
    orders = [tuple(name for name, _ in taken[start:start + 3]) for start in range(0, 24, 3)]
    assert all(sorted(order) == ["quick", "slow", "third"] for order in orders) and len(set(orders)) > 1


def test_a_burst_that_came_out_short_is_taken_again():
    durations = iter([1.0] * 3 + [3.0] * 100)
    call_ms, repeats = clock.sample(FakeClock(), lambda: next(durations), 3, 10.0)
    assert call_ms == 3.0 and repeats * 1.0 >= 10


def test_rounds_end_early_but_not_at_once():
    subject = rounds.Subject("a", lambda: 20.0)
    assert rounds.measure([subject], FakeClock(), 9, 10.0, 1, deadline=time.monotonic()) == rounds.ROUNDS_LEAST
    assert len(subject.samples) == rounds.ROUNDS_LEAST


def test_the_gemm_baselines_are_the_best_backends():
    tensors = tensors_of(parsed())
    products = baseline.Baselines(tensors, cases.PRODUCTS, torch.device("cpu"))
    assert [key[0] for key in products.subjects] == list(cases.PRODUCTS)
    for key in list(products.subjects):
        products.subjects[key[0], "other"] = rounds.Subject("other", None)
        products.subjects[key[0], "other"].samples = [1.0, 3.0, 2.0]
        products.subjects[key].samples = [4.0]
    assert products.best_ms("scores") == 2.0
    assert products.case_ms(cases.Case(6, 16, 96, grads=("hidden", "weight"))) == 8.0
    assert [row["best"] for row in products.rows()] == [False] * 3 + [True] * 3
    products.subjects = {("scores", "default"): rounds.Subject("none", None)}
    assert products.case_ms(cases.Case(6, 16, 96)) is None


def test_the_first_is_torch_by_cublaslt():
    products = baseline.Baselines(tensors_of(parsed()), ["scores"], torch.device("cpu"))
    assert products.first_ms("scores") is None
    products.subjects["scores", "default"].samples = [3.0]
    case = cases.Case(6, 16, 96)
    assert products.both_ms(case) == (3.0, 3.0)
    for backend, ms in (("cublas", 2.5), ("cublaslt", 2.8), ("cublaslt, best of 8", 2.0)):
        products.subjects["scores", backend] = rounds.Subject(backend, None)
        products.subjects["scores", backend].samples = [ms]
    assert products.both_ms(case) == (2.0, 2.8)


def test_the_fastest_algorithm_is_chosen_by_the_medians():
    def call(times):
        return lambda: next(times)

    steady, lucky = call(iter([30.0] * 99)), call(iter([1.0] + [40.0] * 99))
    for made in (steady, lucky):
        made.__name__ = "algorithm"
    assert baseline.fastest([lucky, steady], FakeClock(), 1) is steady


class FakeCublasLt:
    """Computes nothing: keeps what it is called with, names three algorithms, refuses the last two in two ways."""

    def __init__(self):
        self.called = []

    def __getattr__(self, name):
        def function(*arguments):
            self.called.append((name, arguments))
            if name == "cublasLtMatmulAlgoGetHeuristic":
                results, count = arguments[-2], arguments[-1]._obj
                count.value = 3
                for i in range(3):
                    results[i].algo[0] = 10 + i
                results[1].state = 15
            return 13 if name == "cublasLtMatmul" and arguments[12]._obj[0] == 12 else 0
        return function


def made_by(fake, a, b, out, monkeypatch):
    monkeypatch.setattr(cublaslt, "WORKSPACE_BYTES", 64)
    monkeypatch.setattr(cublaslt.ctypes, "CDLL", lambda path: fake)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: types.SimpleNamespace(cuda_stream=7))
    return cublaslt.Product(cublaslt.Library(), a, b, out)


def test_a_product_by_cublaslt_sees_its_matrices_column_by_column(monkeypatch):
    hidden, weight, scores = torch.zeros(6, 16), torch.zeros(96, 16), torch.zeros(6, 96)
    fake = FakeCublasLt()
    product = made_by(fake, scores.t(), hidden, torch.zeros(96, 16), monkeypatch)
    layouts = [tuple(int(getattr(value, "value", value)) for value in arguments[1:])
               for name, arguments in fake.called if name == "cublasLtMatrixLayoutCreate"]
    assert layouts == [(0, 16, 6, 16), (0, 96, 6, 96), (0, 16, 96, 16)]
    turned = [arguments[2]._obj.value for name, arguments in fake.called if name == "cublasLtMatmulDescSetAttribute"]
    assert turned == [0, 1]
    assert len(product.algorithms) == 2 and len(product.calls()) == 1, "one is marked, one is refused"
    assert cublaslt.view_of(weight.t()) == (16, 96, 16, True)
    with pytest.raises(ValueError, match="row-major"):
        cublaslt.view_of(hidden[:, :8])


def test_without_cublaslt_its_row_has_the_reason(monkeypatch):
    products = baseline.Baselines(tensors_of(parsed()), ["scores"], torch.device("cpu"))
    products.choose(None, 1)
    assert list(products.subjects) == [("scores", "default")], "nothing to choose from on the CPU"
    products.device = torch.device("cuda")
    monkeypatch.setattr(cublaslt, "path_of_loaded", lambda: "/no/such/libcublasLt.so.13")
    products.choose(None, 1)
    row = products.rows()[1]
    assert row["ms"] is None and row["reason"].startswith("OSError: /no/such/libcublasLt.so.13")


def test_the_backend_is_set_for_the_call_alone(monkeypatch):
    state = ["before"]

    def choose(name=None):
        if name is not None:
            state.append(name)
        return state[-1]

    monkeypatch.setattr(torch.backends.cuda, "preferred_blas_library", choose, raising=False)
    seen = []
    baseline.under("cublaslt", lambda: seen.append(state[-1]))()
    assert seen == ["cublaslt"] and state[-1] == "before"
    with pytest.raises(ZeroDivisionError):
        baseline.under("cublas", lambda: 1 / 0)()
    assert state[-1] == "before"


def test_bytes_count_each_tensor_once():
    one, two = torch.zeros(5), torch.zeros(3, dtype=torch.bfloat16)
    assert memory.bytes_of((seam.Result(one, None, None), (two, {"again": one}))) == 26


def test_reference_over_chunks_is_the_reference(monkeypatch):
    """Chunks of a few columns, a sample of the rows, and scores that differ by hundreds."""
    tensors = tensors_of(parsed("--rows", "40", "--dtype", "fp32"))
    tensors.hidden.mul_(100)
    whole = reference.Reference(tensors, None, 3)
    monkeypatch.setattr(reference, "CHUNK_BYTES", 8 * 40 * 5)
    monkeypatch.setattr(reference, "AFFORDABLE_FLOPS", 0)
    monkeypatch.setattr(reference, "SAMPLE_ROWS", 7)
    part = reference.Reference(tensors, None, 3)
    assert whole.whole and not part.whole and part.rows.numel() == 7 and whole.rows.numel() == 40
    upstream = (tensors.grad_logprob, tensors.grad_entropy)
    assert torch.allclose(whole.logprob[part.rows], part.logprob, rtol=1e-12)
    assert torch.allclose(whole.entropy[part.rows], part.entropy, rtol=1e-9, atol=1e-12)
    assert torch.allclose(whole.grad_hidden(upstream)[part.rows], part.grad_hidden(upstream), rtol=1e-9, atol=1e-12)
    assert part.grad_weight(upstream) is None and part.mean_loss is None
    logp = torch.log_softmax(tensors.hidden.double() @ tensors.weight.double().t(), -1)
    assert torch.allclose(whole.entropy, -(logp.exp() * logp).sum(-1), rtol=1e-9, atol=1e-12)


def test_record_rounds_and_has_no_nan():
    text = record.text_of({"gpu": "none", "x": 1 / 3, "rows": [{"ms": math.nan}, {"ms": 123456789.0}]})
    assert json.loads(text) == {"gpu": "none", "x": 0.333333, "rows": [{"ms": None}, {"ms": 123457000.0}]}
    assert text.endswith(' "rows": [\n  {"ms":null},\n  {"ms":123457000.0}\n ]\n}\n')
