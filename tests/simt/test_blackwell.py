"""sm_100f's kernels on the CPU, which plans take by name alone: against the fp64 oracle, with the bits of sm_90a's, and
with copies and products that end late and in any order (SIMT_LATE), as Hopper's are tried too. And that what a GPU
would refuse, or what reads too early, is found."""
import json
import re
from pathlib import Path

import emulator
import numpy
import pytest
from cpu_kernel import Kernel, emit, kernels, needs_emit, needs_llc
from emulator import entries_in, needs_emulator
from flpgen_tool import flpgen, needs_flpgen
from forward_case import VOCAB, Case, bits, run
from test_check import EVERYTHING, FEATURES, SMALL, check, outputs_of, wrong_compiler

pytestmark = [needs_flpgen, needs_emulator, needs_emit, needs_llc]
TESTS = Path(__file__).resolve().parents[1]
SEEDS = (1, 2, 3)
ARCHES = {"9.0": "sm_90a", "10.0": "sm_100f", "10.3": "sm_100f"}
HEADS = [(feature, f"{given.shape} {head}") for feature, given in FEATURES.items() for head in given.heads
         if not re.search("dtype fp32 |dtype fp32$|alignment", f"{given.shape} {head}".replace("weight-dtype fp32", "")
                          .replace("hidden-dtype fp32", ""))]
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
    """Each head of test_check.py that has operands of 16 bits."""
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


# ---- what is wrong is found ----

ARRIVE = "{ .reg .pred p; setp.ne.b32 p, $1, 0; @p mbarrier.arrive.shared::cta.b64 _, [$0]; }"
# What is wrong: key, pattern, what stands in its place.
EARLY = {
    "stages and tiles are told before products end": (
        {"arch": "sm_100f", "tune": "cluster=1,stages=4"},
        r'"tcgen05\.commit\.cta_group::1\.[^"]*", "r,~\{memory\}"\((i32 [%\w]+)\)',
        f'"{ARRIVE}", "r,r,~{{memory}}"(\\1, i32 1)'),
    "sums are read before products end": ({"arch": "sm_90a"}, r"wait_group\.sync\.aligned 0;",
                                          "wait_group.sync.aligned 7;"),
}


@pytest.mark.parametrize("what", EARLY)
def test_what_reads_too_early_is_found_if_work_is_late(folder, monkeypatch, what):
    fields, pattern, place = EARLY[what]
    head = Case({"entropy": 1}, 57)
    module = emit(kind="forward", entropy=1, **fields)
    spoiled, count = re.subn(pattern, place, module["ir"])
    assert count > 0
    entry, tile = module["entries"][0], module["tile"]
    wrong = {entry["name"]: Kernel(spoiled, entry["name"], entry["threads"], folder, max(tile["cluster"], 1))}
    right = run(*kernels(folder, kind="forward", entropy=1, **fields), head, "forward", VOCAB)
    at_once = run(wrong, tile, head, "forward", VOCAB)
    assert numpy.array_equal(bits(at_once[0]), bits(right[0])), "at once it does not show"
    for seed in SEEDS:
        monkeypatch.setenv("SIMT_LATE", str(seed))
        again = run(*kernels(folder, kind="forward", entropy=1, **fields), head, "forward", VOCAB)
        assert numpy.array_equal(bits(again[0]), bits(right[0]))
        assert not numpy.array_equal(bits(run(wrong, tile, head, "forward", VOCAB)[0]), bits(right[0]))


# What is wrong: what stands in the IR, what in its place, what the emulator says.
REFUSED = {
    "descriptors of another version": (str(1 << 62 | 1 << 46 | 64 << 32), str(1 << 62 | 64 << 32),
                                       "tcgen05.mma: descriptor"),
    "another shape": ("mov.b32 id, 272630928", "mov.b32 id, 138413200", "tcgen05.mma: shape"),
    "lanes of another warp": (", 21\n", ", 20\n", "tcgen05.ld: lanes"),
    "fewer columns than sums": ("i32 512) #", "i32 256) #", "tcgen05.mma: columns"),
    "tensor memory that is kept": ("tcgen05.dealloc.cta_group::2.sync.aligned.b32 $0, $1;", "fence.nothing",
                                   "tensor memory is not given back"),
}


@pytest.mark.first(2)
@pytest.mark.parametrize("what", REFUSED)
def test_what_a_gpu_refuses_is_refused(tmp_path, what):
    old, new, said = REFUSED[what]
    compiler = wrong_compiler(tmp_path, "@flp_forward_map", (old, new))
    with pytest.raises(AssertionError, match=f"(?s)killed by signal 6: .*simt: {said}"):
        flpgen("check", *f"{SMALL} --dtype bf16 --grad hidden --arch sm_100f --rung jit --quiet".split(),
               **emulator.environment(tmp_path, "10.0", compiler))
