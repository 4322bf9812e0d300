"""The installed tree works from any place: libraries, command, kernels, examples, the Python package."""
import filecmp
import os
import sys
from pathlib import Path

import pytest
from installed import exported_symbols, run

from tree_version import VERSION

BUILD = Path(os.environ["FLP_TEST_BUILD"])
TREE = Path(os.environ["FLP_TEST_TREE"])
HAS_GENERATOR = (BUILD / "bin" / "flpgen").exists()
needs_generator = pytest.mark.skipif(not HAS_GENERATOR, reason="this build has no generator")


def declared_functions(header):
    """Names of the functions that a header marks FLP_API."""
    words = Path(header).read_text().replace("\n", " ").split("FLP_API ")[1:]
    return {word.split("(")[0].split()[-1].lstrip("*") for word in words if "(" in word}


def test_libflp_exports_its_header_and_nothing_else(prefix):
    declared = {name for name in declared_functions(prefix / "include" / "flp.h") if name.startswith("flp_")}
    assert set(exported_symbols(prefix / "lib" / "libflp.so")) == declared


@needs_generator
def test_libflpgen_hides_llvm(prefix):
    exported = exported_symbols(prefix / "lib" / "libflpgen.so")
    assert "flp_provider_get" in exported
    assert {name for name in exported if name != "flp_provider_get" and not name.startswith("flpgen_")} == set()


def test_examples_are_installed(prefix):
    """Those that test_consumers.py builds and runs."""
    for name in ("c/score.c", "cmake/CMakeLists.txt", "cmake/train.cpp"):
        assert filecmp.cmp(TREE / "examples" / name, prefix / "share/doc/flp/examples" / name, shallow=False)


def needed_libraries(library):
    lines = run("readelf", "-d", library).splitlines()
    return {line.split("[")[1].rstrip("]") for line in lines if "(NEEDED)" in line}


def test_libflp_depends_on_little(prefix):
    allowed = {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "libsodium.so.23", "libzstd.so.1",
               "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
    assert needed_libraries(prefix / "lib" / "libflp.so") <= allowed


@needs_generator
def test_libflpgen_is_stripped_and_of_the_expected_size(prefix):
    library = prefix / "lib" / "libflpgen.so"
    assert ".symtab" not in run("readelf", "-S", "-W", library)
    assert library.stat().st_size < 48 << 20


@needs_generator
def test_command_runs_from_the_moved_tree(prefix):
    assert f"flpgen {VERSION}\n" in run(prefix / "bin" / "flpgen", "--version")


@needs_generator
def test_generic_kernels_are_installed(prefix):
    assert any((prefix / "share" / "flp" / "generic").iterdir())


@needs_generator
def test_presets_are_installed(prefix, tmp_path):
    presets = prefix / "share" / "flp" / "presets"
    assert sorted(path.name for path in presets.iterdir()) == ["a100.list", "h200.list", "presets.json"]
    done = run(prefix / "bin" / "flpgen", "tune", "--preset-file", presets / "presets.json", "--preset", "qwen3-8b",
               "--dry-run")
    assert "V=151936 D=4096" in done


def test_python_package_stands_alone(tmp_path):
    """The folder that pip installs carries its libraries and finds them: no FLP_LIBRARY, no build tree."""
    run("cmake", f"-DBUILD={BUILD}", f"-DOUT={tmp_path / 'python'}", "-P", TREE / "runtime" / "python" / "package.cmake")
    code = ("import ctypes, flp, os; path, version = flp.library_path(), flp.version()\n"
            "ctypes.CDLL(os.path.join(os.path.dirname(path), 'libflp_jax.so')).flp_jax_plan_count()\n"
            "print(path, version, flp.__version__)")
    environment = {"FLP_LIBRARY": "", "LD_LIBRARY_PATH": "", "PYTHONPATH": str(tmp_path / "python")}
    path, *versions = run(sys.executable, "-c", code, env=environment).split()
    assert (Path(path), versions) == (tmp_path / "python" / "flp" / "lib" / "libflp.so.0", [VERSION, VERSION])
    for library in (tmp_path / "python" / "flp" / "lib").glob("*.so*"):
        assert library.name == "libflp.so" or "not found" not in run("ldd", library)  # a linker script
