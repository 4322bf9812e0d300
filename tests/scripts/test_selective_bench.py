"""tests/gpu/selective.py on the CPU: the ways agree with float64, and what is claimed is judged as it should be."""
import json
import sys
import types

import pytest
import torch

import flp
import selective


class StandIn(torch.autograd.Function):
    """What flp.selective_log_softmax is to compute, from float64; off is added to every log-probability."""

    @staticmethod
    def forward(ctx, logits, index, in_place, off):
        ctx.save_for_backward(logits, index)
        ctx.in_place = in_place
        return (logits.double().log_softmax(-1).gather(-1, index) + off).to(logits.dtype)

    @staticmethod
    def backward(ctx, upstream):
        logits, index = ctx.saved_tensors
        gradient = -logits.double().softmax(-1) * upstream.double().sum(-1, keepdim=True)
        gradient = gradient.scatter_add(-1, index, upstream.double()).to(logits.dtype)
        if ctx.in_place:
            gradient = logits.detach().copy_(gradient)
        return gradient, None, None, None


def stand_in(off=0.0):
    def call(logits, index, *, entropy=False, inplace_backward=False):
        one = index.dim() < logits.dim()
        logprob = StandIn.apply(logits, index[..., None] if one else index, inplace_backward, off)
        logprob = logprob[..., 0] if one else logprob
        if not entropy:
            return logprob
        logprobs = logits.double().log_softmax(-1)
        return logprob, -(logprobs.exp() * logprobs).sum(-1).to(logits.dtype)

    return call


def run(tmp_path):
    out = tmp_path / "selective.json"
    status = selective.main(["--cpu", "--tiny", "--rounds", "1", "--burst-ms", "0.1", "--json", str(out)])
    return status, json.loads(out.read_text())


def test_the_script_runs_and_judges_what_it_can(monkeypatch, tmp_path):
    monkeypatch.setattr(flp, "selective_log_softmax", stand_in(), raising=False)
    status, record = run(tmp_path)
    assert [found for found in record["verdicts"] if not found["met"]] == []
    again = tmp_path / "again.json"
    assert selective.main(["--judge", str(tmp_path / "selective.json"), "--json", str(again)]) == 0
    assert json.loads(again.read_text()) == record
    assert status == record["failed"] == 0
    timed = {(row["dtype"], row["pass"], row["way"]) for row in record["rows"] if row["ms"]}
    for dtype in ("float32", "bfloat16"):
        assert {(dtype, "forward", way) for way in ("flp", "flp, with entropy", "naive", "looped")} <= timed
        assert {(dtype, "training", way) for way in ("flp", "flp, in place", "naive", "looped")} <= timed
        assert (dtype, "read", "copy") in timed and (dtype, "read", "read, sum") in timed


@pytest.mark.skipif(not hasattr(flp, "selective_log_softmax"), reason="flp has no selective_log_softmax yet")
def test_the_library_is_as_exact_as_claimed(tmp_path):
    status, record = run(tmp_path)
    assert status == 0, [found for found in record["verdicts"] if not found["met"]]


def test_a_wrong_value_is_found(monkeypatch, tmp_path):
    monkeypatch.setattr(flp, "selective_log_softmax", stand_in(off=-0.05), raising=False)
    status, record = run(tmp_path)
    failed = {(found["dtype"], found["what"]) for found in record["verdicts"] if found["met"] is False}
    assert status == 1 and record["failed"] == len(failed)
    assert {("float32", "flp, error"), ("bfloat16", "flp, wrong bits"), ("float32", "4 a row, error")} <= failed
    assert not any("gradient" in what or "entropy" in what for _, what in failed)


def test_without_the_function_nothing_is_measured(monkeypatch, capsys):
    monkeypatch.delattr(flp, "selective_log_softmax", raising=False)
    assert selective.main(["--cpu", "--tiny"]) == 3
    assert "no selective_log_softmax" in capsys.readouterr().err


# ---- parts ----

@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("way", [selective.naive, selective.looped])
def test_the_ways_that_trainers_run_are_right(way, dtype):
    case = selective.Case(selective.TINY, dtype, torch.device("cpu"), seed=3)
    logprob, gradient = selective.trained(way, case.logits, case.first, case.first_upstream)
    known, _, known_gradient = selective.exact(case.logits, case.first[..., None], case.first_upstream[..., None])
    tolerance = 1e-5 if dtype == torch.float32 else 0.04
    assert torch.allclose(logprob.double(), known[..., 0], atol=tolerance)
    assert torch.allclose(gradient.double(), known_gradient, atol=tolerance)


def test_the_truth_is_what_autograd_makes_of_it():
    logits = torch.randn(2, 3, 9, dtype=torch.float64, requires_grad=True)
    index = torch.tensor([[[1, 1], [0, 8], [3, 4]]] * 2)
    upstream = torch.randn(2, 3, 2, dtype=torch.float64)
    logprob, entropy, gradient = selective.exact(logits, index, upstream)
    assert torch.allclose(logprob, selective.naive(logits, index))
    assert torch.allclose(entropy, torch.distributions.Categorical(logits=logits).entropy())
    assert torch.allclose(gradient, torch.autograd.grad(selective.naive(logits, index), logits, upstream)[0])


