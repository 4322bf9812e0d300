"""Every public function, option and edge on the kernels of both architectures: the list of cases that tests/python has
for the CPU rung and the torch form, beside float64 too (torch_every_case.py). The short form takes a sixth of it."""
import pytest

from test_check import pytestmark  # noqa: F401 - the same stand-ins
from test_modes import folder, run  # noqa: F401

pytest.importorskip("torch")
CAPABILITIES, DTYPES = ["8.0", "9.0"], ["bfloat16", "float16", "float32"]


def agree(folder, capability, dtype, parts, part):  # noqa: F811
    result = run(folder, capability, "torch_every_case.py", dtype, str(parts), str(part))
    assert {case: wrong for case, wrong in result["found"].items() if wrong} == {}
    assert len(result["found"]) > 150 // parts and {2, 3} & set(result["rungs"]), result["rungs"]


@pytest.mark.parametrize("capability, dtype, part", [("8.0", "float32", 0), ("9.0", "bfloat16", 1)])
def test_some_cases(folder, capability, dtype, part):  # noqa: F811
    agree(folder, capability, dtype, 6, part)


@pytest.mark.long
@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("capability", CAPABILITIES)
def test_all_cases(folder, capability, dtype, part):  # noqa: F811
    agree(folder, capability, dtype, 4, part)
