"""slime: calculate_log_probs_and_entropy of scores that Megatron made."""
from . import _call
from ._seam import Host, Seam


def from_logits(logits, tokens, tp_group, with_entropy=False, chunk_size=-1, log_prob_keep_mask=None,
                with_entropy_grad=True):
    """logits (N, V), tokens (N) -> log-probabilities (N, 1) and entropies (N) or None, float32."""
    if log_prob_keep_mask is not None:
        raise _call.Refused("log_prob_keep_mask is given")
    return _call.megatron_scores(logits, tokens, tp_group, with_entropy, with_entropy_grad)


HOST = Host(
    "slime", (
        Seam("slime.utils.ppo_utils", "calculate_log_probs_and_entropy",
             ("logits", "tokens", "tp_group", "with_entropy", "chunk_size", "log_prob_keep_mask", "with_entropy_grad"),
             "308bb28b3208d299", _call.stands("slime", from_logits)),
    ), "github.com/THUDM/slime at commit 624b824a898ab0ec1fcb4d373004c7f3852bf515")
