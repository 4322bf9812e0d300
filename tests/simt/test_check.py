"""flpgen check on a GPU that is none: the stand-in for libcuda runs the generated kernels on the CPU, so that library,
launches and kernels together meet the fp64 oracle, on random and adversarial data; sm_80's kernels and Hopper's. And
flpgen bench of what no other stand-in computes.

A feature has heads, of which the short form takes the first on each architecture; the long form has check's own sets of
each feature too: shards, chunks, row lists, old LSEs and all else of gen/cli/check/oddities.c.
"""
import json
import re
from dataclasses import dataclass

import emulator
import pytest

from emulator import both, entries_in, needs_emulator, of_any_loss
from flpgen_tool import findings, flpgen, needs_flpgen

pytestmark = [needs_flpgen, needs_emulator]
GRADIENTS = "logprob grad_hidden grad_weight"
EVERYTHING = "--dtype bf16 --grad hidden,weight,bias --bias --entropy backward"
SMALL = "--vocab 331 --hidden 40 --rows 41"
KEPT = "--vocab 820 --hidden 24 --rows 17 --dtype bf16"


@dataclass
class Feature:
    """least: findings of a head; shape: options of all heads; entries: kernels that each takes, "portable/Hopper's" where
    these differ; outputs, cases: that a record has; option: in each row's"""
    least: int
    shape: str
    heads: tuple
    entries: str = ""
    outputs: str = "logprob"
    cases: str = "random"
    option: str = ""


