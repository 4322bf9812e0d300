"""flpgen explain and doctor: shape of their JSON, and their output without a GPU."""
import json
import re
from pathlib import Path

import pytest

from flpgen_tool import document_of, flpgen, needs_flpgen, succeed
from tree_version import VERSION

pytestmark = needs_flpgen

NO_GPU = {"FLP_CUDA_LIBRARY": "/nonexistent/libcuda.so.1"}
FULL = ["--vocab", "151936", "--hidden", "4096", "--dtype", "bf16"]
BENCH = Path(__file__).resolve().parents[2] / "autotune" / "bench"


def explain(*arguments):
    return document_of("explain", *arguments)


def test_explain_without_a_gpu():
    document = explain(*FULL, "--grad", "hidden,weight", "--rows", "8192,16")
    assert document["plan"]["rung"] == "eager"
    for rung in ("tuned", "heuristic", "jit", "generic"):
        assert "/nonexistent/libcuda.so.1" in document["plan"]["reasons"][rung]
    assert [part["rows"] for part in document["rows"]] == [8192, 16]
    part = document["rows"][0]
    assert part["product_flops"] == 2 * 8192 * 4096 * 151936
    for whose in ("", "assumed_"):
        layouts, budgets = part[whose + "layouts"], document[whose + "budget_bytes"]
        assert [layout["pass"] for layout in layouts] == ["forward", "backward"]
        for layout in layouts:
            assert layout["smallest_bytes"] <= layout["workspace_bytes"] <= budgets[layout["pass"]]
    assert document["budget_bytes"]["backward"] == 1 << 30 and document["assumed_budget_bytes"]["backward"] == 7 << 30


@pytest.mark.first(6)
@pytest.mark.parametrize("budget", [None, "64M", "300M", "1G", "1.5G", "3G"])
@pytest.mark.parametrize("options", [[], ["--keep"], ["--loss", "grpo"], ["--mode", "R_ROWS"], ["--chunk-vocab", "4096"]])
def test_explain_has_one_figure_a_mode(budget, options):
    """An alternative is the planner's answer for its mode: what the plan takes is among them, to the byte."""
    document = explain(*FULL, "--grad", "hidden,weight", "--rows", "300,8192,65536", *options,
                       *(["--budget", budget] if budget else []))
    for part in document["rows"]:
        ways = {way["name"]: way for way in part["ways"]}
        layouts = {layout["pass"]: layout for layout in part["assumed_layouts"] if "mode" in layout}
        forward, scoring = layouts["forward"], ways["score"]
        assert scoring["fits"] and scoring["least_bytes"] == forward["smallest_bytes"]
        for name in {"forward", "backward", "step"} & set(layouts):
            layout = layouts[name]
            if name == "step" and layout["mode"] != "stream":
                continue
            for key in ("workspace_bytes", "chunks", "chunk_rows", "chunk_vocab"):
                assert ways[layout["mode"]][key] == layout[key], (name, key)
        backward = [way for name, way in ways.items() if name.startswith("recompute")]
        limit = document["assumed_budget_bytes"]["backward"]
        for way in backward + [scoring]:
            assert way["least_bytes"] <= way["workspace_bytes"]
            assert way["fits"] == (way["workspace_bytes"] <= limit)
        if not options:
            assert ("backward" in layouts) == any(way["fits"] for way in backward)
            least = layouts["backward"]["smallest_bytes"] if "backward" in layouts else None
            assert least in (None, min(way["least_bytes"] for way in backward))
        if "backward, saved" in layouts and "forward, saved" in layouts:
            both = max(layouts[name]["workspace_bytes"] for name in ("backward, saved", "forward, saved"))
            kept = part["assumed_modes"][0]["saved_bytes"]
            assert ways["save"]["workspace_bytes"] == kept + both


def test_explain_of_scoring_is_what_was_measured():
    """Workspace and chunks of score mode in the benchmark records of forward passes, on the GPU that explain
    assumes."""
    found = 0
    for path in sorted(BENCH.glob("bench_forward_*.json")):
        for row in json.loads(path.read_text())["rows"]:
            if row.get("who") or row.get("peer"):
                continue
            part = explain("--vocab", row["V"], "--hidden", row["D"], "--dtype", row["dtype"], "--entropy", row["entropy"],
                           "--rows", row["N"], "--budget", row["budget_bytes"])["rows"][0]
            way = {way["name"]: way for way in part["ways"]}["score"]
            assert (way["workspace_bytes"], way["chunks"], way["fits"]) == (row["extra_bytes"], row["chunks"], True), path.name
            found += row["chunks"] > 1
    assert found, "one of them was cut into chunks"


def test_doctor(tmp_path):
    document = succeed("doctor", "--json", cache=tmp_path, FLP_BUDGET="64M", **NO_GPU).json()
    assert document["version"] == VERSION
    assert document["driver"]["works"] is False and "/nonexistent/libcuda.so.1" in document["driver"]["text"]
    assert document["devices"] == []
    assert document["generator"]["works"] is True and len(document["generator"]["sources"]) == 16
    assert document["rungs"]["eager"]["works"] is True
    assert set(document["rungs"]) == {"tuned", "heuristic", "jit", "generic", "eager"}
    assert document["cache"]["path"] == str(tmp_path) and document["cache"]["writable"] is True
    settings = {setting["name"]: setting for setting in document["settings"]}
    assert len(settings) == 10
    assert settings["FLP_BUDGET"]["value"] == "64M" and settings["FLP_BUDGET"]["source"] == "environment"
    assert settings["FLP_BUDGET"]["unset"] is None
    force = settings["FLP_FORCE"]
    assert (force["source"], force["value"], force["unset"]) == ("default", None, "the best rung that runs")


