"""Operands of two dtypes whole, on kernels that run on the CPU (mixed_case.py), sm_80's and Hopper's: rounded operands
have the bits of a plan of one dtype, split ones are near float64 on what stands in memory."""
import pytest

from test_check import pytestmark  # noqa: F401 - the same stand-ins
from test_modes import folder, marked, run  # noqa: F401

BUILD = ("8.0", "9.0")
VOCAB, ROWS, STREAM = 2, 3, 6  # FLP_MODE_*
GRADIENT = {"bf16": 4e-3, "fp16": 6e-4}  # dz has that dtype

HEADS = {
    "weight": {"grads": 7, "bias": True, "wide_bias": True, "masked": True, "entropy": 2},
    "weight, slices": {"dtype": "fp16", "budget": 700_000, "grads": 1, "vocab_valid": 6900, "chunk_vocab": 0},
    "weight, capped": {"softcap": 20, "per_row_temperature": True, "bias": True, "accumulate": True, "hidden": 24},
    "weight, unaligned": {"alignment": 2, "hidden": 24, "bias": True, "grads": 7, "budget": 700_000},
    "weight, step": {"loss": "grpo+k3", "vocab": 3200, "masked": True},
    "hidden": {"wide": "hidden", "grads": 7, "bias": True, "masked": True, "mode": ROWS, "chunk_rows": 32,
               "chunk_vocab": 0},
    "hidden, fp16": {"wide": "hidden", "dtype": "fp16", "vocab": 3200, "entropy": 2},
    "hidden, kept": {"wide": "hidden", "vocab": 1100, "keep": 1, "chunk_vocab": 0, "loss": "grpo+k3"},
    "bias of a shard": {"bias": True, "wide_bias": True, "bias_at": 3, "vocab": 1333},
    "bias alone": {"wide": "none", "bias": True, "wide_bias": True, "vocab": 3200},
}
SHORT = {"weight", "weight, slices", "hidden", "bias of a shard"}


@pytest.mark.parametrize("name", marked(HEADS, SHORT))
@pytest.mark.parametrize("capability", BUILD)
def test_rounded_operands_have_the_bits_of_a_plan_of_one_dtype(folder, capability, name):  # noqa: F811
    case = HEADS[name]
    found = run(folder, capability, "mixed_case.py", case)
    assert found["forward_bits"] and found["gradient_bits"], found
    assert found["logprob"] < 2e-5 and found["entropy"] < 2e-5, found
    if "accumulate" not in case:
        assert max(found["error"].values()) < GRADIENT[case.get("dtype", "bf16")], found
    if case.get("wide", "weight") == "weight":
        assert found["modes"] == [1, VOCAB] and found["products"][0] == 1, found
    if "loss" in case:
        assert found["step"]["rows"] and found["step"]["gradients"], found
        assert found["step"]["modes"][1] == (VOCAB if case.get("wide", "weight") == "weight" else STREAM), found


SPLIT = {"weight": {"vocab": 3200, "grads": 7, "bias": True, "masked": True, "entropy": 2},
         "weight, slices": {"dtype": "fp16", "budget": 1_000_000, "vocab_valid": 6900, "hidden": 24},
         "hidden": {"wide": "hidden", "vocab": 3200, "grads": 7, "bias": True, "entropy": 2},
         "hidden, fp16": {"wide": "hidden", "dtype": "fp16", "vocab": 3200}}


@pytest.mark.parametrize("name", marked(SPLIT, {"weight"}))
@pytest.mark.parametrize("capability", BUILD)
def test_split_operands_are_near_float64(folder, capability, name):  # noqa: F811
    case = SPLIT[name]
    found = run(folder, capability, "mixed_case.py", {**case, "mixed": "split"})
    worst = 2e-4 if case.get("dtype", "bf16") == "bf16" else 2e-5  # rounded: 1e-2 and 2e-3
    assert found["logprob"] < worst and found["entropy"] < worst, found
    assert not found["forward_bits"], "rounded operands give the same"
    # products of gradients take dz and first terms, both of 16 bits
    assert max(found["error"].values()) < 1.5 * GRADIENT[case.get("dtype", "bf16")], found
    assert found["modes"] == [1, VOCAB] and found["products"][0] == 2, found
