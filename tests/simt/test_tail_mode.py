"""Tail mode whole, on kernels that run on the CPU (tail_case.py): the bound holds and is reported, gradients are as
near to float64 as recompute mode's but for what is left out; on sm_80's kernels and Hopper's."""
import pytest

from test_check import pytestmark  # noqa: F401 - the same stand-ins
from test_modes import folder, marked, run  # noqa: F401

TAIL = 9  # FLP_MODE_TAIL
BUILD = ("8.0", "9.0")


def case_of(folder, capability, **case):  # noqa: F811
    return run(folder, capability, "tail_case.py", case), case.get("tail", 2.0**-9)


def bounded(found, tail):
    """What was left out, measured, is at most what the report says, that within the bound; and errors of gradients."""
    left, total, dense, columns = found["report"]
    assert found["left"] <= left * (1 + 1e-3), found
    assert left <= tail * total * (1 + 1e-6), found
    assert total <= found["sum"] * (1 + 1e-2), found
    for name, error in found["error"].items():
        assert error <= 1.5 * found["of_R"][name] + tail, (name, found)
    assert 0 <= dense <= found["live"]


HEADS = {
    "mixed": {"masked": True, "bad": True},
    "bias": {"grads": 7, "bias": True, "entropy": 2, "masked": True},
    "frozen": {"grads": 1, "bad": True},
    "capped": {"softcap": 30, "per_row_temperature": True, "entropy": 2},
    "accumulated": {"accumulate": True, "masked": True, "upstream": 1e-3},
    "in bf16": {"grad_weight_fp32": False},
    "near policy": {"old_lse": True, "tail": 2.0**-5},
}
SHORT = {"mixed", "bias"}


@pytest.mark.parametrize("name", marked(HEADS, SHORT))
@pytest.mark.parametrize("capability", BUILD)
def test_some_rows_are_served_by_lists_and_others_recomputed(folder, capability, name):  # noqa: F811
    found, tail = case_of(folder, capability, **HEADS[name])
    bounded(found, tail)
    assert found["same_bits"] and found["again"]
    assert found["modes"] == [TAIL, TAIL] and found["products"] == [1, 0]
    assert 0 < found["report"][2] < found["live"] and found["report"][3] > 0, found
    assert found["left"] > 0, "or nothing was tested"
    assert found["exact_report"] == [0, 0, 0, 0], "of recompute mode"
    masked, bad = HEADS[name].get("masked"), HEADS[name].get("bad")
    assert found["nan_rows"] == ([3] if bad else []) and found["bad"] == ([2, 1] if bad else [0, 0])
    assert set(range(0, found["rows"], 5)) <= set(found["zero_rows"]) or not masked


def test_sharp_rows_recompute_nothing(folder):  # noqa: F811
    found, tail = case_of(folder, "8.0", kind="sharp", tail=2.0**-4)
    bounded(found, tail)
    assert found["report"][2] == 0 and found["report"][3] >= found["live"] and found["left"] > 0


def test_flat_rows_are_recomputed_all(folder):  # noqa: F811
    found, tail = case_of(folder, "8.0", kind="flat")
    bounded(found, tail)
    assert found["report"][2:] == [found["live"], 0] and found["left"] == 0
    assert found["error"] == found["of_R"], "the bits of recompute mode"


@pytest.mark.parametrize("capability,old_lse", [("8.0", False), pytest.param("9.0", True, marks=pytest.mark.long)])
def test_shards_of_the_vocabulary(folder, capability, old_lse):  # noqa: F811
    found, tail = case_of(folder, capability, shards=2, old_lse=old_lse, vocab=2208, hidden=2208, rows=12, tail=2.0**-7)
    bounded({**found, "live": 2 * found["live"]}, tail)
    assert found["report"][2] < 2 * found["live"] and found["report"][3] > 0


@pytest.mark.parametrize("capability", BUILD)
def test_a_step_of_a_loss(folder, capability):  # noqa: F811
    found, tail = case_of(folder, capability, loss="grpo+k3+entropy", entropy=2, masked=True)
    bounded(found, tail)
    assert found["mode"] == TAIL and found["products"] == 1 and found["same_bits"]
    assert 0 < found["report"][2] < found["live"]
