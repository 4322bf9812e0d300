"""TRL: the fused head that every trainer and reference model scores with, and selective_log_softmax."""
import torch

from .._functions._logprob import linear_logprob
from .._functions._select import NEVER, selective_log_softmax
from . import _call
from ._seam import Host, Seam

# What TRL asks for beside log-probabilities and entropies, in its order: fields of flp.Statistics.
STATISTICS = {"log_sum_sq_probs": "log_squares", "mean_logits": "mean_score", "is_top1": "is_best"}


def fused_head(hidden, weight, bias, targets, temperature, chunk_size, final_logit_softcapping=None, logit_scale=1.0,
               outputs=("entropy", *STATISTICS)):
    """ChunkedLogProbFunction.apply: hidden (N, D), weight (V, D), targets (N) -> five outputs (N) or None.

    The host rounds weight and bias to hidden's dtype, as for float32 masters beside a bfloat16 trunk. is_top1 counts a
    target that shares the highest score with an earlier token, which the host does not.
    """
    mixed = _call.rounded(hidden, weight, bias)
    _call.take(hidden, weight, bias, mixed)
    asked = [name for name in STATISTICS if name in outputs]
    wants_entropy = "entropy" in outputs
    results = linear_logprob(hidden, weight, targets, bias, temperature=temperature, entropy=wants_entropy,
                             softcap=final_logit_softcapping, scale=logit_scale, ignore_index=NEVER, mixed=mixed,
                             statistics=bool(asked))
    logprob, *more = results if wants_entropy or asked else (results,)
    entropy = more.pop(0) if wants_entropy else None
    return logprob, entropy, *(getattr(more[0], STATISTICS[name]) if name in asked else None for name in STATISTICS)


def selective(host):
    """selective_log_softmax: logits (..., V), index (...) or (..., K) -> log-probabilities of index's shape: float32
    where the host has a kernel of its own (on a GPU, one index a row), else of the scores' dtype."""
    own = host.__globals__

    @_call.in_place("trl", host)
    def through_flp(logits, index, temperature=1.0, row_mask=None):
        _call.refuse(_call.scores_refusal(logits))
        fused = own["is_triton_available"]() and own["_supports_trl_loss_kernel"](logits, index, row_mask)
        if row_mask is not None:
            index = index.long().masked_fill(row_mask == 0, NEVER)
        return selective_log_softmax(logits, index, temperature=temperature, ignore_index=NEVER,
                                     out_dtype=torch.float32 if fused else None)

    return through_flp


HOST = Host(
    "trl", (
        Seam("trl.kernels.chunked_logprob", "ChunkedLogProbFunction.apply",
             ("ctx", "hidden", "weight", "bias", "targets", "temperature", "chunk_size", "final_logit_softcapping",
              "logit_scale", "outputs"), "1d8220b44273cdf3", _call.stands_for_apply("trl", fused_head),
             "ChunkedLogProbFunction.forward"),
        Seam("trl.trainer.utils", "selective_log_softmax", ("logits", "index", "temperature", "row_mask"),
             "e55428ff89caff25", selective),
    ), "trl==1.16.0")
