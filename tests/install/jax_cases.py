#!/usr/bin/env python3
"""What flp.jax does, case by case, on the device that jax picks; for a Python with jax and numpy and nothing else.

    FLP_LIBRARY=build/release/lib/libflp.so PYTHONPATH=runtime/python python3 tests/install/jax_cases.py [CASE ...]

A case is a function case_NAME here or in jax_pairs.py. --json FILE writes {name: null, or why it failed, or "skipped:
..."}. test_jax.py runs them all on the CPU; jax_rows.py has every option and edge of a call. Exit status 1 if a case
failed.
"""
import argparse
import inspect
import json
import os
import sys
import tempfile
import threading
import traceback
from pathlib import Path

import jax_pairs
from jax_problem import (D, N, TREE, V, Skipped, answers, equal, formula, near, near_gradient, passes, problem, refused,
                         run_python, two_devices)

import jax
import jax.numpy as jnp
import numpy

import flp
import flp.jax
from flp._library import _c, _programs
from flp.jax import _library


def made_by(function, target, operands, options):
    """(logprob, entropy) and the gradients of the operands, of one program."""
    def loss(*operands):
        made = function(*operands[:2], target, *operands[2:], **options)
        return (made[0] * numpy.linspace(-1, 1, N) + made[1] * numpy.linspace(0, 1, N)).sum(), made

    grads, made = jax.jit(jax.grad(loss, tuple(range(len(operands))), has_aux=True))(*operands)
    return made, grads


# ---- numbers

def case_agrees_with_the_formula_in_jax():
    """In float64, on whatever device this is; jax_rows.py has more, beside torch."""
    for dtype, bias, options in (
            ("float32", False, {}), ("bfloat16", True, {}), ("float16", False, {"softcap": 3.0, "scale": 0.5}),
            ("float32", True, {"temperature": numpy.linspace(0.5, 2, N), "ignore_index": 7})):
        hidden, weight, target, offset = problem(dtype=dtype, bias=bias)
        target, operands = target.at[::3].set(7), [hidden, weight, *([offset] if bias else [])]
        made, grads = made_by(flp.jax.linear_logprob, target, operands, {**options, "entropy": True})
        jax.config.update("jax_enable_x64", True)
        try:
            want = made_by(formula, target, [jnp.asarray(operand, "float64") for operand in operands], options)
        finally:
            jax.config.update("jax_enable_x64", False)
        for mine, other in zip(made, want[0]):
            near(mine, other)
        for mine, other in zip(grads, want[1]):
            near_gradient(mine, other)


def case_a_weight_with_an_adapter_has_no_gradient():
    hidden, weight, target, _ = problem()
    adapter = weight[:3] * 0.2, weight[:, :3]
    refused(ValueError, "weight is an array that is differentiated (accepted: with lora one", lambda: jax.grad(
        lambda w: flp.jax.linear_logprob(hidden, w, target, lora=flp.jax.Lora(*adapter)).sum())(weight))


def case_a_temperature_in_an_array_changes_without_compiling():
    hidden, weight, target, _ = problem()
    call = jax.jit(lambda temperature: flp.jax.linear_logprob(hidden, weight, target, temperature=temperature))
    for temperature in (0.5, 2.0):
        near(call(jnp.float32(temperature)), flp.jax.linear_logprob(hidden, weight, target, temperature=temperature))
    assert call._cache_size() == 1


def mixture(wide, dtype):
    """hidden, weight, bias of which `wide` are float32, and all of them rounded to dtype; target."""
    hidden, weight, target, bias = problem(bias=True)
    exact = {"hidden": hidden, "weight": weight, "bias": bias}
    narrow = {name: array.astype(dtype) for name, array in exact.items()}
    return {name: exact[name] if name in wide else narrow[name] for name in exact}, narrow, target


