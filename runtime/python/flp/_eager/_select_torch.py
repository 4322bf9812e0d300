"""The torch form of flp_select: what device scores run where no kernel does, a bounded block of rows at a time.

Numbers are float32, or float64 where the scores are. stats (N,3): largest score, log2 Σ exp(t − t_max), entropy. The kernels
keep the first two in other units, and theirs may be given to the backward pass, which takes the entropy alone.
"""
import math

import torch

from . import _eager_torch

BLOCK_BYTES = 64 << 20  # of widened scores


def blocks(rows, width, element_bytes):
    """Ranges of rows whose widened scores stay within BLOCK_BYTES."""
    step = max(1, BLOCK_BYTES // (width * element_bytes))
    return [slice(first, min(first + step, rows)) for first in range(0, rows, step)]


def _spread(u, p):
    """Σ p·u of each row, where p·u of u = −inf is 0."""
    return torch.where(p > 0, p * u, torch.zeros((), dtype=p.dtype, device=p.device)).sum(-1)


def forward(plan, scores, target, settings, logprob, entropy, stats):
    """Fills logprob (N,K), entropy (N,1) or None, stats (N,3)."""
    vocab = scores.shape[1]
    wanted = target != settings.ignore_index
    bad = wanted & ((target < 0) | (target >= vocab))
    count = bad.sum()
    ids = torch.where(bad | ~wanted, torch.zeros_like(target), target).long()
    for part in blocks(scores.shape[0], vocab, stats.element_size()):
        t = scores[part].to(stats.dtype) / settings.temperature
        top = t.max(-1, keepdim=True).values
        u = t - top
        e = u.exp()
        total = e.sum(-1, keepdim=True)
        log_total = total.log()
        spread = (log_total.squeeze(-1) - _spread(u, e) / total.squeeze(-1)).clamp_min(0)
        idle = ~wanted[part].any(-1)
        if stats.dtype is torch.float32:
            is_nan = t.isnan()
            largest = t.masked_fill(is_nan, -math.inf).amax(-1)  # as kernels have it: NaN left out
            reference = largest * math.log2(math.e)
            beyond = _eager_torch.is_beyond(reference, is_nan.any(-1))
            count = count + (beyond & ~idle & (largest < math.inf)).sum()
            log_total = log_total.masked_fill(beyond.unsqueeze(-1), math.nan)
            spread = spread.masked_fill(beyond, math.nan)
        values = (u.gather(-1, ids[part]) - log_total).clamp_max(0)
        logprob[part] = values.masked_fill(bad[part], math.nan).masked_fill(~wanted[part], 0)
        record = torch.stack([top.squeeze(-1), log_total.squeeze(-1) / math.log(2), spread], -1)
        stats[part] = record.masked_fill(idle.unsqueeze(-1), 0)
        if entropy is not None:
            entropy[part] = stats[part, 2:]
    _eager_torch.count_bad(plan, count)


def backward(scores, target, settings, logprob, stats, grads, out):
    """Writes the gradient of the scores (N,V) into out, which may be the scores. grads: (N,K) or None, (N,1) or None."""
    vocab = scores.shape[1]
    pulled = torch.zeros_like(logprob) if grads[0] is None else grads[0]
    pulled = torch.where(target == settings.ignore_index, torch.zeros_like(pulled), pulled)
    pulled = torch.where((pulled != 0) & logprob.isnan(), torch.full_like(pulled, math.nan), pulled)
    ids = target.clamp(0, vocab - 1).long()
    inside = (target >= 0) & (target < vocab) & (target != settings.ignore_index)
    upstream = torch.zeros_like(stats[:, :1]) if grads[1] is None else grads[1]
    idle = (pulled == 0).all(-1, keepdim=True) & (upstream == 0)
    idle = idle | (target == settings.ignore_index).all(-1, keepdim=True)
    for part in blocks(scores.shape[0], vocab, stats.element_size()):
        w = torch.log_softmax(scores[part].to(stats.dtype) / settings.temperature, -1)
        p = w.exp()
        dz = -pulled[part].sum(-1, keepdim=True) * p
        spread = torch.where(p > 0, p * (w + stats[part, 2:]), torch.zeros_like(p))
        dz -= torch.where(upstream[part] == 0, torch.zeros_like(spread), upstream[part] * spread)
        dz.scatter_add_(-1, ids[part], torch.where(inside[part], pulled[part], torch.zeros_like(pulled[part])))
        dz = torch.where(idle[part], torch.zeros_like(dz), dz / settings.temperature)
        out[part] = dz.to(out.dtype)