FEATURES = {
    "head": Feature(30, SMALL, (
        EVERYTHING, "--dtype fp16 --grad hidden,weight --softcap 20 --entropy forward --per-row-temperature",
        "--dtype fp32 --grad hidden,weight --accumulate-grad-weight --target-dtype int32",
        "--dtype bf16 --grad hidden,weight --alignment 2 --entropy forward"),
        "forward/forward_map", GRADIENTS),
    "rows": Feature(35, f"{SMALL} --rows 80 --dtype bf16 --mode recompute-rows --budget 200K", (
        "--grad hidden,weight --alignment 2", "--grad hidden,weight,bias --bias --softcap 20 --grad-weight-dtype bf16"),
        "forward/forward_map", GRADIENTS, option="mode=recompute-rows"),
    "split": Feature(35, f"{KEPT} --rows 80 --mode recompute-split --budget 400K", (
        "--dtype fp32 --grad hidden,weight,bias --bias --entropy backward", "--grad hidden,weight --accumulate-grad-weight"),
        "forward/forward_map", GRADIENTS, option="mode=recompute-split"),
    "save": Feature(35, f"{KEPT} --mode S", (
        "--grad hidden,weight", "--grad hidden --softcap 30", "--grad hidden,weight,bias --bias --entropy backward",
        "--grad hidden,weight,bias --bias --entropy backward --softcap 20 --per-row-temperature --rows 150",
        "--grad hidden,weight --grad-weight-dtype bf16 --rows 70 --vocab 1100", "--grad hidden,weight --softcap 0.6",
        "--grad hidden,weight,bias --bias --entropy backward --softcap 0.6",
        "--grad hidden,weight --accumulate-grad-weight --grad-weight-dtype fp32 --grad-hidden-dtype fp32"),
        "forward_keep/forward_keep_map keep_reference keep_finish", "logprob grad_hidden", "steep shifted", "mode=save"),
    "stream": Feature(35, f"{KEPT} --mode P", (
        "--loss ppo+k2+entropy --grad hidden,weight,bias --bias", "--loss nll --grad hidden,weight --softcap 30",
        "--loss grpo+k3 --grad hidden --rows 70",
        "--loss grpo+k3+entropy --grad hidden,weight,bias --bias --softcap 20 --per-row-temperature --rows 150",
        "--loss grpo+k3 --grad hidden,weight --accumulate-grad-weight --rows 300 --budget 1M",
        "--loss grpo+k3 --grad hidden,weight --grad-weight-dtype bf16 --rows 300 --hidden 264 --budget 1M",
        "--loss grpo+k3 --grad hidden,weight --softcap 0.6 --per-row-temperature",
        "--loss cross_entropy --loss-parameter label_smoothing=0.1 --loss-parameter z_loss=0.01 --grad hidden,weight"),
        "forward_keep/forward_keep_map keep_finish keep_gather", "loss logprob grad_hidden", "steep shifted",
        "mode=stream"),
    "direction": Feature(20, f"{KEPT} --mode D", (
        "--grad hidden", "--grad hidden --softcap 20 --rows 70", "--grad hidden --bias --per-row-temperature --rows 150",
        "--grad hidden --softcap 0.6", "--grad hidden --grad-hidden-dtype fp32",
        "--grad hidden --vocab 7000 --budget 200K"),  # columns in chunks
        "forward_keep/forward_keep_map direction_strike direction_finish direction_rows", "grad_hidden", "steep",
        "mode=direction"),
    "scores": Feature(90, "--loss cross_entropy", (
        f"{SMALL} --dtype bf16 --grad hidden,weight",
        *(f"--vocab 1000 --hidden 64 --rows 64 --dtype {dtype} --grad hidden,weight" for dtype in ("bf16", "fp16")),
        f"{SMALL} --dtype fp16 --grad hidden,weight,bias --bias --softcap 4"), "score_head", f"{GRADIENTS} loss"),
    "scores by a pass": Feature(90, f"{SMALL} --loss cross_entropy", (
        "--dtype bf16 --lora-rank 24 --grad hidden,lora_a,lora_b,bias --bias",
        "--dtype fp16 --weight-dtype fp32 --mixed split --grad hidden,weight --topk 5 --rank",
        "--dtype bf16 --keep-set 60 --grad hidden,weight,bias --bias --tail 2^-9"), "score_rows score_record",
        "logprob grad_hidden loss", option="loss="),
    "listed": Feature(30, "", (
        f"--vocab 331 --hidden 40 --rows 80 --keep-set 160 {EVERYTHING}",
        "--vocab 1100 --hidden 40 --rows 41 --keep-set 30 --dtype bf16 --grad hidden,weight --alignment 2",
        "--vocab 331 --hidden 40 --rows 41 --keep-set 60 --dtype fp16 --grad hidden,weight --softcap 20 --entropy forward "
        "--per-row-temperature",
        "--vocab 600 --hidden 72 --rows 41 --keep-set 200 --dtype fp32 --grad weight --accumulate-grad-weight "
        "--target-dtype int32"),
        "list_check list_sort list_scores list_reduce list_dz list_weight_wide", option="mode=listed"),
    "tail": Feature(60, "--vocab 820 --hidden 72 --rows 20 --tail 2^-9", (
        EVERYTHING, "--dtype bf16 --grad hidden,weight --loss grpo+k3",
        "--dtype fp16 --grad hidden,weight --softcap 20 --per-row-temperature --tail 2^-6",
        "--dtype fp32 --grad weight --accumulate-grad-weight --alignment 4 --target-dtype int32"),
        "forward_emit/forward_emit_map tail_choose tail_entries", "tail_report", "sharp", "mode=tail"),
    "flat": Feature(30, "--vocab 6144 --hidden 24 --rows 9 --tail 2^-9 --dtype bf16", (
        "--loss grpo+k3 --grad hidden,weight", "--loss nll --grad hidden --topk 20 --rank --rows 40",
        "--loss nll --grad hidden,weight --grad-weight-dtype bf16 --rows 400 --budget 14M",
        "--loss grpo --grad weight --accumulate-grad-weight --softcap 20 --per-row-temperature --statistics --rows 40"),
        "flat_rows flat_gate", "tail_report", "one-hot", "mode=tail"),
    "adapter": Feature(20, SMALL, (
        f"{EVERYTHING.replace('weight', 'lora_a,lora_b')} --lora-rank 24",
        "--dtype bf16 --lora-rank 136 --grad hidden,lora_a,lora_b",
        "--dtype fp16 --lora-rank 64 --grad hidden,lora_a,lora_b --softcap 20 --per-row-temperature",
        "--dtype bf16 --lora-rank 16 --grad lora_a,lora_b --loss grpo", "--dtype bf16 --lora-rank 8 --grad lora_a",
        "--dtype fp32 --lora-rank 8 --grad hidden,lora_a --target-dtype int32", "--dtype bf16 --lora-rank 136 --grad lora_b"),
        "lora_project forward_lora/forward_lora_map dz_lora/dz_lora_map", "logprob", "lora-zero lora-off", "lora"),
    "targets": Feature(20, SMALL, (
        f"{EVERYTHING} --targets 20", "--dtype fp16 --targets 9 --grad hidden,weight --softcap 20 --per-row-temperature",
        "--dtype fp32 --targets 512 --vocab 2000 --rows 20 --grad hidden,weight --target-dtype int32",
        "--dtype bf16 --targets 33 --grad hidden --vocab 3400",  # bits of blocks of columns in several words
        "--dtype bf16 --targets 3 --grad weight,bias --bias "
        "--accumulate-grad-weight --grad-weight-dtype fp32"),
        "forward_targets/forward_targets_map targets_rows targets_sort", cases="targets-same targets-ends targets-bad"),
    "distilled": Feature(100, SMALL, (
        "--dtype bf16 --loss forward_kl --grad hidden,weight,bias --bias --targets 20",
        "--dtype fp16 --loss reverse_kl --grad hidden,weight --targets 3 --softcap 20 --target-dtype int32",
        "--dtype fp32 --loss jsd --grad hidden --targets 64 --per-row-temperature"),
        "loss_targets", "loss metrics logprob grad_hidden",
        "teacher-certain teacher-missing teacher-tails teacher-whole", "loss="),
    "targets saved": Feature(20, f"{SMALL} --dtype bf16 --mode S --targets 20", (
        "--grad hidden,weight", "--grad hidden,weight,bias --bias --entropy backward --softcap 20",
        "--grad hidden --targets 65 --rows 300 --per-row-temperature --softcap 30"),
        "forward_keep_targets/forward_keep_targets_map targets_patch keep_finish", "logprob grad_hidden",
        "targets-same targets-ends targets-bad", "mode=save"),
    "distilled streamed": Feature(100, f"{SMALL} --dtype bf16 --mode P", (
        "--loss forward_kl --grad hidden,weight --targets 20",
        "--loss reverse_kl --grad hidden,weight,bias --bias --targets 3 --softcap 20 --rows 300 --budget 900K",
        "--loss jsd+entropy --grad hidden --targets 64 --per-row-temperature --topk 20"),
        "loss_targets forward_keep_targets/forward_keep_targets_map", "loss metrics logprob grad_hidden",
        "teacher-certain teacher-missing teacher-tails teacher-whole", "mode=stream"),
    "adapter saved": Feature(20, f"{SMALL} --dtype bf16 --lora-rank 24 --rows 150 --grad hidden,lora_a,lora_b", (
        "--mode S", "--mode P --loss grpo --budget 1500K --topk 5 --rank"), "lora_factor", "grad_lora_a", "lora-zero"),
    "listed steps": Feature(20, f"{SMALL} --keep-set 60 --topk 20 --rank", (
        "--dtype bf16 --grad hidden,weight --loss grpo+k3", "--dtype fp16 --softcap 20 --per-row-temperature"),
        "list_scores top_listed", "top_ids rank", "lists-one equal", "mode=listed"),
    "top": Feature(20, "--hidden 40 --rows 41 --topk 20 --rank", (
        "--vocab 900 --dtype bf16 --entropy forward --target-dtype int32",
        "--vocab 3400 --dtype bf16 --bias --per-row-temperature",
        "--vocab 2100 --dtype bf16 --topk 128 --rows 300 --budget 4200K",  # two chunks of rows
        "--vocab 5000 --dtype bf16 --topk 128",  # a slice behind the first
        "--vocab 900 --dtype fp16 --softcap 20", "--vocab 1100 --dtype fp32 --topk 40",
        "--vocab 900 --dtype bf16 --topk 1", "--vocab 130 --dtype bf16 --topk 128 --bias"),
        "forward_top/forward_top_map top_target top_begin top_floor top_redo top_finish", "top_ids top_logprob rank",
        "equal exact sharp", "top"),
    "top saved": Feature(30, "--vocab 1700 --hidden 40 --rows 41 --dtype bf16 --topk 20 --rank --mode S", (
        "--grad hidden,weight",
        "--grad hidden,weight,bias --bias --entropy backward --softcap 20 --per-row-temperature",
        "--grad hidden,weight --vocab 2100 --topk 128 --rows 300", "--grad hidden,weight --vocab 1100 --alignment 2",
        "--grad hidden,weight --vocab 5000 --topk 128"),
        "forward_keep_top/forward_keep_top_map keep_finish top_redo top_finish", "top_ids rank grad_hidden",
        "equal exact sharp steep", "mode=save"),
    "top kept": Feature(20, "--vocab 1700 --hidden 40 --rows 41 --dtype bf16 --topk 20 --rank --mode D", (
        "--grad hidden", "--grad hidden --softcap 20 --rows 150", "--grad hidden --rows 300 --budget 4M"),
        "forward_keep_top/forward_keep_top_map direction_strike top_redo top_finish", "top_ids rank grad_hidden",
        "equal exact sharp steep", "mode=direction"),
    "top stepped": Feature(30, "--vocab 1700 --hidden 40 --rows 41 --dtype bf16 --topk 20 --rank", (
        "--mode P --loss grpo+k3 --grad hidden,weight", "--dtype fp16 --loss grpo --grad hidden",
        "--mode P --loss cross_entropy --grad hidden,weight,bias --bias"),
        "top_redo top_finish", "top_ids rank grad_hidden loss", "equal exact sharp steep", "loss="),
    "top tailed": Feature(30, "--vocab 1700 --hidden 72 --rows 20 --topk 20 --rank --tail 2^-9", (
        f"{EVERYTHING}", "--dtype bf16 --grad hidden,weight --loss grpo+k3",
        "--dtype fp16 --grad hidden,weight --softcap 20 --per-row-temperature --tail 2^-6 --rows 300"),
        "forward_emit_top/forward_emit_top_map tail_choose top_redo", "top_ids rank tail_report", "equal sharp",
        "mode=tail"),
    "raw": Feature(20, "--hidden 40 --rows 41 --raw-scores", (
        "--vocab 901 --dtype bf16 --bias --softcap 20 --target-dtype int32",
        "--vocab 1300 --dtype fp16 --alignment 2 --per-row-temperature --rows 300", "--vocab 900 --dtype fp32"),
        "forward_raw/forward_raw_map", "raw_scores logprob", "shifted last-tile row-list", "raw-scores"),
    "raw beside others": Feature(20, "--hidden 72 --rows 41 --raw-scores", (
        "--vocab 1700 --dtype bf16 --grad hidden,weight --mode S", "--vocab 901 --dtype bf16 --lora-rank 24 --bias",
        "--vocab 1700 --dtype bf16 --alignment 8 --topk 20 --rank", "--vocab 901 --dtype fp16 --statistics",
        "--vocab 7000 --dtype bf16 --weight-dtype fp32 --mixed round --budget 900K",  # slices of columns
        "--vocab 901 --dtype fp16 --weight-dtype fp32 --mixed split --targets 20",
        "--vocab 1700 --dtype bf16 --grad hidden --rows 150 --statistics --mode D",
        "--vocab 1700 --dtype bf16 --grad hidden,weight --tail 2^-9"), "", "raw_scores logprob", option="raw-scores"),
    "mixed": Feature(30, "--vocab 1100 --hidden 40 --rows 41", (
        f"{EVERYTHING} --weight-dtype fp32 --mixed round", f"{EVERYTHING} --weight-dtype fp32 --mixed split",
        f"{EVERYTHING} --hidden-dtype fp32 --mixed round", f"{EVERYTHING} --hidden-dtype fp32 --mixed split",
        "--dtype fp16 --weight-dtype fp32 --mixed round --vocab 7000 --grad hidden,weight --softcap 20 --budget 400K",
        "--dtype bf16 --weight-dtype fp32 --mixed round --grad hidden,weight --loss grpo+k3"),
        "operand_terms", "logprob", option="mixed="),
}
HEADS = [(capability, feature, head) for feature in FEATURES for head in FEATURES[feature].heads
         for capability in ("8.0", "9.0")]
