"""tests/gpu/head_memory.py, response_rows.py and trainer_step.py without a GPU: their records, what they count as failed,
and memory that runs out."""
import importlib.util
import json
import types

import pytest
import torch

import head_memory
import response_rows
import trainer_step
import ways
from test_evidence import check_record


class Script(types.SimpleNamespace):
    """ours, theirs: class and name of what makes values by flp, and by two other ways; rows: of each two."""

    def run(self, tmp_path, *more):
        """-> exit status, the record"""
        out = tmp_path / "record.json"
        status = self.module.main([*self.tiny, *more, "--json", str(out)])
        return status, json.loads(out.read_text())


HEADS = Script(module=head_memory, ours=(head_memory.Step, "scored"), theirs=(head_memory.Step, "naive"), rows=4,
               command="tests/gpu/head_memory.py", tiny=[
    "--device", "cpu", "--batch", "2", "--length", "9", "--vocab", "301", "--hidden", "16", "--burst-ms", "1"])
RESPONSES = Script(module=response_rows, ours=(response_rows.Step, "of_hidden"),
                   theirs=(response_rows.Step, "of_scores"), rows=4, command="tests/gpu/response_rows.py", tiny=[
    "--device", "cpu", "--tokens", "48", "--sequence", "12", "--vocab", "301", "--hidden", "16", "--chunk", "20",
    "--burst-ms", "1"])
TRAINER = Script(module=trainer_step, ours=(trainer_step.Step, "loss_of"), theirs=(trainer_step.Whole, "scored"),
                 rows=8, command="tests/gpu/trainer_step.py", tiny=[
    "--device", "cpu", "--tokens", "24,48", "--length", "12", "--layers", "2", "--vocab", "301", "--hidden", "128",
    "--burst-ms", "1"])
OF_EACH = pytest.mark.parametrize("script", [HEADS, RESPONSES, TRAINER], ids=["heads", "responses", "trainer"])


class Embedded(torch.nn.Module):
    """A model of transformers without blocks."""

    def __init__(self, options, kind):
        super().__init__()
        dtype = ways.DTYPES[options.dtype]
        self.embed = torch.nn.Embedding(options.vocab, options.hidden, dtype=dtype)
        self.lm_head = torch.nn.Linear(options.hidden, options.vocab, bias=False, dtype=dtype)
        self.lm_head.weight.requires_grad_(kind == "full")

    def get_input_embeddings(self):
        return self.embed

    def model(self, inputs_embeds):
        return types.SimpleNamespace(last_hidden_state=inputs_embeds)


@pytest.fixture(autouse=True)
def models(monkeypatch):
    if not importlib.util.find_spec("transformers"):
        monkeypatch.setattr(trainer_step, "model_of", Embedded)


def check_whole(script, tmp_path, *more):
    status, record = script.run(tmp_path, *more)
    assert status == 0 and check_record({**record, "gpu": "a GPU", "driver": "1"}) is None
    assert record["gpu"] == "none" and record["command"] == " ".join([script.command, *script.tiny, *more])
    assert record["dtype"] == "bf16" and record["failed"] == 0
    assert all(row["ms"] > 0 and row["peak_bytes"] is None for row in record["rows"])
    return record, {row["peer"]: row["error"] for row in record["rows"]}


def test_heads_have_a_row_for_every_size_pass_and_way(tmp_path):
    record, errors = check_whole(HEADS, tmp_path, "--hidden", "16,32")
    assert (record["batch"], record["length"], record["vocab"]) == (2, 9, 301)
    assert [(row["hidden"], row["pass"], row["peer"]) for row in record["rows"]] == [
        (size, which, name) for size in (16, 32) for which in ("forward", "training")
        for name in ("naive", "naive bfloat16", "flp", "eager")]
    for row in record["rows"]:
        grads = 2 * (2 * 9 * row["hidden"] + 301 * row["hidden"]) if row["pass"] == "training" else 0
        assert row["result_bytes"] >= grads + 2 * 8 * (2 if row["peer"] == "naive bfloat16" else 4)
    assert errors["flp"] < 1e-5 and errors["eager"] == errors["naive"] < errors["naive bfloat16"]


