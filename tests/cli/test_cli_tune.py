"""flpgen tune on the stand-in for a GPU: what it finds, refuses, stores and prints."""
import re

import pytest

from flpgen_tune_tool import (  # noqa: F401
    BACKWARD, FASTER, SPEC, cache, plan_of, planted, pytestmark, result, rows, steps, tune, tuned,
    ways_tried)


# ---- what is found


def test_the_faster_kernels_are_chosen_and_plans_find_them(tuned):
    cache, target = tuned
    found = steps(target)
    assert list(found) == ["forward", "dz", "products", "layout"]
    for kind in ("forward", "dz", "products"):
        step = found[kind]
        assert step["chosen"] != step["default"] and not step["is_default"]
        assert step["ms"] < step["default_ms"] and step["ratio"] < 1 and step["timed"] <= step["tried"] + 1
        spent = dict(step["spent_s"])
        assert all(part > 0 for part in spent.values()) and spent.pop("beginning") and sum(spent.values()) <= step["seconds"]
        assert step["candidates"] > step["legal"] >= step["timed"]
    assert {bare["product"] for bare in target["bare"]} == {"scores", "grad_hidden", "grad_weight"}
    assert plan_of(cache, *SPEC, *BACKWARD) == ("tuned", target["plan"])
    assert not target["stopped"] and not target["done_before"]


@pytest.mark.first
@pytest.mark.parametrize("options", [["--dtype", "fp16", "--target-dtype", "int32", "--grad", "hidden"],
                                     ["--dtype", "fp32", "--softcap", "20", "--grad", "weight", "--no-bare"],
                                     ["--bias", "--grad", "bias,hidden", "--entropy", "forward"],
                                     ["--per-row-temperature", "--grad-hidden-dtype", "fp32", "--grad", "hidden"]])
def test_every_kind_of_specialisation(cache, options):
    target = result(*options, cache=cache)
    assert not steps(target)["forward"]["is_default"]
    assert plan_of(cache, *SPEC, *[o for o in options if o != "--no-bare"]) == ("tuned", target["plan"])


def test_the_default_stays_and_is_stored_where_nothing_is_faster(cache):
    target = result(cache=cache, script="")
    step = steps(target)["forward"]
    assert step["is_default"] and step["chosen"] == step["default"] and step["ratio"] == 1
    assert plan_of(cache) == ("tuned", target["plan"])


def test_what_is_stored_is_the_same_bytes_each_time(tmp_path):
    files = []
    for name in ("a", "b"):
        result(cache=tmp_path / name)
        files.append({path.name: path.read_bytes() for path in (tmp_path / name).glob("*.flpk")})
    assert files[0] == files[1] and len(files[0]) == 3


# ---- what is refused


def test_wrong_candidates_are_rejected_and_never_stored(cache):
    ways = ways_tried(*BACKWARD)
    script = planted(ways, 2) + f";wrong=forward/{ways['forward'][2]} ;wrong=dz/{ways['dz'][2]} "
    target = result(*BACKWARD, cache=cache, script=script)
    found = steps(target)
    assert found["forward"]["is_default"] and found["dz"]["is_default"]
    assert found["products"]["chosen"] == ways["products"][2]
    wrong = rows(cache, "SELECT kind, tune, reason FROM candidate WHERE status = 'wrong' AND ms IS NULL ORDER BY id")
    assert [row[:2] for row in wrong] == [(kind, ways[kind][2]) for kind in ("forward", "dz")]
    assert re.search("forward differs in [0-9]+ bytes", wrong[0][2])
    assert re.search(r"grad_\w+ is off by .* allowed: ", wrong[1][2])
    assert plan_of(cache, *SPEC, *BACKWARD) == ("tuned", target["plan"])


def test_candidates_that_do_not_load_are_recorded(cache):
    way = ways_tried()["forward"][2]
    target = result(cache=cache, script=f"cost=forward/{way} :35;refuse=forward/{way} ")
    assert steps(target)["forward"]["is_default"]
    (tiling, reason), = rows(cache, "SELECT tune, reason FROM candidate WHERE status = 'failed'")
    assert tiling == way and "kernel forward: cuModuleLoadDataEx failed: CUDA_ERROR_INVALID_PTX (218)" in reason


def test_a_target_that_fails_does_not_keep_the_next_from_being_tuned(cache):
    done = tune("--grad", "hidden", "--json", cache=cache, spec=["--shapes", "200x8,200x16"],
                script=FASTER + ";wrong=dz/hidden=8 ")
    first, second = done.json()["targets"]
    assert done.code == 5 and "V=200 D=8" in done.err
    assert "untuned kernels are wrong" in first["error"] and "V=200 D=8" in first["spec"]
    assert plan_of(cache, "--vocab", 200, "--hidden", 16, "--grad", "hidden") == ("tuned", second["plan"])


def test_without_gemm_baselines_no_cublaslt_is_needed(cache):
    assert result("--no-bare", cache=cache, FLP_CUBLASLT_LIBRARY="/nonexistent/lib.so")["bare"] == []


def test_a_device_that_is_gone_ends_it(cache):
    done = tune(cache=cache, script="fail:cuStreamSynchronize=700@20+")
    assert done.code == 3 and "700" in done.err
    assert rows(cache, "SELECT count(*) FROM run") == [(1,)] and not list(cache.glob("*.flpk"))


# ---- what is printed


def test_it_is_silent_in_a_pipe_and_reports_what_it_did(cache):
    done = tune(cache=cache)
    assert done.code == 0 and done.err == "", done.err
    assert "bf16 V=200 D=8" in done.out and "forward" in done.out
    assert re.search(r"stored; plan [0-9a-f]{16}", done.out) and str(cache / "tune.sqlite") in done.out
    assert "\r" not in done.out and "\x1b" not in done.out
