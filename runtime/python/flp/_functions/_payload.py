"""What a teacher sends in the place of its scores: the divergence forward_kl of a frozen head from D + 1 floats a
token.

    KL(p‖q) = lse − (scale/T)·(h·m + β) − H,   m = Σ_v p_v·w_v,  β = Σ_v p_v·b_v,  H = −Σ_v p_v·log p_v
    ∂KL/∂h = (scale/T)·(Σ_v q_v·w_v − m)

of the student's hidden state h, head (w, b) and lse, and the teacher's p. Σ q_v·w_v is what the backward pass of
linear_logprob makes: of the logprob of token 0, whose w_0 is taken out again, in float32.
"""
from __future__ import annotations

import functools
import math
from typing import NamedTuple

import torch
from torch import Tensor

from .._eager import _eager_divergence
from .._library import _c
from .._passes import _autograd, _run
from .._tensors import _check
from .._tensors._call import Call
from .._tensors._compile import outside_graphs
from .._tensors._operands import Operands


INSTEAD = "torch.autograd"
LN2 = math.log(2)
MOST_ROUNDING = 1e-3  # of lse: what is further below 0 is no divergence, but of another head than the payload's


class Payload(NamedTuple):
    """What flp.divergence_payload gives of each row: mean (..., D) float32, Σ p·w over the student's head; entropy
    (...) float32 in nats, the teacher's; bias (...) float32, Σ p·b, or None of a head without a bias."""

    mean: Tensor
    entropy: Tensor
    bias: Tensor | None


@outside_graphs
def divergence_payload(teacher_hidden: Tensor, teacher_weight: Tensor, weight: Tensor,
                       teacher_bias: Tensor | None = None, bias: Tensor | None = None, *, mask: Tensor | None = None,
                       temperature: float | Tensor = 1.0, softcap: float | None = None, scale: float = 1.0,
                       budget: int | str | None = None) -> Payload:
    """Computes what flp.divergence takes as payload, of a teacher and a student's frozen head over the same tokens.

    teacher_hidden, teacher_weight, teacher_bias
                     (..., E), (V, E) and (V) or None, as in flp.divergence
    weight           (V, D), the student's head, bfloat16, float16 or float32; bias (V) of its dtype, or None
    mask             (...) bool or numbers 0 and 1: the rows that count; None: all. Others are NaN
    temperature, softcap, scale
                     of the teacher, as in flp.linear_logprob
    budget           as in flp.divergence

    Returns a Payload, without gradients: D + 1 floats a token (with a bias D + 2), V/D times less than the teacher's
    scores. It is of this weight, bias and dtype alone: make it again when the student's head has changed. Runs as
    flp.divergence does, in float32 products; bad rows are NaN and counted, as there.
    error:  ValueError or TypeError naming the field, its value and what is accepted; flp.FlpError and its classes
    thread: safe
    source: the formulas at the head of this file
    """
    _check.tensor_of("teacher_hidden", teacher_hidden)
    every = torch.zeros(teacher_hidden.shape[:-1], dtype=torch.int64, device=teacher_hidden.device)
    with _check.renaming(lambda name: "teacher_" + name if name in ("hidden", "weight", "bias") else name):
        call = Call("flp.divergence_payload", teacher_hidden, teacher_weight, every, teacher_bias, several=False,
                    grads=0, instead=INSTEAD, others={"weight": weight, "bias": bias, "mask": mask},
                    temperature=temperature, softcap=softcap, scale=scale, budget=budget)
    weight, bias = _head_of(weight, bias, teacher_weight)
    _check.leave_out(mask, every, call)
    ops = Operands(**call.operands)
    with torch.no_grad():
        mean, entropy, of_bias = _eager_divergence.payload(_run.torch_plan(ops, call.settings), ops, call.settings,
                                                           weight, bias)
    return Payload(mean.reshape((*every.shape, weight.shape[1])), entropy.reshape(every.shape),
                   None if of_bias is None else of_bias.reshape(every.shape))


