"""The operator torch.ops.flp.linear_logprob, so that torch.compile and torch.export keep a call whole.

Invariants: registered where torch has torch.library.register_fake and register_autograd (2.4 and later), else this
file defines nothing; tensors are those of a checked call; numbers may be symbols while a graph is made, so they are
checked when it runs; an output that was not asked for is an empty tensor, as an operator's outputs may not be None.
"""
import torch

from .._library import _c, _together
from .._passes import _run
from .._tensors import _check
from .._tensors._compile import HAS_OPERATORS, numbers_in, numbers_of_graph, outside_graphs
from .._tensors._operands import GRADIENTS, Operands
from .._tensors._ops import define, ops as operators

# softcap None: none; budget None: the default. numbers: temperature, softcap and scale, where they may change.
OPTIONS = ("float temperature, float? softcap, float scale, SymInt ignore_index, SymInt? budget, bool entropy, "
           "Tensor? numbers=None")
ENTROPY = 5  # the place of entropy in the options
FORWARD = ("(Tensor hidden, Tensor weight, Tensor? bias, Tensor target, Tensor? temperature_rows, Tensor? rows, "
           + OPTIONS + ") -> (Tensor, Tensor, Tensor)")
BACKWARD = ("(Tensor hidden, Tensor weight, Tensor? bias, Tensor target, Tensor? temperature_rows, Tensor? rows, "
            "Tensor stats, Tensor? grad_logprob, Tensor? grad_entropy, int grads, " + OPTIONS
            + ") -> (Tensor, Tensor, Tensor)")


def _empty(like):
    return like.new_empty(0, dtype=torch.float32)


def _settings(temperature, softcap, scale, ignore_index, budget, entropy, numbers=None):
    return _check.Settings(*numbers_in(numbers, temperature, softcap, scale), ignore_index, budget, entropy)


@outside_graphs
def _forward(hidden, weight, bias, target, temperature_rows, rows, *options):
    settings = _settings(*options)
    ops = Operands(hidden, weight, bias, target, temperature_rows, rows)
    logprob, entropy, stats = _run.forward(ops, settings, 0, keep_stats=True)
    return logprob, _empty(hidden) if entropy is None else entropy, stats


def _forward_fake(hidden, weight, bias, target, temperature_rows, rows, *options):
    entropy = options[ENTROPY]
    n = hidden.shape[0]
    row = hidden.new_empty(n, dtype=torch.float32)
    logprob = hidden.new_empty(target.shape, dtype=torch.float32)
    return logprob, row if entropy else _empty(hidden), hidden.new_empty((n, 4), dtype=torch.float32)


@outside_graphs
def _backward(hidden, weight, bias, target, temperature_rows, rows, stats, grad_logprob, grad_entropy, grads, *options):
    ops = Operands(hidden, weight, bias, target, temperature_rows, rows)
    results = _run.backward(ops, _settings(*options), grads, stats, grad_logprob, grad_entropy)
    return tuple(_empty(hidden) if result is None else result for result in results)


def _backward_fake(hidden, weight, bias, target, temperature_rows, rows, stats, grad_logprob, grad_entropy, grads,
                   *options):
    wanted = ((hidden, _c.GRAD_HIDDEN), (weight, _c.GRAD_WEIGHT), (bias, _c.GRAD_BIAS))
    return tuple(tensor.new_empty(tensor.shape) if grads & bit else _empty(hidden) for tensor, bit in wanted)


def _setup_context(ctx, inputs, output):
    *ctx.options, numbers = inputs[6:]
    ctx.save_for_backward(*inputs[:6], output[2], numbers)
    ctx.set_materialize_grads(False)


def _autograd(ctx, grad_logprob, grad_entropy, _grad_stats):
    grad_entropy = grad_entropy if ctx.options[ENTROPY] else None
    *saved, numbers = ctx.saved_tensors
    needed = [bit if wanted else 0 for bit, wanted in zip(GRADIENTS.values(), ctx.needs_input_grad)]
    results = (None, None, None)
    if sum(needed) and not (grad_logprob is None and grad_entropy is None):
        results = operators.linear_logprob_backward(*saved, grad_logprob, grad_entropy, sum(needed), *ctx.options,
                                                    numbers)
        results = tuple(result if bit else None for result, bit in zip(results, needed))
    return tuple(results) + (None,) * (4 + len(ctx.options))


def linear_logprob(hidden, weight, target, bias, temperature, rows, softcap, scale, ignore_index, budget, entropy,
                   old_lse):
    """flp.linear_logprob with these options alone, as one operator. old_lse: not read, as no result depends on it"""
    is_detached = _check.entropy_of(entropy)[1]
    _together.check({"target": _together.several(target, hidden), "old_lse": old_lse})
    shape = target.shape
    lead, hidden, weight, bias, target, temperature, temperature_rows, rows = _check.prepare(
        hidden, weight, target, bias, temperature, rows, several=True, mixed=_c.MIXED_NONE)
    for field, value in (("temperature", temperature), ("softcap", softcap), ("scale", scale)):
        _check.check_real(field, value)
    for field, value in (("ignore_index", ignore_index), ("budget", budget)):
        _check.check_integral(field, value)
    numbers = numbers_of_graph(temperature, softcap, scale)
    if numbers is not None:
        temperature, softcap, scale = 1.0, softcap if softcap is None else 1.0, 1.0
    logprob, entropies, _ = operators.linear_logprob(
        hidden, weight, bias, target, temperature_rows, rows, temperature, softcap, scale, ignore_index, budget,
        bool(entropy), numbers)
    logprob = logprob.reshape(shape)
    if not entropy:
        return logprob
    entropies = entropies.reshape(lead)
    return logprob, entropies.detach() if is_detached else entropies


if HAS_OPERATORS:
    define("linear_logprob", _run.NO_SECOND_DERIVATIVE,
           (FORWARD, _forward, _forward_fake, _autograd, _setup_context), (BACKWARD, _backward, _backward_fake))
