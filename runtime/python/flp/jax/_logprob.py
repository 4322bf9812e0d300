"""linear_logprob: the public, differentiable function of JAX arrays.

Invariants: what is kept for the backward pass is the operands and stats (N,4), so the backward pass recomputes the
scores in chunks (recompute mode); gradients are computed for what is differentiated and for nothing else, as JAX's
symbolic zeros mark it.
"""
import functools
import math
import numbers

import jax
import jax.numpy as jnp
import numpy

from .._library import _c, _numbers
from .._library._numbers import refuse
from . import _call

DIFFERENTIABLE = ("hidden", "weight", "bias")


def linear_logprob(hidden, weight, target, bias=None, *, temperature=1.0, entropy=False, softcap=None, scale=1.0,
                   ignore_index=-100, budget=None, mixed=None):
    """Computes the log-probability of each target token under a language-model head, without the (N,V) scores.

    z = scale·(hidden weightᵀ + bias);  z ← softcap·tanh(z/softcap);  t = z / temperature
    logprob_i = t_{i,target_i} − log Σ_v exp t_{i,v};   entropy_i = −Σ_v p_{i,v} log p_{i,v}

    hidden       (..., D) bfloat16, float16 or float32; D a multiple of 8
    weight       (V, D) of the same dtype, but see mixed; bias (V) likewise, or None
    target       (...) int32 or int64 ids; ignore_index marks tokens without work: logprob 0, entropy 0, no gradient.
                 Ids of a numpy array that int32 does not hold are bad ones, as everywhere, where JAX has 32 bits; an
                 array that jit is given JAX itself has cut to 32 bits before
    temperature  a number above 0, or an array () or of one a row (...); not differentiable
    entropy      True: return (logprob, entropy); both are differentiable. "detached": the entropy is a value without a
                 gradient
    softcap      a number above 0, or None
    budget       workspace bytes of each pass; None: FLP_BUDGET, else 256 MiB forward, 1 GiB backward
    mixed        how a float32 weight (or hidden) meets the other in bfloat16 or float16: "round", rounded to it, as a
                 float32 bias is; "split", as two terms of it; as for flp.linear_logprob. None: refused

    Returns logprob (...) float32 in nats, never above 0; or (logprob, entropy).
    Numbers are constants of the compiled program: one that changes from step to step belongs in an array, as
    temperature. Gradients reach hidden, weight and bias where they are differentiated, once; a frozen head costs no
    gradient. jit, grad, vjp, checkpoint, scan and shard_map take it; vmap does for rows, with a gradient of hidden
    alone. Arrays that jit divides over devices are gathered on each one first: use shard_map. Rows whose target is
    outside [0, V), or whose temperature or scores float32 does not hold, are NaN. Kernels are picked and compiled
    when a program is, for all devices of the process; a call allocates nothing, and may be part of XLA's command
    buffers.
    error:  ValueError or TypeError naming the field, its value and what is accepted; flp.FlpError and its classes; of a
            running program jax.errors.JaxRuntimeError with libflp's sentence
    thread: safe
    """
    with_entropy, detached = _numbers.entropy_of(entropy)
    call = _checked_call(temperature, softcap, scale, ignore_index, budget, mixed)
    target, ignored = _held(target, call.ignore_index)
    call = call._replace(ignore_index=ignored)
    hidden, weight, target, bias = (_array_of(*pair) for pair in (
        ("hidden", hidden), ("weight", weight), ("target", target), ("bias", bias)))
    _check_operands(hidden, weight, target, bias, call.mixed)
    if all(array is None or array.dtype == hidden.dtype for array in (weight, bias)):
        call = call._replace(mixed=_c.MIXED_NONE)
    lead = target.shape
    rows = _temperature_rows(temperature, lead)
    operands = _varying_alike(hidden.reshape(-1, hidden.shape[-1]), weight, bias, target.reshape(-1), rows)
    results = _logprob(call, with_entropy, *operands)
    shaped = tuple(result.reshape(lead) for result in results)
    if detached:
        return shaped[0], jax.lax.stop_gradient(shaped[1])
    return shaped if with_entropy else shaped[0]


