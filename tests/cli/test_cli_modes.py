"""Save, direction and stream modes on the command line: what is generated, packed and explained, steps of a loss against float64
torch, and what is refused."""
import json
import re

import pytest
import torch

from flp_reference import doubles, problem, reference, relative
from flpgen_tool import document_of, flpgen, generated, needs_flpgen, read_safetensors, spec_of, write_safetensors

pytestmark = needs_flpgen

NO_GPU = {"FLP_CUDA_LIBRARY": "/nonexistent/libcuda.so.1"}
SHAPE = ["--vocab", 1000, "--hidden", 64, "--grad", "hidden,weight"]
LOSS = ["--loss", "grpo+k3", "--loss-parameter", "beta=0.5"]
FULL = ["--vocab", 151936, "--hidden", 4096, "--grad", "hidden,weight", "--rows", 8192]
FROZEN = [*FULL[:4], "--grad", "hidden", "--rows", 8192]


def kinds(document):
    return {kernel["key"]["kind"]: kernel["key"] for kernel in document["kernels"]}


# ---- kernels ----

def test_gen_makes_what_save_and_stream_modes_launch(tmp_path):
    document = flpgen("gen", *SHAPE, "--keep", *LOSS, "--out", tmp_path / "kernels", "--json").json()
    assert document["spec"]["keep"] and document["spec"]["loss"] == "grpo+k3"
    made = kinds(document)
    assert {"forward_keep", "kept", "loss_rows"} <= set(made)
    assert made["loss_rows"]["loss"] == flpgen("loss", "show", "grpo+k3", "--json").json()["sha256"]
    assert made["forward_keep"]["loss"] is None
    plain = generated(*SHAPE)
    assert not plain["spec"]["keep"] and plain["spec"]["loss"] is None
    assert not {"forward_keep", "kept", "loss_rows"} & set(kinds(plain))


def test_a_loss_brings_the_entropy_that_it_needs():
    assert [spec_of(*SHAPE, "--loss", loss)["entropy"] for loss in ("nll+entropy", "nll")] == ["backward", "none"]


def test_packs_hold_and_show_the_new_kinds(tmp_path):
    lines, out = tmp_path / "list.txt", tmp_path / "a.flpp"
    own = tmp_path / "own.lua"
    own.write_text("return function(row)\n  return -row.weight * row.logprob * 2\nend\n")
    lines.write_text(f"--vocab 1000 --hidden 64 --grad hidden --loss grpo\n--vocab 1000 --hidden 64 --grad hidden --loss {own}\n"
                     "--vocab 1000 --hidden 64 --grad hidden --keep\n")
    done = flpgen("pack", "build", "--list", lines, "--arch", "sm_80", "--out", out)
    assert done.code == 0, done.err
    keys = [entry["key"] for entry in flpgen("pack", "inspect", out, "--json").json()["entries"]]
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


def test_explain_reports_what_is_kept_and_why():
    row = explained(*FULL, "--keep", "--budget", "4G")
    way = {way["name"]: way for way in row["ways"]}["save"]
    mode = {mode["mode"]: mode for mode in row["assumed_modes"]}["save"]
    assert way["products"] == 3 and way["fits"]
    assert 2 * 8192 * 151936 <= mode["saved_bytes"] <= 2 * 8192 * (151936 + 64) + 4 * 8192
    assert way["workspace_bytes"] > mode["saved_bytes"] and mode["why"].startswith("taken: 2.49 GB")
    layouts = {layout["pass"]: layout for layout in row["assumed_layouts"]}
    assert layouts["backward, saved"]["mode"] == "save" and layouts["backward, saved"]["products"] == 2
    tight = explained(*FULL, "--keep", "--budget", "1G")
    assert tight["assumed_modes"][0]["why"].startswith("not taken: it would keep 2.49 GB")
    assert {mode["mode"]: mode["saved_bytes"] for mode in row["assumed_modes"]}["direction"] == 0
    assert "direction" not in {way["name"] for way in row["ways"]}, "hidden and weight"
    assert row["modes"][0]["why"] == "not taken: the CPU rung does not save exponentials"
    assert explained(*FULL)["assumed_modes"] == []


