"""flpgen check: --concurrent without a GPU, and whole runs on the stand-in for libcuda."""
import json
import re

import pytest

from flpgen_tool import FAKE, findings, flpgen, needs_fake, needs_flpgen

NO_GPU = {"FLP_CUDA_LIBRARY": "/nonexistent/libcuda.so.1"}
CONCURRENT = ["check", "--concurrent", "-q"]

pytestmark = needs_flpgen


def on_fake(*arguments, cache, script):
    return flpgen(*CONCURRENT, *arguments, cache=cache, FLP_CUDA_LIBRARY=FAKE, FAKE_CUDA=script,
                  FLP_CUBLASLT_LIBRARY="/nonexistent/lt.so")


@pytest.mark.parametrize("words, least", [(["--topk", "20"], 5), pytest.param([], 20, marks=pytest.mark.long)])
def test_the_summary_has_the_worst_share_and_its_case(tmp_path, words, least):
    path = tmp_path / "record.json"
    done = flpgen("check", "--rung", "eager", *words, f"--json={path}", **NO_GPU)
    record = json.loads(path.read_text())
    assert done.code == 0 and done.out.splitlines()[-1] == f"pass: {record['checks']} checks"
    assert record["checks"] == sum(row["checks"] * len(row["rungs"]) for row in record["rows"])
    rows = findings(record)
    for row in rows:
        assert row["pass"] and 0 <= row["worst_share"] <= 1, row
        assert row["output"] in row["exact"] or row["rel_l2"] <= 1 and row["bound"] > 0, row
    lines = [re.split("  +", line) for line in done.out.splitlines()]
    head = next(i for i, line in enumerate(lines) if line[0] == "rung")
    assert lines[head] == ["rung", "dtype", "output", "checks", "failed", "worst / allowed", "in case"]
    kinds = {(row["rung"], row["dtype"], row["output"]) for row in rows}
    assert len(lines) - head - 2 == len(kinds) > least
    for line in lines[head + 1:-1]:
        alike = [row for row in rows if (row["rung"], row["dtype"], row["output"]) == tuple(line[:3])]
        worst = max(alike, key=lambda row: row["worst_share"])
        assert int(line[3]) >= len(alike) and line[4] == "0"  # a row has the worst of an output alone
        if worst["worst_share"]:
            assert line[5:] == ["%.2f" % worst["worst_share"], f"{worst['case']} {worst['shape']}"]
        else:
            assert line[5:] == ["0"]
    assert {line[5] for line in lines[head + 1:-1] if line[2] == "grad_weight"} != {"0"}


def test_a_record_that_the_disk_has_no_room_for_is_reported():
    full = flpgen("check", "--vocab", "40", "--hidden", "16", "--rung", "eager", "--json=/dev/full")
    assert full.code == 4 and "logprob" in full.out


def test_a_record_is_kept_where_the_next_one_fails(tmp_path):
    path = tmp_path / "record.json"
    assert flpgen(*CONCURRENT, f"--json={path}", **NO_GPU).code == 3 and not path.exists()
    path.write_text("kept")
    assert flpgen(*CONCURRENT, f"--json={path}", **NO_GPU).code == 3 and path.read_text() == "kept"
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "later")
    assert flpgen(*CONCURRENT, f"--json={link}", **NO_GPU).code == 3 and link.is_symlink()


@pytest.mark.long
@needs_fake
def test_every_case_and_situation_is_in_the_record(tmp_path):
    path, cache = tmp_path / "record.json", tmp_path / "cache"
    done = on_fake("--rung", "jit", "--tune", "forward:raster=4", f"--json={path}", cache=cache,
                   script="capability=9.0;fill=1;busy=1")
    assert done.code == 0, done.out + done.err
    record = json.loads(path.read_text())
    assert record["failed"] == 0
    assert record["checks"] == sum(row["checks"] * len(row["rungs"]) for row in record["rows"])
    cases = {(row["case"], row["shape"], row["options"]) for row in record["rows"]}
    assert len(cases) == 23 and {shape for _, shape, _ in cases} == {"700x5000x512", "2048x32768x1024"}
    for case in cases:
        outputs = {row["output"] for row in findings(record) if (row["case"], row["shape"], row["options"]) == case}
        for situation in ("streams", "beside work", "streams beside work", "graph", "graphs at once", "graphs beside work"):
            assert f"{situation}: logprob" in outputs
            assert (f"{situation}: grad_weight" in outputs) == ("grads=hw" in case[2])
            assert (f"{situation}: overlap" in outputs) == ("beside" in situation)
    made = [entry["key"] for entry in flpgen("cache", "ls", "--json", cache=cache).json()["entries"]]
    tilings = {re.search("arch=(.*?) .* alignment=(.*?) .* tune=(.*?) ", key).groups() for key in made
            if "kind=forward " in key and "hidden=512 vocab=5000" in key}
    assert tilings == {("sm_90a", "16", "raster=4"), ("sm_80", "2", "own")}, "operands without a choice are left out"


