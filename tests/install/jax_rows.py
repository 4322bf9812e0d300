#!/usr/bin/env python3
"""Rows of tests/support/flp_cases.py through flp.jax, for a Python with jax and numpy and without torch.

    python3 tests/install/jax_rows.py ROWS.npz RESULTS.npz

ROWS.npz is what flp_jax_form.py writes: arrays, and as `rows` JSON of [{option: value}, ...], where a value that is an
array is {"array": its name, "dtype": that of JAX}. RESULTS.npz has for each row its outputs and gradients by names, of
one jitted program, or what refused it; of linear_logprob also those of a vocabulary that two devices share ("shards.").
"""
import inspect
import json
import os
import sys

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2 " + os.environ.get("XLA_FLAGS", "")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy  # noqa: E402

import flp  # noqa: E402
import flp.jax  # noqa: E402
from flp.jax._logprob import UNSAID  # noqa: E402

jax.config.update("jax_enable_x64", True)


def given_of(value, arrays):
    """An option's value with arrays in the place of their names."""
    if isinstance(value, list):
        return tuple(given_of(one, arrays) for one in value)
    if not isinstance(value, dict):
        return value
    if "named" in value:
        return {name: given_of(one, arrays) for name, one in value["named"].items()}
    array = arrays[value["array"]]
    return array if array.dtype == value["dtype"] else jnp.asarray(array, value["dtype"])


BEST = {"top_ids": "top.ids", "top_logprobs": "top.logprobs", "top_rest": "top.rest", "rank": "rank"}


def outputs_of(given, function="linear_logprob"):
    """What a function gives, by names."""
    made = getattr(flp.jax, function)(**given)
    if function == "divergence":
        return made._asdict()
    if function == "policy_loss":
        return {"loss": made[0], **{BEST.get(name, "metric " + name): value for name, value in made[1].items()}}
    if function == "cross_entropy":
        options = {"z_loss": "return_z_loss", "entropy": "entropy", "statistics": "statistics"}
        names = ["loss", *(name for name, option in options.items() if given.get(option))]
        return opened(dict(zip(names, made if isinstance(made, tuple) else (made,))))
    options = "entropy", "topk", "rank", "statistics", "kept_mass", "reference"
    names = ["logprob", *(name for name in options if given.get(name))]
    return opened(dict(zip(names, made if isinstance(made, tuple) else (made,))))


def opened(found):
    """With what tuples of names hold by names of their own."""
    for option, part in (("topk", "top."), ("statistics", "statistics.")):
        values = found.pop(option, None)
        if values is not None:
            found.update({part + name: value for name, value in values._asdict().items()})
    return found


def of_shards(given):
    """linear_logprob by names, of two devices of which each has half of the vocabulary; rows of padding are poison."""
    total = given["weight"].shape[0]
    found, tree = jax.tree_util.tree_flatten_with_path(given, is_leaf=lambda value: value is None)
    arrays = {place: value for place, (_, value) in enumerate(found) if isinstance(value, (jax.Array, numpy.ndarray))}
    of_vocab = "['weight']", "['bias']", "['lora'].b", "['lora'][1]"
    divided = {place for place in arrays if jax.tree_util.keystr(found[place][0]) in of_vocab}
    for place in divided:
        poison = jnp.full((-total % 2, *arrays[place].shape[1:]), jnp.nan, arrays[place].dtype)
        arrays[place] = jnp.concatenate([arrays[place], poison])

    def own(arrays):
        values = [arrays.get(place, value) for place, (_, value) in enumerate(found)]
        return outputs_of({**jax.tree.unflatten(tree, values), "axis_name": "shards", "vocab_total": total})

    over = jax.sharding.PartitionSpec
    mesh = jax.make_mesh((2,), ("shards",), axis_types=(jax.sharding.AxisType.Auto,))
    specs = {place: over("shards") if place in divided else over() for place in arrays}
    return jax.shard_map(own, mesh=mesh, in_specs=(specs,), out_specs=over())(arrays)