def case_operands_of_two_dtypes():
    for wide, dtype in ((("weight",), "bfloat16"), (("weight", "bias"), "float16"), (("hidden",), "bfloat16"),
                        (("bias",), "bfloat16")):
        given, narrow, target = mixture(wide, dtype)

        def loss(operands, mixed):
            logprob, entropy = flp.jax.linear_logprob(target=target, entropy=True, mixed=mixed, **operands)
            return (logprob + 0.1 * entropy).sum(), (logprob, entropy)

        step = jax.jit(jax.value_and_grad(loss, has_aux=True), static_argnums=1)
        ((_, got), grads), ((_, want), before) = step(given, "round"), step(narrow, None)
        for mine, other in zip(got, want):
            assert (mine == other).all(), (wide, dtype)
        for name, grad in grads.items():
            assert grad.dtype == given[name].dtype and (grad.astype(dtype) == before[name]).all(), (wide, dtype, name)
    one = flp.jax.linear_logprob(target=target, mixed="split", **narrow)  # one dtype needs no word
    assert (one == flp.jax.linear_logprob(target=target, **narrow)).all()


def case_ids_of_64_bits_do_not_wrap():
    """numpy's int64, which JAX cuts to 32 bits by default: what int32 does not hold is a bad id, or ignore_index."""
    hidden, weight, target, _ = problem()
    ids = numpy.array(target, numpy.int64)
    want = numpy.asarray(flp.jax.linear_logprob(hidden, weight, ids))
    equal(want, flp.jax.linear_logprob(hidden, weight, target))
    for ignore_index in (-100, -1, 2**40, -2**31, -2**31 + 1, 2**32 - 100):
        far = ids.copy()
        far[:7] = 2**32 + 1, 2**32 - 100, -2**63, 2**63 - 1, 2**31, -2**31 + 1, -1
        far[7] = ignore_index
        got = numpy.asarray(flp.jax.linear_logprob(hidden, weight, far, ignore_index=ignore_index))
        ignored = far == ignore_index
        assert (got[ignored] == 0).all() and numpy.isnan(got[:7][~ignored[:7]]).all(), (ignore_index, got)
        equal(got[8:], want[8:])
    hot = flp.jax.linear_logprob(hidden, weight, ids, temperature=numpy.full(N, 2**32 + 1))
    near(hot, -numpy.log(V) * numpy.ones(N), 1e-4)


# ---- what is computed

def case_gradients_only_of_what_is_differentiated():
    hidden, weight, target, bias = problem(bias=True)

    def loss(hidden, weight, bias):
        return flp.jax.linear_logprob(hidden, weight, target, bias).sum()

    every = ("grad_hidden", "grad_weight", "grad_bias")
    for wanted in ((0,), (1,), (0, 2), (0, 1, 2)):
        names = tuple(every[place] for place in wanted)
        for function in (loss, jax.jit(loss), jax.checkpoint(loss)):
            *_, (_, results) = passes(jax.grad(function, wanted), hidden, weight, bias)
            assert results == names, results
    frozen = jax.grad(lambda *operands: loss(operands[0], jax.lax.stop_gradient(operands[1]), operands[2]), (0, 1))
    assert passes(frozen, hidden, weight, bias)[-1][1] == ("grad_hidden",)
    assert not frozen(hidden, weight, bias)[1].any()


def case_stats_and_entropy_only_where_they_are_used():
    hidden, weight, target, _ = problem()
    assert passes(lambda h: flp.jax.linear_logprob(h, weight, target), hidden)[0][1] == ("logprob",)
    unused = jax.grad(lambda h: flp.jax.linear_logprob(h, weight, target, entropy=True)[0].sum())
    (_, forward), (operands, _) = passes(unused, hidden)
    assert forward == ("logprob", "entropy", "stats") and "grad_entropy" not in operands
    alone = jax.grad(lambda h: flp.jax.linear_logprob(h, weight, target, entropy=True)[1].sum())
    assert "grad_logprob" not in passes(alone, hidden)[1][0]
    near_gradient(alone(hidden), jax.grad(lambda h: formula(h, weight, target)[1].sum())(hidden))
    assert passes(jax.grad(lambda scale: scale * flp.jax.linear_logprob(hidden, weight, target).sum()), 1.0)[0][1] == (
        "logprob",)


