"""lora: a low-rank adapter on the head inside the kernels, without a merged copy of its weight.

Invariants: the weight is frozen; A and B of float32 beside 16-bit operands are rounded to these, and their gradients stay
float32; the backward pass recomputes (recompute mode).
"""
from __future__ import annotations

import copy
import dataclasses
import functools

import torch
from torch import Tensor
import torch.nn.functional as F

from . import _c, _check, _plans, _run, _transforms, errors
from ._address import address, settled
from ._compile import outside_graphs

RANK_STEP, RANK_MAX = 8, 512  # of libflp; other ranks are padded with zeros
NAME = "flp.linear_logprob with lora"


@dataclasses.dataclass(frozen=True)
class Lora:
    """A low-rank adapter on the head: scores hidden weightᵀ + scale·(hidden aᵀ) bᵀ. Compares by identity of its tensors.

    a      (r, D), as peft's lora_A.weight; 1 to 512 rows
    b      (V, r), as lora_B.weight
    scale  a number, peft's scaling (lora_alpha / r); 0: the adapter is off
    """
    a: Tensor
    b: Tensor
    scale: float = 1.0

    __eq__ = object.__eq__
    __hash__ = object.__hash__


class LoraLogprob(torch.autograd.Function):
    """Forward and backward of checked, two-dimensional operands; a and b of a rank that libflp takes."""

    @staticmethod
    def forward(ctx, hidden, a, b, bias, weight, target, temperature_rows, rows, scale, settings, grads):
        call = Call(hidden, a, b, bias, weight, target, temperature_rows, rows, scale, settings, grads)
        logprob, entropy, stats = call.forward(keep_stats=True)
        ctx.save_for_backward(hidden, a, b, bias, weight, target, temperature_rows, rows, stats)
        ctx.rest = scale, settings, grads
        ctx.set_materialize_grads(False)
        if settings.entropy and settings.detached:
            ctx.mark_non_differentiable(entropy)
        return (logprob, entropy) if settings.entropy else logprob

    @staticmethod
    @outside_graphs
    def backward(ctx, grad_logprob, grad_entropy=None):
        results = (None,) * 4
        if grad_logprob is not None or grad_entropy is not None:
            results = LastDerivative.apply(functools.partial(_gradients, *ctx.rest), *ctx.saved_tensors, grad_logprob,
                                           grad_entropy)
        return results + (None,) * 7


def _gradients(scale, settings, grads, *tensors):
    *operands, stats, grad_logprob, grad_entropy = tensors
    return Call(*operands, scale, settings, grads).backward(stats, grad_logprob, grad_entropy)


class LastDerivative(_transforms.LastDerivative):
    """The backward pass of a head with an adapter."""

    @staticmethod
    def backward(ctx, *_grads):
        raise RuntimeError(_run.NO_SECOND_DERIVATIVE)


class Call:
    """One call: its plan, and its passes."""

    def __init__(self, hidden, a, b, bias, weight, target, temperature_rows, rows, scale, settings, grads):
        self.ops = ops = _run.Operands(hidden, weight, bias, target, temperature_rows, rows)
        self.a, self.a_stride = _check.dense_rows(settled("lora.a", a.detach().to(hidden.dtype)))
        self.b, self.b_stride = _check.dense_rows(settled("lora.b", b.detach().to(hidden.dtype)))
        self.dtypes = a.dtype, b.dtype
        self.scale, self.settings, self.grads = scale, settings, grads
        bytes_ = ops.hidden.element_size()
        key = _run.key_of(ops, settings, grads)
        own = _check.alignment_of(bytes_, address(self.a), self.a_stride * bytes_, address(self.b), self.b_stride * bytes_)
        self.wide = (torch.float32 in self.dtypes or bool(settings.wide_grads & _c.GRAD_LORA_A)) and bytes_ < 4
        self.plan = _plans.get(key._replace(lora_rank=a.shape[0], alignment=min(key.alignment, own),
                                            grad_lora_dtype=_c.DTYPE_FP32 if self.wide else 0))
        if self.plan.handle is None:
            raise errors.UnsupportedError("lora is given, but rung eager has no adapter for tensors on %s: %s (accepted: a "
                                          "rung with kernels, tensors on the CPU, or the adapter merged into the weight)"
                                          % (ops.hidden.device, self.plan.reason or "FLP_FORCE=eager"))

    def enqueue(self, which, **fields):
        ops = self.ops
        fields = {**_run.operand_fields(ops), "lora_a": address(self.a), "lora_a_stride": self.a_stride,
                  "lora_b": address(self.b), "lora_b_stride": self.b_stride, "lora_scale": self.scale, **fields}
        _run.enqueue(self.plan, which, ops.hidden.shape[0], ops.target, ops.temperature_rows, ops.rows, self.settings,
                     ops.hidden.device, fields)

    def forward(self, keep_stats):
        n, device = self.ops.hidden.shape[0], self.ops.hidden.device
        logprob = torch.empty(n, dtype=torch.float32, device=device)
        entropy = torch.empty_like(logprob) if self.settings.entropy else None
        stats = torch.empty((n, 4), dtype=torch.float32, device=device) if keep_stats else None
        self.enqueue(_c.PASS_FORWARD, logprob=address(logprob), entropy=address(entropy), stats=address(stats))
        return logprob, entropy, stats

    def partial(self):
        """The statistics of all rows on this shard of the vocabulary, (N,4)."""
        out = torch.empty((self.ops.hidden.shape[0], 4), dtype=torch.float32, device=self.ops.hidden.device)
        self.enqueue(_c.PASS_FORWARD, partial=address(out))
        return out

    def backward(self, stats, grad_logprob, grad_entropy):
        """Gradients of hidden, a, b and bias; None where there is none."""
        hidden, a, b, bias = self.gradients(stats, grad_logprob, grad_entropy)
        a, b = (None if grad is None else grad.to(own) for grad, own in zip((a, b), self.dtypes))
        return hidden, a, b, bias

    def gradients(self, stats, grad_logprob, grad_entropy):
        """The same, as they are computed: in float32 where that is wider than the operands' own dtype and asked for."""
        ops = self.ops
        stats = _run.dense("stats", stats)
        upstream = [None if grad is None else _run.dense(field, grad.to(torch.float32))
                    for field, grad in (("grad_logprob", grad_logprob), ("grad_entropy", grad_entropy))]
        dtype = torch.float32 if self.wide else ops.hidden.dtype
        of_hidden = torch.float32 if self.settings.wide_grads & _c.GRAD_HIDDEN else ops.hidden.dtype
        made = [torch.empty(like.shape, dtype=kind, device=like.device) if self.grads & bit else None
                for like, kind, bit in ((ops.hidden, of_hidden, _c.GRAD_HIDDEN), (self.a, dtype, _c.GRAD_LORA_A),
                                        (self.b, dtype, _c.GRAD_LORA_B), (ops.bias, ops.hidden.dtype, _c.GRAD_BIAS))]
        hidden, a, b, bias = made
        self.enqueue(_c.PASS_BACKWARD, stats=address(stats), grad_logprob=address(upstream[0]),
                     grad_entropy=address(upstream[1]), grad_hidden=address(hidden), grad_lora_a=address(a),
                     grad_lora_b=address(b), grad_bias=address(bias))
        return made


