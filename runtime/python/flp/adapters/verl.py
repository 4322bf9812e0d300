"""verl: linear_cross_entropy of its fused backend, and logprobs_from_logits of the others."""
from .._functions._logprob import linear_logprob
from .._functions._select import NEVER
from . import _call
from ._seam import Host, Seam

FUSED_HEAD = "verl.utils.kernel.linear_cross_entropy"


def fused_head(host):
    """linear_cross_entropy: hidden (..., D), weight (V, D), labels (...) -> logprob (N), entropy (N), float32."""

    @_call.in_place("verl", host)
    def linear_cross_entropy(hidden, weight, labels, temperature=1.0, reduction="none", dist_process_group=None):
        _call.take(hidden, weight)
        if reduction.lower() != "none":
            raise _call.Refused("reduction is %r" % reduction)
        if dist_process_group is not None:
            _call.one_rank(dist_process_group)
        return linear_logprob(hidden.reshape(-1, hidden.shape[-1]), weight, labels.reshape(-1), temperature=temperature,
                              entropy=True, ignore_index=NEVER)

    # Its name is the attribute's, not that of host, which is a Function's apply: so that pickle finds it there.
    linear_cross_entropy.__module__, name = FUSED_HEAD, "linear_cross_entropy"
    linear_cross_entropy.__name__ = linear_cross_entropy.__qualname__ = name
    return linear_cross_entropy


HOST = Host(
    "verl", (
        Seam(FUSED_HEAD, "linear_cross_entropy",
             ("ctx", "hidden", "weight", "labels", "temperature", "reduction", "dist_process_group"),
             "3f0631b40a0fe8d9", fused_head, "LinearCrossEntropy.forward"),
        Seam("verl.utils.torch_functional", "logprobs_from_logits", ("logits", "labels", "inplace_backward"),
             "dffd21fe40eb806b", _call.from_logits("verl", "FLAH_ATTN_CROSS_ENTROPY_LOSS_AVAILABLE")),
    ), "verl==0.9.1")
