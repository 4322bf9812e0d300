"""grad_weight_accumulate: the caller's float32 buffer that a backward pass adds the weight's gradient to.

Invariants: no tensor of the call shares its memory, as libflp reads those while it writes; ranges of addresses are
compared, from the first element to the last, so nothing is read from a device.
"""
import torch

from . import _check
from ._address import check_writable, is_lazy, range_of
from ._compile import outside_graphs

FIELD = "grad_weight_accumulate"


def accumulator_of(buffer, weight, others):
    """The checked buffer, None of None. weight: what is computed with; others: the tensors of the call by field, as the
    caller gave them. error: ValueError, TypeError"""
    if buffer is None:
        return None
    _check.tensor_of(FIELD, buffer)
    if buffer.dtype is not torch.float32:
        _check.refuse(TypeError, FIELD, "of dtype %s" % buffer.dtype, "torch.float32")
    if buffer.shape != weight.shape:
        _check.refuse(ValueError, FIELD, "of shape %s" % (tuple(buffer.shape),),
                      "%s, as weight" % (tuple(weight.shape),))
    if buffer.stride(1) != 1 or buffer.stride(0) < buffer.shape[1]:
        _check.refuse(ValueError, FIELD, "of strides %s" % (tuple(buffer.stride()),),
                      "rows without overlap whose elements are adjacent")
    if torch.is_grad_enabled() and not weight.requires_grad:
        _check.refuse(ValueError, FIELD, "given while weight does not require a gradient",
                      "a weight that requires a gradient, or None")
    check_memory(FIELD, buffer, others)
    return buffer


@outside_graphs
def check_memory(name, buffer, others):
    """Refuses a buffer, by its name, that shares memory with a tensor of the call, or with a gradient that autograd
    adds to there. weight.grad as a whole is accepted: this call adds to it nowhere else."""
    check_writable(name, buffer)
    for field, tensor in others.items():
        if not isinstance(tensor, torch.Tensor):
            continue
        _check_apart(name, buffer, field, tensor)
        grad = tensor.grad if tensor.is_leaf else None
        if grad is not None and not (field.startswith("weight") and _is_same_view(buffer, grad)):
            _check_apart(name, buffer, field + ".grad", grad)


def _check_apart(name, buffer, field, tensor):
    mine, other = range_of(buffer), range_of(tensor)
    if buffer.device != tensor.device or None in (mine, other):
        return
    if mine[0] < other[1] and other[0] < mine[1]:
        _check.refuse(ValueError, name, "at addresses 0x%x to 0x%x, which overlap those of %s, 0x%x to 0x%x"
                      % (*mine, field, *other), "memory that nothing else of the call uses")


def _is_same_view(left, right):
    return range_of(left) == range_of(right) and left.stride() == right.stride() and not is_lazy(right)
