"""Gradients of rows of which one column has nearly all probability, in every mode, on kernels that run on the CPU."""
import pytest

from test_check import pytestmark  # noqa: F401 - the same stand-ins
from test_modes import folder, run  # noqa: F401

EPSILONS = ["0.3", "1e-6"]
REST = ["1e-1", "1e-2", "1e-3", "1e-4"]


@pytest.mark.parametrize("epsilons", [EPSILONS, pytest.param(REST, marks=pytest.mark.long)], ids=["ends", "between"])
@pytest.mark.parametrize("capability", ["8.0", "9.0"])
def test_gradients_of_nearly_certain_rows(folder, capability, epsilons):  # noqa: F811
    pytest.importorskip("torch")
    rows = run(folder, capability, "torch_near_certain_case.py", *epsilons)
    assert len(rows) == 6 * len(epsilons)
    assert [row for row in rows if row["failed"]] == []
