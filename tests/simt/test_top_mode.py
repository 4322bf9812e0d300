"""Best columns and ranks whole, on kernels that run on the CPU (top_mode_case.py): exact ids and ranks of rows whose lists
overflow, twice the same bits, of whole heads and shards; on sm_80's kernels and Hopper's."""
import pytest

from test_check import pytestmark  # noqa: F401 - the same stand-ins
from test_modes import folder, run  # noqa: F401

CASES = {
    "alone": {},
    "most": {"topk": 128, "rank": False},
    "all outputs": {"only": "all"},
    "shards": {"shards": 3, "rank": False, "rows": 40},
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("capability", ["8.0", "9.0"])
def test_rows_whose_lists_overflow(folder, capability, name):  # noqa: F811
    found = run(folder, capability, "top_mode_case.py", CASES[name])
    assert found == {"wrong": [], "again": True}
