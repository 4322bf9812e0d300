"""A GPU that is none: the stand-in for libcuda with the generated kernels, which compile.py makes for the CPU."""
import importlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest

from compile import LLC, kept_libraries

SIMT = Path(__file__).resolve().parent
BUILD = Path(os.environ.get("FLP_TEST_BUILD", SIMT.parents[1] / "build" / "release"))
BINDING = SIMT.parents[1] / "runtime" / "python" / "flp"
STAND_INS = [BUILD / "tests" / "libfake_cuda.so", BUILD / "tests" / "libfake_ir_provider.so"]
needs_emulator = pytest.mark.skipif(
    not (LLC and shutil.which("cc") and all(path.exists() for path in [*STAND_INS, BUILD / "lib" / "libflpgen.so"])),
    reason="the stand-ins were not built, or this machine has no llc of LLVM 19 or no C compiler")
both = pytest.mark.parametrize("capability", ["8.0", "9.0"])


def environment(folder, capability, compiler=None):
    """What a process needs to have such a GPU. folder: its cache, and the names of the entries that it takes
    (entries_in); capability: "8.0"; compiler: in the place of compile.py, with libraries of its own"""
    libraries = folder if compiler else kept_libraries() or folder
    return {"FLP_CUDA_LIBRARY": str(STAND_INS[0]), "FLP_JIT_LIBRARY": str(STAND_INS[1]),
            "FAKE_IR_LIBRARY": str(BUILD / "lib" / "libflpgen.so"), "FLP_CACHE_DIR": str(folder / "cache"),
            "FAKE_CUDA": f"capability={capability};clusters=2;run={libraries};taken={folder / 'entries'};"
                         f"compiler={sys.executable} {shlex.quote(str(compiler or SIMT / 'compile.py'))}"}


def of_any_loss(folder):
    """Settings of a process whose losses are data of one kernel, as on rung generic."""
    return {"FAKE_IR_ANY_LOSS": "1", "FLP_CACHE_DIR": str(folder / "any")}


def entries_in(folder):
    """Entries that processes with this folder have taken from modules."""
    return set((folder / "entries").read_text().split())


def run(folder, capability, script, *arguments, **settings):
    """What a script of this folder prints, from JSON."""
    done = subprocess.run([sys.executable, str(SIMT / script), *arguments], text=True, capture_output=True, timeout=1800,
                          env={**os.environ, **environment(folder, capability), **settings})
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def bindings():
    """flp._library._c without the package around it, which needs torch."""
    package = types.ModuleType("flp")
    package.__path__ = [str(BINDING)]
    sys.modules["flp"] = package
    return importlib.import_module("flp._library._c")
