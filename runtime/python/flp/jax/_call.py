"""The primitive: one pass of libflp as XLA sees it, with its shapes, its lowering by platform and its batching.

Invariants: a Call is static and hashable, so that equal calls share a compilation; its names of operands and results
are what the handler reads (runtime/jax/call.c), and all sizes come from the operands. The workspace is a result that
only the lowering knows, as its size depends on the device.
"""
import collections
import ctypes
import functools

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy
from jax.interpreters import ad, batching, mlir

from .. import errors
from .._library import _c
from ._library import TARGET, workspace_bytes

DTYPES = {jnp.dtype(jnp.bfloat16): _c.DTYPE_BF16, jnp.dtype(jnp.float16): _c.DTYPE_FP16,
          jnp.dtype(jnp.float32): _c.DTYPE_FP32}
TARGET_DTYPES = {jnp.dtype(jnp.int32): _c.DTYPE_INT32, jnp.dtype(jnp.int64): _c.DTYPE_INT64}
ROWS = {"hidden", "target", "temperature_rows", "stats", "grad_logprob", "grad_entropy"}  # operands of one entry a row
GRADS = {"grad_hidden": _c.GRAD_HIDDEN, "grad_weight": _c.GRAD_WEIGHT, "grad_bias": _c.GRAD_BIAS}

# One pass: names of operands and results, in order; the numbers of flp_args and flp_spec; bytes of workspace, 0 for the
# default; flp_mixed.
Call = collections.namedtuple("Call", "which operands results temperature scale softcap ignore_index budget mixed")


def run(call, given):
    """Runs one pass: given {name: array} -> {name: array}, on the devices where the arrays are."""
    call = call._replace(operands=tuple(given))
    return dict(zip(call.results, primitive.bind(*given.values(), call=call)))


primitive = jax.extend.core.Primitive("flp_linear_logprob")
primitive.multiple_results = True


@functools.lru_cache(maxsize=1024)
def _compiled(call):
    return jax.jit(functools.partial(primitive.bind, call=call))


@primitive.def_impl
def _impl(*operands, call):
    with jax.disable_jit(False):
        return _compiled(call)(*operands)


@primitive.def_abstract_eval
def _abstract(*operands, call):
    known = dict(zip(call.operands, operands))
    hidden, weight = known["hidden"], known["weight"]
    shapes = {"stats": (hidden.shape[0], 4), "grad_hidden": hidden.shape, "grad_weight": weight.shape,
              "grad_bias": weight.shape[:1]}
    return [_array(hidden, shapes.get(name, hidden.shape[:1]), known[name[5:]].dtype if name in GRADS else jnp.float32)
            for name in call.results]


def _array(like, shape, dtype):
    """The type of a result: it varies over the axes of a shard_map as this operand does."""
    spec = jax.sharding.PartitionSpec(*[None] * len(shape))
    return like.update(shape=shape, dtype=jnp.dtype(dtype), weak_type=False,
                       sharding=jax.sharding.NamedSharding(like.sharding.mesh, spec))


# ---- lowering

def _spec_of(call, avals):
    """The flp_spec that the handler reads from the same call."""
    known = dict(zip(call.operands, avals))
    spec = _c.new_spec()
    spec.hidden_dtype, spec.weight_dtype = DTYPES[known["hidden"].dtype], DTYPES[known["weight"].dtype]
    spec.dtype = spec.weight_dtype if spec.hidden_dtype == _c.DTYPE_FP32 else spec.hidden_dtype
    spec.target_dtype, spec.mixed = TARGET_DTYPES[known["target"].dtype], call.mixed
    if "bias" in known:
        spec.bias_dtype = DTYPES[known["bias"].dtype]
    spec.vocab, spec.hidden = known["weight"].shape
    spec.entropy = _c.ENTROPY_FORWARD if "entropy" in call.results else _c.ENTROPY_NONE
    if "grad_entropy" in known:
        spec.entropy = _c.ENTROPY_BACKWARD
    spec.grads = sum(GRADS.get(name, 0) for name in call.results)
    spec.has_bias, spec.per_row_temperature = "bias" in known, "temperature_rows" in known
    spec.softcap = call.softcap
    return spec


def _host_devices():
    return [_c.DEVICE_HOST]


def _cuda_devices():
    """CUDA ordinals of this process. error: UnavailableError"""
    try:
        found = [device.local_hardware_id for device in jax.local_devices(backend="cuda")]
    except RuntimeError as error:
        raise errors.UnavailableError("flp.jax.linear_logprob is compiled for CUDA, but there is no such device here "
                                      "(%s); compile or export it where one is" % error) from error
    return found


def _lower(devices, ctx, *operands, call):
    n = dict(zip(call.operands, ctx.avals_in))["hidden"].shape[0]
    if not isinstance(n, int):
        raise errors.UnsupportedError("hidden has %s rows under jax.export (accepted: a number; export one program for "
                                      "each)" % n)
    spec = _spec_of(call, ctx.avals_in)
    size = max(workspace_bytes(ctypes.byref(spec), device, call.which, n, call.budget) for device in devices())
    workspace = jax.core.ShapedArray((size,), jnp.uint8)
    rule = jax.ffi.ffi_lowering(TARGET)
    results = rule(ctx.replace(avals_out=[*ctx.avals_out, workspace]), *operands,
                   operands=" ".join(call.operands), results=" ".join([*call.results, "workspace"]),
                   ignore_index=numpy.int64(call.ignore_index), scale=numpy.float32(call.scale),
                   mixed=numpy.int64(call.mixed), softcap=numpy.float32(call.softcap),
                   temperature=numpy.float32(call.temperature),
                   **{"pass": numpy.int64(call.which)})
    return list(results)[:-1]


mlir.register_lowering(primitive, functools.partial(_lower, _host_devices), platform="cpu")
mlir.register_lowering(primitive, functools.partial(_lower, _cuda_devices), platform="cuda")


# ---- transforms

def _jvp(*_, **__):
    raise errors.UnsupportedError("flp.jax.linear_logprob has no second derivative (accepted: one backward pass over "
                                  "it; forward mode, jvp, has no form of it)")


def _batched(operands, dims, *, call):
    """Under vmap rows are rows: one pass over all of them, where nothing is summed over the rows."""
    fixed = [name for name, dim in zip(call.operands, dims) if dim is not None and name not in ROWS]
    summed = [name for name in call.results if name in ("grad_weight", "grad_bias")]
    if fixed or summed:
        what = "a batch of %s" % fixed[0] if fixed else "the gradient of %s for each of a batch" % summed[0][5:]
        raise errors.UnsupportedError("flp.jax.linear_logprob under vmap is asked for %s (accepted: leading dimensions "
                                      "in the place of vmap: hidden (B, N, D), target (B, N))" % what)
    size = next(operand.shape[dim] for operand, dim in zip(operands, dims) if dim is not None)
    hidden, at = next((operand, dim) for name, operand, dim in zip(call.operands, operands, dims) if name == "hidden")
    rows = hidden.shape[1 if at == 0 else 0]
    flat = [operand if name not in ROWS else _flat(operand, dim, size)
            for name, operand, dim in zip(call.operands, operands, dims)]
    results = [result.reshape(size, rows, *result.shape[1:]) for result in primitive.bind(*flat, call=call)]
    return results, [0] * len(results)


def _flat(operand, dim, size):
    operand = jnp.broadcast_to(operand, (size, *operand.shape)) if dim is None else jnp.moveaxis(operand, dim, 0)
    return operand.reshape(-1, *operand.shape[2:])


ad.primitive_jvps[primitive] = _jvp
batching.primitive_batchers[primitive] = _batched
