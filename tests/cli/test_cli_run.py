"""flpgen run: values in float64, files that do not fit, files that are hostile."""
import json
import os
import pty
import struct
import subprocess

import numpy
import pytest

from flp_arrays import exact_of
from flpgen_tool import FLPGEN, flpgen, from_bf16, needs_flpgen, read_safetensors, succeed, to_bf16, write_safetensors

pytestmark = needs_flpgen

N, V, D = 140, 53, 16  # more rows than one block of the CPU rung


def problem(dtype="BF16", bias=False, seed=7):
    """Tensors as write_safetensors takes them, and the same in fp64."""
    random = numpy.random.default_rng(seed)
    plain = {"hidden": random.standard_normal((2, N // 2, D)), "weight": random.standard_normal((V, D))}
    if bias:
        plain["bias"] = random.standard_normal(V)
    stored, exact = {}, {}
    for name, values in plain.items():
        if dtype == "BF16":
            stored[name] = (dtype, to_bf16(values).reshape(values.shape))
            exact[name] = from_bf16(stored[name][1]).astype("f8")
        else:
            stored[name] = (dtype, values.astype("<f2" if dtype == "F16" else "<f4"))
            exact[name] = stored[name][1].astype("f8")
    target = random.integers(0, V, (2, N // 2))
    target.reshape(-1)[::3] = -100
    stored["target"] = ("I64", target)
    exact["target"] = target.reshape(-1)
    return stored, exact


def close(got, wanted, tolerance):
    wanted = wanted.reshape(got.shape)
    scale = max(float(numpy.sqrt((wanted ** 2).mean())), 1e-30)
    error = float(numpy.sqrt(((got.astype("f8") - wanted) ** 2).mean())) / scale
    assert error <= tolerance, f"relative L2 error {error}"


@pytest.mark.parametrize("dtype, tolerance", [("BF16", 1e-2), ("F16", 2e-3), ("F32", 1e-5)])
@pytest.mark.parametrize("bias", [False, True])
def test_values_and_gradients_against_numpy(tmp_path, dtype, tolerance, bias):
    stored, exact = problem(dtype, bias)
    random = numpy.random.default_rng(3)
    g, e = random.standard_normal((2, N))
    g, e = g.astype("<f4"), e.astype("<f4")
    temperature = random.uniform(0.5, 2.0, N).astype("<f4")
    source = write_safetensors(tmp_path / "in.safetensors", **stored, grad_logprob=("F32", g), grad_entropy=("F32", e),
                               temperature=("F32", temperature))
    out = tmp_path / "out.safetensors"
    succeed("run", "--input", source, "--output", out, "--rung", "eager", "--softcap", "20", "--scale", "0.5")
    got = read_safetensors(out)
    wanted = exact_of(exact, g, e, temperature=temperature.reshape(2, -1), scale=0.5, softcap=20.0)
    assert got["logprob"].shape == (2, N // 2) and got["grad_hidden"].shape == (2, N // 2, D)
    assert sorted(got) == sorted(["logprob", "entropy", "grad_hidden", "grad_weight"] + ["grad_bias"] * bias)
    for name in got:
        close(got[name], wanted[name], 1e-5 if name in ("logprob", "entropy") else tolerance)
    assert (got["logprob"].reshape(-1)[::3] == 0).all() and (got["grad_hidden"].reshape(N, D)[::3] == 0).all()


def mixture(narrow, wide):
    """Tensors of which `wide` are F32 and the others `narrow`, and what they are: as stored, and all rounded."""
    (kept, exact), (rounded, values) = problem("F32", bias=True), problem(narrow, bias=True)
    stored = {name: kept[name] if name in wide else rounded[name] for name in rounded}
    return stored, {name: exact[name] if name in wide else values[name] for name in values}, values


@pytest.mark.parametrize("mixed, wide", [("round", ("weight",)), ("round", ("weight", "bias")), ("round", ("hidden",)),
                                         ("round", ("bias",)), ("split", ("weight",)), ("split", ("hidden",))])
@pytest.mark.parametrize("narrow, error, tolerance", [("BF16", 2e-4, 1e-2), ("F16", 2e-5, 2e-3)])
def test_tensors_of_two_dtypes(tmp_path, narrow, error, tolerance, mixed, wide):
    stored, exact, rounded = mixture(narrow, wide)
    g = numpy.random.default_rng(3).standard_normal(N).astype("<f4")
    head = write_safetensors(tmp_path / "head.safetensors", **{"lm_head.weight": stored.pop("weight")})
    data = write_safetensors(tmp_path / "data.safetensors", **stored, grad_logprob=("F32", g))
    out = tmp_path / "out.safetensors"
    done = succeed("run", "-i", head, "-i", data, "-o", out, "--mixed", mixed, "--rung", "eager", "--json")
    got = read_safetensors(out)
    wanted = exact_of(rounded if mixed == "round" else exact, g)
    for name in ("logprob", "entropy"):
        close(got[name], wanted[name], 1e-5 if mixed == "round" else error)
    for name in ("hidden", "weight", "bias"):
        close(got[f"grad_{name}"], wanted[f"grad_{name}"], tolerance)
    sizes = {"BF16": 2, "F16": 2, "F32": 4}
    header = json.loads(out.read_bytes()[8:].split(b"}}", 1)[0] + b"}}")
    assert {name: sizes[header[f"grad_{name}"]["dtype"]] for name in ("hidden", "weight", "bias")} == \
        {name: 4 if name in wide else 2 for name in ("hidden", "weight", "bias")}
    assert done.json()["spec"]["mixed"] == mixed


@pytest.mark.parametrize("pad", range(8))
@pytest.mark.parametrize("wide", ["all", "weight"])
def test_data_at_any_alignment(tmp_path, wide, pad):
    stored, exact = problem("F32")
    options = []
    if wide == "weight":
        (stored, _, exact), options = mixture("BF16", ("weight", "bias")), ["--mixed", "round"]
    source = write_safetensors(tmp_path / "in.safetensors", pad=pad, **stored)
    out = tmp_path / "out.safetensors"
    succeed("run", "--input", source, "--output", out, "--rung", "eager", *options)
    close(read_safetensors(out)["logprob"], exact_of(exact)["logprob"], 1e-5)


def test_tensors_by_name_from_several_files(tmp_path):
    stored, exact = problem()
    head = write_safetensors(tmp_path / "head.safetensors", **{"lm_head.weight": stored["weight"]})
    data = write_safetensors(tmp_path / "data.safetensors", states=stored["hidden"], labels=stored["target"])
    out = tmp_path / "out.safetensors"
    done = succeed("run", "-i", head, "-i", data, "--hidden", f"{data}:states", "--temperature", "0.7", "-o", out,
                   "--entropy", "none", "--json", "--rung", "eager")
    got = read_safetensors(out)
    assert list(got) == ["logprob"]
    close(got["logprob"], exact_of(exact, temperature=0.7)["logprob"], 1e-5)
    document = done.json()
    assert document["rows"] == N and document["active_rows"] == N - len(range(0, N, 3))
    assert document["rung"] == "eager" and document["output"] == str(out)
    assert document["entropy"] is None and document["logprob"]["nan_rows"] == 0
    assert document["memory"]["naive_scores_bytes"] == N * V * 4
    assert document["memory"]["peak_bytes"] > document["memory"]["workspace_bytes"] > 0


def test_only_the_gradients_asked_for(tmp_path):
    stored, exact = problem("F32")
    g = numpy.ones(N, "<f4")
    source = write_safetensors(tmp_path / "in.safetensors", **stored, grad_logprob=("F32", g))
    out = tmp_path / "out.safetensors"
    succeed("run", "-i", source, "-o", out, "--grad", "weight", "--rung", "eager")
    got = read_safetensors(out)
    assert sorted(got) == ["entropy", "grad_weight", "logprob"]
    close(got["grad_weight"], exact_of(exact, g)["grad_weight"], 1e-5)


def test_bad_rows_are_nan_and_exit_1(tmp_path):
    stored, exact = problem()
    stored["target"][1][0, 1] = V
    source = write_safetensors(tmp_path / "in.safetensors", **stored)
    out = tmp_path / "out.safetensors"
    done = flpgen("run", "-i", source, "-o", out, "--json", "--rung", "eager")
    assert done.code == 1
    assert done.err.startswith("flpgen run: 1 row or row id was bad")
    assert json.loads(done.out)["logprob"]["nan_rows"] == 1
    got, wanted = (values["logprob"].reshape(-1) for values in (read_safetensors(out), exact_of(exact)))
    assert numpy.isnan(got[1])
    close(numpy.delete(got, 1), numpy.delete(wanted, 1), 1e-5)


def test_a_bad_row_counts_once_though_backward_meets_it_again(tmp_path):
    stored, _ = problem()
    stored["target"][1][0, 1] = V
    source = write_safetensors(tmp_path / "in.safetensors", **stored, grad_logprob=("F32", numpy.ones(N)))
    done = flpgen("run", "-i", source, "--json", "--rung", "eager")
    assert done.code == 1 and done.json()["bad_rows"].startswith("1 row or row id was bad")


def test_no_rows(tmp_path):
    source = write_safetensors(tmp_path / "in.safetensors", hidden=("F32", numpy.zeros((0, 8))),
                               weight=("F32", numpy.zeros((4, 8))), target=("I32", numpy.zeros(0)))
    out = tmp_path / "out.safetensors"
    succeed("run", "-i", source, "-o", out, "--rung", "eager")
    assert read_safetensors(out)["logprob"].shape == (0,)


def test_a_hostile_file_is_refused_in_json_too(tmp_path):
    path, header = tmp_path / "hostile.safetensors", b'{"hidden":' + b"[" * 5000
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    done = flpgen("run", "--input", path, "--json")
    assert done.code == 4 and done.err.startswith(f"flpgen run: {path}: ")
    assert done.json()["error"]["status"] == "FLP_ERROR_CORRUPT"


def test_a_pipe_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert flpgen("run", "-i", tmp_path / "pipe", timeout=600).code == 4, "a pipe must not be waited for"


def test_demo():
    options = ["run", "--demo", "--vocab", 3000, "--hidden", 64, "--rung", "eager"]
    document = flpgen(*options, "--json").json()
    assert document["rows"] == 256 and document["active_rows"] == 171, "a third is masked"
    assert document["spec"]["vocab"] == 3000 and document["rung"] == "eager"
    assert len(document["fp64"]["rows"]) == 8
    assert 0 <= document["fp64"]["logprob_error"] < 1e-5 and 0 <= document["fp64"]["entropy_error"] < 1e-5
    assert document["logprob"] == flpgen(*options, "--json").json()["logprob"], "the same data every time"
    text = flpgen(*options)
    assert text.code == 0 and "\r" not in text.out + text.err, "no progress in a pipe"
    for label in ("logprob", "entropy", "against fp64", "peak memory", "naive peak"):
        assert any(line.startswith(label) for line in text.out.splitlines()), label


def test_progress_on_a_terminal(tmp_path):
    stored, _ = problem()
    source = write_safetensors(tmp_path / "in.safetensors", **stored)
    for quiet, expected in ([], True), (["--quiet"], False):
        try:
            ours, theirs = pty.openpty()
        except OSError as error:
            pytest.skip(f"no pseudo-terminal can be had here: {error}")
        code = subprocess.run([FLPGEN, "run", "-i", source, "--rung", "eager", *quiet], stderr=theirs,
                              stdout=subprocess.DEVNULL, timeout=600).returncode
        os.write(theirs, b"end")
        shown = ""
        while "end" not in shown:  # a read gives what has arrived so far
            shown += os.read(ours, 65536).decode()
        os.close(ours)
        os.close(theirs)
        assert code == 0
        assert ("forward [" in shown and "100%" in shown) == expected


def test_a_tail_leaves_nothing_out():
    words = ["run", "--demo", "--vocab", 500, "--hidden", 64, "--rows", 90, "--grad", "hidden", "--rung", "eager"]
    document = flpgen(*words, "--tail", "2^-9", "--json").json()
    assert document["spec"]["tail"] == 2**-9
    assert document["tail_report"] == {"left": 0, "sum": 0, "dense_rows": 0, "columns": 0}
    assert flpgen(*words, "--json").json()["tail_report"] is None
    assert "left out 0 of the scores' gradient, at most 2^-9" in flpgen(*words, "--tail", "2^-9").out.replace("\n             ", " ")


# ---- an adapter on the head ----

R, S = 8, 0.75


def adapted(dtype="F32"):
    """A problem with an adapter: the files' tensors, and in fp64 the head with it merged in."""
    stored, exact = problem(dtype)
    random = numpy.random.default_rng(11)
    for name, shape in (("lora_a", (R, D)), ("lora_b", (V, R))):
        values = 0.3 * random.standard_normal(shape)
        stored[name] = (dtype, values.astype("<f4"))
        exact[name] = stored[name][1].astype("f8")
    stored["grad_logprob"] = ("F32", random.standard_normal((2, N // 2)).astype("f4"))
    merged = {**exact, "weight": exact["weight"] + S * exact["lora_b"] @ exact["lora_a"]}
    return stored, exact, merged


def run_adapter(folder, stored, *more):
    write_safetensors(folder / "in.safetensors", **stored)
    return flpgen("run", "-i", folder / "in.safetensors", "-o", folder / "out.safetensors", "--rung", "eager", *more)


def test_an_adapter_gives_values_and_gradients(tmp_path):
    stored, exact, merged = adapted()
    done = run_adapter(tmp_path, stored, "--lora-scale", S)
    assert done.code == 0, done.err
    got = read_safetensors(tmp_path / "out.safetensors")
    g = stored["grad_logprob"][1].reshape(-1).astype("f8")
    want = exact_of(merged, g)
    of_weight = want["grad_weight"].reshape(V, D)
    want["grad_lora_a"], want["grad_lora_b"] = S * exact["lora_b"].T @ of_weight, S * of_weight @ exact["lora_a"].T
    for name in ("logprob", "entropy", "grad_hidden", "grad_lora_a", "grad_lora_b"):
        assert numpy.allclose(numpy.asarray(got[name], "f8").reshape(-1), want[name].reshape(-1), atol=2e-5), name
    assert "grad_weight" not in got
    assert got["grad_lora_a"].shape == (R, D) and got["grad_lora_b"].shape == (V, R)


def test_an_adapter_of_scale_0_is_off(tmp_path):
    stored, _, _ = adapted()
    off = run_adapter(tmp_path, stored, "--lora-scale", 0, "--grad", "hidden")
    assert off.code == 0, off.err
    without = read_safetensors(tmp_path / "out.safetensors")
    plain = {name: value for name, value in stored.items() if not name.startswith("lora")}
    assert run_adapter(tmp_path, plain, "--grad", "hidden").code == 0
    for name, value in read_safetensors(tmp_path / "out.safetensors").items():
        assert numpy.array_equal(value, without[name]), name


def test_a_demonstration_draws_an_adapter():
    record = succeed("run", "--demo", "--vocab", 900, "--hidden", 64, "--rows", 24, "--lora-rank", 16, "--rung",
                     "eager", "--json", "--grad", "hidden,lora_b").json()
    assert record["spec"]["lora_rank"] == 16 and record["fp64"]["logprob_error"] < 1e-4, record
