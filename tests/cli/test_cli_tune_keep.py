"""flpgen tune on the stand-in for a GPU, with --keep and --loss too: forward_keep is searched in the passes of save,
direction and stream modes, and what was found is what plans, packs and nearby shapes take."""
import re

import pytest

from flp_report_tool import draw
from flpgen_pack_tool import build, entries_of
from flpgen_tool import succeed
from flpgen_tune_tool import (  # noqa: F401
    BACKWARD, DEVICE, KINDS, SPEC, STAND_INS, cache, plan_of, planted, pytestmark, result, rows, steps, tune,
    ways_tried)

GRADS = ["--grad", "hidden,weight"]
KEEP = [*GRADS, "--keep"]
# The stand-in knows the loss -weight * advantage * logprob; so few rows would run in recompute mode.
STEP = [*GRADS, "--loss", "reinforce", "--mode", "stream"]
FROZEN = ["--grad", "hidden", "--keep"]
LONG = pytest.mark.long
MODES = pytest.mark.parametrize("options, mode", [
    pytest.param(KEEP, "save", id="save"), pytest.param(FROZEN, "direction", id="direction", marks=LONG),
    pytest.param(STEP, "stream", id="stream", marks=LONG)])


def without_mode(options):
    return [word for word in options if word not in ("--mode", "stream")]


# ---- what is found


@pytest.mark.first
@pytest.mark.parametrize("options, mode, more", [
    (KEEP, "save", []), (STEP, "stream", ["--entropy", "forward"]),
    (FROZEN, "direction", ["--entropy", "forward", "--bias"]),
    *(pytest.param(*row, marks=LONG) for row in (
        (FROZEN, "save", ["--entropy", "backward"]),
        (KEEP, "save", ["--bias", "--grad", "hidden,weight,bias", "--per-row-temperature"]),  # these are expanded
        (KEEP, "save", ["--accumulate-grad-weight", "--softcap", 3]),
        (FROZEN, "direction", ["--softcap", 3, "--grad-hidden-dtype", "fp32"]),
        (STEP, "stream", ["--accumulate-grad-weight"]),
        (STEP, "stream", ["--grad", "hidden", "--target-dtype", "int32"])))])
def test_every_kernel_of_the_mode_is_tuned(cache, options, mode, more):
    target = result(*options, *more, cache=cache)
    found = steps(target)
    assert target["mode"] == mode and list(found) == [*KINDS, "layout"]
    for kind in KINDS:
        assert not found[kind]["is_default"] and found[kind]["ms"] < found[kind]["default_ms"], kind
    assert plan_of(cache, *SPEC, *without_mode(options), *more) == ("tuned", target["plan"])


def test_kinds_are_timed_in_the_passes_of_save_mode(cache):
    found = steps(result(*KEEP, cache=cache, script=""))
    # launches of 40 ms: forward over the first columns, forward_keep; dz in case rows are redone; products
    assert found["forward_keep"]["ms"] == pytest.approx(80, rel=0.01)
    assert found["products"]["ms"] == pytest.approx(160, rel=0.01)
    assert found["dz"]["ms"] == pytest.approx(80, rel=0.01), "dz and products, in recompute mode"
    assert all(step["is_default"] for step in found.values())


@pytest.mark.long
def test_kinds_are_timed_in_the_passes_of_direction_mode(cache):
    found = steps(result(*FROZEN, cache=cache, script=""))
    # launches of 40 ms: forward over the first columns, forward_keep, products; dz and products in case rows are redone
    assert found["forward_keep"]["ms"] == pytest.approx(200, rel=0.01)
    assert found["products"]["ms"] == pytest.approx(200, rel=0.01), "backward has no product"
    assert found["dz"]["ms"] == pytest.approx(80, rel=0.01), "dz and products, in recompute mode"
    target = result(*FROZEN, "--mode", "save", cache=cache, script="")
    assert target["mode"] == "save" and steps(target)["forward_keep"]["ms"] == pytest.approx(80, rel=0.01)


@LONG
def test_save_and_direction_of_a_frozen_head_are_two_things_to_resume(cache):
    first = result(*FROZEN, "--mode", "save", cache=cache)
    second = result(*FROZEN, "--resume", cache=cache)
    assert "mode=" not in first["spec"] and second["spec"].endswith(" mode=direction") and not second["done_before"]
    assert result(*FROZEN, "--mode", "direction", "--resume", cache=cache)["done_before"]