# Of --all or --quick, with the least number of checks; each has cases and bits of its own. Of recompute these are few:
# those that ask for chunks.
SETS = [*((f"--quick --dtype bf16 --mode {mode}", 50) for mode in ("save", "stream", "direction", "listed", "tail")),
        *((f"--quick --dtype bf16 --mode recompute-{by}", 5) for by in ("vocab", "rows", "split")),
        *((f"--all --dtype {dtype} {option}", 50) for dtype in ("bf16", "fp16", "fp32")
          for option in ("--targets 6", "--topk 20", "--lora-rank 24", "--raw-scores"))]
# Tilings that are not the defaults, of Hopper's kernels and portable ones, options, and entries that these take.
TILINGS = [
    *(("9.0", tiling, "", "forward_map dz_map products_map") for tiling in (
        "forward:cooperative,256x192,stages=3;products:128x128,cluster=1", "forward:ping-pong,128x128,cluster=1",
        "forward:192x128,stages=4;dz:192x128,stages=4;products:256x128,cluster=1",
        "forward:64x256,stages=3;dz:64x256,stages=3")),
    *(("9.0", f"forward_keep:{tiling}", "--mode S", "forward_keep_map") for tiling in (
        "cooperative,256x192,stages=3", "ping-pong,128x128,cluster=1")),
    *(("9.0", f"forward_targets:{tiling}", "--targets 40", "forward_targets_map") for tiling in (
        "ping-pong,64x256,stages=3", "cooperative,128x64")),
    *(("8.0", tiling, "", "forward dz grad_hidden grad_weight") for tiling in (
        "forward:64x256;dz:256x128;grad_hidden:128x128,stages=3;grad_weight:256x128,raster=4",
        "forward:stages=2;dz:64x256,stages=3;grad_hidden:256x64,raster=1;grad_weight:128x128")),
    ("9.0", "forward:cluster=4;dz:cluster=4;products:128x256,cluster=4", "", "forward_map dz_map products_map"),
    ("8.0", "forward:64x256;dz:128x128", "--alignment 2 --bias --grad hidden,weight,bias", "forward dz"),
    ("8.0", "forward_keep:64x256,raster=1;dz:256x128", "--mode S", "forward_keep"),
    ("8.0", "forward_emit:64x256;dz:256x64", "--tail 2^-9", "forward_emit"),
    ("8.0", "forward:32x256;dz:256x64;grad_hidden:128x128;grad_weight:64x128", "--dtype fp32", "forward dz")]