def test_explain_reports_the_directions_of_a_frozen_head():
    kept = 4 * 8192 * 4096 + 2 * 4 * 8192
    row = explained(*FROZEN, "--keep", "--budget", "512M")
    way = {way["name"]: way for way in row["ways"]}["direction"]
    modes = {mode["mode"]: mode for mode in row["assumed_modes"]}
    layouts = {layout["pass"]: layout for layout in row["assumed_layouts"]}
    forward, backward = layouts["forward, saved"], layouts["backward, saved"]
    assert modes["direction"]["saved_bytes"] == kept and modes["direction"]["why"].startswith("taken: 134 MB from forward")
    assert modes["save"]["saved_bytes"] > 2 * 8192 * 151936
    assert (forward["mode"], forward["products"], backward["mode"], backward["products"]) == ("direction", 2, "direction", 0)
    assert way["products"] == 2 and way["fits"] and way["workspace_bytes"] == kept + forward["workspace_bytes"] <= 512 << 20
    assert {name: way[name] for name in ("chunks", "chunk_rows", "chunk_vocab")} == \
        {name: forward[name] for name in ("chunks", "chunk_rows", "chunk_vocab")}
    exponentials, sums, weight = 2 * 2 * 8192 * 151936, 4 * 8192 * 4096, 2 * 151936 * 4096
    row_chunks = -(-8192 // way["chunk_rows"])
    pieces, again = way["chunks"] // row_chunks, 2 * (row_chunks - 1) * weight
    assert way["traffic_bytes"] == 2 * row["input_bytes"] + row["output_bytes"] + exponentials + 2 * pieces * sums + again + 2 * 8192 * 4096
    pinned = explained(*FROZEN, "--mode", "D", "--budget", "512M")
    assert pinned["assumed_layouts"] == row["assumed_layouts"]
    saved = explained(*FROZEN, "--mode", "save", "--budget", "4G")
    assert {layout["pass"]: layout["mode"] for layout in saved["assumed_layouts"]}["backward, saved"] == "save"


def test_explain_heeds_chunks_of_direction_mode():
    row = explained(*FROZEN, "--mode", "direction", "--chunk-rows", 1024, "--chunk-vocab", 30720, "--budget", "150M")
    forward = {layout["pass"]: layout for layout in row["assumed_layouts"]}["forward, saved"]
    assert (forward["chunk_rows"], forward["chunk_vocab"], forward["chunks"]) == (1024, 30720, 40)
    way = {way["name"]: way for way in row["ways"]}["direction"]
    assert not way["fits"] and way["workspace_bytes"] > 150 << 20
    why = {mode["mode"]: mode["why"] for mode in row["assumed_modes"]}["direction"]
    assert why == "taken: 134 MB from forward to backward, with the workspace of either, are in the chunks that are asked for, beyond the budget of 157 MB"


def test_explain_reports_how_steps_are_streamed():
    row = explained(*FULL, "--loss", "grpo", "--accumulate-grad-weight", "--budget", "1.5G")
    step = {layout["pass"]: layout for layout in row["assumed_layouts"]}["step"]
    assert step["mode"] == "stream" and step["products"] == 3 and step["workspace_bytes"] <= 1.5 * 2**30
    assert step["chunks"] == -(-8192 // step["chunk_rows"]) > 1
    assert row["assumed_modes"][0]["why"].startswith(f"taken: {step['chunks']} chunks")
    assert {way["name"]: way for way in row["ways"]}["stream"]["products"] == 3
    text = flpgen("explain", *FULL, "--loss", "grpo", **NO_GPU).out
    assert "this machine: mode stream: " in text and "assumed GPU: mode stream: " in text


@pytest.mark.parametrize("letter, name", [("R_VOCAB", "recompute-vocab"), ("r_rows", "recompute-rows"),
                                          ("R2", "recompute-split"), ("R2", "Recompute-Split")])
def test_letters_of_modes_are_accepted(letter, name):
    first, second = (explained(*FULL, "--budget", "8G", "--mode", mode)["assumed_layouts"] for mode in (letter, name))
    assert first == second and first[1]["mode"] == name.lower()


SHORT = ["--vocab", 1000, "--hidden", 2048, "--grad", "hidden,weight", "--rows", 64]


@pytest.mark.first(4)
@pytest.mark.parametrize("arguments, mode, why", [
    ([*FULL, "--loss", "grpo", "--budget", "600M"], "stream",
     r"not taken: no chunk fits the budget of 629 MB; the least is 704 MB"),
    ([*FULL, "--loss", "grpo", "--budget", "1536M"], "stream", r"taken: 2 chunks of at most 4096 rows within .* 1\.61 GB"),
    ([*FULL, "--loss", "grpo", "--dtype", "bf16", "--grad-weight-dtype", "fp32", "--budget", "1536M"], "stream",
     r"taken: 2 chunks of at most [45]\d\d\d rows within .* 1\.61 GB"),
    ([*FULL, "--loss", "grpo", "--mode", "R2"], "stream", "not taken: mode recompute-split is asked for"),
    ([*FULL, "--loss", "grpo", "--chunk-vocab", 4096], "stream", "not taken: chunks of the vocabulary are asked for, .*"),
    ([*FULL, "--loss", "grpo", "--chunk-rows", 4096], "stream", r"taken: 2 chunks .* 4096 rows as asked for, beyond .* 1\.07 GB"),
    ([*FULL, "--loss", "grpo", "--budget", "3G"], "stream", r"taken: 1 chunk of at most 8192 rows within the budget of 3\.22 GB"),
    ([*SHORT, "--loss", "nll", "--capability", "8.0"], "stream",
     r"not taken: modes score and recompute-vocab are cheaper: ([0-9.]+) ms against ([0-9.]+) ms by the cost model"),
    ([*FULL, "--keep", "--mode", "R_VOCAB", "--budget", "4G"], "save", "not taken: mode recompute-vocab is asked for"),
    ([*FULL, "--keep"], "save", r"not taken: it would keep 2\.49 GB, and with workspace needs 2\.\d\d GB at least; .* 1\.07 GB"),
    ([*FULL, "--keep"], "direction", "not taken: it makes the gradient of hidden alone"),
    ([*FROZEN, "--keep"], "save", "not taken: it would keep 2\\.49 GB; mode direction, which goes before it where hidden "
     "alone has a gradient, keeps 134 MB"),
    ([*FROZEN, "--keep", "--entropy", "backward"], "direction", "not taken: the gradient of the entropy needs a second "
     "direction, which costs the product that recomputing does"),
    ([*FROZEN, "--keep", "--entropy", "backward", "--budget", "4G"], "save", "taken: 2\\.49 GB from forward .*"),
    ([*FROZEN, "--keep", "--budget", "128M"], "direction",
     r"not taken: it would keep 134 MB, and with workspace needs 1\d\d MB at least; the budget is 134 MB"),
    ([*FROZEN, "--mode", "save"], "direction", "not taken: mode save is asked for"),
    ([*FROZEN, "--mode", "direction"], "save", "not taken: mode direction is asked for"),
    ([*FROZEN, "--keep", "--mode", "R_ROWS"], "direction", "not taken: mode recompute-rows is asked for"),
    ([*FROZEN, "--keep", "--loss", "nll", "--mode", "stream"], "direction", "taken: 134 MB from forward .*"),
])
def test_explain_names_the_one_reason(arguments, mode, why):
    row = explained(*arguments)
    said = {mode["mode"]: mode["why"] for mode in row["assumed_modes"]}[mode]
    found = re.fullmatch(why, said)
    assert found, said
    if found.groups():
        assert float(found.group(1)) < float(found.group(2))
        assert {layout["pass"]: layout for layout in row["assumed_layouts"]}["step"]["mode"] == "recompute-vocab"


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
    done = flpgen("run", "-i", source, "-o", out, "--rung", "eager", "--loss-parameter", "beta=0.5", "--loss", *name, "--json")
    assert done.code == 0, done.err
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
