"""flp.losses against the published formulas, written out token by token in float64, values and gradients."""
import math

import pytest
import torch

import flp
from flp import losses

B, T = 5, 7
LENGTHS = [7, 3, 1, 0, 5]


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(3)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    logprob = -draw(B, T).abs() * 2
    mask = torch.arange(T)[None] < torch.tensor(LENGTHS)[:, None]
    return {"logprob": logprob, "old": logprob + 0.3 * draw(B, T), "ref": logprob + 0.5 * draw(B, T), "mask": mask,
            "advantage": draw(B), "entropy": draw(B, T).abs()}


def clip(x, low, high):
    return torch.clamp(x, 1 - low, 1 + high)


def published(rule, logprob, old, advantage, low, high, length):
    """The formula of each paper, in loops."""
    count = sum(LENGTHS)
    total = torch.zeros((), dtype=torch.float64)
    for i, tokens in enumerate(LENGTHS):
        if rule == "gspo" and tokens:
            s = torch.exp((logprob[i, :tokens] - old[i, :tokens]).sum() / tokens)
            total = total - torch.minimum(s * advantage[i], clip(s, low, high) * advantage[i]) / B
            continue
        for t in range(tokens):
            ratio, a = torch.exp(logprob[i, t] - old[i, t]), advantage[i]
            if rule == "reinforce":
                term = -a * logprob[i, t]
            elif rule == "cispo":
                term = -clip(ratio, low, high).detach() * a * logprob[i, t]
            else:
                term = -torch.minimum(ratio * a, clip(ratio, low, high) * a)
            share = {"grpo": 1 / (B * tokens), "dr_grpo": 1 / (B * length)}.get(rule, 1 / count)
            total = total + term * share
    return total


def gradient(loss, value):
    found, = torch.autograd.grad(loss, value)
    return found


@pytest.mark.parametrize("bounds", [None, (0.1, 0.05), (0.5, 3.0)], ids=str)
@pytest.mark.parametrize("rule", sorted(losses.RULES))
def test_rules_are_those_of_their_papers(batch, rule, bounds):
    own = losses.RULES[rule].clip
    mine, theirs = (batch["logprob"].clone().to(dtype).requires_grad_() for dtype in (torch.float32, torch.float64))
    got, metrics = losses.policy_loss(rule, mine, batch["advantage"].float(), old_logprob=batch["old"].float(),
                                      mask=batch["mask"], clip=bounds, length=T)
    want = published(rule, theirs, batch["old"], batch["advantage"], *(bounds or own), T)
    assert got.dtype is torch.float32 and got.dim() == 0
    assert math.isclose(got.item(), want.item(), rel_tol=2e-6, abs_tol=2e-6)
    assert torch.allclose(gradient(got, mine).double(), gradient(want, theirs), rtol=2e-5, atol=2e-7)
    assert math.isclose(metrics["policy_loss"].item(), got.item()) and not metrics["policy_loss"].requires_grad


def test_estimates_of_the_divergence(batch):
    d = batch["logprob"] - batch["ref"]
    formulas = {"k1": d, "k2": d**2 / 2, "k3": torch.exp(-d) - 1 + d}
    for kind, want in formulas.items():
        got = flp.losses.kl(batch["logprob"].float(), batch["ref"].float(), kind)
        assert torch.allclose(got.double(), want, rtol=1e-5, atol=1e-6), kind
    assert (flp.losses.kl(batch["logprob"], batch["ref"]) >= 0).all()


def test_the_estimates_mean_the_divergence():
    """k1 and k3 over tokens drawn from the policy; k1's gradient has no part of the divergence's own."""
    policy, reference = torch.tensor([0.5, 0.3, 0.2]).log(), torch.tensor([0.2, 0.3, 0.5]).log()
    exact = (policy.exp() * (policy - reference)).sum().item()
    for kind in ("k1", "k3"):
        mean = (policy.exp() * losses.kl(policy, reference, kind)).sum().item()
        assert math.isclose(mean, exact, rel_tol=1e-5)


@pytest.mark.parametrize("rule", ["ppo", "grpo", "dr_grpo", "gspo"])
def test_divergence_and_entropy_are_averaged_as_documented(batch, rule):
    logprob = batch["logprob"].float().requires_grad_()
    entropy = batch["entropy"].float().requires_grad_()
    arguments = {"old_logprob": batch["old"].float(), "mask": batch["mask"], "length": T}
    plain, _ = losses.policy_loss(rule, logprob, batch["advantage"].float(), **arguments)
    loss, metrics = losses.policy_loss(rule, logprob, batch["advantage"].float(), ref_logprob=batch["ref"].float(),
                                       entropy=entropy, beta=0.1, entropy_weight=0.01, **arguments)
    d, mask = batch["logprob"] - batch["ref"], batch["mask"].double()
    counts = mask.sum(-1, keepdim=True).clamp(min=1)
    weights = {"ppo": mask / mask.sum(), "dr_grpo": mask / (B * T)}.get(rule, mask / counts / B)
    penalty, bonus = ((torch.exp(-d) - 1 + d) * weights).sum(), (batch["entropy"] * mask).sum() / mask.sum()
    assert math.isclose(loss.item(), (plain + 0.1 * penalty - 0.01 * bonus).item(), rel_tol=1e-5)
    assert math.isclose(metrics["kl"].item(), penalty.item(), rel_tol=1e-5)
    assert math.isclose(metrics["entropy"].item(), bonus.item(), rel_tol=1e-5)
    assert torch.allclose(gradient(loss, entropy).double(), -0.01 * mask / mask.sum(), atol=1e-8)