@pytest.mark.long
def test_kinds_are_timed_in_steps_of_stream_mode(cache):
    found = steps(result(*STEP, cache=cache, script=""))
    for kind in ("forward_keep", "products", "layout"):
        assert found[kind]["ms"] == pytest.approx(160, rel=0.01), kind


@LONG
def test_steps_that_run_in_recompute_mode_leave_forward_keep_alone(cache):
    done = tune(*GRADS, "--loss", "reinforce", cache=cache)
    assert done.code == 0 and "forward_keep counts for nothing; --mode stream times it" in done.out
    assert rows(cache, "SELECT count(*) FROM candidate WHERE kind = 'forward_keep'") == [(0,)]
    rung, _ = plan_of(cache, *SPEC, *GRADS, "--loss", "reinforce")
    assert rung == "tuned", "its plain entry serves"
    pinned = result(*STEP, "--resume", cache=cache)
    assert not pinned["done_before"] and steps(pinned)["forward"]["tried"] > 4, "recompute mode does not count"


@pytest.mark.long
def test_a_loss_of_fp32_operands_has_nothing_to_keep(cache):
    options = [*GRADS, "--loss", "nll", "--dtype", "fp32", "--no-bare"]
    target = result(*options, cache=cache)
    assert target["mode"] is None and "forward_keep" not in steps(target)
    assert "counts for nothing" not in tune(*options, cache=cache).out


def test_scoring_with_a_loss_tunes_forward_alone(cache):
    assert list(steps(result("--loss", "nll", cache=cache))) == ["forward"]


@LONG
@pytest.mark.parametrize("options, kinds", [(BACKWARD, ["forward", "dz", "products"]), (STEP, list(KINDS))])
def test_ties_fall_to_the_least_predicted_whatever_the_seed(tmp_path, options, kinds):
    ways = ways_tried(*options)
    assert list(ways) == kinds
    found = [result(*options, "--seed", seed, cache=tmp_path / str(seed), script=planted(ways, 3, 1, 2))
             for seed in (1, 77)]
    for target in found:
        assert [step["chosen"] for step in target["steps"][:len(kinds)]] == [ways[kind][1] for kind in kinds]
    assert found[0]["plan"] == found[1]["plan"]


@pytest.mark.long
def test_rows_of_a_chunk_of_stream_mode_are_layouts(cache):
    found = steps(result(*STEP, "--rows", 300, "--workspace", 200000, cache=cache))
    layouts = rows(cache, "SELECT tune, chunk_rows, chunk_vocab, is_default FROM candidate WHERE kind = 'layout'")
    assert {tune for tune, *_ in layouts} == {"stream"} and {vocab for *_, vocab, _ in layouts} == {200}
    assert all(size % 128 == 0 or size == 300 for _, size, _, _ in layouts), "whole bands"
    assert len(layouts) == len({size for _, size, *_ in layouts}) > 1 and layouts[0][3] == 1
    assert found["layout"]["chosen"].startswith("stream, chunks of ")


# ---- what is refused


@pytest.mark.first
@MODES
@pytest.mark.parametrize("fault, words", [("wrong", "forward differs in [0-9]+ bytes"),
                                          ("spoilt", r"grad_\w+ is off by .* allowed: ")])
def test_wrong_candidates_are_rejected_and_never_stored(cache, options, mode, fault, words):
    ways = ways_tried(*options)
    bad = ways["forward_keep"][2]
    target = result(*options, cache=cache, script=planted(ways, 2) + f";{fault}=forward_keep/{bad} ")
    found = steps(target)
    assert found["forward_keep"]["is_default"] and found["products"]["chosen"] == ways["products"][2]
    (kind, got, reason), = rows(cache, "SELECT kind, tune, reason FROM candidate WHERE status = 'wrong' AND ms IS NULL")
    assert (kind, got) == ("forward_keep", bad) and re.search(words, reason)
    assert plan_of(cache, *SPEC, *without_mode(options)) == ("tuned", target["plan"])


@pytest.mark.parametrize("options, script", [
    (BACKWARD, "wrong=kind=dz"), (KEEP, "spoilt=forward_keep/"),
    *(pytest.param(options, "spoilt=forward_keep/", marks=LONG) for options in (FROZEN, STEP))])
def test_wrong_untuned_kernels_end_it(cache, options, script):
    done = tune(*options, cache=cache, script=script)
    assert done.code == 5 and "the untuned kernels are wrong, nothing is tuned: grad_" in done.err
    assert not list(cache.glob("*.flpk"))


