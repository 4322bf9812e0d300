"""Gradients that exist, times the upstream gradient that came: by flp_scale, whose kernel leaves them unread where that is 1.

Invariants: the factor stays on its device, so that nothing synchronises; products are formed in float32 and rounded once.
Where flp_scale runs no kernel (other dtypes, a gradient of another dtype than the operand, the torch form of the eager
rung) torch multiplies, which reads and writes everything.
"""
import torch

from .._library import _c, _plans
from .._passes import _run
from .._tensors import _check
from .._tensors._address import address
from ._select import stride_of

BLOCK_ELEMENTS = 16 << 20  # of a gradient that torch may widen at a time, as it does on a CPU


def times(gradient, factor, dtype):
    """gradient · factor (1) float32, as dtype; in place if that is gradient's."""
    matrix = gradient if gradient.dim() == 2 else gradient.unsqueeze(0)
    plan = plan_for(matrix) if is_taken(matrix, dtype) else None
    if plan is None or plan.handle is None:
        return by_torch(gradient, factor, dtype)
    args = _c.new_scale_args()
    args.n, args.values, args.values_stride = matrix.shape[0], address(matrix), stride_of(matrix)
    args.factor, args.stream = address(factor), _run.stream_of(plan.key.device)
    plan.execute(args, "flp_scale")
    return gradient


def is_taken(matrix, dtype):
    """Whether flp_scale may have it; a plan's matrix has two columns or more."""
    return (matrix.dtype is dtype and dtype in _check.DTYPES and matrix.dim() == 2 and matrix.shape[1] > 1 and
            matrix.stride(1) == 1 and matrix.shape[0] > 0)


def plan_for(matrix):
    size = matrix.element_size()
    return _plans.get(_plans.Spec(
        _run.device_of(matrix), dtype=_run.TO_C[matrix.dtype], vocab=matrix.shape[1],
        alignment=_check.alignment_of(size, address(matrix), stride_of(matrix) * size), op=_c.OP_SCALE))


def by_torch(gradient, factor, dtype):
    out = gradient if gradient.dtype is dtype else torch.empty_like(gradient, dtype=dtype)
    rows = max(1, BLOCK_ELEMENTS // max(1, gradient[:1].numel()))
    for part, into in zip(gradient.split(rows), out.split(rows)):
        torch.mul(part, factor, out=into)  # a factor without dimensions CUDA would round to 16 bits first
    return out
