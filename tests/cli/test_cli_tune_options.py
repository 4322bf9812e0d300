"""flpgen tune --dry-run: what would be tried, for which heads, and what is not accepted."""
import json
import re
import shlex

import pytest

from flpgen_tool import flpgen
from flpgen_tune_tool import (  # noqa: F401
    BACKWARD, SPEC, TREE, cache, plan_of, pytestmark, result, rows, steps, tune, ways_tried)

PRESETS = TREE / "autotune" / "presets" / "presets.json"


def dry(*arguments, **environment):
    return flpgen("tune", "--dry-run", *arguments, FLP_CUDA_LIBRARY="/nonexistent/libcuda.so", **environment)


def targets(*arguments):
    done = dry(*arguments, "--json")
    assert done.code == 0, done.err
    return [(target["model"], target["spec"]) for target in done.json()["targets"]]


# ---- dry runs


def test_a_dry_run_needs_no_gpu_and_writes_nothing(tmp_path):
    done = dry(*SPEC, *BACKWARD, "--json", TMPDIR=str(tmp_path), FLP_CACHE_DIR=str(tmp_path / "cache"))
    assert done.code == 0 and not list(tmp_path.iterdir())
    target, = done.json()["targets"]
    assert [kind["kind"] for kind in target["kinds"]] == ["forward", "dz", "products"]
    for kind in target["kinds"]:
        assert kind["candidates"] == kind["illegal"] + kind["pruned"] + len(kind["tried"])
        assert sum(way["is_default"] for way in kind["tried"]) == 1
        predicted = [way["predicted_ms"] for way in kind["tried"]]
        assert predicted == sorted(predicted) and len(set(way["cut"] for way in kind["tried"])) == len(predicted)
    _, header, row = dry(*SPEC).out.splitlines()
    forward = dry(*SPEC, "--json").json()["targets"][0]["kinds"][0]
    assert header.split() == ["kernel", "candidates", "not", "built", "pruned", "tried", "first"]
    assert row.split() == ["forward", *map(str, (forward["candidates"], forward["illegal"], forward["pruned"])),
                           str(len(forward["tried"])), forward["tried"][0]["cut"]]


def test_efforts_try_more_and_more():
    documents = [dry("--vocab", 151936, "--hidden", 4096, "--effort", effort, "--json").json()
                 for effort in ("quick", "normal", "exhaustive")]
    tried = [len(document["targets"][0]["kinds"][0]["tried"]) for document in documents]
    assert tried[0] < tried[1] <= tried[2]


@pytest.mark.first(2)
@pytest.mark.parametrize("budget, seconds", [("90", 90), ("90s", 90), ("1.5m", 90), ("1h", 3600), ("0", 0)])
def test_budgets_in_every_form(cache, budget, seconds):
    assert tune("--budget", budget, cache=cache, script="interrupt=1").code == 0
    assert rows(cache, "SELECT budget_s FROM run") == [(seconds,)]


def test_a_budget_is_kept(cache):
    # Rows enough that every raster is a candidate of its own and takes the stand-in a while.
    target = result("--budget", "0.02", "--effort", "exhaustive", "--rows", 3000, cache=cache)
    assert steps(target)["forward"]["out_of_time"], target
    assert target["seconds"] < 20, "the first group and the finalists, on a machine that is busy"
    assert rows(cache, "SELECT count(*) > 0 FROM candidate WHERE status = 'waiting'") == [(1,)]


def test_a_budget_counts_from_the_opening_and_leaves_what_was_included(cache):
    tiling = ways_tried(*BACKWARD)["dz"][3]
    target = result(*BACKWARD, "--budget", "0.001", "--include", f"dz:{tiling}", cache=cache)
    assert target["opening_s"] > 0.001
    assert {kind: step["tried"] for kind, step in steps(target).items()} == {
        "forward": 0, "dz": 1, "products": 0, "layout": 0}
    assert steps(target)["forward"]["is_default"] and steps(target)["forward"]["out_of_time"]
    assert steps(target)["dz"]["chosen"] == tiling and plan_of(cache, *SPEC, *BACKWARD) == ("tuned", target["plan"])


# ---- presets


def test_presets_are_published_heads_with_their_sources():
    presets = json.loads(PRESETS.read_text())["presets"]
    assert len({(preset["vocab"], preset["hidden"]) for preset in presets}) >= 20
    assert len({preset["name"] for preset in presets}) == len(presets)
    for preset in presets:
        assert re.fullmatch(r"https://huggingface\.co/[\w.-]+/[\w.-]+/blob/main/config\.json", preset["source"]), preset
        assert preset["hidden"] % 8 == 0


def test_lists_have_the_heads_of_all_presets():
    """And say what they were measured on."""
    heads = {(p["vocab"], p["hidden"], p.get("softcap", 0)) for p in json.loads(PRESETS.read_text())["presets"]}
    for path in PRESETS.parent.glob("*.list"):
        words = [shlex.split(line) for line in path.read_text().splitlines() if line[0] != "#"]
        lines = [dict(zip(line[::2], line[1::2])) for line in words]
        listed = [(int(line["--vocab"]), int(line["--hidden"]), float(line.get("--softcap", 0))) for line in lines]
        assert sorted(listed) == sorted(heads), path
        assert {line.get("--tuned-for") for line in lines} == {"NVIDIA H200/132/13000"}


def test_all_presets_are_each_head_once():
    found = targets("--preset", "all", "--effort", "quick")
    presets = json.loads(PRESETS.read_text())["presets"]
    assert len({spec for _, spec in found}) == len(found)
    assert len(found) == len({(p["vocab"], p["hidden"], p.get("softcap")) for p in presets})