@needs_fake
@pytest.mark.long
@pytest.mark.parametrize("mode, cases", [
    ("save", {"concurrent saved"}), ("direction", {"concurrent direction"}), ("recompute-rows", {"concurrent rows"})])
def test_only_the_cases_of_a_mode(tmp_path, mode, cases):
    path = tmp_path / "record.json"
    done = on_fake("--rung", "jit", "--mode", mode, f"--json={path}", cache=tmp_path / "cache",
                   script="capability=9.0;fill=1;busy=1")
    assert done.code == 0, done.out + done.err
    rows = json.loads(path.read_text())["rows"]
    assert {row["case"] for row in rows} == cases and all(f"mode={mode}" in row["options"] for row in rows)


@needs_fake
def test_a_deadlock_ends_the_command(tmp_path):
    path = tmp_path / "record.json"
    done = on_fake("--rung", "jit", "--mode", "recompute-rows", "--limit", "0.2", f"--json={path}", cache=tmp_path,
                   script="capability=9.0;fill=1;busy=1000000000")
    assert done.code == 1 and "FAIL: 1 of 1 checks failed" in done.out
    (row,) = json.loads(path.read_text())["rows"]
    assert row["rungs"] == ["jit"] and not row["pass"] and row["checks"] == 1 and row["exact"] == []
    assert set(row["outputs"]["run"]) == {"worst_share", "rel_l2", "cosine", "bound"}
    assert row["outputs"]["run"]["worst_share"] is None
    assert row["notes"]["run"] == "deadlock: the other work's calls on stream 1 of 2 still run after 0.2 seconds"


@needs_fake
def test_kernels_that_do_not_load_are_no_pass(tmp_path):
    done = on_fake("--mode", "recompute-rows", cache=tmp_path, script="fail:cuModuleLoadDataEx=222")
    assert done.code == 1 and "CUDA_ERROR_UNSUPPORTED_PTX_VERSION" in done.out


@needs_fake
def test_a_failure_has_a_row_of_its_own_and_equal_rungs_share_theirs(tmp_path):
    """The stand-in computes nothing, alike on every rung but the CPU's."""
    done = flpgen("check", "--vocab", 300, "--hidden", 64, "--rows", 5, "--grad", "hidden,weight", "-q", "--json=-",
                  cache=tmp_path, FLP_CUDA_LIBRARY=FAKE, FAKE_CUDA="capability=9.0;fill=1")
    record = done.json()
    assert record["checks"] == sum(row["checks"] * len(row["rungs"]) for row in record["rows"])
    failures = [row for row in record["rows"] if not row["pass"]]
    assert sum(len(row["rungs"]) for row in failures) == record["failed"] > 0
    for row in failures:
        assert row["checks"] == 1 and row["exact"] == [] and row["rungs"] != ["eager"], row
        (figures,) = row["outputs"].values()
        assert {"worst_share", "rel_l2", "cosine", "bound"} <= set(figures), row
    assert {("jit", "generic"), ("eager",)} <= {tuple(row["rungs"][-2:]) for row in record["rows"]}
    cases = [tuple(row[key] for key in ("case", "shape", "dtype", "options")) for row in record["rows"] if row["pass"]
             and "eager" in row["rungs"]]
    assert len(cases) == len(set(cases)) > 5


@pytest.mark.long
@needs_fake
def test_what_is_precompiled_changes_no_finding(tmp_path):
    rows = {}
    for jobs in (1, 3):
        done = flpgen("check", "--vocab", 1000, "--hidden", 64, "--rows", 5, "--grad", "hidden,weight", "--jobs", jobs,
                      "-q", "--json=-", cache=tmp_path / str(jobs), FLP_CUDA_LIBRARY=FAKE,
                      FAKE_CUDA="capability=9.0;fill=1")
        rows[jobs] = done.json()["rows"]
    assert rows[1] == rows[3]
    cases = [{row["case"] for row in rows[1] if rung in row["rungs"]} for rung in ("heuristic", "jit")]
    assert cases[1] - cases[0] == {"random"}  # what the first case made, the cache has for those after it
