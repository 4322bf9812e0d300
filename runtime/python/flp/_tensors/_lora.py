"""lora: a low-rank adapter on the head inside the kernels, without a merged copy of its weight.

Invariants: the weight is frozen; A and B of float32 beside 16-bit operands are rounded to these, and their gradients
stay float32; the backward pass recomputes (recompute mode).
"""
from __future__ import annotations

import dataclasses

import torch
from torch import Tensor
import torch.nn.functional as F

from . import _check

RANK_STEP, RANK_MAX = 8, 512  # of libflp; other ranks are padded with zeros


@dataclasses.dataclass(frozen=True)
class Lora:
    """A low-rank adapter on the head: scores hidden weightᵀ + scale·(hidden aᵀ) bᵀ. Compared by identity.

    a      (r, D), as peft's lora_A.weight; 1 to 512 rows
    b      (V, r), as lora_B.weight
    scale  a number, peft's scaling (lora_alpha / r); 0: the adapter is off
    """
    a: Tensor
    b: Tensor
    scale: float = 1.0

    __eq__ = object.__eq__
    __hash__ = object.__hash__


def checked(lora, hidden, weight, name="weight"):
    """a, b and scale of a call, a and b of a rank that libflp takes. name: what the call names weight"""
    if not isinstance(lora, Lora):
        _check.refuse_type("lora", lora, "a flp.Lora(a, b, scale), or None")
    rank = lora.a.shape[0] if isinstance(lora.a, Tensor) and lora.a.dim() == 2 else 0
    vocab, depth, dtype = weight.shape[0], hidden.shape[-1], _check.product_dtype(hidden, weight)
    rows = {"lora.a": (lora.a, (rank, depth), "(r, %d), r from 1 to %d" % (depth, RANK_MAX)),
            "lora.b": (lora.b, (vocab, rank), "(%d, %d), as many columns as lora.a has rows" % (vocab, rank))}
    for field, (value, wanted, shape) in rows.items():
        _check.tensor_of(field, value)
        if value.dtype not in (dtype, torch.float32):
            _check.refuse_dtype(field, value, "hidden's dtype, %s, or torch.float32" % dtype)
        if tuple(value.shape) != wanted or not 1 <= rank <= RANK_MAX:
            _check.refuse_shape(field, value, shape)
        _check.same_device(field, value, "hidden", hidden)
    scale = _check.number_of("lora.scale", lora.scale)
    if weight.requires_grad and torch.is_grad_enabled():
        _check.refuse(ValueError, name, "one that requires a gradient",
                      "a frozen weight with lora: weight.detach(), or requires_grad_(False)")
    more = -rank % RANK_STEP
    return (F.pad(lora.a, (0, 0, 0, more)), F.pad(lora.b, (0, more)), scale) if more else (lora.a, lora.b, scale)
