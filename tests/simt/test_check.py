"""flpgen check on a GPU that is none: the stand-in for libcuda runs the generated kernels on the CPU, so that library,
launches and kernels together meet the fp64 oracle, on random and adversarial data; sm_80's kernels and Hopper's. And
flpgen bench of what no other stand-in computes."""
import json
import re

import emulator
import pytest

from cpu_kernel import needs_llc
from emulator import entries_in
from flpgen_tool import findings, flpgen, needs_flpgen

pytestmark = [needs_flpgen, needs_llc,
              pytest.mark.skipif(not all(path.exists() for path in emulator.STAND_INS), reason="the stand-ins were not built")]

HEADS = [
    ["--dtype", "bf16", "--grad", "hidden,weight,bias", "--bias", "--entropy", "backward"],
    ["--dtype", "fp16", "--grad", "hidden,weight", "--softcap", "20", "--entropy", "forward", "--per-row-temperature"],
    ["--dtype", "fp32", "--grad", "hidden,weight", "--accumulate-grad-weight", "--target-dtype", "int32"]]
TILINGS = [  # tilings of Hopper's kernels that are not the defaults
    "forward:cooperative,256x192,stages=3;products:128x128,cluster=1", "forward:ping-pong,128x128,cluster=1",
    "forward:192x128,stages=4;dz:192x128,stages=4;products:256x128,cluster=1", "forward:64x256,stages=3;dz:64x256,stages=3"]


def check(libraries, capability, *arguments, compiler=None):
    """Runs `flpgen check` -> its record. libraries: a folder for compiled kernels"""
    return record_of("check", libraries, capability, arguments, compiler)


def record_of(verb, libraries, capability, arguments, compiler=None):
    out = libraries / "record.json"
    out.unlink(missing_ok=True)
    done = flpgen(verb, *arguments, "--rung", "jit", "--quiet", "--json", out,
                  **emulator.environment(libraries, capability, compiler))
    assert done.code in (0, 1), done.err
    return json.loads(out.read_text())


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    return tmp_path_factory.mktemp("libraries")


def passed(record, least):
    failed = [row for row in record["rows"] if not row["pass"]]
    assert not failed, failed[:5]
    assert all(row["rungs"] == ["jit"] for row in record["rows"]) and record["gpu"] == "Fake H200"
    assert record["checks"] >= least


@pytest.mark.parametrize("head", HEADS, ids=lambda head: head[1])
@pytest.mark.parametrize("capability,entry", [("8.0", "forward"), ("9.0", "forward_map")])
def test_a_head(tmp_path, capability, entry, head):
    passed(check(tmp_path, capability, "--vocab", 331, "--hidden", 40, "--rows", 41, *head), least=30)
    made = entries_in(tmp_path)
    assert entry in made and ("products_map" in made) == (capability == "9.0")


@pytest.mark.long
@pytest.mark.parametrize("head", HEADS[:2], ids=lambda head: head[1])
@pytest.mark.parametrize("capability", ["8.0", "9.0"])
def test_a_ragged_head_of_some_size(tmp_path, capability, head):
    """Products of so many terms that it shows where their sums are rounded, of scores near -16384 above all. Not of fp32:
    its six products of a number add one rounding for each product here, where tensor cores add one for sixteen."""
    passed(check(tmp_path, capability, "--vocab", 1100, "--hidden", 520, "--rows", 300, *head), least=50)


@pytest.mark.parametrize("capability,arguments", [
    ("8.0", ["--topk", 20, "--rank", "--vocab", 3400, "--entropy", "forward", "--target-dtype", "int32"]),
    ("9.0", ["--topk", 20, "--rank", "--vocab", 3400, "--bias", "--per-row-temperature"]),
    ("9.0", ["--topk", 128, "--vocab", 2100, "--rows", 300, "--budget", "4200K"]), # two chunks of rows
    ("8.0", ["--rank", "--vocab", 900, "--dtype", "fp16", "--softcap", 20]),
    ("8.0", ["--topk", 40, "--rank", "--vocab", 1100, "--dtype", "fp32"])], ids=lambda value: str(value[1])[:3])
