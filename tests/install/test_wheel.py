"""The Python package of this build as a wheel, in clean virtual environments: its layout, the command, import without
torch, a logprob, and what C programs find in it. The wheel for other systems: test_wheel_build.py."""
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from flp_wheels import LOGPROB, check_command, clean_environment, make_environment, pythons, run

BUILD = Path(os.environ["FLP_TEST_BUILD"])
TREE = Path(os.environ["FLP_TEST_TREE"])
FOUND = pythons()
VERSION = re.search(r'FLP_VERSION_STRING "([0-9.]+)"', (TREE / "runtime" / "flp.h").read_text())[1]

pytestmark = pytest.mark.skipif(not (BUILD / "bin" / "flpgen").exists(), reason="this build has no generator")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """What pip makes of the folder that the target python_package lays out."""
    pytest.importorskip("wheel", reason="wheels need the package wheel")
    folder = tmp_path_factory.mktemp("wheel")
    run("cmake", f"-DBUILD={BUILD}", f"-DOUT={folder / 'python'}", "-P", TREE / "runtime" / "python" / "package.cmake")
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-build-isolation", "--no-deps", "--no-index", "-w",
        folder / "out", folder / "python")
    (path,) = (folder / "out").iterdir()
    return path


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """The oldest Python that is found, with the wheel alone: the environment's folder."""
    folder = tmp_path_factory.mktemp("venv")
    make_environment(next(iter(FOUND.values())), folder / "first", wheel)
    return folder / "first"


def test_layout_is_that_of_an_installed_tree(wheel):
    archive = zipfile.ZipFile(wheel)
    names = set(archive.namelist())
    assert {"flp/bin/flpgen", "flp/lib/libflp.so.0", "flp/lib/libflp.so", "flp/lib/libflpgen.so", "flp/include/flp.h",
            "flp/lib/pkgconfig/flp.pc", "flp/lib/cmake/flp/flpConfig.cmake",
            "flp/lib/cmake/flp/flpTargets.cmake"} <= names
    kernels = {f"flp/share/flp/generic/{path.name}" for path in (BUILD / "share" / "flp" / "generic").glob("*.flpk")}
    source = TREE / "runtime" / "python"
    modules = {str(path.relative_to(source)) for path in (source / "flp").rglob("*.py")}
    assert kernels and kernels | modules <= names
    assert archive.read("flp/lib/libflp.so.0").startswith(b"\x7fELF")
    assert not [name for name in names if re.search(r"__pycache__|examples|package\.cmake|libflp\.so\.0\.", name)]


def test_metadata(wheel):
    archive = zipfile.ZipFile(wheel)
    text = archive.read(f"flp-{VERSION}.dist-info/METADATA").decode()
    assert f"\nVersion: {VERSION}\n" in text and "\nRequires-Python: >=3.9\n" in text
    assert re.search(rf"\nRequires-Dist: flp-packs ?\(?=={VERSION}\)? ?; extra == ['\"]packs['\"]\n", text)
    assert "# flp: fused log-probabilities" in text and re.search(r"\nLicense(-Expression)?: Apache-2.0\n", text)
    assert any(name.endswith("/LICENSE") for name in archive.namelist())
    points = archive.read(f"flp-{VERSION}.dist-info/entry_points.txt").decode()
    for group, engine in (("sglang.srt.plugins", "sglang"), ("vllm.general_plugins", "vllm")):
        assert f"[{group}]\nflp = flp_plugins:{engine}\n" in points and "flp_plugins.py" in archive.namelist()
    assert wheel.name.startswith(f"flp-{VERSION}-py3-none-linux_")


@pytest.mark.long
def test_oldest_python(installed):
    prefix = check_command(installed / "bin", VERSION, installed)
    assert prefix.parts[-3:-1] == (f"python{next(iter(FOUND))}", "site-packages") and prefix.name == "flp"


@pytest.mark.long
@pytest.mark.parametrize("version", list(FOUND)[1:])
def test_every_other_python(wheel, tmp_path, version):
    check_command(make_environment(FOUND[version], tmp_path / "venv", wheel), VERSION, tmp_path / "venv")


@pytest.mark.long
def test_logprob_with_torch(wheel, tmp_path):
    """Debian's torch, seen through an environment that sees the system's packages."""
    programs = make_environment("/usr/bin/python3", tmp_path / "venv", wheel, site=True)
    finite, path = run(programs / "python", "-c", LOGPROB, env=clean_environment(tmp_path), cwd=tmp_path).split(" ", 1)
    assert finite == "True" and Path(path.strip()).is_relative_to(tmp_path)


def test_arguments_and_exit_codes_pass_through(installed):
    done = subprocess.run([installed / "bin" / "flpgen", "gen", "--vocab", "1", "--hidden", "64"], capture_output=True,
                          text=True, env=clean_environment(installed))
    assert done.returncode == 2 and done.stderr.startswith("flpgen") and "vocab" in done.stderr


def test_c_programs_build_against_the_package(installed, tmp_path):
    (prefix,) = installed.glob("lib/python3.*/site-packages/flp")
    environment = {**os.environ, "PKG_CONFIG_PATH": str(prefix / "lib" / "pkgconfig")}
    flags = run("pkg-config", "--cflags", "--libs", "flp", env=environment).split()
    run("gcc", TREE / "examples" / "c" / "score.c", *flags, "-o", tmp_path / "score")
    logprobs = run(tmp_path / "score", env={"LD_LIBRARY_PATH": str(prefix / "lib")}).split()
    assert len(logprobs) == 4 and all(float(value) < 0 for value in logprobs)


@pytest.mark.skipif(not Path(os.environ["FLP_TEST_FAKE_CUDA"]).exists(), reason="the stand-in for libcuda is missing")
def test_packs_beside_the_library_need_no_setting(installed, tmp_path):
    """A kernel that was tuned elsewhere is used; but not where a path is named, or a key that did not sign it."""
    (prefix,) = installed.glob("lib/python3.*/site-packages/flp")
    folder = prefix / "share" / "flp" / "packs"
    folder.mkdir()
    environment = {**clean_environment(tmp_path), "FLP_CUDA_LIBRARY": os.environ["FLP_TEST_FAKE_CUDA"],
                   "FAKE_CUDA": "capability=9.0;name=A GPU;sms=7;driver=13000"}
    flpgen = installed / "bin" / "flpgen"

    def rung(**more):
        done = run(flpgen, "explain", "--vocab", "1000", "--hidden", "64", "--json", env={**environment, **more})
        return json.loads(done)["plan"]["rung"]

    run(flpgen, "pack", "build", "--vocab", "1000", "--hidden", "64", "--tune", "forward:stages=4", "--tuned-for",
        "A GPU/7/13000", "--out", folder / "a.flpp", env=environment)
    (folder / "notes.txt").write_text("no pack")
    assert rung() == "tuned"
    assert "share/flp/packs/a.flpp" in run(flpgen, "doctor", env=environment)
    assert rung(FLP_CACHE_PATH=str(tmp_path)) == "jit"
    assert rung(FLP_PACK_KEYS="0" * 63 + "1", FLP_CACHE_DIR="/dev/null/flp") == "jit"