def case_calls_share_programs_and_plans():
    hidden, weight, target, _ = problem(seed=3)
    step = jax.jit(jax.value_and_grad(lambda h: flp.jax.linear_logprob(h, weight, target, softcap=7.5).sum()))
    before = _library.plan_count()
    first = step(hidden)
    made = _library.plan_count() - before
    devices = 1 if jax.default_backend() == "cpu" else len(jax.local_devices())
    assert made == 2 * devices, made  # forward and backward: what tracing asked for is what runs
    for _ in range(3):
        equal(step(hidden), first)
    equal(flp.jax.linear_logprob(hidden, weight, target, softcap=7.5).sum(), first[0])
    assert _library.plan_count() == before + made


def case_a_budget_is_kept():
    if jax.default_backend() != "cpu":
        raise Skipped("the sizes are those of the CPU")
    hidden, weight, target, _ = problem(n=512)

    def workspace(budget):
        call = jax.jit(lambda h: flp.jax.linear_logprob(h, weight, target, budget=budget))
        text = call.lower(hidden).as_text()
        return call, int(text.split("xui8>")[0].rsplit("tensor<", 1)[1])

    (roomy, most), (tight, least) = workspace(None), workspace(192 << 10)
    assert 0 < least <= (192 << 10) + 256 < most
    near(tight(hidden), numpy.asarray(roomy(hidden), "float64"), 1e-5)
    refused(flp.BudgetError, "budget: 1 bytes are too few", lambda: workspace("1"))


# ---- transforms

def case_vmap_of_rows():
    hidden, weight, target, bias = problem(n=12, bias=True)
    heads = hidden.reshape(3, 4, D), target.reshape(3, 4)
    several = jax.vmap(lambda y: flp.jax.linear_logprob(hidden, weight, y))(jnp.stack([target, target[::-1]]))
    equal(several[1], flp.jax.linear_logprob(hidden, weight, target[::-1]))
    grad = jax.vmap(jax.grad(lambda h, y: flp.jax.linear_logprob(h, weight, y, bias).sum()))(*heads)
    equal(grad.reshape(12, D), jax.grad(lambda h: flp.jax.linear_logprob(h, weight, target, bias).sum())(hidden))


def case_vmap_of_an_empty_batch():
    hidden, weight, target, _ = problem(n=12)

    def head(h, y):
        return flp.jax.linear_logprob(h, weight, y, entropy=True)

    for batch, n in ((0, 4), (3, 0), (0, 0)):
        h, y = jnp.zeros((batch, n, D)), jnp.zeros((batch, n), "int32")
        assert [result.shape for result in jax.vmap(head)(h, y)] == [(batch, n)] * 2
        assert jax.vmap(head, (1, 0))(h.swapaxes(0, 1), y)[0].shape == (batch, n)
        assert jax.vmap(jax.grad(lambda h, y: head(h, y)[0].sum()))(h, y).shape == h.shape
    assert jax.vmap(lambda y: head(hidden, y)[0])(jnp.zeros((0, 12), "int32")).shape == (0, 12)


def case_vmap_that_would_cost_a_head_each_is_refused():
    hidden, weight, target, _ = problem(n=12)
    heads = hidden.reshape(3, 4, D), target.reshape(3, 4)
    words = "the gradient of weight for each of a batch (accepted: leading dimensions"
    refused(flp.UnsupportedError, words, lambda: jax.grad(
        lambda w: jax.vmap(lambda h, y: flp.jax.linear_logprob(h, w, y))(*heads).sum())(weight))
    for option, given in (("list_offsets", {"keep": (jnp.arange(5), target[:4])}), ("rows", {"rows": target[:4]})):
        refused(flp.UnsupportedError, option + ", which is of all rows (accepted: leading dimensions", lambda: jax.vmap(
            lambda h, y: flp.jax.linear_logprob(h, weight, y, **given))(*heads))
    refused(flp.UnsupportedError, "a batch of weight", lambda: jax.vmap(
        lambda w: flp.jax.linear_logprob(hidden, w, target))(jnp.stack([weight, weight])))


