"""divergence: how far a student's distribution is from a teacher's, of JAX arrays, both given by hidden states and a
head. The teacher is a constant; _diverge.py makes values and gradients."""
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy

from .._library import _c, _divergences, _numbers, _plans
from .._library._numbers import refuse, refuse_dtype, refuse_shape, refuse_type
from . import _call, _checks, _diverge, _logprob


class Divergence(NamedTuple):
    """What flp.jax.divergence gives of each row, as flp.Divergence has it: (...) each."""
    value: jax.Array
    lse: jax.Array
    teacher_lse: jax.Array
    entropy: jax.Array
    acceptance: jax.Array
    agrees: jax.Array


def divergence(hidden, weight, teacher_hidden, teacher_weight, kind="reverse_kl", bias=None, teacher_bias=None, *,
               teacher_ids=None, renormalise=False, mask=None, parameters=None, temperature=1.0,
               teacher_temperature=None, softcap=None, teacher_softcap=None, scale=1.0, teacher_scale=1.0, budget=None,
               **unsaid):
    """Computes the divergence of each token's distributions under two heads over the same vocabulary, without their
    (N,V) scores: flp.divergence, which has the formulas, of JAX arrays.

    hidden           (..., D) bfloat16, float16 or float32; D a multiple of 8
    weight           (V, D) of the same dtype; bias (V) of the same dtype, or None
    teacher_hidden   (..., E) of as many rows, of any of these dtypes; E a multiple of 8
    teacher_weight   (V, E) of teacher_hidden's dtype; may be weight itself. teacher_bias (V) of it, or None
    kind, parameters as of flp.divergence: a built-in name and its numbers, or the path of a loss over targets, *.lua
    teacher_ids, renormalise
                     as of flp.divergence: (V) int32 or int64, the row of teacher_weight (U, E) that is each token of
                     the student, each once, or None. Where jit traces the ids nothing checks them, and one outside of
                     U makes every row NaN
    mask             (...) bool or numbers 0 and 1: the rows that count; None: all. Others give 0 and cost no work,
                     whatever they hold
    temperature, teacher_temperature
                     a number above 0, or an array () or of one a row (...); not differentiable. The teacher's None: the
                     same
    softcap, scale   as in flp.jax.linear_logprob, of the student; teacher_softcap, teacher_scale of the teacher
    budget           bytes, or "64M", of workspace in each pass; None: FLP_BUDGET, else that of a pass with gradients on
                     JAX's default device. A chunk of rows takes 8 bytes a row and token of V, with gradients 2 or 4
                     more, without renormalise 12 a token of U; a trained head of 16 bits 4 an element. What XLA copies
                     beside it, such as a 16-bit weight that the CPU widens, does not count; under vmap each of a batch
                     has a chunk

    Returns a Divergence: value, lse, teacher_lse and entropy float32 in nats, acceptance float32, agrees bool.
    Gradients of value reach hidden, weight and bias where they are differentiated, once; the teacher is a constant,
    even where it is the same head. The backward pass makes the scores again. jit, grad, vjp, checkpoint, scan, vmap and
    shard_map over rows take it. Rows whose temperature float32 does not hold above 0 are NaN, as are rows whose largest
    score of either head over T is beyond 7.4e8 or -inf. XLA makes the products, in float32 of operands as they are, and
    a kernel of flp, flp_diverge, or on the CPU its reference, all that is of scores; the gradient of scores is of the
    operands' dtype, of float16 times a power of two of the row. A row's bits depend on XLA's products, so on how many
    rows a chunk has. Numbers are constants of the compiled program.
    error:  ValueError or TypeError naming the field, its value and what is accepted; flp.FlpError and its classes; of a
            running program jax.errors.JaxRuntimeError with libflp's sentence
    thread: safe
    source: as flp.divergence
    """
    _logprob.check_unsaid("divergence", unsaid)
    own = _divergences.kind_of(kind)
    given = _divergences.given_of(kind, own, parameters or {})
    student, operands, lead = _head(hidden, weight, bias, temperature, softcap, scale)
    temperature = temperature if teacher_temperature is None else teacher_temperature
    ids = _ids_of(teacher_ids, renormalise, kind, operands["weight"], teacher_weight)
    if ids is not None and renormalise:
        teacher_weight, teacher_bias = (
            None if each is None else _diverge._taken(_checks._array_of(_diverge.TEACHER + name, each), ids, jnp.nan)
            for name, each in (("weight", teacher_weight), ("bias", teacher_bias)))
        ids = None
    with _numbers.renaming(lambda name: _diverge.TEACHER + name):
        teacher, others, _ = _head(teacher_hidden, teacher_weight, teacher_bias, temperature, teacher_softcap,
                                   teacher_scale, lead)
    _check_sizes(operands, others, ids)
    if ids is not None:
        operands[_diverge.IDS] = ids
    operands.update((_diverge.TEACHER + name, jax.lax.stop_gradient(array) if name != "temperature_rows" else array)
                    for name, array in others.items())
    if mask is not None:
        operands["mask"] = (_checks.values_of("mask", mask, lead, kinds="fiub") != 0).reshape(-1)
    call = _diverge.Call(own.program.data, tuple(_divergences.numbers_of(own.program, given)) or (0.0,),
                         _divergences.bounds_of(kind), student, teacher, _budget_of(budget))
    value, made = _diverge.values_of(call, _logprob.varying_alike(operands))
    made = jax.lax.stop_gradient(made)
    found = value, *(made[:, place] for place in range(1, _divergences.VALUES - 1)), made[:, -1] == 1
    return Divergence(*(values.reshape(lead) for values in found))