def test_best_columns_and_ranks(tmp_path, capability, arguments):
    given = arguments if "--dtype" in arguments else [*arguments, "--dtype", "bf16"]
    record = check(tmp_path, capability, "--hidden", 40, *given)
    passed(record, least=20)
    names = {row["output"] for row in findings(record)}
    assert ("top_ids" in names) == ("--topk" in given) and ("rank" in names) == ("--rank" in given)
    made = entries_in(tmp_path)
    assert ("forward_top" if capability == "8.0" else "forward_top_map") in made and "top_finish" in made


@pytest.mark.parametrize("tiling", [*TILINGS[:2], *[pytest.param(one, marks=pytest.mark.long) for one in TILINGS[2:]]])
def test_hopper_other_tilings(tmp_path, tiling):
    passed(check(tmp_path, "9.0", "--vocab", 1100, "--hidden", 40, "--rows", 230, "--dtype", "bf16", "--grad", "hidden,weight",
                 "--tune", tiling), least=20)
    made = entries_in(tmp_path)
    assert {"forward_map", "dz_map", "products_map"} <= made and "forward" not in made


@pytest.mark.parametrize("capability,entry,mode", [
    ("8.0", "forward_keep", ["--mode", "P", "--loss", "ppo+k2+entropy", "--grad", "hidden,weight,bias", "--bias"]),
    ("9.0", "forward_keep_map", ["--mode", "S", "--grad", "hidden,weight"])], ids=["P", "S"])
def test_saved_exponentials(tmp_path, capability, entry, mode):
    record = check(tmp_path, capability, "--vocab", 820, "--hidden", 24, "--rows", 17, "--dtype", "bf16", *mode)
    passed(record, least=50)
    assert {"logprob bits", "grad_hidden", "grad_weight"} <= {row["output"] for row in findings(record)}
    assert "steep" in {row["case"] for row in record["rows"]}, "what is redone"
    name = {"S": "save", "P": "stream"}[mode[1]]
    assert all(f"mode={name}" in row["options"] for row in record["rows"])
    assert entry in entries_in(tmp_path)


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("capability", ["8.0", "9.0"])
def test_gradients_with_a_mean_score_are_rounded_once(tmp_path, capability, dtype):
    """At 64 x 1000 x 64 a second rounding is more than check allows of fp16."""
    record = check(tmp_path, capability, "--vocab", 1000, "--hidden", 64, "--rows", 64, "--dtype", dtype, "--grad",
                   "hidden,weight", "--loss", "cross_entropy")
    passed(record, least=90)
    assert "score_head" in entries_in(tmp_path)


@pytest.mark.parametrize("capability,mode", [
    ("8.0", ["--mode", "S", "--grad", "hidden"]), ("9.0", ["--mode", "P", "--loss", "nll", "--grad", "hidden,weight"])],
    ids=["S", "P"])
def test_exponentials_of_scores_at_the_softcap(tmp_path, capability, mode):
    """Scores near 1e4, whose gradients are 0."""
    record = check(tmp_path, capability, "--vocab", 820, "--hidden", 24, "--rows", 17, "--dtype", "bf16", "--softcap", 30,
                   *mode)
    passed(record, least=35)
    assert "shifted" in {row["case"] for row in record["rows"]}


DIRECTIONS = [("8.0", "forward_keep"), ("9.0", "forward_keep_map")]


def directions(libraries, entry, record, least):
    passed(record, least)
    assert "grad_hidden" in {row["output"] for row in findings(record)}
    assert all("mode=direction" in row["options"] for row in record["rows"])
    assert {entry, "direction_strike", "direction_finish", "direction_rows"} <= entries_in(libraries)
    return {row["case"] for row in record["rows"]}


