"""Divergences of two heads in chunks of rows, of which XLA makes the products and flp_diverge all that is of scores.

The formulas are those of flp.divergence on kernels (_functions/_diverge.py). Tokens of the teacher that the student
lacks are one more column, of no share for the student. What is kept for the backward pass is the operands, so it makes
the scores again. Rows that count come first, and chunks end with them: no other row reaches a product.
"""
import collections
import ctypes
import functools

import jax
import jax.extend.core
import jax.numpy as jnp
from jax.interpreters import ad, batching, mlir

from .. import errors
from .._library import _c, _divergences, _numbers
from .._library._divergences import FP16_TOP, VALUES, VECTOR
from . import _call, _library, _logprob, _shards

NAMES = {"hidden": _c.GRAD_HIDDEN, "weight": _c.GRAD_WEIGHT, "bias": _c.GRAD_BIAS}
TEACHER = "teacher_"  # before names of its operands
IDS = "ids"  # the operand that says which of the teacher's tokens are the student's, where it has others

# Of one head: what raw scores are multiplied by, but for temperatures of rows, or with a softcap their tanh; what is
# within that tanh, or None.
Head = collections.namedtuple("Head", "unit cap_in")
# One call, static and hashable: a loss as its bytes, its numbers, what values are never below and never above; a Head
# each; bytes.
Call = collections.namedtuple("Call", "loss numbers bounds student teacher budget")


# ---- flp_diverge as a primitive: (n,V) scores of both, (n) units of both, (n) upstream or none -> values or dx

primitive = jax.extend.core.Primitive("flp_diverge")
_call.compile_always(primitive)
OPERANDS = "scores", "teacher", "scale_rows", "teacher_scale_rows", "upstream"
# One launch: a loss as its bytes, its numbers, the dtype of dx; result: of flp_diverge_args, values or grad_scores.
Launch = collections.namedtuple("Launch", "loss numbers dtype result")


@primitive.def_abstract_eval
def _abstract(x, *_, call):
    is_of_rows = call.result == "values"
    return _call._array(x, (x.shape[0], VALUES) if is_of_rows else x.shape, jnp.float32 if is_of_rows else call.dtype)


def _lower(devices, ctx, *operands, call):
    n, vocab = ctx.avals_in[0].shape
    fields = {"op": _c.OP_DIVERGE, "dtype": _call.DTYPES[call.dtype], "vocab": vocab, "loss": call.loss,
              "alignment": _alignment_of(vocab, call.dtype)}
    spec = ctypes.byref(_call._spec_of(fields))
    for device in devices():
        _library.workspace_bytes(spec, device, _c.PASS_FORWARD, n, 0, 0)
    fields.update({"pass": _c.PASS_FORWARD, "n": n, "loss_parameters": call.numbers})
    return jax.ffi.ffi_lowering(_library.TARGET)(
        ctx, *operands, operands=" ".join(OPERANDS[:len(operands)]), results=call.result,
        **{name: _call._attribute(name, value) for name, value in fields.items()})


def _alignment_of(vocab, dtype):
    """That of rows of scores and of dx, which have no room between them."""
    row = vocab * dtype.itemsize
    return min(16, row & -row)


def _jvp(*_, **__):
    raise errors.UnsupportedError("flp.jax.divergence has no second derivative (accepted: one backward pass over it; "
                                  "forward mode, jvp, has no form of it)")


