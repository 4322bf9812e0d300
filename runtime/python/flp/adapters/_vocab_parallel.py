"""What NeMo-RL and SkyRL have of NeMo-Aligner's: log-probabilities of hidden states or scores whose vocabulary Megatron
spreads over a group."""
import torch

from .._functions import _select
from .._functions._logprob import linear_logprob
from ..parallel import linear_logprob as parallel_logprob
from . import _call

# Parameters of the functions that are replaced: a rank's part of the vocabulary, and those of scores.
RANGE = ("vocab_start_index", "vocab_end_index")
SCORES = ("ctx", "vocab_parallel_logits", "target", *RANGE)


def of_hidden(hidden, weight, target, start, group, inference_only, **options):
    """flp.linear_logprob over a group's shards of the vocabulary. hidden (..., D), this rank's weight, target (...)

    start           id of the first row of weight
    inference_only  no graph is kept
    """
    with torch.set_grad_enabled(torch.is_grad_enabled() and not inference_only):
        if _call.shards(group) == 1:
            options.pop("sequence_parallel", None)
            options.pop("reduce_grad_hidden", None)
            return linear_logprob(hidden, weight, target, ignore_index=_select.NEVER, **options)
        return parallel_logprob(hidden, weight, target, group=group, vocab_offset=start, ignore_index=_select.NEVER,
                                **options)


def of_scores(name, chunked):
    """DistributedLogprob.apply, or ChunkedDistributedLogprob.apply with a chunk size before the group: scores (B,S,V),
    target (B,S) -> (B,S) float32."""

    def apply(logits, target, start, end, *rest):
        group, inference_only = (*rest, False)[chunked:chunked + 2]
        _call.refuse(_call.scores_refusal(logits))
        _call.one_rank(group)
        with torch.set_grad_enabled(torch.is_grad_enabled() and not inference_only):
            return _select.selective_log_softmax(logits, target, ignore_index=_select.NEVER, out_dtype=torch.float32)

    return _call.stands_for_apply(name, apply)