def test_a_bit_is_wrong_only_if_no_rounding_of_the_truth_gives_it():
    case = selective.Case(selective.TINY, torch.bfloat16, torch.device("cpu"), seed=1)
    known = selective.exact(case.logits, case.index, case.upstream)[0]
    right = known[..., 0].bfloat16()
    assert selective.bits_of(case, right, known)["wrong_bits"] == 0
    wrong = right.clone()
    wrong[0, 0] *= 1.01
    wrong[1, 3] *= 0.99
    assert selective.bits_of(case, wrong, known)["wrong_bits"] == 2


def made_up_rows(flp_ms=0.5, in_place_ms=1.0, extra=1000):
    return [{"pass": "forward", "way": "flp", "ms": flp_ms, "gbps": 2000 / flp_ms, "extra_bytes": extra},
            {"pass": "training", "way": selective.IN_PLACE, "ms": in_place_ms, "extra_bytes": extra},
            {"pass": "forward", "way": selective.COMPILED[0], "ms": 0.9},
            {"pass": "training", "way": selective.COMPILED[0], "ms": 1.9},
            {"pass": "forward", "way": selective.COMPILED[1], "ms": 0.6, "gbps": 3300.0},
            {"pass": "training", "way": selective.COMPILED[1], "ms": None}]


def claims(found):
    """The verdicts that have a limit."""
    return [one for one in found if "least" in one or "most" in one]


@pytest.mark.parametrize("changed, missed", [
    ({}, []),
    ({"flp_ms": 0.57}, ["forward, share of the read rate", "forward, times faster than torch.compile, dynamic"]),
    ({"in_place_ms": 1.1}, ["in place, times faster than torch.compile, dynamic"]),
    ({"extra": 2 << 20}, ["forward, extra bytes", "in place, extra bytes"])])
def test_times_and_memory_are_held_to_their_limits(changed, missed):
    found = selective.speed_verdicts("float32", made_up_rows(**changed), read_gbps=4400)
    assert [one["what"] for one in claims(found) if not one["met"]] == missed


def test_the_static_form_is_reported_without_a_limit():
    found = {one["what"]: one for one in selective.speed_verdicts("float32", made_up_rows(), read_gbps=4400)}
    assert len(found) == 8 and [what for what, one in found.items() if one not in claims(found.values())] == [
        "forward, times faster than torch.compile, static",
        "forward, the most that the read rate allows over torch.compile, static",
        "in place, times faster than torch.compile, static"]
    gain, most, nothing = (one for one in found.values() if one["met"] is None)
    assert gain["value"] == pytest.approx(1.2) and most["value"] == pytest.approx(4400 / 3300)
    assert nothing["value"] is None


def test_quack_is_called_as_it_wants_and_compared(monkeypatch):
    def cross_entropy(x, target, lse_partial=None, weight=None, ignore_index=-100, reduction="mean",
                      inplace_backward=False):
        assert x.dim() == 2 and target.dim() == 1 and reduction == "none"
        return torch.nn.functional.cross_entropy(x.float(), target, reduction=reduction)

    module = types.ModuleType("quack.cross_entropy")
    module.cross_entropy = cross_entropy
    monkeypatch.setitem(sys.modules, "quack.cross_entropy", module)
    monkeypatch.setitem(sys.modules, "quack", types.ModuleType("quack"))
    case = selective.Case(selective.TINY, torch.float32, torch.device("cpu"), seed=1)
    logprob, gradient = selective.trained(selective.quack_way(True), case.logits, case.first, case.first_upstream)
    expected = selective.trained(selective.naive, case.logits, case.first, case.first_upstream)
    assert torch.allclose(logprob, expected[0], atol=1e-6) and torch.allclose(gradient, expected[1], atol=1e-6)
    rows = [*made_up_rows(), {"pass": "training", "way": selective.QUACK_IN_PLACE, "ms": 0.97}]
    found = {one["what"]: one for one in selective.speed_verdicts("float32", rows, read_gbps=4400)}
    assert found["training of flp, in place, times faster than quack, in place"]["value"] == pytest.approx(0.97)
    assert len(found) == 9


def test_without_quack_its_rows_have_the_reason(monkeypatch):
    monkeypatch.setitem(sys.modules, "quack.cross_entropy", None)
    extra, reason = selective.prepared(lambda: selective.quack_way(False)(None, None), torch.device("cpu"))
    assert extra is None and reason.startswith("ImportError: cannot be imported: ModuleNotFoundError: ")


def test_what_fails_meets_nothing_and_without_a_rival_there_is_no_gain():
    rows = made_up_rows()
    rows[0] = {"pass": "forward", "way": "flp", "ms": None, "reason": "it broke"}
    found = claims(selective.speed_verdicts("float32", rows, 4400))
    assert [one["met"] for one in found] == [False, False, False, True, True]
    for row in rows[2:]:
        row["ms"] = None
    found = claims(selective.speed_verdicts("float32", made_up_rows()[:2] + rows[2:], 4400))
    assert [one["met"] for one in found] == [True, None, True, None, True]