@pytest.mark.parametrize("capability,entry", DIRECTIONS)
def test_directions_of_a_frozen_head(tmp_path, capability, entry):
    record = check(tmp_path, capability, "--vocab", 820, "--hidden", 24, "--rows", 17, "--dtype", "bf16", "--mode", "D", "--grad",
                   "hidden")
    assert "steep" in directions(tmp_path, entry, record, least=20), "what is redone"


@pytest.mark.long
@pytest.mark.parametrize("capability,entry", DIRECTIONS)
def test_directions_in_chunks_of_columns(tmp_path, capability, entry):
    record = check(tmp_path, capability, "--quick", "--dtype", "bf16", "--mode", "direction")
    cases = directions(tmp_path, entry, record, least=50)
    assert {"columns-rows", "columns-steep", "columns-shards", "columns-softcap"} <= cases, cases


LISTS = {
    "columns of many entries": ["--vocab", 331, "--hidden", 40, "--rows", 80, "--keep-set", 160, "--dtype", "bf16", "--grad",
                                "hidden,weight,bias", "--bias", "--entropy", "backward"],
    "a frozen head": ["--vocab", 1100, "--hidden", 40, "--rows", 41, "--keep-set", 30, "--dtype", "bf16", "--grad", "hidden",
                      "--alignment", 2],
    "softcap": ["--vocab", 331, "--hidden", 40, "--rows", 41, "--keep-set", 60, "--dtype", "fp16", "--grad", "hidden,weight",
                "--softcap", 20, "--entropy", "forward", "--per-row-temperature"],
    "added to": ["--vocab", 600, "--hidden", 72, "--rows", 41, "--keep-set", 200, "--dtype", "fp32", "--grad", "weight",
                 "--accumulate-grad-weight", "--target-dtype", "int32"]}


@pytest.mark.parametrize("head", [*list(LISTS)[:2], *[pytest.param(one, marks=pytest.mark.long) for one in list(LISTS)[2:]]])
def test_listed_columns(tmp_path, head):
    record = check(tmp_path, "9.0", *LISTS[head])
    passed(record, least=30)
    assert all("mode=listed" in row["options"] for row in record["rows"])
    made = entries_in(tmp_path)
    assert {"list_check", "list_sort", "list_scores", "list_reduce", "list_dz"} <= made
    assert ("list_weight_wide" in made) == (head != "a frozen head")


TAILS = {
    "all gradients": ["--dtype", "bf16", "--grad", "hidden,weight,bias", "--bias", "--entropy", "backward"],
    "a step": ["--dtype", "bf16", "--grad", "hidden,weight", "--loss", "grpo+k3"],
    "softcap": ["--dtype", "fp16", "--grad", "hidden,weight", "--softcap", "20", "--per-row-temperature", "--tail", "2^-6"],
    "added to": ["--dtype", "fp32", "--grad", "weight", "--accumulate-grad-weight", "--alignment", 4, "--target-dtype", "int32"]}


@pytest.mark.parametrize("capability,head", [
    ("8.0", "all gradients"), ("9.0", "a step"),
    *[pytest.param(*one, marks=pytest.mark.long) for one in (("9.0", "all gradients"), ("8.0", "softcap"), ("8.0", "added to"))]])
def test_tails(tmp_path, capability, head):
    record = check(tmp_path, capability, "--vocab", 1100, "--hidden", 136, "--rows", 41, "--tail", "2^-9", *TAILS[head])
    passed(record, least=60)
    assert all("mode=tail" in row["options"] for row in record["rows"])
    served = [re.match(r"(\d+) rows recomputed, (\d+) columns", row["note"]).groups() for row in findings(record)
              if row["output"] == "tail_report"]
    assert any(dense != "0" and columns != "0" for dense, columns in served), served
    assert {"forward_emit_map" if capability == "9.0" else "forward_emit", "tail_choose", "tail_entries"} <= entries_in(tmp_path)


