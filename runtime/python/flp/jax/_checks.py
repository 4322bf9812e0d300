"""The operands and numbers of a call of JAX arrays, checked: as rows of _call.ARRAYS, two-dimensional.

Invariant: a failure names the field, its value and what is accepted.
"""
import numbers

import jax
import jax.numpy as jnp
import numpy

from .. import _c, _numbers, _together
from .._numbers import refuse
from . import _call

RANK_STEP = 8  # of an adapter, as libflp has it
TARGET_DTYPES = ", ".join(map(str, _call.TARGET_DTYPES))


def numbers_of(temperature, softcap, scale, ignore_index, mixed):
    """The fields that are numbers, checked; those of a temperature in an array are checked where they are."""
    softcap, scale = _numbers.softcap_of(softcap), _numbers.number_of("scale", scale)
    if not _is_array(temperature) and not isinstance(temperature, numbers.Real):
        refuse(TypeError, "temperature", "of type " + type(temperature).__name__, "a number, or an array of one a row")
    scalar = 1.0 if _is_array(temperature) else _numbers.float_of(temperature)
    _numbers.scales_of(scalar, softcap, scale)
    return {"temperature": scalar, "scale": scale, "softcap": softcap,
            "ignore_index": _numbers.integer_of("ignore_index", ignore_index), "mixed": _numbers.mixed_of(mixed)}


def operands_of(fields, hidden, weight, target, bias, temperature, rows, keep, lora, asked):
    """({name: array or None}, dimensions of rows, shape of target). asked: more options, which may not go with others;
    what they and operands settle goes into fields"""
    target, fields["ignore_index"] = _held(target, fields["ignore_index"])
    hidden, weight, target, bias = (_array_of(*pair) for pair in (
        ("hidden", hidden), ("weight", weight), ("target", target), ("bias", bias)))
    lead = _check_operands(hidden, weight, target, bias, fields["mixed"])
    is_sliced = fields["mixed"] == _c.MIXED_SPLIT or fields["mixed"] and weight.dtype != _product(hidden, weight)
    _together.check({**asked, "target": _together.several(target, hidden), "lora": lora, "keep": keep,
                     _together.SLICES: is_sliced})
    if all(array is None or array.dtype == hidden.dtype for array in (weight, bias)):
        fields["mixed"] = _c.MIXED_NONE
    if asked["topk"]:
        fields["topk"] = _numbers.within("topk", asked["topk"], 0, weight.shape[0])
    ids, lists = _lists(keep, _flat(target, lead))
    ids, rows = _rows(rows, ids, fields)
    return {"hidden": hidden.reshape(-1, hidden.shape[-1]), "weight": weight, "bias": bias, "target": ids,
            "temperature_rows": _temperature_rows(temperature, lead), "rows": rows, **lists,
            **_adapter(lora, hidden, weight, fields)}, lead, target.shape


def _is_array(value):
    return isinstance(value, (jax.Array, numpy.ndarray))


def _array_of(field, value):
    if value is None and field == "bias":
        return None
    if not _is_array(value):
        refuse(TypeError, field, "of type " + type(value).__name__, "a jax.Array or numpy.ndarray")
    return jnp.asarray(value)


def _is_wide(ids):
    """Whether JAX would wrap these ids."""
    return isinstance(ids, numpy.ndarray) and ids.dtype == numpy.int64 and not jax.config.jax_enable_x64


def _held(target, ignore_index):
    """The target and ignore_index, in int32 where JAX would wrap numpy's int64: ids beyond it become bad ones."""
    if not _is_wide(target):
        return target, ignore_index
    most = _numbers.INT32_MAX
    own = ignore_index if -most <= ignore_index <= most else -most
    bad = -1 if own != -1 else -2
    is_kept = (target >= -most) & (target <= most) & (target != own)
    return numpy.where(target == ignore_index, own, numpy.where(is_kept, target, bad)).astype(numpy.int32), own


def _ids_of(field, ids):
    """One dimension of ids; those beyond int32 become -1, a bad one, where JAX would wrap them."""
    if _is_wide(ids):
        ids = numpy.where((ids < 0) | (ids > _numbers.INT32_MAX), -1, ids).astype(numpy.int32)
    ids = _array_of(field, ids)
    if ids.dtype not in _call.TARGET_DTYPES:
        refuse(TypeError, field, "of dtype %s" % ids.dtype, TARGET_DTYPES)
    if ids.ndim != 1:
        refuse(ValueError, field, "of shape %s" % (ids.shape,), "one dimension")
    return ids


def _check_dtypes(hidden, weight, bias, mixed):
    """One dtype, or with mixed float32 and one of 16 bits, which products have."""
    def differ(field, array, accepted):
        refuse(TypeError, field, "of dtype %s while hidden is of dtype %s" % (array.dtype, hidden.dtype), accepted)

    if weight.dtype != hidden.dtype:
        pair = {hidden.dtype, weight.dtype}
        if not mixed or jnp.dtype(jnp.float32) not in pair or not pair <= set(_call.DTYPES):
            differ("weight", weight, 'one dtype for both, or mixed="round" or "split" with float32 beside bfloat16 or '
                   'float16')
    product = _product(hidden, weight)
    if bias is not None and bias.dtype != product and not (mixed == _c.MIXED_ROUND and bias.dtype == jnp.float32):
        differ("bias", bias, "%s, or float32 with mixed=\"round\"" % product)


