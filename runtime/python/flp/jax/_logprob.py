"""linear_logprob: the public, differentiable function of JAX arrays.

Invariants: what is kept for the backward pass is the operands and stats (N,4), so the backward pass recomputes the
scores in chunks (recompute mode); gradients are computed for what is differentiated and for nothing else, as JAX's
symbolic zeros mark it. Operands have the names of _call.ARRAYS; what has a row there under its name behind "grad_" is
differentiable.
"""
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from .. import errors
from .._library import _c, _numbers, _together
from .._library._numbers import refuse
from . import _call, _checks, _shards

DIFFERENTIABLE = tuple(name for name in _call.ARRAYS if _call.GRAD + name in _call.ARRAYS)
TOP = _shards.TOP
# Of an option, beside the log-probabilities.
RESULTS = {"entropy": ("entropy",), "topk": TOP, "rank": ("rank",), "statistics": ("statistics",)}
# Options of flp's functions of the same names that a program of arrays has no form of, and why.
IN_PLACE = {"grad_weight_accumulate": "no array is added to in place"}
SUMMED = {**IN_PLACE, "grad_scale": "the upstream gradient says it"}
UNSAID = {
    "linear_logprob": {
        **dict.fromkeys(("save", "old_lse"), "the backward pass writes over what is saved"),
        **dict.fromkeys(("tail", "tail_report"), "XLA may move what the forward pass lists"),
        **IN_PLACE, "chunk_rows": "the budget decides"},
    "policy_loss": {**SUMMED, "save": "nothing is saved between two passes",
                    "tail_report": "no array of the caller's is written",
                    "reference": "the scores of two heads are torch's"},
    "cross_entropy": SUMMED,
    "divergence": {**IN_PLACE, "payload": "kernels make one of tensors of torch"},
}


class Lora(NamedTuple):
    """A low-rank adapter on a frozen head: a (r, D), b (V, r), and scale, a number."""
    a: jax.Array
    b: jax.Array
    scale: float = 1.0


class Top(NamedTuple):
    """The best tokens of each row, as flp.Top has them: ids and logprobs (..., K), rest (...)."""
    ids: jax.Array
    logprobs: jax.Array
    rest: jax.Array


class Statistics(NamedTuple):
    """What the scores of each row are as a whole, as flp.Statistics has them: (...) each."""
    lse: jax.Array
    mean_score: jax.Array
    log_squares: jax.Array
    is_best: jax.Array


