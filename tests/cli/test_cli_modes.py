"""Save, direction and stream modes on the command line: packs, the least that explain names, and steps of a loss beside
float64 torch."""
import json

import pytest
import torch

from flp_reference import doubles, problem, reference, relative
from flpgen_pack_tool import build, entries_of
from flpgen_tool import document_of, flpgen, generated, needs_flpgen, read_safetensors, succeed, write_safetensors

pytestmark = needs_flpgen

NO_GPU = {"FLP_CUDA_LIBRARY": "/nonexistent/libcuda.so.1"}
SHAPE = ["--vocab", 1000, "--hidden", 64, "--grad", "hidden,weight"]
LOSS = ["--loss", "grpo+k3", "--loss-parameter", "beta=0.5"]
FULL = ["--vocab", 151936, "--hidden", 4096, "--grad", "hidden,weight", "--rows", 8192]


# ---- kernels ----

def test_the_kernel_of_a_loss_alone_has_its_hash():
    made = {kernel["key"]["kind"]: kernel["key"]["loss"] for kernel in generated(*SHAPE, "--keep", *LOSS)["kernels"]}
    assert made["loss_rows"] == flpgen("loss", "show", "grpo+k3", "--json").json()["sha256"]
    assert made["forward_keep"] is None


def test_packs_hold_and_show_the_new_kinds(tmp_path):
    lines, out = tmp_path / "list.txt", tmp_path / "a.flpp"
    own = tmp_path / "own.lua"
    own.write_text("return function(row)\n  return -row.weight * row.logprob * 2\nend\n")
    lines.write_text(f"--vocab 1000 --hidden 64 --grad hidden --loss grpo\n--vocab 1000 --hidden 64 --grad hidden --loss {own}\n"
                     "--vocab 1000 --hidden 64 --grad hidden --keep\n")
    keys = [entry["key"] for entry in entries_of(build(out, "--list", lines, "--arch", "sm_80"))]
    found = [next(word for word in key.split() if word.startswith("kind="))[5:] for key in keys]
    assert found.count("loss_rows") == 2 and found.count("forward_keep") == 1 and found.count("kept") == 1
    shown = flpgen("pack", "inspect", out).out
    assert all(kind in shown for kind in ("forward_keep", "kept", "loss_rows"))
    assert f"loss {flpgen('loss', 'show', 'grpo', '--json').json()['sha256'][:8]}" in shown
    assert flpgen("pack", "verify", out).code == 0


def test_show_writes_the_bytes_of_a_program(tmp_path):
    path = tmp_path / "own.loss"
    document = flpgen("loss", "show", "dapo+k1", "--json", "--bytes", path).json()
    assert path.read_bytes().hex() == document["bytes"]


# ---- explain ----

def explained(*arguments):
    return document_of("explain", *arguments)["rows"][0]


def test_the_least_that_explain_names_is_enough():
    said = explained(*FULL, "--loss", "grpo", "--budget", "600M")
    least = {way["name"]: way for way in said["ways"]}["stream"]["least_bytes"]
    assert "are cheaper: " in explained(*FULL, "--loss", "grpo", "--budget", int(least))["assumed_modes"][0]["why"]
    assert "no chunk fits" in explained(*FULL, "--loss", "grpo", "--budget", int(least) - 256)["assumed_modes"][0]["why"]
    kept = {way["name"]: way for way in explained(*FULL, "--keep")["ways"]}["save"]["least_bytes"]
    assert explained(*FULL, "--keep", "--budget", int(kept))["assumed_modes"][0]["why"].startswith("taken: ")
    assert "at least" in explained(*FULL, "--keep", "--budget", int(kept) - 256)["assumed_modes"][0]["why"]


# ---- run ----

def formula(x, logprob, entropy, beta):
    """grpo+k3+entropy with an entropy weight of 0.25, summed."""
    ratio, gap = torch.exp(logprob - x["old_logprob"]), x["ref_logprob"] - logprob
    policy = -torch.minimum(ratio * x["advantage"], ratio.clamp(0.8, 1.2) * x["advantage"])
    return x["row_weight"] * (policy + beta * (torch.exp(gap) - 1 - gap) - 0.25 * entropy)


@pytest.mark.parametrize("entropy", [False, True])
def test_a_step_from_files_against_torch(tmp_path, entropy):
    hidden, weight, target, _ = problem(n=24, vocab=53, depth=16)
    target[::5] = -100
    h, w = doubles(hidden, weight)
    logprob, bonus = reference(h, w, target)
    spread = torch.randn(4, 24, generator=torch.Generator().manual_seed(5))
    near = logprob.detach().float()
    given = {"old_logprob": near + 0.3 * spread[0], "ref_logprob": near + 0.3 * spread[1], "advantage": spread[2], "row_weight": spread[3].abs()}
    rows = formula({name: values.double() for name, values in given.items()}, logprob, bonus if entropy else 0 * bonus, 0.5)
    rows = torch.where(target == -100, torch.zeros_like(rows), rows)
    rows.sum().backward()
    source = write_safetensors(tmp_path / "in.safetensors", hidden=("F32", hidden.numpy()), weight=("F32", weight.numpy()),
                               target=("I64", target.numpy()),
                               **{name: ("F32", values.numpy()) for name, values in given.items()})
    out = tmp_path / "out.safetensors"
    name = ["grpo+k3+entropy", "--loss-parameter", "entropy_weight=0.25"] if entropy else ["grpo+k3"]
    done = succeed("run", "-i", source, "-o", out, "--rung", "eager", "--loss-parameter", "beta=0.5", "--loss", *name,
                   "--json")
    got = {name: torch.from_numpy(values.copy()) for name, values in read_safetensors(out).items()}
    assert relative(got["loss"], rows.detach()) < 1e-5
    assert relative(got["grad_hidden"], h.grad) < 1e-5 and relative(got["grad_weight"], w.grad) < 1e-5
    assert {"metrics.ratio", "metrics.kl", "metrics.clip_fraction"} <= set(got)
    shown = done.json()["loss"]
    assert shown["sum"] == pytest.approx(float(rows.sum()), rel=1e-5) and shown["name"] == name[0]


def test_demo_trains(tmp_path):
    done = flpgen("run", "--demo", "--rows", 32, "--vocab", 500, "--hidden", 32, "--loss", "ppo", "--rung", "eager", "--json")
    shown = done.json()
    assert done.code == 0 and shown["spec"]["loss"] == "ppo" and shown["spec"]["grads"] == ["hidden", "weight"]
    assert shown["loss"]["metrics"]["ratio"] == 1 and shown["seconds"]["step"] > 0


# ---- check ----


@pytest.mark.long
def test_a_set_checks_every_built_in_loss_of_one_target(tmp_path):
    path = tmp_path / "record.json"
    done = flpgen("check", "--mode", "P", "--rung", "eager", "-q", f"--json={path}", **NO_GPU)
    assert done.code == 0, done.out + done.err
    rows = json.loads(path.read_text())["rows"]
    assert all("mode=stream" in row["options"] for row in rows)
    checked = {row["options"].split("loss=")[1].split("+")[0] for row in rows}
    assert checked == {loss["name"] for loss in flpgen("loss", "list", "--json").json()
                       if "target_logprob" not in loss["inputs"]}