def _product(hidden, weight):
    """The dtype of the products: of two the one of 16 bits."""
    return weight.dtype if hidden.dtype == jnp.float32 else hidden.dtype


def _check_operands(hidden, weight, target, bias, mixed):
    """Returns the dimensions of rows."""
    if hidden.dtype not in _call.DTYPES:
        refuse(TypeError, "hidden", "of dtype %s" % hidden.dtype, ", ".join(map(str, _call.DTYPES)))
    _check_dtypes(hidden, weight, bias, mixed)
    if hidden.ndim < 1:
        refuse(ValueError, "hidden", "of shape ()", "(..., D)")
    if weight.ndim != 2 or weight.shape[1] != hidden.shape[-1]:
        refuse(ValueError, "weight", "of shape %s" % (weight.shape,), "(V, %s), as hidden ends in %s"
               % (hidden.shape[-1], hidden.shape[-1]))
    if target.dtype not in _call.TARGET_DTYPES:
        refuse(TypeError, "target", "of dtype %s" % target.dtype, TARGET_DTYPES)
    lead, several = hidden.shape[:-1], target.ndim == hidden.ndim
    if (target.shape[:-1] if several else target.shape) != lead or several and target.shape[-1] == 0:
        refuse(ValueError, "target", "of shape %s" % (target.shape,), "%s, as hidden without its last dimension, or %s "
               "with K targets a row" % (lead, str((*lead, "K")).replace("'", "")))
    if bias is not None and bias.shape != weight.shape[:1]:
        refuse(ValueError, "bias", "of shape %s" % (bias.shape,), "(%s,), as weight has %s rows"
               % (weight.shape[0], weight.shape[0]))
    return lead


def _flat(target, lead):
    """(N), or (N,K) of several targets a row."""
    several = target.shape[len(lead):]
    return target.reshape(-1, *several) if several not in ((), (1,)) else target.reshape(-1)


def _adapter(lora, hidden, weight, fields):
    """The operands of an adapter, whose rank becomes a multiple of RANK_STEP; its scale goes into fields."""
    if lora is None:
        return {}
    if not isinstance(lora, tuple) or len(lora) != 3:
        refuse(TypeError, "lora", "of type " + type(lora).__name__, "a flp.jax.Lora(a, b, scale), or None")
    a, b = map(_array_of, ("lora.a", "lora.b"), lora[:2])
    fields["lora_scale"] = _numbers.number_of("lora.scale", lora[2])
    rank = a.shape[0] if a.ndim == 2 else 0
    for field, array, shape in (("lora.a", a, (rank, hidden.shape[-1])), ("lora.b", b, (weight.shape[0], rank))):
        if array.dtype != hidden.dtype:
            refuse(TypeError, field, "of dtype %s" % array.dtype, "hidden's dtype, %s" % hidden.dtype)
        if array.shape != shape or rank == 0:
            refuse(ValueError, field, "of shape %s" % (array.shape,), "a (r, %d), b (%d, r)"
                   % (hidden.shape[-1], weight.shape[0]))
    more = -rank % RANK_STEP
    return {"lora_a": jnp.pad(a, ((0, more), (0, 0))), "lora_b": jnp.pad(b, ((0, 0), (0, more)))}


def _lists(keep, target):
    """The targets of the dtype of the lists, and the operands of the lists."""
    if keep is None:
        return target, {}
    if not isinstance(keep, (tuple, list)) or len(keep) != 2:
        refuse(TypeError, "keep", "of type " + type(keep).__name__, "a pair of arrays, (offsets, token_ids)")
    n = target.shape[0]
    offsets, ids = map(_ids_of, ("keep[0] (offsets)", "keep[1] (token_ids)"), keep)
    if offsets.shape != (n + 1,):
        refuse(ValueError, "keep[0] (offsets)", "of shape %s" % (offsets.shape,),
               "(%d,), one more than there are targets" % (n + 1))
    wide = jnp.promote_types(target.dtype, ids.dtype)
    return target.astype(wide), {"list_offsets": offsets if n else offsets[:0], "list_ids": ids.astype(wide)}


def _rows(rows, target, fields):
    """The targets, and the only rows to compute; where there are none, all targets are ignored."""
    if rows is None:
        return target, None
    rows = _ids_of("rows", numpy.asarray(rows, numpy.int64) if isinstance(rows, (list, tuple)) else rows)
    if rows.size == 0:
        fields["ignore_index"] = -1
        return jnp.full_like(target, -1), None
    return target, jnp.clip(rows, -1, _numbers.INT32_MAX).astype(jnp.int32)


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
