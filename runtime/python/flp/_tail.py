"""tail: what a backward pass may leave out of the scores' gradient, and the tensor that says what it left out.

Invariants: 0 is exact, and stands for None from here on; the report is memory of its own, which only a backward pass
writes (a step, when it is called), and is zeros where that was exact.
"""
import numbers

import torch

from . import _accumulate, _check, _run

REPORT = "tail_report"
ACCEPTED = "None or 0, which are exact, or 2**-20 to 2**-2"
LEAST, MOST = 2.0**-20, 2.0**-2  # as libflp has it


def tail_of(tail):
    """The checked bound, 0.0 of None."""
    if tail is None:
        return 0.0
    if not isinstance(tail, numbers.Real):
        _check.refuse(TypeError, "tail", "of type " + type(tail).__name__, ACCEPTED)
    bound = _check.float_of(tail)
    if bound != 0 and not LEAST <= bound <= MOST:
        _check.refuse(ValueError, "tail", tail, ACCEPTED)
    return bound


def report_of(report, device, others):
    """The checked tensor of a report, None of None. others: the tensors of the call by field. error: ValueError,
    TypeError"""
    if report is None:
        return None
    _check.tensor_of(REPORT, report)
    if report.dtype is not torch.float32:
        _check.refuse(TypeError, REPORT, "of dtype %s" % report.dtype, "torch.float32")
    if report.shape != (4,) or report.stride(0) != 1:
        _check.refuse(ValueError, REPORT, "of shape %s and stride %s" % (tuple(report.shape), tuple(report.stride())),
                      "(4,), its elements adjacent")
    if report.device != device:
        _check.refuse(ValueError, REPORT, "on device %s while hidden is on %s" % (report.device, device),
                      "one device for all")
    if report.requires_grad:
        _check.refuse(ValueError, REPORT, "a tensor that requires a gradient", "one that does not")
    _accumulate.check_memory(REPORT, report, others)
    return report


def kept_of(saved, settings, device):
    """What linear_logprob_partial gave for a backward pass, as _run.Kept; None of None."""
    if saved is None:
        return None
    _check.tensor_of("saved", saved)
    if not settings.tail:
        _check.refuse(ValueError, "saved", "a tensor", "None without tail")
    if saved.dtype is not torch.uint8 or saved.dim() != 1 or saved.device != device:
        _check.refuse(ValueError, "saved", "%s of shape %s on %s" % (saved.dtype, tuple(saved.shape), saved.device),
                      "what flp.linear_logprob_partial gave with tail, torch.uint8 (bytes) on %s" % device)
    return _run.Kept.again(saved.contiguous(), settings)


def settle(settings, tail, report, device, others):
    """Puts bound and report into the Settings of a call, checked."""
    settings.tail = tail_of(tail)
    settings.tail_report = report_of(report, device, {**others, _accumulate.FIELD: settings.accumulate})
