"""xtuner: the GRPO loss of its workers.

    WorkerConfig(loss_cfg=flp.backend.xtuner_rl.GRPOLossConfig(policy_loss_cfg=...), ...)
"""
from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from xtuner.v1.rl.grpo import loss as grpo
from xtuner.v1.rl.loss_fn import kl_penalty

from . import token_logprobs


class GRPOLossContext(grpo.GRPOLossContext):
    """The loss of a micro-batch: log-probabilities by flp, what is made of them by xtuner's functions."""

    def loss_fn(self, hidden_states: Tensor, head_weight: Tensor, head_bias: Tensor | None,
                loss_kwargs: grpo.GRPOLossKwargs) -> tuple[Tensor, tuple[None, dict[str, Any]]]:
        """hidden_states (B, T, D), head_weight (V, D), loss_kwargs of (B, T) -> (a scalar, (None where scores would be,
        {"max_ratio": ...})). Tokens of no loss count as never changed. error: ValueError, TypeError naming the field"""
        cfg, old, labels = self.loss_cfg, loss_kwargs.old_logprobs, loss_kwargs.shifted_labels
        found = token_logprobs(labels, hidden=hidden_states, weight=head_weight, bias=head_bias,
                               ignore_index=cfg.ignore_idx)
        logprobs = torch.where(labels != cfg.ignore_idx, found.logprob, old)
        loss = self.policy_loss_fn(logprobs, old, loss_kwargs.advantages, loss_kwargs.policy_loss_weight,
                                   cfg.policy_loss_cfg)
        ratio = (logprobs - old).exp() * (labels != cfg.ignore_idx)
        if cfg.use_kl_loss:
            loss = loss + kl_penalty(logprobs, loss_kwargs.ref_logprobs, loss_kwargs.kl_loss_weight, cfg.kl_loss_type)
        return loss, (None, {"max_ratio": ratio.max()})

    chunk_mode = loss_fn


class GRPOLossConfig(grpo.GRPOLossConfig):
    """xtuner's own but for who computes the log-probabilities of the step. Those of the old policy and of the reference
    stay xtuner's, for which its worker has no choice: chunk_size is theirs."""

    @property
    def loss_ctx_cls(self) -> type[GRPOLossContext]:
        """What build makes."""
        return GRPOLossContext
