"""Listed columns on the command line: values in float64."""
import numpy
import pytest
import torch

from flp_arrays import exact_of
from flpgen_tool import flpgen, from_bf16, needs_flpgen, read_safetensors, succeed, to_bf16, write_safetensors

pytestmark = needs_flpgen

N, V, D = 150, 53, 16  # more rows than a block of the CPU rung


def problem(seed=7):
    """Tensors as write_safetensors takes them, and the same in fp64; lists without an order, with repeats."""
    random = numpy.random.default_rng(seed)
    hidden, weight = (to_bf16(random.standard_normal(shape)).reshape(shape) for shape in ((N, D), (V, D)))
    target = random.integers(0, V, N)
    target[::3] = -100
    lists = []
    for row in range(N):
        own = random.choice(V, random.integers(1, 20), replace=True)
        lists.append(random.permutation(numpy.append(own, target[row])) if target[row] >= 0 else own[:row % 2])
    offsets = numpy.concatenate([[0], numpy.cumsum([len(own) for own in lists])])
    stored = {"hidden": ("BF16", hidden), "weight": ("BF16", weight), "target": ("I64", target),
              "list_offsets": ("I64", offsets), "list_ids": ("I64", numpy.concatenate(lists)),
              "grad_logprob": ("F32", random.standard_normal(N).astype("<f4"))}
    return stored, from_bf16(hidden).astype("f8"), from_bf16(weight).astype("f8")


def wanted_of(stored, hidden, weight):
    """logprob, entropy and gradients in float64, over the columns of each row's list."""
    keep = tuple(torch.tensor(stored[name][1]) for name in ("list_offsets", "list_ids"))
    arrays = {"hidden": hidden, "weight": weight, "target": stored["target"][1]}
    return exact_of(arrays, stored["grad_logprob"][1], keep=keep)


def test_tensors_of_lists_against_float64(tmp_path):
    stored, *exact = problem()
    source, out = write_safetensors(tmp_path / "in.safetensors", **stored), tmp_path / "out.safetensors"
    done = succeed("run", "-i", source, "-o", out, "--rung", "eager", "--json")
    assert done.json()["spec"]["listed"] == 1
    assert done.json()["spec"]["kept"] == pytest.approx(len(stored["list_ids"][1]) / N)
    got, wanted = read_safetensors(out), wanted_of(stored, *exact)
    for name, tolerance in (("logprob", 1e-5), ("entropy", 1e-5), ("grad_hidden", 1e-2), ("grad_weight", 1e-2)):
        error = numpy.linalg.norm(got[name].astype("f8") - wanted[name]) / numpy.linalg.norm(wanted[name])
        assert error < tolerance, f"{name}: {error}"
    unlisted = numpy.setdiff1d(numpy.arange(V), stored["list_ids"][1])
    assert (got["grad_weight"][unlisted] == 0).all()


def test_lists_by_option_and_as_int32(tmp_path):
    stored, *exact = problem()
    lists = write_safetensors(tmp_path / "lists.safetensors", begin=stored["list_offsets"],
                              ids=("I32", stored["list_ids"][1].astype("<i4")))
    rest = {name: value for name, value in stored.items() if not name.startswith("list_")}
    rest["target"] = ("I32", rest["target"][1].astype("<i4"))
    source, out = write_safetensors(tmp_path / "in.safetensors", **rest), tmp_path / "out.safetensors"
    succeed("run", "-i", source, "--list-offsets", f"{lists}:begin", "--list-ids", f"{lists}:ids", "-o", out,
            "--rung", "eager")
    numpy.testing.assert_allclose(read_safetensors(out)["logprob"], wanted_of(stored, *exact)["logprob"], atol=1e-5)


def test_rows_with_bad_lists_are_nan_and_counted(tmp_path):
    stored, *exact = problem()
    offsets, ids = stored["list_offsets"][1], stored["list_ids"][1]
    ids[offsets[4]] = V  # beyond the vocabulary
    ids[offsets[7]:offsets[8]] = (stored["target"][1][7] + 1) % V  # without the target
    ids[offsets[9]:offsets[10]] = -5  # of a masked row, whose list is not looked at
    source, out = write_safetensors(tmp_path / "in.safetensors", **stored), tmp_path / "out.safetensors"
    done = flpgen("run", "-i", source, "-o", out, "--rung", "eager", "--json")
    assert done.code == 1 and done.json()["bad_rows"].startswith("2 rows or row ids were bad")
    got, wanted = read_safetensors(out), wanted_of(stored, *exact)["logprob"]
    assert numpy.flatnonzero(numpy.isnan(got["logprob"])).tolist() == [4, 7]
    assert numpy.isnan(got["grad_hidden"]).all(1).nonzero()[0].tolist() == [4, 7]
    assert not numpy.isnan(got["grad_weight"]).any()
    good = numpy.delete(numpy.arange(N), [4, 7])
    numpy.testing.assert_allclose(got["logprob"][good], wanted[good], atol=1e-5)


def test_offsets_that_descend_make_every_row_bad(tmp_path):
    stored, *_ = problem()
    stored["list_offsets"][1][140] = 0  # in another block of rows than the first
    out = tmp_path / "out.safetensors"
    done = flpgen("run", "-i", write_safetensors(tmp_path / "in.safetensors", **stored), "-o", out, "--rung", "eager")
    active = stored["target"][1] != -100
    assert done.code == 1 and done.err.startswith(f"flpgen run: {active.sum()} rows or row ids were bad")
    assert (numpy.isnan(read_safetensors(out)["logprob"]) == active).all()


def test_demo_draws_lists():
    document = succeed("run", "--demo", "--vocab", 500, "--hidden", 64, "--rows", 90, "--keep-set", 12, "--grad",
                       "hidden", "--rung", "eager", "--json").json()
    assert document["spec"]["listed"] == 1 and 8 < document["spec"]["kept"] < 16
    assert document["fp64"]["logprob_error"] < 1e-5 and document["logprob"]["nan_rows"] == 0
    assert document["logprob"]["mean"] > -4, "of about 12 columns, not of 500"
    assert "lists" in flpgen("run", "--demo", "--vocab", 500, "--hidden", 64, "--rows", 9, "--keep-set", 20, "--rung",
                            "eager").out
