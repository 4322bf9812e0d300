"""Several targets a row on the command line: --targets K and losses over them."""
import math

import numpy
import pytest
import torch

from flp_exact_divergences import DIVERGENCES, divergence_of
from flpgen_tool import FAKE, findings, flpgen, needs_fake, needs_flpgen, read_safetensors, succeed, write_safetensors

pytestmark = needs_flpgen

HEAD = ["--vocab", 1000, "--hidden", 64]
DEMO = ["run", "--demo", *HEAD, "--rows", 90, "--rung", "eager"]


# ---- run ----

def test_a_demonstration_is_near_fp64():
    document = flpgen(*DEMO, "--targets", 7, "--grad", "hidden", "--json").json()
    assert document["spec"]["targets"] == 7 and document["active_rows"] == 60
    assert 0 <= document["fp64"]["logprob_error"] < 1e-5 and "targets=7" in document["plan"]


ROWS, DEPTH, VOCAB, COUNT = 4, 8, 11, 3
TARGETS = [0, 10, 5, 3, -100, 3, -100, -100, -100, 7, 7, 1]


def operands(target, shape, grad):
    values = (numpy.arange(VOCAB * DEPTH) * 37 % 23 - 11) / 8
    return {"hidden": floats([2, 2, DEPTH], values[:ROWS * DEPTH]), "weight": floats([VOCAB, DEPTH], values),
            "target": ("I64", numpy.reshape(target, shape)), "grad_logprob": floats(shape, grad)}


def floats(shape, values):
    return "F32", numpy.reshape(numpy.array(values, "<f4"), shape)


def run_file(folder, name, *words, **arrays):
    source, out = folder / f"{name}.safetensors", folder / f"{name}.out"
    write_safetensors(source, **arrays)
    succeed("run", "-i", source, "-o", out, "--rung", "eager", "--grad", "hidden,weight", *words)
    return read_safetensors(out)


def test_tensors_of_a_file_are_calls_of_one_target_each(tmp_path):
    grad = [0.5 + i / 8 for i in range(ROWS * COUNT)]
    many = run_file(tmp_path, "many", "--targets", COUNT, **operands(TARGETS, [2, 2, COUNT], grad))
    assert many["logprob"].shape == (2, 2, COUNT) and many["entropy"].shape == (2, 2)
    assert many["grad_hidden"].shape == (2, 2, DEPTH)
    ones = [run_file(tmp_path, f"one{k}", **operands(TARGETS[k::COUNT], [2, 2], grad[k::COUNT])) for k in range(COUNT)]
    assert numpy.array_equal(many["logprob"], numpy.stack([one["logprob"] for one in ones], -1))
    for name in ("grad_hidden", "grad_weight"):
        assert many[name] == pytest.approx(sum(one[name] for one in ones), abs=1e-6)


# ---- losses over several targets ----

@pytest.mark.parametrize("loss", [*DIVERGENCES, "forward_kl+jsd"])
def test_a_demonstration_of_a_step(loss):
    document = flpgen(*DEMO, "--targets", 7, "--loss", loss, "--json").json()
    assert document["loss"]["name"] == loss and document["loss"]["mode"].startswith("recompute")
    assert document["fp64"]["logprob_error"] < 1e-5
    assert set(document["loss"]["metrics"]) - {"acceptance"} == set(loss.split("+"))
    assert 0 < document["loss"]["mean"] < 20
    other = flpgen(*DEMO, "--targets", 7, "--loss", loss, "--seed", 2, "--json").json()
    assert other["loss"]["mean"] != document["loss"]["mean"]


def divergence(loss, p, q):
    """Of one row. p, q: the teacher's and the student's probabilities of its targets."""
    p, q = (torch.tensor(shares, dtype=torch.float64).log() for shares in (p, q))
    return divergence_of(loss, q, p)[0].item()


TEACHER = [math.log(share) for share in (0.5, 0.25, 0.125, 0.1, 0.9, 0.2, 0.3, 0.3, 0.3, 0.001, 0.002, 0.7)]
APART = [0, 10, 5, 3, -100, 4, -100, -100, -100, 7, 8, 1]


