"""topk, rank and statistics: the best tokens of each row beside its log-probability, the place of its target among all,
and what its scores are as a whole.

Invariants: values without a gradient, of the forward pass that gives the log-probabilities too; their plan is a scoring
plan, whose bits are those of any other, so backward passes have the plan that they have without.
"""
from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from . import _check

MOST = 128  # FLP_TOPK_MAX
LN2 = math.log(2)
NO_ID = -1


class Top(NamedTuple):
    """The best tokens of each row, as topk=K gives them; what is not computed has ids -1 and zeros, a row whose
    log-probability is NaN ids -1 and NaN; behind the last token of a score above -inf stand -1 and -inf."""

    ids: Tensor       # (..., K) of target's dtype: falling probability, of equal ones always the same order
    logprobs: Tensor  # (..., K) float32 in nats, of these tokens
    rest: Tensor      # (...) float32: the probability of all others, 0 to 1


class Statistics(NamedTuple):
    """What the scores t of each row are as a whole, as statistics=True gives them; what is not computed has zeros, a
    bad row NaN."""

    lse: Tensor          # (...) float32 in nats: log Σ exp t
    mean_score: Tensor   # (...) float32 in nats: the mean of t over all tokens, or those that a row lists
    log_squares: Tensor  # (...) float32: log Σ p², the negative Rényi entropy of order 2
    is_best: Tensor      # (...) bool: no token has a higher score than the target, of several one of them


class Outputs:
    """Memory of what one forward pass over n rows gives: ids (n,K), logprobs (n,K), rest (n), rank (n), statistics
    (n,4); None for what is not asked for. is_part: of a vocab shard, whose logprobs are scores t in nats, without a
    rest, whose rank counts what is above target_score (n), of targets that other shards have, and whose statistics
    are flp_args.partial_statistics."""

    __slots__ = ("ids", "logprobs", "rest", "rank", "statistics", "is_part", "target_score")

    def __init__(self, target, settings, is_part=False):
        n, k, device = target.shape[0], settings.topk, target.device
        self.is_part, self.target_score = is_part, None
        self.ids = torch.empty((n, k), dtype=target.dtype, device=device) if k else None
        self.logprobs = torch.empty((n, k), dtype=torch.float32, device=device) if k else None
        self.rest = torch.empty(n, dtype=torch.float32, device=device) if k and not is_part else None
        self.rank = torch.empty(n, dtype=torch.int32, device=device) if settings.rank else None
        self.statistics = torch.empty((n, 4), dtype=torch.float32, device=device) if settings.statistics else None

    def fields(self):
        """flp_args fields of the forward pass."""
        return {"top_ids": self.ids, "top_logprob": self.logprobs, "top_rest": self.rest, "rank": self.rank,
                "target_score": self.target_score, ("partial_" * self.is_part) + "statistics": self.statistics}

    def tensors(self):
        """Those that there are, in order."""
        return tuple(values for values in (self.ids, self.logprobs, self.rest, self.rank, self.statistics)
                     if values is not None)

    def fill(self, rows, value):
        """What rows without tokens hold: logprobs and rest of this value."""
        for values, own in ((self.ids, NO_ID), (self.logprobs, value), (self.rest, value), (self.rank, NO_ID)):
            if values is not None:
                values[rows] = own
        if self.statistics is not None:
            self.statistics[rows] = self.statistics.new_tensor([value, value, value, 0])


def asked_of(target, settings):
    """Outputs of a forward pass over these rows, or None."""
    return Outputs(target, settings) if settings.gives_more else None


def settle(settings, topk, rank, statistics, vocab):
    """Puts these into the Settings of a call, checked. vocab: tokens that there are"""
    count = _check.integer_of("topk", 0 if topk is None else topk)
    if not 0 <= count <= min(MOST, vocab):
        _check.refuse(ValueError, "topk", topk, "0 to %d, and at most the %d tokens of the vocabulary" % (MOST, vocab))
    for field, value in (("rank", rank), ("statistics", statistics)):
        if not isinstance(value, bool):
            _check.refuse_type(field, value, "True or False")
    settings.topk, settings.rank, settings.statistics = count, rank, statistics


def is_asked(topk, rank, statistics):
    """Whether a call gives more than without; what is no number is for settle to refuse."""
    return not (topk is None or isinstance(topk, int) and topk == 0) or rank is not False or statistics is not False


