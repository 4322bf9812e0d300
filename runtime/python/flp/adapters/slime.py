"""slime: calculate_log_probs_and_entropy of scores that Megatron made."""
import functools

from . import _call
from ._seam import Host, Seam


def from_logits(host):
    """logits (N, V), tokens (N) -> log-probabilities (N, 1) and entropies (N) or None, float32."""

    @functools.wraps(host)
    def calculate_log_probs_and_entropy(logits, tokens, tp_group, with_entropy=False, chunk_size=-1,
                                        log_prob_keep_mask=None, with_entropy_grad=True):
        reason = _call.scores_refusal(logits)
        if reason is None and _call.shards(tp_group) > 1:
            reason = "the vocabulary is spread over several ranks"
        if reason is None and log_prob_keep_mask is not None:
            reason = "log_prob_keep_mask is given"
        if reason:
            return _call.to_host("slime", reason, host, logits, tokens, tp_group, with_entropy, chunk_size,
                                 log_prob_keep_mask, with_entropy_grad)
        if logits.size(0) == 0:
            return host(logits, tokens, tp_group, with_entropy)
        return _call.megatron_scores(logits, tokens, with_entropy, with_entropy_grad)

    return calculate_log_probs_and_entropy


HOST = Host(
    "slime", ("0.3.1", "0.4"), (
        Seam("slime.utils.ppo_utils", "calculate_log_probs_and_entropy",
             ("logits", "tokens", "tp_group", "with_entropy", "chunk_size", "log_prob_keep_mask", "with_entropy_grad"),
             "308bb28b3208d299", from_logits),
    ), "github.com/THUDM/slime at commit 624b824a898ab0ec1fcb4d373004c7f3852bf515")
