"""verl: linear_cross_entropy of its fused backend, and logprobs_from_logits of the others."""
import functools
import sys

from .._logprob import linear_logprob
from .._select import NEVER, selective_log_softmax
from . import _call
from ._seam import Host, Seam

FUSED_HEAD = "verl.utils.kernel.linear_cross_entropy"


def fused_head(host):
    """linear_cross_entropy: hidden (..., D), weight (V, D), labels (...) -> logprob (N), entropy (N), float32."""

    def linear_cross_entropy(hidden, weight, labels, temperature=1.0, reduction="none", dist_process_group=None):
        reason = _call.refusal(hidden, weight)
        if reason is None and reduction.lower() != "none":
            reason = "reduction is %r" % reduction
        if reason is None and dist_process_group is not None and _call.shards(dist_process_group) > 1:
            reason = "the vocabulary is spread over several ranks"
        if reason:
            return _call.to_host("verl", reason, host, hidden, weight, labels, temperature, reduction,
                                 dist_process_group)
        return linear_logprob(hidden.reshape(-1, hidden.shape[-1]), weight, labels.reshape(-1), temperature=temperature,
                              entropy=True, ignore_index=NEVER)

    # Its name is the attribute's, not that of host, which is a Function's apply: so that pickle finds it there.
    linear_cross_entropy.__module__, linear_cross_entropy.__qualname__ = FUSED_HEAD, "linear_cross_entropy"
    return linear_cross_entropy


def from_logits(host):
    """logprobs_from_logits: logits (..., V), labels (...) -> (...); gradients in place where the host's would be."""
    module = sys.modules[host.__module__]

    @functools.wraps(host)
    def logprobs_from_logits(logits, labels, inplace_backward=True):
        reason = _call.scores_refusal(logits)
        if reason:
            return _call.to_host("verl", reason, host, logits, labels, inplace_backward)
        in_place = inplace_backward and module.FLAH_ATTN_CROSS_ENTROPY_LOSS_AVAILABLE
        return selective_log_softmax(logits, labels, inplace_backward=in_place)

    return logprobs_from_logits


HOST = Host(
    "verl", ("0.9.1", "0.10"), (
        Seam(FUSED_HEAD, "linear_cross_entropy",
             ("ctx", "hidden", "weight", "labels", "temperature", "reduction", "dist_process_group"),
             "3f0631b40a0fe8d9", fused_head, "LinearCrossEntropy.forward"),
        Seam("verl.utils.torch_functional", "logprobs_from_logits", ("logits", "labels", "inplace_backward"),
             "dffd21fe40eb806b", from_logits),
    ), "verl==0.9.1")