def test_doctor_shows_values_that_may_be_set(tmp_path):
    def settings(**environment):
        done = succeed("doctor", "--json", cache=tmp_path, **NO_GPU, **environment)
        return {setting["name"]: setting for setting in done.json()["settings"]}

    shown = settings()
    assert all((setting["value"] is None) != (setting["unset"] is None) for setting in shown.values())
    values = {name: setting["value"] for name, setting in shown.items() if setting["value"] is not None}
    again = settings(**{name: value for name, value in values.items() if name not in ("FLP_CACHE_DIR", *NO_GPU)})
    assert {name: again[name]["value"] for name in values} == values
    assert "(unset: 256M forward, 1/20 of the GPU's memory backward (host: 1G))" in flpgen("doctor", **NO_GPU).out


@pytest.mark.parametrize("text, accepted", [("1.5G", 3 << 29), ("2GiB", 2 << 30), ("1T", 1 << 40), ("0", None),
                                            ("1e9", None), ("1GB", None)])
def test_a_budget_is_written_alike_everywhere(text, accepted):
    """--budget and FLP_BUDGET take and refuse the same."""
    option = flpgen("explain", *FULL, "--budget", text, "--json", **NO_GPU)
    setting = flpgen("explain", *FULL, "--json", FLP_BUDGET=text, **NO_GPU)
    if accepted:
        assert option.json()["budget_bytes"] == setting.json()["budget_bytes"]
        assert option.json()["budget_bytes"]["forward"] == accepted
    else:
        assert option.code == setting.code == 2
        refusals = [done.err.splitlines()[0].split(" is ", 1)[1] for done in (option, setting)]
        assert refusals[0] == refusals[1]


def test_doctor_of_a_cache_that_is_a_file(tmp_path):
    path = tmp_path / "file"
    path.write_text("")
    done = flpgen("doctor", cache=path, **NO_GPU)
    row = next(line for line in done.out.splitlines() if line.startswith("cache "))
    assert row.split()[1] == "no" and "Not a directory" in row
    assert flpgen("doctor", "--json", cache=path, **NO_GPU).json()["cache"]["exists"] is False


@pytest.mark.first(3)
@pytest.mark.parametrize("arguments, settings, code, why", [
    ([], {}, 0, ""),
    (["--require", "eager"], {}, 0, ""),
    (["--require", "gpu"], {}, 3, "--require: no GPU rung works: no NVIDIA driver (/nonexistent/libcuda.so.1: "),
    (["--require", "jit"], {}, 3, "--require: rung jit does not work: no NVIDIA driver ("),
    (["--require", "tuned"], {}, 3, "--require: rung tuned does not work: no NVIDIA driver ("),
    ([], {"FLP_FORCE": "eager"}, 0, ""),
    ([], {"FLP_FORCE": "generic"}, 3, "FLP_FORCE: rung generic does not work: no NVIDIA driver ("),
    ([], {"FLP_STRICT": "1"}, 3, "strict mode refuses the fallback to host pointers"),
])
def test_doctor_as_a_health_check(tmp_path, arguments, settings, code, why):
    done = flpgen("doctor", *arguments, "--json", cache=tmp_path, **NO_GPU, **settings)
    assert done.code == code and why in done.err.split("\n")[0], "one document, whatever the outcome"
    health = done.json()["health"]
    assert health["works"] is (code == 0)
    assert done.err == (f"flpgen doctor: {health['text']}\n" if code else "") and why in health["text"]


def test_doctor_names_a_missing_driver_once():
    done = flpgen("doctor", **NO_GPU)
    assert "pinned" not in done.out + flpgen("doctor", "--json", **NO_GPU).out
    assert done.out.count("no GPU rung: no NVIDIA driver (/nonexistent/libcuda.so.1: cannot open shared object file") == 1


def test_a_cache_that_is_not_there_yet_is_no_fault(tmp_path):
    absent = flpgen("doctor", cache=tmp_path / "none" / "cache", **NO_GPU)
    assert re.search(r"^cache +ok +not there yet; it is made when needed", absent.out, flags=re.M)
    cache = flpgen("doctor", "--json", cache=tmp_path / "none" / "cache", **NO_GPU).json()["cache"]
    assert (cache["exists"], cache["writable"]) == (False, True)
    (tmp_path / "file").write_text("")
    blocked = flpgen("doctor", cache=tmp_path / "file" / "cache", **NO_GPU)
    assert re.search(r"^cache +no ", blocked.out, flags=re.M)


def test_a_store_whose_every_entry_is_bad_is_bad(tmp_path):
    generic = tmp_path / "generic"
    assert flpgen("gen", "--vocab", 1000, "--hidden", 64, "--out", generic).code == 0
    entries = sorted(generic.glob("*.flpk"))

    def state():
        done = flpgen("doctor", FLP_GENERIC_DIR=str(generic), **NO_GPU)
        return re.search(r"^generic +(\w+) +(\d+ entries), .*?, (\d+ bad)", done.out, flags=re.M).groups()

    assert state() == ("ok", "2 entries", "0 bad")
    entries[0].write_bytes(entries[0].read_bytes()[:-1])
    assert state() == ("ok", "2 entries", "1 bad")
    entries[1].write_bytes(b"no entry")
    assert state() == ("bad", "2 entries", "2 bad")
    done = flpgen("doctor", FLP_GENERIC_DIR=str(generic), **NO_GPU)
    assert done.code == 4
    assert done.err.startswith(f"flpgen doctor: {generic}: not one of 2 generic kernels can be used: ")
    reason = done.err.strip().split("can be used: ")[1]
    assert reason in done.out
    document = flpgen("doctor", "--json", FLP_GENERIC_DIR=str(generic), **NO_GPU).json()
    assert document["generic"]["bad_reason"] == reason and not document["health"]["works"]
