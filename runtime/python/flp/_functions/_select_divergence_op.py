"""The operator torch.ops.flp.selective_divergence, so that torch.compile and torch.export keep a call whole.

Invariants: those of _logprob_op.py; scores are (..., V), of one shape, temperatures of rows (...). Its results but the
first have no derivative, whatever autograd says of them.
"""
import torch

from .._tensors._compile import HAS_OPERATORS, outside_graphs
from .._tensors._ops import define, ops
from . import _diverge
from . import _select_divergence as own

# names: of parameters, with a comma between; values: both temperatures and theirs; numbers: the same, where they may
# change
OPTIONS = ("Tensor? mask, Tensor? temperature, Tensor? teacher_temperature, str kind, str names, float[] values, "
           "Tensor? numbers=None")
FORWARD = "(Tensor scores, Tensor teacher_scores, %s) -> (%s)" % (OPTIONS, ", ".join(["Tensor"] * _diverge.VALUES))
BACKWARD = "(Tensor scores, Tensor teacher_scores, Tensor grad_value, %s) -> Tensor" % OPTIONS


def _prepared(scores, teacher, mask, temperature, teacher_temperature, kind, names, values, numbers=None):
    both = values if numbers is None else numbers.tolist()
    rows = temperature, teacher_temperature
    return own.prepared(scores, teacher, kind, mask, dict(zip(names.split(","), both[2:])) if names else {},
                        *(number if each is None else each for number, each in zip(both, rows)))


@outside_graphs
def _forward(*arguments):
    call, tensors = _prepared(*arguments)
    return own.values_of(call, *tensors)


def _forward_fake(scores, *_others):
    lead = scores.shape[:-1]
    return (*(scores.new_empty(lead, dtype=torch.float32) for _ in range(_diverge.VALUES - 1)),
            scores.new_empty(lead, dtype=torch.bool))


@outside_graphs
def _backward(scores, teacher, grad_value, *options):
    call, tensors = _prepared(scores, teacher, *options)
    return own.gradient_of(call, *tensors, grad_value)


def _backward_fake(scores, *_others):
    return scores.new_empty(scores.shape)


def _setup_context(ctx, inputs, output):
    *tensors, kind, names, values, numbers = inputs
    ctx.save_for_backward(*tensors, numbers)
    ctx.options = kind, names, values
    ctx.set_materialize_grads(False)


def _autograd(ctx, grad_value, *_others):
    grad = None
    if grad_value is not None:
        scores, teacher, *rows, numbers = ctx.saved_tensors
        grad = ops.selective_divergence_backward(scores, teacher, grad_value, *rows, *ctx.options, numbers)
    return (grad,) + (None,) * 8


if HAS_OPERATORS:
    define("selective_divergence", own.NO_SECOND_DERIVATIVE,
           (FORWARD, _forward, _forward_fake, _autograd, _setup_context), (BACKWARD, _backward, _backward_fake))
