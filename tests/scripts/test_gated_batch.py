"""runtime/python/examples/gated_batch.py learns from the few sequences that its gate keeps, without a GPU."""
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "runtime" / "python" / "examples"))

import gated_batch  # noqa: E402


@pytest.mark.long
def test_it_learns_from_three_of_thirty():
    said = []
    rewards = gated_batch.train(50, 0.1, say=said.append)
    assert sum(rewards[-5:]) / 5 > sum(rewards[:5]) / 5 + 0.15, rewards
    assert len(said) == 5 and all("kept 3 of 30" in line for line in said)
