"""Policy losses on top of the two values a row that flp computes: plain elementwise torch, differentiable, no host sync.

    loss, metrics = flp.losses.policy_loss("grpo", logprob, advantage, old_logprob=old, ref_logprob=ref, mask=mask,
                                           beta=0.04)
    loss.backward()                                            # on through flp.linear_logprob

Each rule is a term a token (or, for gspo, a sequence) of the log-ratio d = logprob − old_logprob and a way to average it;
both stand in RULES (_library/_rules.py), so that a rule reads like its paper:

    reinforce   −A·logprob                                      mean of tokens        Williams 1992
    ppo         −min(eᵈ·A, clip(eᵈ, 1−low, 1+high)·A)           mean of tokens        arXiv:1707.06347, eq. 7
    grpo        the same                                        mean of sequences' means   arXiv:2402.03300, eq. 3
    dapo        the same, high above low                        mean of tokens        arXiv:2503.14476, eq. 8
    dr_grpo     the same                                        sum over sequences · length     arXiv:2503.20783
    cispo       −sg(clip(eᵈ, 1−low, 1+high))·A·logprob          mean of tokens        arXiv:2506.13585, eq. 4
    gspo        ppo's of s = exp(mean of d), a sequence         mean of sequences     arXiv:2507.18071, eq. 5

flp.policy_loss is the same from hidden states in one call. As there, numbers are float64 between float32 ones, and what
a minimum leaves out has no gradient, however large its ratio is. Tokens outside the mask take no part, whatever they
hold, NaN included.
"""
from __future__ import annotations

import collections
import functools
from typing import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ._library import _divergences, _rules
from ._tensors import _check

__all__ = ["DIVERGENCES", "KL", "PREFERENCES", "RULES", "divergence", "kl", "policy_loss", "preference_loss"]

TORCH = _rules.Arrays(torch.exp, torch.expm1, torch.where,
                      lambda values, mask, number: values.masked_fill(mask, number),
                      lambda values: values.detach(), lambda values: values.double())
Rule = _rules.Rule
RULES: dict[str, Rule] = {name: rule._replace(term=functools.partial(rule.term, TORCH))
                          for name, rule in _rules.RULES.items()}
KL: dict[str, Callable[[Tensor], Tensor]] = {name: functools.partial(of, TORCH) for name, of in _rules.KL.items()}


def kl(logprob: Tensor, ref_logprob: Tensor, kind: str = "k3") -> Tensor:
    """Estimates KL(policy ‖ reference) a token from the log-probabilities of tokens that the policy chose.

    logprob, ref_logprob  (...) floating point, in nats
    kind                  "k1": d, "k2": d²/2, "k3": e^−d − 1 + d, for d = logprob − ref_logprob
    Returns (...) float32 in nats, differentiable in both. error: ValueError, TypeError naming the field
    source: Schulman, "Approximating KL divergence", 2020
    """
    _rules.one_of("kind", kind, KL)
    _check.float_tensor_of("logprob", logprob)
    _like("ref_logprob", ref_logprob, logprob)
    return KL[kind](logprob.float() - ref_logprob.float())


# ---- divergences over K tokens a row, and what is left as one more (flp.distill_loss) ----

# Of the outcomes, on the last axis: log p, log q, p, q; and total, which makes their sum.
Outcomes = collections.namedtuple("Outcomes", "log_p log_q p q total")


def _kl(of, share, log_share, log_other):
    """Σ share·(log_share − log_other); where the share is 0 that is 0 and has no gradient, whatever the others hold."""
    is_none = share == 0
    return of.total(share * (log_share.masked_fill(is_none, 0) - log_other.masked_fill(is_none, 0)))


def _log_mixture(of, share_of_p):
    m = share_of_p * of.p + (1 - share_of_p) * of.q
    return torch.log(m.masked_fill(m == 0, 1))


def _forward_kl(of):
    return _kl(of, of.p, of.log_p, of.log_q)


def _jsd(of, mix):
    log_m = _log_mixture(of, mix)
    return mix * _kl(of, of.p, of.log_p, log_m) + (1 - mix) * _kl(of, of.q, of.log_q, log_m)


def _total_variation(of):
    return 0.5 * of.total((of.p - of.q).abs())


def _acceptance(of):
    return of.total(torch.minimum(of.p, of.q))


def _neg_log_acceptance(of, acceptance_min):
    rate = _acceptance(of)
    return -rate.masked_fill(rate < acceptance_min, acceptance_min).log()


def _lk(of, decay):
    blend = torch.exp(-decay * _acceptance(of)).detach()
    return blend * _forward_kl(of) + (1 - blend) * _total_variation(of)


