"""Miles: calculate_log_probs_and_entropy of scores that Megatron or FSDP made."""
from . import _call
from ._seam import Host, Seam


def from_logits(logits, tokens, tp_group, with_entropy=False, entropy_requires_grad=True, chunk_size=-1,
                true_on_policy=False, vocab_size=None):
    """logits (N, V), tokens (N) -> log-probabilities (N, 1) and entropies (N) or None, float32."""
    if true_on_policy:
        raise _call.Refused("true_on_policy asks for the bits of the rollout engine")
    return _call.megatron_scores(logits, tokens, tp_group, with_entropy, entropy_requires_grad)


HOST = Host(
    "miles", (
        Seam("miles.backends.training_utils.loss_hub.math_utils", "calculate_log_probs_and_entropy",
             ("logits", "tokens", "tp_group", "with_entropy", "entropy_requires_grad", "chunk_size", "true_on_policy",
              "vocab_size"), "ddc3a06b9df155d9", _call.stands("miles", from_logits)),
    ), "github.com/radixark/miles at commit 31f1ca961a94cb860cec3b2dea34ec332bfa8f76")
