"""tail= through the binding, on kernels that run on the CPU: torch_tail_case.py."""
import pytest

from test_check import pytestmark  # noqa: F401 - the same stand-ins
from test_modes import folder, run  # noqa: F401

TAIL = 2.0**-9
ROWS = 48
ROUNDING = 1e-3  # of sums of |dz|: scores from bf16 operands in float32 beside float64


def obeys(report, total):
    """What a report says keeps the bound, and its sum is of dz, from below. total: Σ|dz| in float64"""
    left, whole, recomputed, listed = report
    assert 0 < left <= TAIL * whole, report
    assert 0.5 * total < whole <= (1 + ROUNDING) * total, (report, total)
    assert 0 <= recomputed < ROWS and listed > 0, report


def near(found):
    for error, of_exact in zip(found["error"], found["of_exact"]):
        assert error <= 1.5 * of_exact + TAIL, found


@pytest.mark.parametrize("capability", ["8.0", "9.0"])
def test_the_binding_runs_tail_mode(folder, capability):  # noqa: F811
    pytest.importorskip("torch")
    found = run(folder, capability, "torch_tail_case.py")
    for name, whole in found["whole"].items():
        assert whole["modes"] == ["tail", "tail"] and whole["products"] == 1, name
        assert whole["same_bits"] and whole["again"], name
        assert whole["without_room"] == [[0, 0, 0, 0], True], name
        obeys(whole["report"], whole["sum"])
        near(whole)
    near(found["frozen"])
    assert found["accumulated"]["error"][0] <= 6e-3 and found["accumulated"]["grad"]
    listed = [row for row in found["rows"] if row["report"][2] == 0]
    assert len(listed) >= 4
    for row in listed:
        # what a report says is an upper bound of what is missing, and no more than that: rounding of float32 aside
        assert row["left"] <= row["report"][0] <= TAIL * row["report"][1] and row["columns"] == row["report"][3], row
        assert row["report"][1] <= (1 + ROUNDING) * row["sum"] and row["kept_off"] < 1e-5, row


@pytest.mark.parametrize("capability", ["8.0", "9.0"])
def test_steps_and_shards(folder, capability):  # noqa: F811
    pytest.importorskip("torch")
    found = run(folder, capability, "torch_tail_case.py", "steps and shards")
    for step in found["step"].values():
        assert step["mode"] == "tail" and step["loss error"] == step["loss of_exact"]
        assert abs(step["loss error"] - step["want"]) < 1e-4
        left, whole, recomputed, listed = step["report"]
        assert 0 < left <= TAIL * whole and recomputed < ROWS and listed > 0
        near(step)
    shards = found["by_hand"]
    assert shards["same_bits"] and shards["kept error"] == [True, True] and shards["kept of_exact"] == [False, False]
    for report, total in zip(shards["reports"], shards["sums"]):
        obeys(report, total)
    left, whole = (sum(report[place] for report in shards["reports"]) for place in (0, 1))
    assert left <= TAIL * whole
    near(shards)
    for chunk, chunks in ((0, 1), (20, 3)):
        exact, within = (found["parallel"]["%d %g" % (chunk, tail)] for tail in (0, TAIL))
        assert exact["kept"] == [0, 0] and exact["reports"] == [[0, 0, 0, 0]] * 2 and within["kept"] == [chunks] * 2
        near({"error": within["error"], "of_exact": exact["error"]})
        for report, total in zip(within["reports"], shards["sums"]):
            obeys(report, total)
