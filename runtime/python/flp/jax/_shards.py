"""A head whose vocabulary is divided over an axis of shard_map: each device has rows of the weight.

Invariants: what the devices exchange in the forward pass is a maximum, then sums, a few numbers a row; in the backward
pass the sum of what each adds to the gradients of hidden and lora.a. On each device ids count from its own first row,
around the whole vocabulary, so that one program serves all of them; where padding stands behind the last real row, the
last device's program is another branch.
"""
import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from .._library import _c, _numbers
from .._library._numbers import refuse
from . import _call

IGNORED, BAD = -1, -2  # targets that are none
NO_ID = -1
LN2 = math.log(2)
TOP = "top_ids", "top_logprob", "top_rest"


class Shard(NamedTuple):
    """axis: of so many devices, each with so many rows of the weight; total: ids of the vocabulary."""

    axis: str
    size: int
    rows: int
    total: int

    def valid(self, index):
        """The real rows of a device."""
        return min(self.total - index * self.rows, self.rows)


def varying(array):
    """The axes of a shard_map over which an array differs."""
    aval = jax.typeof(array)
    return frozenset(aval.mat.varying if hasattr(aval, "mat") else getattr(aval, "vma", ()))  # mat: jax 0.10 and newer


def shard_of(axis, total, operands):
    """The Shard of a call, None without an axis. error: ValueError and TypeError naming the field"""
    if axis is None:
        if total is not None:
            refuse(ValueError, "vocab_total", total, "None without axis_name")
        return None
    try:
        index = jax.lax.axis_index(axis)
    except (NameError, TypeError, ValueError):
        refuse(ValueError, "axis_name", repr(axis), "an axis of the shard_map that this call is made in")
    if axis not in varying(index):
        refuse(ValueError, "axis_name", "%r without check_vma" % (axis,),
               "an axis of a shard_map with check_vma=True, as it is by default, which knows what to sum")
    for name, array in operands.items():
        if _is_divided(name) != (axis in varying(array)):
            has = "the same on all devices of axis %r" if _is_divided(name) else "different on the devices of axis %r"
            refuse(ValueError, name, has % (axis,), "weight, bias and lora.b divided over it, all else not")
    size, rows = jax.lax.axis_size(axis), operands["weight"].shape[0]
    total = size * rows if total is None else _numbers.within(
        "vocab_total", total, max((size - 1) * rows + 1, 2), size * rows,
        "None, or %d to %d: only the last device has rows of padding")
    return Shard(axis, size, rows, total)


def _is_divided(name):
    return _call.ARRAYS[name].dims[0] == "V"


def forward(shard, call, values):
    """One pass of all devices -> {result: array}, the same on each of them. values: {name: array}"""
    if not values["target"].size:
        return _of_no_rows(call, values)
    is_best, several = TOP[0] in call.results, values["target"].ndim == 2
    numbers = {**dict(call.numbers), "entropy": _c.ENTROPY_FORWARD if "entropy" in call.results else _c.ENTROPY_NONE}
    results = ("partial", *(("partial_targets",) if several else ()), *(TOP[:2] if is_best else ()),
               *(("partial_statistics",) if "statistics" in call.results else ()))
    own = _own_of(shard, numbers, values)
    if "rank" in call.results:
        results, own = (*results, "rank"), {**own, "target_score": _target_score(shard, call, numbers, own)}
    parts = _on_each(shard, call._replace(results=results), numbers, own)
    made = _combined(shard, call, numbers, values, _merged(shard, parts, own["target"]))
    if is_best:
        made.update(zip(TOP, _best(shard, parts, made, numbers["topk"])))
    if "statistics" in call.results:
        made["statistics"] = _statistics(shard, parts, made["stats"])
    if "rank" in call.results:
        above, least = (reduction(parts["rank"], shard.axis) for reduction in (jax.lax.psum, jax.lax.pmin))
        made["rank"] = jnp.where((least < 0) | jnp.isnan(made["logprob"]), NO_ID, above)
    return {name: made[name] for name in call.results}


