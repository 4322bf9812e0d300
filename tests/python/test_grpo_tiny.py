"""runtime/python/examples/grpo_tiny.py learns, by every rule, without a GPU."""
import importlib.util
from pathlib import Path

import pytest
import torch

import flp

SCRIPT = Path(__file__).resolve().parents[2] / "runtime" / "python" / "examples" / "grpo_tiny.py"
spec = importlib.util.spec_from_file_location("grpo_tiny", SCRIPT)
example = importlib.util.module_from_spec(spec)
spec.loader.exec_module(example)


def learn(rule, steps):
    arguments = example.parser().parse_args(["--rule", rule, "--steps", str(steps), "--device", "cpu", "--prompts", "8",
                                             "--length", "8", "--hidden", "32", "--vocab", "32"])
    if rule == "gspo":
        arguments.beta = 0
    return example.train(arguments, say=lambda line: None)


@pytest.mark.parametrize("rule", sorted(flp.losses.RULES))
def test_every_rule_learns(rule):
    rewards = learn(rule, 14)
    assert sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.04, rewards


def test_rewards_and_advantages_are_what_they_are_said_to_be():
    tokens = torch.tensor([[1, 2, 3, 3], [5, 4, 6, 7], [9, 8, 7, 6], [0, 1, 2, 3]])
    assert torch.allclose(example.reward(tokens), torch.tensor([2 / 3, 2 / 3, 0, 1.0]))
    scaled = example.advantages(torch.tensor([1.0, 3.0, 5.0, 5.0]), 2)
    assert torch.allclose(scaled, torch.tensor([-0.7071, 0.7071, 0, 0]), atol=1e-3)
