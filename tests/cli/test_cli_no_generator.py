"""The command without libflpgen: what needs no generator works, the rest ends with 3 and the reason."""
import functools
import os
import shutil
from pathlib import Path

import pytest

from flpgen_tool import FAKE, FLPGEN, flpgen, needs_flpgen

pytestmark = needs_flpgen

SMALL = ["--vocab", "1024", "--hidden", "64"]
GENERIC = Path(os.environ["FLP_TEST_BUILD"]) / "share" / "flp" / "generic"
REASON = "the generator is not here: libflpgen.so: cannot open shared object file: No such file or directory"


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Runs a copy of the command that stands alone."""
    folder = tmp_path_factory.mktemp("bin")
    return functools.partial(flpgen, program=shutil.copy(FLPGEN, folder), FLP_GENERIC_DIR=str(GENERIC))


@pytest.fixture(scope="module")
def pack(tmp_path_factory):
    path = tmp_path_factory.mktemp("pack") / "small.flpp"
    assert flpgen("pack", "build", *SMALL, "--arch", "sm_80", "-o", path).code == 0
    return path


@pytest.mark.parametrize("verb", [
    ["gen", *SMALL], ["loss", "list"], ["loss", "show", "grpo"], ["tune", *SMALL, "--dry-run"],
    ["explain", *SMALL], ["run", "--demo", *SMALL, "--rows", "64", "--loss", "grpo"], ["pack", "build", *SMALL, "-o", "x"]])
def test_what_generates_says_so(alone, verb, tmp_path):
    done = alone(*verb, cwd=tmp_path)
    assert (done.code, REASON in done.err) == (3, True), done.err
    done = alone(*verb, "--json", cwd=tmp_path)
    assert (done.json()["error"]["status"], done.json()["error"]["exit"]) == ("FLP_ERROR_UNAVAILABLE", 3)


def test_what_does_not_works(alone, pack, tmp_path):
    for verb in (["pack", "verify", pack], ["pack", "inspect", pack], ["pack", "install", pack, "--dir", tmp_path / "k"],
                 ["cache", "ls"], ["run", "--demo", *SMALL, "--rows", "64", "--rung", "eager"]):
        assert alone(*verb).code == 0, verb


def test_doctor_names_what_is_missing(alone):
    document = alone("doctor", "--json").json()
    assert document["generator"] == {"works": False, "text": REASON, "library": "", "sources": "", "seconds": 0}
    assert document["rungs"]["jit"]["works"] is False and document["health"]["works"] is True
    whole = flpgen("doctor", "--json").json()["generator"]
    assert whole["works"] is True and whole["library"].endswith("/libflpgen.so")


@pytest.mark.parametrize("rung, code", [("heuristic", 0), ("generic", 0), ("gpu", 0), ("jit", 3), ("tuned", 3)])
def test_rungs_of_a_gpu_without_a_generator(alone, pack, rung, code):
    done = alone("doctor", "--require", rung, FLP_CUDA_LIBRARY=FAKE, FLP_CACHE_PATH=str(pack))
    assert done.code == code, done.out + done.err
