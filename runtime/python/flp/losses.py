"""Policy losses on top of the two values a row that flp computes: plain elementwise torch, differentiable, no host sync.

    loss, metrics = flp.losses.policy_loss("grpo", logprob, advantage, old_logprob=old, ref_logprob=ref, mask=mask,
                                           beta=0.04)
    loss.backward()                                            # on through flp.linear_logprob

Each rule is a term a token (or, for gspo, a sequence) of the log-ratio d = logprob − old_logprob and a way to average it;
both stand in RULES, so that a rule reads like its paper:

    reinforce   −A·logprob                                      mean of tokens        Williams 1992
    ppo         −min(eᵈ·A, clip(eᵈ, 1−low, 1+high)·A)           mean of tokens        arXiv:1707.06347, eq. 7
    grpo        the same                                        mean of sequences' means   arXiv:2402.03300, eq. 3
    dapo        the same, high above low                        mean of tokens        arXiv:2503.14476, eq. 8
    dr_grpo     the same                                        sum over sequences · length     arXiv:2503.20783
    cispo       −sg(clip(eᵈ, 1−low, 1+high))·A·logprob          mean of tokens        arXiv:2506.13585, eq. 4
    gspo        ppo's of s = exp(mean of d), a sequence         mean of sequences     arXiv:2507.18071, eq. 5

An average is a weight a token that depends on the mask alone (weights_of). flp.policy_loss is the same from hidden states
in one call. As there, numbers are float64 between float32 ones, and what a minimum leaves out has no gradient, however
large its ratio is. Tokens outside the mask take no part, whatever they hold, NaN included.
"""
from __future__ import annotations

from typing import Any, Callable, NamedTuple, Sequence

import torch
from torch import Tensor

from ._tensors import _check

__all__ = ["DIVERGENCES", "KL", "RULES", "divergence", "kl", "policy_loss"]

class Rule(NamedTuple):
    """A row of the table above: the term of a token, how terms are averaged, and the default of clip."""

    term: Callable[..., Any]
    average: str
    clip: tuple[float, float] | None


# ---- terms: (d, logprob, A, low, high) -> (loss, was it clipped) ----

def _plain(log_ratio, logprob, advantage, low, high):
    return -advantage * logprob, torch.zeros_like(logprob, dtype=torch.bool)


def _clipped(log_ratio, logprob, advantage, low, high):
    ratio = log_ratio.detach().exp()
    kept, bounded = ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage
    clipped = kept > bounded
    return torch.where(clipped, -bounded, -log_ratio.masked_fill(clipped, 0).exp() * advantage), clipped


def _weighted(log_ratio, logprob, advantage, low, high):
    ratio = log_ratio.detach().exp()
    weight = ratio.clamp(1 - low, 1 + high)
    return -weight * advantage * logprob, weight != ratio


# ---- averages: the weight of each token, (mask (B,T), length, total) -> (B,T) ----

def _of_tokens(mask, length, total):
    return mask / (mask.sum().clamp(min=1) if total is None else total)


def _of_sequences(mask, length, total):
    return mask / mask.sum(-1, keepdim=True).clamp(min=1) / (mask.shape[0] if total is None else total)


def _of_length(mask, length, total):
    divisor = (mask.shape[0] if total is None else total) * length
    if not isinstance(divisor, torch.Tensor):
        _check.number_of("length · " + ("sequences" if total is None else "total"), divisor)
    return mask / divisor


AVERAGES = {"tokens": _of_tokens, "sequences": _of_sequences, "length": _of_length}


def weights_of(average, mask, length=None, total=None):
    """The weights whose sum of weighted tokens is an average: "tokens", "sequences" or "length" of AVERAGES.

    mask (B,T) float32 zeros and ones; total: see policy_loss. Returns (B,T) float32, 0 outside the mask
    """
    return AVERAGES[average](mask, length, total)


def entropy_weights_of(average, mask, total=None):
    """Those of the entropy, whose average is of tokens whatever the rule's is; a part of a batch of sequences has its
    share. (B,T) float32"""
    if average == "tokens":
        return _of_tokens(mask, None, total)
    weights = _of_tokens(mask, None, None)
    return weights if total is None else weights * (mask.shape[0] / total)


def _mean(values, mask):
    """Over the tokens of the mask; 0 where there are none."""
    return (values * mask).sum() / mask.sum().clamp(min=1)


