"""Runs single entries of generated modules on the CPU; and what tests of them share."""
import ctypes
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import compile as simt
import numpy
import pytest

TREE = Path(__file__).resolve().parents[2]
sys.path.append(str(TREE / "tests" / "support"))

from flpgen_tool import from_bf16, to_bf16  # noqa: E402

EMIT = Path(os.environ.get("FLP_TEST_BUILD", "/nonexistent")) / "tests" / "emit_kernel"

needs_llc = pytest.mark.skipif(not (simt.LLC and shutil.which("cc")), reason="no llc of LLVM 19, or no C compiler")
needs_emit = pytest.mark.skipif(not EMIT.exists(), reason="emit_kernel was not built")

CTYPES = {"ptr": ctypes.c_void_p, "i64": ctypes.c_int64, "i32": ctypes.c_int32, "double": ctypes.c_double,
          "float": ctypes.c_float}
MAP_BYTES = 128  # of a row of a box


class Kernel:
    """One compiled entry of a module. ir: text of `flpgen ... --emit ir`; entry: "select"; threads: of a CTA; cluster:
    CTAs of one"""

    def __init__(self, ir, entry, threads, folder, cluster=1):
        self.entry, self.threads, self.cluster = entry, threads, cluster
        self.types = dict(simt.entries(ir))[entry]
        self.run = getattr(ctypes.CDLL(str(simt.library_of(ir, folder))), f"run_{entry}")

    def __call__(self, grid, *values):
        """values: numpy arrays or None for pointers, matrix_map for maps, numbers for the rest, in the order of abi.h"""
        held = [value if kind == "map" else
                CTYPES[kind](value.ctypes.data if isinstance(value, numpy.ndarray) else value)
                for kind, value in zip(self.types.values(), values, strict=True)]
        self.run(grid, self.threads, self.cluster, (ctypes.c_void_p * len(held))(*[ctypes.addressof(v) for v in held]))

    def named(self, grid, **values):
        """The same by the names of abi.h; those that are left out are null or 0."""
        assert not set(values) - set(self.types), set(values) - set(self.types)
        self(grid, *[values.get(name, None if kind == "ptr" else 0) for name, kind in self.types.items()])


def matrix_map(matrix, box_rows):
    """A tensor map of a matrix of 2-byte elements, as the stand-in for libcuda makes it."""
    rows, columns = matrix.shape
    held = (ctypes.c_uint64 * 6)(matrix.ctypes.data, columns, rows, matrix.strides[0], MAP_BYTES // 2, box_rows)
    held.matrix = matrix
    return held


def emit(**fields):
    """A kernel by its key, without PTX: what emit_kernel prints."""
    done = subprocess.run([EMIT, "ptx=0", *[f"{name}={value}" for name, value in fields.items()]], capture_output=True,
                          text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def kernels(folder, **fields):
    """entry -> Kernel of the module of a key, and its tile. folder: for compiled code"""
    module = emit(**fields)
    cluster = max(module["tile"]["cluster"], 1)
    found = {entry["name"]: Kernel(module["ir"], entry["name"], entry["threads"], folder,
                                   cluster if entry["name"].endswith("_map") else 1) for entry in module["entries"]}
    return found, module["tile"]


# ---- what tests share ----

BLOCK = 1024  # FLP_KEPT_BLOCK_ROWS
LOG2E, LN2 = 1.4426950408889634, 0.6931471805599453
NAN, INFINITY, LOWEST = numpy.nan, numpy.inf, -2.0**30


def f32(values):
    return numpy.ascontiguousarray(values, numpy.float32)


def i32(values):
    return numpy.ascontiguousarray(values, numpy.int32)


def bits(array):
    return numpy.ascontiguousarray(array).view(numpy.uint32)


def stored(dtype, values):
    """Numbers as operands have them in memory."""
    return {"bf16": to_bf16, "fp16": lambda v: v.astype(numpy.float16), "fp32": f32}[dtype](numpy.asarray(values))


def wide(array):
    return (from_bf16(array) if array.dtype == numpy.uint16 else array).astype(float)


def matrix(dtype, values, alignment):
    """A matrix with NaN behind its rows, which start at odd elements where alignment allows it. Returns it, its stride
    and its values in double."""
    rows, depth = values.shape
    stride = depth + (16 if alignment == 16 else 1)
    memory = stored(dtype, numpy.full(rows * stride + 1, NAN))
    array = memory[int(alignment < 16):][:rows * stride].reshape(rows, stride)
    array[:, :depth] = stored(dtype, values)
    return array, stride, wide(array[:, :depth])


@pytest.fixture(scope="module")
def made(folder):
    """The kernels behind forward_keep, of save and of direction mode."""
    return kernels(folder, kind="kept")[0]
