"""One list of cases over every public function, option and edge (support/flp_cases.py), on libflp's CPU rung and on the
torch form, each beside float64 (support/flp_exact.py). tests/simt/test_torch.py has kernels."""
import collections

import pytest
import torch

import flp
from flp_cases import CASES, SAME, SHARE, computed, differences, missing, unlike

pytestmark = pytest.mark.usefixtures("one_rank")  # tests of flp_parallel_cases.py have more
GENERATOR = flp.library_path().replace("libflp.so", "libflpgen.so")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_case(engine, case, monkeypatch):
    monkeypatch.setenv("FLP_JIT_LIBRARY", GENERATOR)  # losses of files
    if engine == "torch form" and "lora" in case.options:
        with pytest.raises(flp.errors.UnsupportedError, match="has no adapter for tensors on"):
            differences(case)
    else:
        assert differences(case, SHARE) == []


@pytest.mark.parametrize("row, other", SAME, ids=str)
def test_same_bits(engine, row, other):
    assert differences(row, SHARE) == []
    assert unlike(row, other) == []
    assert not computed(other, wide=False)[1].get("report", torch.zeros(1)).any(), "something is left out"


def test_no_row_stands_twice():
    assert [name for name, count in collections.Counter(map(str, CASES)).items() if count > 1] == []


def test_every_function_and_option_has_a_case():
    assert missing() == []
