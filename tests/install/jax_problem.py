"""What cases of flp.jax share: problems, the formula, and how results are compared."""
import os
import subprocess
import sys
from pathlib import Path

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2 " + os.environ.get("XLA_FLAGS", "")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy  # noqa: E402

import flp  # noqa: E402
import flp.jax  # noqa: E402

TREE = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TREE / "tests/support"))
import transcripts  # noqa: E402

jax.config.update("jax_default_matmul_precision", "highest")  # of the formula: a GPU would round its operands to TF32
# Relative L2 of gradients, and nats of values for scores of order 1: as tests/support/flp_reference.py has them.
GRAD_TOLERANCE = {"bfloat16": 6e-3, "float16": 1e-3, "float32": 5e-6}
VALUE_TOLERANCE = 2e-5
N, D, V = 13, 64, 331


class Skipped(Exception):
    pass


def problem(n=N, dtype="float32", bias=False, seed=0):
    """hidden (n,D), weight (V,D), target (n), bias (V) or None."""
    draw = numpy.random.default_rng(seed)
    hidden, weight = draw.standard_normal((n, D)), draw.standard_normal((V, D)) * (2 / D**0.5)
    offset = jnp.asarray(draw.standard_normal(V), dtype) if bias else None
    return jnp.asarray(hidden, dtype), jnp.asarray(weight, dtype), jnp.asarray(draw.integers(0, V, n), "int32"), offset


def formula(hidden, weight, target, bias=None, temperature=1.0, softcap=None, scale=1.0, ignore_index=-100):
    """(logprob, entropy) over scores that exist."""
    scores = scale * (hidden @ weight.T + (0 if bias is None else bias))
    scores = softcap * jnp.tanh(scores / softcap) if softcap else scores
    logp, active = jax.nn.log_softmax(scores / jnp.reshape(jnp.asarray(temperature), (-1, 1))), target != ignore_index
    chosen = jnp.take_along_axis(logp, jnp.where(active, target, 0)[:, None], 1)[:, 0]
    return chosen * active, -(jnp.exp(logp) * logp).sum(1) * active


def near(got, want, bound=VALUE_TOLERANCE):
    error = numpy.abs(numpy.asarray(got, "float64") - numpy.asarray(want, "float64")).max()
    assert error <= bound, "%g apart, %g is accepted" % (error, bound)


def near_gradient(got, want):
    want = numpy.asarray(want, "float64")
    bound = GRAD_TOLERANCE[str(got.dtype)]
    error = numpy.linalg.norm(numpy.asarray(got).astype("float64") - want) / numpy.linalg.norm(want)
    assert error <= bound, "relative error %g, %g is accepted" % (error, bound)


def equal(got, want):
    for mine, other in zip(jax.tree.leaves(got), jax.tree.leaves(want)):
        assert numpy.array_equal(numpy.asarray(mine), numpy.asarray(other), equal_nan=True)


def refused(kind, words, call):
    try:
        call()
    except kind as error:
        assert words in str(error), str(error)
    else:
        raise AssertionError("was not refused; expected: " + words)


def passes(call, *arguments):
    """The passes that a traced function makes: [(operands, results)], as the handler gets them."""
    found = []

    def look(jaxpr):
        for equation in jaxpr.eqns:
            if equation.primitive.name == "flp_linear_logprob":
                made = equation.params["call"]
                found.append((made.operands, made.results))
            for value in equation.params.values():
                inner = getattr(value, "jaxpr", value)
                if hasattr(inner, "eqns"):
                    look(inner)

    look(jax.make_jaxpr(call)(*arguments).jaxpr)
    return found


def run_python(program, *arguments, **environment):
    done = subprocess.run([sys.executable, "-c", program, *map(str, arguments)], capture_output=True, text=True,
                          env={**os.environ, **environment})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def two_devices(axis):
    """A mesh, and the specs of what is divided over it and of what is not."""
    if len(jax.devices()) < 2:
        raise Skipped("one device")
    mesh = jax.make_mesh((2,), (axis,), devices=jax.devices()[:2], axis_types=(jax.sharding.AxisType.Auto,))
    return mesh, jax.sharding.PartitionSpec(axis), jax.sharding.PartitionSpec()


def answers(name, ask, names):
    """Holds the file of tests/golden/refused/jax, whose questions are keywords of a call, to what the call says."""
    def said(call):
        try:
            call()
        except Exception as error:
            text = str(error).splitlines()[0]
            text = (text.partition("flp: ")[2] or text).partition(" [executable_name=")[0]  # without XLA's own words
            return ["%s: %s" % (type(error).__name__, text)]
        return ["nothing"]

    names = {"flp": flp, "jax": jax, "jnp": jnp, "numpy": numpy, "N": N, "V": V, **names}
    transcripts.check(TREE / "tests/golden/refused/jax" / name, lambda line: exec(line, names),
                      lambda question: ask(said, **eval("dict(%s)" % question, names)))
