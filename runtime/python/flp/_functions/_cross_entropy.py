"""cross_entropy: the loss of supervised fine-tuning and its gradients from hidden states, in one call.

Invariants: those of policy_loss (_policy.py), whose sibling this is: the loss is a program that libflp runs between the
passes over the head (flp_step, stream mode), gradients exist when the call returns, and the backward pass hands them
out once, times its upstream gradient. With reduction "none" each token has an upstream gradient of its own: forward
makes losses alone, and backward runs a step whose weights these gradients are.
"""
from __future__ import annotations

import functools
from typing import Any, Literal

import torch
from torch import Tensor

from .. import losses
from .._library import _rules
from .._passes import _autograd, _run
from .._tensors import _check, _lora, _top
from .._tensors._call import Call
from .._tensors._compile import outside_graphs
from .._tensors._operands import Loss, Operands
from . import _hand_out, _policy


@outside_graphs
def cross_entropy(hidden: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None = None, *,
                  label_smoothing: float = 0.0, z_loss: float = 0.0, reduction: str = "mean",
                  row_weight: Tensor | None = None, total: float | Tensor | None = None, return_z_loss: bool = False,
                  temperature: float | Tensor = 1.0, softcap: float | None = None, scale: float = 1.0,
                  ignore_index: int = -100, budget: int | str | None = None,
                  grad_weight_accumulate: Tensor | None = None, grad_scale: float | Tensor = 1.0,
                  keep: tuple[Tensor, Tensor] | None = None, lora: _lora.Lora | None = None,
                  mixed: Literal["round", "split"] | None = None, entropy: bool = False,
                  statistics: bool = False) -> Any:
    """Computes cross entropy and its gradients from hidden states, without the (N,V) scores.

    With t the scores of a token (after softcap and temperature), lse = log Σ_v exp t_v and nll = lse − t_target, a
    token's loss is

        (1 − label_smoothing)·nll + label_smoothing·(lse − mean of t) + z_loss·lse²

    which without z_loss is torch.nn.functional.cross_entropy(t, target, label_smoothing=label_smoothing).

    hidden, weight, target, bias, temperature, softcap, scale, ignore_index, budget
                     as in flp.linear_logprob: hidden (..., D), weight (V, D), target (...)
    label_smoothing  0 to 1
    z_loss           0 or more: the weight of lse², Liger's lse_square_scale
    reduction        "mean" over the tokens that are not ignore_index, weighted as torch weights classes (0 where there
                     are none); "sum"; "none": (...) losses, 0 where ignored
    row_weight       (...) floating point, or None: the weight of each token; "mean" divides by their sum. Weights of
                     classes are those of their tokens, class_weight[target], without label smoothing, whose terms torch
                     weighs by class
    total            a number or 0-dim tensor: what "mean" divides by instead, such as the tokens of all micro-batches
                     (num_items_in_batch of transformers), so that their losses add up to that of the batch
    return_z_loss    True: returns (loss, the part that z_loss is of it), the latter without a gradient
    grad_weight_accumulate, grad_scale
                     as in flp.policy_loss; not with reduction "none"
    keep, lora, mixed as in flp.linear_logprob. With keep all scores are those of the columns that a token lists
    entropy, statistics
                     True: the entropies (...) and flp.Statistics are returned behind these, without a gradient

    Returns a float32 scalar, or (...) with "none", differentiable once in hidden, weight, bias and the adapter. The
    gradients of a scalar are computed here, in three matrix products (frozen head: two), row chunk by row chunk within
    the budget; under torch.no_grad() there are none. With "none" backward computes them, in three products beside
    forward's one. Label smoothing reads the weight and adds to its gradient once more; with a softcap, an adapter, or a
    weight that is float32 or split, it takes two products.
    error:  ValueError or TypeError naming the field, its value and what is accepted; flp.FlpError and its classes;
            RuntimeError in a second backward pass
    thread: safe
    source: arXiv:1512.00567, section 7 (label smoothing); arXiv:2204.02311, section 5 (z-loss)
    """
    call = Call("flp.cross_entropy", hidden, weight, target, bias, several=False,
                instead="torch.autograd, or under torch.func.grad flp.linear_logprob, whose negative mean is plain "
                "cross entropy", others={"row_weight": row_weight}, temperature=temperature, softcap=softcap,
                scale=scale, ignore_index=ignore_index, budget=budget, grad_weight_accumulate=grad_weight_accumulate,
                keep=keep, lora=lora, mixed=mixed, entropy=entropy, statistics=statistics)
    call.settings.detached = True
    wishes = _rules.smoothed_of(label_smoothing, z_loss, reduction)
    if reduction == "none" and grad_weight_accumulate is not None:
        _check.refuse(ValueError, "grad_weight_accumulate", "given with reduction 'none'", "None")
    counted = (target != call.settings.ignore_index).reshape(-1).float()
    given = _check.row_values_of("row_weight", row_weight, call.lead, counted.device, "hidden's rows")
    weights = _rules.reduced_weights(losses.TORCH, counted, given, total, reduction)
    value, z, *more = _dispatch(call, wishes, weights, _policy._scale_of(grad_scale, call.settings))
    if reduction == "none":
        value, z = value.reshape(call.lead), z.reshape(call.lead)
    entropies = (more.pop(0).reshape(call.lead),) if call.settings.entropy else ()
    results = (value, *((z,) if return_z_loss else ()), *entropies, *_top.packed(more, call.settings, call.lead))
    return results if len(results) > 1 else value


