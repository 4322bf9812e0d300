"""xtuner: the loss of its supervised training.

    model_cfg.lm_loss_cfg = flp.backend.xtuner.CELossConfig()    # or loss_cfg of a trainer, sft_loss_cfg of a worker
"""
from __future__ import annotations

from typing import Any

from torch import Tensor
from xtuner.v1.loss import ce_loss

from .._functions._cross_entropy import cross_entropy


class CELossContext(ce_loss.LMHeadLossContext):
    """The loss of a micro-batch by flp.cross_entropy; xtuner weighs the tokens and sums over ranks."""

    def eager_mode(self, hidden_states: Tensor, head_weight: Tensor, head_bias: Tensor | None,
                   loss_kwargs: ce_loss.CELossKwargs) -> tuple[Tensor, tuple[None, dict[str, Any]]]:
        """hidden_states (B, T, D), head_weight (V, D), loss_kwargs with shifted_labels and loss_weight (B, T) -> (a
        scalar, (None where scores would be, {})). error: ValueError, TypeError naming the field"""
        loss = cross_entropy(hidden_states, head_weight, loss_kwargs.shifted_labels, head_bias, reduction="sum",
                             row_weight=loss_kwargs.loss_weight, ignore_index=self.loss_cfg.ignore_idx)
        return loss, (None, {})

    chunk_mode = eager_mode


class CELossConfig(ce_loss.CELossConfig):
    """xtuner's own but for who computes the loss. Losses of layers that predict later tokens stay xtuner's: mode and
    chunk_size are theirs."""

    @property
    def loss_ctx_cls(self) -> type[CELossContext]:
        """What build makes."""
        return CELossContext
