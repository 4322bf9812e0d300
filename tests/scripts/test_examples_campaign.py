"""tests/gpu/examples.py: every example is run or has a reason, and one that does not show what it should has failed."""
import json
import sys

import pytest

import examples
from installed import run


def test_every_example_is_known():
    files = {path.stem for path in (examples.PYTHON / "examples").glob("*.py") if not path.stem.startswith("_")}
    assert files <= {example.name for example in examples.EXAMPLES}


@pytest.mark.long
def test_tiny_run_makes_one_record(tmp_path):
    out = tmp_path / "examples.json"
    run(sys.executable, examples.__file__, "--tiny", "--json", out)
    record = json.loads(out.read_text())
    assert record["failed"] == 0 and record["gpu"] == "none" and record["command"] == "tests/gpu/examples.py --tiny"
    rows = {row["example"]: row for row in record["rows"]}
    assert set(rows) == {example.name for example in examples.EXAMPLES}
    for name in ("train_tiny_lm", "grpo_tiny", "grpo_lora", "gated_batch", "distill", "draft_head", "mtp",
                 "long_context", "tensor_parallel"):
        assert rows[name]["status"] == "ran" and rows[name]["results"] and rows[name]["seconds"] > 0
    for name in ("ten_lines", "hf_logprobs"):
        assert rows[name]["status"] == "ran" or rows[name]["reason"].endswith("is not installed")
    assert rows["grpo_lora"]["shows"]["reward_end"] > rows["grpo_lora"]["shows"]["reward_start"]
    assert str(tmp_path) not in out.read_text()


# ---- one example ----

@pytest.fixture
def example(tmp_path, monkeypatch):
    """-> a function that makes an example of a script's text"""
    def make(text, shows=examples.rewards_rise):
        made = examples.Example("made_up", shows, tiny=[])
        made.script = tmp_path / "made_up.py"
        made.script.write_text("import json, sys, time\nout = sys.argv[sys.argv.index('--json') + 1]\n" + text)
        return made

    monkeypatch.setattr(examples, "TREE", tmp_path)
    return make


def rewards(*values):
    return "json.dump({'results': {'rewards': %r, 'peak_bytes_above_held': None}}, open(out, 'w'))" % (list(values),)


def test_what_it_wrote_is_judged(example):
    row = examples.run(example(rewards(0.5, 0.5, 0.5, 0.9, 0.9, 0.9)), True, 600)
    assert row["status"] == "ran" and row["shows"]["reward_end"] == pytest.approx(0.9)
    row = examples.run(example(rewards(0.5, 0.5, 0.5, 0.5, 0.5, 0.5)), True, 600)
    assert row["status"] == "failed" and "rewards went from 0.500 to 0.500" in row["reason"]


@pytest.mark.parametrize("text, reason", [
    ("sys.exit('it broke')", "exit status 1: it broke"), ("time.sleep(30)", "not done within 1 s"),
    ("open(out, 'w').write('no record')", "JSONDecodeError"), ("pass", "KeyError: 'results'")])
def test_failures_have_reasons(example, text, reason):
    row = examples.run(example(text), True, 1 if "sleep" in text else 600)
    assert row["status"] == "failed" and reason in row["reason"]


def test_what_cannot_run_here_is_skipped_with_a_reason(monkeypatch):
    absent = examples.Example("not_there", examples.rewards_rise)
    assert examples.run(absent, False, 1)["reason"] == "not_there.py is not there"
    monkeypatch.setattr(examples.torch.cuda, "device_count", lambda: 1)
    wide = examples.Example("grpo_tiny", examples.rewards_rise, gpus=2)
    assert wide.reason_against(tiny=False) == "needs 2 GPUs, 1 are here"
    bare = examples.Example("grpo_tiny", examples.rewards_rise, needs=("no_such_package",))
    assert bare.reason_against(tiny=False) == "no_such_package is not installed"


# ---- what they show ----

def long_record(naive_ms, **changed):
    naive = {"part": "step", "way": "naive, fp32", "ms": naive_ms, "reason": "CUDA out of memory.",
             "requested_bytes": 65}
    ours = [{"part": part, "way": "flp", "ms": 9.0, "peak_bytes_above_held": 7, "logprob_error": 1e-6}
            for part in ("loss", "step")]
    return {"failed": 0, "faults": [], "gpu_memory_bytes": 141, "rows": [*ours, naive], **changed}


def test_the_naive_path_must_not_fit():
    shown = examples.naive_does_not_fit(long_record(None), "")
    assert shown["naive_requested_bytes"] == 65 and shown["naive_error"] == "CUDA out of memory."
    with pytest.raises(examples.Unshown, match="the naive step took 5.0 ms"):
        examples.naive_does_not_fit(long_record(5.0), "")
    with pytest.raises(examples.Unshown, match="beyond the budget"):
        examples.naive_does_not_fit(long_record(None, failed=1, faults=["beyond the budget"]), "")


def test_losses_that_fall():
    """Those that do not are in tests/golden/refused/python/scripts.txt."""
    falling = [7 - 0.1 * step for step in range(20)]
    assert examples.ten_losses_fall({"results": {"losses": falling}}, "") == {
        "loss_start": 7, "loss_end": pytest.approx(5.1)}
    assert examples.losses_are_finite({"results": {"losses": [1.0] * 8}}, "")["loss_end"] == 1
    rank = {"losses_two_processes": [1.0, 0.9], "losses_one": [1.0, 0.9]}
    assert examples.two_processes_are_one({"results": {"ranks": [rank, rank]}}, "")["largest_loss_difference"] == 0
