"""The loss of a step in autograd's graph: its gradients exist when the call returns, a backward pass hands them out.

Invariants: gradients are handed out once, times the upstream gradient. grad_weight_accumulate gets its gradient once:
from the call, or, where hooks of saved tensors are in force, from the backward pass, which then runs the step. Such
hooks may be those of torch.utils.checkpoint (use_reentrant=False), which makes a call again whose first one is in the
graph.
"""
import copy
import functools

import torch

from .._passes import _autograd, _run
from .._tensors._compile import outside_graphs
from .._tensors._operands import GRADIENTS, OPERANDS, Loss, Operands
from . import _scale

LEAVES, FIXED = len(GRADIENTS), tuple(name for name in OPERANDS if name not in GRADIENTS)
ONCE = "%s hands its gradients out once (accepted: one backward pass; call it again for another)"


def loss_of(call, loss, scale, name):
    """Runs a step of a call, a _call.Call -> the sum of its losses, differentiable, and the Step.

    scale    the upstream gradient that is in the weights of loss and is to come, or None: none is, and any may come
    name     of the public function
    """
    ops, grads = Operands(**call.operands), call.grads
    settings = _run.settings_of_step(ops, call.settings, grads)
    later = is_later(settings, grads)
    with torch.no_grad():
        made = _run.step(ops, settings, 0 if later else grads, loss)
        value = made.loss.sum() / (1.0 if scale is None else scale)
    again = copy.copy(settings)
    again.old_lse, again.topk, again.rank, again.statistics = None, 0, False, False
    step = functools.partial(_gradients_of_step, again, grads, loss.program, loss.parameters)
    value = handed_out(call, value, scale, name, made.gradients, later and step,
                       (*map(call.operands.get, FIXED), *loss.tensors()))
    made.gradients = None
    return value, made


def is_later(settings, grads):
    """Whether the gradients of a loss wait for the backward pass, which then makes them."""
    return bool(grads) and settings.accumulate is not None and are_hooks_in_force()


def handed_out(call, value, scale, name, gradients, later, saved):
    """The value of a loss, differentiable where the call has gradients: those that exist, or, unless it is false, those
    that later makes of the leaves and what is saved. Either may be of the first leaves alone"""
    if not call.grads:
        return value
    leaves = [call.operands[leaf] for leaf in GRADIENTS]
    made, others = (later, saved) if later else (existing, gradients)
    return HandOut.apply(*leaves, value, made, scale, name, *others)


def are_hooks_in_force():
    """Whether hooks of saved tensors are, which torch tells by refusing another pair on a tensor that it saves now."""
    with torch.enable_grad():
        node = torch.zeros((), device="cpu", requires_grad=True).exp()
    try:
        node.grad_fn._raw_saved_result.register_hooks(lambda tensor: tensor, lambda tensor: tensor)
    except RuntimeError:
        return True
    return False


def existing(*saved):
    return saved[LEAVES:]


def _gradients_of_step(settings, grads, program, parameters, *saved):
    """The gradients of a step that runs now. saved: operands, those that may have a gradient first, and those of Loss"""
    names = (*GRADIENTS, *FIXED)
    loss = Loss.of_tensors(program, parameters, saved[len(names):])
    return _run.step(Operands(**dict(zip(names, saved))), settings, grads, loss).gradients


class HandOut(torch.autograd.Function):
    """A loss whose gradients are, or are made of, saved tensors: the backward pass hands them out, times its upstream
    gradient. Takes operands that may have one, the loss, and gradients, a function of all that is saved"""

    @staticmethod
    def forward(ctx, *arguments):
        value, gradients, scale, name, *others = arguments[LEAVES:]
        ctx.gradients, ctx.scale, ctx.name, ctx.is_done = gradients, scale, name, False
        ctx.save_for_backward(*arguments[:LEAVES], *others)
        return value.clone()

    @staticmethod
    @outside_graphs
    def backward(ctx, upstream):
        if ctx.is_done:
            raise RuntimeError(ONCE % ctx.name)
        ctx.is_done = True
        results = _autograd.last_derivative(functools.partial(_times, ctx.gradients, ctx.scale), upstream,
                                            *ctx.saved_tensors, function=ctx.name)
        return results + (None,) * (len(ctx.needs_input_grad) - len(results))


def _times(gradients, scale, upstream, *saved):
    """Gradients that were made for an upstream gradient of 1; or for scale, which then is the only one accepted. In
    place, where they have the operands' dtypes."""
    factor = upstream
    if scale is not None:
        factor = torch.ones_like(upstream).masked_fill(~((upstream - scale).abs() <= 1e-6 * abs(scale)), float("nan"))
    return tuple(None if gradient is None else _scale.times(gradient, factor.reshape(1), operand.dtype)
                 for gradient, operand in zip(gradients(*saved), saved))
