"""A GPU that is none: the stand-in for libcuda with the generated kernels, which compile.py makes for the CPU."""
import os
import shlex
import sys
from pathlib import Path

from compile import kept_libraries

SIMT = Path(__file__).resolve().parent
BUILD = Path(os.environ.get("FLP_TEST_BUILD", SIMT.parents[1] / "build" / "release"))
STAND_INS = [BUILD / "tests" / "libfake_cuda.so", BUILD / "tests" / "libfake_ir_provider.so"]


def environment(folder, capability, compiler=None):
    """What a process needs to have such a GPU. folder: its cache, and the names of the entries that it takes
    (entries_in); capability: "8.0"; compiler: in the place of compile.py, with libraries of its own"""
    libraries = folder if compiler else kept_libraries() or folder
    return {"FLP_CUDA_LIBRARY": str(STAND_INS[0]), "FLP_JIT_LIBRARY": str(STAND_INS[1]),
            "FAKE_IR_LIBRARY": str(BUILD / "lib" / "libflpgen.so"), "FLP_CACHE_DIR": str(folder / "cache"),
            "FAKE_CUDA": f"capability={capability};clusters=2;run={libraries};taken={folder / 'entries'};"
                         f"compiler={sys.executable} {shlex.quote(str(compiler or SIMT / 'compile.py'))}"}


def entries_in(folder):
    """Entries that processes with this folder have taken from modules."""
    return set((folder / "entries").read_text().split())
