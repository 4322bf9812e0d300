"""python -m flp.bench on the CPU: the whole path, its command line, and failures that stay where they are."""
import importlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import flpgen_tool
import pytest
import torch
from flp_bench_tool import SHAPE, parsed, record_of
from test_evidence import check_record

from flp.bench import cases, clock, limits, main, options, ours, peers, rounds, run
from flp.bench.peers import naive

PYTHON = {"FLP_PYTHON": sys.executable, "PYTHONPATH": os.environ["PYTHONPATH"]}
TREE = Path(os.environ.get("FLP_TEST_TREE") or Path(__file__).resolve().parents[2])


def rows_of(result, **fields):
    return [row for row in result["rows"] if all(row[name] == value for name, value in fields.items())]


# ---- the whole path ----

def test_record_has_the_head_of_flpgen_bench_and_every_row_its_figures(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(peers.cce.Cce, "load", lambda self: importlib.import_module("no_such_library"))
    result = record_of(tmp_path / "out.json", "--peers", "torch-fp32,torch-16bit,cce", "--grad", "hidden,weight",
                       "--grad", "hidden", "--entropy", "none,backward")
    known = json.loads(next((TREE / "autotune" / "bench").glob("bench_*.json")).read_text())
    head = ["gpu", "driver", "sources_hash", "command", "date"]
    assert list(result)[:5] == list(known)[:5] == head and list(result)[-1] == list(known)[-1] == "rows"
    shared = "case N D V dtype gemms ms bare_ms ratio extra_bytes entropy grads".split()
    assert set(shared) <= set(known["rows"][0])
    assert set(shared + ["peer"]) <= set(result["rows"][0])
    assert len(result["rows"]) == 4 * 6
    for row in result["rows"]:
        assert row["gemms"] == {"forward": 1}.get(row["case"], 2 + len(row["grads"]))
        if row["peer"] == "cce":
            assert row["ms"] is None and "no_such_library" in row["reason"]
            continue
        assert 0 < row["ms_low"] <= row["ms"] <= row["ms_high"]
        assert row["ratio"] == pytest.approx(row["ms"] / row["bare_ms"], rel=1e-4)
        assert row["first_ratio"] == pytest.approx(row["ms"] / row["first_ms"], rel=1e-4)
        assert row["bare_ms"] <= row["first_ms"]
    printed = capsys.readouterr().out
    assert "flp: rung eager, mode recompute-" in printed
    assert {row["rung"] for row in rows_of(result, peer="flp")} == {"eager"}
    assert "absent: cce (ModuleNotFoundError: No module named 'no_such_library'); to have it: pip install " \
           "--no-deps cut-cross-entropy==25.1.1" in printed
    assert "present: flp %s" % result["peers"][0]["version"] in printed


def test_record_is_evidence(tmp_path):
    result = record_of(tmp_path / "out.json", "--peers", "none", "--no-bare")
    assert check_record(result) is None
    assert len(result["sources_hash"]) == 64 and result["bare"] == []
    assert [row["bare_ms"] for row in result["rows"]] == [None]


@pytest.mark.parametrize("extra", [[], ["--softcap", "2.5", "--bias"]], ids=["plain", "softcap and bias"])
def test_errors_of_fp32_are_those_of_fp32(tmp_path, extra):
    """Ours and torch against the reference, which so is right; 16-bit scores are off by much more."""
    arguments = ["--peers", "torch-fp32,torch-16bit", "--grad", "hidden,weight", "--entropy", "backward", *extra]
    exact = record_of(tmp_path / "a.json", "--dtype", "fp32", *arguments)
    for row in rows_of(exact, case="forward+backward"):
        if row["peer"] == "torch-16bit":
            assert row["reason"] == "is torch-fp32 on fp32 operands"
            continue
        for field in ("logprob_error", "entropy_error", "grad_hidden_error", "grad_weight_error"):
            assert row[field] < 3e-6, (row["peer"], field)
    (rough,) = rows_of(record_of(tmp_path / "b.json", *arguments), case="forward", peer="torch-16bit")
    assert rough["logprob_error"] > 1e-3


def test_json_alone_goes_to_standard_output(capsys):
    assert main.main([*SHAPE, "--quiet", "--peers", "none", "--no-bare", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"][0]["peer"] == "flp"


def test_progress_names_who_is_measured(capsys):
    assert main.main([*SHAPE, "--peers", "torch-fp32", "--no-bare"]) == 0
    assert "torch-fp32, forward, entropy none" in capsys.readouterr().err


def test_an_unwritable_record_is_reported_before_the_work(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(main.run, "Run", lambda *_: pytest.fail("measured"))
    path = str(tmp_path / "no" / "x.json")
    assert main.main([*SHAPE, "-q", "--peers", "none", "--no-bare", "--json", path]) == 4
    assert capsys.readouterr().err == "flp.bench: %s: cannot write: No such file or directory\n" % path


def test_a_full_disk_is_reported_behind_the_table(capsys):
    assert main.main([*SHAPE, "-q", "--peers", "none", "--no-bare", "--json", "/dev/full"]) == 4
    told = capsys.readouterr()
    assert "forward" in told.out and "the record cannot be written: No space left" in told.err


def test_without_a_gpu_the_device_is_named(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main.main(["--vocab", "96", "--hidden", "16"]) == 3
    assert "--device: 'cuda' is not available" in capsys.readouterr().err


def test_without_libflp_the_reason_is_reported(capsys, monkeypatch):
    monkeypatch.setattr(ours.Flp, "load", lambda self: importlib.import_module("no_such_library"))
    assert main.main([*SHAPE, "--quiet"]) == 3
    assert "flp cannot run: ModuleNotFoundError" in capsys.readouterr().err


# ---- the command line ----


def test_arguments_are_read():
    chosen = parsed("--rows", "4,4,8", "--budget", "1.5G", "--grad", "weight,hidden", "--grad", "none", "--device", "1",
                    "--peers", "all,-quack", "--skip", "cce=a=b")
    assert chosen.rows == [4, 8] and chosen.budget == 3 << 29 and chosen.device == "cuda:1"
    assert chosen.grad == [("hidden", "weight"), ()] and chosen.skip == {"cce": "a=b"}
    assert chosen.peers == [name for name in peers.NAMES if name != "quack"]
    assert parsed("--peers", "none").peers == []
    with pytest.raises(SystemExit):
        parsed("--dtype", "fp8")


def test_help_teaches(capsys):
    with pytest.raises(SystemExit) as end:
        options.parse(["--help"])
    text = capsys.readouterr().out
    assert end.value.code == 0 and "examples:" in text and all("  %s " % name in text for name in peers.NAMES)


def test_cases_are_distinct_and_count_their_products():
    chosen = parsed("--entropy", "none,forward,backward", "--grad", "hidden,weight", "--grad", "hidden")
    found = [(case.name, case.entropy, case.grads, case.gemms) for case in cases.cases_of(chosen, 6)]
    assert found[:2] == [("forward", "none", (), 1), ("forward", "forward", (), 1)]
    assert [case[3] for case in found[2:]] == [4] * 3 + [3] * 3 and len(set(found)) == 8


def test_steps_and_saved_exponentials_are_of_three_products():
    steps = cases.cases_of(parsed("--grad", "hidden,weight", "--grad", "hidden", "--loss", "grpo+k3,nll", "--accumulate"), 6)
    assert [(case.loss, case.gemms, case.accumulate) for case in steps] == [
        ("grpo+k3", 3, True), ("nll", 3, True), ("grpo+k3", 2, False), ("nll", 2, False)]
    frozen = cases.cases_of(parsed("--frozen", "--entropy", "none,forward"), 6)
    assert [(case.entropy, case.grads, case.gemms) for case in frozen] == [
        ("none", (), 1), ("forward", (), 1), ("none", ("hidden",), 2), ("forward", ("hidden",), 2)]
    kept = cases.cases_of(parsed("--grad", "hidden,weight", "--grad", "hidden", "--save"), 6)
    assert [(case.save, case.gemms) for case in kept] == [(None, 1), (True, 3), (True, 2)]


def test_a_record_of_steps(tmp_path, capsys):
    result = record_of(tmp_path / "out.json", "--peers", "torch-fp32", "--grad", "hidden,weight", "--loss", "grpo+k3")
    assert [(row["peer"], row["case"], row["loss"], row["upstream"]) for row in result["rows"]] == [
        ("flp", "step", "grpo+k3", "loss"), ("torch-fp32", "step", "grpo+k3", "loss")]
    assert all(row["ratio"] > 0 and row["loss_error"] < 0.02 for row in result["rows"])
    assert "step, grpo+k3, gradients of hidden and weight: 3 GEMM baselines" in capsys.readouterr().out


def test_a_record_of_fine_tuning_names_its_options_and_who_lacks_them(tmp_path):
    result = record_of(tmp_path / "out.json", "--peers", "torch-fp32,megatron", "--grad", "hidden,weight", "--loss",
                       "cross_entropy,nll")
    found = [row for row in result["rows"] if row["peer"] != "megatron"]
    assert [(row["peer"], row["loss"], row.get("label_smoothing"), row.get("z_loss")) for row in found] == [
        ("flp", "cross_entropy", 0.1, 1e-4), ("flp", "nll", None, None),
        ("torch-fp32", "cross_entropy", 0.1, 1e-4), ("torch-fp32", "nll", None, None)]
    assert all(row["gemms"] == 3 and row["loss_error"] < 0.02 and row["grad_weight_error"] < 0.05 for row in found)


@flpgen_tool.needs_flpgen
def test_flpgen_hands_over():
    done = flpgen_tool.flpgen("bench", "--vocab", 96, "--hidden", 16, "--rows", "4,6", "--grad", "hidden", "--bias",
                              "--softcap", "2.5", "--budget", "1M", "--peers=nobody", **PYTHON)
    assert done.code == 2 and "argument --peers: 'nobody' is not accepted" in done.err
    assert "-m flp.bench --peers=nobody --vocab=96 --hidden=16 --rows=4,6 --dtype=bf16 --entropy=none --grad=hidden " \
           "--bias --softcap=2.5 --budget=1048576 --device=0" in done.err


@flpgen_tool.needs_flpgen
@pytest.mark.parametrize("op", [["--op", "diverge"], ["--op=diverge"]], ids=" ".join)
def test_flpgen_hands_divergences_of_two_heads_over(op):
    words = ["--vocab", "96", *op, "--hidden", "16", "--teacher-hidden", "8"]
    done = flpgen_tool.flpgen("bench", *words, **PYTHON)
    assert done.code == 2 and "-m flp.bench %s\n" % " ".join(words) in done.err, done.err
    assert "argument --teacher-hidden: 8 is not accepted; at least --hidden is, 16" in done.err


STEP = ["--grad", "hidden,weight", "--loss", "grpo+k3"]


@pytest.mark.first(2)
@flpgen_tool.needs_flpgen
@pytest.mark.parametrize("arguments, words", [
    ([*STEP, "--accumulate-grad-weight"], "--dtype=bf16 --grad=hidden,weight --loss=grpo+k3 --accumulate --device=0"),
    (["--grad", "hidden", "--loss", "nll", "--bias"], "--grad=hidden --bias --loss=nll --device=0"),
    (["--grad", "hidden", "--keep", "--entropy", "backward", "--softcap", "3"],
     "--entropy=backward --grad=hidden --softcap=3 --save --device=0"),
    (["--grad", "hidden", "--data", "text"], "--entropy=none --grad=hidden --data=text --device=0"),
    (["--grad", "hidden", "--tail", "2^-9"], "--entropy=none --grad=hidden --tail=0.001953125 --device=0"),
    ([*STEP, "--tail", "2^-9"], "--grad=hidden,weight --tail=0.001953125 --loss=grpo+k3 --device=0"),
    (["--grad", "hidden", "--mode", "D"], "--entropy=none --grad=hidden --save --device=0"),
    (["--grad", "hidden,weight", "--mode", "S"], "--entropy=none --grad=hidden,weight --save --device=0")])
def test_flpgen_hands_steps_and_saved_exponentials_over(arguments, words):
    done = flpgen_tool.flpgen("bench", "--vocab", 96, "--hidden", 16, *arguments, "--peers", **PYTHON)
    assert "-m flp.bench --peers=all --vocab=96 --hidden=16 --rows=8192 " in done.err and words in done.err
    assert "error: argument" not in done.err, "what is handed over is accepted: it is a GPU that is missing"


@flpgen_tool.needs_flpgen
def test_a_loss_that_peers_do_not_have_is_pythons_to_refuse():
    done = flpgen_tool.flpgen("bench", "--vocab", 96, "--hidden", 16, *STEP[:2], "--loss", "grpo+entropy", "--peers",
                              **PYTHON)
    assert done.code == 2 and "argument --loss: 'grpo+entropy' is not accepted; any of nll, " in done.err


# ---- failures stay where they are ----

class Raising(naive.NaiveFp32):
    name = "torch-16bit"

    def run(self, *arguments):
        raise RuntimeError("kernel launch failed\nmore lines")


class Slow(Raising):
    def run(self, *arguments):
        try:
            time.sleep(600)
            pytest.fail("it was not stopped")
        except Exception:
            pytest.fail("a peer's own handler caught the end of its time")


class Tiring(Raising):
    calls = 0

    def run(self, *arguments):
        Tiring.calls += 1
        if Tiring.calls > 4:
            raise ValueError("tired")
        return naive.NaiveFp32.run(self, *arguments)


class Unloadable(Raising):
    def load(self):
        pytest.fail("a skipped peer was loaded")


@pytest.mark.parametrize("peer, options, reason", [
    (Raising, [], "RuntimeError: kernel launch failed"), (Tiring, [], "ValueError: tired"),
    (Slow, ["--peer-seconds", "0.3"], "took longer than the 0.3 s that a peer has to get ready (--peer-seconds)"),
    (Unloadable, ["--skip", "torch-16bit=broke things"], "broke things")], ids=["raises", "tires", "slow", "skipped"])
def test_a_peer_that_fails_is_a_row_with_a_reason(tmp_path, monkeypatch, peer, options, reason):
    monkeypatch.setattr(peers, "PEERS", (naive.NaiveFp32, peer))
    result = record_of(tmp_path / "a.json", "--peers", "torch-fp32,torch-16bit", "--no-bare", *options)
    assert rows_of(result, peer="torch-fp32")[0]["ms"] > 0 and rows_of(result, peer="flp")[0]["ms"] > 0
    (row,) = rows_of(result, peer="torch-16bit")
    assert row["ms"] is None and row["reason"] == reason


def test_a_call_that_is_too_slow_to_repeat_is_reported(monkeypatch):
    limits.check_pace(2999)
    with pytest.raises(limits.TooSlow, match="one call takes 3.5 s; up to 3.0 s are timed"):
        limits.check_pace(3500)


def test_after_the_time_of_the_run_no_peer_is_begun(tmp_path):
    result = record_of(tmp_path / "a.json", "--peers", "torch-fp32", "--seconds", "1e-6")
    assert {row["reason"] for row in result["rows"]} == {"the time of this run was over before its turn (--seconds)"}


@pytest.mark.parametrize("peer, words", [
    ("cce", ["--peers", "cce"]), (cases.TAIL, ["--peers", "none", "--grad", "hidden", "--tail", "2**-9"])])
def test_a_broken_context_starts_the_command_again(monkeypatch, peer, words):
    started, reason = [], "broke the CUDA context: AcceleratorError: illegal address"

    class Lost(run.Run):
        def record(self):
            raise limits.ContextLost(peer, "AcceleratorError: illegal address")

    monkeypatch.setattr(main.run, "Run", Lost)
    monkeypatch.setattr(main.os, "execv", lambda path, words: started.append(words))
    assert main.main([*SHAPE, *words]) == 3  # only because execv came back here
    assert started == [[sys.executable, "-m", "flp.bench", *SHAPE, *words, "--skip", f"{peer}={reason}"]]
    assert parsed(*words, "--skip", f"{peer}={reason}").skip == {peer: reason}
    if peer == "cce":
        assert main.main([*SHAPE, "--peers", "none"]) == 3 and len(started) == 1


def test_a_failure_that_the_device_does_not_survive_is_distinguished():
    class Broken(clock.HostClock):
        def synchronize(self):
            raise RuntimeError("illegal address")

    subject = rounds.Subject("a", None)
    subject.fail(ValueError("x"), clock.HostClock())
    assert subject.reason == "ValueError: x"
    with pytest.raises(limits.ContextLost, match="a left the CUDA context unusable: ValueError: x"):
        subject.fail(ValueError("x"), Broken())


def test_the_module_is_a_command():
    done = subprocess.run([sys.executable, "-m", "flp.bench", *SHAPE, "-q", "--peers", "none", "--no-bare"],
                          capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("device: none, driver none, torch ") and done.stderr == ""
