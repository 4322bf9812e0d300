"""Calls in autograd's graph: the one function of those whose gradients a backward pass makes, and their rule under
torch.func.

Invariants: what is saved for the backward pass is the operands, stats (N,4) and what the forward pass keeps: in save
mode exponentials, which the first backward pass writes over, so that they are no saved tensor that hooks may copy; a
later pass recomputes (recompute mode), as does one that asks for other gradients; in direction mode directions and in
tail mode lists of columns, which are a saved tensor like the others and serve every backward pass. A call that needs no
gradient runs the scoring plan, whose bits are the same.
"""
from __future__ import annotations

import copy
import functools

import torch

from .._tensors import _top, _transforms
from .._tensors._compile import outside_graphs
from .._tensors._operands import ADAPTER, GRADIENTS, OPERANDS, Operands
from . import _run

# The operands that may have a gradient, by their place.
PLACES = tuple(OPERANDS.index(name) for name in GRADIENTS)
# Returns, inside a backward pass, whether a node of the graph will run; absent before torch 2.0.
_will_run = getattr(torch._C, "_will_engine_execute_node", None)


def run(call):
    """Runs a call, a _call.Call -> logprob, the entropy if asked for, and the tensors of _top.Outputs."""
    settings, tensors = call.settings, call.operands.values()
    if _transforms.in_force() and call.is_plain:
        results = _transformed(*tuple(tensors)[:6], settings)
        if results is not None:
            return results
    if call.grads:
        results = LinearLogprob.apply(*tensors, settings, call.grads)
        return results if isinstance(results, tuple) else (results,)
    ops = Operands(*tensors)
    top = _top.asked_of(ops.target, settings)
    logprob, entropy, _ = _run.forward(ops, settings, 0, keep_stats=False, top=top)
    return results_of(logprob, entropy, top)


def results_of(logprob, entropy, top):
    """What a function returns of these, each but the first of which may be None."""
    values = (logprob,) if entropy is None else (logprob, entropy)
    return values if top is None else values + top.tensors()


def plain_logprob(call):
    """logprob of the same rows of the same head, over all of its columns and without an adapter: a value without a
    gradient."""
    settings = copy.copy(call.settings)
    settings.entropy = settings.detached = False
    ops = call.detached(list_offsets=None, list_ids=None, lora_a=None, lora_b=None)
    return _run.forward(ops, settings, 0, keep_stats=False)[0]


class LinearLogprob(torch.autograd.Function):
    """Forward and backward of OPERANDS as a call has them."""

    @staticmethod
    def forward(ctx, *arguments):
        *operands, settings, grads = arguments
        ops = Operands(*operands)
        kept = _run.keep(ops, settings, grads)
        top = _top.asked_of(ops.target, settings)
        logprob, entropy, stats = _run.forward(ops, settings, grads, keep_stats=True, kept=kept, top=top)
        ctx.save_for_backward(*operands, stats, hold(ctx, kept))
        ctx.settings, ctx.grads = settings, grads
        ctx.set_materialize_grads(False)
        results = results_of(logprob, entropy, top)
        mark_constants(ctx, results, settings)
        return results if len(results) > 1 else logprob

    @staticmethod
    @outside_graphs
    def backward(ctx, grad_logprob, *others):
        grads, grad_entropy = used_grads(ctx), others[0] if ctx.settings.entropy else None
        results = (None,) * 3
        if grads and not (grad_logprob is None and grad_entropy is None):
            *saved, lasting = ctx.saved_tensors
            kept = held(ctx, lasting)
            if grads != ctx.grads:
                kept = None
            results = last_derivative(functools.partial(_gradients, ctx.settings, grads, kept), *saved, grad_logprob,
                                      grad_entropy)
        return of_arguments(results)


def hold(ctx, kept):
    """Holds what a forward pass kept, a _run.Kept or None -> what of it is a saved tensor, or None."""
    ctx.kept, lasting = (None, kept.memory) if kept is not None and kept.lasts else (kept, None)
    return lasting