def _per_sequence(values, mask):
    """Means over the tokens of each sequence; 0 where there are none. (B,T), (B,T) -> (B)"""
    return (values * mask).sum(-1) / mask.sum(-1).clamp(min=1)


RULES: dict[str, Rule] = {
    "reinforce": Rule(_plain, "tokens", (0.0, 0.0)),
    "ppo": Rule(_clipped, "tokens", (0.2, 0.2)),
    "grpo": Rule(_clipped, "sequences", (0.2, 0.2)),
    "dapo": Rule(_clipped, "tokens", (0.2, 0.28)),
    "dr_grpo": Rule(_clipped, "length", (0.2, 0.2)),
    "cispo": Rule(_weighted, "tokens", (1.0, 4.0)),
    "gspo": Rule(_clipped, "sequences", (3e-4, 4e-4)),
}


# ---- Kullback-Leibler estimates of the policy against a reference, a token (Schulman, "Approximating KL divergence") ----

KL: dict[str, Callable[[Tensor], Tensor]] = {
    "k1": lambda d: d,                          # unbiased, of either sign
    "k2": lambda d: 0.5 * d * d,                # biased, small variance
    "k3": lambda d: torch.expm1(-d) + d,        # unbiased, never negative
}


def kl(logprob: Tensor, ref_logprob: Tensor, kind: str = "k3") -> Tensor:
    """Estimates KL(policy ‖ reference) a token from the log-probabilities of tokens that the policy chose.

    logprob, ref_logprob  (...) floating point, in nats
    kind                  "k1": d, "k2": d²/2, "k3": e^−d − 1 + d, for d = logprob − ref_logprob
    Returns (...) float32 in nats, differentiable in both. error: ValueError, TypeError naming the field
    source: Schulman, "Approximating KL divergence", 2020
    """
    one_of("kind", kind, KL)
    _check.float_tensor_of("logprob", logprob)
    _like("ref_logprob", ref_logprob, logprob)
    return KL[kind](logprob.float() - ref_logprob.float())


# ---- divergences over K tokens a row, and what is left as one more (flp.distill_loss): (log p, log q, p, q, mix) ----

def _gain(share, log_share, log_other):
    """share·(log_share − log_other); where the share is 0 that is 0 and has no gradient, whatever the others hold."""
    is_none = share == 0
    return share * (log_share.masked_fill(is_none, 0) - log_other.masked_fill(is_none, 0))


def _jsd(log_p, log_q, p, q, mix):
    m = mix * p + (1 - mix) * q
    log_m = torch.log(m.masked_fill(m == 0, 1))
    return mix * _gain(p, log_p, log_m) + (1 - mix) * _gain(q, log_q, log_m)


DIVERGENCES: dict[str, Callable[..., Tensor]] = {
    "forward_kl": lambda log_p, log_q, p, q, mix: _gain(p, log_p, log_q),   # arXiv:2306.13649
    "reverse_kl": lambda log_p, log_q, p, q, mix: _gain(q, log_q, log_p),   # arXiv:2306.08543
    "jsd": _jsd,                                                            # arXiv:2306.13649, eq. 1
}


def divergence(kind: str, logprob: Tensor, teacher_logprob: Tensor, *, counted: Tensor | None = None,
               rest_min: float = 1e-6, rest_weight: float = 1.0, mix: float = 0.5) -> Tensor:
    """Computes the divergence of each row between teacher and student over K tokens and the rest -> (...) float32, nats.

    kind             "forward_kl", "reverse_kl" or "jsd", as flp.distill_loss has them
    logprob          (..., K) floating point, in nats, of the student, such as flp.linear_logprob gives; differentiable
    teacher_logprob  (..., K) floating point, in nats, of the same ids, a constant
    counted          (..., K) bool: the ids that take part; None: all
    rest_min, rest_weight, mix
                     as the parameters of flp.distill_loss
    error: ValueError, TypeError naming the field
    """
    term = DIVERGENCES[one_of("kind", kind, DIVERGENCES)]
    rest_min, rest_weight, mix = (_check.number_of(field, value) for field, value in (
        ("rest_min", rest_min), ("rest_weight", rest_weight), ("mix", mix)))
    _check.float_tensor_of("logprob", logprob)
    _like("teacher_logprob", teacher_logprob, logprob)
    log_q, log_p = logprob.double(), teacher_logprob.detach().double()
    if counted is None:
        counted = torch.ones_like(log_q, dtype=torch.bool)
    _check.like("counted", counted, "logprob", logprob)
    log_q, log_p = (torch.where(counted, values, torch.full((), -1.0, dtype=values.dtype, device=values.device))
                    for values in (log_q, log_p))
    p, q = (values.exp().masked_fill(~counted, 0) for values in (log_p, log_q))
    rest_p, rest_q = ((1 - values.sum(-1)).clamp(min=rest_min) for values in (p, q))
    each = term(log_p, log_q, p, q, mix).sum(-1)
    return (each + rest_weight * term(rest_p.log(), rest_q.log(), rest_p, rest_q, mix)).float()


