"""AgileRL: the fused log-probabilities of its LLM algorithms, without and with gradient."""
from .._functions._logprob import linear_logprob
from .._functions._select import NEVER
from . import _call
from ._seam import Host, Seam

MODULE = "agilerl.algorithms.core.llm_ops.fused_logprobs"


def logprob(hidden, head_w, head_b, target_ids, temperature=1.0, cast_to_fp32=True, chunk_rows=None):
    """hidden (B, T, D), head_w (V, D), target_ids (B, T) -> (B, T) in hidden's dtype. flp sums in float32 either way,
    without a float32 copy of the head, and within its own budget instead of chunk_rows."""
    _call.take(hidden, head_w, head_b)
    return linear_logprob(hidden, head_w, target_ids.long(), head_b, temperature=temperature,
                          ignore_index=NEVER).to(hidden.dtype)


HOST = Host(
    "agilerl", (
        Seam(MODULE, "fused_linear_logprobs_chunked",
             ("hidden", "head_w", "head_b", "target_ids", "temperature", "cast_to_fp32", "chunk_rows"),
             "b6172fba77768888", _call.stands("agilerl", logprob)),
        Seam(MODULE, "FusedLinearLogProbsFunction.apply",
             ("ctx", "hidden", "head_w", "head_b", "target_ids", "temperature", "cast_to_fp32", "chunk_rows"),
             "d11f4a54d004b711", _call.stands_for_apply("agilerl", logprob),
             "FusedLinearLogProbsFunction.forward"),
    ), "agilerl==2.58.0")