@pytest.mark.parametrize("rule", ["ppo", "grpo"])
def test_micro_batches_share_the_entropy(batch, rule):
    """By their tokens; where sequences are averaged over, by their sequences."""
    entropy, mask, total = batch["entropy"].float().requires_grad_(), batch["mask"], 20 if rule == "ppo" else B
    losses_of = [losses.policy_loss(rule, batch["logprob"][rows].float(), batch["advantage"][rows].float(), total=total,
                                    entropy=entropy[rows], mask=mask[rows], entropy_weight=1.0)[0]
                 for rows in (slice(0, 2), slice(2, B))]
    shares = [1 / 20, 1 / 20] if rule == "ppo" else [2 / B / sum(LENGTHS[:2]), 3 / B / sum(LENGTHS[2:])]
    want = torch.cat([share * part for share, part in zip(shares, (mask[:2].double(), mask[2:].double()))])
    assert torch.allclose(gradient(sum(losses_of), entropy).double(), -want, atol=1e-7)


@pytest.mark.parametrize("rule", sorted(losses.RULES))
def test_micro_batches_add_up(batch, rule):
    """With the tokens, or the sequences, of the whole batch as total; a number or a tensor."""
    arguments = {"length": T, "beta": 0.1}
    whole = batch["logprob"].float().requires_grad_()
    mask, advantage = batch["mask"], batch["advantage"].float()

    def loss_of(logprob, rows, total):
        return losses.policy_loss(rule, logprob[rows], advantage[rows], old_logprob=batch["old"][rows].float(),
                                  ref_logprob=batch["ref"][rows].float(), mask=mask[rows], total=total, **arguments)[0]

    want = gradient(loss_of(whole, slice(None), None), whole)
    total = B if losses.RULES[rule].average != "tokens" else mask.sum()
    parts = [loss_of(whole, rows, total) for rows in (slice(0, 2), slice(2, B))]
    assert torch.allclose(gradient(sum(parts), whole), want, rtol=1e-5, atol=1e-8)


def test_metrics(batch):
    old = batch["logprob"].clone()
    old[0, 0] -= math.log(2)                     # a ratio of 2
    old[1, 1] += math.log(2)                     # of 1/2
    advantage = torch.ones(B)
    _, metrics = losses.policy_loss("ppo", batch["logprob"].float(), advantage, old_logprob=old.float(),
                                    mask=batch["mask"])
    count = sum(LENGTHS)
    assert math.isclose(metrics["clip_fraction"].item(), 1 / count, rel_tol=1e-6)   # what the minimum keeps is not clipped
    assert math.isclose(metrics["ratio"].item(), (count + 1 - 0.5) / count, rel_tol=1e-5)
    assert metrics["kl_old"].item() > 0 and "kl" not in metrics


@pytest.mark.parametrize("rule", sorted(losses.RULES))
def test_what_is_masked_takes_no_part(batch, rule):
    spoiled = {name: batch[name].float().masked_fill(~batch["mask"], float("nan")) for name in ("logprob", "old", "ref")}
    clean, dirty = batch["logprob"].float().requires_grad_(), spoiled["logprob"].requires_grad_()
    common = {"mask": batch["mask"], "beta": 0.1, "length": T}
    a, _ = losses.policy_loss(rule, clean, batch["advantage"].float(), old_logprob=batch["old"].float(),
                              ref_logprob=batch["ref"].float(), **common)
    b, _ = losses.policy_loss(rule, dirty, batch["advantage"].float(), old_logprob=spoiled["old"],
                              ref_logprob=spoiled["ref"], **common)
    assert torch.equal(a, b)
    assert torch.equal(gradient(a, clean), gradient(b, dirty)) and (gradient_is_zero(clean, rule, batch))


def gradient_is_zero(clean, rule, batch):
    loss, _ = losses.policy_loss(rule, clean, batch["advantage"].float(), old_logprob=batch["old"].float(),
                                 mask=batch["mask"], length=T)
    return (gradient(loss, clean)[~batch["mask"]] == 0).all()


def test_without_an_old_policy_the_gradient_is_reinforces(batch):
    for rule in ("ppo", "dapo", "cispo", "reinforce"):
        logprob = batch["logprob"].float().requires_grad_()
        loss, _ = losses.policy_loss(rule, logprob, batch["advantage"].float(), mask=batch["mask"])
        want = -batch["advantage"][:, None] * batch["mask"] / sum(LENGTHS)
        assert torch.allclose(gradient(loss, logprob).double(), want, atol=1e-7), rule


def test_an_advantage_a_token(batch):
    logprob = batch["logprob"].float()
    spread = batch["advantage"].float()[:, None].expand(B, T)
    for rule in losses.RULES:
        arguments = {"old_logprob": batch["old"].float(), "mask": batch["mask"], "length": T}
        one, _ = losses.policy_loss(rule, logprob, batch["advantage"].float(), **arguments)
        each, _ = losses.policy_loss(rule, logprob, spread, **arguments)
        assert torch.allclose(one, each, rtol=1e-5), rule


def test_it_stands_on_linear_logprob():
    torch.manual_seed(0)
    hidden, weight = torch.randn(2, 4, 8, requires_grad=True), torch.randn(30, 8, requires_grad=True)
    tokens = torch.randint(30, (2, 4))
    logprob, entropy = flp.linear_logprob(hidden, weight, tokens, entropy=True)
    loss, metrics = losses.policy_loss("grpo", logprob, torch.tensor([1.0, -1.0]), entropy=entropy, entropy_weight=0.01)
    loss.backward()
    assert hidden.grad.abs().sum() > 0 and weight.grad.abs().sum() > 0 and metrics["entropy"] > 0


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
