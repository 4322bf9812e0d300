"""One rule on every rung: rows of weight 0, extreme ratios, banned columns: the same rows on libflp's CPU rung and on the
kernels of both architectures (torch_rows_case.py)."""
import pytest

from test_check import pytestmark  # noqa: F401 - the same stand-ins
from test_modes import folder, run  # noqa: F401

pytest.importorskip("torch")


def agree(folder, capability, kind, **settings):  # noqa: F811
    result = run(folder, capability, "torch_rows_case.py", kind, **settings)
    assert not {case: wrong for case, wrong in result["found"].items() if wrong}
    assert "eager" in result["rungs"] and {"jit", "heuristic"} & set(result["rungs"]), result["rungs"]


@pytest.mark.parametrize("kind", ["weightless", "ratios", "clipped", "upstream", "best"])
@pytest.mark.parametrize("capability", ["8.0", "9.0"])
def test_rungs_agree(folder, capability, kind):  # noqa: F811
    agree(folder, capability, kind)


def test_a_kernel_for_any_loss(folder):  # noqa: F811
    """As on rung generic, where the loss is data."""
    agree(folder, "8.0", "weightless any", FAKE_IR_ANY_LOSS="1", FLP_CACHE_DIR=str(folder / "any"))