@pytest.mark.long
def test_tiles_that_would_take_the_modes_away_are_not_tried(cache):
    result(*GRADS, cache=cache)
    reasons = rows(cache, "SELECT DISTINCT reason FROM candidate WHERE kind = 'dz' AND status = 'illegal' AND "
                          "tune LIKE '%,192x64,stages=3,%raster=%'")
    assert reasons == [("save, stream and direction modes redo blocks of 1024 rows, which tiles of 192 do not divide",)]
    included = tune(*GRADS, "--include", "dz:192x64", "--json", cache=cache).json()["targets"][0]["steps"][1]["included"]
    assert included["status"] == "illegal" and "tiles of 192 do not divide" in included["reason"]


def test_a_workspace_that_holds_nothing_to_keep_is_reported(cache):
    done = tune(*KEEP, "--workspace", 20000, cache=cache)
    assert done.code == 3 and "--keep: nothing is kept of 40 rows, as --workspace is too small for it" in done.err


# ---- records, dry runs, presets


@LONG
@MODES
def test_it_is_recorded_gone_on_with_and_drawn(cache, tmp_path, options, mode):
    script = planted(ways_tried(*options), 1)
    assert tune(*options, "--json", cache=cache, script=script + ";interruptload=90").json()["stopped"]
    target = result(*options, "--resume", cache=cache, script=script)
    assert not target["done_before"] and steps(target)["forward"]["tried"] < 24
    count = dict(rows(cache, "SELECT status, count(*) FROM candidate WHERE spec = 2 AND kind = 'forward_keep' "
                             "GROUP BY status"))
    assert count["chosen"] == 1 and sum(count.values()) == steps(target)["forward_keep"]["candidates"]
    assert result(*options, "--resume", cache=cache, script=script)["done_before"]
    assert not result(*options, "--accumulate-grad-weight", "--resume", cache=cache, script=script)["done_before"]
    pytest.importorskip("matplotlib")
    page, _ = draw(tmp_path, cache / "tune.sqlite")
    assert "Time of every candidate by tunable: forward_keep" in page
    assert {"stream": "the whole step is timed"}.get(mode, "the whole training step is timed") in page
    assert {"save": "· keep", "direction": "· mode=direction", "stream": "· loss=reinforce"}[mode] in page


# ---- who takes what was found


@pytest.fixture(scope="module", params=[
    pytest.param(KEEP, id="save"), pytest.param(FROZEN, id="direction", marks=LONG),
    pytest.param(STEP, id="stream", marks=LONG)])
def listed(request, tmp_path_factory):
    """-> (options, list, cache, target) of a search."""
    folder = tmp_path_factory.mktemp("listed")
    done = tune(*request.param, "--list", folder / "list.txt", "--json", cache=folder / "cache")
    assert done.code == 0, done.err
    return without_mode(request.param), folder / "list.txt", folder / "cache", done.json()["targets"][0]


def explain(cache, *spec, script=DEVICE, **settings):
    done = succeed("explain", *spec, "--json", cache=cache, FAKE_CUDA=script, **{**STAND_INS, **settings})
    return done.json()["plan"]


@pytest.mark.long
def test_a_line_names_what_a_pack_needs(listed):
    options, path, _, target = listed
    line, = path.read_text().splitlines()
    assert ("--keep" in line) == ("--keep" in options) and ("--loss 'reinforce'" in line) == ("--loss" in options)
    assert "forward_keep:" + steps(target)["forward_keep"]["chosen"] in line


@pytest.mark.long
def test_packs_and_nearby_shapes_take_the_tiling(listed, tmp_path):
    options, path, _, target = listed
    entries = entries_of(build(tmp_path / "a.flpp", "--list", path))
    tuned = {entry["kernel"]["key"]["kind"] for entry in entries if not entry["key"].endswith("tuned=")}
    assert tuned == set(KINDS)
    pack = {"FLP_CACHE_PATH": str(tmp_path / "a.flpp")}
    here = explain(tmp_path / "c", *SPEC, *options, **pack)
    assert here["rung"] == "tuned" and here["cut"] == "tuned here"
    near = explain(tmp_path / "c", "--vocab", 300, "--hidden", 8, *options, **pack)
    assert near["cut"] == "as the nearest tuned shape, V=200 D=8"


def test_explain_names_the_driver_that_it_was_tuned_with(listed):
    options, _, cache, target = listed
    newer = explain(cache, *SPEC, *options, script=DEVICE + "driver=13010")
    assert (newer["rung"], newer["cut"], newer["id"]) == ("tuned", "tuned with driver 13000", target["plan"])
