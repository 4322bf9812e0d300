"""Runs single entries of generated modules on the CPU."""
import ctypes
import shutil

import compile as simt
import numpy
import pytest

needs_llc = pytest.mark.skipif(not (simt.LLC and shutil.which("cc")), reason="no llc of LLVM 19, or no C compiler")

CTYPES = {"ptr": ctypes.c_void_p, "i64": ctypes.c_int64, "i32": ctypes.c_int32, "double": ctypes.c_double,
          "float": ctypes.c_float}


class Kernel:
    """One compiled entry of a module. ir: text of `flpgen ... --emit ir`; entry: "select"; threads: of a CTA"""

    def __init__(self, ir, entry, threads, folder):
        self.types, self.threads = dict(simt.entries(ir))[entry], threads
        library = ctypes.CDLL(str(simt.compile_module(ir, folder / f"{entry}.so")))
        self.run = getattr(library, f"run_{entry}")

    def __call__(self, grid, *values):
        """values: numpy arrays or None for pointers, numbers for the rest, in the order of runtime/abi.h"""
        held = [CTYPES[kind](value.ctypes.data if isinstance(value, numpy.ndarray) else value)
                for kind, value in zip(self.types, values, strict=True)]
        self.run(grid, self.threads, 1, (ctypes.c_void_p * len(held))(*[ctypes.addressof(value) for value in held]))