def policy_loss(rule: str, logprob: Tensor, advantage: Tensor, *, old_logprob: Tensor | None = None,
                ref_logprob: Tensor | None = None, entropy: Tensor | None = None, mask: Tensor | None = None,
                clip: Sequence[float] | None = None, beta: float = 0.0, kl_kind: str = "k3",
                entropy_weight: float = 0.0, length: float | None = None,
                total: float | Tensor | None = None) -> tuple[Tensor, dict[str, Tensor]]:
    """Computes the loss of a policy update from the log-probabilities of the tokens that were chosen.

    rule            a name of RULES: reinforce, ppo, grpo, dapo, dr_grpo, cispo, gspo
    logprob         (B, T) floating point, of the policy that is trained, in nats
    advantage       (B) one a sequence, or (B, T) one a token
    old_logprob     (B, T) of the policy that sampled; None: the present one, whose ratio is 1
    ref_logprob     (B, T) of the reference that beta pulls towards; needed if beta is not 0
    entropy         (B, T) in nats; needed if entropy_weight is not 0
    mask            (B, T) bool or numbers 0 and 1: the tokens that count; None: all
    clip            (low, high): ratios are held to [1 − low, 1 + high]; None: the rule's own
    beta            weight of the Kullback-Leibler estimate, averaged as the rule's term is; gspo: mean of sequences' means
    kl_kind         which estimate: "k1", "k2" or "k3", see kl
    entropy_weight  weight of the mean entropy of the tokens that count, which the loss rewards
    length          dr_grpo: the constant that sums are divided by, the greatest length of a completion
    total           a number or 0-dim tensor: what averages divide by in place of what this call holds, the tokens of the
                    whole batch (or, for rules that average over sequences, its sequences), so that the losses of
                    micro-batches add up to that of the batch (where sequences are averaged over, the entropy as the
                    mean over micro-batches of their means); None: this call is the whole batch

    Returns (loss, metrics): a float32 scalar, differentiable in logprob and entropy alone, and a dict of detached scalars on
    the same device: policy_loss, clip_fraction, ratio (mean), kl_old (k3 against old_logprob), kl (against ref_logprob,
    averaged as in the loss) and entropy (mean), where they are given. Never synchronises.
    error: ValueError, TypeError naming the field
    source: the table at the head of this file
    """
    term, average, own_clip = RULES[one_of("rule", rule, RULES)]
    low, high = bounds_of(own_clip if clip is None else clip)
    beta, entropy_weight = _check.number_of("beta", beta), _check.number_of("entropy_weight", entropy_weight)
    _needed(rule, length, total, beta, ref_logprob, entropy_weight, entropy)
    batch = _Batch(logprob, advantage, old_logprob, ref_logprob, entropy, mask)
    shares = weights_of(average, batch.mask, length, total)
    log_ratio, values, kept, weights = batch.log_ratio, batch.logprob, batch.mask, shares
    if rule == "gspo":
        log_ratio, values = (_per_sequence(x, kept)[:, None] for x in (log_ratio, values))
        kept = (kept.sum(-1, keepdim=True) > 0).double()   # a sequence without tokens has no ratio
        weights = weights_of(average, kept, length, total)
    terms, clipped = term(log_ratio, values, batch.advantage_of(rule), low, high)
    loss = policy = (terms * weights).sum()
    metrics = {"policy_loss": policy, "clip_fraction": _mean(clipped.float(), kept),
               "ratio": _mean(log_ratio.exp(), kept), "kl_old": _mean(KL["k3"](batch.log_ratio), batch.mask)}
    if batch.ref_logprob is not None:
        divergence = KL[one_of("kl_kind", kl_kind, KL)](batch.logprob - batch.ref_logprob)
        metrics["kl"] = (divergence * shares).sum()
        loss = loss + beta * metrics["kl"]
    if batch.entropy is not None:
        loss = loss - entropy_weight * (batch.entropy * entropy_weights_of(average, batch.mask, total)).sum()
        metrics["entropy"] = _mean(batch.entropy, batch.mask)
    return loss.float(), {name: value.detach().float() for name, value in metrics.items()}