# By head, tilings of portable kernels: the first in the short form.
PORTABLE = {
    "--dtype bf16 --grad hidden,weight": (
        "forward:64x256,stages=3;dz:256x128;grad_hidden:128x128;grad_weight:256x128,raster=1",
        "forward:stages=2,raster=1;dz:64x256,stages=3;grad_hidden:256x64;grad_weight:128x128",
        "dz:256x64;grad_hidden:256x128"),
    "--dtype fp16 --grad hidden,weight --softcap 20": ("forward:64x256;dz:128x128;grad_hidden:128x128",),
    "--dtype fp32 --grad hidden,weight": (
        "forward:32x256;dz:128x128;grad_hidden:64x128;grad_weight:128x64",
        "dz:32x256;grad_hidden:256x64;grad_weight:128x128"),
    "--dtype bf16 --topk 20 --rank": ("forward_top:64x256",),
    "--dtype bf16 --lora-rank 24 --grad hidden,lora_a,lora_b": ("forward_lora:64x256;dz_lora:256x128",),
    "--dtype bf16 --tail 2^-9 --grad hidden,weight": ("forward:64x256;forward_emit:64x256;dz:256x64",),
}


def record_of(verb, folder, capability, arguments, compiler=None, **settings):
    out = folder / "record.json"
    out.unlink(missing_ok=True)
    done = flpgen(verb, *arguments.split(), "--rung", "jit", "--quiet", "--json", out,
                  **{**emulator.environment(folder, capability, compiler), **settings})
    assert done.code in (0, 1), done.err
    return json.loads(out.read_text())


