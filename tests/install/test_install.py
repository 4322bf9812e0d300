"""The installed tree works from any place: libraries, header, command, find_package and pkg-config."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tree_version import VERSION

BUILD = Path(os.environ["FLP_TEST_BUILD"])
TREE = Path(os.environ["FLP_TEST_TREE"])
CONSUMER = Path(__file__).parent / "consumer"
HAS_GENERATOR = (BUILD / "bin" / "flpgen").exists()
needs_generator = pytest.mark.skipif(not HAS_GENERATOR, reason="this build has no generator")


def run(*command, env=None):
    """Output of a command that must succeed; its whole output is the failure message otherwise."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True,
                          env={**os.environ, **(env or {})})
    assert done.returncode == 0, f"{command} exited {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    """The installed tree, moved after installation: nothing in it may remember where it was put."""
    folder = tmp_path_factory.mktemp("install")
    run("cmake", "--install", BUILD, "--prefix", folder / "first")
    shutil.move(folder / "first", folder / "moved")
    return folder / "moved"


def test_find_package(prefix, tmp_path):
    run("cmake", "-S", CONSUMER, "-B", tmp_path, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}",
        "-DCMAKE_C_STANDARD_LIBRARIES=-lm")
    run("cmake", "--build", tmp_path)
    assert f"flp {VERSION}" in run(tmp_path / "consumer")


def test_pkg_config(prefix, tmp_path):
    flags = run("pkg-config", "--cflags", "--libs", "flp", env={"PKG_CONFIG_PATH": f"{prefix}/lib/pkgconfig"}).split()
    run("gcc", "-std=gnu11", CONSUMER / "consumer.c", *flags, "-lm", "-o", tmp_path / "consumer")
    assert f"flp {VERSION}" in run(tmp_path / "consumer", env={"LD_LIBRARY_PATH": f"{prefix}/lib"})


def test_header_is_plain_c_and_cpp(prefix, tmp_path):
    source = tmp_path / "use.c"
    source.write_text("#include <flp.h>\nflp_status use(void) { return FLP_OK; }\n")
    run("gcc", "-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", f"-I{prefix}/include", "-c", source, "-o",
        tmp_path / "c.o")
    if shutil.which("g++"):
        run("g++", "-x", "c++", "-Wall", "-Wextra", "-Werror", f"-I{prefix}/include", "-c", source, "-o",
            tmp_path / "cpp.o")


def exported_symbols(library):
    lines = run("nm", "-D", "--defined-only", library).splitlines()
    return {line.split()[-1].split("@")[0] for line in lines if line.split()[-2] != "A"}


def declared_functions(header):
    """Names of the functions that a header marks FLP_API."""
    words = Path(header).read_text().replace("\n", " ").split("FLP_API ")[1:]
    return {word.split("(")[0].split()[-1].lstrip("*") for word in words if "(" in word}


def test_libflp_exports_its_header_and_nothing_else(prefix):
    declared = {name for name in declared_functions(prefix / "include" / "flp.h") if name.startswith("flp_")}
    assert exported_symbols(prefix / "lib" / "libflp.so") == declared


@needs_generator
def test_libflpgen_hides_llvm(prefix):
    exported = exported_symbols(prefix / "lib" / "libflpgen.so")
    assert "flp_provider_get" in exported
    assert {name for name in exported if name != "flp_provider_get" and not name.startswith("flpgen_")} == set()


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


def test_python_package_stands_alone(tmp_path):
    """The folder that pip installs carries its libraries and finds them: no FLP_LIBRARY, no build tree."""
    run("cmake", f"-DBUILD={BUILD}", f"-DOUT={tmp_path / 'python'}", "-P", TREE / "runtime" / "python" / "package.cmake")
    code = "import flp; print(flp.library_path(), flp.version(), flp.__version__)"
    environment = {"FLP_LIBRARY": "", "LD_LIBRARY_PATH": "", "PYTHONPATH": str(tmp_path / "python")}
    path, *versions = run(sys.executable, "-c", code, env=environment).split()
    assert (Path(path), versions) == (tmp_path / "python" / "flp" / "lib" / "libflp.so.0", [VERSION, VERSION])
    for library in (tmp_path / "python" / "flp" / "lib").glob("*.so.*"):
        assert "not found" not in run("ldd", library)