# ---- checks

def _checked_call(temperature, softcap, scale, ignore_index, budget, mixed):
    """The numbers of a call, checked; those of a temperature in an array are checked where they are."""
    softcap, scale = _numbers.softcap_of(softcap), _numbers.number_of("scale", scale)
    if not _is_array(temperature) and not isinstance(temperature, numbers.Real):
        refuse(TypeError, "temperature", "of type " + type(temperature).__name__, "a number, or an array of one a row")
    scalar = 1.0 if _is_array(temperature) else _numbers.float_of(temperature)
    _numbers.scales_of(scalar, softcap, scale)
    return _call.Call(_c.PASS_FORWARD, (), (), scalar, scale, softcap,
                      _numbers.integer_of("ignore_index", ignore_index), _numbers.budget_of(budget),
                      _numbers.mixed_of(mixed))


def _is_array(value):
    return isinstance(value, (jax.Array, numpy.ndarray))


def _array_of(field, value):
    if value is None and field == "bias":
        return None
    if not _is_array(value):
        refuse(TypeError, field, "of type " + type(value).__name__, "a jax.Array or numpy.ndarray")
    return jnp.asarray(value)


def _held(target, ignore_index):
    """The target and ignore_index, in int32 where JAX would wrap numpy's int64: ids beyond it become bad ones."""
    if not isinstance(target, numpy.ndarray) or target.dtype != numpy.int64 or jax.config.jax_enable_x64:
        return target, ignore_index
    most = _numbers.INT32_MAX
    own = ignore_index if -most <= ignore_index <= most else -most
    bad = -1 if own != -1 else -2
    is_kept = (target >= -most) & (target <= most) & (target != own)
    return numpy.where(target == ignore_index, own, numpy.where(is_kept, target, bad)).astype(numpy.int32), own


def _check_dtypes(hidden, weight, bias, mixed):
    """One dtype, or with mixed float32 and one of 16 bits, which products have."""
    def differ(field, array, accepted):
        refuse(TypeError, field, "of dtype %s while hidden is of dtype %s" % (array.dtype, hidden.dtype), accepted)

    if weight.dtype != hidden.dtype:
        pair = {hidden.dtype, weight.dtype}
        if not mixed or jnp.dtype(jnp.float32) not in pair or not pair <= set(_call.DTYPES):
            differ("weight", weight, 'one dtype for both, or mixed="round" or "split" with float32 beside bfloat16 or '
                   'float16')
    product = weight.dtype if hidden.dtype == jnp.float32 else hidden.dtype
    if bias is not None and bias.dtype != product and not (mixed == _c.MIXED_ROUND and bias.dtype == jnp.float32):
        differ("bias", bias, "%s, or float32 with mixed=\"round\"" % product)


def _check_operands(hidden, weight, target, bias, mixed):
    if hidden.dtype not in _call.DTYPES:
        refuse(TypeError, "hidden", "of dtype %s" % hidden.dtype, ", ".join(map(str, _call.DTYPES)))
    _check_dtypes(hidden, weight, bias, mixed)
    if hidden.ndim < 1:
        refuse(ValueError, "hidden", "of shape ()", "(..., D)")
    if weight.ndim != 2 or weight.shape[1] != hidden.shape[-1]:
        refuse(ValueError, "weight", "of shape %s" % (weight.shape,), "(V, %s), as hidden ends in %s"
               % (hidden.shape[-1], hidden.shape[-1]))
    if target.dtype not in _call.TARGET_DTYPES:
        refuse(TypeError, "target", "of dtype %s" % target.dtype, ", ".join(map(str, _call.TARGET_DTYPES)))
    if target.shape != hidden.shape[:-1]:
        refuse(ValueError, "target", "of shape %s" % (target.shape,), "%s, as hidden without its last dimension"
               % (hidden.shape[:-1],))
    if bias is not None and bias.shape != weight.shape[:1]:
        refuse(ValueError, "bias", "of shape %s" % (bias.shape,), "(%s,), as weight has %s rows"
               % (weight.shape[0], weight.shape[0]))


