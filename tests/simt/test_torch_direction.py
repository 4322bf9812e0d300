"""Direction mode through the binding, on kernels that run on the CPU: torch_direction_case.py."""
import pytest

from test_check import pytestmark  # noqa: F401 - the same stand-ins
from test_modes import folder, run  # noqa: F401


@pytest.mark.parametrize("capability", ["8.0", "9.0"])
def test_the_binding_runs_direction_mode(folder, capability):  # noqa: F811
    pytest.importorskip("torch")
    found = run(folder, capability, "torch_direction_case.py")
    whole, shards = found["whole"], found["shards"]
    assert whole["modes"] == ["direction", "direction"] and whole["products"] == [2, 0]
    assert whole["same_bits"] and whole["again"]
    assert whole["error"][0] <= 1.5 * whole["of_R"][0], whole
    assert {name: shard["kept"] for name, shard in shards.items()} == {
        "0 None": [1, 1], "20 None": [3, 3], "20 True": [3, 3], "20 False": [0, 0]}
    for name, shard in shards.items():
        assert shard["same_on_both"] and shard["off"] < 2e-6, (name, shard)
        assert shard["error"][0] <= 1.5 * shards["20 False"]["error"][0], (name, shard)
