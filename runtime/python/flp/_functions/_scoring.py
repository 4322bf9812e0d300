"""score: log-probabilities of the tokens of a ragged batch in one pass, and of them what a gate keeps.

Invariants: nothing here reads a value from the device, so scoring, gate, loss and backward can be captured in one CUDA
graph; tokens that are not scored have logprob 0 and a gradient of exactly 0, and cost no matrix work either way.
"""
from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from .._tensors import _check, _top
from .._tensors._top import Statistics, Top
from ._gate import bounds_of, cu_seqlens_of, mask_of, totals
from ._logprob import linear_logprob


class Scores(NamedTuple):
    """What flp.score returns: padded (B, T) tokens in B sequences, or packed (N) tokens in S sequences."""

    logprob: Tensor               # (B, T) or (N) float32 in nats: of each token; 0 where it is not scored
    entropy: Tensor | None     # likewise: of the distribution it was drawn from; None: not asked for
    mask: Tensor                  # (B, T) or (N) bool: the tokens that are scored
    sum: Tensor                   # (B) or (S) float32: logprobs of a sequence; 0 where nothing is scored
    mean: Tensor                  # likewise, divided by counts
    counts: Tensor                # (B) or (S) int64: tokens of a sequence that are scored
    cu_seqlens: Tensor | None  # as given to flp.score
    top: Top | None = None     # the best tokens in the place of each token (topk); ids -1 where it is not scored
    rank: Tensor | None = None    # (B, T) or (N) int32: of each token among all (rank); -1 where it is not scored
    statistics: Statistics | None = None  # of the scores that each token was drawn from; zeros where it is not scored

    def per_token(self, values: Tensor) -> Tensor:
        """Gives each token the value of its sequence: values (B) -> (B, T), or packed (S) -> (N), where tokens of no
        sequence get 0; any dtype, which stays. error: ValueError, TypeError naming the field"""
        _check.like("values", values, "counts", self.counts)
        if self.cu_seqlens is None:
            return values[:, None].expand(self.mask.shape)
        return _appended(values)[_sequence_of(self.cu_seqlens, self.mask)]

    def keep(self, *, sequences: Tensor | None = None, tokens: Tensor | None = None) -> Scores:
        """Keeps what a gate chose -> Scores in which all else is not scored: logprob, entropy 0, mask False, and a
        gradient of exactly 0 whatever reaches it, NaN included. flp's backward pass leaves such rows out.

        sequences  (B) or (S) bool or numbers 0 and 1, e.g. flp.gate(flp.delight(scores.mean, advantage), ...)
        tokens     (B, T) or (N), likewise; with both, tokens of kept sequences
        error: ValueError, TypeError naming the field
        """
        mask = self.mask
        if sequences is not None:
            mask = mask & self.per_token(mask_of("sequences", sequences, "counts", self.counts))
        if tokens is not None:
            mask = mask & mask_of("tokens", tokens, "mask", self.mask)
        entropy = None if self.entropy is None else self.entropy.masked_fill(~mask, 0.0)
        return _scores(self.logprob.masked_fill(~mask, 0.0), entropy, mask, self.cu_seqlens,
                       _top.without(self.top, ~mask, 0.0),
                       None if self.rank is None else self.rank.masked_fill(~mask, _top.NO_ID),
                       _top.without(self.statistics, ~mask, 0.0))