def linear_logprob(hidden, weight, target, bias=None, *, temperature=1.0, entropy=False, softcap=None, scale=1.0,
                   ignore_index=-100, budget=None, rows=None, keep=None, kept_mass=False, topk=0, rank=False,
                   statistics=False, mixed=None, lora=None, reference=False, axis_name=None, vocab_total=None,
                   **unsaid):
    """Computes the log-probability of each target token under a language-model head, without the (N,V) scores.

    z = scale·(hidden weightᵀ + bias);  z ← softcap·tanh(z/softcap);  t = z / temperature
    logprob_i = t_{i,target_i} − log Σ_v exp t_{i,v};   entropy_i = −Σ_v p_{i,v} log p_{i,v}

    hidden       (..., D) bfloat16, float16 or float32; D a multiple of 8
    weight       (V, D) of the same dtype, but see mixed; bias (V) likewise, or None
    target       (...) int32 or int64 ids; ignore_index marks tokens without work: logprob 0, entropy 0, no gradient. Or
                 (..., K), 1 to 512 ids a row. Ids of a numpy array that int32 does not hold are bad ones, as
                 everywhere, where JAX has 32 bits; an array that jit is given JAX itself has cut to 32 bits before
    temperature  a number above 0, or an array () or of one a row (...); not differentiable
    entropy      True: return the entropy too; both are differentiable. "detached": as a value without a gradient
    softcap      a number above 0, or None
    budget       workspace bytes of each pass, or "64M"; None: FLP_BUDGET, else 256 MiB forward, backward 1/20 of the
                 GPU's memory
    rows, keep, kept_mass, topk, rank, statistics, mixed, reference
                 as of flp.linear_logprob; keep is (offsets, token_ids), top a flp.jax.Top, statistics
                 flp.jax.Statistics
    lora         flp.jax.Lora(a, b, scale) of hidden's dtype, on a weight that is not differentiated; or None
    axis_name    axis of the shard_map that this call is made in, over which the vocabulary is divided: weight, bias and
                 lora.b are rows of each device, all else is the same on the devices of the axis. They exchange a
                 maximum and two or three sums a row, and backward what each adds to the gradients of hidden and lora.a
    vocab_total  ids of the divided vocabulary: the last device's rows behind them are padding; None: all are real

    Returns logprob of target's shape, float32 in nats, never above 0; or a tuple of it, the entropy and the kept mass,
    or top, the rank and statistics, or the reference, as asked for.
    Numbers are constants of the compiled program: one that changes from step to step belongs in an array, as
    temperature. Gradients reach hidden, weight, bias, a and b where they are differentiated, once; a frozen head costs
    no gradient. jit, grad, vjp, checkpoint, scan and shard_map take it; vmap does for rows, with a gradient of hidden
    alone, without rows and keep. Arrays that jit divides over devices are gathered on each one first: use shard_map.
    Rows whose target is outside [0, V), or whose temperature or scores float32 does not hold, are NaN. Kernels are
    picked and compiled when a program is, for all devices of the process; a call allocates nothing, and may be part of
    XLA's command buffers.
    error:  ValueError or TypeError naming the field, its value and what is accepted; flp.FlpError and its classes; of a
            running program jax.errors.JaxRuntimeError with libflp's sentence
    thread: safe
    """
    check_unsaid("linear_logprob", unsaid)
    asked = {"entropy": _numbers.entropy_of(entropy)[0], "topk": topk, "rank": rank,
             "statistics": statistics}
    fields = _checks.numbers_of(temperature, softcap, scale, ignore_index, mixed)
    operands, lead, shape = _checks.operands_of(
        fields, hidden, weight, target, bias, temperature, rows, keep, lora,
        {"topk": topk, "rank": rank, "statistics": statistics, "kept_mass": kept_mass, "mixed": mixed,
         "axis_name": axis_name})
    shard = _shards.shard_of(axis_name, vocab_total, operands)
    for option, value, other, without in (("kept_mass", kept_mass, keep, "keep: all of V is kept"),
                                          ("reference", reference, lora, "lora")):
        if value and other is None:
            refuse(ValueError, option, repr(value), "False without " + without)
    budget = _numbers.budget_of(budget)
    made = values_of(fields, budget, operands, results_of(asked), shard)
    if kept_mass or reference:
        plain = {name: array for name, array in operands.items() if not name.startswith(("list_", "lora_"))}
        fields.pop("lora_scale", None)
        made["whole"], = values_of(fields, budget, jax.lax.stop_gradient(plain), ("logprob",), shard).values()
    shaped = {name: value.reshape(shape if name in ("logprob", "whole") else lead + value.shape[1:])
              for name, value in made.items()}
    return _packed(shaped, _numbers.entropy_of(entropy)[1], kept_mass)


def check_unsaid(function, options):
    """Refuses options of flp's function that flp.jax's has not. error: TypeError, UnsupportedError"""
    for option, value in options.items():
        if option not in UNSAID[function]:
            raise TypeError("flp.jax.%s has no option %s" % (function, option))
        is_usual = value is False or option == "grad_scale" and isinstance(value, float) and value == 1
        if not is_usual and _together.is_given(value):
            raise errors.UnsupportedError("flp.jax.%s has no %s: %s" % (function, option, UNSAID[function][option]))


def results_of(asked):
    """The results of a forward pass. asked: {option of RESULTS: whether it is wanted}"""
    return ("logprob", *(name for option, names in RESULTS.items() if asked.get(option) for name in names))


def values_of(fields, budget, operands, results, shard=None):
    """{result: array} of a forward pass, differentiable."""
    call = _call.Call(_c.PASS_FORWARD, (), results, tuple(fields.items()), budget)
    return dict(zip(results, _logprob(call, shard, varying_alike(operands, shard))))


