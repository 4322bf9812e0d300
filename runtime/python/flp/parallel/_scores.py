"""Values of all scores of a row, lse and the mean of scores, and a backward pass that knows their derivatives.

Invariant: no kernel but those of logprob and the entropy H runs. With g, c, n the derivatives by logprob, lse and mean

    dz_v = (g·([v = y] − p_v) + c·p_v + n/V)·∂t/∂x

A derivative e by H adds −e·p_v·(log p_v + H): with a little e, and as H a number so large that e·H is −c, that is c·p_v.
The last term is that of lse at a temperature so high that every p_v is 1/V, where the mean of the scores comes from
too: a second pass over the head, forward and backward.
"""
import copy

import torch

from .._eager._eager_torch import LN2
from .._passes import _run

HOT = 2.0**40  # times a row's temperature: its scores are so small that every 2^t is 1
FAR = 2.0**30  # as H so far from any log p that these do not count


def values(call, ops, stats):
    """-> lse (N), or it and the mean (N), as call.scores says; stats for backward"""
    lse = (LN2 * (stats[:, 0].double() + stats[:, 1])).float()
    stats = _far(stats)
    if call.scores == 1:
        return (lse,), stats
    hot, (own, settings) = copy.copy(call), _heated(ops, call.settings)
    hot.settings, own.target = settings, call.known(ops.target)
    partials = hot.merged(hot.partial(own, 0)[0], own.target)
    m, s, q = partials[..., :3].double().unbind(-1)
    s, mean = s.sum(0), (m * s + q).sum(0) / s.sum(0) * (LN2 * HOT)
    columns = settings.total if ops.list_offsets is None else ops.list_offsets.diff()
    mean = mean.masked_fill(s * (1 + 2.0**-22) < columns, -torch.inf).float()  # a score of -inf adds no 1
    return (lse, mean), torch.cat([stats, _far(hot.combine(partials, own.target, own)[2])], 1)


def _far(stats):
    return torch.cat([stats[:, :3], torch.full_like(stats[:, 3:], -FAR)], 1)


def _heated(ops, settings):
    """The operands and Settings of the same rows at HOT times their temperatures."""
    own, settings = copy.copy(ops), copy.copy(settings)
    settings.temperature, settings.save = settings.temperature * HOT, False
    if ops.temperature_rows is not None:
        own.temperature_rows = ops.temperature_rows * HOT
    return own, settings


def backward(ops, settings, grads, stats, g, c, n=None, *, kept):
    """_run.backward with the derivatives (N) by logprob, lse and, where stats (N,8) know it, the mean"""
    if stats.shape[1] == 4:
        return _run.backward(ops, settings, grads, stats, g, c / FAR, kept)
    wide = copy.copy(settings)
    wide.wide_grads = grads
    made = _run.backward(ops, wide, grads, stats[:, :4], g, c / FAR, kept), \
        _run.backward(*_heated(ops, wide), grads, stats[:, 4:], None, n * (HOT / FAR))
    return tuple(None if one is None else one + other for one, other in zip(*made))