def check(folder, capability, arguments, least=1, compiler=None, **settings):
    """Runs `flpgen check` -> its record, of which all passed but with a compiler that spoils kernels."""
    record = record_of("check", folder, capability, arguments, compiler, **settings)
    failed = [row for row in record["rows"] if not row["pass"]]
    assert compiler or not failed, failed[:5]
    assert all(row["rungs"] == ["jit"] for row in record["rows"]) and record["gpu"] == "Fake H200"
    assert record["checks"] >= least
    return record


def outputs_of(record):
    return {row["output"] for row in findings(record)}


@pytest.mark.parametrize("capability,feature,head", HEADS)
def test_a_head(tmp_path, capability, feature, head):
    given = FEATURES[feature]
    record, made = check(tmp_path, capability, f"{given.shape} {head}", given.least), entries_in(tmp_path)
    assert set(given.outputs.split()) <= outputs_of(record)
    assert set(given.cases.split()) <= {row["case"] for row in record["rows"]}
    assert all(given.option in row["options"] for row in record["rows"])
    for entry in given.entries.split():
        portable, _, hopper = entry.partition("/")
        own, other = (hopper, portable) if hopper and capability == "9.0" else (portable, hopper)
        if "alignment" in head:  # Hopper's kernels take some of these, the portable ones others
            assert made & {own, other}, made
        else:
            assert own in made and other not in made, (own, other, made)
    if given.outputs == "tail_report" and "bf16" in given.shape + head:
        served = [re.match(r"(\d+) rows recomputed, (\d+) columns", row["note"]).groups() for row in findings(record)
                  if row["output"] == "tail_report"]
        assert any(dense != "0" and columns != "0" for dense, columns in served) or feature == "flat", served
        assert any(columns != "0" for _, columns in served), "lists"
        assert feature == "tail" or any(dense != "0" and columns == "0" for dense, columns in served), "exact"