def _more_of(made):
    """What a Step gives beside losses: the entropies, the tensors of _top.Outputs."""
    return (*(() if made.entropy is None else (made.entropy,)), *made.top.tensors())


def _stepped(ops, settings, wishes, grads, weights):
    """A step -> (losses of rows, their z-losses, what there is more), gradients."""
    with torch.no_grad():
        made = _run.step(ops, _run.settings_of_step(ops, settings, grads), grads, _loss_of(wishes, weights))
        return (made.loss, _rules.z_losses(made, wishes, weights), *_more_of(made)), made.gradients


def _loss_of(wishes, weights):
    return Loss(wishes.program, wishes.parameters, None, None, None, weights, {})


def _dispatch(call, wishes, weights, grad_scale):
    if wishes.reduction == "none":
        if call.grads:
            return Rows.apply(*call.operands.values(), weights, call.settings, wishes, call.grads)
        return _stepped(Operands(*call.operands.values()), call.settings, wishes, 0, weights)[0]
    scale = 1.0 if grad_scale is None else grad_scale
    weights = weights * scale
    value, made = _hand_out.loss_of(call, _loss_of(wishes, weights), grad_scale, "flp.cross_entropy")
    return (value, _rules.z_losses(made, wishes, weights).sum() / scale, *_more_of(made))


class Rows(torch.autograd.Function):
    """Losses of rows; the backward pass runs the step whose weights are the upstream gradients."""

    @staticmethod
    def forward(ctx, *arguments):
        *operands, weights, settings, wishes, grads = arguments
        ctx.rest = settings, wishes, grads
        ctx.save_for_backward(*operands, weights)
        results, _ = _stepped(Operands(*operands), settings, wishes, 0, weights)
        ctx.mark_non_differentiable(*results[1:])
        return results

    @staticmethod
    @outside_graphs
    def backward(ctx, upstream, *_):
        results = _autograd.last_derivative(functools.partial(_of_rows, *ctx.rest), upstream, *ctx.saved_tensors)
        return (*_autograd.of_arguments(results), None, None)


def _of_rows(settings, wishes, grads, upstream, *saved):
    """The gradients of losses of rows, whose upstream gradients they are."""
    *operands, weights = saved
    made = _stepped(Operands(*operands), settings, wishes, grads, (weights * upstream.float()).contiguous())[1]
    return _autograd.of_dtypes(made, [operands[place] for place in _autograd.PLACES])
