"""Cases of flp.jax.divergence, for jax_cases.py; jax_rows.py has every option and edge of a call."""
import tempfile
from pathlib import Path

import numpy
from jax_problem import N, V, answers, equal, near, near_gradient, refused, run_python, two_devices

import jax
import jax.numpy as jnp

import flp
import flp.jax

E = 16
STUDENT = "hidden", "weight", "bias"


def pair(n=N, dtype="float32", seed=0):
    """Operands of both heads, by name. Scores deviate by near 2."""
    draw = numpy.random.default_rng(seed)
    shapes = {"hidden": (n, 24), "weight": (V, 24), "bias": (V,), "teacher_hidden": (n, E), "teacher_weight": (V, E),
              "teacher_bias": (V,)}
    return {name: jnp.asarray(draw.standard_normal(shape) * (2 / shape[-1]**0.5 if "weight" in name else 1), dtype)
            for name, shape in shapes.items()}


def value_of(given, **options):
    return flp.jax.divergence(**{**given, **options}).value


def gradients_of(given, function=value_of, **options):
    """Of the student's operands, of rows that count differently; the last one counts nothing."""
    def loss(leaves):
        found = function({**given, **leaves}, **options)
        return (found * jnp.linspace(1, 0, found.size).reshape(found.shape)).sum()

    return jax.jit(jax.grad(loss))({name: given[name] for name in STUDENT})


def case_divergence_in_chunks_is_that_of_all_rows():
    """Masks and bad temperatures leave room in a chunk; a row outside may hold anything."""
    counted, temperatures = numpy.arange(N) % 4 != 1, numpy.where(numpy.arange(N) == 6, 0, numpy.linspace(0.5, 2, N))
    for dtype in ("float32", "bfloat16", "float16"):
        given = pair(dtype=dtype)
        given["hidden"] = given["hidden"].at[1].set(jnp.nan)
        options = {"mask": counted, "temperature": temperatures, "softcap": 9.0, "kind": "jsd"}
        whole, chunks = (flp.jax.divergence(**given, **options, budget=budget) for budget in (None, 9000))
        near(jnp.nan_to_num(chunks.value), jnp.nan_to_num(whole.value))
        assert (numpy.isnan(whole.value) == (numpy.arange(N) == 6)).all() and not whole.agrees[6]
        assert all(not field[~counted].any() for field in whole)
        for name, grad in gradients_of(given, **options, budget=80000).items():
            want = gradients_of(given, **options)[name]
            if name == "hidden":
                assert jnp.isnan(want[6]).all() and not want[~counted].any() and not want[-1].any()
                grad, want = (jnp.delete(each, 6, 0) for each in (grad, want))
            near_gradient(grad, want)


def case_divergence_of_a_head_from_itself_is_0():
    for dtype in ("float32", "bfloat16", "float16"):
        given = pair(dtype=dtype)
        given.update({"teacher_" + name: given[name] for name in STUDENT})
        found = flp.jax.divergence(**given, softcap=5.0, teacher_softcap=5.0)
        assert abs(found.value).max() < 1e-6 and found.agrees.all() and (found.lse == found.teacher_lse).all()
        assert not any(grad.any() for grad in gradients_of(given).values())


def case_small_upstream_gradients_of_float16_are_kept():
    """The gradient of scores is below what float16 holds, that of the weight is not."""
    given = pair(dtype="float16")
    given.update(hidden=given["hidden"] * 1024, weight=given["weight"] / 1024)

    def gradient(given, **options):
        return jax.grad(lambda weight: 1e-4 * value_of({**given, "weight": weight}, **options).sum())(given["weight"])

    want = gradient({name: array.astype("float32") for name, array in given.items()})
    assert abs(want).max() > 1e-4
    near_gradient(gradient(given), want)
    near_gradient(gradient(given, budget=80000), want)


def case_divergence_makes_no_gradient_of_a_teacher_or_frozen_head():
    given = pair()
    grads = jax.grad(lambda given: value_of(given).sum())(given)
    assert all(grads[name].any() == (name in STUDENT) for name in given)

    def calls(loss):
        return str(jax.make_jaxpr(jax.grad(loss))(given["hidden"])).count("dot_general")

    every = str(jax.make_jaxpr(jax.grad(lambda given: value_of(given).sum()))(given)).count("dot_general")
    assert calls(lambda hidden: value_of(given, hidden=hidden).sum()) == every - 1