def divergence_of(payload, hidden, weight, bias, mask, temperature, scale, budget):
    """forward_kl, the student's lse and its entropy (...) of a Payload; the first is differentiable in hidden."""
    _check.tensor_of("hidden", hidden)
    every = torch.zeros(hidden.shape[:-1], dtype=torch.int64, device=hidden.device)
    call = Call("flp.divergence", hidden, weight, every, bias, several=False, instead=INSTEAD, entropy=_check.DETACHED,
                others={"mask": mask}, temperature=temperature, scale=scale, budget=budget, save=None)
    if call.grads & ~_c.GRAD_HIDDEN:
        _check.refuse(ValueError, "payload", "given while weight or bias requires a gradient", "a frozen head, or the "
                      "teacher's hidden states and head")
    call.settings.wide_grads = _c.GRAD_HIDDEN
    mean, entropy, of_bias = _rows_of(payload, call, hidden.shape[-1])
    _check.leave_out(mask, every, call)
    rows = call.operands["temperature_rows"]
    factor = call.settings.scale / (call.settings.temperature if rows is None else rows.double())
    found = _OfPayload.apply(*call.operands.values(), mean, entropy, of_bias, factor, call.settings, call.grads)
    return tuple(values.reshape(every.shape) for values in found)


class _OfPayload(torch.autograd.Function):
    """The rows of a head and a payload. Takes OPERANDS, the payload's tensors, scale/T, settings, needs-grad mask"""

    @staticmethod
    def forward(ctx, *arguments):
        *operands, mean, entropy, of_bias, factor, settings, grads = arguments
        ops = Operands(*operands)
        kept = _run.keep(ops, settings, grads)
        _, own_entropy, stats = _run.forward(ops, settings, grads, keep_stats=True, kept=kept)
        ctx.save_for_backward(*operands, stats, mean, _autograd.hold(ctx, kept))
        ctx.factor, ctx.settings = factor, settings
        ctx.set_materialize_grads(False)
        lse = (stats[:, 0].double() + stats[:, 1]) * LN2
        own = (ops.hidden.float() * mean).sum(1, dtype=torch.float64) + (0 if of_bias is None else of_bias)
        value = lse - factor * own - entropy
        value = value.masked_fill(value < -MOST_ROUNDING * lse.abs().clamp(min=1), math.nan).clamp(min=0)
        results = [values.masked_fill(ops.target != 0, 0).float() for values in (value, lse, own_entropy)]
        ctx.mark_non_differentiable(*results[1:])
        return tuple(results)

    @staticmethod
    @outside_graphs
    def backward(ctx, grad_value, *others):
        gradient = None
        if grad_value is not None:
            *operands, stats, mean, lasting = ctx.saved_tensors
            compute = functools.partial(_gradient, ctx.settings, ctx.factor, _autograd.held(ctx, lasting))
            gradient, = _autograd.last_derivative(compute, *operands, stats, mean, grad_value,
                                                  function="flp.divergence")
        return gradient, *(None,) * (len(ctx.needs_input_grad) - 1)


def _gradient(settings, factor, kept, *tensors):
    *operands, stats, mean, upstream = tensors
    ops = Operands(*operands)
    made = _run.backward(ops, settings, _c.GRAD_HIDDEN, stats, -upstream, None, kept)[0]
    factor = (factor * upstream).float().unsqueeze(1)
    left = ((ops.target != 0) | (upstream == 0)).unsqueeze(1)
    return torch.where(left, made, made + factor * (ops.weight[0].float() - mean)).to(ops.hidden.dtype),


# ---- checks ----

def _head_of(weight, bias, teacher_weight):
    """A student's weight and bias, checked, as a call under the autocast in force takes them."""
    _check.tensor_of("weight", weight)
    if bias is not None:
        _check.tensor_of("bias", bias)
    _, weight, bias = _check.follow_autocast(weight, weight, bias)
    if weight.dim() != 2 or len(weight) != len(teacher_weight):
        _check.refuse_shape("weight", weight, "(%d, D), as teacher_weight has %d rows" % ((len(teacher_weight),) * 2))
    with _check.renaming(lambda name: "weight" if name == "hidden" else name):
        _check.operands(weight, weight, bias)
    _check.devices(teacher_weight, "teacher_weight", weight=weight, bias=bias)
    return weight, bias


def _rows_of(payload, call, depth):
    """The tensors of a Payload, float32, flattened."""
    if not isinstance(payload, tuple) or len(payload) != len(Payload._fields) or None in (payload[0], payload[1]):
        _check.refuse(TypeError, "payload", "not one", "a Payload, which flp.divergence_payload gives")
    if (payload[2] is None) != (call.operands["bias"] is None):
        _check.refuse(ValueError, "payload.bias", "None" if payload[2] is None else "given",
                      "the bias's, if the head has one, as where the payload was made")
    device, shapes = call.operands["hidden"].device, ((depth,), (), ())
    return [_check.row_values_of("payload." + name, values, call.lead, device, "hidden's rows", more)
            for name, values, more in zip(Payload._fields, payload, shapes)]
