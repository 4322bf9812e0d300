"""torch alone, with the (N,V) scores in memory: what a trainer does without any library."""
import math

import torch

from ..cases import CROSS_ENTROPY, SMOOTHING, Z_LOSS
from .seam import Peer, Result


def logprob_of(scores, target, entropy, softcap=None):
    """log_softmax of scores (..., V) and gather -> log-probabilities (...) of the targets, and entropies or None, in the
    dtype of the scores."""
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    logp = torch.log_softmax(scores, dim=-1)
    logprob = logp.gather(-1, target[..., None])[..., 0]
    return logprob, -(logp.exp() * logp).sum(dim=-1) if entropy else None


def cross_entropy_of(scores, target):
    """The sum over rows of the loss of supervised fine-tuning."""
    loss = torch.nn.functional.cross_entropy(scores, target, label_smoothing=SMOOTHING, reduction="sum")
    return loss + Z_LOSS * torch.logsumexp(scores, dim=-1).float().square().sum()


def divergence_of(scores, teacher_scores, kind):
    """That of each row, of float32 scores (..., V)."""
    log_q, log_p = torch.log_softmax(scores, dim=-1), torch.log_softmax(teacher_scores, dim=-1)
    if kind == "forward_kl":
        return (log_p.exp() * (log_p - log_q)).sum(dim=-1)
    if kind == "reverse_kl":
        return (log_q.exp() * (log_q - log_p)).sum(dim=-1)
    log_m = torch.logaddexp(log_p, log_q) - math.log(2)
    return 0.5 * (log_p.exp() * (log_p - log_m) + log_q.exp() * (log_q - log_m)).sum(dim=-1)


class NaiveFp32(Peer):
    name = "torch-fp32"
    title = "log_softmax of materialised scores, cast to fp32"
    distribution = "torch"
    install = "pip install torch"
    needs_cuda = False
    entropy = bias = softcap = True
    cast = True
    lacks = None

    def load(self):
        return torch.__version__

    def supports(self, case, device):
        if not self.cast and case.dtype == "fp32":
            return "is torch-fp32 on fp32 operands"
        return super().supports(case, device)

    def run(self, hidden, weight, bias, target, case):
        return Result(*logprob_of(self.scores(hidden, weight, bias), target, case.entropy != "none", case.softcap))

    def scores(self, hidden, weight, bias):
        scores = torch.nn.functional.linear(hidden, weight, bias)
        return scores.float() if self.cast else scores

    def step(self, hidden, weight, bias, target, batch, case):
        if case.loss != CROSS_ENTROPY:
            return super().step(hidden, weight, bias, target, batch, case)
        return Result(loss=cross_entropy_of(self.scores(hidden, weight, bias), target) / case.n)


class Naive16(NaiveFp32):
    name = "torch-16bit"
    title = "log_softmax of materialised 16-bit scores"
    cast = False