def backward(shard, call, values):
    """{gradient: array}: of what is divided each device's own, of all else the sum over them in float32."""
    if not values["target"].size:
        return _of_no_rows(call, values)
    summed = [name for name in call.results if not _is_divided(name)]
    numbers = {**dict(call.numbers), **_call.wide(name.removeprefix(_call.GRAD) for name in summed)}
    made = _on_each(shard, call, numbers, _own_of(shard, numbers, values))
    made.update((name, jax.lax.psum(made[name], shard.axis)) for name in summed)
    return {name: grad.astype(values[name.removeprefix(_call.GRAD)].dtype) for name, grad in made.items()}


def _of_no_rows(call, values):
    """What a pass over no rows gives, which XLA's compiler for several GPUs does not survive: nothing, and gradients of
    0."""
    made = jax.eval_shape(functools.partial(_call.run, call), values)
    axes = {name: varying(values.get(name.removeprefix(_call.GRAD), values["hidden"])) for name in made}
    zeros = {name: jnp.zeros(like.shape, like.dtype) for name, like in made.items()}
    return {name: jax.lax.pcast(array, tuple(axes[name]), to="varying") if axes[name] else array
            for name, array in zeros.items()}


def _own_of(shard, numbers, values):
    """The operands as a device takes them."""
    index, first = numbers["ignore_index"], jax.lax.axis_index(shard.axis) * shard.rows

    def shifted(ids):
        return jnp.where((ids >= 0) & (ids < shard.total), (ids - first) % shard.total, BAD).astype(ids.dtype)

    own = {**values, "target": jnp.where(values["target"] == index, IGNORED, shifted(values["target"]))}
    if "list_ids" in values:
        own["list_ids"] = shifted(values["list_ids"])
    return {name: array if shard.axis in varying(array) else jax.lax.pcast(array, shard.axis, to="varying")
            for name, array in own.items()}


def _on_each(shard, call, numbers, own):
    """The pass of each device over its real rows."""
    def run(valid, own):
        place = {**numbers, "ignore_index": IGNORED, "vocab_valid": valid, "vocab_total": shard.total}
        return _call.run(call._replace(numbers=tuple(place.items())), own)

    last = shard.valid(shard.size - 1)
    if last == shard.rows:
        return run(shard.rows, own)
    is_last = jax.lax.axis_index(shard.axis) == shard.size - 1
    return jax.lax.cond(is_last, functools.partial(run, last), functools.partial(run, shard.rows), own)


def _target_score(shard, call, numbers, own):
    """(N) the targets' scores in log2 units, whatever device has them: the maxima of lists of the target alone."""
    target = own["target"]
    offsets = jax.lax.pcast(jnp.arange(len(target) + 1), shard.axis, to="varying")
    alone = {**own, "target": jnp.where(target < 0, IGNORED, target), "list_offsets": offsets, "list_ids": target}
    plain = {name: value for name, value in numbers.items() if name not in ("topk", "entropy")}
    score = _on_each(shard, call._replace(results=("partial",)), plain, alone)["partial"][:, 0]
    return jax.lax.pcast(jax.lax.pmax(score, shard.axis), shard.axis, to="varying")


def _merged(shard, parts, target):
    """The partials of all devices as one: about the maximum M of all, with δ = m − M, s ← s·2^δ, q ← (q + δ·s)·2^δ, and
    the target's score, which one of them has."""
    index = jax.lax.axis_index(shard.axis)
    is_own = (target >= 0) & (target < jnp.minimum(shard.total - index * shard.rows, shard.rows))
    m, s, q, score = parts["partial"].T
    scores = parts.get("partial_targets", score)
    top = jax.lax.pmax(jnp.where(jnp.isnan(m), jnp.finfo(m.dtype).min, m), shard.axis)
    shift = m - top
    s, q, scores = jax.lax.psum((s * jnp.exp2(shift), (q + shift * s) * jnp.exp2(shift),
                                 jnp.where(is_own, scores, 0)), shard.axis)
    if "partial_targets" not in parts:
        return {"partial": jnp.stack([top, s, q, scores], 1)}
    return {"partial": jnp.stack([top, s, q, jnp.full_like(top, -jnp.inf)], 1), "partial_targets": scores}


