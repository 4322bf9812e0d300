"""NeMo Automodel: a loss of its recipes.

    loss_fn:
      _target_: flp.backend.nemo_automodel.CrossEntropy
"""
from __future__ import annotations

from typing import Any

from nemo_automodel.components.loss.linear_ce_base import LinearCrossEntropy
from torch import Tensor

from .._functions._cross_entropy import cross_entropy
from .._tensors import _check


class CrossEntropy(LinearCrossEntropy):
    """flp.cross_entropy as Automodel's losses over hidden states are.

    ignore_index, logit_softcapping, reduction  as of Automodel's FusedLinearCrossEntropy
    options      others of flp.cross_entropy: label_smoothing, z_loss, budget, mixed, ...
    """

    def __init__(self, ignore_index: int = -100, logit_softcapping: float = 0.0, reduction: str = "sum",
                 **options: Any) -> None:
        super().__init__()
        self.ignore_index, self.logit_softcapping, self.reduction = ignore_index, logit_softcapping, reduction
        self.options = options

    def forward(self, hidden_states: Tensor, labels: Tensor, lm_weight: Tensor, num_label_tokens: int | None = None,
                grad_reduce_group: Any = None, loss_weights: Tensor | None = None) -> Tensor:
        """hidden_states (B, T, D), labels (B, T), lm_weight (V, D) or a DTensor of it; loss_weights (B, T) or None ->
        a scalar, which num_label_tokens divides. error: ValueError, TypeError naming the field"""
        for field, value in (("num_label_tokens", num_label_tokens), ("loss_weights", loss_weights)):
            if value is not None and self.reduction != "sum":
                _check.refuse(ValueError, field, "given", "None with reduction %r" % self.reduction)
        weight = self.materialize_lm_weight(lm_weight, grad_reduce_group=grad_reduce_group)
        loss = cross_entropy(hidden_states, weight, labels, ignore_index=self.ignore_index, reduction=self.reduction,
                             softcap=self.logit_softcapping or None, row_weight=loss_weights, **self.options)
        return loss if num_label_tokens is None else loss / num_label_tokens
