"""flpgen tune on the stand-in for a GPU: its record, Ctrl-C, and going on where a run has stopped."""
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flp_report_tool import draw, needs_matplotlib
from flpgen_tool import FLPGEN
from flpgen_tune_tool import (  # noqa: F401
    BACKWARD, DEVICE, FASTER, QUICK, SPEC, STAND_INS, cache, plan_of, planted, pytestmark, result, rows, steps, tune,
    tuned, ways_tried)

TREE = Path(__file__).resolve().parents[2]


# ---- records


def test_every_candidate_is_recorded(tuned):
    cache, target = tuned
    for kind, step in steps(target).items():
        count = dict(rows(cache, "SELECT status, count(*) FROM candidate WHERE kind = ? GROUP BY status", kind))
        assert sum(count.values()) == step["candidates"]
        assert count["chosen"] == 1 and count["chosen"] + count.get("timed", 0) == step["timed"]
        assert step["candidates"] - count.get("illegal", 0) == step["legal"]
        assert rows(cache, "SELECT count(*) FROM candidate WHERE kind = ? AND is_default", kind) == [(1,)]
        (tiling, ms, low, high), = rows(cache, "SELECT tune, ms, ms_low, ms_high FROM candidate WHERE kind = ? AND "
                                            "status = 'chosen'", kind)
        assert step["chosen"].startswith(tiling) and low <= ms <= high and ms == pytest.approx(step["ms"])
    assert rows(cache, "SELECT id FROM candidate WHERE status IN ('illegal', 'pruned') AND reason IS NULL") == []
    (gpu, driver, seed, effort, command, text, plan), = rows(
        cache, "SELECT gpu, driver, seed, effort, command, text, plan FROM run JOIN spec ON spec.run = run.id "
               "WHERE run.finished IS NOT NULL AND spec.finished IS NOT NULL")
    assert (gpu, driver, seed, effort, plan) == ("Fake H200", 13000, 1, "quick", target["plan"])
    assert text == target["spec"] and "tune --vocab 200" in command
    assert rows(cache, "SELECT count(*) FROM bare WHERE ms > 0") == [(3,)]


@pytest.mark.long
@needs_matplotlib
def test_the_page_of_records_can_be_drawn(tuned, tmp_path):
    cache, _ = tuned
    assert "Fake H200" in draw(tmp_path, cache / "tune.sqlite")[0]


def test_heads_of_records_become_one_record_of_the_tree(tuned, tmp_path):
    cache, target = tuned
    out = tmp_path / "heads.json"
    command = [sys.executable, TREE / "autotune/tuning_records.py", "heads", "--out", out, cache / "tune.sqlite"]
    subprocess.run([*command, cache / "tune.sqlite"], check=True)
    record = json.loads(out.read_text())
    row, = record["rows"]                   # of the head found twice the last one
    assert (record["gpu"], record["driver"]) == ("Fake H200", "13.0")
    assert record["command"].startswith("flpgen tune --vocab 200") and str(cache) not in record["command"]
    assert row["plan"] == target["plan"] and record["sources_hash"].startswith(row["sources"])
    assert row["bare_ms"] == {bare["product"]: pytest.approx(bare["ms"], abs=1e-4) for bare in target["bare"]}
    for kind, step in steps(target).items():
        kernel = row["kernels"][kind]
        assert kernel["is_own"] == step["is_default"] and kernel["timed"] == step["timed"]
        assert kernel["ms"] == pytest.approx(step["ms"], abs=1e-4) and kernel["ratio"] == pytest.approx(step["ratio"], abs=1e-4)
        assert step["chosen"].startswith(kernel["chosen"])


def test_nothing_is_written_but_cache_and_record(tmp_path):
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    work.mkdir()
    cache, record = work / "cache", work / "rows.db"
    result("--record", record, cache=cache, TMPDIR=str(work), HOME=str(home), XDG_CACHE_HOME=str(home))
    assert not list(home.iterdir()) and sorted(path.name for path in work.iterdir()) == ["cache", "rows.db"]
    assert {path.suffix for path in cache.iterdir()} == {".flpk"}
    assert record.stat().st_size > 0


def test_kernels_go_that_out_names(tmp_path):
    target = result("--out", tmp_path / "out", cache=tmp_path / "cache")
    assert not (tmp_path / "cache").exists() and (tmp_path / "out" / "tune.sqlite").exists()
    assert plan_of(tmp_path / "out") == ("tuned", target["plan"])


def test_a_record_that_is_none_is_refused_and_left_alone(cache, tmp_path):
    other = tmp_path / "notes.txt"
    other.write_text("not a database " * 100)
    done = tune("--record", other, cache=cache)
    assert done.code == 4 and "notes.txt: not a record of tuning" in done.err
    assert other.read_text() == "not a database " * 100


