"""torch.func and forward-mode AD: the gradients that torch.func.grad gets, and the refusals of what has no rule.

Invariant: a call under a transform gives right numbers or a sentence with the function's name. Without these classes
torch would raise about data pointers, or, in forward mode, drop the tangents: a derivative of 0.
"""
import torch
from torch.autograd import forward_ad

from .. import errors
from ._address import is_wrapper

# Whether a transform of torch.func is in force; absent before torch 2.0.
_has_transforms = getattr(torch._C, "_are_functorch_transforms_active", None)

REVERSE = "reverse mode: torch.autograd, or torch.func.grad, vjp and jacrev without vmap"
ROWS = "one call with the batch in the leading dimensions"
NO_SECOND_DERIVATIVE = "%s has no second derivative (accepted: one backward pass over it)"
ONE_BY_ONE = "one backward pass for each upstream gradient: no is_grads_batched, no vectorize"


def in_force():
    """Whether a tensor may be a wrapper of torch.func or have a tangent."""
    return is_active() or forward_ad._current_level >= 0


def is_active():
    """Whether a transform of torch.func is in force."""
    return _has_transforms is not None and _has_transforms()


def refuse(function, what, accepted):
    raise errors.UnsupportedError("%s does not support %s (accepted: %s)" % (function, what, accepted))


def check_tangents(function, tensors):
    """Refuses tensors with a tangent, which libflp would not see."""
    if forward_ad._current_level < 0:
        return
    for tensor in tensors:
        if isinstance(tensor, torch.Tensor) and forward_ad.unpack_dual(tensor).tangent is not None:
            refuse(function, "forward-mode derivatives, such as torch.func.jvp", REVERSE)


def check_plain(function, tensors, accepted):
    """Refuses tensors of a transform, for a function that has no rule for any."""
    if not in_force():
        return
    check_tangents(function, tensors)
    for tensor in tensors:
        if isinstance(tensor, torch.Tensor) and is_wrapper(tensor):
            refuse(function, "the transforms of torch.func", accepted)


class LastDerivative(torch.autograd.Function):
    """A backward pass, compute(*tensors), as a function of its own, so that differentiating it fails, with the message
    no_second, instead of finding a constant."""

    @classmethod
    def apply(cls, no_second, compute, *tensors):
        if any(isinstance(tensor, torch.Tensor) and is_wrapper(tensor) for tensor in tensors):  # of vmap
            refuse("a backward pass of flp", "a batch of upstream gradients", ONE_BY_ONE)
        return super().apply(no_second, compute, *tensors)

    @staticmethod
    def forward(ctx, no_second, compute, *tensors):
        ctx.no_second = no_second
        return compute(*tensors)

    @staticmethod
    def backward(ctx, *_grads):
        raise RuntimeError(ctx.no_second)


class Once(torch.autograd.Function):
    """A backward pass under torch.func, compute(*tensors), as a function of its own, which has no derivative.

    name            of the public function
    no_second       the message of a second derivative
    compute         gives a tuple of tensors
    """

    @staticmethod
    def forward(name, no_second, compute, *tensors):
        return compute(*tensors)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.no_second = inputs[1]

    @staticmethod
    def backward(ctx, *_grads):
        raise RuntimeError(ctx.no_second)

    @staticmethod
    def vmap(_info, _in_dims, name, *_others):
        refuse(name, "a batch of upstream gradients", ONE_BY_ONE)

    @staticmethod
    def jvp(ctx, *_tangents):
        raise RuntimeError(ctx.no_second)


class Transformed(torch.autograd.Function):
    """A function under torch.func, whose passes see plain tensors.

    rule     Rule: the name of the public function and its two passes
    tensors  what the passes get, None among them; gradients are those of the first ones
    """

    @staticmethod
    def forward(rule, *tensors):
        return rule.forward(*tensors)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.rule, *tensors = inputs
        ctx.count = len(tensors)
        ctx.mark_non_differentiable(output[-1])
        ctx.save_for_backward(*tensors, *output)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, *grads):
        needed = ctx.needs_input_grad[1:]
        results = ()
        if any(needed) and not all(grad is None for grad in grads[:-1]):
            results = Once.apply(ctx.rule.name, ctx.rule.no_second, ctx.rule.backward(needed), *ctx.saved_tensors,
                                 *grads[:-1])
        found = iter(results)
        return None, *(next(found, None) if wanted else None for wanted in needed)

    @staticmethod
    def vmap(_info, _in_dims, rule, *_tensors):
        refuse(rule.name, "torch.func.vmap", ROWS)

    @staticmethod
    def jvp(ctx, *_tangents):
        refuse(ctx.rule.name, "forward-mode derivatives, such as torch.func.jvp", REVERSE)


class Rule:
    """The passes of a function under torch.func.

    name       of the public function; no_second: the message of a second derivative
    forward    tensors -> a tuple of outputs, what the backward pass needs last
    backward   which gradients are needed, in the tensors' order -> a function (*tensors, *outputs, *upstream) that
               gives a tuple of those gradients
    """

    __slots__ = ("name", "no_second", "forward", "backward")

    def __init__(self, name, no_second, forward, backward):
        self.name, self.no_second, self.forward, self.backward = name, no_second, forward, backward


def run(rule, *tensors):
    """The outputs of a rule without the last; None: no transform is in force. error: UnsupportedError"""
    check_tangents(rule.name, tensors)
    if not is_active():
        return None
    for tensor in tensors:
        if isinstance(tensor, torch.Tensor) and torch._is_functional_tensor(tensor):
            refuse(rule.name, "torch.func.functionalize", "a call outside of it; torch.compile keeps calls whole")
    return Transformed.apply(rule, *tensors)[:-1]
