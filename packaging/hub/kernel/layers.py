"""The layers of the kernels hub: each lends its forward to a layer of a model.

Invariant, the hub's rule: no state, no constructor and no method but forward, whose self is the adopting layer.
"""
from typing import Optional

import torch

from ._functions._logprob import linear_logprob
from ._functions._select import selective_log_softmax


class LinearLogprob(torch.nn.Module):
    """For a head with weight (V, D) and perhaps bias (V), such as torch.nn.Linear, whose forward takes hidden states
    (..., D) and targets (...): the log-probabilities (...) float32 of the targets."""

    can_torch_compile: bool = True

    weight: torch.Tensor
    bias: Optional[torch.Tensor]

    def forward(self, hidden: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return linear_logprob(hidden, self.weight, target, getattr(self, "bias", None))


class SelectiveLogSoftmax(torch.nn.Module):
    """For a layer, or a function made one, that takes logits (..., V) and index (...) or (..., K): log_softmax(logits)
    at these places, of index's shape and logits' dtype."""

    can_torch_compile: bool = True

    def forward(self, logits: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return selective_log_softmax(logits, index)
