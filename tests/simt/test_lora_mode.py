"""An adapter on the head, on kernels that run on the CPU (lora_case.py): logprobs and gradients against float64, in every
dtype and layout; the bits of the head without one where B or s is 0; on sm_80's kernels and Hopper's."""
import pytest

from test_check import pytestmark  # noqa: F401 - the same stand-ins
from test_modes import folder, marked, run  # noqa: F401

ROWS, COLUMNS = 3, 2  # FLP_MODE_RECOMPUTE_ROWS, _VOCAB
CASES = {
    "usual": {"masked": True},
    "bias": {"bias": True, "entropy": 2, "of": ["hidden", "bias", "a", "b"], "masked": True, "padding": 8},
    "by rows": {"mode": ROWS, "chunk_rows": 64, "rows": 300, "softcap": 20},
    "by columns": {"mode": COLUMNS, "chunk_vocab": 384, "wide": True, "vocab_valid": 1050},
    "fp16": {"dtype": "fp16", "rank": 64, "mode": ROWS, "chunk_rows": 64},
    "fp32": {"dtype": "fp32", "rank": 8, "rows": 70, "vocab": 900, "hidden": 40},
    "a alone": {"of": ["a"]},
    "b alone": {"of": ["b"], "rank": 136},
    "widest": {"rank": 512, "vocab": 300, "rows": 40},
    "by rows in fp32": {"mode": ROWS, "chunk_rows": 64, "wide": True},
    "a step": {"loss": "reinforce", "masked": True},
}
SHORT = {"usual", "bias", "by rows", "by columns", "fp16", "fp32"}
NEAR = {"bf16": 2e-5, "fp16": 5e-4, "fp32": 2e-5}  # fp16: sums of u in fp32 round to another neighbour than those in fp64
ROUNDING = {"bf16": 2.0**-7, "fp16": 2.0**-10, "fp32": 2e-6}  # of dz, of G and of the results


@pytest.mark.parametrize("name", marked(CASES, SHORT))
@pytest.mark.parametrize("capability", ["8.0", "9.0"])
def test_values_and_gradients_are_those_of_float64(folder, capability, name):  # noqa: F811
    case = CASES[name]
    found = run(folder, capability, "lora_case.py", case)
    near = NEAR[case.get("dtype", "bf16")]
    assert found["logprob"] < near and found.get("entropy", 0) < near and found.get("loss", 0) < near, found
    assert set(found["error"]) == set(case.get("of", ["hidden", "a", "b"]))
    assert max(found["error"].values()) < ROUNDING[case.get("dtype", "bf16")], found
    assert found["finite"] and found["again"]
    assert found["products"] == (2 if "hidden" in found["error"] else 1) or name == "a step"
    if case.get("mode"):
        assert found["mode"] == case["mode"] and found["chunks"] > 1, found


def test_elements_without_16_byte_alignment(folder):  # noqa: F811
    found = run(folder, "9.0", "lora_case.py", {"alignment": 2, "padding": 1, "rows": 40})
    assert max(found["error"].values()) < ROUNDING["bf16"] and found["logprob"] < 2e-5


@pytest.mark.parametrize("dtype,zero", [("bf16", "b"), ("fp32", "b"), ("bf16", "scale"),
                                        pytest.param("fp16", "b", marks=pytest.mark.long)])
@pytest.mark.parametrize("capability", ["8.0", "9.0"])
def test_nothing_in_b_gives_the_bits_of_the_head_alone(folder, capability, dtype, zero):  # noqa: F811
    case = {"dtype": dtype, "zero": zero, "rows": 70, "masked": True}
    found = run(folder, capability, "lora_case.py", case)
    assert found["same_bits"] and found["same_gradient"], found
