"""Memory of the caller that a backward pass writes: grad_weight_accumulate, the float32 buffer that it adds the
weight's gradient to, and tail_report, the tensor that says what it left out.

Invariants: no tensor of the call shares that memory, as libflp reads those while it writes; ranges of addresses are
compared, from the first element to the last, so nothing is read from a device.
"""
import torch

from . import _check
from ._address import check_writable, is_lazy, range_of
from ._compile import outside_graphs

ACCUMULATOR, REPORT = "grad_weight_accumulate", "tail_report"


def settle(settings, accumulator, report, hidden, weight, others):
    """Puts both buffers into the Settings of a call, checked; each may be None.

    hidden, weight  what is computed with
    others          the tensors of the call by field, as the caller gave them
    error: ValueError, TypeError
    """
    if accumulator is not None:
        _float32_of(ACCUMULATOR, accumulator)
        if accumulator.shape != weight.shape:
            _check.refuse_shape(ACCUMULATOR, accumulator, "%s, as weight" % (tuple(weight.shape),))
        if accumulator.stride(1) != 1 or accumulator.stride(0) < accumulator.shape[1]:
            _check.refuse(ValueError, ACCUMULATOR, "of strides %s" % (tuple(accumulator.stride()),),
                          "rows without overlap whose elements are adjacent")
        _check_memory(ACCUMULATOR, accumulator, hidden, others)
    if report is not None:
        _float32_of(REPORT, report)
        if report.shape != (4,) or report.stride(0) != 1:
            _check.refuse(ValueError, REPORT, "of shape %s and stride %s" % (tuple(report.shape),
                                                                             tuple(report.stride())),
                          "(4,), its elements adjacent")
        if report.requires_grad:
            _check.refuse(ValueError, REPORT, "a tensor that requires a gradient", "one that does not")
        _check_memory(REPORT, report, hidden, {**others, ACCUMULATOR: accumulator})
    settings.accumulate, settings.tail_report = accumulator, report


def _float32_of(field, buffer):
    _check.tensor_of(field, buffer)
    if buffer.dtype is not torch.float32:
        _check.refuse_dtype(field, buffer, "torch.float32")


@outside_graphs
def _check_memory(name, buffer, hidden, others):
    """Refuses a buffer, by its name, on another device than hidden's, or that shares memory with a tensor of the call
    or with a gradient that autograd adds to there. weight.grad as a whole is accepted: this call adds to it nowhere
    else."""
    _check.devices(hidden, **{name: buffer})
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