def score(hidden: Tensor, weight: Tensor, tokens: Tensor, *, cu_seqlens: Tensor | None = None,
          prompt_lengths: Tensor | None = None, mask: Tensor | None = None, lengths: Tensor | None = None,
          attention_mask: Tensor | None = None, shifted: bool = False, bias: Tensor | None = None,
          temperature: float | Tensor = 1.0, entropy: bool | Literal["detached"] = False,
          softcap: float | None = None, scale: float = 1.0, ignore_index: int = -100, budget: int | str | None = None,
          grad_weight_accumulate: Tensor | None = None, save: bool | None = None, tail: float | None = None,
          tail_report: Tensor | None = None, topk: int = 0, rank: bool = False, statistics: bool = False) -> Scores:
    """Scores the tokens of many sequences of unequal length in one pass: each under the hidden state before it.

    hidden          padded (B, T, D), or packed (N, D) with cu_seqlens: of all tokens, the last of a sequence included
    weight, bias    (V, D) and (V) or None; these, softcap, scale, budget, grad_weight_accumulate, save, tail,
                    tail_report, topk, rank and statistics as for flp.linear_logprob. Where a gate keeps few rows of a
                    frozen head, save=False is faster
    tokens          (B, T) or (N) int32 or int64: those that hidden is of; the shift by one happens here. The first
                    token of a sequence has nothing before it and is not scored
    cu_seqlens      (S+1) int32 or int64: where each sequence begins in packed tokens, 0 first; padding from the last
                    on. With bounds that do not begin so, run backwards or exceed N every scored token is NaN, every sum
                    too
    prompt_lengths  (B) or (S) int32 or int64: so many first tokens of a sequence, padding not counted, are not scored
    mask            as tokens, bool or numbers 0 and 1: the tokens that may be scored, e.g. those of completions
    lengths         (B) int32 or int64: tokens of each sequence, padded on the right
    attention_mask  (B, T) bool or numbers 0 and 1: the tokens that exist, padded on any side; what follows padding is
                    not scored
    shifted         True: tokens are targets, hidden[i] predicts tokens[i]; masks, lengths and cu_seqlens are of these
    temperature     a number above 0, or a tensor as tokens: of the distribution that each token was drawn from
    entropy         True: entropies too; "detached": without a gradient
    ignore_index    tokens of this value are not scored

    Returns Scores: logprob (and entropy) of each token, at the token's own place, with mask, and sum, mean and counts a
    sequence; gradients reach hidden, weight and bias. Tokens that are not scored cost no matrix work; scored ones
    outside [0, V) are NaN. No value of a tensor is read on the host: unless a GPU falls to the eager rung, nothing
    synchronises.
    error:  ValueError or TypeError naming the field, its value and what is accepted; flp.FlpError and its classes
    """
    _check_tokens(hidden, tokens, cu_seqlens)
    if cu_seqlens is None:
        place, exists = _padded(tokens, lengths, attention_mask)
        prompts = _lengths("prompt_lengths", prompt_lengths, tokens, len(tokens))
        prompts = None if prompts is None else prompts[:, None]
    else:
        cu_seqlens_of(cu_seqlens, "tokens", tokens)
        place, exists, prompts = _packed(tokens, cu_seqlens, prompt_lengths, lengths, attention_mask)
    scored = exists & (tokens != ignore_index)
    if mask is not None:
        scored &= mask_of("mask", mask, "tokens", tokens)
    if prompts is not None:
        scored &= place >= prompts
    if not shifted:
        scored &= (place >= 1) & torch.roll(exists, 1)
    result: Any = linear_logprob(hidden, weight, _moved(tokens.masked_fill(~scored, ignore_index), -1, shifted), bias,
                            temperature=_moved(temperature, -1, shifted), entropy=entropy, softcap=softcap, scale=scale,
                            ignore_index=ignore_index, budget=budget, grad_weight_accumulate=grad_weight_accumulate,
                            save=save, tail=tail, tail_report=tail_report, topk=topk, rank=rank,
                            statistics=statistics)
    values = list(result) if isinstance(result, tuple) else [result]
    logprob, entropies = (_moved(values.pop(0), 1, shifted) if wanted else None for wanted in (True, entropy))
    top = Top(*(_moved(each, 1, shifted, width) for each, width in zip(values.pop(0), (topk, topk, 1)))) if topk else None
    ranks = _moved(values.pop(0), 1, shifted) if rank else None
    of_scores = Statistics(*(_moved(each, 1, shifted) for each in values.pop(0))) if statistics else None
    if cu_seqlens is not None:
        wrong = scored & bounds_of(cu_seqlens, tokens)[1]
        logprob, entropies = (values if values is None else values.masked_fill(wrong, float("nan"))
                              for values in (logprob, entropies))
        top = _top.without(top, wrong, float("nan"))
        ranks = None if ranks is None else ranks.masked_fill(wrong, _top.NO_ID)
        of_scores = _top.without(of_scores, wrong, float("nan"))
    return _scores(logprob, entropies, scored, cu_seqlens, top, ranks, of_scores)