@pytest.mark.long
@both
@pytest.mark.parametrize("which,least", SETS)
def test_a_set(tmp_path, capability, which, least):
    check(tmp_path, capability, which, least)


@both
def test_divergences_of_scores(tmp_path, capability):
    """Every built-in loss over targets, over all columns of rows of scores."""
    check(tmp_path, capability, "--op diverge --dtype bf16", 24)
    assert "diverge" in entries_in(tmp_path)


@pytest.mark.long
def test_a_streamed_step_reports_that_its_tail_is_exact(tmp_path):
    """Losses of scores have no lists; which mode a step takes in their place follows from its kernels' tiles."""
    record = check(tmp_path, "9.0", f"--vocab 331 --hidden 264 --rows 41 {EVERYTHING} --tail 2^-9 --loss cross_entropy "
                   "--tune forward:cluster=4;dz:cluster=4;products:128x256,cluster=4", 20)
    assert "tail_report" in outputs_of(record) and "keep_finish" in entries_in(tmp_path)


@pytest.mark.long
def test_a_set_of_one_architecture_has_cases_that_it_does_not_take(tmp_path):
    """Of operands that are aligned to less, and they run on the kernels that a plan takes for them."""
    check(tmp_path, "9.0", "--all --dtype bf16 --lora-rank 24 --arch sm_90a --tune forward:128x128", 50)


@pytest.mark.long
@both
@pytest.mark.parametrize("head", FEATURES["head"].heads[:2])
def test_a_ragged_head_of_some_size(tmp_path, capability, head):
    """Products of so many terms that it shows where their sums are rounded, of scores near -16384 above all."""
    check(tmp_path, capability, f"--vocab 1100 --hidden 520 --rows 300 {head}", 50)


@pytest.mark.long
@pytest.mark.parametrize("capability,tiling,options,entries", TILINGS)
def test_other_tilings(tmp_path, capability, tiling, options, entries):
    head = "--vocab 1100 --hidden 40 --rows 230 --dtype bf16 --grad hidden,weight"
    check(tmp_path, capability, f"{head} {options} --tune {tiling}", 20)
    made = entries_in(tmp_path)
    assert set(entries.split()) <= made and ("forward" in made or capability == "9.0"), made


def bits_of(folder, head, *more):
    """The file that a run on the kernels for sm_80 writes."""
    out = folder / "out.safetensors"
    out.unlink(missing_ok=True)
    words = f"run --demo --vocab 3300 --hidden 40 --rows 300 --rung jit --quiet {head}".split()
    done = flpgen(*words, "--output", out, *more, **emulator.environment(folder, "8.0"))
    assert done.code == 0, done.err
    return out.read_bytes()


@pytest.mark.parametrize("head,tiling", [
    pytest.param(head, tiling, marks=() if head == next(iter(PORTABLE)) and i == 0 else pytest.mark.long)
    for head, tilings in PORTABLE.items() for i, tiling in enumerate(tilings)])
def test_portable_tilings_have_the_bits_of_the_default(tmp_path, head, tiling):
    assert bits_of(tmp_path, head) == bits_of(tmp_path, head, "--tune", tiling)


@pytest.mark.parametrize("loss", ["cross_entropy", "ppo+k3", "grpo+k3+entropy"])
def test_a_kernel_for_any_loss(tmp_path, loss):
    """As on rung generic, where the loss is data."""
    check(tmp_path, "8.0", f"{KEPT} --mode P --loss {loss} --grad hidden,weight,bias --bias", 35, **of_any_loss(tmp_path))


@pytest.mark.long
def test_columns_of_three_digits(tmp_path):
    check(tmp_path, "8.0", "--vocab 262200 --hidden 8 --rows 5 --keep-set 40 --dtype bf16 --grad weight", 30)