# ---- checks ----

class _Batch:
    """The tensors of one call in float64, with zeros where the mask has them."""

    def __init__(self, logprob, advantage, old_logprob, ref_logprob, entropy, mask):
        _check.float_tensor_of("logprob", logprob)
        if logprob.dim() != 2:
            _check.refuse_shape("logprob", logprob, "(B, T)")
        self.mask = torch.ones_like(logprob, dtype=torch.float64) if mask is None else _mask_of(mask, logprob)
        self.logprob = self._kept("logprob", logprob, logprob)
        old = logprob.detach() if old_logprob is None else old_logprob
        self.log_ratio = self.logprob - self._kept("old_logprob", old, logprob).detach()
        self.ref_logprob = None if ref_logprob is None else self._kept("ref_logprob", ref_logprob, logprob).detach()
        self.entropy = None if entropy is None else self._kept("entropy", entropy, logprob)
        self.advantage = advantage_of(advantage, "logprob", logprob).double()

    def _kept(self, field, value, like):
        _like(field, value, like)
        return value.double().masked_fill(self.mask == 0, 0)

    def advantage_of(self, rule):
        """A for every term: (B, T) or (B, 1), zero where no token of the mask is; of gspo (B, 1)."""
        if self.advantage.shape[1] == 1:
            counts = (self.mask != 0).any(-1, keepdim=True)
            return self.advantage.masked_fill(~counts, 0.0)
        kept = self.advantage.masked_fill(self.mask == 0, 0)
        return _per_sequence(kept, self.mask)[:, None] if rule == "gspo" else kept


def one_of(field, value, accepted):
    if not isinstance(value, str) or value not in accepted:
        _check.refuse(ValueError, field, repr(value), ", ".join(accepted))
    return value


def _like(field, value, logprob):
    _check.float_tensor_of(field, value)
    _check.like(field, value, "logprob", logprob)


def _mask_of(mask, logprob):
    _check.like("mask", mask, "logprob", logprob)
    return mask.double()


def advantage_of(advantage, other, tensor):
    """Advantages of one a sequence or one a token of a tensor (B,T) that other names -> (B,1) or (B,T) float32"""
    _check.float_tensor_of("advantage", advantage)
    _check.same_device("advantage", advantage, other, tensor)
    if tuple(advantage.shape) not in ((tensor.shape[0],), (tensor.shape[0], 1), tuple(tensor.shape)):
        _check.refuse_shape("advantage", advantage, "(B) or (B, T) of %s's %s" % (other, tuple(tensor.shape)))
    advantage = advantage.detach().float()
    return advantage if advantage.dim() == 2 else advantage.unsqueeze(1)


def bounds_of(clip):
    try:
        low, high = clip
    except (TypeError, ValueError):
        _check.refuse(TypeError, "clip", repr(clip), "a pair (low, high)")
    low, high = _check.number_of("clip[0]", low), _check.number_of("clip[1]", high)
    if not 0 <= low <= 1:
        _check.refuse(ValueError, "clip[0]", low, "0 to 1")
    if high < 0:
        _check.refuse(ValueError, "clip[1]", high, "0 or more")
    return low, high


def _needed(rule, length, total, beta, ref_logprob, entropy_weight, entropy):
    check_totals(rule == "dr_grpo", length, total)
    if beta != 0 and ref_logprob is None:
        _check.refuse(ValueError, "ref_logprob", None, "a tensor, as beta is %g" % beta)
    if entropy_weight != 0 and entropy is None:
        _check.refuse(ValueError, "entropy", None, "a tensor, as entropy_weight is %g" % entropy_weight)


def check_totals(needs_length, length, total):
    """What averages divide by, as the caller gave it."""
    if needs_length and length is None:
        _check.refuse(ValueError, "length", None, "a number above 0, for dr_grpo")
    if length is not None and not _check.number_of("length", length) > 0:
        _check.refuse(ValueError, "length", length, "a number above 0")
    if isinstance(total, torch.Tensor):
        if total.dim() != 0:
            _check.refuse_shape("total", total, "a number above 0, or a 0-dim tensor")
    elif total is not None and not _check.number_of("total", total) > 0:
        _check.refuse(ValueError, "total", total, "a number above 0, or a 0-dim tensor")