def _combined(shard, call, numbers, values, merged):
    """What the merged partials are: log-probabilities, entropy, stats."""
    index, target = numbers["ignore_index"], values["target"]
    is_id = (target >= 0) & (target < shard.total)
    rows = {name: values[name] for name in ("temperature_rows", "rows") if name in values}
    target = jnp.where(target == index, IGNORED, jnp.where(is_id, target, BAD)).astype(target.dtype)
    own = {name: value for name, value in numbers.items() if name not in ("topk", "rank", "lora_scale")}
    own.update(ignore_index=IGNORED, vocab=shard.rows, hidden=values["hidden"].shape[1], shard_count=1,
               vocab_valid=shard.valid(0), vocab_total=shard.total,
               **{name + "_dtype": _call.DTYPES[values[name].dtype] for name in ("hidden", "weight")})
    results = ("logprob", *(("entropy",) if "entropy" in call.results else ()), "stats")
    return _call.run(_call.Call(_c.PASS_COMBINE, (), results, tuple(own.items()), call.budget),
                     {"target": target, **rows, **merged})


def _statistics(shard, parts, stats):
    """Statistics of all devices' rows (N,4): see flp_args.partial_statistics."""
    whole, log_sum, m = stats[:, 0], stats[:, 1], parts["partial"][:, 0]
    total, squares, columns, best = parts["partial_statistics"].T
    squares = jnp.where(squares == 0, 0, squares * jnp.exp2(2 * (m - whole)))
    total, squares, columns, best = jax.lax.psum((total, squares, columns, best * (m >= whole)), shard.axis)
    lse = LN2 * (whole + log_sum)
    values = lse, LN2 * total / columns, LN2 * (jnp.log2(squares) - 2 * log_sum)
    idle = (columns == 0) & ~jnp.isnan(lse)
    values = [jnp.where(jnp.isnan(lse), jnp.nan, jnp.where(idle, 0, each)) for each in values]
    return jnp.stack([*values, (best > 0) & ~jnp.isnan(lse)], 1).astype(jnp.float32)


def _best(shard, parts, made, k):
    """The best tokens of all devices: ids (N,K), log-probabilities (N,K), the rest (N)."""
    index, (m, log_sum) = jax.lax.axis_index(shard.axis), made["stats"].astype(float).T[:2, :, None]
    ids, t = parts["top_ids"], parts["top_logprob"].astype(float)
    if shard.size == 1 and shard.total == shard.rows:  # of a whole head they are log-probabilities
        t = t + LN2 * m + LN2 * log_sum
    ids, t = (_gathered(shard, values) for values in (jnp.where(ids < 0, NO_ID, ids + index * shard.rows), t))
    # of equal scores the lowest id first
    least, ids = (values[:, :k] for values in jax.lax.sort((jnp.where(ids < 0, jnp.inf, -t), ids), num_keys=2))
    found = ids >= 0
    logprobs = jnp.where(found, jnp.minimum(-least - LN2 * m - LN2 * log_sum, 0), -jnp.inf)
    rest = jnp.where(found[:, -1], jnp.clip(1 - jnp.exp(logprobs).sum(1), 0, 1), 0)
    # a row without any token is one that was not computed, or a bad one: as its log-probability is
    own = made["logprob"] if made["logprob"].ndim == 1 else made["logprob"].sum(1)
    without = jnp.isnan(own) | ~found.any(1)
    ids, logprobs = jnp.where(without[:, None], NO_ID, ids), jnp.where(without[:, None], own[:, None], logprobs)
    return ids, logprobs.astype(jnp.float32), jnp.where(without, own, rest).astype(jnp.float32)


def _gathered(shard, values):
    """(N,K) of each device, beside one another (N, size·K), the same on all of them."""
    places = jnp.zeros((shard.size, *values.shape), values.dtype).at[jax.lax.axis_index(shard.axis)].set(values)
    return jnp.moveaxis(jax.lax.psum(places, shard.axis), 0, 1).reshape(len(values), -1)
