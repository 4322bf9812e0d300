"""The operands and numbers of a call of JAX arrays, checked: as rows of _call.ARRAYS, two-dimensional.

Invariant: a failure names the field as the caller does, its value and what is accepted.
"""
import math
import numbers

import jax
import jax.numpy as jnp
import numpy

from .._library import _c, _fields, _numbers, _together
from .._library._numbers import refuse, refuse_dtype, refuse_shape, refuse_type
from . import _call

RANK_STEP = 8  # of an adapter, as libflp has it
CALLED = {"temperature_rows": "temperature", "list_offsets": "keep[0] (offsets)", "list_ids": "keep[1] (token_ids)",
          "lora_a": "lora.a", "lora_b": "lora.b"}
COUNTS = "IDS", "ROWS"  # dimensions that may be 0


def numbers_of(temperature, softcap, scale, ignore_index, mixed):
    """The fields that are numbers, checked; those of a temperature in an array are checked where they are."""
    softcap, scale = _numbers.softcap_of(softcap), _numbers.number_of("scale", scale)
    if not _is_array(temperature) and not isinstance(temperature, numbers.Real):
        refuse_type("temperature", temperature, "a number, or an array of one a row")
    scalar = 1.0 if _is_array(temperature) else _numbers.float_of(temperature)
    _numbers.scales_of(scalar, softcap, scale)
    return {"temperature": scalar, "scale": scale, "softcap": softcap,
            "ignore_index": _numbers.integer_of("ignore_index", ignore_index), "mixed": _numbers.mixed_of(mixed)}


def operands_of(fields, hidden, weight, target, bias, temperature, rows, keep, lora, asked):
    """({name: array}, dimensions of rows, shape of target). asked: more options, which may not go with others; what
    they and operands settle goes into fields"""
    target, fields["ignore_index"] = _held(target, fields["ignore_index"])
    offsets, ids = _parts("keep", keep, "a pair of arrays, (offsets, token_ids)", 2)
    a, b, scale = _parts("lora", lora, "a flp.jax.Lora(a, b, scale), or None", 3)
    given = {"hidden": hidden, "weight": weight, "target": target, "bias": bias, "lora_a": a, "lora_b": b,
             "temperature_rows": temperature if _is_array(temperature) else None, "rows": rows, "list_offsets": offsets,
             "list_ids": ids}
    arrays = {name: _array_of(name, value) for name, value in given.items()
              if value is not None or name in ("hidden", "weight", "target")}
    lead = _check_shapes(arrays)
    mixed = fields["mixed"] = _check_dtypes(arrays, fields["mixed"])
    shape, product = arrays["target"].shape, _product(arrays)
    _together.check({**asked, "target": _together.several(arrays["target"], arrays["hidden"]), "lora": lora,
                     "keep": keep, _together.SLICES: mixed == _c.MIXED_SPLIT or arrays["weight"].dtype != product})
    if asked["topk"]:
        most = _numbers.VOCAB_MAX if asked.get("axis_name") else arrays["weight"].shape[0]
        fields["topk"] = _numbers.within("topk", asked["topk"], 0, most)
    if lora is not None:
        fields["lora_scale"] = _numbers.number_of("lora.scale", scale)
    return _settled({name: _flat(name, array, lead) for name, array in arrays.items()}, fields), lead, shape


def _parts(option, value, accepted, count):
    if value is None:
        return (None,) * count
    if not isinstance(value, (tuple, list)) or len(value) != count:
        refuse_type(option, value, accepted)
    return value


def _is_array(value):
    return isinstance(value, (jax.Array, numpy.ndarray))


def _array_of(name, value):
    """An array that JAX takes as it is: no integer of numpy is wrapped, as a bad id becomes -1."""
    if name == "rows" and isinstance(value, (tuple, list)):
        value = numpy.asarray(value, numpy.int64)
    if not _is_array(value):
        refuse_type(CALLED.get(name, name), value, "a jax.Array or numpy.ndarray")
    if isinstance(value, numpy.ndarray) and value.dtype.kind in "iu" and name == "temperature_rows":
        value = value.astype(numpy.float32)
    if _is_wide(value):
        value = numpy.where((value < 0) | (value > _numbers.INT32_MAX), -1, value).astype(numpy.int32)
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


def values_of(field, value, *shapes, kinds="f"):
    """Numbers of rows as float32 without a gradient; None stays. shapes: those accepted; kinds: of dtypes"""
    if value is None:
        return None
    array = _array_of(field, value)
    if array.dtype.kind not in kinds and array.dtype not in _call.DTYPES:
        refuse_dtype(field, array, "a floating-point dtype")
    if array.shape not in shapes:
        refuse_shape(field, array, " or ".join(map(str, shapes)))
    return jax.lax.stop_gradient(array).astype(jnp.float32)


# ---- shapes and dtypes, by the rows

