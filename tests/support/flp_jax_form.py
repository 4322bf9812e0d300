"""Rows of flp_cases.py as a process with jax takes them, and its results as those of any other form: what goes to
tests/install/jax_rows.py and comes back, so that the Python with jax needs no torch."""
import json
import subprocess

import numpy
import torch

import flp
from flp_calls import FUNCTIONS
from flp_cases import CASES, SHARE, upstream_of
from flp_problem import Problem

FORMS = "linear_logprob", "cross_entropy", "policy_loss", "divergence"  # functions that flp.jax has too
ROWS = [row for row in CASES if row.function in FORMS and "float32 adapter" not in row.edges]


def share_of(row):
    """Of what kernels are allowed: all where gradients of scores are rounded as theirs are."""
    return 1.0 if row.function == "divergence" else SHARE


def written(row, prefix, arrays):
    """What a row gives, as JSON; its tensors go into arrays."""
    problem = Problem(row, wide=False)
    _, exact, operands = FUNCTIONS[row.function]

    def named(name, value):
        if isinstance(value, flp.Lora):
            value = [value.a, value.b, value.scale]
        if isinstance(value, dict):
            return {"named": {key: named("%s.%s" % (name, key), one) for key, one in value.items()}}
        if isinstance(value, (tuple, list)):
            return [named("%s.%d" % (name, place), one) for place, one in enumerate(value)]
        if not isinstance(value, torch.Tensor):
            return value
        key, plain = prefix + name, value.detach()
        arrays[key] = (plain.float() if plain.dtype == torch.bfloat16 else plain).numpy()
        return {"array": key, "dtype": str(value.dtype)[6:]}

    given = problem.given({**operands, **row.options})
    wide = Problem(row, wide=True)
    found = exact(**wide.given({**operands, **row.options}))
    upstream = {name: upstream_of(row, name, value) for name, value in found.items()
                if name not in ("bad", *row.silent) and value.is_floating_point()}
    own = {*given, *(("a", "b") if "lora" in given else ())}
    leaves = {name: leaf for name, leaf in problem.leaves.items() if name in own and leaf.requires_grad}
    return {"function": row.function, "given": {name: named(name, value) for name, value in given.items()},
            "leaves": {name: named(name, value) for name, value in leaves.items()},
            "upstream": {name: named("upstream." + name, value) for name, value in upstream.items()}}


def run(python, program, rows, folder, environment):
    """What the process says of the rows: {row: {name: array}}; of each function, under "unsaid NAME" the options that
    flp.jax refuses, under "options NAME" those that it takes."""
    arrays = {}
    texts = [written(row, "%d." % index, arrays) for index, row in enumerate(rows)]
    source, to = folder / "rows.npz", folder / "results.npz"
    numpy.savez(source, rows=numpy.array(json.dumps(texts)), **arrays)
    done = subprocess.run([python, program, source, to], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    found = {str(row): {} for row in rows}
    for key, value in numpy.load(to).items():
        index, _, name = key.partition(".")
        if name:
            found[str(rows[int(index)])][name] = value
        else:
            found[key] = set(value.tolist())
    return found


def as_computed(row, result, form=""):
    """A row's result as flp_cases.computed gives one. form: "", or "shards." of two devices"""
    problem = Problem(row, wide=False)
    parts = {part: {name.removeprefix(form + part): torch.from_numpy(value) for name, value in result.items()
                    if name.startswith(form + part)} for part in ("output.", "gradient.")}
    gradients = {name: parts["gradient."].get(name) for name in problem.leaves}
    of_entropy = row.function == "linear_logprob" and row.options.get("entropy") is True
    differentiable = {"logprob", "loss", "value", *(["entropy"] if of_entropy else [])}
    for name, value in parts["output."].items():  # jax_rows.py finds out whether others have a gradient too
        if parts["gradient."] and name in differentiable:
            value.requires_grad_()
    return parts["output."], gradients, None
