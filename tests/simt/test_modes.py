"""Save and stream modes whole, on kernels that run on the CPU (modes_case.py): logprob and entropy have score mode's
bits, gradients are as near to float64 as recompute mode's on the same inputs but for the rounding of what is kept, on
sm_80's kernels and Hopper's."""
import json
import os
import subprocess
import sys

import emulator
import pytest

from test_check import pytestmark  # noqa: F401 - the same stand-ins

HEADS = {
    "plain": {"loss": "grpo+k3", "rows": 300, "hidden": 16, "vocab": 900, "chunk_rows": 128},
    "expanded": {"loss": "grpo+k3+entropy", "entropy": 2, "grads": 7, "bias": True, "softcap": 20, "masked": True,
                 "per_row_temperature": True},
    "accumulated": {"loss": "grpo+k3", "masked": True, "accumulate": True, "old_lse": True},
    "frozen": {"loss": "grpo+k3", "grads": 1, "vocab_valid": 1050},
    "capped": {"loss": "grpo+k3", "softcap": 20, "vocab_valid": 1050},
    "saturated": {"loss": "grpo+k3", "softcap": 0.6, "peaked": True, "per_row_temperature": True},
    "near_cap": {"loss": "grpo+k3", "softcap": 0.6, "bias": True, "near_cap": 5},
    "near_cap_redone": {"loss": "grpo+k3+entropy", "entropy": 2, "softcap": 30, "bias": True, "near_cap": 5},
    "flat_cap_redone": {"softcap": 0.6, "entropy": 2, "grads": 7, "bias": True},
    "capped_redone": {"loss": "grpo+k3", "softcap": 200, "spread": True},
    "peaked": {"loss": "grpo+k3", "grad_weight_fp32": False, "peaked": True, "bias": True, "vocab_valid": 1050},
    "redone": {"loss": "grpo+k3+entropy", "entropy": 2, "grads": 7, "bias": True, "spread": True},
    "nan": {"nan_row": True},
    "any loss": {"loss": "grpo+k3+entropy", "entropy": 2, "masked": True},  # by the kernel that rung generic has
    "nan_expanded": {"nan_row": True, "entropy": 2, "grads": 7, "bias": True, "softcap": 20},
    "nan_redone": {"nan_row": True, "spread": True},
    "nan_redone_expanded": {"nan_row": True, "spread": True, "entropy": 2, "grads": 7, "bias": True},
    "recomputed": {"loss": "grpo+k3", "step_mode": 3, "chunk_rows": 64},
}
# One head a way through the kernels; the others are variations.
SHORT = {"plain", "expanded", "frozen", "peaked", "any loss", "nan_redone_expanded"}
# kept and scaled rows are rounded to bf16 each where recompute mode rounds dz alone: √2 in grad_weight, and as much
# again for the luck of a few hundred rows
WORST = {"hidden": 1.5, "weight": 1.8, "bias": 1.5}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("libraries")


def marked(names, short):
    """What runs in the short form, and the others, which are long."""
    return [name if name in short else pytest.param(name, marks=pytest.mark.long) for name in names]


def run(folder, capability, script, *arguments, **settings):
    """What the script prints, from JSON. arguments: text, or a case"""
    arguments = [given if isinstance(given, str) else json.dumps(given) for given in arguments]
    environment = {**os.environ, **emulator.environment(folder, capability), **settings}
    done = subprocess.run([sys.executable, str(emulator.SIMT / script), *arguments], env=environment, text=True,
                          capture_output=True, timeout=1800)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", marked(HEADS, SHORT))
@pytest.mark.parametrize("capability", ["8.0", "9.0"])
def test_saved_and_streamed_gradients_are_as_good_as_recomputed_ones(folder, capability, name):
    case = {"rows": 70, **HEADS[name]}
    settings = {"FAKE_IR_ANY_LOSS": "1", "FLP_CACHE_DIR": str(folder / "any")} if name == "any loss" else {}
    found = run(folder, capability, "modes_case.py", case, **settings)
    assert set(found) == ({"S", "P"} if "loss" in case else {"S"})
    for mode, result in found.items():
        assert result["same_bits"], mode
        for gradient, error in result["error"].items():
            assert error <= WORST[gradient] * result["of_R"][gradient], (mode, gradient, result)
    assert found["S"]["finite"]
    if "loss" in case:
        assert found["P"]["loss"] < 1e-5 and found["P"]["mode"] == case.get("step_mode", 6) and found["P"]["chunks"] > 1
    if "redone" in name:
        assert found["S"]["error"] == found["S"]["of_R"]


SUMS = {"two tiles of D": {"hidden": 264, "vocab": 331}, "masked": {"masked": True, "vocab_valid": 1050},
        "chunks without work": {"masked": True, "rows": 400}}


@pytest.mark.parametrize("name", marked(SUMS, {"two tiles of D"}))
@pytest.mark.parametrize("capability", ["8.0", "9.0"])
def test_sums_over_chunks_in_24_bits_are_as_good_as_in_32(folder, capability, name):
    case = {"loss": "grpo+k3", "sums": True, "rows": 300, **SUMS[name]}
    found = run(folder, capability, "modes_case.py", case)
    assert set(found) == {"P", "R_ROWS"}
    for mode, errors in found.items():
        assert errors["split"] <= 1.05 * errors["rounded"], (mode, errors)
        assert 0 < errors["apart"] < 0.05, (mode, errors)
        assert errors["fp32"] < errors["rounded"] < 1e-2, (mode, errors)


@pytest.mark.parametrize("capability", ["8.0", "9.0"])
def test_the_binding_runs_both_modes(folder, capability):
    """Tensors of torch, through autograd: torch_case.py."""
    pytest.importorskip("torch")
    found = run(folder, capability, "torch_case.py")
    kept, streamed, scaled = found["S"], found["P"], found["scaled"]
    assert kept["mode"] == "save" and kept["same_bits"] and kept["second_is_R"]
    assert all(error <= 1.5 * of_r for error, of_r in zip(kept["error"], kept["of_R"])), kept
    assert streamed["mode"] == "stream" and streamed["loss"] < 1e-5
    assert max(streamed["error"] + streamed["buffer"] + streamed["frozen"]) < 5e-3, streamed
    for case, rows in found["temperatures"].items():
        assert rows["kernel"] == rows["torch"] and rows["counted"] == sum(rows["kernel"]), (case, rows)
    assert scaled["rung"] in (2, 3) and scaled["dtypes"] == [3, 3, 3] and max(scaled["error"]) < 1e-3, scaled