def _temperature_rows(temperature, lead):
    """One temperature a row (N) float32, or None for a number."""
    if not _is_array(temperature):
        return None
    if isinstance(temperature, numpy.ndarray) and temperature.dtype.kind in "iu":
        temperature = temperature.astype(numpy.float32)  # before JAX wraps integers of 64 bits
    temperature = jnp.asarray(temperature)
    if not (jnp.issubdtype(temperature.dtype, jnp.floating) or jnp.issubdtype(temperature.dtype, jnp.integer)):
        refuse(TypeError, "temperature", "of dtype %s" % temperature.dtype, "a real dtype")
    if temperature.shape not in ((), lead):
        refuse(ValueError, "temperature", "of shape %s" % (temperature.shape,), "(), or %s, as target" % (lead,))
    return jnp.broadcast_to(temperature.astype(jnp.float32), lead).reshape(-1)


# ---- shard_map

def _varying_alike(*arrays):
    """The arrays, each varying over every axis of a shard_map that one of them varies over. What was the same on all
    devices, such as a head, gets the sum of the devices' gradients that way."""
    axes = [None if array is None else _varying(jax.typeof(array)) for array in arrays]
    union = frozenset().union(*(found for found in axes if found))
    return [array if array is None or found == union else jax.lax.pcast(array, tuple(union - found), to="varying")
            for array, found in zip(arrays, axes)]


def _varying(aval):
    if hasattr(aval, "mat"):  # jax 0.10 and newer
        return frozenset(aval.mat.varying)
    return frozenset(getattr(aval, "vma", ()))


# ---- gradients

class _Wanted:
    """Which operands need gradients: a node without leaves, so that it is static beside arrays."""

    def __init__(self, names):
        self.names = tuple(names)


jax.tree_util.register_pytree_node(_Wanted, lambda wanted: ((), wanted.names), lambda names, _: _Wanted(names))


def _given(**operands):
    return {name: operand for name, operand in operands.items() if operand is not None}


def _forward(call, entropy, keep_stats, *operands):
    names = ("hidden", "weight", "bias", "target", "temperature_rows")
    results = ("logprob", *(("entropy",) if entropy else ()), *(("stats",) if keep_stats else ()))
    return _call.run(call._replace(results=results), _given(**dict(zip(names, operands))))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _logprob(call, entropy, *operands):
    made = _forward(call, entropy, False, *operands)
    return (made["logprob"], made["entropy"]) if entropy else (made["logprob"],)


def _logprob_forward(call, entropy, *operands):
    values = [None if operand is None else operand.value for operand in operands]
    if operands[4] is not None and operands[4].perturbed:
        refuse(ValueError, "temperature", "an array that is differentiated",
               "one that is not, as gradients reach hidden, weight and bias only; jax.lax.stop_gradient makes it so")
    wanted = [name for name, operand in zip(DIFFERENTIABLE, operands) if operand is not None and operand.perturbed]
    made = _forward(call, entropy, True, *values)
    results = (made["logprob"], made["entropy"]) if entropy else (made["logprob"],)
    return results, (values, made["stats"], _Wanted(wanted))


def _logprob_backward(call, entropy, kept, grads):
    (hidden, weight, bias, target, rows), stats, wanted = kept
    upstream = [None if isinstance(grad, jax.custom_derivatives.SymbolicZero) else grad for grad in grads]
    if not wanted.names or all(grad is None for grad in upstream):
        return (None,) * 5
    given = _given(hidden=hidden, weight=weight, bias=bias, target=target, temperature_rows=rows, stats=stats,
                   grad_logprob=upstream[0], grad_entropy=upstream[1] if entropy else None)
    call = call._replace(which=_c.PASS_BACKWARD, results=tuple("grad_" + name for name in wanted.names))
    made = _call.run(call, given)
    return tuple(made.get("grad_" + name) for name in DIFFERENTIABLE) + (None, None)


_logprob.defvjp(_logprob_forward, _logprob_backward, symbolic_zeros=True)