def _scores(logprob, entropy, mask, cu_seqlens, top=None, rank=None, statistics=None):
    total, count = totals(logprob, mask, cu_seqlens)
    return Scores(logprob, entropy, mask, total.float(), (total / count.clamp(min=1)).float(), count.long(), cu_seqlens,
                  top, rank, statistics)


def _moved(values, by, shifted, width=1):
    """Tokens' values, so many a token, at the places that predict them (by = -1), and back (by = 1). What wraps around is
    never scored."""
    if shifted or not isinstance(values, torch.Tensor) or values.dim() == 0:
        return values
    return torch.roll(values, by * width)


# ---- the place of each token in its sequence, and whether it exists ----

def _padded(tokens, lengths, attention_mask):
    if lengths is not None and attention_mask is not None:
        _check.refuse(ValueError, "lengths, attention_mask", "both given", "one of the two")
    if attention_mask is not None:
        exists = mask_of("attention_mask", attention_mask, "tokens", tokens)
        return exists.cumsum(-1) - 1, exists
    place = torch.arange(tokens.shape[1], device=tokens.device).expand(tokens.shape)
    lengths = _lengths("lengths", lengths, tokens, len(tokens))
    return place, torch.ones_like(tokens, dtype=torch.bool) if lengths is None else place < lengths[:, None]


def _packed(tokens, cu_seqlens, prompt_lengths, lengths, attention_mask):
    """-> place, exists, and the prompt length of each token's sequence or None"""
    for field, value in (("lengths", lengths), ("attention_mask", attention_mask)):
        if value is not None:
            _check.refuse(ValueError, field, "given", "None, as cu_seqlens is given")
    sequences, at = len(cu_seqlens) - 1, _sequence_of(cu_seqlens, tokens)
    place = torch.arange(len(tokens), device=tokens.device) - cu_seqlens.long()[at]
    prompts = _lengths("prompt_lengths", prompt_lengths, tokens, sequences)
    return place, at < sequences, None if prompts is None else _appended(prompts)[at]


def _sequence_of(cu_seqlens, tokens):
    """Which of S sequences each packed token belongs to: (S+1), (N) -> (N) int64; S: to none."""
    at = torch.searchsorted(cu_seqlens.long(), torch.arange(len(tokens), device=tokens.device), right=True) - 1
    return at.masked_fill(at < 0, len(cu_seqlens) - 1)


def _appended(values):
    """(S) -> (S+1), 0 last."""
    return torch.cat([values, values.new_zeros(1)])


# ---- checks ----

def _check_tokens(hidden, tokens, cu_seqlens):
    _check.tensor_of("hidden", hidden)
    _check.tensor_of("tokens", tokens)
    dims, text = (3, "(B, T, D)") if cu_seqlens is None else (2, "(N, D), as cu_seqlens is given")
    if hidden.dim() != dims:
        _check.refuse_shape("hidden", hidden, text)
    if tokens.dtype not in _check.TARGET_DTYPES:
        _check.refuse_dtype("tokens", tokens, _check.ACCEPTED_TARGETS)
    if tokens.shape != hidden.shape[:-1]:
        _check.refuse_shape("tokens", tokens, "%s, as hidden without its last dimension" % (tuple(hidden.shape[:-1]),))
    _check.same_device("tokens", tokens, "hidden", hidden)


def _lengths(field, value, tokens, count):
    """One length a sequence, as int64; None stays."""
    if value is None:
        return None
    _check.tensor_of(field, value)
    if value.dtype not in _check.TARGET_DTYPES or tuple(value.shape) != (count,):
        _check.refuse(ValueError, field, "%s of shape %s" % (value.dtype, tuple(value.shape)), "(%d,) %s" % (
            count, _check.ACCEPTED_TARGETS))
    _check.same_device(field, value, "tokens", tokens)
    return value.long()