# By kind: of outcomes and options, and which options, with their defaults.
Divergence = collections.namedtuple("Divergence", "of options")
DIVERGENCES: dict[str, Divergence] = {kind: Divergence(of, _divergences.OPTIONS[kind]) for kind, of in {
    "forward_kl": _forward_kl,                                                              # arXiv:2306.13649
    "reverse_kl": lambda of: _kl(of, of.q, of.log_q, of.log_p),                             # arXiv:2306.08543
    "jsd": _jsd,                                                                            # arXiv:2306.13649, eq. 1
    "skew_kl": lambda of, skew: _kl(of, of.p, of.log_p, _log_mixture(of, skew)),            # arXiv:2402.03898, eq. 4
    "total_variation": _total_variation,                                                    # arXiv:2606.12370, eq. 10
    "lk": _lk,                                                                              # arXiv:2602.23881
    "neg_log_acceptance": _neg_log_acceptance,                                              # arXiv:2602.23881
}.items()}


def divergence(kind: str, logprob: Tensor, teacher_logprob: Tensor, *, counted: Tensor | None = None,
               rest_min: float = 1e-6, rest_weight: float = 1.0, mix: float | None = None,
               skew: float | None = None, decay: float | None = None, acceptance_min: float | None = None) -> Tensor:
    """Computes the divergence of each row between teacher and student over K tokens and the rest -> (...) float32, nats.

    kind             a name of DIVERGENCES, as flp.distill_loss has them
    logprob          (..., K) floating point, in nats, of the student, such as flp.linear_logprob gives; differentiable
    teacher_logprob  (..., K) floating point, in nats, of the same ids, a constant
    counted          (..., K) bool: the ids that take part; None: all
    rest_min, rest_weight
                     as the parameters of flp.distill_loss; so are, each with the kind that reads it or None,
    mix, skew, decay, acceptance_min
    error: ValueError, TypeError naming the field
    """
    own = DIVERGENCES[_rules.one_of("kind", kind, DIVERGENCES)]
    given = {**own.options, **_given_of(kind, own, {"mix": mix, "skew": skew, "decay": decay,
                                                    "acceptance_min": acceptance_min})}
    rest_min, rest_weight = (_check.number_of(field, value) for field, value in (
        ("rest_min", rest_min), ("rest_weight", rest_weight)))
    _check.float_tensor_of("logprob", logprob)
    _like("teacher_logprob", teacher_logprob, logprob)
    log_q, log_p = logprob.double(), teacher_logprob.detach().double()
    if counted is None:
        counted = torch.ones_like(log_q, dtype=torch.bool)
    _check.like("counted", counted, "logprob", logprob)
    log_q, log_p = (torch.where(counted, values, torch.full((), -1.0, dtype=values.dtype, device=values.device))
                    for values in (log_q, log_p))
    p, q = (values.exp().masked_fill(~counted, 0) for values in (log_p, log_q))
    rest_p, rest_q = ((1 - values.sum(-1, keepdim=True)).clamp(min=rest_min) for values in (p, q))
    log_p, log_q, p, q = (torch.cat([values, rest], -1) for values, rest in (
        (log_p, rest_p.log()), (log_q, rest_q.log()), (p, rest_p), (q, rest_q)))
    weight = torch.ones(p.shape[-1], dtype=p.dtype, device=p.device)
    weight[-1] = rest_weight
    return own.of(Outcomes(log_p, log_q, p, q, lambda each: (weight * each).sum(-1)), **given).float()


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
    own = RULES[_rules.one_of("rule", rule, RULES)]
    clip = _rules.bounds_of(own.clip if clip is None else clip)
    beta, entropy_weight = _check.number_of("beta", beta), _check.number_of("entropy_weight", entropy_weight)
    _needed(rule, length, total, beta, ref_logprob, entropy_weight, entropy)
    tokens = _tokens_of(logprob, advantage, old_logprob, ref_logprob, entropy, mask)
    if ref_logprob is not None:
        _rules.one_of("kl_kind", kl_kind, _rules.KL)
    loss, metrics = _rules.loss_of(TORCH, tokens, _rules.Wishes(
        rule, own.average, clip, beta, kl_kind, entropy_weight, length, total, None, None))
    return loss.float(), {name: value.detach().float() for name, value in metrics.items()}


# ---- preferences: (log-ratios (2·B) or (N), which are liked, options) -> what each pair or sequence adds ----

def _of_difference(values, liked, given):
    chosen, rejected = values.chunk(2)
    x, e = given["beta"] * (chosen - rejected) - given["margin"], given["label_smoothing"]
    return -(1 - e) * F.logsigmoid(x) - e * F.logsigmoid(-x)


