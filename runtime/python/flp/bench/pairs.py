"""A teacher beside a head, for divergences of the two (--op diverge): its tensors, and what they give in fp64.

    x = h Wᵀ, y = h' W'ᵀ;  q = softmax x, p = softmax y;  value_i = D(p_i, q_i);  loss = mean of all rows
    dh = dx W, dW = dxᵀ h, dx by autograd of the formula of flp.losses.DIVERGENCES over all columns
    beside a policy's loss, whose derivatives by logprobs are u: loss += BETA·mean, dx = BETA·dx + u·([v = y] - q)

Invariant: y − x deviates by SPREAD nats, whatever the rows are: the teacher's head is the student's, and what it has
more of columns, or its hidden states have of noise, makes the difference.
"""
import math
from typing import NamedTuple, Optional

import torch

import flp

from . import cases, limits, reference

SPREAD = 0.05  # nats
# Bounds one matrix of a chunk of rows in fp64, of which autograd keeps a dozen.
CHUNK_BYTES = 1 << 28
COLUMNS = 1 << 14  # of a weight that is widened at a time


class Teacher(NamedTuple):
    """hidden (N,E) and weight (V,E); payload: what flp.divergence_payload gives of them, or None."""

    hidden: torch.Tensor
    weight: torch.Tensor
    payload: Optional[object] = None


def noise(shape, sigma, like, seed):
    generator = torch.Generator(device=like.device).manual_seed(seed)
    return torch.randn(shape, device=like.device, generator=generator).mul_(sigma).to(like.dtype)


def head_of(weight, options):
    """The teacher's weight (V,E); the student's itself, where both have one."""
    more = options.teacher_hidden - options.hidden
    if options.one_head:
        return weight
    return torch.cat([weight, noise((len(weight), more), SPREAD / math.sqrt(max(1, more)), weight, options.seed)], 1)


def teacher_of(data, weight, options):
    """The Teacher of a Data with this weight."""
    hidden, more = data.hidden, options.teacher_hidden - options.hidden
    if more:
        hidden = torch.cat([hidden, noise((len(hidden), more), 1.0, hidden, options.seed + 1)], 1)
    else:
        length = data.weight[:COLUMNS].float().norm(dim=1).mean().item()
        hidden = hidden + noise(hidden.shape, SPREAD / length, hidden, options.seed + 1)
    if not options.payload:
        return Teacher(hidden, weight)
    limits.announce("flp")
    return Teacher(hidden, weight, flp.divergence_payload(hidden, weight, data.weight))


class Known(NamedTuple):
    """Of one kind: value of the sampled rows, gradients of the mean at these and at the sampled columns, None where not
    all rows are computed, as is mean_loss then; mean: of the rows that are."""

    rows: torch.Tensor
    columns: torch.Tensor
    divergence: torch.Tensor
    mean: float
    mean_loss: Optional[float]
    grad_hidden: torch.Tensor
    grad_weight: Optional[torch.Tensor]

    def gradient(self, which, key, upstream):
        return getattr(self, "grad_" + which)


class Reference:
    """rows, columns: ids of the sampled ones; whole: whether all rows are computed; entropy: of the student, of those
    that are."""

    entropy_all = entropy = logprob_all = None

    def __init__(self, data, seed):
        self.data, self._known = data, {}
        (n, depth), vocab, device = data.hidden.shape, len(data.weight), data.hidden.device
        self.rows = reference.sample_of(n, reference.SAMPLE_ROWS, seed).to(device)
        self.columns = reference.sample_of(vocab, reference.SAMPLE_COLUMNS, seed + 1).to(device)
        self.whole = 2.0 * n * max(depth, data.teacher.hidden.shape[1]) * vocab <= reference.AFFORDABLE_FLOPS

    def of(self, case, batch=None):
        """batch: data.Batch of a case beside a policy's loss"""
        if case.loss not in self._known:
            self._known[case.loss] = self._compute(flp.losses.DIVERGENCES[case.loss], batch)
        return self._known[case.loss]

    def _compute(self, kind, batch):
        data, found = self.data, []
        n, vocab = len(data.hidden), len(data.weight)
        grad_hidden = torch.zeros((len(self.rows), data.hidden.shape[1]), dtype=torch.float64, device=self.rows.device)
        grad_weight = grad_hidden.new_zeros((len(self.columns), data.hidden.shape[1]))
        chosen = torch.arange(n, device=self.rows.device) if self.whole else self.rows
        for part in chosen.split(max(1, CHUNK_BYTES // (8 * vocab))):
            value, log_q, dx = rows_of(kind, data.hidden[part], data.weight, data.teacher.hidden[part],
                                       data.teacher.weight)
            q, own = log_q.exp(), data.target[part].unsqueeze(1)
            found.append((value, -(q * log_q).sum(-1), log_q.gather(1, own)[:, 0]))
            if batch:
                u = n * batch.upstream.logprob[part].double().unsqueeze(1)
                dx = (cases.BETA * dx - u * q).scatter_add_(1, own, u)
            sampled = torch.isin(part, self.rows)
            at = torch.searchsorted(self.rows, part[sampled])
            for columns in slices(vocab):
                grad_hidden[at] += dx[sampled, columns] @ data.weight[columns].double() / n
            grad_weight += dx[:, self.columns].t() @ data.hidden[part].double() / n
        value, self.entropy, logprob = map(torch.cat, zip(*found))
        mean = loss = value.mean().item()
        if batch and self.whole:
            loss = cases.BETA * mean + batch.loss_of(logprob).item()
        return Known(self.rows, self.columns, value[self.rows] if self.whole else value, mean,
                     loss if self.whole else None, grad_hidden, grad_weight if self.whole else None)


def slices(vocab):
    return [slice(first, first + COLUMNS) for first in range(0, vocab, COLUMNS)]


def scores_of(hidden, weight):
    hidden, out = hidden.double(), torch.empty((len(hidden), len(weight)), dtype=torch.float64, device=hidden.device)
    for columns in slices(len(weight)):
        out[:, columns] = hidden @ weight[columns].double().t()
    return out


def rows_of(kind, hidden, weight, teacher_hidden, teacher_weight):
    """Divergence (n), the student's log-probabilities, and the divergence's derivative by its scores, (n,V) each."""
    scores = scores_of(hidden, weight).requires_grad_()
    log_p = torch.log_softmax(scores_of(teacher_hidden, teacher_weight), -1)
    with torch.enable_grad():
        log_q = torch.log_softmax(scores, -1)
        q = log_q.exp()
        value = kind.of(flp.losses.Outcomes(log_p, log_q, log_p.exp(), q, lambda each: each.sum(-1)), **kind.options)
        dx, = torch.autograd.grad(value.sum(), scores)
    return value.detach(), log_q.detach(), dx
