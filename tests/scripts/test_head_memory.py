"""tests/gpu/head_memory.py without a GPU: the record it writes, what it counts as failed, and memory that runs out."""
import json

import pytest
import torch

import head_memory
from test_evidence import check_record

TINY = ["--device", "cpu", "--batch", "2", "--length", "9", "--vocab", "301", "--hidden", "16,32", "--burst-ms", "1"]


def run(tmp_path, *more):
    out = tmp_path / "head_memory.json"
    status = head_memory.main([*TINY, *more, "--json", str(out)])
    return status, json.loads(out.read_text())


def test_every_way_and_pass_has_a_row(tmp_path):
    status, record = run(tmp_path)
    assert status == 0 and check_record({**record, "gpu": "a GPU", "driver": "1"}) is None
    assert record["gpu"] == "none" and record["command"] == " ".join(["tests/gpu/head_memory.py", *TINY])
    assert (record["batch"], record["length"], record["vocab"], record["dtype"], record["failed"]) == (2, 9, 301, "bf16", 0)
    assert [(row["hidden"], row["pass"], row["peer"]) for row in record["rows"]] == [
        (size, which, name) for size in (16, 32) for which in ("forward", "training")
        for name in ("naive", "naive bfloat16", "flp", "eager")]
    for row in record["rows"]:
        grads = 2 * (2 * 9 * row["hidden"] + 301 * row["hidden"]) if row["pass"] == "training" else 0
        logprobs = 2 * 8 * (2 if row["peer"] == "naive bfloat16" else 4)
        assert row["ms"] > 0 and row["peak_bytes"] is None and row["result_bytes"] >= grads + logprobs
    errors = {row["peer"]: row["error"] for row in record["rows"]}
    assert errors["flp"] < 1e-5 and errors["eager"] == errors["naive"] < errors["naive bfloat16"]


def test_a_wrong_value_fails_it(tmp_path, monkeypatch):
    scored = head_memory.Step.scored
    monkeypatch.setattr(head_memory.Step, "scored", lambda step: scored(step) - 0.2)
    status, record = run(tmp_path, "--hidden", "16")
    assert status == 1 and record["failed"] == 4


def test_memory_that_runs_out_is_a_reason(tmp_path, monkeypatch, capsys):
    def naive(step, dtype=torch.float32):
        raise RuntimeError("CUDA out of memory. Tried to allocate 9.28 GiB")

    monkeypatch.setattr(head_memory.Step, "naive", naive)
    status, record = run(tmp_path, "--hidden", "16")
    naive_rows = [row for row in record["rows"] if row["peer"].startswith("naive")]
    assert status == 0 and all(row["ms"] is None and row["reason"] == "out of memory" for row in naive_rows)
    assert check_record({**record, "gpu": "a GPU", "driver": "1"}) is None and "out of memory" in capsys.readouterr().err


def test_other_errors_end_it(tmp_path, monkeypatch):
    monkeypatch.setattr(head_memory.Step, "scored", lambda step: torch.zeros(2)[:, :1].matmul(torch.zeros(3)))
    with pytest.raises((RuntimeError, IndexError)):
        run(tmp_path)


def test_the_default_is_the_table_of_issue_5():
    options = head_memory.parser().parse_args(["--json", "x"])
    assert (options.batch, options.length, options.vocab, options.hidden) == (8, 2048, 151936, "2048,4096")
    assert options.dtype == "bf16"
