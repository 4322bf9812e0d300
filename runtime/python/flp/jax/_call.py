"""The primitive: one pass of libflp as XLA sees it, with its shapes, its lowering by platform and its batching.

Invariants: a Call is static and hashable, so that equal calls share a compilation; arrays have the names, dimensions
and dtypes of the rows of _fields.ARRAYS, and all sizes come from the operands. The workspace is a result that only the
lowering knows, as its size depends on the device.
"""
import collections
import ctypes
import functools

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo
from jax.interpreters import ad, batching, mlir

from .. import errors
from .._library import _c, _fields, _programs
from ._library import TARGET, workspace_bytes

DTYPES = {jnp.dtype(jnp.bfloat16): _c.DTYPE_BF16, jnp.dtype(jnp.float16): _c.DTYPE_FP16,
          jnp.dtype(jnp.float32): _c.DTYPE_FP32}
TARGET_DTYPES = {jnp.dtype(jnp.int32): _c.DTYPE_INT32, jnp.dtype(jnp.int64): _c.DTYPE_INT64}
JAX_DTYPES = {code: dtype for dtype, code in {**DTYPES, **TARGET_DTYPES}.items()}
FIELDS = {name: kind for name, kind, _ in (*_fields.ARGS, *_fields.SPEC)}  # and their types
SPEC = {name for name, _, _ in _fields.SPEC}
Array = collections.namedtuple("Array", "dims element asked")
ARRAYS = {name: Array((rows, columns), element, asked) for name, rows, columns, element, asked in _fields.ARRAYS}
# Vectors of a loss have one row for all, and names with their places: vectors.0, vectors.1 ...
ARRAYS.update({"vectors.%d" % place: ARRAYS["vectors"] for place in range(_c.VECTORS_MAX)})
OF_ROWS = {name for name, array in ARRAYS.items() if array.dims[0] == "N"}
GRAD = "grad_"  # the name of a gradient is that of its operand behind this

# One pass: names of operands and results, in order; the fields of flp_spec and flp_args that no array says, as pairs, a
# loss as its bytes and a tuple of its parameters; bytes of workspace, 0 for the default.
Call = collections.namedtuple("Call", "which operands results numbers budget")


def wide(names):
    """The numbers of a pass whose gradients of these operands are float32, those of both parts of an adapter as one."""
    return {_fields.ELEMENTS[ARRAYS[GRAD + name].element]: _c.DTYPE_FP32 for name in names}


def run(call, given):
    """Runs one pass: given {name: array or None} -> {name: array}, on the devices where the arrays are."""
    given = {name: array for name, array in given.items() if array is not None}
    call = call._replace(operands=tuple(given))
    return dict(zip(call.results, primitive.bind(*given.values(), call=call)))


primitive = jax.extend.core.Primitive("flp_linear_logprob")
primitive.multiple_results = True


@functools.lru_cache(maxsize=1024)
def _compiled(of, call):
    return jax.jit(functools.partial(of.bind, call=call))


def compile_always(of):
    """Without jit a primitive runs as a program of its own."""
    @of.def_impl
    def _(*operands, call):
        with jax.disable_jit(False):
            return _compiled(of, call)(*operands)


compile_always(primitive)


@primitive.def_abstract_eval
def _abstract(*operands, call):
    known = dict(zip(call.operands, operands))
    numbers = dict(call.numbers)
    sizes = {"FOUR": 4, "T": numbers.get(_fields.SIZES["T"])}
    if "loss" in numbers:
        sizes["METRICS"] = len(_programs.read(numbers["loss"]).metrics)
    for name, operand in known.items():
        sizes.update(zip(ARRAYS[name].dims, operand.shape))
    sizes.pop("ONE", None)

    def dtype_of(name):
        held = _fields.ELEMENTS[ARRAYS[name].element]
        held = numbers.get(held, held)
        return JAX_DTYPES[held] if held in JAX_DTYPES else known.get(name[len(GRAD):], known["target"]).dtype

    return [_array(operands[0], tuple(sizes[size] for size in ARRAYS[name].dims if size in sizes), dtype_of(name))
            for name in call.results]


def _array(like, shape, dtype):
    """The type of a result: it varies over the axes of a shard_map as this operand does."""
    spec = jax.sharding.PartitionSpec(*[None] * len(shape))
    return like.update(shape=shape, dtype=jnp.dtype(dtype), weak_type=False,
                       sharding=jax.sharding.NamedSharding(like.sharding.mesh, spec))


# ---- lowering

def _fields_of(call, arrays):
    """The fields of flp_spec and flp_args of a call, {field: number}. arrays: {name: its type} of a pass"""
    fields = {"pass": call.which, **dict(call.numbers)}
    for name, array in arrays.items():
        dims, element, asked = ARRAYS[name]
        fields.update((_fields.SIZES[size], count) for size, count in zip(dims, array.shape) if size in _fields.SIZES)
        held = _fields.ELEMENTS[element]
        if held in FIELDS:
            fields[held] = DTYPES.get(array.dtype) or TARGET_DTYPES[array.dtype]
        if asked:
            fields.setdefault(asked, 1)
    # of two dtypes products have the one of 16 bits; whether there may be two the library judges
    both = fields["hidden_dtype"], fields["weight_dtype"]  # which a pass without operands has among its numbers
    fields["dtype"] = both[both[0] == _c.DTYPE_FP32]
    fields["grads"] = sum(getattr(_c, name.upper()) for name in call.results if name.startswith(GRAD))
    if "entropy" in call.results:
        fields.setdefault("entropy", _c.ENTROPY_FORWARD)
    if "grad_entropy" in call.operands:
        fields["entropy"] = _c.ENTROPY_BACKWARD
    return fields


