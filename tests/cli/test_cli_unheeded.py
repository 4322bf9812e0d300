"""What a command would not heed, it refuses: cuts that cannot be had, and options that do nothing beside others."""
import os

import pytest

from flpgen_tool import flpgen, needs_flpgen

FAKE = os.environ.get("FLP_TEST_FAKE_CUDA", "")
HEAD = ["--vocab", 1000, "--hidden", 64]
BENCH = ["--rows", 40, "--no-bare", "--burst-ms", 1, "--rounds", 3, "-q"]

pytestmark = [needs_flpgen,
              pytest.mark.skipif(not os.path.exists(FAKE), reason="the stand-in for libcuda was not built")]


def on_fake(*arguments, cache, script="capability=9.0;fill=1"):
    return flpgen(*arguments, cache=cache, FLP_CUDA_LIBRARY=FAKE, FAKE_CUDA=script)


# ---- cuts ----


def test_a_tiling_that_is_accepted_is_what_runs(tmp_path):
    done = on_fake("bench", *HEAD, *BENCH, "--tune", "forward:cooperative,256x128,stages=3", cache=tmp_path,
                   script="capability=9.0;compute=1;jitter=5")
    assert done.code == 0, done.err
    assert "forward for sm_90a" in done.out and "tiling: as the options ask" in done.out


def test_a_tiling_of_kernels_that_do_not_load(tmp_path):
    done = on_fake("bench", *HEAD, *BENCH, "--tune", "forward:raster=4", cache=tmp_path,
                   script="capability=9.0;fail:cuModuleLoadDataEx=218")
    assert done.code == 3 and done.out == ""
    assert "rung jit is pinned and failed: kernel forward: cuModuleLoadDataEx failed: CUDA_ERROR_INVALID_PTX" in done.err


@pytest.mark.parametrize("verb", [["bench", *HEAD, *BENCH], ["check", "-q"]], ids=lambda verb: verb[0])
def test_a_tiling_where_there_is_no_choice(tmp_path, verb):
    done = on_fake(*verb, "--tune", "forward:stages=3", cache=tmp_path, script="capability=8.0;fill=1")
    assert done.code == 2 and "have one tile configuration (accepted: NULL, \"\"); those of sm_90a" in done.err


# ---- options ----


def test_explain_has_tilings_of_kernels_of_the_assumed_gpu(tmp_path):
    document = on_fake("explain", *HEAD, "--tune", "forward:cooperative,256x128,stages=3", "--json", cache=tmp_path).json()
    tile, = [kernel["tile"] for kernel in document["assumed"]["kernels"] if kernel["key"]["kind"] == "forward"]
    assert (tile["rows"], tile["columns"], tile["stages"]) == (256, 128, 3)
