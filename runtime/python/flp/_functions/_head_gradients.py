"""Gradients of one head's operands from the gradient of its raw scores, chunks of rows one after another.

    grad_hidden = dx·W, grad_weight = Σ dxᵀ·h: a backward pass that is given dx (flp_args.grad_raw_scores)
    grad_bias = Σ dx: torch, in float32

Sums of chunks have more bits than the gradients; those of float16 are float32, as rows of dx are multiplied into its
range.
"""
import torch

from .._library import _c
from .._passes import _memory, _run
from .._tensors._operands import OF_PRODUCTS
from ._head_scores import as_they_are, plan_of_pass, without_targets

BLOCK_COLUMNS = 16 << 10  # of float16 that are widened at a time


class HeadGradients:
    """ops, settings: of a head as HeadScores has them; grads: the mask; times: (count) float32, what rows of dx are to
    be multiplied by, or None; settings.accumulate: what the gradient of weight is added to, in place of being given"""

    def __init__(self, ops, settings, grads, times=None):
        self.ops, self.grads, self.times, self.top = ops, grads, times, None
        if times is not None and ops.weight.dtype is torch.float16 and len(times):
            self.top = times.abs().max()  # of its range
            self.top = torch.where(self.top == 0, 1.0, self.top)
        self.given, self.settings = settings, _settings_of(ops, settings, times is not None)
        self.plan = self.weight = self.bias = self.sums = None
        if grads & OF_PRODUCTS:
            self.plan = plan_of_pass(ops, self.settings, grads=grads & OF_PRODUCTS)
        if grads & _c.GRAD_WEIGHT:
            self.weight, self.is_begun = self.settings.accumulate, False
            if self.weight is None:
                wide = self.settings.wide_grads & _c.GRAD_WEIGHT
                self.weight = torch.empty_like(ops.weight, dtype=_dtype_of(ops.weight, wide))
            size = self.plan.sums_bytes()
            self.sums = _memory.memory_on(self.weight.device, size) if size else None
        if grads & _c.GRAD_BIAS:
            self.bias = torch.zeros_like(ops.bias, dtype=torch.float32)

    def add(self, dx, hidden, part, is_last):
        """Adds the rows of a chunk, part of all. dx: (n,V), with zeros up to 16 bytes behind each row; hidden: (n,D)
        -> their gradient of hidden, or None"""
        vocab, times = len(self.ops.weight), None if self.times is None else self.times[part].unsqueeze(1)
        share = times if self.top is None else times / self.top
        if self.bias is not None:
            self.bias += _sum_of_rows(dx[:, :vocab], share)
        if self.plan is None:
            return None
        if share is not None:
            hidden = torch.where(share == 0, 0, hidden.float() * share).to(hidden.dtype)  # 0 · NaN is NaN
        made = None
        if self.grads & _c.GRAD_HIDDEN:
            made = torch.empty_like(hidden, dtype=_dtype_of(hidden, self.settings.wide_grads & _c.GRAD_HIDDEN))
        self._multiply(dx, hidden, made, is_last)
        return made if made is None or times is None else torch.where(times == 0, 0, made * times)

    def _multiply(self, dx, hidden, grad_hidden, is_last):
        fields = _run.operand_fields(without_targets(self.ops, hidden), self.settings)
        fields.update(grad_raw_scores=dx, grad_raw_scores_stride=dx.stride(0))
        if grad_hidden is not None:
            fields.update(grad_hidden=grad_hidden, grad_hidden_stride=grad_hidden.stride(0))
        if self.weight is not None:
            fields.update(grad_weight=self.weight, grad_weight_stride=self.weight.stride(0))
        if self.weight is not None and self.settings.accumulate is None:
            bits = _c.SUMS_CONTINUE * self.is_begun | _c.SUMS_LEAVE * (not is_last)
            fields.update(sums=self.sums, sums_bytes=self.plan.sums_bytes(), sums_bits=bits)
            self.is_begun = True
        _run.enqueue(self.plan, _c.PASS_BACKWARD, len(hidden), hidden.device, self.settings, fields)

    def totals(self):
        """The gradients of weight and bias, when all chunks have been added; None of what is not wanted, or was added
        to settings.accumulate."""
        weight, bias = self.weight, self.bias
        if weight is not None and self.settings.accumulate is None and not self.is_begun:
            weight.zero_()
        if self.top is not None:
            weight, bias = (None if each is None else each * self.top for each in (weight, bias))
        into, wide = self.given.accumulate, self.given.wide_grads
        if into is not None and weight is not None:
            if weight is not into:
                into.add_(weight)
            weight = None
        return (None if weight is None else weight.to(_dtype_of(self.ops.weight, wide & _c.GRAD_WEIGHT)),
                None if bias is None else bias.to(_dtype_of(self.ops.bias, wide & _c.GRAD_BIAS)))


def plan_of_gradients(ops, settings, grads):
    """The plan of products with the gradient of raw scores of these operands."""
    return plan_of_pass(ops, _settings_of(ops, settings), grads=grads & OF_PRODUCTS)


def sums_bytes(ops, settings, grads):
    """What sums of the gradient of weight take beyond what is given; the least that plans ask for."""
    if not grads & _c.GRAD_WEIGHT:
        return 0
    sums = plan_of_gradients(ops, settings, grads).sums_bytes()
    return sums + (4 * ops.weight.numel() if ops.weight.dtype is torch.float16 else 0)


def _settings_of(ops, settings, is_wide=False):
    """Of products: those of float16, and of hidden with is_wide, into float32."""
    settings = as_they_are(settings)
    settings.wide_grads |= _c.GRAD_HIDDEN * is_wide
    if ops.weight.dtype is torch.float16:
        settings.accumulate, settings.wide_grads = None, settings.wide_grads | OF_PRODUCTS
    return settings


def _dtype_of(operand, is_wide):
    return torch.float32 if is_wide else operand.dtype


def _sum_of_rows(dx, share):
    """Σ dx·share over the rows (n,V) -> (V) float32. share: (n,1) or None"""
    if share is None:
        return dx.sum(0, dtype=torch.float32)
    return torch.cat([torch.where(share == 0, 0, block.float() * share).sum(0)
                      for block in dx.split(BLOCK_COLUMNS, 1)])
