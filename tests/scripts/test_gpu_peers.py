"""tests/gpu/peers.py without a GPU: records of one process; peers that raise, crash or hang leave the rest alone."""
import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from flpgen_tool import needs_flpgen

pytest.importorskip("torch")
import peers  # noqa: E402

TREE = Path(__file__).resolve().parents[2]
SCRIPT = TREE / "tests/gpu/peers.py"
TINY = ["--", "--device", "cpu", "--vocab", "96", "--hidden", "16", "--rows", "8", "--burst-ms", "0.2", "--rounds", "3"]


def run_with(tmp_path, fault, *arguments):
    """Runs the script where torch-16bit's forward pass begins with `fault`, through a start-up file of Python."""
    (tmp_path / "faulty.py").write_text(textwrap.dedent("""
        import os, runpy, sys, time
        sys.path[:0] = [{python!r}]
        from flp.bench.peers import naive
        original = naive.Naive16.run
        def run(self, *arguments):
            {fault}
            return original(self, *arguments)
        naive.Naive16.run = run
        sys.argv[0] = {script!r}
        runpy.run_path({script!r}, run_name="__main__")
    """).format(python=str(TREE / "runtime/python"), script=str(SCRIPT), fault=fault))
    words = (sys.executable, tmp_path / "faulty.py")
    (tmp_path / "python").write_text('#!/bin/sh\nshift\nexec "%s" "%s" "$@"\n' % words)
    (tmp_path / "python").chmod(0o755)
    code = "import sys; sys.executable, sys.argv[0] = sys.argv[1], sys.argv[2]; del sys.argv[1:3]; " \
           "import runpy; runpy.run_path(sys.argv[0], run_name='__main__')"
    return subprocess.run([sys.executable, "-c", code, str(tmp_path / "python"), str(SCRIPT), "--out",
                           str(tmp_path / "out"), *arguments, *TINY, "--peers", "torch-fp32,torch-16bit"],
                          capture_output=True, text=True, timeout=100)


def rows_of(tmp_path, name):
    rows = json.loads((tmp_path / "out" / (name + ".json")).read_text())["rows"]
    return {peer: [row for row in rows if row["peer"] == peer] for peer in ("flp", "torch-fp32", "torch-16bit")}


def test_all_records_are_those_of_the_campaign():
    assert set(peers.ORDER) == set(peers.RECORDS)


def test_records_of_one_process(tmp_path):
    done = run_with(tmp_path, "pass", "--only", "peers_frozen,peers_steps_frozen")
    assert done.returncode == 0, done.stderr
    rows = rows_of(tmp_path, "peers_frozen")
    assert [(row["case"], row["gemms"]) for row in rows["flp"]] == [("forward", 1), ("forward+backward", 2)]
    for peer in ("flp", "torch-fp32", "torch-16bit"):
        assert all(row["ratio"] > 0 for row in rows[peer])
        assert [row["loss"] for row in rows_of(tmp_path, "peers_steps_frozen")[peer]] == ["grpo+k3", "nll"]
    command = json.loads((tmp_path / "out" / "peers_frozen.json").read_text())["command"]
    assert command.startswith("python -m flp.bench --vocab 151936 --hidden 4096 --frozen ") and "--skip" not in command


@pytest.mark.long
@needs_flpgen
def test_records_of_sharp_rows_have_both_of_ours_and_the_entropies(tmp_path):
    done = run_with(tmp_path, "pass", "--only", "peers_policy,peers_random")
    assert done.returncode == 0, done.stderr
    for kind in ("policy", "random"):
        record = json.loads((tmp_path / "out" / ("peers_%s.json" % kind)).read_text())
        assert {row["data"] for row in record["rows"]} == {kind}
        assert [state["peer"] for state in record["peers"]] == ["flp", "flp, tail", "torch-fp32", "torch-16bit"]
        rows = rows_of(tmp_path, "peers_" + kind)
        assert all(row["ms"] > 0 and len(row["entropies"]) == 6 for peer in rows for row in rows[peer])


def test_a_contender_whose_name_has_a_blank_can_break_the_context():
    watch = object.__new__(peers.Watch)
    watch.read("lost", "flp, tail=broke the CUDA context: AcceleratorError: x=1")
    assert (watch.named, watch.reason) == ("flp, tail", "broke the CUDA context: AcceleratorError: x=1")


@pytest.mark.first
@pytest.mark.parametrize("fault, reason", [
    ("os.abort()", "ended the process: SIGABRT"), ("raise ValueError('no')", "ValueError: no"),
    ("os._exit(7)", "ended the process: status 7"),
    ("import signal; signal.setitimer(signal.ITIMER_REAL, 0); time.sleep(900)", "gave no sign of life for 6 s")])
def test_a_peer_that_fails_in_any_way_costs_its_own_rows_alone(tmp_path, fault, reason):
    done = run_with(tmp_path, fault, "--only", "peers_frozen", "--silence", "6")
    assert done.returncode == 0, done.stderr
    rows = rows_of(tmp_path, "peers_frozen")
    assert {row["reason"] for row in rows["torch-16bit"]} == {reason} and rows["torch-16bit"][0]["ms"] is None
    assert all(row["ms"] > 0 for row in rows["flp"] + rows["torch-fp32"])


@pytest.mark.parametrize("minutes", ["0.0001", pytest.param("0.1", marks=pytest.mark.long)])
def test_what_is_not_written_in_time_is_told(tmp_path, minutes):
    done = run_with(tmp_path, "time.sleep(900)", "--only", "peers_frozen,peers_saved", "--minutes", minutes)
    assert done.returncode == 1
    assert "peers_frozen: not written" in done.stderr and "peers_saved: not written" in done.stderr


def test_an_unknown_record_is_refused(tmp_path):
    done = subprocess.run([sys.executable, SCRIPT, "--out", tmp_path, "--only", "peers_best"], capture_output=True,
                          text=True, timeout=100)
    assert done.returncode == 2
    assert "argument --only: 'peers_best' is not accepted; any of peers_training" in done.stderr
