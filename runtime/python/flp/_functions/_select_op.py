"""The operator torch.ops.flp.selective_log_softmax, so that torch.compile and torch.export keep a call whole.

Invariants: those of _logprob_op.py; scores are (..., V) of at least two dimensions, targets (..., K), numbers of
results those of the sums. A graph decides about memory itself, so the gradient never takes the place of the scores here.
"""
from .._tensors._compile import HAS_OPERATORS, numbers_in, outside_graphs
from .._tensors._ops import define, ops
from . import _select

# numbers: the temperature, where it may change
OPTIONS = "float temperature, SymInt? ignore_index, bool entropy, Tensor? numbers=None"
FORWARD = "(Tensor logits, Tensor target, " + OPTIONS + ") -> (Tensor, Tensor, Tensor)"
BACKWARD = ("(Tensor logits, Tensor target, Tensor logprob, Tensor stats, Tensor? grad_logprob, Tensor? grad_entropy, "
            + OPTIONS + ") -> Tensor")


def _settings(temperature, ignore_index, entropy, numbers=None):
    return _select.Settings(*numbers_in(numbers, temperature), ignore_index, entropy, False, None)


@outside_graphs
def _forward(logits, target, *options):
    logprob, entropy, stats = _select.forward(logits, target, _settings(*options))
    return logprob, logprob.new_empty(0) if entropy is None else entropy, stats


def _forward_fake(logits, target, _temperature, _ignore_index, entropy, _numbers=None):
    lead, numbers = logits.shape[:-1], {"dtype": _select.number_type(logits)}
    return (logits.new_empty(target.shape, **numbers), logits.new_empty(lead if entropy else 0, **numbers),
            logits.new_empty((*lead, 3), **numbers))


@outside_graphs
def _backward(logits, target, logprob, stats, grad_logprob, grad_entropy, *options):
    if grad_entropy is not None:
        grad_entropy = grad_entropy.unsqueeze(-1)
    return _select.backward(logits, target, logprob, stats, grad_logprob, grad_entropy, _settings(*options))


def _backward_fake(logits, *_others):
    return logits.new_empty(logits.shape)


def _setup_context(ctx, inputs, output):
    *ctx.options, numbers = inputs[2:]
    ctx.save_for_backward(*inputs[:2], output[0], output[2], numbers)
    ctx.set_materialize_grads(False)


def _autograd(ctx, grad_logprob, grad_entropy, _grad_stats):
    grad_entropy = grad_entropy if ctx.options[-1] else None
    grad = None
    if not (grad_logprob is None and grad_entropy is None):
        *saved, numbers = ctx.saved_tensors
        grad = ops.selective_log_softmax_backward(*saved, grad_logprob, grad_entropy, *ctx.options, numbers)
    return (grad,) + (None,) * (2 + len(ctx.options))


if HAS_OPERATORS:
    define("selective_log_softmax", _select.NO_SECOND_DERIVATIVE,
           (FORWARD, _forward, _forward_fake, _autograd, _setup_context), (BACKWARD, _backward, _backward_fake))
