"""flp.gate, flp.delight and flp.sequence_logprob: what is kept, what sequences sum to, and that nothing is left to chance."""
import math

import pytest
import torch

import flp
from flp._functions import _gate


def kept(worth, **rule):
    return flp.gate(torch.tensor(worth), **rule).tolist()


@pytest.mark.parametrize("n, fraction, expected", [(30, 0.03, 1), (30, 0.1, 3), (30, 0.11, 4), (1, 0.5, 1), (7, 1.0, 7),
                                                   (1000, 0.003, 3), (3, 1e-9, 1)])
def test_a_fraction_keeps_the_best_and_at_least_one(n, fraction, expected):
    worth = torch.randperm(n, generator=torch.Generator().manual_seed(1)).float()
    choice = flp.gate(worth, fraction=fraction)
    assert choice.sum() == expected == max(1, math.ceil(round(fraction * n, 9)))
    assert sorted(worth[choice].tolist()) == list(range(n - expected, n))


def test_equal_ones_are_kept_by_place():
    assert kept([1.0, 2.0, 2.0, 2.0, 0.0], fraction=0.4) == [False, True, True, False, False]


def test_what_is_masked_or_nan_is_neither_kept_nor_counted():
    nan, inf = float("nan"), float("inf")
    mask = torch.tensor([1, 1, 0, 1, 1])
    assert kept([1.0, nan, 9.0, 3.0, 2.0], fraction=0.5, mask=mask) == [False, False, False, True, True]
    assert kept([nan, nan], fraction=1.0) == [False, False]
    assert kept([-inf, 5.0, -inf], fraction=1.0, mask=torch.tensor([1, 0, 0])) == [True, False, False]
    assert kept([1.0, 2.0], price=0.0, mask=torch.tensor([False, True])) == [False, True]
    assert kept([nan, 1.0], price=0.0, temperature=1e-9, seed=0) == [False, True]


def test_chance_is_that_of_the_seed():
    worth = torch.linspace(-4, 4, 4096)
    first = flp.gate(worth, price=0.0, temperature=1.0, seed=7)
    assert torch.equal(first, flp.gate(worth, price=0.0, temperature=1.0, seed=7))
    assert not torch.equal(first, flp.gate(worth, price=0.0, temperature=1.0, seed=8))
    assert abs(first.float().mean() - torch.sigmoid(worth).mean()) < 0.03
    assert torch.equal(flp.gate(worth, price=0.0, temperature=1e-9, seed=7), worth > 0)


def test_uniform_numbers_are_those_of_splitmix64():
    def reference(seed, place):
        wrap = 2**64 - 1
        z = (seed + place * 0x9E3779B97F4A7C15) & wrap
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & wrap
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & wrap
        return ((z ^ (z >> 31)) >> 11) * 2.0**-53

    for seed in (0, 1, -1, 2**63 - 1):
        got = _gate.uniform((3, 5), seed, "cpu").flatten().tolist()
        assert got == [reference(seed & (2**64 - 1), place) for place in range(1, 16)]
    many = _gate.uniform((100000,), 3, "cpu")
    assert abs(many.mean() - 0.5) < 0.005 and 0 <= many.min() and many.max() < 1


# ---- sequences ----


def test_only_what_is_kept_is_trained():
    """Scoring, gate and backward: rows that are not kept get no gradient at all."""
    torch.manual_seed(0)
    hidden, weight = torch.randn(6, 4, 16, requires_grad=True), torch.randn(40, 16, requires_grad=True)
    logprob = flp.linear_logprob(hidden, weight, torch.randint(40, (6, 4)))
    _, mean = flp.sequence_logprob(logprob)
    advantage = torch.randn(6)
    choice = flp.gate(flp.delight(mean, advantage), fraction=0.3)
    loss, _ = flp.losses.policy_loss("reinforce", logprob, advantage, mask=choice[:, None].expand(6, 4))
    loss.backward()
    assert choice.sum() == 2
    assert torch.equal(hidden.grad.abs().sum((1, 2)) > 0, choice)
