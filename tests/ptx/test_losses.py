"""The kernels of losses assemble for the portable and for Hopper's target within their budget (budgets.json): no
spills, no stack, no warning, and doubles in between as the reference has them."""
import json
import os
import subprocess
from pathlib import Path

import pytest

from test_budgets import FLPGEN, assemble, kernel_faults, pytestmark  # noqa: F401: the same conditions

TREE = Path(os.environ.get("FLP_TEST_TREE", Path(__file__).parents[2]))
LOSSES = ["nll", "reinforce+k1", "ppo", "grpo+k3+entropy", "dapo", "dr_grpo+k2", "cispo+k3",
          str(TREE / "tests/golden/losses/every_word.lua")]


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("loss", LOSSES, ids=lambda text: Path(text).stem)
def test_budget(loss, arch):
    done = subprocess.run([FLPGEN, "loss", "show", loss, "--emit", "ptx", "--arch", arch, "--json"],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    kernel = {**document["kernel"], "ptx": document["ptx"]}
    assert [entry["name"] for entry in kernel["entries"]] == ["loss_rows"]
    assert f".target {arch}" in kernel["ptx"] and "f64" in kernel["ptx"]
    faults = list(kernel_faults(kernel, arch, *assemble(kernel["ptx"], arch)))
    assert not faults, faults