def distilled(**change):
    given = operands(APART, [2, 2, COUNT], [0.0] * ROWS * COUNT)
    del given["grad_logprob"]
    teacher = [math.nan if id < 0 else value for id, value in zip(APART, TEACHER)]
    return {**given, "teacher_logprob": floats([2, 2, COUNT], teacher), **change}


def shares_of(logprob):
    """Probabilities of each row's targets that are not ignored."""
    return [[math.exp(logprob[at]) for at in range(row * COUNT, (row + 1) * COUNT) if APART[at] >= 0]
            for row in range(ROWS)]


def forward(folder, arrays):
    nothing = floats([2, 2, COUNT], [0.0] * ROWS * COUNT)
    found = run_file(folder, "forward", "--targets", COUNT, **{**arrays, "grad_logprob": nothing})
    return shares_of(found["logprob"].ravel().tolist())


@pytest.mark.parametrize("loss", [loss for loss in DIVERGENCES if loss != "lk"])  # whose blend differences do not hold
def test_a_step_of_a_file_is_the_formula(tmp_path, loss):
    """The loss by hand, its gradient by differences of hidden."""
    row_weight = [1.0, 0.5, 3.0, 2.0]
    arrays = distilled(row_weight=floats([2, 2], row_weight))
    teacher = shares_of(TEACHER)
    found = run_file(tmp_path, "step", "--targets", COUNT, "--loss", loss, **arrays)
    assert found["loss"].shape == found[f"metrics.{loss}"].shape == (2, 2) and found["logprob"].shape == (2, 2, COUNT)
    got = found["loss"].ravel().tolist()
    wanted = [weight * divergence(loss, p, q) if p else 0 for weight, p, q in
              zip(row_weight, teacher, forward(tmp_path, arrays))]
    assert got == pytest.approx(wanted, rel=1e-5) and got[2] == 0 and min(got[0], got[1], got[3]) > 0
    slopes, step = found["grad_hidden"].ravel(), 1 / 64
    for at in (0, DEPTH + 3, 3 * DEPTH + 7):
        ends = []
        for sign in (1, -1):
            moved = arrays["hidden"][1].copy()
            moved.reshape(-1)[at] += sign * step
            q = forward(tmp_path, {**arrays, "hidden": ("F32", moved)})[at // DEPTH]
            ends.append(row_weight[at // DEPTH] * divergence(loss, teacher[at // DEPTH], q))
        assert slopes[at] == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=2e-2, abs=2e-4)
    assert not slopes[2 * DEPTH:3 * DEPTH].any()


def test_a_teacher_of_another_name_is_found(tmp_path):
    arrays = distilled()
    arrays["mine"] = arrays.pop("teacher_logprob")
    source = tmp_path / "named.safetensors"
    words = ["--targets", COUNT, "--loss", "jsd"]
    found = run_file(tmp_path, "named", *words, "--teacher-logprob", f"{source}:mine", **arrays)
    assert numpy.array_equal(found["loss"], run_file(tmp_path, "step", *words, **distilled())["loss"])


@pytest.mark.long
@needs_fake
def test_check_leaves_out_the_rung_that_has_no_such_kernels(tmp_path):
    """Generic kernels have no losses over several targets: that is no finding, and alone it is nothing to check."""
    words = ["check", *HEAD, "--rows", 5, "--grad", "hidden", "--targets", 4, "--loss", "jsd", "-q"]
    on_fake = {"FLP_CUDA_LIBRARY": FAKE, "FAKE_CUDA": "capability=9.0;fill=1", "cache": tmp_path}
    rows = findings(flpgen(*words, "--json", **on_fake).json())
    rungs = {row["rung"] for row in rows}
    assert {"jit", "eager"} <= rungs and "generic" not in rungs
    assert "run" not in {row["output"] for row in rows}
    alone = flpgen(*words, "--rung", "generic", **on_fake)
    assert alone.code == 3 and "nothing was checked: no rung that was asked for has kernels for this" in alone.err
