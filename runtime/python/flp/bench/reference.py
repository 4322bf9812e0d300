"""The fp64 reference: logprob, entropy and gradients of some rows and columns, computed over chunks of the vocab.

z = h Wᵀ + b;  t = c·tanh(z/c) with a softcap c, else z;  logprob_i = t_{i,y_i} − lse_i;  entropy_i = lse_i − Σ_v p t
dt = g (1[v = y] − p) − g_H p (log p + entropy) + g_lse p + g_mean / V;  dz = dt (1 − (t/c)²);  dh = dz W;  dW = dzᵀ h

Invariants: the sample is of the seed, so every subject is judged on the same rows; all rows are computed where that is
affordable, for only then the gradient of the weight is known.
"""
from typing import NamedTuple, Optional

import torch

SAMPLE_ROWS = 256
SAMPLE_COLUMNS = 256
# fp64 work that is affordable: a third of a second on a data-centre GPU, some ten on others.
AFFORDABLE_FLOPS = 2e13
# Bounds one chunk of fp64 scores.
CHUNK_BYTES = 1 << 29


class Upstream(NamedTuple):
    """The gradients (N) that reach what each row has; None: none does."""

    logprob: torch.Tensor
    entropy: Optional[torch.Tensor] = None
    lse: Optional[torch.Tensor] = None  # beside that of logprob, which is a function of it
    mean: Optional[torch.Tensor] = None  # of the mean over the vocabulary of t


