"""flp behind a trainer's own switch: one function for whatever a switch has at hand, and a module for each official
place of a trainer that takes such a backend (nemo_automodel, veomni, xtuner, xtuner_rl).

Invariants: token_logprobs, its parameters and TokenValues stay; more of either may come. A module here replaces nothing
of its trainer: it is what the trainer's configuration or registry names.
"""
from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from .._functions._logprob import linear_logprob
from .._functions._select import selective_log_softmax
from .._tensors import _check
from .._tensors._top import Statistics
from ..parallel import linear_logprob as of_shards

__all__ = ["TokenValues", "token_logprobs"]


class TokenValues(NamedTuple):
    """Of each token, in the shape of ids; None where it is not asked for."""

    logprob: Tensor                # float32 in nats, never above 0; 0 where the mask is 0
    entropy: Tensor | None         # float32 in nats
    statistics: Statistics | None  # values without a gradient


def token_logprobs(ids: Tensor, *, hidden: Tensor | None = None, weight: Tensor | None = None,
                   bias: Tensor | None = None, scores: Tensor | None = None, temperature: float | Tensor = 1.0,
                   mask: Tensor | None = None, ignore_index: int = -100, entropy: bool = False,
                   statistics: bool = False, group: Any = None, **options: Any) -> TokenValues:
    """Computes log-probabilities of tokens from hidden states and head, or from scores that exist already.

    ids          (...) int32 or int64
    hidden, weight, bias
                 (..., D), (V, D), (V) or None: the scores are never made, gradients reach all three
    scores       (..., V) in their place
    temperature  as of flp.linear_logprob; a number with scores
    mask         (...) bool or numbers, or None: tokens of 0 are not computed; they have 0, and no gradient
    entropy, statistics
                 True: give these, too; statistics need hidden states
    group        torch.distributed group whose ranks have weight and bias in rows of the vocabulary, in order, as in
                 flp.parallel.linear_logprob; None: the head is whole
    options      others of flp.linear_logprob, with a group of flp.parallel.linear_logprob: softcap, budget, keep, ...

    error:  ValueError or TypeError naming the field, its value and what is accepted; flp.FlpError and its classes
    thread: safe
    """
    _check.tensor_of("ids", ids)
    if mask is not None:
        _check.tensor_of("mask", mask)
        if mask.shape != ids.shape:
            _check.refuse_shape("mask", mask, "%s, that of ids" % (tuple(ids.shape),))
        ids = ids.masked_fill(mask.to(ids.device) == 0, ignore_index)
    found: Any
    asked: dict[str, Any] = {"temperature": temperature, "ignore_index": ignore_index, "entropy": entropy, **options}
    if scores is None and hidden is not None and weight is not None:
        asked["statistics"] = statistics
        if group is None:
            found = linear_logprob(hidden, weight, ids, bias, **asked)
        else:
            found = of_shards(hidden, weight, ids, bias, group=group, **asked)
    elif scores is not None and hidden is None and weight is None:
        for field, value in (("bias", bias), ("group", group), ("statistics", statistics or None)):
            if value is not None:
                _check.refuse(ValueError, field, "given", "None with scores")
        found = selective_log_softmax(scores, ids, **asked)
    else:
        _check.refuse(ValueError, "scores", "None" if scores is None else "given",
                      "hidden and weight, or scores in their place")
    logprob, *more = found if isinstance(found, tuple) else (found,)
    return TokenValues(logprob, more.pop(0) if entropy else None, more.pop(0) if statistics else None)
