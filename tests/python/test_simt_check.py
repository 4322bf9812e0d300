"""flpgen check on a GPU that is none: the stand-in for libcuda runs the generated portable kernels on the CPU (tests/simt), so
that library, launches and kernels together meet the fp64 oracle, on random and adversarial data."""
import json
import os
import sys
from pathlib import Path

import pytest

from flp_cpu_kernel import needs_llc
from flpgen_tool import FLPGEN, flpgen, needs_flpgen

TREE = Path(__file__).resolve().parents[2]
TESTS = Path(os.environ.get("FLP_TEST_BUILD", "/nonexistent")) / "tests"
STAND_INS = [TESTS / "libfake_cuda.so", TESTS / "libfake_ir_provider.so"]

pytestmark = [needs_flpgen, needs_llc,
              pytest.mark.skipif(not all(path.exists() for path in STAND_INS), reason="the stand-ins were not built")]


SIMT = TREE / "tests" / "simt"


def check(libraries, *arguments, compiler=SIMT / "compile.py"):
    """Runs `flpgen check` -> its record. libraries: a folder for compiled kernels"""
    out = libraries / "record.json"
    out.unlink(missing_ok=True)
    done = flpgen("check", *arguments, "--rung", "jit", "--quiet", "--json", out, FLP_CUDA_LIBRARY=str(STAND_INS[0]),
                  FLP_JIT_LIBRARY=str(STAND_INS[1]), FAKE_IR_LIBRARY=str(Path(FLPGEN).parents[1] / "lib" / "libflpgen.so"),
                  FAKE_CUDA=f"capability=8.0;run={libraries};compiler={sys.executable} {compiler}")
    assert done.code in (0, 1), done.err
    return json.loads(out.read_text())


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    return tmp_path_factory.mktemp("libraries")


def passed(record):
    failed = [row for row in record["rows"] if not row["pass"]]
    assert not failed, failed[:5]
    assert {row["rung"] for row in record["rows"]} == {"jit"} and record["gpu"] == "Fake H200"
    return record["checks"]


@pytest.mark.parametrize("dtype,options", [
    ("bf16", ["--grad", "hidden,weight,bias", "--bias", "--entropy", "backward"]),
    ("fp16", ["--grad", "hidden,weight", "--softcap", "20", "--entropy", "forward", "--per-row-temperature"]),
    ("fp32", ["--grad", "hidden,weight", "--accumulate-grad-weight", "--target-dtype", "int32"])])
def test_a_head(libraries, dtype, options):
    assert passed(check(libraries, "--vocab", 331, "--hidden", 40, "--rows", 41, "--dtype", dtype, *options)) >= 30


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32", "fp64"])
def test_scores_that_exist(libraries, dtype):
    assert passed(check(libraries, "--op", "select", "--dtype", dtype)) == 64


def test_a_wrong_kernel_is_found(tmp_path):
    compiler = tmp_path / "compiler.py"
    compiler.write_text(f"""import sys
sys.path.insert(0, {str(SIMT)!r})
import compile
text = open(sys.argv[1]).read()
assert "fadd float" in text
compile.compile_module(text.replace("fadd float", "fsub float", 1), sys.argv[2])
""")
    record = check(tmp_path, "--op", "select", "--dtype", "fp32", compiler=compiler)
    assert 0 < record["failed"] < record["checks"]