def sample_of(count, most, seed):
    """Sorted ids of at most so many out of count."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(count, generator=generator)[:most].sort()[0]


class Reference:
    """rows: ids of the sampled rows; logprob, entropy: of these; whole: whether dW is known."""

    def __init__(self, data, softcap, seed):
        self.data, self.softcap = data, softcap
        self._known = {}  # gradients by name and what is upstream
        n, depth = data.hidden.shape
        vocab = data.weight.shape[0]
        device = data.hidden.device
        self.rows = sample_of(n, SAMPLE_ROWS, seed).to(device)
        self.columns = sample_of(vocab, SAMPLE_COLUMNS, seed + 1).to(device)
        self.whole = 2.0 * n * depth * vocab <= AFFORDABLE_FLOPS
        chosen = torch.arange(n, device=device) if self.whole else self.rows
        lse, entropy, target_score, mean = self._statistics(chosen)
        at = self.rows if self.whole else slice(None)
        self.lse_all, self.entropy_all = (lse, entropy) if self.whole else (None, None)
        self.lse, self.entropy = lse[at], entropy[at]
        self.logprob = target_score[at] - self.lse
        self.logprob_all = target_score - lse if self.whole else None
        self.mean_loss = (lse - target_score).mean().item() if self.whole else None
        self.mean_all = mean if self.whole else None

    def of(self, case, batch):
        """What it knows of a case: the same of all."""
        return self

    def _scores(self, hidden, columns):
        """t and the factor dt/dz, of some rows (fp64) and a slice or ids of columns."""
        scores = hidden @ self.data.weight[columns].double().t()
        if self.data.bias is not None:
            scores += self.data.bias[columns].double()
        if self.softcap is None:
            return scores, None
        ratio = torch.tanh(scores / self.softcap)
        return ratio * self.softcap, 1 - ratio * ratio

    def _chunks(self, row_count):
        width = max(1, CHUNK_BYTES // (8 * max(row_count, self.data.weight.shape[1])))
        vocab = self.data.weight.shape[0]
        return [slice(start, min(start + width, vocab)) for start in range(0, vocab, width)]

    def _statistics(self, rows):
        """lse, entropy, target score and mean of t of some rows, online: maximum m, s = Σ e^{t−m}, w = Σ e^{t−m}(t−m)."""
        hidden = self.data.hidden[rows].double()
        target = self.data.target[rows]
        m = torch.full(rows.shape, -float("inf"), dtype=torch.float64, device=rows.device)
        s, w, target_score, total = (torch.zeros_like(m) for _ in range(4))
        for chunk in self._chunks(rows.numel()):
            t, _ = self._scores(hidden, chunk)
            inside = (target >= chunk.start) & (target < chunk.stop)
            local = (target - chunk.start).clamp(0, chunk.stop - chunk.start - 1)
            target_score = torch.where(inside, t.gather(1, local[:, None])[:, 0], target_score)
            total += t.sum(dim=1)
            top = torch.maximum(m, t.max(dim=1)[0])
            shift = torch.where(s > 0, m - top, torch.zeros_like(m))
            t -= top[:, None]
            e = t.exp()
            w = (w + s * shift) * shift.exp() + (e * t).sum(dim=1)
            s = s * shift.exp() + e.sum(dim=1)
            m = top
        return m + s.log(), s.log() - w / s, target_score, total / self.data.weight.shape[0]

    def cross_entropy(self, smoothing, z_loss):
        """The mean over all rows of that loss, or None where they are not known."""
        if not self.whole:
            return None
        lse = self.lse_all
        each = (smoothing - 1) * self.logprob_all + smoothing * (lse - self.mean_all) + z_loss * lse * lse
        return each.mean().item()

    def upstream_of_cross_entropy(self, smoothing, z_loss):
        """What its derivatives are; where not all rows are known, of the sampled ones."""
        lse, n = self.lse_all, self.data.hidden.shape[0]
        if lse is None:
            lse = torch.zeros(n, dtype=torch.float64, device=self.lse.device)
            lse[self.rows] = self.lse
        one = torch.ones_like(lse) / n
        return Upstream((smoothing - 1) * one, None, (smoothing + 2 * z_loss * lse) * one, -smoothing * one)

    def _grad_scores(self, t, factor, chosen, lse, entropy, is_target):
        """dz of some rows and columns. chosen: Upstream of these rows"""
        logp = t - lse[:, None]
        p = logp.exp()
        grad = chosen.logprob.double()[:, None] * (is_target - p)
        if chosen.entropy is not None:
            grad -= chosen.entropy.double()[:, None] * p * (logp + entropy[:, None])
        if chosen.lse is not None:
            grad += chosen.lse.double()[:, None] * p
        if chosen.mean is not None:
            grad += chosen.mean.double()[:, None] / self.data.weight.shape[0]
        return grad if factor is None else grad * factor

    def gradient(self, which, key, upstream):
        """grad_hidden or grad_weight, computed once for each key, which names the upstream gradients."""
        if (which, key) not in self._known:
            self._known[which, key] = (self.grad_hidden if which == "hidden" else self.grad_weight)(upstream)
        return self._known[which, key]

    def grad_hidden(self, upstream):
        """dh (rows, D)."""
        chosen = Upstream(*(None if grad is None else grad[self.rows] for grad in upstream))
        hidden, target = self.data.hidden[self.rows].double(), self.data.target[self.rows]
        out = torch.zeros_like(hidden)
        for chunk in self._chunks(self.rows.numel()):
            t, factor = self._scores(hidden, chunk)
            ids = torch.arange(chunk.start, chunk.stop, device=target.device)
            grad = self._grad_scores(t, factor, chosen, self.lse, self.entropy, (ids == target[:, None]).double())
            out += grad @ self.data.weight[chunk].double()
        return out

    def grad_weight(self, upstream):
        """dW (columns, D), or None where it is not affordable."""
        if not self.whole:
            return None
        hidden = self.data.hidden.double()
        t, factor = self._scores(hidden, self.columns)
        is_target = (self.columns == self.data.target[:, None]).double()
        return self._grad_scores(t, factor, upstream, self.lse_all, self.entropy_all, is_target).t() @ hidden


def largest_error(value, expected):
    """max |value − expected|; NaN anywhere gives NaN."""
    return (value.double() - expected).abs().max().item()


def relative_error(value, expected):
    """max |value − expected| / max |expected|."""
    return largest_error(value, expected) / expected.abs().max().item()