ADAPTERS = {
    "all gradients": ["--dtype", "bf16", "--lora-rank", 24, "--grad", "hidden,bias,lora_a,lora_b", "--bias", "--entropy", "backward"],
    "a rank above the depth": ["--dtype", "bf16", "--lora-rank", 136, "--grad", "hidden,lora_a,lora_b"],
    "a step": ["--dtype", "bf16", "--lora-rank", 16, "--grad", "lora_a,lora_b", "--loss", "grpo"],
    "softcap": ["--dtype", "fp16", "--lora-rank", 64, "--grad", "hidden,lora_b", "--softcap", 20, "--per-row-temperature"],
    "fp32": ["--dtype", "fp32", "--lora-rank", 8, "--grad", "hidden,lora_a", "--target-dtype", "int32"]}


@pytest.mark.parametrize("capability,head", [
    ("9.0", "all gradients"), ("9.0", "a rank above the depth"), ("8.0", "softcap"),
    *[pytest.param(*one, marks=pytest.mark.long)
      for one in (("8.0", "all gradients"), ("9.0", "softcap"), ("9.0", "a step"), ("9.0", "fp32"), ("8.0", "fp32"))]])
def test_adapters(tmp_path, capability, head):
    record = check(tmp_path, capability, "--vocab", 331, "--hidden", 40, "--rows", 41, *ADAPTERS[head])
    passed(record, least=49)
    names = {row["output"] for row in findings(record)}
    asked = ADAPTERS[head][ADAPTERS[head].index("--grad") + 1].split(",")
    assert {f"grad_{name}" for name in asked} <= names and "logprob bits" in names, names
    assert {"lora-zero", "lora-off"} <= {row["case"] for row in record["rows"]}
    made = entries_in(tmp_path)
    mapped = {"forward_lora_map", "dz_lora_map", "lora_products_map"}
    assert "lora_project" in made and (mapped <= made if capability == "9.0" else not mapped & made), made
    assert capability == "8.0" or not {"forward_lora", "dz_lora", "forward", "dz"} & made, "an architecture's own kernels"


@pytest.mark.long
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("capability", ["8.0", "9.0"])
def test_adversarial_adapters(tmp_path, capability, dtype):
    record = check(tmp_path, capability, "--all", "--lora-rank", 24, "--dtype", dtype)
    passed(record, least=140)
    assert {"lora-512", "lora-shards", "lora-nan-idle", "lora-N=0", "lora-rows"} <= {row["case"] for row in record["rows"]}


DISTILLED = {
    "forward_kl": ["--dtype", "bf16", "--grad", "hidden,weight,bias", "--bias", "--targets", 20],
    "reverse_kl": ["--dtype", "fp16", "--grad", "hidden,weight", "--targets", 3, "--softcap", 20, "--target-dtype",
                   "int32"],
    "jsd": ["--dtype", "fp32", "--grad", "hidden", "--targets", 64, "--per-row-temperature"]}


@pytest.mark.parametrize("capability,loss", [
    ("9.0", "forward_kl"), ("8.0", "reverse_kl"),
    *[pytest.param(*one, marks=pytest.mark.long)
      for one in (("8.0", "forward_kl"), ("9.0", "reverse_kl"), ("9.0", "jsd"), ("8.0", "jsd"))]])
def test_steps_of_losses_over_several_targets(tmp_path, capability, loss):
    record = check(tmp_path, capability, "--vocab", 331, "--hidden", 40, "--rows", 41, "--loss", loss, *DISTILLED[loss])
    passed(record, least=100)
    assert {"loss", "metrics", "logprob", "logprob bits", "grad_hidden"} <= {row["output"] for row in findings(record)}
    cases = {row["case"] for row in record["rows"]}
    assert {"teacher-certain", "teacher-missing", "teacher-tails", "teacher-whole"} <= cases
    assert all(f"loss={loss}" in row["options"] for row in record["rows"])
    assert "loss_targets" in entries_in(tmp_path)