def case_divergence_under_transforms():
    given, counted = pair(n=12), numpy.arange(12) % 3 != 1
    want, masked = value_of(given), value_of(given, mask=counted)
    with jax.disable_jit():
        equal(value_of(given), want)
    heads = {name: given[name].reshape(3, 4, -1) for name in ("hidden", "teacher_hidden")}
    others = {name: array for name, array in given.items() if name not in heads}
    near(jax.vmap(lambda own, mask: value_of({**others, **own}, mask=mask))(
        heads, counted.reshape(3, 4)).reshape(-1), masked)
    grads = gradients_of(given)
    for name, grad in gradients_of(given, jax.checkpoint(value_of)).items():
        near_gradient(grad, grads[name])
    mapped = jax.vmap(jax.grad(lambda hidden, other: value_of(
        {**others, "hidden": hidden, "teacher_hidden": other}).sum()))(heads["hidden"], heads["teacher_hidden"])
    near_gradient(mapped.reshape(12, -1), jax.grad(lambda given: value_of(given).sum())(given)["hidden"])


def case_divergence_in_shard_map():
    mesh, shards, whole = two_devices("data")
    given, counted = pair(n=12), numpy.arange(12) % 3 != 1
    specs = {name: shards if "hidden" in name else whole for name in given}

    def call(given):
        return jax.shard_map(lambda given, mask: value_of(given, mask=mask), mesh=mesh, in_specs=(specs, shards),
                             out_specs=shards)(given, counted)

    near(jax.jit(call)(given), value_of(given, mask=counted))
    for name, grad in gradients_of(given, call).items():  # the head's is summed over devices
        near_gradient(grad, gradients_of(given, mask=counted)[name])


def case_derivatives_of_a_divergence_that_do_not_exist_are_refused():
    given = pair()

    def loss(hidden):
        return value_of(given, hidden=hidden).sum()

    refused(flp.UnsupportedError, "flp.jax.divergence has no second derivative", lambda: jax.grad(
        lambda hidden: jax.grad(loss)(hidden).sum())(given["hidden"]))
    refused(TypeError, "forward-mode", lambda: jax.jvp(loss, (given["hidden"],), (given["hidden"],)))
    for name in ("temperature", "teacher_temperature"):
        refused(ValueError, name + " is an array that is differentiated", lambda: jax.grad(
            lambda t: value_of(given, **{name: t}).sum())(jnp.ones(N)))


def case_unknown_rows_of_a_divergence_are_refused():
    from jax import export
    given, (rows,) = pair(), export.symbolic_shape("n")
    hidden, other = (jax.ShapeDtypeStruct((rows, depth), "float32") for depth in (24, E))
    refused(flp.UnsupportedError, "hidden has n rows under jax.export", lambda: export.export(jax.jit(
        lambda hidden, other: value_of(given, hidden=hidden, teacher_hidden=other)))(hidden, other))


def case_teacher_ids_under_jit():
    given, ids = pair(), numpy.random.default_rng(1).permutation(V)
    student = {**given, **{name: given[name][ids] for name in ("weight", "bias")}}  # its tokens in another order
    for renormalise in (True, False):  # of all tokens the same
        call = jax.jit(lambda ids: value_of(student, teacher_ids=ids, renormalise=renormalise))
        near(call(ids), value_of(given))
        for bad in (V, -1):
            assert jnp.isnan(call(numpy.where(ids == 5, bad, ids))).all()


def case_a_kind_of_a_file():
    given = pair()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "own.lua"
        path.write_text("return {loss = function(row) local log_q = row.target_logprob\n"
                        "return row.weight * sum(exp(log_q) * (log_q - row.teacher_logprob)) end}")
        near(value_of(given, kind=str(path)), value_of(given))
        for name, grad in gradients_of(given, kind=str(path)).items():
            near_gradient(grad, gradients_of(given)[name])


def case_bad_arguments_of_a_divergence_name_the_field():
    given = pair()

    def ask(said, **changes):
        return said(lambda: flp.jax.divergence(**{**given, **changes}))

    answers("divergence.txt", ask, given)


STRICT = """
import jax, jax.numpy as jnp, flp.jax
ones = jnp.ones((2, 8))
try:
    print(jax.block_until_ready(flp.jax.divergence(ones, 1e9 * jnp.ones((4, 8)), ones, jnp.ones((4, 8)))))
except jax.errors.JaxRuntimeError as error:
    print(error)
"""


def case_strict_mode_refuses_scores_that_are_beyond():
    said = run_python(STRICT, FLP_STRICT="1", XLA_PYTHON_CLIENT_PREALLOCATE="false")
    assert "flp: FLP_ERROR_DATA: " in said or "FLP_ERROR_UNAVAILABLE" in said, said
