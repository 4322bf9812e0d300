"""lora over the ranks: A is on each of them, B is spread as the weight is.

Invariants: a rank's scores get its own rows of B, so ranks merge partials as of any head; gradients of hidden and of A are
sums over the ranks, that of A in float32 and whatever is said of hidden's; that of B is this rank's own.
"""
from __future__ import annotations

import copy
import dataclasses
import functools

import torch
from torch import Tensor

from .. import _c, _lora
from .._compile import outside_graphs
from . import _merge, _weights


class ParallelLora(torch.autograd.Function):
    """Forward and backward of checked, two-dimensional operands; a and b of a rank that libflp takes."""

    @staticmethod
    def forward(ctx, hidden, a, b, bias, weight, target, temperature_rows, rows, scale, call, grads):
        tensors = hidden, a, b, bias, weight, target, temperature_rows, rows
        logprob, entropy, stats = _scored(tensors, scale, call, grads)
        ctx.save_for_backward(*tensors, stats)
        ctx.rest = scale, call, grads
        ctx.set_materialize_grads(False)
        if call.settings.entropy and call.settings.detached:
            ctx.mark_non_differentiable(entropy)
        return (logprob, entropy) if call.settings.entropy else logprob

    @staticmethod
    @outside_graphs
    def backward(ctx, grad_logprob, grad_entropy=None):
        results = (None,) * 4
        if grad_logprob is not None or grad_entropy is not None:
            results = _lora.LastDerivative.apply(functools.partial(_gradients, *ctx.rest), *ctx.saved_tensors,
                                                 grad_logprob, grad_entropy)
        return results + (None,) * 7


def _call_of(tensors, scale, call, grads):
    settings = copy.copy(call.settings)
    settings.wide_grads |= _c.GRAD_LORA_A
    return _lora.Call(*tensors, scale, settings, grads)


def _scored(tensors, scale, call, grads):
    """logprob, entropy or None and stats, the same on every rank."""
    own = _call_of(tensors, scale, call, grads)
    n, target = own.ops.hidden.shape[0], own.ops.target
    partial = _merge.nothing(n, 0, target.device) if call.empty else own.partial()
    return call.combine(partial, target, own.ops)


def _gradients(scale, call, grads, *tensors):
    """Of hidden, a, b and bias."""
    *operands, stats, grad_logprob, grad_entropy = tensors
    if call.empty:
        bits = _c.GRAD_HIDDEN, _c.GRAD_LORA_A, _c.GRAD_LORA_B, _c.GRAD_BIAS
        hidden, a, b, bias = (torch.zeros_like(like) if grads & bit else None for like, bit in zip(operands, bits))
        a = None if a is None else a.float()
    else:
        hidden, a, b, bias = _call_of(operands, scale, call, grads).gradients(stats, grad_logprob, grad_entropy)
    if hidden is not None:
        hidden = call._reduced(hidden).to(operands[0].dtype)
    if a is not None:
        call.group.total(a)
    return hidden, *(None if grad is None else grad.to(like.dtype) for grad, like in zip((a, b), operands[1:3])), bias


def checked(lora, hidden, weight, group):
    """a, b and scale; of DTensors what this rank has."""
    if isinstance(lora, _lora.Lora):
        lora = dataclasses.replace(lora, **{
            field: _weights.local_of("lora." + field, value, group).tensor
            for field, value in (("a", lora.a), ("b", lora.b)) if isinstance(value, Tensor)})
    return _lora.checked(lora, hidden, weight, "weight_shard")


def linear_logprob(adapter, tensors, call):
    """logprob and, if asked for, the entropy. adapter: as checked gives it"""
    hidden, weight, bias, target, temperature_rows, rows = tensors
    a, b, scale = adapter
    grads = _lora.needed_grads(hidden, a, b, bias)
    if grads:
        results = ParallelLora.apply(hidden, a, b, bias, weight, target, temperature_rows, rows, scale, call, grads)
        return results if isinstance(results, tuple) else (results,)
    logprob, entropy, _ = _scored((hidden, a, b, bias, weight, target, temperature_rows, rows), scale, call, 0)
    return (logprob, entropy) if call.settings.entropy else (logprob,)