def _packed(made, detached, kept_mass):
    """Results as a call returns them; gradients reach the log-probabilities, and the entropy unless it is detached."""
    fixed = {name: jax.lax.stop_gradient(value) for name, value in made.items()}
    packed = [made["logprob"]]
    if "entropy" in made:
        packed.append((fixed if detached else made)["entropy"])
    if TOP[0] in made:
        packed.append(Top(*(fixed[name] for name in TOP)))
    if "rank" in made:
        packed.append(made["rank"])
    if "statistics" in made:
        packed.append(statistics_of(fixed["statistics"]))
    if "whole" in made:
        packed.append(jnp.minimum(fixed["whole"] - fixed["logprob"], 0) if kept_mass else fixed["whole"])
    return tuple(packed) if packed[1:] else packed[0]


def statistics_of(values):
    """(..., 4) as Statistics"""
    *numbers, best = jnp.moveaxis(values, -1, 0)
    return Statistics(*numbers, best == 1)


# ---- shard_map

def varying_alike(operands, shard=None):
    """The operands, each varying over every axis of a shard_map that one of them varies over, but that of a Shard. What
    was the same on all devices, such as a head, gets the sum of the devices' gradients that way."""
    axes = {name: _shards.varying(array) for name, array in operands.items()}
    union = frozenset().union(*axes.values()) - {shard and shard.axis}
    return {name: jax.lax.pcast(array, tuple(union - axes[name]), to="varying") if union - axes[name] else array
            for name, array in operands.items()}


# ---- gradients

class Wanted:
    """Which operands need gradients: a node without leaves, so that it is static beside arrays."""

    def __init__(self, names):
        self.names = tuple(names)


jax.tree_util.register_pytree_node(Wanted, lambda wanted: ((), wanted.names), lambda names, _: Wanted(names))


def differentiated(operands):
    """The arrays of operands as a rule with symbolic zeros gets them, and the names of those that need gradients.
    error: ValueError naming what has none"""
    values = {name: operand.value for name, operand in operands.items()}
    perturbed = [name for name, operand in operands.items() if operand.perturbed]
    for name in perturbed:
        if name.endswith("temperature_rows"):
            refuse(ValueError, name.removesuffix("_rows"), "an array that is differentiated", "one that is not, as "
                   "gradients reach hidden, weight and bias only; jax.lax.stop_gradient makes it so")
    if "lora_a" in operands and "weight" in perturbed:
        refuse(ValueError, "weight", "an array that is differentiated",
               "with lora one that is not; jax.lax.stop_gradient makes it so")
    return values, tuple(name for name in DIFFERENTIABLE if name in perturbed)


def _logprob_backward(call, shard, kept, grads):
    operands, stats, wanted = kept
    upstream = {_call.GRAD + name: grad for name, grad in zip(call.results, grads) if _call.GRAD + name in _call.ARRAYS
                and not isinstance(grad, jax.custom_derivatives.SymbolicZero)}
    made = {}
    if wanted.names and upstream:
        call = call._replace(which=_c.PASS_BACKWARD, results=tuple(_call.GRAD + name for name in wanted.names),
                             numbers=tuple(pair for pair in call.numbers if pair[0] != "topk"))
        given = {**operands, "stats": stats, **upstream}
        made = _call.run(call, given) if shard is None else _shards.backward(shard, call, given)
    return ({name: made.get(_call.GRAD + name) for name in operands},)


def _forward(call, shard, operands):
    return _call.run(call, operands) if shard is None else _shards.forward(shard, call, operands)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _logprob(call, shard, operands):
    """operands: {name: array}, hidden first"""
    return tuple(_forward(call, shard, operands).values())


def _logprob_forward(call, shard, operands):
    values, names = differentiated(operands)
    made = _forward(call._replace(results=(*call.results, "stats")), shard, values)
    stats = made.pop("stats")
    return tuple(made.values()), (values, stats, Wanted(names))


_logprob.defvjp(_logprob_forward, _logprob_backward, symbolic_zeros=True)