def case_scan_and_checkpoint():
    hidden, weight, target, _ = problem(n=12)

    def loss(weight):
        def body(total, rows):
            return total + flp.jax.linear_logprob(rows[0], weight, rows[1]).sum(), None
        return jax.lax.scan(body, 0.0, (hidden.reshape(3, 4, D), target.reshape(3, 4)))[0]

    want = jax.grad(lambda weight: flp.jax.linear_logprob(hidden, weight, target).sum())(weight)
    for function in (loss, jax.checkpoint(loss)):
        near_gradient(jax.jit(jax.grad(function))(weight), want)


def case_derivatives_that_do_not_exist_are_refused():
    hidden, weight, target, _ = problem()

    def loss(hidden):
        return flp.jax.linear_logprob(hidden, weight, target).sum()

    refused(flp.UnsupportedError, "no second derivative", lambda: jax.grad(lambda h: jax.grad(loss)(h).sum())(hidden))
    refused(TypeError, "forward-mode", lambda: jax.jvp(loss, (hidden,), (hidden,)))
    refused(ValueError, "temperature is an array that is differentiated", lambda: jax.grad(
        lambda t: flp.jax.linear_logprob(hidden, weight, target, temperature=t).sum())(jnp.ones(N)))


def case_without_jit():
    hidden, weight, target, _ = problem()
    want = flp.jax.linear_logprob(hidden, weight, target)
    with jax.disable_jit():
        equal(flp.jax.linear_logprob(hidden, weight, target), want)


def case_shard_map():
    mesh, shards, whole = two_devices("data")
    hidden, weight, target, bias = problem(n=12, bias=True)
    call = jax.shard_map(lambda *operands: flp.jax.linear_logprob(*operands), mesh=mesh, out_specs=shards,
                         in_specs=(shards, whole, shards, whole))
    one = flp.jax.linear_logprob(hidden, weight, target, bias)
    near(jax.jit(call)(hidden, weight, target, bias), one)

    def gradients(call):
        def loss(hidden, weight, bias):
            return (call(hidden, weight, target, bias) * numpy.linspace(-1, 1, 12)).sum()
        return jax.jit(jax.grad(loss, (0, 1, 2)))(hidden, weight, bias)

    for mine, other in zip(gradients(call), gradients(flp.jax.linear_logprob)):  # the head's is summed over devices
        near_gradient(mine, other)
    unchecked = jax.shard_map(lambda *operands: flp.jax.linear_logprob(*operands), mesh=mesh, out_specs=shards,
                              in_specs=(shards, whole, shards, whole), check_vma=False)
    near(jax.jit(unchecked)(hidden, weight, target, bias), one)


def case_a_vocabulary_divided_over_an_axis_is_refused_by_field():
    mesh, of_vocab, whole = two_devices("tp")
    hidden, weight, target, _ = problem(n=12)

    def ask(words, specs=(whole, of_vocab, whole), check_vma=True, **given):
        call = jax.shard_map(lambda *operands: flp.jax.linear_logprob(*operands, axis_name="tp", **given), mesh=mesh,
                             in_specs=specs, out_specs=whole, check_vma=check_vma)
        refused(ValueError, words, lambda: call(hidden, weight[:-1], target))

    ask("axis_name is 'tp' without check_vma", check_vma=False)
    ask("weight is the same on all devices of axis 'tp'", specs=(whole, whole, whole))
    ask("hidden is different on the devices of axis 'tp'", specs=(of_vocab,) * 3)
    ask("vocab_total is 165 (accepted: None, or 166 to 330: only the last", vocab_total=165)


def case_operands_divided_by_jit_are_gathered():
    mesh, *specs = two_devices("data")
    rows, whole = (jax.sharding.NamedSharding(mesh, spec) for spec in specs)
    hidden, weight, target, _ = problem(n=12)
    call = jax.jit(flp.jax.linear_logprob, in_shardings=(rows, whole, rows))
    near(call(hidden, weight, target), flp.jax.linear_logprob(hidden, weight, target))


def case_a_library_found_by_the_loader():
    program = "import flp.jax._library as it; print(it.library_path())"
    path = os.path.dirname(_library.library_path())
    found = run_python(program, FLP_LIBRARY="libflp.so.0", LD_LIBRARY_PATH=path).split()
    assert found == [_library.library_path()]


