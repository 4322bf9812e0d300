"""The torch form of flp_diverge: what device scores run where no kernel does, a bounded block of rows at a time.

    q = softmax a·x, p = softmax b·y, D = f(log p, log q);  dx_v = a·u·(G_v − q_v·Σ G / Σ q),  G = ∂D/∂log q

all in float64.
"""
import math

import torch

from . import _eager_divergence
from ._eager_torch import LN2, LOWEST
from ._select_torch import blocks

NUMBERS = 8 * 8  # bytes of a score: float64 numbers that a block holds of each


def run(plan, of, scores, units, values=None, upstream=None, dx=None):
    """Fills values (n, 6) or dx (n, V), whichever is not None. of: of a Kind; scores: of student and teacher, (n, V);
    units (n): what they are multiplied by; upstream (n): of D"""
    for part in blocks(len(units[0]), scores[0].shape[1], NUMBERS):
        rows = [each[part].double() * unit[part].double().unsqueeze(1) for each, unit in zip(scores, units)]
        (teacher, student), bests = _logs(plan, rows, values is not None)
        if values is not None:
            values[part] = _values(of, *teacher, *student, bests).float()
        if dx is not None:
            pull = upstream[part].double().unsqueeze(1)
            slope = _slope(of, teacher[0], student[0]) * units[0][part].double().unsqueeze(1) * pull
            dx[part] = slope.masked_fill_(pull == 0, 0).to(dx.dtype)


def _logs(plan, rows, counts):
    """-> (log-probabilities, log-sum-exp) of teacher and student, and the best columns of both."""
    ends = []
    for t in rows[::-1]:
        top, best = t.masked_fill(t.isnan(), -math.inf).max(1)
        reference = top.clamp(min=LOWEST * LN2)
        total = torch.exp(t - reference.unsqueeze(1)).sum(1)
        ends.append((reference + total.log(), top, best))
    alive = _eager_divergence._alive(plan, ends, counts)
    return [(t - lse.unsqueeze(1), lse) for t, lse in zip(rows[::-1], alive)], [best for _, _, best in ends]


def _total(each):
    return each.sum(-1)


def _values(of, log_p, teacher_lse, log_q, lse, bests):
    p, q = log_p.exp(), log_q.exp()
    entropy = -(q * log_q.masked_fill(q == 0, 0)).sum(1)
    agrees = (bests[0] == bests[1]) & ~torch.isnan(lse + teacher_lse)
    return torch.stack([of(log_p, log_q, p, q, _total), lse, teacher_lse, entropy, torch.minimum(p, q).sum(1),
                        agrees.double()], 1)


def _slope(of, log_p, log_q):
    """∂D/∂(a·x)"""
    slope, q = _eager_divergence.slope_of(of, log_p, log_q, _total)
    return slope - q * (slope.sum(1, keepdim=True) / q.sum(1, keepdim=True))
