"""The operator torch.ops.flp.linear_logprob, so that torch.compile and torch.export keep a call whole.

Invariants: registered where torch has torch.library.register_fake and register_autograd (2.4 and later), else this
file defines nothing; arguments are those of a checked, two-dimensional call (softcap 0: none, budget 0: default); an
output that was not asked for is an empty tensor, because an operator's outputs may not be None.
"""
import torch

from . import _c, _check, _run
from ._compile import is_compiling, outside_graphs

SUPPORTED = is_compiling is not None and all(hasattr(torch.library, name)
                                             for name in ("register_fake", "register_autograd"))

OPTIONS = "float temperature, bool entropy, float softcap, float scale, int ignore_index, int budget"
FORWARD = ("(Tensor hidden, Tensor weight, Tensor? bias, Tensor target, Tensor? temperature_rows, Tensor? rows, "
           + OPTIONS + ") -> (Tensor, Tensor, Tensor)")
BACKWARD = ("(Tensor hidden, Tensor weight, Tensor? bias, Tensor target, Tensor? temperature_rows, Tensor? rows, "
            "Tensor stats, Tensor? grad_logprob, Tensor? grad_entropy, int grads, " + OPTIONS
            + ") -> (Tensor, Tensor, Tensor)")


def _settings(temperature, entropy, softcap, scale, ignore_index, budget):
    return _check.Settings(temperature, softcap or None, scale, ignore_index, budget or None, entropy)


def _empty(like):
    return like.new_empty(0, dtype=torch.float32)


@outside_graphs
def _forward(hidden, weight, bias, target, temperature_rows, rows, *options):
    settings = _settings(*options)
    ops = _run.Operands(hidden, weight, bias, target, temperature_rows, rows)
    logprob, entropy, stats = _run.forward(ops, settings, 0, keep_stats=True)
    return logprob, _empty(hidden) if entropy is None else entropy, stats


def _forward_fake(hidden, weight, bias, target, temperature_rows, rows, temperature, entropy, *options):
    n = hidden.shape[0]
    row = hidden.new_empty(n, dtype=torch.float32)
    return row, torch.empty_like(row) if entropy else _empty(hidden), hidden.new_empty((n, 4), dtype=torch.float32)


@outside_graphs
def _backward(hidden, weight, bias, target, temperature_rows, rows, stats, grad_logprob, grad_entropy, grads, *options):
    ops = _run.Operands(hidden, weight, bias, target, temperature_rows, rows)
    results = _run.backward(ops, _settings(*options), grads, stats, grad_logprob, grad_entropy)
    return tuple(_empty(hidden) if result is None else result for result in results)


def _backward_fake(hidden, weight, bias, target, temperature_rows, rows, stats, grad_logprob, grad_entropy, grads,
                   *options):
    wanted = ((hidden, _c.GRAD_HIDDEN), (weight, _c.GRAD_WEIGHT), (bias, _c.GRAD_BIAS))
    return tuple(tensor.new_empty(tensor.shape) if grads & bit else _empty(hidden) for tensor, bit in wanted)


def _setup_context(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:6], output[2])
    ctx.options = inputs[6:]
    ctx.set_materialize_grads(False)


def _autograd(ctx, grad_logprob, grad_entropy, _grad_stats):
    entropy = ctx.options[1]
    grad_entropy = grad_entropy if entropy else None
    needed = [bit if wanted else 0 for bit, wanted in zip(_run.GRAD_FIELDS, ctx.needs_input_grad)]
    results = (None, None, None)
    if sum(needed) and not (grad_logprob is None and grad_entropy is None):
        results = torch.ops.flp.linear_logprob_backward(*ctx.saved_tensors, grad_logprob, grad_entropy, sum(needed),
                                                        *ctx.options)
        results = tuple(result if bit else None for result, bit in zip(results, needed))
    return tuple(results) + (None,) * (3 + len(ctx.options))


def _no_double_backward(ctx, *_grads):
    raise RuntimeError(_run.NO_SECOND_DERIVATIVE)


def register():
    """Defines both operators, their kernels, shapes and derivatives. Called once, at import."""
    for name, schema, kernel, fake in (("flp::linear_logprob", FORWARD, _forward, _forward_fake),
                                       ("flp::linear_logprob_backward", BACKWARD, _backward, _backward_fake)):
        torch.library.define(name, schema)
        torch.library.impl(name, ("CPU", "CUDA"))(kernel)
        torch.library.register_fake(name)(fake)
    torch.library.register_autograd("flp::linear_logprob", _autograd, setup_context=_setup_context)
    torch.library.register_autograd("flp::linear_logprob_backward", _no_double_backward)


def call(hidden, weight, bias, target, temperature_rows, rows, settings):
    """What _logprob.dispatch does without the caller's buffer, as one operator -> (logprob,) or (logprob, entropy)."""
    logprob, entropy, _ = torch.ops.flp.linear_logprob(
        hidden, weight, bias, target, temperature_rows, rows, settings.temperature, settings.entropy, settings.softcap,
        settings.scale, settings.ignore_index, settings.budget)
    return (logprob, entropy) if settings.entropy else (logprob,)


if SUPPORTED:
    register()
