"""flp.losses: an estimate's mean is the divergence, and what is refused."""
import math

import pytest
import torch

from flp import losses


def test_the_estimates_mean_the_divergence():
    """k1 and k3 over tokens drawn from the policy; k1's gradient has no part of the divergence's own."""
    policy, reference = torch.tensor([0.5, 0.3, 0.2]).log(), torch.tensor([0.2, 0.3, 0.5]).log()
    exact = (policy.exp() * (policy - reference)).sum().item()
    for kind in ("k1", "k3"):
        mean = (policy.exp() * losses.kl(policy, reference, kind)).sum().item()
        assert math.isclose(mean, exact, rel_tol=1e-5)


ONE = torch.zeros(2, 3)


@pytest.mark.parametrize("arguments, options, words", [
    (("sarsa", ONE, torch.ones(2)), {}, "rule is 'sarsa' (accepted: reinforce, ppo, grpo"),
    (("ppo", ONE[0], torch.ones(2)), {}, "logprob is of shape (3,) (accepted: (B, T))"),
    (("ppo", ONE.long(), torch.ones(2)), {}, "logprob is torch.int64 (accepted: a floating-point dtype)"),
    (("ppo", ONE, torch.ones(3)), {}, "advantage is of shape (3,) (accepted: (B) or (B, T) of logprob's (2, 3))"),
    (("ppo", ONE, torch.ones(2)), {"old_logprob": torch.zeros(2, 4)}, "old_logprob is of shape (2, 4)"),
    (("ppo", ONE, torch.ones(2)), {"mask": torch.ones(2)}, "mask is of shape (2,)"),
    (("ppo", ONE, torch.ones(2)), {"clip": 0.2}, "clip is 0.2 (accepted: a pair (low, high))"),
    (("ppo", ONE, torch.ones(2)), {"clip": (2, 0.1)}, "clip[0] is 2.0 (accepted: 0 to 1)"),
    (("ppo", ONE, torch.ones(2)), {"beta": 0.1}, "ref_logprob is None (accepted: a tensor, as beta is 0.1)"),
    (("ppo", ONE, torch.ones(2)), {"beta": 0.1, "ref_logprob": ONE, "kl_kind": "k4"}, "kl_kind is 'k4' (accepted: k1, k2, k3)"),
    (("ppo", ONE, torch.ones(2)), {"entropy_weight": 1}, "entropy is None"),
    (("dr_grpo", ONE, torch.ones(2)), {}, "length is None (accepted: a number above 0, for dr_grpo)"),
    (("ppo", ONE, torch.ones(2)), {"beta": float("nan")}, "beta is nan"),
    (("ppo", ONE, torch.ones(2)), {"beta": 1e-46, "ref_logprob": ONE}, "beta is 1e-46 (accepted: 0, or magnitudes"),
    (("dr_grpo", ONE, torch.ones(2)), {"length": 3e38}, "length · sequences is 6e+38 (accepted: 0, or magnitudes from"),
    (("ppo", ONE, torch.ones(2)), {"total": 0}, "total is 0 (accepted: a number above 0, or a 0-dim tensor)"),
    (("ppo", ONE, torch.ones(2)), {"total": torch.ones(2)}, "total is of shape (2,)"),
    (("ppo", [1], torch.ones(2)), {}, "logprob is of type list"),
])
def test_bad_input_is_named(arguments, options, words):
    with pytest.raises((ValueError, TypeError)) as caught:
        losses.policy_loss(*arguments, **options)
    assert words in str(caught.value)
