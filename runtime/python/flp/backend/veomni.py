"""VeOmni: a kernel of its registry.

    flp.backend.veomni.register()    # before the model is built; cross_entropy_loss_implementation: liger_kernel is flp
"""
from __future__ import annotations

import functools
from typing import Any

from torch import Tensor
from torch.nn import functional as F
from veomni.distributed.parallel_state import get_parallel_state
from veomni.ops.kernel_registry import KERNEL_REGISTRY, HardwareRequirement, KernelSpec
from veomni.ops.kernels.cross_entropy import ForCausalLMLoss, eager_cross_entropy
from veomni.utils.model_outputs import FusedLinearAuxOutput

from .._functions._cross_entropy import cross_entropy
from . import token_logprobs


def register(name: str = "liger_kernel") -> None:
    """Makes flp the kernel of that name for losses of causal models: one that VeOmni's configuration takes, its default
    on a GPU, or another, which code may resolve."""
    KERNEL_REGISTRY.register(KernelSpec(
        name=name, op_name="cross_entropy_loss", variant="causal", factory=lambda: causal_loss,
        hardware=HardwareRequirement("any"), description="flp.cross_entropy and flp.linear_logprob"), force=True)


def causal_loss(logits: Tensor | None = None, labels: Tensor | None = None, vocab_size: int | None = None,
                num_items_in_batch: int | None = None, ignore_index: int = -100, shift_labels: Tensor | None = None, *,
                hidden_states: Tensor | None = None, weights: Tensor | None = None, return_log_probs: bool = False,
                temperature: float = 1.0, teacher_topk_ids: Tensor | None = None, **others: Any) -> tuple[Any, ...]:
    """VeOmni's ForCausalLMLoss, which shifts labels and adds the losses of sequence parallel ranks -> (loss, logits,
    None), or with return_log_probs (None, None, log_probs and entropy in the shape of labels). Top-k distillation is
    VeOmni's own."""
    own = functools.partial(ForCausalLMLoss, logits, labels, vocab_size, num_items_in_batch, ignore_index, shift_labels,
                            hidden_states=hidden_states, weights=weights, **others)
    if not return_log_probs:
        return own(cross_entropy_fn=_loss_of_tokens)
    if teacher_topk_ids is not None or labels is None or hidden_states is None or weights is None:
        return own(return_log_probs=True, temperature=temperature, teacher_topk_ids=teacher_topk_ids)
    if shift_labels is None:
        is_shifted = get_parallel_state().sp_enabled
        shift_labels = labels if is_shifted else F.pad(labels[..., 1:], (0, 1), value=ignore_index)
    found = token_logprobs(shift_labels, hidden=hidden_states, weight=weights, temperature=temperature,
                           ignore_index=ignore_index, entropy=True)
    return None, None, FusedLinearAuxOutput(log_probs=found.logprob, entropy=found.entropy)


def _loss_of_tokens(logits, labels, vocab_size, num_items_in_batch, ignore_index, hidden_states=None, weights=None,
                    **_):
    """hidden_states (N, D), labels (N), shifted -> the mean over labels, or what num_items_in_batch divides; logits"""
    if hidden_states is None or weights is None:
        return eager_cross_entropy(logits, labels, vocab_size, num_items_in_batch, ignore_index)
    return cross_entropy(hidden_states, weights, labels, ignore_index=ignore_index, total=num_items_in_batch), logits
