"""Programs outside the tree: the examples through find_package and pkg-config, and which versions these take.

They run against the installed tree and the folder of the Python package, which is a prefix too, or against the one that
FLP_TEST_PREFIX names (tests/install/conftest.py)."""
import math
import os
import re
import shutil
from pathlib import Path

import pytest
from installed import names_place, refused, run

from tree_version import VERSION

TREE = Path(os.environ["FLP_TEST_TREE"])
EXAMPLES = TREE / "examples"
BUILD = Path(os.environ["FLP_TEST_BUILD"])
STRICT = "-Wall -Wextra -Wpedantic -Werror -Wold-style-cast -Wzero-as-null-pointer-constant"


@pytest.fixture(scope="module", params=["installed", "package"])
def prefix(request, prefix, tmp_path_factory):
    if request.param == "installed":
        return prefix
    if os.environ.get("FLP_TEST_PREFIX"):
        pytest.skip("FLP_TEST_PREFIX names the only one")
    folder = tmp_path_factory.mktemp("package") / "python"
    run("cmake", f"-DBUILD={BUILD}", f"-DOUT={folder}", "-DCARRY=OFF", "-P", TREE / "runtime/python/package.cmake")
    return folder / "flp"


def expected_scores():
    """What score.c computes, by the formula."""
    hidden = [[(n * 64 + d) % 7 / 10 for d in range(64)] for n in range(4)]
    weight = [[(v * 64 + d) % 11 / 10 for d in range(64)] for v in range(1000)]
    for n, row in enumerate(hidden):
        scores = [sum(a * b for a, b in zip(row, column)) for column in weight]
        top = max(scores)
        yield scores[n + 1] - top - math.log(sum(math.exp(score - top) for score in scores))


@pytest.fixture()
def pkg_config(prefix):
    """Runs pkg-config on the prefix alone."""
    folder = {"PKG_CONFIG_PATH": "", "PKG_CONFIG_LIBDIR": f"{prefix}/lib/pkgconfig"}
    return lambda *words, call=run: call("pkg-config", *words, env=folder).strip()


@pytest.mark.first
def test_cc_and_pkg_config(prefix, pkg_config, tmp_path):
    rpath = f"-Wl,-rpath,{pkg_config('--variable=libdir', 'flp')}"
    run("cc", "-std=c11", EXAMPLES / "c/score.c", *pkg_config("--cflags", "--libs", "flp").split(), rpath, "-o",
        tmp_path / "score")
    got = [float(line) for line in run(tmp_path / "score", env={"LD_LIBRARY_PATH": ""}).split()]
    assert got == pytest.approx(list(expected_scores()), abs=1e-5)


@pytest.mark.first
def test_cmake_and_cpp(prefix, tmp_path):
    run("cmake", "-S", EXAMPLES / "cmake", "-B", tmp_path, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}",
        f"-DCMAKE_CXX_FLAGS={STRICT}")
    run("cmake", "--build", tmp_path)
    losses = [float(line.split()[-1]) for line in run(tmp_path / "train", env={"LD_LIBRARY_PATH": ""}).splitlines()]
    assert losses[0] == pytest.approx(math.log(32), abs=1e-5)
    assert losses == sorted(losses, reverse=True) and losses[-1] < 1


# ---- versions

def find_package(prefix, folder, *requests):
    """Which requests find_package meets: {request: 1 or 0}"""
    folder.mkdir()
    words = " ".join(f'"{request}"' for request in requests)
    (folder / "CMakeLists.txt").write_text(f"""
cmake_minimum_required(VERSION 3.25)
project(requests LANGUAGES C)
foreach(request IN ITEMS {words})
  separate_arguments(wanted UNIX_COMMAND "${{request}}")
  unset(flp_DIR CACHE)
  find_package(flp ${{wanted}} QUIET CONFIG)
  message(STATUS "request ${{request}}: ${{flp_FOUND}}")
endforeach()
""")
    out = run("cmake", "-S", folder, "-B", folder / "build", "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}")
    return {request: int(found) for request, found in re.findall(r"request (.*): ([01])$", out, re.M)}


def test_cmake_takes_this_release_for_older_ones_of_its_soname(prefix, tmp_path):
    """The soname says that a program built with an older 0.x runs, and so does find_package."""
    major, minor = map(int, VERSION.split(".")[:2])
    wanted = {"": 1, VERSION: 1, f"{VERSION} EXACT": 1, f"{major}.{minor}": 1, f"{major}.0": 1, f"{major}": 1,
              f"{major}.{minor}...<{major + 1}": 1, f"{major}.0...{major}.{minor + 7}": 1, f"{major}.{minor + 1}": 0,
              f"{major + 1}": 0, f"{major}.0...<{VERSION}": 0, f"{major}.0 EXACT": 0}
    assert find_package(prefix, tmp_path / "project", *wanted) == wanted
    soname = re.search(r"SONAME.*\[(.*)\]", run("readelf", "-d", prefix / "lib/libflp.so.0"))[1]
    assert soname == f"libflp.so.{major}"


def test_cmake_says_that_there_are_no_components(prefix, tmp_path):
    text = "cmake_minimum_required(VERSION 3.25)\nproject(p LANGUAGES C)\nfind_package(flp 0.1 REQUIRED {} jax)\n"
    said = {}
    for word, call in (("COMPONENTS", refused), ("OPTIONAL_COMPONENTS", run)):
        (tmp_path / word).mkdir()
        (tmp_path / word / "CMakeLists.txt").write_text(text.format(word))
        said[word] = call("cmake", "-S", tmp_path / word, "-B", tmp_path / word / "build", "-G", "Ninja",
                          f"-DCMAKE_PREFIX_PATH={prefix}")
    assert "flp has no components (accepted: none; asked for: jax)" in " ".join(said["COMPONENTS"].split())


def test_pkg_config_versions(pkg_config):
    major, minor = map(int, VERSION.split(".")[:2])
    assert pkg_config("--modversion", "flp") == VERSION
    pkg_config("--exists", f"flp >= {major}.{minor}", f"flp < {major + 1}")
    pkg_config("--exists", f"flp >= {major}.{minor + 1}", call=refused)


def test_the_library_is_shared_alone(prefix, pkg_config):
    assert pkg_config("--static", "--libs", "flp") == pkg_config("--libs", "flp")
    assert list(prefix.rglob("*.a")) == []


def test_the_files_hold_no_place(prefix):
    """Of CMake's and pkg-config's: they name the prefix by their own place alone."""
    files = [*(prefix / "lib/cmake/flp").iterdir(), prefix / "lib/pkgconfig/flp.pc"]
    assert len(files) >= 4
    for path in files:
        for place in (str(TREE), str(BUILD), str(prefix), str(prefix.parent)):
            assert not names_place(path.read_text(), place), path


@pytest.mark.first
@pytest.mark.skipif(not shutil.which("clang"), reason="clang is not there")
def test_clang_builds_the_examples(prefix, tmp_path):
    run("clang", "-std=c11", "-Wall", "-Wextra", "-Werror", f"-I{prefix}/include", "-c", EXAMPLES / "c/score.c", "-o",
        tmp_path / "score.o")
    run("clang++", "-std=c++17", *STRICT.split(), f"-I{prefix}/include", "-c", EXAMPLES / "cmake/train.cpp", "-o",
        tmp_path / "train.o")
