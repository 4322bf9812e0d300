"""The partials of all ranks as one record a row, by two all-reduces or by a gather.

A partial (N,4) has, in log2 units, m = max t, s = Σ 2^(t−m), q = Σ 2^(t−m)·(t−m), and the target's raw score; behind
these stand the raw scores of K targets, (N,4+K), where a row has several. About the maximum M of all ranks, δ = m − M:  s ← s·2^δ,  q ← (q + δ·s)·2^δ.
"""
import math

import torch

from .._eager._eager_torch import LOWEST

METHODS = ("sum", "gather")


def merged(method, group, partial, owned, entropy):
    """Partials to be combined in rank order: (R,N,4) of a gather, or (1,N,4) of sums; 4 + K columns as they come.

    owned    (N) or (N,K) bool, whether the target is on this rank
    entropy  whether the weighted sum is needed
    """
    if method == "gather":
        return group.gather(partial).contiguous()
    m, s, q = partial[:, :3].unbind(1)
    score = partial[:, 3] if owned.dim() == 1 else partial[:, 4:]
    # A maximum may lose a NaN; the sum, NaN as well then, does not.
    top = m.masked_fill(m.isnan(), LOWEST)
    group.maximum(top)
    shift = m.double() - top
    factor = torch.exp2(shift)
    parts = [s * factor, *score.masked_fill(~owned, 0).double().reshape(len(s), score.shape[1:].numel()).unbind(1)]
    count = len(parts)
    if entropy:
        parts.append((q + shift * s) * factor)
    sums = torch.stack(parts).float()
    group.total(sums)
    weighted = sums[count] if entropy else torch.zeros_like(top)
    scores = [sums[1]] if count == 2 else [torch.full_like(top, -math.inf), *sums[1:count]]
    return torch.stack([top, sums[0], weighted, *scores], 1).unsqueeze(0)


def nothing(n, targets, device):
    """The partial of a shard without a score; targets: K, or 0 for one."""
    out = torch.zeros((n, 4 + targets), dtype=torch.float32, device=device)
    out[:, 0], out[:, 3:] = LOWEST, -math.inf
    return out
