#!/usr/bin/env python3
"""Rows of tests/support/flp_cases.py through flp.jax, for a Python with jax and numpy and without torch.

    python3 tests/install/jax_rows.py ROWS.npz RESULTS.npz

ROWS.npz is what flp_jax_form.py writes: arrays, and as `rows` JSON of [{option: value}, ...], where a value that is an
array is {"array": its name, "dtype": that of JAX}. RESULTS.npz has for each row its outputs and gradients by names, of
one jitted program, or what refused it.
"""
import inspect
import json
import sys

import jax
import jax.numpy as jnp
import numpy

import flp
import flp.jax
from flp.jax._logprob import UNSAID

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
    if function == "policy_loss":
        return {"loss": made[0], **{BEST.get(name, "metric " + name): value for name, value in made[1].items()}}
    if function == "cross_entropy":
        return dict(zip(("loss", "z_loss"), made if isinstance(made, tuple) else (made,)))
    options = "entropy", "topk", "rank", "kept_mass", "reference"
    names = ["logprob", *(name for name in options if given.get(name))]
    found = dict(zip(names, made if isinstance(made, tuple) else (made,)))
    top = found.pop("topk", None)
    return found if top is None else {**found, **{"top." + name: value for name, value in top._asdict().items()}}


def gradients_of(function, given, leaves, upstream):
    """({output: array}, {leaf: gradient}): every output that is a number has a part in what is differentiated, so that
    those without a gradient would be seen in one that they had."""
    def loss(leaves):
        own = {**given, **{name: value for name, value in leaves.items() if name in given}}
        if "a" in leaves or "b" in leaves:
            a, b, scale = given["lora"]
            own["lora"] = flp.jax.Lora(leaves.get("a", a), leaves.get("b", b), scale)
        found = outputs_of(own, function)
        return sum((found[name] * upstream[name]).sum() for name in found.keys() & upstream.keys()), found

    gradients, found = jax.jit(jax.grad(loss, has_aux=True))(leaves)
    return found, gradients


def same(one, other):
    return all(numpy.array_equal(*pair, equal_nan=True) for pair in zip(jax.tree.leaves(one), jax.tree.leaves(other)))


def of_rows(given, lead):
    """The options that have an entry a row of these dimensions, for vmap."""
    return {name: value for name, value in given.items() if name in ("hidden", "target", "temperature")
            and getattr(value, "ndim", 0) >= len(lead)}


def check_transforms(given, found):
    """Without jit, and under vmap over rows or sequences of them, results have the bits that a program has. Without jit
    JAX has no integers of 64 bits here: what numpy has of them is cut."""
    jax.config.update("jax_enable_x64", False)
    try:
        assert same(outputs_of(given), found), "without jit, in 32 bits"
    finally:
        jax.config.update("jax_enable_x64", True)
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
    found, gradients = gradients_of(row["function"], given, leaves, upstream)
    if row["function"] == "linear_logprob":
        check_transforms(given, found)
    result = {**{"output." + name: value for name, value in found.items()},
              **{"gradient." + name: value for name, value in gradients.items()}}
    for name, value in result.items():
        leaf = leaves.get(name.removeprefix("gradient."))
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
