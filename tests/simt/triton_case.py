"""The LLVM IR that Triton makes for sm_100 of matrix products, C = A·Bᵀ, as JSON: triton_case.py CASE...

A case is words, as in "explicit bf16 256x64 k/k 32x32b": the function below, the operands' type, rows and columns of a
tile, and for dot the axis along which elements of A and of B are neighbours (K, or M and N: mn), for explicit the shape
of the instruction that loads sums. Tiles of 256 rows are a pair of CTAs'. Needs Triton in PYTHONPATH, and no GPU.
"""
import json
import sys

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource
from triton.experimental.gluon.language.nvidia.blackwell import (
    TensorMemoryLayout, allocate_tensor_memory, fence_async_shared, get_tmem_reg_layout, mbarrier, tcgen05_mma)

DEPTH, WARPS = 64, 4  # of a step, of a CTA


@triton.jit
def dot(a, b, c, K, a_stride, b_stride, c_stride, M: tl.constexpr, N: tl.constexpr, D: tl.constexpr,
        A_MN: tl.constexpr, B_MN: tl.constexpr):
    """Triton chooses layouts, stages and instructions."""
    rows, columns, depth = tl.program_id(0) * M + tl.arange(0, M), tl.arange(0, N), tl.arange(0, D)
    a += rows[:, None] + depth[None, :] * a_stride if A_MN else rows[:, None] * a_stride + depth[None, :]
    b += columns[None, :] + depth[:, None] * b_stride if B_MN else columns[None, :] * b_stride + depth[:, None]
    sums = tl.zeros((M, N), tl.float32)
    for k in range(0, K, D):
        sums = tl.dot(tl.load(a), tl.load(b), sums)
        a += D * a_stride if A_MN else D
        b += D * b_stride if B_MN else D
    tl.store(c + rows[:, None] * c_stride + columns[None, :], sums)


@gluon.jit
def explicit(a, b, c, K, a_stride, b_stride, c_stride, M: gl.constexpr, N: gl.constexpr, D: gl.constexpr,
             READ: gl.constexpr, SHARED: gl.constexpr, SUMS: gl.constexpr, OUT: gl.constexpr):
    """The same with layouts and instructions that the caller chooses."""
    rows, columns = gl.arange(0, M, gl.SliceLayout(1, READ)), gl.arange(0, N, gl.SliceLayout(1, READ))
    depth = gl.arange(0, D, gl.SliceLayout(0, READ))
    a += gl.program_id(0) * M * a_stride
    a_tile = gl.allocate_shared_memory(a.dtype.element_ty, [M, D], SHARED)
    b_tile = gl.allocate_shared_memory(b.dtype.element_ty, [N, D], SHARED)
    sums = allocate_tensor_memory(gl.float32, [M, N], SUMS)
    done = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(done, count=1)
    phase = 0
    for k in range(0, K, D):
        a_tile.store(gl.load(a + rows[:, None] * a_stride + (k + depth)[None, :]))
        b_tile.store(gl.load(b + columns[:, None] * b_stride + (k + depth)[None, :]))
        fence_async_shared()
        tcgen05_mma(a_tile, b_tile.permute((1, 0)), sums, use_acc=k > 0, mbarriers=[done])
        mbarrier.wait(done, phase)
        phase ^= 1
    rows = gl.program_id(0) * M + gl.arange(0, M, gl.SliceLayout(1, OUT))
    gl.store(c + rows[:, None] * c_stride + gl.arange(0, N, gl.SliceLayout(0, OUT))[None, :], sums.load(OUT))


def layouts(rows, columns, ctas, load):
    """Of a pair each CTA holds half of the rows of A and of B, and of the sums."""
    of_pair = [[1, 0]] if ctas == 2 else []
    sums = TensorMemoryLayout([rows // ctas, columns], col_stride=1, cta_split_num=[2, 1] if ctas == 2 else None,
                              two_ctas=ctas == 2)
    return (gl.BlockedLayout([1, 8], [4, 8], [WARPS, 1], [1, 0], cga_layout=of_pair),
            gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2, cga_layout=of_pair), sums,
            get_tmem_reg_layout(gl.float32, [rows, columns], sums, WARPS, load, cga_layout=of_pair))


def ir_of(case):
    kernel, dtype, tile, majors, *load = case.split()
    rows, columns = map(int, tile.split("x"))
    ctas = rows // 128
    if kernel == "dot":
        source, function, chosen = ASTSource, dot, [major == "mn" for major in majors.split("/")]
    else:
        source, function, chosen = GluonASTSource, explicit, layouts(rows, columns, ctas, *load)
    types, constants = [f"*{dtype}", f"*{dtype}", "*fp32", *["i32"] * 4], [rows, columns, DEPTH, *chosen]
    made = source(fn=function, signature=dict(zip(function.arg_names, types + ["constexpr"] * len(constants))),
                  constexprs={(len(types) + i,): value for i, value in enumerate(constants)},
                  attrs={(i,): [["tt.divisibility", 16]] for i in range(len(types))})
    options = {"num_warps": WARPS, "num_stages": 3, "num_ctas": ctas}
    return triton.compile(made, target=GPUTarget("cuda", 100, 32), options=options).asm["llir"]


if __name__ == "__main__":
    print(json.dumps({case: ir_of(case) for case in sys.argv[1:]}))
