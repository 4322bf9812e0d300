"""runtime/python/examples/gated_batch.py learns from the few sequences that its gate keeps, without a GPU."""
import importlib.util
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "runtime" / "python" / "examples" / "gated_batch.py"
spec = importlib.util.spec_from_file_location("gated_batch", SCRIPT)
example = importlib.util.module_from_spec(spec)
spec.loader.exec_module(example)


def test_it_learns_from_three_of_thirty():
    said = []
    rewards = example.train(50, 0.1, say=said.append)
    assert sum(rewards[-5:]) / 5 > sum(rewards[:5]) / 5 + 0.15, rewards
    assert len(said) == 5 and all("kept 3 of 30" in line for line in said)
