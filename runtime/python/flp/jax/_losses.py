"""policy_loss and cross_entropy: losses and their gradients of JAX arrays, in one call.

Invariants: a loss is a program that libflp runs between the passes over the head (flp_step, stream mode), as it is for
torch; _rules.py has the names, weights and metrics of both. What is differentiated gets its gradient in the forward
pass, and the backward pass multiplies it by its upstream gradient in float32; until then those of 16-bit operands are
bfloat16, or of float16 float32.
"""
import collections
import functools

import jax
import jax.numpy as jnp

from .._library import _c, _numbers, _programs, _rules
from .._library._numbers import refuse, refuse_shape
from . import _call, _checks, _logprob

ARRAYS = _rules.Arrays(jnp.exp, jnp.expm1, jnp.where, lambda values, mask, number: jnp.where(
    mask, jnp.asarray(number, values.dtype), values), jax.lax.stop_gradient, lambda values: values.astype(float))
BEST = {"top_ids": "top_ids", "top_logprob": "top_logprobs", "top_rest": "top_rest", "rank": "rank"}  # as metrics
Made = collections.namedtuple("Made", "loss metrics logprob entropy")


def policy_loss(rule, hidden, weight, target, advantage=None, bias=None, *, old_logprob=None, ref_logprob=None,
                mask=None, clip=None, beta=0.0, kl_kind="k3", entropy_weight=0.0, entropy=False, length=None,
                total=None, average=None, parameters=None, vectors=None, temperature=1.0, softcap=None, scale=1.0,
                ignore_index=-100, budget=None, old_lse=None, tail=None, mixed=None, keep=None, lora=None, topk=0,
                rank=False, **unsaid):
    """Computes the loss of a policy update and its gradients from hidden states, without the (N,V) scores.

    Arguments are those of flp.policy_loss, arrays in the place of tensors: hidden (B, T, D), target (B, T), advantage
    (B) or (B, T), the others (B, T); keep, lora as of flp.jax.linear_logprob. tail bounds what the gradients leave out.
    Only hidden, weight, bias, lora.a and lora.b are differentiated.

    Returns (loss, metrics): a float32 scalar, and a dict of scalars without a gradient, as flp.policy_loss has them;
    with topk or rank a value a token. What is differentiated costs three matrix products with the loss (frozen head:
    two) when the loss is computed; gspo, which pools the log-probabilities of a sequence, costs what linear_logprob
    does. In shard_map over rows each device averages over its own, unless total and length say what to divide by.
    error:  ValueError or TypeError naming the field, its value and what is accepted; flp.FlpError and its classes; of a
            running program jax.errors.JaxRuntimeError with libflp's sentence
    thread: safe
    """
    _logprob.check_unsaid("policy_loss", unsaid)
    wishes = _rules.wishes_of(rule, average, clip, beta, kl_kind, entropy_weight, length, total, parameters,
                              ref_logprob is not None)
    asked = {"entropy": bool(entropy) or entropy_weight != 0, "topk": topk, "rank": rank}
    head = _Head(asked, hidden, weight, target, bias, temperature, softcap, scale, ignore_index, budget, mixed, keep,
                 lora, tail)
    if len(head.lead) != 2:
        refuse_shape("hidden", hidden, "(B, T, D)")
    given = {"old_logprob": old_logprob, "ref_logprob": ref_logprob, "old_lse": old_lse}
    given = {name: _checks.values_of(name, value, head.lead) for name, value in given.items()}
    advantage = _checks.values_of("advantage", advantage, head.lead[:1], (head.lead[0], 1), head.lead)
    given["advantage"] = advantage[:, None] if getattr(advantage, "ndim", 0) == 1 else advantage
    vectors = {name: _checks.values_of("vectors[%r]" % name, value, head.lead)
               for name, value in (vectors or {}).items()}
    _rules.needed(wishes, given, vectors)
    counts = head.counted(mask)
    if wishes.program is None:
        return _over_logprob(head, wishes, given, counts)
    return _over_rows(head, wishes, given, vectors, counts)