def gradients_of(outputs, given, leaves, upstream):
    """({output: array}, {leaf: gradient}): every output that is a number has a part in what is differentiated, so that
    those without a gradient would be seen in one that they had."""
    def loss(leaves):
        own = {**given, **{name: value for name, value in leaves.items() if name in given}}
        if "a" in leaves or "b" in leaves:
            a, b, scale = given["lora"]
            own["lora"] = flp.jax.Lora(leaves.get("a", a), leaves.get("b", b), scale)
        found = outputs(own)
        return sum((found[name] * upstream[name]).sum() for name in found.keys() & upstream.keys()), found

    gradients, found = jax.jit(jax.grad(loss, has_aux=True))(leaves)
    return found, gradients


def same(one, other):
    return all(numpy.array_equal(*pair, equal_nan=True) for pair in zip(jax.tree.leaves(one), jax.tree.leaves(other)))


def of_rows(given, lead):
    """The options that have an entry a row of these dimensions, for vmap."""
    return {name: value for name, value in given.items() if name in ("hidden", "target", "temperature")
            and getattr(value, "ndim", 0) >= len(lead)}


def close(one, other):
    return all(numpy.allclose(*pair, rtol=1e-5, atol=1e-5, equal_nan=True)
               for pair in zip(jax.tree.leaves(one), jax.tree.leaves(other)))


def check_in_32_bits(given, found, function):
    """Without jit results have the bits that a program has, but for products that XLA makes. JAX has no integers of 64
    bits here: what numpy has of them is cut."""
    jax.config.update("jax_enable_x64", False)
    try:
        alike = same if function == "linear_logprob" else close
        assert alike(outputs_of(given, function), found), "without jit, in 32 bits"
    finally:
        jax.config.update("jax_enable_x64", True)


def check_transforms(given, found):
    """So they have under vmap over rows or sequences of them."""
    lead = given["hidden"].shape[:-1]
    if not lead or given.get("rows") is not None or given.get("keep") is not None:
        return
    mapped = of_rows(given, lead)
    others = {name: value for name, value in given.items() if name not in mapped}
    again = jax.vmap(lambda own: outputs_of({**own, **others}))(mapped)
    assert same(again, found), "under vmap"


def result_of(row, arrays):
    given, leaves, upstream = ({name: given_of(value, arrays) for name, value in row[part].items()}
                               for part in ("given", "leaves", "upstream"))
    forms = {"": lambda given: outputs_of(given, row["function"])}
    if row["function"] == "linear_logprob":
        forms["shards."] = of_shards
    result = {}
    for form, outputs in forms.items():
        found, gradients = gradients_of(outputs, given, leaves, upstream)
        result.update((form + "output." + name, value) for name, value in found.items())
        result.update((form + "gradient." + name, value) for name, value in gradients.items())
        if not form and row["function"] in ("linear_logprob", "divergence"):
            check_in_32_bits(given, found, row["function"])
        if not form and row["function"] == "linear_logprob":
            check_transforms(given, found)
    for name, value in result.items():
        leaf = leaves.get(name.rpartition("gradient.")[2])
        assert leaf is None or leaf.dtype == value.dtype, (name, value.dtype)
    return {name: value.astype("float32") if value.dtype == jnp.bfloat16 else value for name, value in result.items()}


def main(source, to):
    arrays = dict(numpy.load(source))
    results = {"unsaid " + function: sorted(options) for function, options in UNSAID.items()}
    results.update(("options " + function, sorted(inspect.signature(getattr(flp.jax, function)).parameters))
                   for function in UNSAID)
    for index, row in enumerate(json.loads(str(arrays["rows"]))):
        try:
            found = result_of(row, arrays)
        except Exception as error:  # of this row alone
            kind = "refused" if isinstance(error, flp.UnsupportedError) else "failed"
            found = {kind: numpy.array("%s: %s" % (type(error).__name__, error))}
        results.update({"%d.%s" % (index, name): numpy.asarray(value) for name, value in found.items()})
    numpy.savez(to, **results)


if __name__ == "__main__":
    main(*sys.argv[1:])