@pytest.mark.long
def test_steps_over_several_targets_are_timed_beside_steps_of_one(tmp_path):
    """flpgen bench, whose data no kernel calls bad; a loss over targets has no step of one, nll has."""
    record = record_of("bench", tmp_path, "9.0",
                       "--vocab 131 --hidden 24 --rows 9 --masked 0.25 --grad hidden,weight --targets 8 --loss forward_kl "
                       "--loss-parameter rest_weight=0.5 --no-baseline --burst-ms 1 --rounds 3")
    rows = [{name: row[name] for name in ("case", "loss", "targets", "mode", "gemms")} for row in record["rows"]]
    assert rows == [{"case": "step", "loss": loss, "targets": targets, "mode": "recompute-vocab", "gemms": 4}
                    for loss, targets in (("forward_kl", 8), ("nll", 1))]
    assert record["rows"][0]["of_plain"] > 0 and "of_plain" not in record["rows"][1]
    assert {"loss_targets", "loss_rows"} <= entries_in(tmp_path)


@pytest.mark.long
def test_more_groups_of_columns_than_combine_holds(tmp_path):
    check(tmp_path, "8.0", "--vocab 262147 --hidden 8 --rows 11 --dtype fp32 --entropy forward", 3)


@pytest.mark.parametrize("operation", ["select", "scale"])
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32", "fp64"])
def test_scores_and_gradients_that_exist(folder, operation, dtype):
    if (operation, dtype) != ("scale", "fp64"):
        check(folder, "8.0", f"--op {operation} --dtype {dtype}", 56 if operation == "scale" else 64)


def test_losses_of_logprobs_that_exist(tmp_path):
    """Every built-in loss of one target a row."""
    check(tmp_path, "8.0", "--op loss --dtype fp32", 88)
    assert "loss_rows" in entries_in(tmp_path)


# ---- what is wrong is found ----

ADAPTED, DISTILLED, RAW = (f"{FEATURES[name].shape} {FEATURES[name].heads[0]}"
                           for name in ("adapter", "distilled", "raw"))
# Options, an entry, what is wrong in modules that have it, outputs that fail, outputs that do not.
WRONG = {
    "a difference for a sum": ("--op select --dtype fp32", "", ("fadd float", "fsub float", 1), "", ""),
    "a factor that is added": ("--op scale --dtype bf16", "scale", ("fmul float", "fadd float"), "", "scale: times 1"),
    # What the teacher leaves to other tokens is half more: losses are off and so are gradients, logprobs are not.
    "a loss over targets": (DISTILLED, "@flp_loss_targets", ("fsub double 1.0", "fsub double 1.5", 1), "loss grad_hidden",
                            "logprob"),
    # Half of G in the place of s·G: what follows from that is off, and nothing else.
    "an adapter": (ADAPTED, "@flp_lora_round", ("[ %lora_scale, ", "[ 5.0e-01, ", 1), "grad_lora_a", "logprob grad_lora_b"),
    # Rows that stand nearer than they should have the first columns of the next in the place of their last.
    "raw scores": (RAW, "@flp_forward_raw", (", %raw_scores_stride\n", ", 896\n"), "raw_scores", "logprob entropy"),
}


def wrong_compiler(folder, entry, wrong):
    """A compiler that spoils modules with that entry, and takes what is kept of the others. wrong: as str.replace takes it"""
    compiler = folder / "compiler.py"
    compiler.write_text(f"""import pathlib, shutil, sys
sys.path.insert(0, {str(emulator.SIMT)!r})
import compile
text, made = open(sys.argv[1]).read(), pathlib.Path(sys.argv[2])
kept = (compile.kept_libraries() or made.parent) / (made.name.split(".")[0] + ".so")
if {entry!r} in text:
    spoiled = text.replace(*{wrong!r})
    assert spoiled != text
    compile.compile_module(spoiled, made)
elif kept.exists():
    shutil.copy(kept, made)
else:
    compile.compile_module(text, made)
""")
    return compiler


@pytest.mark.first
@pytest.mark.parametrize("feature", WRONG)
def test_a_kernel_that_is_wrong_is_found(tmp_path, feature):
    arguments, entry, wrong, failing, others = WRONG[feature]
    record = check(tmp_path, "9.0" if "_" in entry else "8.0", arguments, compiler=wrong_compiler(tmp_path, entry, wrong))
    failed = {row["output"] for row in findings(record) if not row["pass"]}
    assert 0 < record["failed"] < record["checks"]
    assert set(failing.split()) <= failed and not set(others.split()) & failed, failed