def _of_square(values, liked, given):
    chosen, rejected = values.chunk(2)
    return (chosen - rejected - 0.5 / given["beta"]) ** 2


def _of_odds(values, liked, given):
    chosen, rejected = (values - torch.log(-torch.expm1(values))).chunk(2)
    return -given["beta"] * F.logsigmoid(chosen - rejected)


def _of_each(values, liked, given):
    x = given["beta"] * (values - given["kl"])
    return torch.where(liked, given["desirable_weight"] * torch.sigmoid(-x),
                       given["undesirable_weight"] * torch.sigmoid(x))


# of_means: of a sequence's mean in the place of its sum; needs_ref: log-ratios to a reference; options: what a caller
# may set, with defaults; nll_weight is that of the mean negative log-likelihood of what was chosen, which is added;
# in_pairs: compares a chosen sequence to its rejected one, else takes each by itself.
Preference = collections.namedtuple("Preference", "term of_means needs_ref options in_pairs", defaults=[True])
_SMOOTHED = {"margin": 0.0, "label_smoothing": 0.0, "nll_weight": 0.0}
PREFERENCES: dict[str, Preference] = {
    "dpo": Preference(_of_difference, False, True, {"beta": 0.1, **_SMOOTHED}),   # arXiv:2305.18290, eq. 7
    "ipo": Preference(_of_square, True, True, {"beta": 0.1, "nll_weight": 0.0}),  # arXiv:2310.12036, eq. 17
    "simpo": Preference(_of_difference, True, False, {"beta": 2.0, **_SMOOTHED, "margin": 1.0}),     # arXiv:2405.14734
    "cpo": Preference(_of_difference, False, False, {"beta": 0.1, **_SMOOTHED, "nll_weight": 1.0}),  # arXiv:2401.08417
    "orpo": Preference(_of_odds, True, False, {"beta": 0.1, "nll_weight": 1.0}),  # arXiv:2403.07691, eq. 6
    "kto": Preference(_of_each, False, True, {"beta": 0.1, "kl": 0.0, "desirable_weight": 1.0,
                                              "undesirable_weight": 1.0}, False),  # arXiv:2402.01306, eq. 8
}


def preference_loss(rule: str, logprob: tuple[Tensor, Tensor], ref_logprob: tuple[Tensor, Tensor] | None = None, *,
                    chosen: Tensor | None = None, beta: float | None = None, margin: float | None = None,
                    label_smoothing: float | None = None, nll_weight: float | None = None,
                    kl: float | Tensor | None = None, desirable_weight: float | None = None,
                    undesirable_weight: float | None = None,
                    total: float | Tensor | None = None) -> tuple[Tensor, dict[str, Tensor]]:
    """Computes the loss of preferences between sequences from what flp.sequence_logprob gives of them.

    rule             a name of PREFERENCES: dpo, ipo, simpo, cpo, orpo, kto
    logprob          (sum, mean) of the policy, (2·B) each, in nats: B sequences that were chosen, then the B that were
                     rejected for them; of kto any sequences, (N)
    ref_logprob      the same of the reference, constants; dpo, ipo and kto need it, the others take none
    chosen           kto: (N) bool, which sequences are desirable
    beta             weight of the log-ratios; orpo: of its term. None, here and below: the rule's own of PREFERENCES
    margin           dpo, simpo, cpo: what beta times the difference has to be above
    label_smoothing  dpo, simpo, cpo: the share of pairs whose order is thought wrong, 0 to below 0.5 (arXiv:2306.02561)
    nll_weight       all but kto: weight of the mean negative log-likelihood a token of the chosen sequences
    kl               kto: its reference point in nats, a number or 0-dim tensor, a constant
    desirable_weight, undesirable_weight
                     kto: the weights of the two kinds of sequences
    total            pairs (kto: sequences) of the whole batch, so that losses of micro-batches add up; None: of this
                     call

    Returns (loss, metrics): a float32 scalar, differentiable in logprob alone, and a dict of detached scalars: the
    means chosen_reward and rejected_reward of beta times the log-ratios (without a reference, the log-probabilities),
    and of pairs accuracy, the share whose chosen sequence has the higher reward. Never synchronises.
    error: ValueError, TypeError naming the field
    source: the comments at PREFERENCES
    """
    own = PREFERENCES[_rules.one_of("rule", rule, PREFERENCES)]
    given = _options_of(rule, own, {
        "beta": beta, "margin": margin, "label_smoothing": label_smoothing, "nll_weight": nll_weight, "kl": kl,
        "desirable_weight": desirable_weight, "undesirable_weight": undesirable_weight})
    _rules.check_totals(False, None, total)
    sums, means = _of_sequences("logprob", logprob)
    liked = _liked_of(rule, own, chosen, sums)
    values = means if own.of_means else sums
    if (ref_logprob is not None) != own.needs_ref:
        _check.refuse(ValueError, "ref_logprob", None if ref_logprob is None else "given",
                      "%s with %s" % ("that of a reference" if own.needs_ref else "None", rule))
    if ref_logprob is not None:
        reference = _of_sequences("ref_logprob", ref_logprob)[own.of_means]
        _like("ref_logprob", reference, values)
        values = values - reference.detach()
    each = own.term(values, liked, given)
    count = max(len(each), 1) if total is None else total
    loss = each.sum() / count
    if given.get("nll_weight"):
        loss = loss - given["nll_weight"] * means.masked_fill(~liked, 0).sum() / count
    reward = given["beta"] * values.detach()
    metrics = {name: reward.masked_fill(~which, 0).sum() / which.sum().clamp(min=1)
               for name, which in (("chosen_reward", liked), ("rejected_reward", ~liked))}
    if own.in_pairs:
        metrics["accuracy"] = (reward.chunk(2)[0] > reward.chunk(2)[1]).double().sum() / max(len(each), 1)
    return loss.float(), {name: value.float() for name, value in metrics.items()}


