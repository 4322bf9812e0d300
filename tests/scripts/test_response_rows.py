"""tests/gpu/response_rows.py without a GPU: the record it writes, what it counts as failed, and memory that runs out."""
import json

import pytest
import torch

import response_rows
from test_evidence import check_record

TINY = ["--device", "cpu", "--tokens", "48", "--sequence", "12", "--vocab", "301", "--hidden", "16", "--chunk", "20",
        "--burst-ms", "1"]
WAYS = ["scores", "scores, responses alone", "flp", "flp, all rows"]


def run(tmp_path, *more):
    out = tmp_path / "response_rows.json"
    status = response_rows.main([*TINY, *more, "--json", str(out)])
    return status, json.loads(out.read_text())


def test_every_way_and_pass_has_a_row(tmp_path):
    status, record = run(tmp_path)
    assert status == 0 and check_record({**record, "gpu": "a GPU", "driver": "1"}) is None
    assert record["gpu"] == "none" and record["command"] == " ".join(["tests/gpu/response_rows.py", *TINY])
    assert (record["tokens"], record["share"], record["dtype"], record["failed"]) == (48, 3, "bf16", 0)
    assert [(row["pass"], row["peer"]) for row in record["rows"]] == [
        (which, name) for which in ("forward", "training") for name in WAYS]
    for row in record["rows"]:
        assert row["ms"] > 0 and row["peak_bytes"] is None
        grads = 2 * (48 * 16 + 301 * 16) if row["pass"] == "training" else 0
        assert row["result_bytes"] >= 2 * 4 * 48 + grads
    errors = {row["peer"]: row["error"] for row in record["rows"]}
    assert errors["flp"] < 1e-5 < errors["scores"]


def test_all_ways_agree():
    """In float32; where a token is no response, the values of some ways are 0, and no way has a gradient of it."""
    step = response_rows.Step(response_rows.parser().parse_args([*TINY, "--dtype", "fp32", "--json", "-"]),
                              torch.device("cpu"))
    kept = step.responses
    assert kept.sum() == 16
    want = None
    for name, call in step.ways().items():
        logprob, entropy, grads = step.training(call)
        found = [logprob[kept], entropy[kept], *grads]
        want = found if want is None else want
        assert all(torch.allclose(value, other, atol=1e-4) for value, other in zip(found, want)), name
        assert not entropy.requires_grad


def test_a_wrong_value_fails_it(tmp_path, monkeypatch):
    own = response_rows.Step.of_hidden
    monkeypatch.setattr(response_rows.Step, "of_hidden", lambda step, mask: [value - 0.2 for value in own(step, mask)])
    status, record = run(tmp_path)
    assert status == 1 and record["failed"] == 4


def test_memory_that_runs_out_is_a_reason(tmp_path, monkeypatch, capsys):
    def of_scores(step, rows=None):
        raise RuntimeError("CUDA out of memory. Tried to allocate 30.31 GiB")

    monkeypatch.setattr(response_rows.Step, "of_scores", of_scores)
    status, record = run(tmp_path)
    assert status == 0 and [row["reason"] for row in record["rows"] if row["ms"] is None] == ["out of memory"] * 4
    assert check_record({**record, "gpu": "a GPU", "driver": "1"}) is None and "out of memory" in capsys.readouterr().err


def test_other_errors_end_it(tmp_path, monkeypatch):
    monkeypatch.setattr(response_rows.Step, "of_hidden", lambda step, mask: torch.zeros(2)[:, :1])
    with pytest.raises((RuntimeError, IndexError)):
        run(tmp_path)


def test_the_default_is_the_case_that_was_reported():
    options = response_rows.parser().parse_args(["--json", "x"])
    assert (options.tokens, options.vocab, options.hidden, options.share) == (32768, 248320, 4096, 3)
    assert options.dtype == "bf16"