def case_threads():
    hidden, weight, target, _ = problem()
    wanted = [numpy.asarray(flp.jax.linear_logprob(hidden, weight, target, scale=scale)) for scale in (1.0, 0.5)]
    wrong = []

    def work(scale, want):
        call = jax.jit(lambda h: flp.jax.linear_logprob(h, weight, target, scale=scale))
        for _ in range(20):
            if not numpy.array_equal(numpy.asarray(call(hidden)), want):
                wrong.append(scale)

    threads = [threading.Thread(target=work, args=pair) for pair in zip((1.0, 0.5), wanted)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


EXPORTED = """
import sys
import jax, numpy
from jax import export
import flp.jax
operands = numpy.load(sys.argv[2])
program = export.deserialize(bytearray(open(sys.argv[1], "rb").read()))
results = program.call(*(operands[name] for name in ("hidden", "weight", "target")))
numpy.savez(sys.argv[3], *map(numpy.asarray, jax.tree.leaves(results)))
"""


def case_an_exported_program_runs_in_another_process():
    try:
        import flatbuffers  # noqa: F401
    except ImportError:
        raise Skipped("jax.export needs flatbuffers") from None
    from jax import export
    hidden, weight, target, _ = problem()

    def total(*operands):
        logprob = flp.jax.linear_logprob(*operands)
        return logprob.sum(), logprob

    step = jax.jit(jax.value_and_grad(total, (0, 1), has_aux=True))
    known = [export.DisabledSafetyCheck.custom_call(flp.jax.TARGET)]
    program = export.export(step, disabled_checks=known)(hidden, weight, target).serialize()
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        (folder / "program").write_bytes(program)
        numpy.savez(folder / "operands.npz", hidden=hidden, weight=weight, target=target)
        run_python(EXPORTED, folder / "program", folder / "operands.npz", folder / "results.npz",
                   XLA_PYTHON_CLIENT_PREALLOCATE="false")
        # The sum is XLA's, which tunes it for each process anew.
        equal(list(numpy.load(folder / "results.npz").values())[1:], jax.tree.leaves(step(hidden, weight, target))[1:])


def case_a_program_for_a_device_that_is_absent_is_refused():
    if jax.default_backend() != "cpu":
        raise Skipped("a GPU is here")
    from jax import export
    hidden, weight, target, _ = problem()
    refused(flp.UnavailableError, "compiled for CUDA, but there is no such device here", lambda: export.export(
        jax.jit(flp.jax.linear_logprob), platforms=["cuda"])(hidden, weight, target))


def case_unknown_sizes_are_refused():
    from jax import export
    _, weight, _, _ = problem()
    rows, = export.symbolic_shape("n")
    hidden, target = jax.ShapeDtypeStruct((rows, D), "float32"), jax.ShapeDtypeStruct((rows,), "int32")
    refused(flp.UnsupportedError, "hidden has n rows under jax.export", lambda: export.export(
        jax.jit(flp.jax.linear_logprob))(hidden, weight, target))


# ---- refusals

def case_bad_arguments_name_the_field():
    """Where nothing but the sizes is an array, a traced call says the same."""
    operands = dict(zip(("hidden", "weight", "target", "bias"), problem(bias=True)))
    given = {name: operands[name] for name in ("hidden", "weight", "target")}

    def ask(said, **changes):
        found = said(lambda: flp.jax.linear_logprob(**{**given, **changes}))
        if not any(isinstance(value, (jax.Array, list, tuple)) for value in changes.values()):
            traced = jax.jit(lambda hidden: flp.jax.linear_logprob(**{**given, "hidden": hidden, **changes}))
            assert said(lambda: traced(given["hidden"])) == found
        return found

    operands["mixture"] = mixture
    answers("arguments.txt", ask, operands)
    head = {"hidden": given["hidden"][None], "weight": given["weight"], "target": given["target"][None]}
    answers("losses.txt", lambda said, of, **more: said(lambda: getattr(flp.jax, of)(**{**head, **more})), operands)


NUMBERS = {"n": N, "vocab": V, "hidden": D, "dtype": _c.DTYPE_FP32, "target_dtype": _c.DTYPE_INT32,
           "workspace_bytes": 1 << 26, "pass": _c.PASS_FORWARD}


def case_the_handler_refuses_what_it_cannot_read():
    """Programs of another release of flp, or made by hand: never a read beyond a buffer."""
    hidden, weight, target, _ = problem()
    sizes = {"logprob": jax.ShapeDtypeStruct((N,), "float32"), "workspace": jax.ShapeDtypeStruct((1 << 26,), "uint8")}

    def call(inputs=(hidden, weight, target), outputs=tuple(sizes.values()), operands="hidden weight target",
             results="logprob workspace", typed=None, **changes):
        given = {name: numpy.int64(value) for name, value in {**NUMBERS, **changes}.items()}
        given.update(typed or {}, operands=operands, results=results)
        program = jax.jit(lambda *inputs: jax.ffi.ffi_call(flp.jax.TARGET, outputs)(*inputs, **given))
        return jax.block_until_ready(program(*inputs))

    equal(call()[0], flp.jax.linear_logprob(hidden, weight, target))
    refused(jax.errors.JaxRuntimeError, "FLP_ERROR_WORKSPACE",
            lambda: call(outputs=(sizes["logprob"],), results="logprob", workspace_bytes=0))
    answers("handler.txt", lambda said, **changes: said(lambda: call(**changes)),
            {"hidden": hidden, "weight": weight, "target": target, "programs": _programs, **sizes})


STRICT = """
import jax, jax.numpy as jnp, flp.jax
try:
    print(jax.block_until_ready(flp.jax.linear_logprob(jnp.ones((2, 8)), jnp.ones((4, 8)), jnp.array([1, 4]))))
except jax.errors.JaxRuntimeError as error:
    print(error)
"""


def case_strict_mode_refuses_bad_rows():
    said = run_python(STRICT, FLP_STRICT="1", XLA_PYTHON_CLIENT_PREALLOCATE="false")
    assert "flp: FLP_ERROR_DATA: " in said or "FLP_ERROR_UNAVAILABLE" in said, said


# ---- the package

def case_import_leaves_other_frameworks_alone():
    said = run_python("import sys, flp; print('jax' in sys.modules); import flp.jax; print(flp.jax.TARGET)")
    assert said.split() == ["False", "flp_linear_logprob"]
    blocked = "import sys; sys.modules['torch'] = None\nimport flp.jax\nprint(sys.modules['torch'])"
    assert run_python(blocked).split() == ["None"]


def case_the_document_runs():
    document = TREE / "runtime/python/README.md"
    if not document.exists():
        raise Skipped("no documents here")
    texts = [part.split("```")[0] for part in document.read_text().split("```python\n")[1:]]
    text, = (text for text in texts if "flp.jax" in text)
    names = {}
    exec(text, names)
    assert names["loss"].shape == () and names["grads"][1].shape == names["head"].shape and names["grads"][1].any()


# ---- running them

CASES = {name[5:]: value for name, value in sorted({**globals(), **vars(jax_pairs)}.items())
         if name.startswith("case_")}


def outcome(case):
    """None, or why it failed, or "skipped: ..."."""
    try:
        case()
    except Skipped as reason:
        return "skipped: %s" % reason
    except Exception:
        return traceback.format_exc()
    return None


def main(arguments):
    parser = argparse.ArgumentParser(description=inspect.getdoc(sys.modules[__name__]),
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="file for the outcomes")
    parser.add_argument("cases", nargs="*", metavar="CASE", help="all of them unless given")
    options = parser.parse_args(arguments)
    outcomes = {}
    for name in options.cases or CASES:
        outcomes[name] = outcome(CASES[name])
        print("%s: %s" % (name, outcomes[name] or "passed"), flush=True)
    if options.json:
        Path(options.json).write_text(json.dumps(outcomes))
    failed = [name for name, why in outcomes.items() if why and not why.startswith("skipped")]
    where = jax.__version__, jax.devices()[0].device_kind
    print("jax %s on %s: %d cases, %d failed" % (*where, len(outcomes), len(failed)))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
