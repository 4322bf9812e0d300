"""Matrix products by cuBLASLt itself, each by any of the algorithms that its heuristics name first.

torch.matmul takes the first one; the fastest of eight is the yardstick that `flpgen bench` has, too. The library is
the one that torch has loaded; numbers and structs are those of CUDA 12 and 13.

Invariant: a product is of row-major matrices, or of their transposed views; cuBLASLt sees them column by column, so
that out = a b becomes outᵀ = bᵀ aᵀ and nothing is copied.
"""
import ctypes
import re

import torch

from .._tensors._address import address

ALGORITHMS_MOST = 8
WORKSPACE_BYTES = 32 << 20
COMPUTE_32F, R_32F = 68, 0
DATA_TYPES = {torch.float32: 0, torch.float16: 2, torch.bfloat16: 14}
DESC_TRANSA, DESC_TRANSB = 3, 4
PREF_MAX_WORKSPACE_BYTES = 1


class Heuristic(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t"""

    _fields_ = [("algo", ctypes.c_uint64 * 8), ("workspace_bytes", ctypes.c_size_t), ("state", ctypes.c_int),
                ("waves", ctypes.c_float), ("reserved", ctypes.c_int * 4)]


class Failed(RuntimeError):
    """A call of cuBLASLt was refused."""


def path_of_loaded():
    """The file that this process has loaded, or the loader's name for it."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        found = re.findall(r"(/\S*libcublasLt\.so\.\d+\S*)", file.read())
    return found[0] if found else "libcublasLt.so.13"


class Library:
    """cuBLASLt with a handle. error: OSError, Failed"""

    def __init__(self):
        self.library = ctypes.CDLL(path_of_loaded())
        self.handle = ctypes.c_void_p()
        self.call("cublasLtCreate", ctypes.byref(self.handle))

    def call(self, name, *arguments):
        status = getattr(self.library, name)(*arguments)
        if status:
            raise Failed("%s failed: status %d" % (name, status))

    def made(self, name, *arguments):
        """A descriptor; they live as long as the process."""
        made = ctypes.c_void_p()
        self.call(name, ctypes.byref(made), *arguments)
        return made


def view_of(matrix):
    """(rows, columns, stride, transposed) of what lies in memory, seen column by column. error: ValueError"""
    rows, columns = matrix.shape
    if matrix.stride() == (columns, 1):
        return columns, rows, columns, False
    if matrix.stride() == (1, rows):
        return rows, columns, rows, True
    raise ValueError("a product takes row-major matrices and their transposed views, not strides %s"
                     % (matrix.stride(),))


class Product:
    """out = a b by each of the algorithms that were not refused. error: Failed, ValueError"""

    def __init__(self, library, a, b, out):
        self.library, self.tensors = library, (a, b, out)
        self.workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=out.device)
        self.desc = library.made("cublasLtMatmulDescCreate", COMPUTE_32F, R_32F)
        views = [view_of(matrix) for matrix in (b, a, out)]
        for attribute, view in zip((DESC_TRANSA, DESC_TRANSB), views):
            operation = ctypes.c_int32(view[3])
            library.call("cublasLtMatmulDescSetAttribute", self.desc, attribute, ctypes.byref(operation),
                         ctypes.c_size_t(4))
        self.layouts = [library.made("cublasLtMatrixLayoutCreate", DATA_TYPES[out.dtype], ctypes.c_uint64(view[0]),
                                     ctypes.c_uint64(view[1]), ctypes.c_int64(view[2])) for view in views]
        self.algorithms = [found for found in self.named() if found.state == 0]

    def named(self):
        """What the heuristics name, first first."""
        preference = self.library.made("cublasLtMatmulPreferenceCreate")
        most = ctypes.c_uint64(WORKSPACE_BYTES)
        self.library.call("cublasLtMatmulPreferenceSetAttribute", preference, PREF_MAX_WORKSPACE_BYTES,
                          ctypes.byref(most), ctypes.c_size_t(8))
        results, count = (Heuristic * ALGORITHMS_MOST)(), ctypes.c_int()
        first, second, out = self.layouts
        self.library.call("cublasLtMatmulAlgoGetHeuristic", self.library.handle, self.desc, first, second, out, out,
                          preference, ALGORITHMS_MOST, results, ctypes.byref(count))
        return list(results[:count.value])

    def run(self, algorithm):
        """One product on the current stream."""
        a, b, out = self.tensors
        one, zero = ctypes.c_float(1), ctypes.c_float(0)
        first, second, result = self.layouts
        pointer = ctypes.c_void_p(address(out))
        self.library.call("cublasLtMatmul", self.library.handle, self.desc, ctypes.byref(one),
                          ctypes.c_void_p(address(b)), first, ctypes.c_void_p(address(a)), second,
                          ctypes.byref(zero), pointer, result, pointer, result, ctypes.byref(algorithm.algo),
                          ctypes.c_void_p(address(self.workspace)), ctypes.c_size_t(WORKSPACE_BYTES),
                          ctypes.c_void_p(torch.cuda.current_stream(out.device).cuda_stream))

    def calls(self):
        """A call for each algorithm that runs."""
        found = []
        for algorithm in self.algorithms:
            try:
                self.run(algorithm)
            except Failed:
                continue
            found.append(lambda algorithm=algorithm: self.run(algorithm))
        return found