def test_responses_have_a_row_for_every_pass_and_way(tmp_path):
    record, errors = check_whole(RESPONSES, tmp_path)
    assert (record["tokens"], record["share"]) == (48, 3)
    assert [(row["pass"], row["peer"]) for row in record["rows"]] == [
        (which, name) for which in ("forward", "training")
        for name in ("scores", "scores, responses alone", "flp", "flp, all rows")]
    for row in record["rows"]:
        grads = 2 * (48 * 16 + 301 * 16) if row["pass"] == "training" else 0
        assert row["result_bytes"] >= 2 * 4 * 48 + grads
    assert errors["flp"] < 1e-5 < errors["scores"]


def test_a_whole_step_has_a_row_for_every_size_training_and_peer(tmp_path):
    record, _ = check_whole(TRAINER, tmp_path)
    peers = [row["peer"] for row in record["rows"][:len(record["rows"]) // 4]]
    assert [(row["pass"], row["tokens"], row["peer"]) for row in record["rows"]] == [
        (trains, tokens, peer) for trains in ("lora", "full") for tokens in (24, 48) for peer in peers]
    assert {"whole", "chunks", "flp", "flp, tail"} <= set(peers)
    assert all(row["error"] < (1e-5 if row["peer"].startswith("flp") else 0.05) for row in record["rows"])


def test_all_ways_of_responses_agree():
    """In float32; where a token is no response, the values of some ways are 0, and no way has a gradient of it."""
    step = response_rows.Step(response_rows.parser().parse_args([*RESPONSES.tiny, "--dtype", "fp32", "--json", "-"]))
    kept = step.responses
    assert kept.sum() == 16
    want = None
    for name, call in step.ways().items():
        (logprob, entropy), grads = step.training(call)
        found = [logprob[kept], entropy[kept], *grads]
        want = found if want is None else want
        assert all(torch.allclose(value, other, atol=1e-4) for value, other in zip(found, want)), name
        assert not entropy.requires_grad


@OF_EACH
def test_a_wrong_value_fails_it(script, tmp_path, monkeypatch):
    own = getattr(*script.ours)
    monkeypatch.setattr(*script.ours, lambda *given: torch.utils._pytree.tree_map(
        lambda value: value - 0.2, own(*given)))
    status, record = script.run(tmp_path)
    assert status == 1 and record["failed"] == script.rows


@OF_EACH
def test_memory_that_runs_out_is_a_reason(script, tmp_path, monkeypatch, capsys):
    def call(step, *given):
        raise RuntimeError("CUDA out of memory. Tried to allocate 9.28 GiB")

    monkeypatch.setattr(*script.theirs, call)
    status, record = script.run(tmp_path)
    assert status == 0 and [row["reason"] for row in record["rows"] if row["ms"] is None] == \
        ["out of memory"] * script.rows
    assert not {row["peer"] for row in record["rows"] if row["ms"] is None} & {"flp", "eager", "flp, all rows", "flp, tail"}
    assert check_record({**record, "gpu": "a GPU", "driver": "1"}) is None and "out of memory" in capsys.readouterr().err


@OF_EACH
def test_other_errors_end_it(script, tmp_path, monkeypatch):
    monkeypatch.setattr(*script.ours, lambda *_: torch.zeros(2)[:, :1])
    with pytest.raises((RuntimeError, IndexError)):
        script.run(tmp_path)


@pytest.mark.parametrize("script, sizes", [
    (HEADS, {"batch": 8, "length": 2048, "vocab": 151936, "hidden": "2048,4096", "dtype": "bf16"}),
    (TRAINER, {"tokens": "4096,16384,65536", "hidden": 2048, "vocab": 151936, "dtype": "bf16"}),
    (RESPONSES, {"tokens": 32768, "vocab": 248320, "hidden": 4096, "share": 3, "dtype": "bf16"})])
def test_the_default_is_the_case_that_was_reported(script, sizes):
    assert sizes.items() <= vars(script.module.parser().parse_args(["--json", "x"])).items()