class _Head:
    """The operands and numbers of a call, checked, and the shape of its rows."""

    def __init__(self, asked, hidden, weight, target, bias, temperature, softcap, scale, ignore_index, budget, mixed,
                 keep, lora, tail=None):
        self.asked, self.budget = asked, _numbers.budget_of(budget)
        self.fields = _checks.numbers_of(temperature, softcap, scale, ignore_index, mixed)
        self.operands, self.lead, shape = _checks.operands_of(
            self.fields, hidden, weight, target, bias, temperature, None, keep, lora,
            {"topk": asked["topk"], "rank": asked["rank"], "mixed": mixed, "tail": tail})
        if shape != self.lead:
            refuse_shape("target", target, "%s, as hidden without its last dimension" % (self.lead,))
        self.tail = _numbers.tail_of(tail)

    def counted(self, mask=None):
        """Which rows count, (...) float32; the targets of all others are ignored from here on."""
        target, index = self.operands["target"].reshape(self.lead), self.fields["ignore_index"]
        counted = target != index
        if mask is not None:
            counted &= _checks.values_of("mask", mask, self.lead, kinds="fiub") != 0
        self.operands["target"] = jnp.where(counted, target, index).reshape(-1)
        return counted.astype(jnp.float32)

    def step(self, program, parameters, inputs):
        """The call of a step and its operands. inputs: what the loss reads of rows, by names of flp_args"""
        values = tuple(parameters.get(name, row[0]) for name, row in program.parameters.items())
        numbers = {**self.fields, "tail": self.tail, "loss": program.data, "loss_parameters": values or (0.0,)}
        if "entropy" in program.inputs:
            numbers["entropy"] = _c.ENTROPY_FORWARD
        results = ("loss", *(("metrics",) if program.metrics else ()), *_logprob.results_of(self.asked))
        inputs = {name: jax.lax.stop_gradient(values.reshape(-1)) for name, values in inputs.items()
                  if values is not None}
        operands = _logprob.varying_alike({**self.operands, **inputs})
        return _call.Call(_c.PASS_STEP, (), results, tuple(numbers.items()), self.budget), operands

    def best(self, made):
        """The best tokens and the rank of each token, as metrics."""
        return {BEST[name]: value.reshape(self.lead + value.shape[1:]) for name, value in made.items() if name in BEST}


# ---- policies

def _over_rows(head, wishes, given, vectors, counts):
    def rows(values):
        return None if values is None else jnp.broadcast_to(values, head.lead).reshape(-1)

    weights, of_entropy = _rules.row_weights(wishes, counts)
    if _rules.SHARE in wishes.program.vectors:
        vectors = {**vectors, _rules.SHARE: of_entropy}
    inputs = {name: rows(values) for name, values in {**given, "row_weight": weights}.items()}
    inputs.update(("vectors.%d" % place, rows(vectors[name])) for place, name in enumerate(wishes.program.vectors))
    value, made = _of_step(*head.step(wishes.program, wishes.parameters, inputs))
    found = _made_of(made)
    metrics = _rules.metrics_of(ARRAYS, found, found.entropy if head.asked["entropy"] else None,
                                jax.lax.stop_gradient(value), rows(weights), rows(of_entropy), rows(counts), wishes,
                                inputs["old_logprob"])
    return value, {**metrics, **head.best(made)}


def _over_logprob(head, wishes, given, counts):
    """Of a rule of whole sequences, whose log-probabilities are pooled."""
    if head.tail:
        refuse(ValueError, "tail", head.tail, "None with %s, whose gradients have a pass of their own" % wishes.rule)
    made = _logprob.values_of(head.fields, head.budget, head.operands, _logprob.results_of(head.asked))
    logprob, entropy = (made[name].reshape(head.lead) if name in made else None for name in ("logprob", "entropy"))

    def kept(values):
        return None if values is None else ARRAYS.fill(ARRAYS.wide(values), counts == 0, 0)

    old = logprob if given["old_logprob"] is None else given["old_logprob"]
    tokens = _rules.Tokens(ARRAYS.wide(counts), kept(logprob), kept(logprob) - jax.lax.stop_gradient(kept(old)),
                           ARRAYS.wide(given["advantage"]), kept(given["ref_logprob"]), kept(entropy))
    loss, metrics = _rules.loss_of(ARRAYS, tokens, wishes)
    metrics = {name: jax.lax.stop_gradient(value).astype(jnp.float32) for name, value in metrics.items()}
    return loss.astype(jnp.float32), {**metrics, **head.best(jax.lax.stop_gradient(made))}


# ---- cross entropy

