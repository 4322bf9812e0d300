"""K targets a row whole, on kernels that run on the CPU (targets_case.py): logprobs, entropy and gradients beside
float64, on sm_80's kernels and Hopper's."""
import pytest

from test_check import pytestmark  # noqa: F401 - the same stand-ins
from test_modes import folder, marked, run  # noqa: F401

BUILD = ("8.0", "9.0")
VOCAB, ROWS, SPLIT = 2, 3, 4  # FLP_MODE_RECOMPUTE_*
WORST = {"bf16": 4e-3, "fp16": 6e-4, "fp32": 2e-6}  # of gradients: dz has that dtype
BAD = [3, 8]

HEADS = {
    "mixed": {"bad": True},
    "bias by vocab": {"grads": 7, "bias": True, "entropy": 2, "mode": VOCAB, "chunk_vocab": 1024, "targets": 9,
                      "bad": True, "subset": True},
    "bias by rows": {"grads": 7, "bias": True, "mode": ROWS, "chunk_rows": 32, "targets": 2},
    "fp32 split": {"dtype": "fp32", "grads": 7, "bias": True, "mode": SPLIT, "chunk_rows": 32, "chunk_vocab": 1024,
                   "entropy": 2, "softcap": 5, "ids": "int32"},
    "fp16 capped": {"dtype": "fp16", "softcap": 20, "per_row_temperature": True, "mode": ROWS, "chunk_rows": 32,
                    "entropy": 2},
    "frozen": {"grads": 1, "targets": 33, "entropy": 0},
    "head alone": {"grads": 6, "bias": True, "targets": 3, "accumulate": True},
    "all that fit": {"targets": 512, "rows": 20, "vocab": 2000},
    "more than the vocabulary": {"targets": 300, "rows": 40, "vocab": 130, "hidden": 40, "grads": 7, "bias": True},
    "in bf16": {"grad_weight_fp32": False, "mode": ROWS, "chunk_rows": 32},
}
SHORT = {"mixed", "bias by vocab", "fp32 split", "fp16 capped", "all that fit"}


def case_of(folder, capability, **case):  # noqa: F811
    return run(folder, capability, "targets_case.py", case)


def good(found, case):
    worst = WORST[case.get("dtype", "bf16")]
    assert found["logprob"] < 1e-5 and found.get("entropy", 0) < 1e-5 and found["zeros"], found
    for name, error in {**found["error"], **found.get("entropy_alone", {})}.items():
        assert error < worst, (name, found)
    bad = [row for row in BAD if case.get("bad") and not (case.get("subset") and row % 3 == 0)]
    if case.get("grads", 3) & 1 and "kind" not in case:
        assert found["worst_row"] < 20 * worst, found  # of its own gradient, near p = 1 too
    assert found["nan_rows"] == bad and found["nan_values"] == len(bad) * case.get("targets", 6), found
    if case.get("grads", 3) & 1:
        assert found["nan_gradients"] == bad and found["zero_gradients"], found
    return bad


@pytest.mark.parametrize("name", marked(HEADS, SHORT))
@pytest.mark.parametrize("capability", BUILD)
def test_targets_of_every_kind(folder, capability, name):  # noqa: F811
    found = case_of(folder, capability, **HEADS[name])
    bad = good(found, HEADS[name])
    assert found["bad"] == [len(bad), len(bad)] and found["again"], found
    assert found["modes"] == [1, HEADS[name].get("mode", VOCAB)]
    assert found["chunks"] > 2 or "mode" not in HEADS[name]


@pytest.mark.parametrize("capability", BUILD)
@pytest.mark.parametrize("dtype,softcap", [("bf16", 0), pytest.param("fp32", 10, marks=pytest.mark.long)])
def test_one_target_again_and_again_is_that_of_one(folder, capability, dtype, softcap):  # noqa: F811
    found = case_of(folder, capability, kind="same", entropy=2, dtype=dtype, softcap=softcap, targets=40)
    good(found, {"dtype": dtype, "targets": 40, "kind": "same"})
    assert found["same_bits"], "logprob and stats"
    for name, apart in found["apart"].items():
        assert apart < (1e-3 if dtype == "bf16" else 1e-6), (name, found)  # an ulp of dz here and there


@pytest.mark.parametrize("capability,case", [
    ("8.0", {"shards": 2, "vocab": 1600, "softcap": 20, "grads": 7, "bias": True, "subset": True}),
    pytest.param("9.0", {"shards": 3}, marks=pytest.mark.long)])
def test_shards_of_the_vocabulary(folder, capability, case):  # noqa: F811
    case = {**case, "entropy": 2, "bad": True, "targets": 20}
    found = case_of(folder, capability, **case)
    good(found, case)
    assert found["beside_whole"] < 1e-5
