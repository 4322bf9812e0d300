"""tests/gpu/tensor_parallel.py, whole, on processes of this machine, and what its bounds let pass."""
import json
import sys

import pytest
import torch

import flp
import tensor_parallel
from flp.bench import data
from installed import run
from test_evidence import check_record


@pytest.mark.long
def test_the_script_writes_a_record(tmp_path):
    out = tmp_path / "record.json"
    run(sys.executable, tensor_parallel.__file__, "--backend", "gloo", "--device", "cpu", "--tiny", "--json", out)
    record = json.loads(out.read_text())
    assert check_record(record) is None and "record.json" not in record["command"]
    assert [row["case"] for row in record["rows"]] == [*3 * ["equal"], *3 * ["uneven"], *3 * ["padded"], "equal",
                                                       "uneven", "padded"]
    assert [row["frozen"] for row in record["rows"]] == 9 * [False] + 3 * [True]
    for row in record["rows"]:
        whole = not row["sequence_parallel"]
        assert 0 < row["grad_hidden_error_of_bound"] <= 1 and row["forward_ms"] > 0
        assert ("grad_weight_error_of_bound" in row) is not row["frozen"]
        assert row["kept_bytes"] == 0  # on the eager rung
        assert row["forward_bytes"] == 4 * 24 * 4 + (0 if whole else 12 * 64 * 2)
        assert row["same_on_every_rank"] and (not whole or row["backward_bytes"] == 24 * 64 * 4)


@pytest.mark.parametrize("kind, cuts", [("equal", [(100, 100), (100, 100), (101, 101)]),
                                        ("uneven", [(133, 133), (101, 101), (67, 67)]),
                                        ("padded", [(192, 192), (192, 109), (192, 0)])])
def test_shards(kind, cuts):
    got = tensor_parallel.shards_of(kind, 301, 3)
    assert sum(real for _, real in got) == 301 and sorted(got, reverse=True) == sorted(cuts, reverse=True)


@pytest.fixture(scope="module")
def truth():
    options = tensor_parallel.parse(["--tiny", "--device", "cpu"])
    device = torch.device("cpu")
    return tensor_parallel.Truth(data.Data(options, data.Head(options, device), options.rows, device), options.dtype)


def test_the_bounds_distinguish_right_from_wrong(truth):
    logprob = flp.linear_logprob(truth.batch.hidden, truth.batch.weight, truth.batch.target)
    assert truth.rows_of_bound("logprob", logprob) < 1 < truth.rows_of_bound("logprob", logprob + 2e-5)
    assert truth.rows_of_bound("entropy", torch.full_like(logprob, 5.0)) > 1
    for name in ("hidden", "weight", "frozen"):
        exact = truth.grads[name][0]
        assert truth.gradient_of_bound(name, exact, slice(None)) == 0
        assert truth.gradient_of_bound(name, exact * 1.002, slice(None)) > 1


def test_a_device_that_is_none():
    with pytest.raises(SystemExit):
        tensor_parallel.parse(["--tiny", "--device", "tpu"])