def _head(hidden, weight, bias, temperature, softcap, scale, lead=None):
    """-> a _diverge.Head, its operands, flattened, and the shape of its rows. lead: that of the student's, or None"""
    fields = {**_checks.numbers_of(temperature, softcap, scale, -100, None), "mixed": None}
    shape = getattr(hidden, "shape", ())[:-1]
    if lead is not None and _checks._is_array(hidden) and shape != lead:
        rows = ", ".join(map(str, (*lead, "E")))
        refuse_shape("hidden", hidden, "(%s), as hidden is (..., D)" % rows)
    every = jnp.zeros([_call.known(size) for size in shape], jnp.int32)
    operands, lead, _ = _checks.operands_of(fields, hidden, weight, every, bias, temperature, None, None, None,
                                            {"topk": 0})
    del operands["target"]
    unit = (fields["softcap"] or fields["scale"]) / fields["temperature"]
    return _diverge.Head(unit, fields["scale"] / fields["softcap"] if fields["softcap"] else None), operands, lead


def _check_sizes(operands, others, ids):
    for field, each in (("hidden", operands["hidden"]), (_diverge.TEACHER + "hidden", others["hidden"])):
        if each.shape[-1] % 8 or not each.shape[-1]:
            refuse_shape(field, each, "(..., D), D a multiple of 8")
    vocab = len(operands["weight"])
    if vocab < 2:
        refuse_shape("weight", operands["weight"], "(V, D), V at least 2")
    if ids is None and len(others["weight"]) != vocab:
        refuse_shape("teacher_weight", others["weight"], "(%d, E), as weight has %d rows, or teacher_ids" %
                     (vocab, vocab))


def _ids_of(ids, renormalise, kind, weight, teacher_weight):
    """teacher_ids, checked, of which those outside of the teacher's tokens are beyond the last; or None."""
    if not isinstance(renormalise, bool):
        refuse_type("renormalise", renormalise, "True or False")
    if ids is None:
        if renormalise:
            refuse(ValueError, "renormalise", True, "False without teacher_ids")
        return None
    if not renormalise and kind in _divergences.WITHOUT_REST:
        refuse(ValueError, "renormalise", renormalise, "True with %s, which is infinite where the student lacks a "
               "token" % kind)
    if not renormalise and kind not in _divergences.OPTIONS:
        refuse(ValueError, "renormalise", renormalise, "True with a kind of a file")
    ids = _checks._array_of("teacher_ids", ids)
    if ids.dtype not in _call.TARGET_DTYPES:
        refuse_dtype("teacher_ids", ids, ", ".join(map(str, _call.TARGET_DTYPES)))
    if ids.shape != weight.shape[:1]:
        refuse_shape("teacher_ids", ids, "(%d,), as weight has %d rows" % (len(weight), len(weight)))
    rows = _checks._array_of("teacher_weight", teacher_weight)
    if not isinstance(ids, jax.core.Tracer):
        _check_ids(numpy.asarray(ids), len(rows))
    return jnp.where(ids < 0, len(rows), ids)


def _check_ids(ids, count):
    different = len(numpy.unique(ids))
    if ids.min() < 0 or ids.max() >= count or different < len(ids):
        refuse(ValueError, "teacher_ids", "%d to %d, %d of them different" % (ids.min(), ids.max(), different),
               "rows of teacher_weight, 0 to %d, each once" % (count - 1))


def _budget_of(budget):
    """Bytes of workspace; of None those of JAX's default device."""
    device = _c.DEVICE_HOST if jax.default_backend() == "cpu" else 0
    return _numbers.budget_of(budget) or _plans.in_force(device).budgets[_c.PASS_STEP]