# ---- Ctrl-C, and going on


@pytest.mark.first
@pytest.mark.parametrize("when", ["interrupt=1", "interrupt=500", "interruptload=40", "interruptload=80"])
def test_ctrl_c_stores_what_was_found(cache, when):
    done = tune(*BACKWARD, "--json", cache=cache, script=f"{FASTER};{when}")
    assert done.code == 0 and done.err == ""
    document, target = done.json(), done.json()["targets"][0]
    assert document["stopped"] and target["stopped"] and target["steps"]
    assert plan_of(cache, *SPEC, *BACKWARD) == ("tuned", target["plan"])
    assert rows(cache, "SELECT count(*) FROM spec WHERE finished IS NOT NULL") == [(0,)]
    found = steps(target)
    if when.startswith("interruptload"):
        assert not found["forward"]["is_default"]
    assert len(found) < 4


def test_resume_goes_on_and_then_has_nothing_to_do(cache):
    ways = ways_tried(*BACKWARD)
    script = planted(ways, 1)
    assert tune(*BACKWARD, "--json", cache=cache, script=script + ";interruptload=40").json()["stopped"]
    (first,), = rows(cache, "SELECT count(*) FROM candidate WHERE kind = 'forward' AND rounds > 0")
    assert first > 10
    target = result(*BACKWARD, "--resume", cache=cache, script=script)
    assert [step["chosen"] for step in target["steps"][:3]] == [ways[kind][1] for kind in ways]
    assert steps(target)["forward"]["tried"] <= 24 - first + 1
    again = result(*BACKWARD, "--resume", cache=cache, script=script)
    assert again["done_before"] and again["plan"] == target["plan"] and again["steps"] == []


@pytest.mark.long
def test_a_run_that_was_killed_is_gone_on_with(cache):
    environment = {**os.environ, **STAND_INS, "TMPDIR": str(cache.parent), "FLP_CACHE_DIR": str(cache),
                   "FAKE_CUDA": DEVICE + FASTER}
    command = [FLPGEN, "tune", *SPEC, *QUICK, "--effort", "exhaustive", "--budget", "0"]
    process = subprocess.Popen([str(word) for word in command], env=environment, stdout=subprocess.DEVNULL)
    timed = 0
    while timed < 20 and process.poll() is None:
        time.sleep(0.01)
        if (cache / "tune.sqlite").exists():
            timed = rows(cache, "SELECT count(*) FROM sqlite_schema WHERE name = 'candidate'")[0][0] and \
                rows(cache, "SELECT count(*) FROM candidate WHERE rounds > 0")[0][0]
    process.kill()
    process.wait()
    assert timed >= 20 and not list(cache.glob("*.flpk"))
    target = result("--resume", cache=cache)
    assert steps(target)["forward"]["tried"] < 24 and plan_of(cache) == ("tuned", target["plan"])


@pytest.mark.long
def test_what_was_rejected_is_not_tried_again(cache):
    first, second = ways_tried()["forward"][:2]
    assert result(cache=cache, script=f"wrong=forward/{first} ;wrong=forward/{second} ;interruptload=25")["stopped"]
    wrong = "SELECT tune, reason FROM candidate WHERE status = 'wrong' AND spec = ? ORDER BY tune"
    assert {row[0] for row in rows(cache, wrong, 1)} == {first, second}
    result("--resume", cache=cache)
    assert rows(cache, wrong, 2) == rows(cache, wrong, 1), "they would be right now"


@pytest.mark.long
def test_what_was_done_elsewhere_is_done_again(cache):
    first = result(cache=cache)
    other = result("--resume", cache=cache, script=FASTER + ";driver=13010")
    assert not other["done_before"] and steps(other)["forward"]["tried"] == steps(first)["forward"]["tried"]


@pytest.mark.long
def test_what_was_timed_in_another_workspace_is_timed_again(cache):
    def tried(*workspace, **environment):
        target = result(*BACKWARD, "--resume", *workspace, cache=cache, **environment)
        return [] if target["done_before"] else [step["tried"] for step in target["steps"]]

    first, other = tried(), tried("--workspace", "128K")
    assert first[:3] == other[:3] and min(other[:3]) > 4, "kernels beside other chunks"
    assert tried("--workspace", "131072") == [], "the same in other words"
    assert tried(FLP_BUDGET="128K") == [], "and from where plans take it"


def test_what_was_done_and_is_no_longer_stored_is_stored_again(cache):
    script = planted(ways_tried(), 4)
    first = result(cache=cache, script=script)
    for path in cache.glob("*.flpk"):
        path.unlink()
    again = result("--resume", cache=cache, script=script)
    assert not again["done_before"] and steps(again)["forward"]["tried"] == 0
    assert plan_of(cache) == ("tuned", again["plan"]) and again["plan"] == first["plan"]