def needed_grads(hidden, a, b, bias):
    if not torch.is_grad_enabled():
        return 0
    return sum(bit for tensor, bit in ((hidden, _c.GRAD_HIDDEN), (a, _c.GRAD_LORA_A), (b, _c.GRAD_LORA_B),
                                       (bias, _c.GRAD_BIAS)) if tensor is not None and tensor.requires_grad)


def checked(lora, hidden, weight, name="weight"):
    """a, b and scale of a call, a and b of a rank that libflp takes. name: what the call names weight"""
    if not isinstance(lora, Lora):
        _check.refuse(TypeError, "lora", "of type " + type(lora).__name__, "a flp.Lora(a, b, scale), or None")
    rank = lora.a.shape[0] if isinstance(lora.a, Tensor) and lora.a.dim() == 2 else 0
    for field, value, shape in (("lora.a", lora.a, "(r, %d), r from 1 to %d" % (hidden.shape[-1], RANK_MAX)),
                                ("lora.b", lora.b, "(%d, %d), as many columns as lora.a has rows" % (weight.shape[0], rank))):
        _check.tensor_of(field, value)
        if value.dtype not in (hidden.dtype, torch.float32):
            _check.refuse(TypeError, field, "of dtype %s" % value.dtype, "hidden's dtype, %s, or torch.float32" % hidden.dtype)
        fits = value.dim() == 2 and (1 <= rank <= RANK_MAX and value.shape[1] == hidden.shape[-1] if field == "lora.a" else
                                     tuple(value.shape) == (weight.shape[0], rank))
        if not fits:
            _check.refuse(ValueError, field, "of shape %s" % (tuple(value.shape),), shape)
        _check.same_device(field, value, "hidden", hidden)
    scale = _check.number_of("lora.scale", lora.scale)
    if not _check.fits(scale):
        _check.refuse(ValueError, "lora.scale", scale, "0, or a number that is a normal one of float32")
    if weight.requires_grad and torch.is_grad_enabled():
        _check.refuse(ValueError, name, "one that requires a gradient",
                      "a frozen weight with lora: weight.detach(), or requires_grad_(False)")
    more = -rank % RANK_STEP
    return (F.pad(lora.a, (0, 0, 0, more)), F.pad(lora.b, (0, more)), scale) if more else (lora.a, lora.b, scale)


@outside_graphs
def linear_logprob(lora, reference, tensors, options, chunk_rows):
    """The results of linear_logprob with an adapter: logprob, the entropy if asked for, and the logprob without it."""
    hidden, weight, bias, target, temperature_rows, rows = tensors
    _transforms.check_plain(NAME, tensors + (getattr(lora, "a", None), getattr(lora, "b", None)),
                            "plain reverse mode, torch.autograd")
    a, b, scale = checked(lora, hidden, weight)
    settings = _check.Settings(*options, chunk_rows)
    grads = needed_grads(hidden, a, b, bias)
    if grads:
        results = LoraLogprob.apply(hidden, a, b, bias, weight, target, temperature_rows, rows, scale, settings, grads)
        results = results if isinstance(results, tuple) else (results,)
    else:
        made = Call(hidden, a, b, bias, weight, target, temperature_rows, rows, scale, settings, 0).forward(False)
        results = made[:2] if settings.entropy else made[:1]
    return (*results, _without(tensors, settings)) if reference else results


def _without(tensors, settings):
    """logprob of the same head without its adapter, a value without a gradient."""
    own = copy.copy(settings)
    own.entropy = own.detached = False
    ops = _run.Operands(*(None if tensor is None else tensor.detach() for tensor in tensors))
    return _run.forward(ops, own, 0, keep_stats=False)[0]
