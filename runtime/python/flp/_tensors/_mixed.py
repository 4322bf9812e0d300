"""Operands of two dtypes: float32 beside bfloat16 or float16, rounded to it or in two terms of it.

Invariant: no copy of a weight is made: libflp takes it slice by slice, the torch form tile by tile.
"""
import copy

import torch

from .._library import _c, _together
from . import _check

def settled(mixed, hidden, weight, bias, options):
    """flp_mixed of these operands, none where all have one dtype. options: of the call, which may not go with it"""
    dtype = _check.product_dtype(hidden, weight)
    if not mixed or all(tensor is None or tensor.dtype is dtype for tensor in (hidden, weight, bias)):
        return _c.MIXED_NONE
    split = mixed == _c.MIXED_SPLIT
    if split and hidden.dtype is weight.dtype:
        _check.refuse(ValueError, "mixed", "'split' of a bias alone", '"round"')
    if bias is not None and split and bias.dtype is not dtype:
        _check.refuse_dtype("bias", bias, '%s with mixed="split"' % dtype)
    if split or weight.dtype is not dtype:
        _together.check({**options, _together.SLICES: options["mixed"]})
    return mixed


def spec_fields(ops, settings):
    """flp_spec fields of the operands' dtypes."""
    dtype = _check.product_dtype(ops.hidden, ops.weight)
    if not settings.mixed:
        return {"dtype": _check.DTYPES[dtype]}
    bias = dtype if ops.bias is None else ops.bias.dtype
    return {"dtype": _check.DTYPES[dtype], "hidden_dtype": _check.DTYPES[ops.hidden.dtype],
            "weight_dtype": _check.DTYPES[ops.weight.dtype], "bias_dtype": _check.DTYPES[bias],
            "mixed": settings.mixed}


# ---- the torch form ----

def terms(tensor, dtype, mixed):
    """A float32 tensor as products take it: rounded to dtype, or the float32 sum of two terms."""
    first = tensor.to(dtype)
    if mixed != _c.MIXED_SPLIT:
        return first
    first = first.float()
    return first + (tensor - first).to(dtype).float()


def made(ops, settings):
    """The operands with hidden and bias as products take them."""
    if not settings.mixed:
        return ops
    dtype, own = _check.product_dtype(ops.hidden, ops.weight), copy.copy(ops)
    if ops.hidden.dtype is not dtype:
        own.hidden = terms(ops.hidden, dtype, settings.mixed)
    if ops.bias is not None and ops.bias.dtype is not dtype:
        own.bias = terms(ops.bias, dtype, _c.MIXED_ROUND)
    return own


def tile(ops, settings, weight):
    """Rows of the weight in float32, as products take them; ops: of made."""
    if settings.mixed and weight.dtype is torch.float32 and ops.hidden.dtype is not torch.float32:
        return terms(weight, ops.hidden.dtype, settings.mixed).float()
    return weight.float()
