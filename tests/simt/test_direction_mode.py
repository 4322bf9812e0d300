"""Direction mode whole, on kernels that run on the CPU (direction_case.py): forward once, then backward with several
upstream gradients; logprob and entropy have score mode's bits, gradients are at least as near to float64 as recompute
mode's, on sm_80's kernels and Hopper's."""
import pytest

from test_check import pytestmark  # noqa: F401 - the same stand-ins
from test_modes import folder, marked, run  # noqa: F401

CHUNKED = {"vocab": 6700, "hidden": 16, "rows": 70, "direction_vocab": 3072}
HEADS = {
    "plain": {"rows": 70},
    "masked": {"rows": 150, "masked": True, "per_row_temperature": True, "bias": True},
    "capped": {"rows": 70, "softcap": 20, "vocab_valid": 1050},
    "peaked": {"rows": 70, "peaked": True, "bias": True, "old_lse": True},
    "columns": CHUNKED,
    "columns_and_rows": {**CHUNKED, "rows": 150, "direction_rows": 64, "softcap": 5, "masked": True, "bias": True},
    "redone": {**CHUNKED, "spread": True},
    "nan": {"rows": 70, "nan_row": True, "bias": True},
    "nan_redone": {"rows": 70, "nan_row": True, "spread": True},
    "flat_cap_redone": {"rows": 70, "softcap": 0.0008},
}
SHARDED = {
    "plain": {"rows": 70, "shard": 400},
    "capped": {"rows": 70, "shard": 700, "softcap": 20, "masked": True, "bias": True},
    "columns": {**CHUNKED, "shard": 3300},
    "redone": {"rows": 70, "shard": 900, "spread": True, "nan_row": True},
}
# One head a way through the kernels; the others are variations.
SHORT = {"masked", "columns_and_rows", "redone", "capped"}
WORST = 1.02  # the error of recompute mode; sums of chunks are rounded in another order


def hold(found):
    assert found["mode"] == 7 and found["finite"] and found["zeros"]
    assert found["again"], "a second backward pass has the bits of the first"
    assert found["linear"], "twice the upstream gradient gives twice the gradient, to the bit"
    for name, (error, recomputed) in found["errors"].items():
        assert error <= WORST * recomputed, (name, found["errors"])


@pytest.mark.parametrize("name", marked(HEADS, SHORT))
@pytest.mark.parametrize("capability", ["8.0", "9.0"])
def test_one_forward_serves_any_upstream_gradient(folder, capability, name):
    found = run(folder, capability, "direction_case.py", HEADS[name])
    hold(found)
    assert found["same_bits"], "of logprob, entropy and stats"
    assert (found["chunks"] > 1) == ("direction_vocab" in HEADS[name])


@pytest.mark.parametrize("name", marked(SHARDED, SHORT))
@pytest.mark.parametrize("capability", ["8.0", "9.0"])
def test_shards_add_up_to_the_whole_head(folder, capability, name):
    hold(run(folder, capability, "direction_case.py", SHARDED[name]))


@pytest.mark.parametrize("capability", ["8.0", "9.0"])
def test_blocks_that_are_not_redone_stay_as_they_are(folder, capability):
    """Rows 0 to 1023 and 1024 to 1099, of which one row of one block is out of range, or none."""
    case = {"rows": 1100, "hidden": 8, "vocab": 3200, "direction_vocab": 3072, "spread": True}
    none, first, last = (run(folder, capability, "direction_case.py", {**case, **more})
                         for more in ({"spread_size": 0}, {"spread_row": 7}, {"spread_row": 1030}))
    for found in (none, first, last):
        hold(found)
    assert first["blocks"][1] == none["blocks"][1] and first["blocks"][0] != none["blocks"][0]
    assert last["blocks"][0] == none["blocks"][0] and last["blocks"][1] != none["blocks"][1]
