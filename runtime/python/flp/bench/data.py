"""The tensors that every subject computes on, of a seed: random, or rows as sharp as a trained model's."""
import math
from typing import NamedTuple, Optional

import torch

import flp

from . import cases, limits, pairs, sharp
from .reference import Upstream

TORCH_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
# Tokens of a sequence at most, of those that losses are averaged over.
SEQUENCE = 1024
OURS = "flp"  # what a watcher is told while rows are made
# Normal draws at once: bounds the fp32 copy that is rounded to the dtype.
DRAW_ELEMENTS = 1 << 26


def normal(shape, sigma, dtype, device, generator):
    """A tensor of normal numbers of the given spread, drawn in fp32 and rounded."""
    out = torch.empty(shape, dtype=dtype, device=device)
    flat = out.view(-1)
    for start in range(0, flat.numel(), DRAW_ELEMENTS):
        part = flat[start:start + DRAW_ELEMENTS]
        part.copy_(torch.randn(part.shape, device=device, generator=generator).mul_(sigma))
    return out


class Head:
    """weight (V,D) and bias (V) or None; of sharp rows also hidden states (N,D) and targets (N), by N; teacher: a
    teacher's weight, or None."""

    def __init__(self, options, device):
        self._make(options, device)
        self.teacher = pairs.head_of(self.weight, options) if options.op == cases.DIVERGE else None

    def _make(self, options, device):
        self.made = {}
        for n in options.rows if options.data != sharp.RANDOM else ():
            limits.announce(OURS)
            self.made[n] = sharp.make(options, n, device)
            self.weight, self.bias = self.made[n].pop("weight"), self.made[n].pop("bias", None)  # the same for every n
        if self.made:
            return
        # Scores of standard deviation 1.5: neither flat nor saturated.
        generator = torch.Generator(device=device).manual_seed(options.seed)
        dtype = TORCH_DTYPES[options.dtype]
        self.weight = normal((options.vocab, options.hidden), 1.5 / math.sqrt(options.hidden), dtype, device, generator)
        self.bias = normal((options.vocab,), 0.5, dtype, device, generator) if options.bias else None


class Data:
    """A head with n rows: hidden (N,D), target (N) int64, and upstream gradients (N) float32; teacher: a
    pairs.Teacher, or None."""

    def __init__(self, options, head, n, device):
        generator = torch.Generator(device=device).manual_seed(options.seed + 1 + n)
        self.weight, self.bias = head.weight, head.bias
        if head.made:
            self.hidden, self.target = head.made[n]["hidden"], head.made[n]["target"]
        else:
            self.hidden = normal((n, options.hidden), 1.0, head.weight.dtype, device, generator)
            self.target = torch.randint(options.vocab, (n,), device=device, generator=generator)
        self.grad_logprob = torch.randn(n, device=device, generator=generator)
        self.grad_entropy = torch.randn(n, device=device, generator=generator)
        self.generator = generator
        self.teacher = None if head.teacher is None else pairs.teacher_of(self, head.teacher, options)

    def others(self, case, weight):
        """What a call of the case takes beside hidden and weight, a leaf of this head's."""
        if case.op == cases.DIVERGE:
            teacher = self.teacher._replace(weight=weight) if case.one_head else self.teacher
            return (teacher, self.target) if case.policy else (teacher,)
        return self.bias, self.target

    def batch(self, case, known):
        """What the loss of a case reads, with old and reference policies near the present one.

        known  Reference; where it has no logprob of all rows, ours are taken
        """
        n, tokens, exact = case.n, math.gcd(case.n, SEQUENCE), known.logprob_all
        if case.loss == cases.CROSS_ENTROPY:
            upstream = known.upstream_of_cross_entropy(cases.SMOOTHING, cases.Z_LOSS)
            return Batch(case, tokens, None, None, None, upstream)
        if exact is None:
            exact = flp.linear_logprob(self.hidden, self.weight, self.target, self.bias, softcap=case.softcap)

        def near(distance):
            noise = torch.randn(n, device=self.hidden.device, generator=self.generator)
            return (exact + distance * noise).float().view(-1, tokens)

        advantage = torch.randn(n // tokens, device=self.hidden.device, generator=self.generator)
        batch = Batch(case, tokens, advantage, near(0.1), near(0.3) if case.kl_kind else None, None)
        logprob = exact.float().requires_grad_()
        return batch._replace(upstream=Upstream(*torch.autograd.grad(batch.loss_of(logprob), logprob)))

    def upstream(self, case, any_upstream):
        """The gradients of logprob and entropy that reach each row; a mean of losses sends -1/N to each logprob."""
        if case.op == cases.DIVERGE:  # of a mean over the rows, in the order of seam.Result
            return None, None, None, torch.full_like(self.grad_logprob, 1.0 / case.n)
        if not any_upstream:
            return Upstream(torch.full_like(self.grad_logprob, -1.0 / case.n))
        return Upstream(self.grad_logprob, self.grad_entropy if case.entropy == "backward" else None)


class Batch(NamedTuple):
    """What a loss reads of B sequences of T tokens: advantage (B), old and ref (B,T) or None; cross entropy reads none of
    them; and upstream, its derivatives."""

    case: object
    tokens: int
    advantage: Optional[torch.Tensor]
    old: Optional[torch.Tensor]
    ref: Optional[torch.Tensor]
    upstream: Optional[Upstream]

    def loss_of(self, logprob):
        """The loss by plain torch operations on logprobs (N)."""
        if self.case.rule == "nll":
            return -logprob.float().mean()
        loss, _ = flp.losses.policy_loss(self.case.rule, logprob.view(-1, self.tokens), self.advantage, **self.options())
        return loss

    def exact_loss(self, known):
        """The loss that a Reference knows, or None."""
        if self.case.loss == cases.CROSS_ENTROPY:
            return known.cross_entropy(cases.SMOOTHING, cases.Z_LOSS)
        return None if known.logprob_all is None else self.loss_of(known.logprob_all).item()

    def options(self):
        """Keywords that flp.losses.policy_loss and flp.policy_loss take."""
        chosen = {"old_logprob": self.old, "length": self.tokens}
        if self.case.kl_kind:
            chosen.update(ref_logprob=self.ref, kl_kind=self.case.kl_kind, beta=cases.BETA)
        return chosen
