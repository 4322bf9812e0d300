"""Fixtures of the binding's tests: a clean plan cache, and both engines that a tensor may meet."""
import os
import sys
from pathlib import Path

import pytest

# For this process and for those that tests start.
PACKAGE = str(Path(__file__).resolve().parents[2] / "runtime" / "python")
if PACKAGE not in sys.path:
    sys.path.insert(0, PACKAGE)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [PACKAGE, os.environ.get("PYTHONPATH")]))

import flp  # noqa: E402
from flp import _c, _plans  # noqa: E402


@pytest.fixture(autouse=True)
def fresh_plans():
    """Plans read the environment when they are made, so none may outlive a test."""
    flp.clear_plans()
    yield
    flp.clear_plans()


def torch_form(key):
    return _plans.Plan(key, None, _c.RUNG_EAGER, "the test asked for it")


@pytest.fixture(params=["libflp", "torch form"])
def engine(request, monkeypatch):
    """libflp, and the torch form of the eager rung that device tensors fall to."""
    if request.param == "torch form":
        monkeypatch.setattr(_plans, "_create", torch_form)
    return request.param