def _spec_of(fields):
    spec = _c.new_spec()
    for name in SPEC & fields.keys() - {"loss"}:
        setattr(spec, name, fields[name])
    if "loss" in fields:
        spec.loss, spec.loss_bytes = ctypes.cast(fields["loss"], ctypes.c_void_p), len(fields["loss"])
    return spec


def _attribute(name, value):
    """A field as the handler takes it."""
    if name == "loss":
        return numpy.frombuffer(value, numpy.uint8)
    if name == "loss_parameters":
        return numpy.asarray(value, numpy.float64)
    return (numpy.float32 if FIELDS[name] is ctypes.c_float else numpy.int64)(value)


def _host_devices():
    return [_c.DEVICE_HOST]


def _cuda_devices():
    """CUDA ordinals of this process. error: UnavailableError"""
    try:
        found = [device.local_hardware_id for device in jax.local_devices(backend="cuda")]
    except RuntimeError as error:
        raise errors.UnavailableError("a program of flp.jax is compiled for CUDA, but there is no such device here "
                                      "(%s); compile or export it where one is" % error) from error
    return found


def known(n):
    """Rows whose number a program has. error: UnsupportedError"""
    if not isinstance(n, int):
        raise errors.UnsupportedError("hidden has %s rows under jax.export (accepted: a number; export one program for "
                                      "each)" % n)
    return n


def _lower(devices, ctx, *operands, call):
    n = known(dict(zip(call.operands, ctx.avals_in))["target"].shape[0])
    operands, avals = zip(*map(_held, call.operands, operands, ctx.avals_in))
    arrays = dict(zip((*call.operands, *call.results), (*avals, *ctx.avals_out)))
    fields = _fields_of(call, arrays)
    spec, count = ctypes.byref(_spec_of(fields)), fields.get(_fields.SIZES["IDS"], 0)
    size = max(workspace_bytes(spec, device, call.which, n, count, call.budget) for device in devices())
    fields[_fields.SIZES["WORKSPACE"]] = size
    workspace = jax.core.ShapedArray((size,), jnp.uint8)
    rule = jax.ffi.ffi_lowering(TARGET)
    results = rule(ctx.replace(avals_in=avals, avals_out=[*ctx.avals_out, workspace]), *operands,
                   operands=" ".join(name.partition(".")[0] for name in call.operands),
                   results=" ".join([*call.results, "workspace"]),
                   **{name: _attribute(name, value) for name, value in fields.items()})
    return list(results)[:-1]


def _held(name, operand, aval):
    """An operand in the dtype of its row, and its type: JAX may have no integers of 64 bits."""
    dtype = JAX_DTYPES.get(_fields.ELEMENTS[ARRAYS[name].element], aval.dtype)
    if aval.dtype == dtype:
        return operand, aval
    kind = ir.RankedTensorType.get(aval.shape, mlir.dtype_to_ir_type(dtype))
    return stablehlo.convert(kind, operand), jax.core.ShapedArray(aval.shape, dtype)


mlir.register_lowering(primitive, functools.partial(_lower, _host_devices), platform="cpu")
mlir.register_lowering(primitive, functools.partial(_lower, _cuda_devices), platform="cuda")


# ---- transforms

def _jvp(*_, **__):
    raise errors.UnsupportedError("flp.jax.linear_logprob has no second derivative (accepted: one backward pass over "
                                  "it; forward mode, jvp, has no form of it)")


def _batched(operands, dims, *, call):
    """Under vmap rows are rows: one pass over all of them, where nothing is summed over the rows."""
    fixed = [name for name, dim in zip(call.operands, dims) if dim is not None and name not in OF_ROWS]
    summed = [name for name in call.results if name not in OF_ROWS]
    counted = [name for name in call.operands if ARRAYS[name].dims[0] in ("OFFSETS", "ROWS")]
    if fixed or summed or counted:
        what = ("%s, which is of all rows" % counted[0] if counted else "a batch of %s" % fixed[0] if fixed else
                "%s for each of a batch" % summed[0].replace(GRAD, "the gradient of "))
        raise errors.UnsupportedError("flp.jax.linear_logprob under vmap is asked for %s (accepted: leading dimensions "
                                      "in the place of vmap: hidden (B, N, D), target (B, N))" % what)
    size = next(operand.shape[dim] for operand, dim in zip(operands, dims) if dim is not None)
    flat = [_flat(operand, dim, size) if name in OF_ROWS else operand
            for name, operand, dim in zip(call.operands, operands, dims)]
    hidden, at = next((operand, dim) for name, operand, dim in zip(call.operands, operands, dims) if name == "hidden")
    rows = hidden.shape[1 if at == 0 else 0]
    results = primitive.bind(*flat, call=call)
    return [result.reshape(size, rows, *result.shape[1:]) for result in results], [0] * len(results)


def _flat(operand, dim, size):
    operand = jnp.broadcast_to(operand, (size, *operand.shape)) if dim is None else jnp.moveaxis(operand, dim, 0)
    return operand.reshape(-1, *operand.shape[2:])


ad.primitive_jvps[primitive] = _jvp
batching.primitive_batchers[primitive] = _batched