def cross_entropy(hidden, weight, target, bias=None, *, label_smoothing=0.0, z_loss=0.0, reduction="mean",
                  row_weight=None, total=None, return_z_loss=False, temperature=1.0, softcap=None, scale=1.0,
                  ignore_index=-100, budget=None, keep=None, lora=None, mixed=None, entropy=False, statistics=False,
                  **unsaid):
    """Computes cross entropy and its gradients from hidden states, without the (N,V) scores.

    The loss and its arguments are those of flp.cross_entropy, arrays in the place of tensors; keep, lora as of
    flp.jax.linear_logprob. Returns a float32 scalar, or (...) with reduction "none"; with return_z_loss, entropy
    and statistics a tuple of it, the part that z_loss is, the entropies and flp.jax.Statistics, without a gradient.
    What is differentiated of a scalar costs three matrix products with the loss (frozen head: two) when the loss is
    computed; with "none" three more in the backward pass.
    error:  as policy_loss
    thread: safe
    """
    _logprob.check_unsaid("cross_entropy", unsaid)
    asked = {"entropy": entropy, "topk": 0, "rank": False, "statistics": statistics}
    head = _Head(asked, hidden, weight, target, bias, temperature, softcap,
                 scale, ignore_index, budget, mixed, keep, lora)
    wishes = _rules.smoothed_of(label_smoothing, z_loss, reduction)
    counts, each = head.counted().reshape(-1), _checks.values_of("row_weight", row_weight, head.lead)
    weights = _rules.reduced_weights(ARRAYS, counts, None if each is None else each.reshape(-1), total, reduction)
    step = _of_rows if reduction == "none" else _of_step
    value, made = step(*head.step(wishes.program, wishes.parameters, {"row_weight": weights}))
    z = _rules.z_losses(_made_of(made), wishes, weights)
    value, z = (value.reshape(head.lead), z.reshape(head.lead)) if reduction == "none" else (value, z.sum())
    results = (value, *((z,) if return_z_loss else ()))
    if entropy:
        results += (jax.lax.stop_gradient(made["entropy"]).reshape(head.lead),)
    if statistics:
        values = jax.lax.stop_gradient(made["statistics"]).reshape(*head.lead, 4)
        results += (_logprob.statistics_of(values),)
    return results if len(results) > 1 else value


# ---- a step, differentiable

def _made_of(made):
    """What a step reported of rows, without a gradient."""
    made = jax.lax.stop_gradient(made)
    return Made(made["loss"], made.get("metrics", ()), made["logprob"], made.get("entropy"))


def _with_gradients(call, names, values):
    """The step that gives the gradients of these operands too."""
    numbers = dict(call.numbers)
    if names:
        if "entropy" in _programs.read(numbers["loss"]).inputs:
            numbers["entropy"] = _c.ENTROPY_BACKWARD
        if jnp.float16 in (values["hidden"].dtype, values["weight"].dtype):
            numbers.update(_call.wide(names))
    results = (*call.results, *(_call.GRAD + name for name in names))
    return call._replace(results=results, numbers=tuple(numbers.items()))


def _times(grad, upstream, dtype):
    return (grad.astype(jnp.float32) * upstream).astype(dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _of_step(call, operands):
    """The sum of the losses of rows, and all that the step gives."""
    made = _call.run(call, operands)
    return made["loss"].sum(), made


def _of_step_forward(call, operands):
    values, names = _logprob.differentiated(operands)
    made = _call.run(_with_gradients(call, names, values), values)
    kept = {name: (made.pop(_call.GRAD + name), jnp.zeros((), values[name].dtype)) for name in names}
    return (made["loss"].sum(), made), {name: kept.get(name) for name in operands}


def _of_step_backward(call, kept, upstream):
    is_none = isinstance(upstream[0], jax.custom_derivatives.SymbolicZero)
    return ({name: None if pair is None or is_none else _times(pair[0], upstream[0], pair[1].dtype)
             for name, pair in kept.items()},)


_of_step.defvjp(_of_step_forward, _of_step_backward, symbolic_zeros=True)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _of_rows(call, operands):
    """The losses of rows, each with an upstream gradient of its own, and all that the step gives."""
    made = _call.run(call, operands)
    return made["loss"], made


def _of_rows_forward(call, operands):
    values, names = _logprob.differentiated(operands)
    return _of_rows(call, values), (values, _logprob.Wanted(names))


def _of_rows_backward(call, kept, upstream):
    """A step whose weights are the upstream gradients."""
    (values, wanted), made = kept, {}
    if wanted.names and not isinstance(upstream[0], jax.custom_derivatives.SymbolicZero):
        call = _with_gradients(call._replace(results=("loss",)), wanted.names, values)
        made = _call.run(call, {**values, "row_weight": values["row_weight"] * upstream[0]})
    return ({name: made[_call.GRAD + name].astype(value.dtype) if _call.GRAD + name in made else None
             for name, value in values.items()},)


_of_rows.defvjp(_of_rows_forward, _of_rows_backward, symbolic_zeros=True)
