"""What a command would not heed, it refuses: cuts that cannot be had, and options that do nothing beside others."""
import os

import pytest

from flpgen_tool import flpgen, needs_flpgen

FAKE = os.environ.get("FLP_TEST_FAKE_CUDA", "")
HEAD = ["--vocab", 1000, "--hidden", 64]
TRAINED = [*HEAD, "--grad", "hidden,weight"]
BENCH = ["--rows", 40, "--no-bare", "--burst-ms", 1, "--rounds", 3, "-q"]
REFUSED = "forward:cooperative,256x256,stages=3"
WHY = ("rung jit is pinned and failed: options.tune is \"forward:cooperative,256x256,stages=3\", which is refused: kernel "
       "forward: tune: 256x256 cooperative needs 256 accumulators a thread; at most 192 fit")

pytestmark = [needs_flpgen,
              pytest.mark.skipif(not os.path.exists(FAKE), reason="the stand-in for libcuda was not built")]


def on_fake(*arguments, cache, script="capability=9.0;fill=1"):
    return flpgen(*arguments, cache=cache, FLP_CUDA_LIBRARY=FAKE, FAKE_CUDA=script)


# ---- cuts ----

@pytest.mark.parametrize("verb, message", [
    (["bench", *HEAD, *BENCH], f"flpgen bench: {WHY}\n"),
    (["check", *HEAD, "-q"], f"flpgen check: case random of bf16: {WHY}\n"),
    (["check", "-q"], f"flpgen check: case random of bf16: {WHY}\n"),
    (["check", "--concurrent", "-q"], f"flpgen check: case concurrent of bf16: {WHY}\n"),
    (["gen", *HEAD, "--arch", "sm_90a"], "flpgen gen: --tune is " + WHY.split(" is ", 2)[2].replace("kernel forward: ", "") + "\n"),
], ids=lambda value: " ".join(map(str, value)) if isinstance(value, list) else None)
def test_a_tiling_that_a_template_refuses(tmp_path, verb, message):
    done = on_fake(*verb, "--tune", REFUSED, cache=tmp_path)
    assert done.code == 2 and done.out == "" and done.err == message


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