def test_steps_over_several_targets_are_timed_beside_steps_of_one(tmp_path):
    """flpgen bench, whose data no kernel calls bad; a loss over targets has no step of one, nll has."""
    record = record_of("bench", tmp_path, "9.0", [
        "--vocab", 300, "--hidden", 40, "--rows", 20, "--masked", 0.25, "--grad", "hidden,weight", "--targets", 8,
        "--loss", "forward_kl", "--loss-parameter", "rest_weight=0.5", "--no-baseline", "--burst-ms", 1, "--rounds", 3])
    rows = [{name: row[name] for name in ("case", "loss", "targets", "mode", "gemms")} for row in record["rows"]]
    assert rows == [{"case": "step", "loss": loss, "targets": targets, "mode": "recompute-vocab", "gemms": 4}
                    for loss, targets in (("forward_kl", 8), ("nll", 1))]
    assert record["rows"][0]["of_plain"] > 0 and "of_plain" not in record["rows"][1]
    assert {"loss_targets", "loss_rows"} <= entries_in(tmp_path)


@pytest.mark.long
def test_columns_of_three_digits(tmp_path):
    passed(check(tmp_path, "8.0", "--vocab", 262200, "--hidden", 8, "--rows", 5, "--keep-set", 40, "--dtype", "bf16", "--grad",
                 "weight"), least=30)


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32", "fp64"])
def test_scores_that_exist(libraries, dtype):
    passed(check(libraries, "8.0", "--op", "select", "--dtype", dtype), least=64)


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_gradients_times_a_factor(libraries, dtype):
    passed(check(libraries, "9.0", "--op", "scale", "--dtype", dtype), least=56)


def test_a_factor_that_is_added_is_found(tmp_path):
    compiler = wrong_compiler(tmp_path, "scale", "text = text.replace('fmul float', 'fadd float')")
    record = check(tmp_path, "8.0", "--op", "scale", "--dtype", "bf16", compiler=compiler)
    assert {row["output"] for row in findings(record) if row["pass"]} >= {"scale: times 1"}
    assert record["failed"] >= 4 * 7


def wrong_compiler(folder, entry, wrong):
    """A compiler that spoils modules with that entry. wrong: lines that change `text`, a module"""
    compiler = folder / "compiler.py"
    compiler.write_text(f"""import sys
sys.path.insert(0, {str(emulator.SIMT)!r})
import compile
text = open(sys.argv[1]).read()
if {entry!r} in text:
    right = text
    {wrong}
    assert text != right
compile.compile_module(text, sys.argv[2])
""")
    return compiler


def test_a_wrong_kernel_is_found(tmp_path):
    compiler = wrong_compiler(tmp_path, "", "text = text.replace('fadd float', 'fsub float', 1)")
    record = check(tmp_path, "8.0", "--op", "select", "--dtype", "fp32", compiler=compiler)
    assert 0 < record["failed"] < record["checks"]


def test_a_loss_over_targets_that_is_wrong_is_found(tmp_path):
    """What the teacher leaves to other tokens is half more: losses are off and so are gradients, logprobs are not."""
    wrong = "text = text.replace('fsub double 1.0', 'fsub double 1.5', 1)"
    compiler = wrong_compiler(tmp_path, "@flp_loss_targets", wrong)
    record = check(tmp_path, "9.0", "--vocab", 331, "--hidden", 40, "--rows", 41, "--loss", "forward_kl",
                   *DISTILLED["forward_kl"], compiler=compiler)
    wrong = {row["output"] for row in findings(record) if not row["pass"]}
    assert {"loss", "grad_hidden"} <= wrong and "logprob" not in wrong, wrong


def test_an_adapter_that_is_wrong_is_found(tmp_path):
    """Half of G in the place of s·G: what follows from that is off, and nothing else."""
    compiler = wrong_compiler(tmp_path, "@flp_lora_round", "text = text.replace('[ %lora_scale, ', '[ 5.0e-01, ', 1)")
    record = check(tmp_path, "9.0", "--vocab", 331, "--hidden", 40, "--rows", 41, *ADAPTERS["all gradients"], compiler=compiler)
    wrong = {row["output"] for row in findings(record) if not row["pass"]}
    assert "grad_lora_a" in wrong and "logprob" not in wrong and "grad_lora_b" not in wrong, wrong
