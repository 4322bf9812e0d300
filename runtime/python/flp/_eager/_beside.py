"""A loss of tokens beside a divergence: its program runs where the scores of some rows are, between their values and
their gradient.

Shapes: (n) of some rows of (N); log-probabilities and entropies in nats, float64.
"""
import math

import torch

from .._tensors._operands import Loss, Step
from . import _eager_step


def evaluate(loss, out, wants_gradients):
    """Fills loss and metrics of a Step by torch operations -> the gradients of its logprob and entropy that follow, (n)
    each, or None."""
    rows = out.logprob
    counted, stats = torch.ones((len(rows), 1), dtype=torch.bool, device=rows.device), rows.new_zeros((len(rows), 4))
    found = _eager_step.evaluate(loss, out, stats, None, counted, None, None, wants_gradients)
    if found is None:
        return None, None
    return found[0], torch.zeros_like(found[0]) if found[1] is None else found[1]


class Beside:
    """loss: a Loss of N rows, which reads no values of all scores; target: (N) ids; wants_gradients: whether pulls are
    wanted; evaluate: as that above. step: what it found"""

    def __init__(self, loss, target, wants_gradients, evaluate):
        self.loss, self.target, self.wants_gradients = loss, target.long(), wants_gradients
        self.evaluate = evaluate
        self.step = step = Step()
        step.loss, step.logprob, step.entropy = (torch.zeros(len(target), device=target.device) for _ in range(3))
        step.metrics = step.loss.new_zeros((len(loss.program.metrics), len(target)))
        step.top = None

    def lose(self, bad):
        """Rows that no divergence is made of have no number here either."""
        for values in (self.step.loss, *self.step.metrics):
            values.masked_fill_(bad & (self.loss.weight != 0), math.nan)
        for values in (self.step.logprob, self.step.entropy):
            values.masked_fill_(bad, math.nan)

    def pulls(self, rows, logprob, entropy):
        """-> Pulls of these rows, ids or a slice; None unless gradients are wanted."""
        part, whole = Step(), self.step
        part.logprob, part.entropy = (values.float().contiguous() for values in (logprob, entropy))
        part.loss = torch.empty_like(part.logprob)
        part.metrics = part.loss.new_empty((len(whole.metrics), len(part.loss)))
        loss = Loss.of_tensors(self.loss.program, self.loss.parameters,
                               [None if values is None else values[rows] for values in self.loss.tensors()])
        of_logprob, of_entropy = self.evaluate(loss, part, self.wants_gradients)
        whole.loss[rows], whole.metrics[:, rows] = part.loss, part.metrics
        whole.logprob[rows], whole.entropy[rows] = part.logprob, part.entropy
        return None if of_logprob is None else Pulls(self.target[rows], of_logprob, of_entropy, entropy)


class Pulls:
    """Upstream gradients of some rows: of the logprob of target, and of the entropy. (n) each"""

    def __init__(self, target, of_logprob, of_entropy, entropy):
        self.target, self.of_logprob, self.of_entropy, self.entropy = target, of_logprob, of_entropy, entropy

    def idle(self):
        """Rows that have none."""
        return (self.of_logprob == 0) & (self.of_entropy == 0)

    def dz(self, log_q, q, first):
        """The gradient of scores over T of the columns from `first` on, float64."""
        of_entropy = self.of_entropy.unsqueeze(1) * (log_q.masked_fill(q == 0, 0) + self.entropy.unsqueeze(1))
        dz = -q * (self.of_logprob.unsqueeze(1) + of_entropy)
        place = self.target - first
        inside = (place >= 0) & (place < dz.shape[1])
        dz[inside, place[inside]] += self.of_logprob[inside].to(dz.dtype)
        return dz.masked_fill_(self.idle().unsqueeze(1), 0)