def held(ctx, lasting):
    """That, in a backward pass: what does not last is there once."""
    kept, ctx.kept = ctx.kept, None
    return kept if lasting is None else _run.Kept.again(lasting, ctx.settings)


def of_arguments(results):
    """What a backward pass gives its node, of the gradients of hidden, weight and bias, and perhaps of the adapter: one
    for each of OPERANDS and the two arguments behind them."""
    return results[:3] + (None,) * (PLACES[3] - 3) + (results[3:] or (None, None)) + (None, None)


def mark_constants(ctx, results, settings):
    """Marks what is without a gradient among logprob, the entropy and the tensors of _top.Outputs."""
    values = 2 if settings.entropy and not settings.detached else 1
    if len(results) > values:
        ctx.mark_non_differentiable(*results[values:])


def _gradients(settings, grads, kept, *tensors):
    *operands, stats, grad_logprob, grad_entropy = tensors
    made = _run.backward(Operands(*operands), settings, grads, stats, grad_logprob, grad_entropy, kept)
    return made if len(made) == 3 else made[:3] + of_dtypes(made[3:], operands[PLACES[3]:])


def of_dtypes(gradients, operands):
    """The gradients in their operands' dtypes; None stays."""
    return tuple(None if gradient is None else gradient.to(operand.dtype)
                 for gradient, operand in zip(gradients, operands))


def last_derivative(compute, *tensors, function="flp.linear_logprob"):
    """compute(*tensors), the backward pass of a head, which has no derivative. function: the public one's name"""
    return _transforms.LastDerivative.apply(_transforms.NO_SECOND_DERIVATIVE % function, compute, *tensors)


def used_grads(ctx):
    """The needs-grad mask of a backward pass: operands that require a gradient, less those that
    autograd.grad(inputs=...) leaves out where torch knows it. Tensors alone have edges: hidden, weight and bias the
    first ones, the adapter the last"""
    mask, wanted, edges = 0, ctx.needs_input_grad, ctx.next_functions
    for bit, place in zip(GRADIENTS.values(), PLACES):
        if ctx.grads & bit and wanted[place] and is_used(edges[place - PLACES[-1] - 1 if bit in ADAPTER else place][0]):
            mask |= bit
    return mask


def is_used(node):
    if _will_run is None or node is None:
        return True
    try:
        return _will_run(node)
    except RuntimeError:
        # A leaf whose gradient autograd.grad() collects: used, but torch does not answer for it.
        return True


def _transformed(*arguments):
    """run() under torch.func; None where none of its transforms is in force. error: UnsupportedError"""
    *tensors, settings = arguments
    name = "flp.linear_logprob"
    settings = copy.copy(settings)
    settings.old_lse = None
    if _transforms.is_active():
        for field, value in (("grad_weight_accumulate", settings.accumulate), ("save=True", settings.save or None),
                             ("tail", settings.tail or None), ("tail_report", settings.tail_report)):
            if value is not None:
                _transforms.refuse(name, field + " under torch.func", "None there")

    def forward(*tensors):
        logprob, entropy, stats = _run.forward(Operands(*tensors), settings, 0, keep_stats=True)
        return logprob, logprob.new_empty(0) if entropy is None else entropy, stats

    def backward(needed):
        grads = sum(bit for bit, wanted in zip(GRADIENTS.values(), needed) if wanted)

        def gradients(*given):
            *operands, _, _, stats, grad_logprob, grad_entropy = given
            made = _run.backward(Operands(*operands), settings, grads, stats, grad_logprob,
                                 grad_entropy if settings.entropy and not settings.detached else None)
            return tuple(grad for grad in made if grad is not None)

        return gradients

    results = _transforms.run(_transforms.Rule(name, _run.NO_SECOND_DERIVATIVE, forward, backward), *tensors)
    if results is None or not settings.entropy:
        return results if results is None else results[:1]
    return (results[0], results[1].detach()) if settings.detached else results
