"""The wheel and the examples."""
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from installed import run
from tree_version import HEADER, VERSION

TREE = Path(os.environ.get("FLP_TEST_TREE") or Path(__file__).resolve().parents[2])
PACKAGE = TREE / "runtime" / "python"


def build_wheel(folder, **environment):
    """A build has no torch: the one that it would find here is not to be imported."""
    (folder / "trap").mkdir()
    (folder / "trap" / "torch.py").write_text("raise RuntimeError('the build imports torch')\n")
    run(sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--no-index", "-w", folder / "out",
        folder / "python", env={"PYTHONPATH": str(folder / "trap"), **environment})
    (wheel,) = (folder / "out").iterdir()
    return wheel


@pytest.fixture
def source(tmp_path):
    """A copy of the package, so that building leaves the tree as it is."""
    pytest.importorskip("wheel", reason="wheels need the package wheel")
    shutil.copytree(PACKAGE, tmp_path / "python", ignore=shutil.ignore_patterns("__pycache__", "lib", "share"))
    shutil.copy(HEADER, tmp_path / "flp.h")
    return tmp_path


@pytest.mark.long
def test_wheel_without_libraries_is_for_any_platform(source):
    wheel = build_wheel(source, FLP_WITHOUT_LIBRARY="1")
    assert wheel.name == f"flp-{VERSION}-py3-none-any.whl"
    names = set(zipfile.ZipFile(wheel).namelist())
    modules = {str(path.relative_to(PACKAGE)) for path in (PACKAGE / "flp").rglob("*.py")}
    assert "flp/bench/peers/seam.py" in modules and modules <= names


def test_a_package_without_its_header_says_so(tmp_path):
    shutil.copytree(PACKAGE / "flp", tmp_path / "site" / "flp", ignore=shutil.ignore_patterns("__pycache__", "lib"))
    done = subprocess.run([sys.executable, "-c", "import flp"], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": str(tmp_path / "site")})
    assert done.returncode == 1 and "ImportError: flp.h, which has the version, is at neither" in done.stderr


def test_a_package_without_libraries_is_refused(source):
    done = subprocess.run([sys.executable, "setup.py", "--version"], capture_output=True, text=True, cwd=source / "python")
    assert done.returncode == 1 and done.stderr == (
        "error: this folder has no libraries (flp/lib/libflp.so.0), so that what pip installs from it could not do "
        "anything; accepted: the wheel of ./setup.sh wheel, or build/release/python of cmake --build build/release "
        "--target python_package; or FLP_WITHOUT_LIBRARY=1, where FLP_LIBRARY will name libflp.so\n")


def test_pip_says_why_a_package_without_libraries_is_refused(source):
    done = subprocess.run([sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--no-index", "-w",
                           source / "out", source / "python"], capture_output=True, text=True)
    assert done.returncode != 0 and "this folder has no libraries" in done.stdout + done.stderr


def test_training_example_learns_the_same(tmp_path):
    out = tmp_path / "record.json"
    command = [sys.executable, PACKAGE / "examples" / "train_tiny_lm.py", "--tiny", "--compare", "--device",
               "cpu", "--rate", "1e-2", "--json", out]
    run(*command)
    record = json.loads(out.read_text())
    assert record["command"].endswith("--tiny --compare --device cpu --rate 1e-2") and record["date"] and record["gpu"] == "none"
    results = record["results"]
    assert results["largest_loss_difference"] < 1e-3
    assert len(results["losses_flp"]) == 6 and results["losses_flp"][-1] < results["losses_flp"][0]
