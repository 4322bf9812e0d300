"""What every Python test knows of the build, so that one runs by hand as the runner runs it:

    /usr/bin/python3 -m pytest tests/cli/test_cli_pack.py -k signed

FLP_TEST_BUILD names the build folder, build/release if it is not set; all else is found from there. Tests marked `long`
run with FLP_TEST_LONG=1, as `./setup.sh test --all` sets it, or when a test is named or chosen by -k.
"""
import os
import shutil
import sys
from pathlib import Path

import pytest

TREE = Path(__file__).resolve().parents[1]
BUILD = Path(os.environ.get("FLP_TEST_BUILD", TREE / "build" / "release")).resolve()
os.environ["FLP_TEST_BUILD"] = str(BUILD)
PACKAGE = str(TREE / "runtime" / "python")


def library(name):
    """Where the build has a library: in lib, or where the system's convention is another."""
    return next((str(path) for path in BUILD.glob(f"lib*/**/{name}")), str(BUILD / "lib" / name))


def tool(name, package):
    """A program of the CUDA toolkit: in PATH, or where ./setup.sh has fetched it; or ""."""
    fetched = TREE / "build" / package / "nvidia" / "cu13" / "bin" / name
    return shutil.which(name) or (str(fetched) if fetched.exists() else "")


def find(name, value):
    os.environ[name] = os.environ.get(name) or value


find("FLP_TEST_TREE", str(TREE))
find("FLP_TEST_FLPGEN", str(BUILD / "bin" / "flpgen"))
find("FLP_TEST_FAKE_CUDA", str(BUILD / "tests" / "libfake_cuda.so"))
find("FLP_TEST_FAKE_FAILURES", str(BUILD / "tests" / "libfake_failures.so"))
find("FLP_LIBRARY", library("libflp.so"))
find("FLP_PTXAS", tool("ptxas", "ptxas"))
find("FLP_NVDISASM", tool("nvdisasm", "nvdisasm"))
os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
sys.dont_write_bytecode = True
for folder in (str(TREE / "tests" / "support"), PACKAGE):
    if folder not in sys.path:
        sys.path.insert(0, folder)
sys.path.append(str(TREE / "tests" / "gpu"))  # last: names such as kernels are another's too
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [PACKAGE, os.environ.get("PYTHONPATH")]))


def pytest_configure(config):
    if not (BUILD / "CMakeCache.txt").exists():
        pytest.exit(f"{BUILD} is no build folder: cmake --preset release && cmake --build --preset release makes "
                    "build/release, and FLP_TEST_BUILD names another one", 2)


def given(item, name):
    return str(item.callspec.params.get(name)) if hasattr(item, "callspec") else ""


def samples(items):
    """Of a test marked first(n) that many cases; of others of kernels on the CPU, and each feature, the first, where
    architectures take turns; of all else every case."""
    features = {}
    for item in items:
        first = item.get_closest_marker("first")
        features.setdefault((item.path, item.function, given(item, "feature") if not first else ""), []).append(item)
    for turn, cases in enumerate(features.values()):
        first = cases[0].get_closest_marker("first")
        if first:
            yield from cases[:first.args[0] if first.args else 1]
        elif cases[0].path.parent.name == "simt":
            capabilities = sorted({given(item, "capability") for item in cases})
            wanted = capabilities[turn % len(capabilities)]
            yield next(item for item in cases if given(item, "capability") == wanted)
        else:
            yield from cases


def pytest_collection_modifyitems(config, items):
    """Leaves out what only the long form runs."""
    is_named = config.option.keyword or any("::" in argument for argument in config.args)
    if is_named or os.environ.get("FLP_TEST_LONG") == "1":
        return
    kept = set(samples([item for item in items if not item.get_closest_marker("long")]))
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


from binding_fixtures import engine, folder, fresh_plans, logged, one_rank, ranks  # noqa: E402,F401