def _check_shapes(arrays):
    """The dimensions of rows. What first has a size settles it; K may be left out, and a temperature may be one."""
    lead, sizes = arrays["hidden"].shape[:-1], {}
    if arrays["hidden"].ndim < 1:
        refuse(ValueError, "hidden", "of shape ()", "(..., D)")
    sizes["OFFSETS"] = math.prod(lead) + 1
    for name, array in arrays.items():
        letters = [size for size in _call.ARRAYS[name].dims if size != "ONE"]
        is_of_rows = letters[0] == "N"
        own = [sizes.get(size, size) for size in letters[is_of_rows:]]
        accepted = [(*(lead if is_of_rows else ()), *own)]
        if own == ["K"]:
            accepted.insert(0, lead)
        if name == "temperature_rows":
            accepted.insert(0, ())
        if not any(_fits(array.shape, shape) for shape in accepted):
            refuse_shape(CALLED.get(name, name), array, " or ".join(str(shape).replace("'", "") for shape in accepted))
        sizes.update(zip(letters[is_of_rows:], array.shape[len(lead) if is_of_rows else 0:]))
    return lead


def _fits(shape, wanted):
    """wanted: sizes, and letters of those that may be any; 0 of lists and rows alone"""
    return len(shape) == len(wanted) and all(
        size == other or isinstance(other, str) and (size or other in COUNTS) for size, other in zip(shape, wanted))


def _product(arrays):
    """The dtype of the products: of two the one of 16 bits."""
    hidden, weight = arrays["hidden"].dtype, arrays["weight"].dtype
    return weight if hidden == jnp.float32 else hidden


def _check_dtypes(arrays, mixed):
    """flp_mixed, none where all operands have one dtype; else float32 and one of 16 bits, which products have. mixed:
    None of a call that takes one dtype alone"""
    operands = {}
    for name, array in arrays.items():
        held = _fields.ELEMENTS[_call.ARRAYS[name].element]
        if held == _c.DTYPE_FP32:
            accepted = [array.dtype] if array.dtype.kind in "iuf" or array.dtype in _call.DTYPES else ["a real dtype"]
        elif held in ("target_dtype", _c.DTYPE_INT32, _c.DTYPE_INT64):
            accepted = _call.TARGET_DTYPES
        else:
            accepted, operands[name] = _call.DTYPES, array.dtype
        if array.dtype not in accepted:
            refuse_dtype(CALLED.get(name, name), array, ", ".join(map(str, accepted)))
    return _check_operands(operands, _product(arrays), mixed)


def _check_operands(dtypes, product, mixed):
    hidden, narrow = dtypes["hidden"], {jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.float16)}
    for name, dtype in dtypes.items():
        accepted = str(product)
        if mixed is None and dtype != hidden:
            refuse(TypeError, name, "of dtype %s while hidden is of dtype %s" % (dtype, hidden), "one dtype for both")
        if name == "weight" and dtype != hidden:
            is_one = mixed and product in narrow and jnp.float32 in (dtype, hidden)
            accepted = 'one dtype for both, or mixed="round" or "split" with float32 beside bfloat16 or float16'
        elif name == "bias":
            is_one = dtype == product or mixed == _c.MIXED_ROUND and dtype == jnp.float32
            accepted += ', or float32 with mixed="round"'
        else:
            is_one = dtype == product or name == "hidden"
        if not is_one:
            refuse(TypeError, CALLED.get(name, name), "of dtype %s while hidden is of dtype %s" % (dtype, hidden),
                   accepted)
    return mixed if set(dtypes.values()) != {hidden} else _c.MIXED_NONE


# ---- as libflp takes them

def _flat(name, array, lead):
    """(N), or (N, ...): one dimension of rows; a single target is none."""
    if name == "temperature_rows":
        array = jnp.broadcast_to(array.astype(jnp.float32), lead)
    if _call.ARRAYS[name].dims[0] != "N":
        return array
    rest = array.shape[len(lead):]
    return array.reshape(-1, *(rest if rest != (1,) else ()))


def _settled(arrays, fields):
    """Ids of one dtype; a rank that is a multiple of RANK_STEP; where no row is to be computed, all targets ignored."""
    if "list_ids" in arrays:
        wide = jnp.promote_types(arrays["target"].dtype, arrays["list_ids"].dtype)
        arrays.update({name: arrays[name].astype(wide) for name in ("target", "list_ids")})
        arrays["list_offsets"] = arrays["list_offsets"][:0 if arrays["target"].size == 0 else None]
    if "lora_a" in arrays:
        more = -arrays["lora_a"].shape[0] % RANK_STEP
        arrays["lora_a"] = jnp.pad(arrays["lora_a"], ((0, more), (0, 0)))
        arrays["lora_b"] = jnp.pad(arrays["lora_b"], ((0, 0), (0, more)))
    if "rows" in arrays:
        arrays["rows"] = jnp.clip(arrays["rows"], -1, _numbers.INT32_MAX).astype(jnp.int32)
        if arrays["rows"].size == 0:
            fields["ignore_index"] = -1
            arrays["target"] = jnp.full_like(arrays["target"], -1)
            del arrays["rows"]
    return arrays
