"""flp.losses: the mean of an estimate is the divergence."""
import math

import torch

from flp import losses


def test_the_estimates_mean_the_divergence():
    """k1 and k3 over tokens drawn from the policy; k1's gradient has no part of the divergence's own."""
    policy, reference = torch.tensor([0.5, 0.3, 0.2]).log(), torch.tensor([0.2, 0.3, 0.5]).log()
    exact = (policy.exp() * (policy - reference)).sum().item()
    for kind in ("k1", "k3"):
        mean = (policy.exp() * losses.kl(policy, reference, kind)).sum().item()
        assert math.isclose(mean, exact, rel_tol=1e-5)