def packed(tensors, settings, lead):
    """The tensors of Outputs as a call returns them -> (Top, rank, Statistics), of these what was asked for, in the
    shape of target"""
    shaped = [values.reshape(lead + values.shape[1:]) for values in tensors]
    top = [Top(*(shaped.pop(0) for _ in Top._fields))] if settings.topk else []
    rank = [shaped.pop(0)] if settings.rank else []
    statistics = [statistics_of(shaped.pop(0))] if settings.statistics else []
    return (*top, *rank, *statistics)


def statistics_of(values):
    """(..., 4) as Statistics"""
    *numbers, best = values.unbind(-1)
    return Statistics(*numbers, best == 1)


def metrics_of(tensors, settings, lead):
    """The tensors of Outputs as metrics of a loss -> {name: tensor of lead's shape, (..., K) of the best}"""
    names = (("top_ids", "top_logprobs", "top_rest") if settings.topk else ()) + (("rank",) if settings.rank else ())
    return {name: values.reshape(lead + values.shape[1:]) for name, values in zip(names, tensors)}


def above(counts, logprob):
    """The ranks of rows, whose counts of each shard are (R,N): −1 where a shard has none, or the logprob is NaN."""
    return counts.sum(0, dtype=torch.int32).masked_fill((counts < 0).any(0) | logprob.isnan(), NO_ID)


def statistics_merged(parts, stats):
    """Those of all shards -> (N,4). parts: (R,N,5), partial_statistics of each and its maximum in log2 units; stats
    (N,4)"""
    total, squares, columns, best, m = parts.double().unbind(-1)
    whole, log_s = stats.double()[:, 0], stats.double()[:, 1]
    shift = torch.where(squares == 0, torch.zeros_like(m), m - whole)
    squares, lse = (squares * torch.exp2(2 * shift)).sum(0), LN2 * (whole + log_s)
    is_best = ((best == 1) & (m >= whole)).any(0) & ~lse.isnan()
    found = torch.stack([lse, LN2 * total.sum(0) / columns.sum(0), LN2 * (torch.log2(squares) - 2 * log_s), is_best], 1)
    idle = (columns.sum(0) == 0) & ~lse.isnan()
    found[:, :3] = found[:, :3].masked_fill(lse.isnan()[:, None], math.nan).masked_fill(idle[:, None], 0)
    return found.float()


def without(top, rows, value):
    """Top without the tokens of some rows (a mask), whose logprobs and rest then have this value, or Statistics, whose
    numbers do; None stays."""
    if top is None:
        return None
    if isinstance(top, Statistics):
        return Statistics(*(each.masked_fill(rows, value) for each in top[:3]), top.is_best & ~rows)
    return Top(top.ids.masked_fill(rows[..., None], NO_ID), top.logprobs.masked_fill(rows[..., None], value),
               top.rest.masked_fill(rows, value))


def scores(logprobs, stats):
    """Log-probabilities (N,K) of whole rows as scores t in nats."""
    return (logprobs.double() + LN2 * stats[:, :2].double().sum(1, keepdim=True)).float()


def merged(parts, logprob, stats, k):
    """The best of all shards -> ids (N,K), logprobs (N,K), rest (N).

    parts    ids and scores t in nats (R,N,K) of each shard
    logprob  (N) of the targets: NaN where a row is no number; stats (N,4) of the merged rows
    """
    ids, t = (values.transpose(0, 1).flatten(1) for values in parts)
    # Of equal scores the lowest id first, whatever part of the vocabulary a rank has.
    ids, order = ids.sort(dim=1)
    t = t.gather(1, order).double().masked_fill(ids < 0, -math.inf)
    t, order = t.sort(dim=1, descending=True, stable=True)
    ids, t = ids.gather(1, order)[:, :k], t[:, :k]
    found = ids >= 0
    logprobs = ((t - LN2 * stats[:, :1].double()) - LN2 * stats[:, 1:2].double()).clamp_max(0)
    logprobs = logprobs.masked_fill(~found, -math.inf)
    rest = (1 - logprobs.exp().sum(1)).clamp(0, 1).masked_fill(~found[:, -1], 0)
    # A row without any token is one that was not computed, or a bad one: as its log-probability is.
    without = logprob.isnan() | ~found.any(1)
    ids = torch.where(without[:, None], torch.full_like(ids, NO_ID), ids)
    value = logprob.double()
    logprobs = torch.where(without[:, None], value[:, None], logprobs)
    return ids, logprobs.float(), torch.where(without, value, rest).float()
