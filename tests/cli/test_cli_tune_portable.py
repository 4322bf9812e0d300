"""flpgen tune of portable kernels on the stand-in for a GPU: on one of compute capability 8.0, and where --arch names
them."""
import re

import pytest

from flpgen_pack_tool import build, entries_of
from flpgen_tool import FAKE, flpgen
from flpgen_tune_tool import (  # noqa: F401
    BACKWARD, FASTER, SPEC, cache, planted, pytestmark, result, rows, steps, tune, ways_tried)

KINDS = ["forward", "dz", "grad_hidden", "grad_weight"]
ARCH = ["--arch", "sm_80"]
A100 = "capability=8.0;shared=166912;name=Fake A100;"
both = pytest.mark.parametrize("options,device", [([], A100), (ARCH, "")], ids=["A100", "asked for"])


def plan_of(cache, device, *options):
    """(rung, plan id) of a plan that a user makes where no generator is, and what it says of tilings."""
    done = flpgen("explain", *SPEC, *BACKWARD, *options, "--json", cache=cache, FLP_CUDA_LIBRARY=FAKE,
                  FLP_JIT_LIBRARY="/nonexistent/lib.so", FAKE_CUDA="capability=9.0;" + device)
    plan = done.json()["plan"]
    return plan["rung"], re.search(r"plan id ([0-9a-f]{16})", plan["description"]).group(1), plan["tune"]


@both
def test_the_faster_kernels_are_chosen_and_plans_find_them(cache, options, device):
    target = result(*BACKWARD, *options, cache=cache, script=device + FASTER)
    found = steps(target)
    assert list(found) == [*KINDS, "layout"] and ("arch=sm_80" in target["spec"]) == bool(options)
    for kind in KINDS:
        step = found[kind]
        assert step["chosen"] != step["default"] and step["ms"] < step["default_ms"] and step["ratio"] < 1
        assert step["candidates"] > step["legal"] >= step["timed"] and step["chosen"].startswith("cooperative,")
    rung, plan, tilings = plan_of(cache, device)
    assert (rung, plan) == ("tuned", target["plan"])
    assert sorted(tilings.split(";")) == sorted(f"{kind}:{found[kind]['chosen']}" for kind in KINDS)


@pytest.mark.parametrize("place", [0, -1])
def test_an_exhaustive_search_agrees_with_a_quick_one(tmp_path, place):
    ways = {kind: ways[:20] for kind, ways in ways_tried(*BACKWARD, *ARCH).items()}
    assert list(ways) == KINDS
    chosen = []
    for effort in ("quick", "exhaustive"):
        target = result(*BACKWARD, *ARCH, "--effort", effort, cache=tmp_path / effort, script=planted(ways, place))
        chosen.append({kind: step["chosen"] for kind, step in steps(target).items() if kind in KINDS})
    assert chosen[0] == chosen[1] == {kind: ways[kind][place] for kind in KINDS}


def test_wrong_candidates_are_rejected(cache):
    ways = ways_tried(*BACKWARD, *ARCH)
    bad = {kind: ways[kind][0] for kind in ("forward", "grad_weight")}
    faults = ";".join(f"wrong={kind}/{tiling} " for kind, tiling in bad.items())
    target = result(*BACKWARD, *ARCH, cache=cache, script=f"{faults};{planted(ways, 0)}")
    assert all(steps(target)[kind]["chosen"] != bad[kind] for kind in bad)


@both
def test_a_line_makes_the_kernels_once_more(tmp_path, options, device):
    done = tune(*BACKWARD, *options, "--list", tmp_path / "list.txt", "--json", cache=tmp_path / "cache",
                script=device + FASTER)
    target, (line,) = done.json()["targets"][0], (tmp_path / "list.txt").read_text().splitlines()
    assert " --arch sm_80 --tune 'dz:" in line and line.endswith("/13000'")
    entries = entries_of(build(tmp_path / "a.flpp", "--list", tmp_path / "list.txt"))
    tuned = {entry["kernel"]["key"]["kind"]: entry["kernel"] for entry in entries
             if not entry["key"].endswith("tuned=")}
    assert set(tuned) == set(KINDS) and {kernel["key"]["arch"] for kernel in tuned.values()} == {"sm_80"}
    for kind, step in steps(target).items():
        if kind in KINDS:
            tile = tuned[kind]["tile"]
            size = f"{tile['rows']}x{tile['columns']},stages={tile['stages']}"
            assert step["chosen"] == f"cooperative,{size},cluster=1,raster={tile['raster']}"


def test_what_a_card_has_no_shared_memory_for_is_not_tried():
    """sm_80's kernels may have 163 KiB, a card of capability 8.9 has 99."""
    counts = {}
    for shared in (166912, 101376):
        done = flpgen("tune", *SPEC, "--dry-run", "--json", FLP_CUDA_LIBRARY=FAKE,
                      FAKE_CUDA=f"capability=8.9;shared={shared}")
        forward, = done.json()["targets"][0]["kinds"]
        stages = [int(re.search(r"stages=(\d+)", way["cut"]).group(1)) for way in forward["tried"]]
        counts[shared] = forward["illegal"], max(stages)
    assert counts[101376][0] > counts[166912][0] and counts[101376][1] == 4 < counts[166912][1]


def test_a_record_keeps_architectures_apart(cache):
    result(*ARCH, "--resume", cache=cache)
    assert not result("--resume", cache=cache)["done_before"]
    assert result(*ARCH, "--resume", cache=cache)["done_before"]
    assert len(rows(cache, "SELECT DISTINCT text FROM spec")) == 2
