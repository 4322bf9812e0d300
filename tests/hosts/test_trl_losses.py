"""TRL 1.16.0: the loss of GRPOTrainer, computed by its own code over logprobs, beside flp.policy_loss from hidden states."""
import collections
import types

import pytest
import torch
from parity import of_trl

import flp

grpo_trainer = of_trl("trl.trainer.grpo_trainer")

B, T, D, V = 4, 7, 16, 61
LENGTHS = (7, 3, 5, 1)
# flp's rule: TRL's loss type, its level of importance sampling, its bounds and flp's clip.
RULES = {
    "grpo": ("grpo", "token", (0.2, 0.2), None),
    "ppo": ("bnpo", "token", (0.2, 0.3), (0.2, 0.3)),
    "dapo": ("dapo", "token", (0.2, 0.28), None),
    "dr_grpo": ("dr_grpo", "token", (0.2, 0.2), None),
    "cispo": ("cispo", "token", (0.0, 1.5), (1.0, 0.5)),
    "gspo": ("grpo", "sequence", (3e-4, 4e-4), None),
}


class Batch:
    """A rollout in float64 for TRL, and what flp takes of it in float32."""

    def __init__(self, device):
        generator = torch.Generator().manual_seed(11)

        def draw(*shape):
            return torch.randn(*shape, generator=generator).to(device)

        self.hidden, self.weight = draw(B, T, D).requires_grad_(), (draw(V, D) / 2).requires_grad_()
        self.tokens = torch.randint(V, (B, T), generator=generator).to(device)
        self.advantage = draw(B)
        self.mask = (torch.arange(T)[None] < torch.tensor(LENGTHS)[:, None]).long().to(device)
        logprob, _ = self.scored()
        self.old, self.ref = ((logprob.detach() + distance * draw(B, T)).float() for distance in (0.3, 0.4))

    def scored(self):
        """Log-probabilities and entropies (B,T), differentiable."""
        logp = (self.hidden.double() @ self.weight.double().t()).log_softmax(-1)
        return logp.gather(-1, self.tokens[..., None])[..., 0], -(logp.exp() * logp).sum(-1)

    def inputs(self):
        return {"prompt_ids": self.tokens[:, :0], "prompt_mask": self.mask[:, :0], "completion_ids": self.tokens,
                "completion_mask": self.mask, "advantages": self.advantage, "old_per_token_logps": self.old,
                "ref_per_token_logps": self.ref, "num_items_in_batch": self.mask.sum()}


def trainer_of(batch, rule, beta, entropy_weight):
    """What GRPOTrainer._compute_loss asks of its trainer, of one process and one micro-batch."""
    kind, level, bounds, _ = RULES[rule]
    accelerator = types.SimpleNamespace(num_processes=1, sync_gradients=False, gather=lambda value: value,
                                        reduce=lambda value, reduction: value)
    arguments = types.SimpleNamespace(use_bias_correction_kl=False, delta=None, steps_per_generation=1)
    return types.SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (*batch.scored(), None), aux_loss_enabled=False,
        top_entropy_quantile=1.0, off_policy_mask_threshold=None, importance_sampling_level=level, beta=beta,
        args=arguments, loss_type=kind, epsilon_low=bounds[0], epsilon_high=bounds[1], use_vllm=False,
        model=types.SimpleNamespace(training=True), current_gradient_accumulation_steps=1, accelerator=accelerator,
        max_completion_length=T, _entropy_bonus_enabled=entropy_weight != 0, use_adaptive_entropy=False,
        entropy_coef=entropy_weight, _metrics=collections.defaultdict(lambda: collections.defaultdict(list)))


@pytest.mark.parametrize("beta, entropy_weight", [(0.0, 0.0), (0.04, 0.0), (0.04, 0.01)])
@pytest.mark.parametrize("rule", sorted(RULES))
def test_losses_are_trls(device, rule, beta, entropy_weight):
    batch = Batch(device)
    trainer = trainer_of(batch, rule, beta, entropy_weight)
    want = grpo_trainer.GRPOTrainer._compute_loss(trainer, None, batch.inputs())
    wanted = torch.autograd.grad(want, [batch.hidden, batch.weight])
    loss, metrics = flp.policy_loss(rule, batch.hidden, batch.weight, batch.tokens, batch.advantage, mask=batch.mask,
                                    old_logprob=batch.old, ref_logprob=batch.ref if beta else None, beta=beta,
                                    entropy_weight=entropy_weight, length=T, clip=RULES[rule][3])
    assert abs(loss.item() - want.item()) <= 2e-6 * max(1, abs(want.item()))
    for got, expected in zip(torch.autograd.grad(loss, [batch.hidden, batch.weight]), wanted):
        assert (got - expected).abs().max() <= 1e-5 * expected.abs().max()
    said = trainer._metrics["train"]
    if entropy_weight:
        assert metrics["entropy"].item() == pytest.approx(said["entropy"][0], rel=1e-5)
    if rule not in ("cispo", "gspo"):
        assert metrics["clip_fraction"].item() == pytest.approx(said["clip_ratio/region_mean"][0], rel=1e-5)
        assert metrics["clip_fraction"].item() > 0