def _batched(operands, dims, *, call):
    size = next(operand.shape[dim] for operand, dim in zip(operands, dims) if dim is not None)
    made = primitive.bind(*(_call._flat(operand, dim, size) for operand, dim in zip(operands, dims)), call=call)
    return made.reshape(size, len(made) // max(size, 1), made.shape[1]), 0


mlir.register_lowering(primitive, functools.partial(_lower, _call._host_devices), platform="cpu")
mlir.register_lowering(primitive, functools.partial(_lower, _call._cuda_devices), platform="cuda")
ad.primitive_jvps[primitive] = _jvp
batching.primitive_batchers[primitive] = _batched


# ---- rows

def _states(call, operands):
    """Which rows count, and which of these have a temperature that is none: (N) bool each, None where that is all or
    none of them."""
    bad = None
    for head, name in ((call.student, ""), (call.teacher, TEACHER)):
        rows = operands.get(name + "temperature_rows")
        if rows is not None:
            found = ~_numbers.usable_rows(rows, jnp.float32(head.unit * _numbers.LOG2E))
            bad = found if bad is None else bad | found
    counted = operands.get("mask")
    return counted, bad if bad is None or counted is None else bad & counted


def _taken(values, rows, fill=0):
    """Some rows; those beyond the last are fill."""
    return values.at[rows].get(mode="fill", fill_value=fill)


def _over_chunks(size, active, count, step, carry):
    """carry after step(rows, carry) of every chunk of active rows. rows: (size) ids, count where there is none; active:
    (count) bool, or None of all"""
    order, trips = jnp.arange(count, dtype=jnp.int32), -(-count // size)
    if active is not None:
        found = active.sum(dtype=jnp.int32)
        order = jnp.where(order < found, jnp.argsort(~active, stable=True).astype(jnp.int32), count)
        trips = (found + size - 1) // size
    order = jnp.pad(order, (0, -count % size), constant_values=count)
    return jax.lax.fori_loop(0, trips, lambda at, carry: step(
        jax.lax.dynamic_slice_in_dim(order, at * size, size), carry), carry)


def _like(array, fill, shape, dtype):
    """An array that varies over the axes of a shard_map as another does."""
    made, axes = jnp.full(shape, fill, dtype), _shards.varying(array)
    return jax.lax.pcast(made, tuple(axes), to="varying") if axes else made


def _chunk_of(call, operands, grads):
    """Rows of a chunk. grads: the mask. error: BudgetError"""
    (n, depth), (vocab, _) = operands["hidden"].shape, operands["weight"].shape
    heads = operands["hidden"], operands[TEACHER + "hidden"]
    is_summed = grads & _c.GRAD_WEIGHT and operands["weight"].dtype != jnp.float32
    of_call = _divergences.bytes_of(vocab, [hidden.shape[1] * hidden.dtype.itemsize for hidden in heads],
                                    heads[0].dtype.itemsize, grads, 4 * vocab * depth if is_summed else 0)
    if IDS in operands:
        fixed, of_scores, of_gradient = of_call
        of_call = fixed, of_scores + 12 * len(operands[TEACHER + "weight"]), of_gradient
    if sum(of_call) > call.budget:
        _divergences.refuse_budget(call.budget, sum(of_call), n, vocab)
    return max(1, _divergences.rows_of_chunk(call.budget, of_call, n, True)[0])


# ---- scores

def _product(a, b, dims):
    """In float32, of operands as they are."""
    return jax.lax.dot_general(a, b, ((dims[:1], dims[1:]), ((), ())), precision=jax.lax.Precision.HIGHEST,
                               preferred_element_type=jnp.float32)


def _scores(head, operands, name, rows):
    """Raw scores of some rows, of a softcap their tanh; and what makes scores over T of these, (n)."""
    x = _product(_taken(operands[name + "hidden"], rows), operands[name + "weight"], (1, 1))
    if name + "bias" in operands:
        x = x + operands[name + "bias"].astype(jnp.float32)
    if head.cap_in is not None:
        x = jnp.tanh(x * head.cap_in)
    temperatures = operands.get(name + "temperature_rows")
    if temperatures is None:
        return x, _like(x, head.unit, rows.shape, jnp.float32)
    return x, jnp.float32(head.unit) / _taken(temperatures, rows, 1)


def _with_rest(x, unit, y, of_teacher, ids):
    """Scores and units of the student's tokens and one more, all others of the teacher's, behind which none stands; and
    whether both have the same best token, (n). x: (n,V); y: (n,U), of which ids (V) are the student's"""
    def at(value, units):  # what score a value over T is
        return jnp.where(jnp.isinf(value), value * jnp.sign(units), value / units)

    # a unit of 0 makes all scores 0
    (x, unit), (y, of_teacher) = (
        (jnp.where(units[:, None] == 0, 0, scores), jnp.where(units == 0, 1, units))
        for scores, units in ((x, unit), (y, of_teacher)))
    t = y * of_teacher[:, None]
    is_own = jnp.zeros(y.shape[1], bool).at[ids].set(True)
    rest = jax.nn.logsumexp(jnp.where(is_own, -jnp.inf, t), axis=1)
    same = t.argmax(1) == ids[(x * unit[:, None]).argmax(1)]
    nothing = jnp.full((len(x), -x.shape[1] % VECTOR or VECTOR), -jnp.inf)
    own = jnp.take(y, ids, 1, mode="fill", fill_value=jnp.nan)
    x, y = (jnp.concatenate([scores, at(more, units[:, None])], 1) for scores, more, units in (
        (x, nothing, unit), (own, nothing.at[:, 0].set(rest), of_teacher)))
    return x, unit, y, of_teacher, same


def _diverge(call, operands, rows, upstream=None):
    """-> values of some rows, or of their upstream gradients the gradient of raw scores."""
    (x, unit), (y, of_teacher) = (_scores(head, operands, name, rows)
                                  for head, name in ((call.student, ""), (call.teacher, TEACHER)))
    launch = Launch(call.loss, call.numbers, operands["hidden"].dtype, "values" if upstream is None else "grad_scores")
    own, same, is_flat = x, None, unit == 0
    if IDS in operands:
        x, unit, y, of_teacher, same = _with_rest(x, unit, y, of_teacher, operands[IDS])
    if upstream is None:
        values = primitive.bind(x, y, unit, of_teacher, call=launch)
        return values if same is None else values.at[:, -1].set(same & ~jnp.isnan(values[:, 0]))
    dx = primitive.bind(x, y, unit, of_teacher, _taken(upstream, rows), call=launch)
    if same is not None:
        x, dx = own, jnp.where(is_flat[:, None], 0, dx[:, :own.shape[1]])
    return dx if call.student.cap_in is None else (dx.astype(jnp.float32) * (1 - x * x)).astype(dx.dtype)


# ---- both passes

def _forward(call, operands):
    """(N, VALUES) of every row: 0 where it does not count, NaN where it is bad."""
    hidden = operands["hidden"]
    n = hidden.shape[0]
    values = _like(hidden, 0, (n, VALUES), jnp.float32)
    if n:
        counted, bad = _states(call, operands)
        active = counted if bad is None else ~bad if counted is None else counted & ~bad
        values = _over_chunks(_chunk_of(call, operands, 0), active, n, lambda rows, values: values.at[rows].set(
            _diverge(call, operands, rows), mode="drop"), values)
        if bad is not None:
            values = jnp.where(bad[:, None] & (jnp.arange(VALUES) < VALUES - 1), jnp.nan, values)
    return jnp.clip(values, *map(jnp.float32, call.bounds))


def _pulls_of(call, operands, active, upstream):
    """What flp_diverge multiplies gradients by, for them to be those of raw scores, 0 of rows that have none; and the
    powers of two that this has, for dx to be within float16, or None."""
    head = call.student
    pulls = jnp.where(active, upstream, 0) * (1 if head.cap_in is None else head.cap_in)
    if operands["hidden"].dtype != jnp.float16:
        return pulls, None
    unit = jnp.float32(head.unit) / operands.get("temperature_rows", jnp.float32(1))
    log = jnp.log2(abs(pulls)) + jnp.log2(abs(unit))
    log = jnp.where(jnp.isfinite(log), log, jnp.inf)  # of what has none, which sets no other row's
    log = jnp.where(jnp.isfinite(log), log, log.min())
    exponent = jnp.where(jnp.isinf(log), -100, jnp.clip(jnp.floor(jnp.log2(FP16_TOP) - log), -100, 100))
    factor = jnp.ldexp(jnp.ones_like(pulls), exponent.astype(jnp.int32))
    return pulls * factor, factor


def _backward(call, names, operands, upstream):
    """{name: gradient}, in its operand's dtype."""
    n, wanted = len(upstream), [name for name in NAMES if name in names]
    made = {name: _like(upstream, 0, operands[name].shape, operands[name].dtype if name == "hidden" else jnp.float32)
            for name in wanted}
    factor = None
    if n:
        counted, bad = _states(call, operands)
        asked = upstream != 0 if counted is None else counted & (upstream != 0)
        active = asked if bad is None else asked & ~bad
        pulls, factor = _pulls_of(call, operands, active, upstream)
        active &= pulls != 0  # which upstream gradients may become
        share = None if factor is None else factor.min() / factor
        size = _chunk_of(call, operands, sum(NAMES[name] for name in wanted))
        made = _over_chunks(size, active, n, functools.partial(_add, call, operands, pulls, factor, share), made)
        if bad is not None and "hidden" in made:
            made["hidden"] = jnp.where((bad & asked)[:, None], jnp.nan, made["hidden"])
    return {name: (sums if name == "hidden" or factor is None else sums / factor.min()).astype(operands[name].dtype)
            for name, sums in made.items()}


def _add(call, operands, pulls, factor, share, rows, made):
    """The gradients with what some rows give. share: the least factor over each row's, or None"""
    dx, made = _diverge(call, operands, rows, pulls), dict(made)
    if "hidden" in made:
        of_rows = _product(dx, operands["weight"], (1, 0))
        of_rows = of_rows if factor is None else of_rows / _taken(factor, rows, 1)[:, None]
        made["hidden"] = made["hidden"].at[rows].set(of_rows.astype(made["hidden"].dtype), mode="drop")
    share = None if share is None else _taken(share, rows).astype(dx.dtype)
    if "weight" in made:
        hidden = _taken(operands["hidden"], rows)
        made["weight"] += _product(dx, hidden if share is None else hidden * share[:, None], (0, 0))
    if "bias" in made:
        made["bias"] += dx.sum(0, dtype=jnp.float32) if share is None else _product(dx, share, (0, 0))
    return made


# ---- differentiable

@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def values_of(call, operands):
    """(N) values, differentiable, and (N, VALUES) all that flp_diverge gives. operands: {name: array}, of the teacher
    behind TEACHER; mask, (N) bool, and temperature_rows, (N) float32, where there are some"""
    made = _forward(call, operands)
    return made[:, 0], made


def _values_forward(call, operands):
    values, names = _logprob.differentiated(operands)
    return values_of(call, values), (values, _logprob.Wanted(names))


def _values_backward(call, kept, upstream):
    (operands, wanted), made = kept, {}
    if wanted.names and not isinstance(upstream[0], jax.custom_derivatives.SymbolicZero):
        made = _backward(call, wanted.names, operands, upstream[0])
    return ({name: made.get(name) for name in operands},)


values_of.defvjp(_values_forward, _values_backward, symbolic_zeros=True)
