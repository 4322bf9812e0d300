"""Steps of flp.cross_entropy on the CPU, beside float64: label smoothing and z-loss in stream and recompute mode."""
import pytest

from test_check import pytestmark  # noqa: F401 - the same stand-ins
from test_modes import folder, run  # noqa: F401

pytest.importorskip("torch")
STREAM = 6


@pytest.mark.parametrize("capability", ["8.0", "9.0"])
def test_steps(folder, capability):  # noqa: F811
    found = run(folder, capability, "torch_cross_entropy_case.py")
    for name, step in found.items():
        assert step["loss"] < 1e-5 and not set(step["rungs"]) - {"jit", "heuristic"} and step["again"], (name, step)
        assert max(step["errors"]) < step["tolerance"], (name, step)
    streamed = {name for name, step in found.items() if STREAM in step["modes"]}
    assert streamed == set(found) - {"fp16", "fp32", "softcap", "softcap bias fp16"}


def test_as_data_of_a_kernel_for_any_loss(folder):  # noqa: F811
    """As on rung generic, where no kernel is made of a loss."""
    found = run(folder, "8.0", "torch_cross_entropy_case.py", "bf16", "bias", FAKE_IR_ANY_LOSS="1",
                FLP_CACHE_DIR=str(folder / "any"))
    for name, step in found.items():
        assert step["loss"] < 1e-5 and max(step["errors"]) < step["tolerance"] and STREAM in step["modes"], (name, step)