def _given_of(name, own, options):
    """Those of the options that are not None. error: ValueError for one that own, a row of a table, does not have"""
    given = {field: value for field, value in options.items() if value is not None}
    for field, value in given.items():
        if field not in own.options:
            _check.refuse(ValueError, field, value, "None with %s" % name)
        if not isinstance(value, Tensor):
            given[field] = _check.number_of(field, value)
    return given


def _options_of(rule, own, options):
    """The rule's own options, with those that the caller gave."""
    given = {**own.options, **_given_of(rule, own, options)}
    if not given["beta"] > 0:
        _check.refuse(ValueError, "beta", given["beta"], "a number above 0")
    if not 0 <= given.get("label_smoothing", 0) < 0.5:
        _check.refuse(ValueError, "label_smoothing", given["label_smoothing"], "0 to below 0.5")
    return given


def _of_sequences(field, pair):
    """(sum, mean) of sequences, in float64."""
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        _check.refuse_type(field, pair, "(sum, mean), as flp.sequence_logprob gives them")
    for place, values in enumerate(pair):
        _check.float_tensor_of("%s[%d]" % (field, place), values)
        if values.dim() != 1 or values.shape != pair[0].shape:
            _check.refuse_shape("%s[%d]" % (field, place), values, "one number a sequence, as %s[0]" % field)
    return [values.double() for values in pair]


def _liked_of(rule, own, chosen, sums):
    """Which sequences were chosen: (N) bool."""
    if not own.in_pairs:
        if chosen is None:
            _check.refuse(ValueError, "chosen", None, "(N) bool with %s" % rule)
        _check.like("chosen", chosen, "logprob[0]", sums)
        return chosen != 0
    if chosen is not None:
        _check.refuse(ValueError, "chosen", "given", "None with %s, as the first half was chosen" % rule)
    if len(sums) % 2:
        _check.refuse_shape("logprob[0]", sums, "(2·B), the chosen sequences and then the rejected ones")
    return torch.arange(len(sums), device=sums.device) < len(sums) // 2


# ---- checks ----

def _tokens_of(logprob, advantage, old_logprob, ref_logprob, entropy, mask):
    """The tensors of one call, checked, as _rules.Tokens in float64, with zeros where the mask has them."""
    _check.float_tensor_of("logprob", logprob)
    if logprob.dim() != 2:
        _check.refuse_shape("logprob", logprob, "(B, T)")
    counts = torch.ones_like(logprob, dtype=torch.float64) if mask is None else _mask_of(mask, logprob)

    def kept(field, value):
        _like(field, value, logprob)
        return value.double().masked_fill(counts == 0, 0)

    own = kept("logprob", logprob)
    old = kept("old_logprob", logprob if old_logprob is None else old_logprob).detach()
    reference = None if ref_logprob is None else kept("ref_logprob", ref_logprob).detach()
    entropies = None if entropy is None else kept("entropy", entropy)
    return _rules.Tokens(counts, own, own - old, advantage_of(advantage, "logprob", logprob).double(), reference,
                         entropies)


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


def _needed(rule, length, total, beta, ref_logprob, entropy_weight, entropy):
    _rules.check_totals(rule == "dr_grpo", length, total)
    if beta != 0 and ref_logprob is None:
        _check.refuse(ValueError, "ref_logprob", None, "a tensor, as beta is %g" % beta)
    if entropy_weight != 0 and entropy is None:
        _check.refuse(ValueError, "entropy", None, "a tensor, as entropy_weight is %g" % entropy_weight)
