"""sm_100f's kernels on the CPU, which plans take by name alone: against the fp64 oracle, with the bits of sm_90a's, and
with copies and products that end late and in any order (SIMT_LATE), as Hopper's are tried too. What is wrong in them
and how it is found: test_mutations.py."""
import json
import re
from pathlib import Path

import emulator
import pytest
from cpu_kernel import emit, needs_emit, needs_llc
from emulator import entries_in, needs_emulator
from flpgen_tool import flpgen, needs_flpgen
from test_check import EVERYTHING, FEATURES, SMALL, check, outputs_of

pytestmark = [needs_flpgen, needs_emulator, needs_emit, needs_llc]
TESTS = Path(__file__).resolve().parents[1]
SEEDS = (1, 2, 3)
ARCHES = {"9.0": "sm_90a", "10.0": "sm_100f", "10.3": "sm_100f"}
OPERANDS = re.compile("(weight|hidden)-dtype fp32")
HEADS = [(feature, f"{given.shape} {head}") for feature, given in FEATURES.items() for head in given.heads
         if not re.search("dtype fp32|alignment|keep-set", OPERANDS.sub("", f"{given.shape} {head}"))]
SHORT = {("10.0", "head", 1), ("10.3", "top tailed", None), ("9.0", "save", 2)}


def late(seed):
    return {"SIMT_LATE": str(seed)} if seed else {}


def case(capability, feature, head, seed, is_first):
    is_short = is_first and (capability, feature, seed) in SHORT
    return pytest.param(capability, feature, head, seed, marks=() if is_short else pytest.mark.long,
                        id=f"{capability}-{feature}-{seed or 'at once'}-{head}")


@pytest.mark.parametrize("capability,feature,head,seed", [
    case(capability, feature, head, seed, i == 0 or HEADS[i - 1][0] != feature)
    for i, (feature, head) in enumerate(HEADS) for capability in ARCHES
    for seed in ((None, *SEEDS) if capability != "9.0" else SEEDS)])
def test_a_head(tmp_path, capability, feature, head, seed):
    """Each head of test_check.py that has operands of 16 bits; kernels of listed columns are portable."""
    given = FEATURES[feature]
    record = check(tmp_path, capability, f"{head} --arch {ARCHES[capability]}", given.least, **late(seed))
    made = entries_in(tmp_path)
    assert {entry.split("/")[-1] for entry in given.entries.split()} <= made
    assert not {entry.split("/")[0] for entry in given.entries.split() if "/" in entry} & made
    assert set(given.outputs.split()) <= outputs_of(record)


def test_plans_take_no_kernels_that_no_gpu_has_run(tmp_path):
    check(tmp_path, "10.0", f"{SMALL} --dtype bf16")
    assert "forward" in entries_in(tmp_path) and "forward_map" not in entries_in(tmp_path)


def bits_of(folder, capability, head):
    """The file that a run writes: logprobs, entropies and gradients."""
    out = folder / f"{capability}.safetensors"
    words = f"run --demo --vocab 1531 --hidden 264 --rows 300 --rung jit --quiet {head} --arch {ARCHES[capability]}"
    done = flpgen(*words.split(), "--output", out, **emulator.environment(folder, capability))
    assert done.code == 0, done.err
    return out.read_bytes()


@pytest.mark.first
@pytest.mark.parametrize("head", [
    "--dtype bf16 --grad hidden,weight --entropy forward",
    "--dtype fp16 --grad hidden,weight --softcap 20 --entropy forward",
    "--dtype bf16 --grad hidden,lora_a,lora_b --lora-rank 24", "--dtype bf16 --topk 20 --rank",
    "--dtype bf16 --grad hidden,weight --tail 2^-9", "--dtype bf16 --targets 20 --grad hidden"])
def test_bits_are_those_of_hoppers_kernels(tmp_path, head):
    assert bits_of(tmp_path, "9.0", head) == bits_of(tmp_path, "10.0", head)


@pytest.mark.long
@pytest.mark.parametrize("seed", [None, *SEEDS])
@pytest.mark.parametrize("tiling", json.loads((TESTS / "tilings.json").read_text())["tilings"]["sm_100f"])
def test_other_tilings(tmp_path, tiling, seed):
    check(tmp_path, "10.0", f"--vocab 1100 --hidden 40 --rows 230 {EVERYTHING} --arch sm_100f --tune {tiling}", 20,
          **late(seed))


def test_fp32_is_portable():
    with pytest.raises(AssertionError, match="dtype fp32 has no kernels of sm_100f; bf16 and fp16 have"):
        emit(kind="forward", arch="sm_100f", dtype="fp32")