@pytest.mark.parametrize("arguments, message", [
    (["bench", *HEAD, "--tune", "dz:raster=4"], "--tune: 'dz:raster=4' is not accepted; of this specialisation forward can"),
    (["bench", *TRAINED, "--tune", "forward:raster=4;forward_keep:raster=4"],
     "--tune: 'forward_keep:raster=4' is not accepted; of this specialisation forward, dz, products can be tuned"),
    (["bench", *HEAD, "--alignment", 8, "--tune", "forward:raster=4"], "of this specialisation no kernel can be tuned"),
    (["bench", *HEAD, "--rung", "generic", "--tune", "forward:raster=4"], "--tune: not accepted with --rung generic"),
    (["bench", *HEAD, "--peers", "--tune", "forward:raster=4"], "--tune: not accepted with --peers"),
    (["bench", *HEAD, "--write-rows", "x", "--peers"], "--peers: not accepted with --write-rows, which measures nothing"),
    (["bench", *HEAD, "--write-rows", "x", "--rows", "8,16"], "--rows: a list: not accepted with --write-rows"),
    (["bench", *TRAINED, "--write-rows", "x"], "--grad: not accepted with --write-rows"),
    (["bench", *HEAD, "--write-rows", "x", "--budget", "1G"], "--budget: not accepted with --write-rows"),
    (["bench", *HEAD, "--data", "polcy"], "--data: expected one of random, policy, text, base, got 'polcy'"),
    (["bench", *HEAD, "--mode", "R_VOCAB"], "--mode: not accepted without --grad"),
    (["bench", *HEAD, "--chunk-rows", 64], "--chunk-rows: not accepted without --grad"),
    (["bench", *TRAINED, "--mode", "R_VOCAB", "--chunk-rows", 64],
     "--chunk-rows: not accepted in mode recompute-vocab"),
    (["bench", *TRAINED, "--mode", "R_ROWS", "--chunk-vocab", 64],
     "--chunk-vocab: not accepted in mode recompute-rows"),
    (["bench", *TRAINED, "--loss", "nll", "--mode", "P", "--chunk-vocab", 64],
     "--chunk-vocab: not accepted in mode stream"),
    (["bench", *TRAINED, "--keep", "--chunk-rows", 64], "--chunk-rows: not accepted in mode save"),
    (["bench", *HEAD, "--grad", "hidden", "--mode", "save", "--chunk-rows", 64], "--chunk-rows: not accepted in mode save"),
    (["check", *HEAD, "--rung", "eager", "--tune", "forward:raster=4"], "--tune: not accepted with --rung eager"),
    (["check", *HEAD, "--mode", "R_ROWS"], "--mode: not accepted without --grad"),
    (["check", *HEAD, "--limit", 5], "--limit: not accepted with a shape"),
    (["check", "--grad", "hidden"], "--grad: not accepted with --quick, the default without a shape"),
    (["check", "--all", "--loss", "nll"], "--loss: not accepted with --all"),
    (["check", "--large", "--rows", 5], "--rows: not accepted with --large"),
    (["check", "--quick", "--temperature", 2], "--temperature: not accepted with --quick"),
    (["check", "--quick", "--scale", 2], "--scale: not accepted with --quick"),
    (["check", "--quick", "--limit", 2], "--limit: not accepted with --quick"),
    (["check", "--concurrent", "--budget", "1G"], "--budget: not accepted with --concurrent"),
    (["check", "--concurrent", "--seed", 2], "--seed: not accepted with --concurrent"),
    (["check", "--concurrent", "--entropy", "forward"], "--entropy: not accepted with --concurrent"),
    (["check", "--op", "select", "--mode", "S"], "--mode: not accepted with --op select"),
    (["check", "--op", "select", "--seed", 2], "--seed: not accepted with --op select"),
    (["check", "--op", "select", "--entropy", "forward"], "--entropy: not accepted with --op select"),
    (["check", "--op", "select", "--tune", "forward:raster=4"], "--tune: not accepted with --op select"),
    (["check", "--op", "scale", "--entropy", "forward"], "--entropy: not accepted with --op scale"),
    (["explain", *HEAD, "--mode", "R_ROWS"], "--mode: not accepted without --grad"),
    (["explain", *HEAD, "--capability", "8.0", "--tune", "forward:raster=4"], "--capability: 8.0 is not accepted with --tune"),
    (["explain", *HEAD, "--tune", "forward:stages=13"], "--tune is \"forward:stages=13\", which is refused: tune: stages 13"),
    (["gen", *HEAD, "--tune", "forward:raster=4"], "--tune: not accepted with --arch sm_80 (default)"),
    (["gen", *HEAD, "--arch", "sm_80,sm_100", "--tune", "forward:raster=4"], "--tune: not accepted with --arch sm_80,sm_100"),
    (["gen", *HEAD, "--arch", "sm_90a", "--tune", "dz:raster=4"], "--tune: 'dz:raster=4' is not accepted"),
    (["gen", "--generic", "--out", "x", "--hidden", 64], "--hidden: not accepted with --generic"),
    (["gen", "--generic", "--out", "x", "--model", "x"], "--model: not accepted with --generic"),
    (["gen", "--generic", "--out", "x", "--arch", "sm_80,sm_100"], "--arch: expected one architecture with --generic, got 'sm_80,sm_100'"),
    (["tune", *HEAD, "--include", "dz:raster=4"], "--include: 'dz:raster=4' is not accepted; of this specialisation forward"),
], ids=lambda value: " ".join(map(str, value)) if isinstance(value, list) else None)
def test_options_that_would_do_nothing(tmp_path, arguments, message):
    done = on_fake(*arguments, cache=tmp_path)
    assert done.code == 2 and done.out == "" and done.err.startswith(f"flpgen {arguments[0]}: ") and message in done.err


def test_explain_has_tilings_of_kernels_of_the_assumed_gpu(tmp_path):
    document = on_fake("explain", *HEAD, "--tune", "forward:cooperative,256x128,stages=3", "--json", cache=tmp_path).json()
    tile, = [kernel["tile"] for kernel in document["assumed"]["kernels"] if kernel["key"]["kind"] == "forward"]
    assert (tile["rows"], tile["columns"], tile["stages"]) == (256, 128, 3)
