"""Losses of tokens, whatever holds their arrays: the rules of policies, their averages and metrics, what cross entropy
weighs, and the loss programs that a call asks for.

Invariants: a formula takes, as x, the few operations that libraries of arrays name differently (Arrays), and else what
torch and numpy share. An average is a weight a token that depends on the mask alone.
"""
import collections
import numbers
from typing import Any, Callable, NamedTuple

from . import _programs
from ._numbers import double_of, number_of, refuse, refuse_shape

# exp, expm1, where; fill(values, mask, number): the number where the mask is; constant(values): without a gradient;
# wide(values): in the widest float there is.
Arrays = collections.namedtuple("Arrays", "exp expm1 where fill constant wide")


class Rule(NamedTuple):
    """A row of RULES: the term of a token, how terms are averaged, and the default of clip."""

    term: Callable[..., Any]
    average: str
    clip: tuple[float, float] | None


# ---- terms: (x, d, logprob, A, low, high) -> (loss, was it clipped) ----

def _plain(x, log_ratio, logprob, advantage, low, high):
    return -advantage * logprob, logprob < logprob


def _clipped(x, log_ratio, logprob, advantage, low, high):
    ratio = x.exp(x.constant(log_ratio))
    kept, bounded = ratio * advantage, ratio.clip(1 - low, 1 + high) * advantage
    clipped = kept > bounded
    return x.where(clipped, -bounded, -x.exp(x.fill(log_ratio, clipped, 0)) * advantage), clipped


def _weighted(x, log_ratio, logprob, advantage, low, high):
    ratio = x.exp(x.constant(log_ratio))
    weight = ratio.clip(1 - low, 1 + high)
    return -weight * advantage * logprob, weight != ratio


RULES = {
    "reinforce": Rule(_plain, "tokens", (0.0, 0.0)),
    "ppo": Rule(_clipped, "tokens", (0.2, 0.2)),
    "grpo": Rule(_clipped, "sequences", (0.2, 0.2)),
    "dapo": Rule(_clipped, "tokens", (0.2, 0.28)),
    "dr_grpo": Rule(_clipped, "length", (0.2, 0.2)),
    "cispo": Rule(_weighted, "tokens", (1.0, 4.0)),
    "gspo": Rule(_clipped, "sequences", (3e-4, 4e-4)),
}
NAMES = (*RULES, "nll")

# Kullback-Leibler estimates of the policy against a reference, a token (Schulman, "Approximating KL divergence").
KL = {
    "k1": lambda x, d: d,                     # unbiased, of either sign
    "k2": lambda x, d: 0.5 * d * d,           # biased, small variance
    "k3": lambda x, d: x.expm1(-d) + d,       # unbiased, never negative
}


# ---- averages: the weight of each token, (mask (B,T), length, total) -> (B,T) ----

def _of_tokens(mask, length, total):
    return mask / (mask.sum().clip(min=1) if total is None else total)


def _of_sequences(mask, length, total):
    return mask / mask.sum(-1, keepdims=True).clip(min=1) / (mask.shape[0] if total is None else total)


def _of_length(mask, length, total):
    divisor = (mask.shape[0] if total is None else total) * length
    if isinstance(divisor, numbers.Real):
        number_of("length · " + ("sequences" if total is None else "total"), divisor)
    return mask / divisor


AVERAGES = {"tokens": _of_tokens, "sequences": _of_sequences, "length": _of_length}


def weights_of(average, mask, length=None, total=None):
    """The weights whose sum of weighted tokens is an average: "tokens", "sequences" or "length" of AVERAGES.

    mask (B,T) floats, zeros and ones; total: see losses.policy_loss. Returns (B,T), 0 outside the mask
    """
    return AVERAGES[average](mask, length, total)


def entropy_weights_of(average, mask, total=None):
    """Those of the entropy, whose average is of tokens whatever the rule's is; a part of a batch of sequences has its
    share. (B,T)"""
    if average == "tokens":
        return _of_tokens(mask, None, total)
    weights = _of_tokens(mask, None, None)
    return weights if total is None else weights * (mask.shape[0] / total)


def _mean(values, mask):
    """Over the tokens of the mask; 0 where there are none."""
    return (values * mask).sum() / mask.sum().clip(min=1)


def _per_sequence(values, mask):
    """Means over the tokens of each sequence; 0 where there are none. (B,T), (B,T) -> (B,1)"""
    return (values * mask).sum(-1, keepdims=True) / mask.sum(-1, keepdims=True).clip(min=1)


# ---- what a call asks for ----

# Checked. kl_kind "": no divergence; program None: the rule is of whole sequences, or there is none to run.
Wishes = collections.namedtuple(
    "Wishes", "rule average clip beta kl_kind entropy_weight length total program parameters")
SHARE = "token_share"  # the vector of the built-in term token_entropy


def wishes_of(rule, average, clip, beta, kl_kind, entropy_weight, length, total, parameters, has_reference):
    """-> Wishes. has_reference: whether log-probabilities to compare with are there. error: ValueError and TypeError
    naming the field; those of _programs.named"""
    one_of("kl_kind", kl_kind, KL)
    kl_kind = kl_kind if beta != 0 or has_reference and not _is_file(rule) else ""
    beta, entropy_weight = number_of("beta", beta), number_of("entropy_weight", entropy_weight)
    terms = [kl_kind] if kl_kind else []
    if _is_file(rule):
        average = "tokens" if average is None else one_of("average", average, AVERAGES)
        _only(rule, "clip", clip, "None, and parameters of the file")
        values = {}
    else:
        one_of("rule", rule, (*NAMES, "a path that ends in " + _programs.FILE))
        own = RULES["reinforce" if rule == "nll" else rule]
        clip = bounds_of(own.clip if clip is None else clip)
        _only(rule, "average", average, "None, as the rule has its own")
        _only(rule, "parameters", parameters, "None, as they are a file's")
        average, values = own.average, {"clip_low": clip[0], "clip_high": clip[1]}
    if entropy_weight:
        terms.append("entropy" if average == "tokens" else "token_entropy")
        values["entropy_weight"] = entropy_weight
    if kl_kind:
        values["beta"] = beta
    check_totals(average == "length", length, total)
    program = None if rule == "gspo" else _programs.named(rule, terms)
    if _is_file(rule):
        values.update(parameters_of(parameters or {}, program))
    return Wishes(rule, average, clip, beta, kl_kind, entropy_weight, length, total, program, values)


def _is_file(rule):
    return isinstance(rule, str) and rule.endswith(_programs.FILE)


def _only(rule, field, value, accepted):
    if value is not None:
        refuse(ValueError, field, "%r for %r" % (value, rule), accepted)


def parameters_of(parameters, program):
    """The parameters of a program that are given by name, checked."""
    for name, value in parameters.items():
        one_of("parameters", name, program.parameters)
        double_of("parameters[%r]" % name, value)
    return dict(parameters)


def needed(wishes, given, vectors):
    """Every input that the loss reads is there, and no vector that it does not know. given: {input: array or None}"""
    program = wishes.program
    if program is not None and program.inputs & {"target_logprob", "teacher_logprob"}:
        refuse(ValueError, "rule", "%r, a loss over several targets" % wishes.rule,
               "a loss of one target; flp.distill_loss takes those")
    inputs = {"advantage"} | ({"ref_logprob"} if wishes.kl_kind else set()) if program is None else program.inputs
    for field in ("advantage", "ref_logprob"):
        if field in inputs and given[field] is None:
            refuse(ValueError, field, None, "a tensor, as %s reads it" % wishes.rule if field == "advantage" or
                   not wishes.beta else "a tensor, as beta is %g" % wishes.beta)
    check_vectors(vectors, () if program is None else [name for name in program.vectors if name != SHARE], wishes.rule)


def check_vectors(given, names, loss):
    """The vectors given by name are those, of these names, that a loss reads."""
    for name in given:
        if name not in names:
            refuse(ValueError, "vectors", repr(name), ", ".join(names) or "none, as %s reads none" % loss)
    for name in names:
        if name not in given:
            refuse(ValueError, "vectors[%r]" % name, "missing", "a tensor, as %s reads it" % loss)


def one_of(field, value, accepted):
    if not isinstance(value, str) or value not in accepted:
        refuse(ValueError, field, repr(value), ", ".join(accepted))
    return value


def bounds_of(clip):
    try:
        low, high = clip
    except (TypeError, ValueError):
        refuse(TypeError, "clip", repr(clip), "a pair (low, high)")
    low, high = number_of("clip[0]", low), number_of("clip[1]", high)
    if not 0 <= low <= 1:
        refuse(ValueError, "clip[0]", low, "0 to 1")
    if high < 0:
        refuse(ValueError, "clip[1]", high, "0 or more")
    return low, high


def check_totals(needs_length, length, total):
    """What averages divide by, as the caller gave it."""
    if needs_length and length is None:
        refuse(ValueError, "length", None, "a number above 0, for dr_grpo")
    if length is not None and not number_of("length", length) > 0:
        refuse(ValueError, "length", length, "a number above 0")
    if hasattr(total, "ndim") and not isinstance(total, numbers.Real):
        if total.ndim != 0:
            refuse_shape("total", total, "a number above 0, or a 0-dim tensor")
    elif total is not None and not number_of("total", total) > 0:
        refuse(ValueError, "total", total, "a number above 0, or a 0-dim tensor")


# ---- a loss from log-probabilities ----

# Arrays (B,T) in the widest float, zeros outside the mask; advantage may be (B,1); ref_logprob, entropy or None.
Tokens = collections.namedtuple("Tokens", "mask logprob log_ratio advantage ref_logprob entropy")


def loss_of(x, tokens, wishes):
    """The loss of Wishes' rule -> (loss, metrics)"""
    term = RULES[wishes.rule].term
    shares = weights_of(wishes.average, tokens.mask, wishes.length, wishes.total)
    log_ratio, values, kept, weights = tokens.log_ratio, tokens.logprob, tokens.mask, shares
    if wishes.rule == "gspo":
        log_ratio, values = (_per_sequence(each, kept) for each in (log_ratio, values))
        kept = x.wide(kept.sum(-1, keepdims=True) > 0)   # a sequence without tokens has no ratio
        weights = weights_of(wishes.average, kept, wishes.length, wishes.total)
    terms, clipped = term(x, log_ratio, values, _advantage_of(x, tokens, wishes.rule), *wishes.clip)
    loss = policy = (terms * weights).sum()
    metrics = {"policy_loss": policy, "clip_fraction": _mean(x.wide(clipped), kept),
               "ratio": _mean(x.exp(log_ratio), kept), "kl_old": _mean(KL["k3"](x, tokens.log_ratio), tokens.mask)}
    if tokens.ref_logprob is not None:
        divergence = KL[wishes.kl_kind](x, tokens.logprob - tokens.ref_logprob)
        metrics["kl"] = (divergence * shares).sum()
        loss = loss + wishes.beta * metrics["kl"]
    if tokens.entropy is not None:
        of_entropy = entropy_weights_of(wishes.average, tokens.mask, wishes.total)
        loss = loss - wishes.entropy_weight * (tokens.entropy * of_entropy).sum()
        metrics["entropy"] = _mean(tokens.entropy, tokens.mask)
    return loss, metrics


def _advantage_of(x, tokens, rule):
    """A for every term: (B,T) or (B,1), zero where no token of the mask is; of gspo (B,1)."""
    if tokens.advantage.shape[1] == 1:
        return x.fill(tokens.advantage, ~(tokens.mask != 0).any(-1, keepdims=True), 0.0)
    kept = x.fill(tokens.advantage, tokens.mask == 0, 0)
    return _per_sequence(kept, tokens.mask) if rule == "gspo" else kept


# ---- a loss as a program of rows ----

def row_weights(wishes, mask):
    """(weights of the tokens' losses, those of the entropy or None): (B,T)"""
    of_entropy = entropy_weights_of(wishes.average, mask, wishes.total) if wishes.entropy_weight else None
    return weights_of(wishes.average, mask, wishes.length, wishes.total), of_entropy


def metrics_of(x, made, entropy, value, weights, of_entropy, mask, wishes, old_logprob):
    """Scalars from what a step reported of each row; inactive rows reported 0. made: metrics by the program's order and
    logprob (N); entropy (N), or None where it is not asked for; value: the loss; the others of rows (N)"""
    share = mask / mask.sum().clip(min=1)
    found = dict(zip(wishes.program.metrics, made.metrics))
    policy = value
    if wishes.kl_kind:
        divergence = (found.pop("kl") * weights).sum()
        policy = policy - wishes.beta * divergence
    if entropy is not None:
        found["entropy"] = entropy
    if wishes.entropy_weight:
        policy = policy + wishes.entropy_weight * (entropy * of_entropy).sum()
    if wishes.rule in NAMES and "ratio" not in found:
        old = made.logprob if old_logprob is None else x.where(mask != 0, old_logprob, made.logprob)
        log_ratio = made.logprob - old
        found.update(clip_fraction=share * 0, ratio=x.exp(log_ratio), kl_old=KL["k3"](x, log_ratio))
    metrics = {"policy_loss": policy, **{name: (values * share).sum() for name, values in found.items()}}
    if wishes.kl_kind:
        metrics["kl"] = divergence
    return metrics


# ---- cross entropy ----

REDUCTIONS = ("mean", "sum", "none")
# Checked; program, and its parameters.
Smoothed = collections.namedtuple("Smoothed", "z_loss reduction program parameters")


def smoothed_of(label_smoothing, z_loss, reduction):
    """-> Smoothed. error: ValueError and TypeError naming the field"""
    smoothing, z_loss = number_of("label_smoothing", label_smoothing), number_of("z_loss", z_loss)
    if not 0 <= smoothing <= 1:
        refuse(ValueError, "label_smoothing", label_smoothing, "0 to 1")
    if not z_loss >= 0:
        refuse(ValueError, "z_loss", z_loss, "0 or more")
    program = _programs.builtin("cross_entropy" if smoothing else "nll+z_loss" if z_loss else "nll")
    named = {"label_smoothing": smoothing, "z_loss": z_loss}
    return Smoothed(z_loss, one_of("reduction", reduction, REDUCTIONS), program,
                    {name: named[name] for name in program.parameters})


def reduced_weights(x, counted, row_weight, total, reduction):
    """What each row's loss is multiplied by. counted (N) floats, zeros and ones; row_weight (N) or None"""
    check_totals(False, None, total)
    weights = counted if row_weight is None else x.fill(row_weight, counted == 0, 0)
    if reduction != "mean":
        if total is not None:
            refuse(ValueError, "total", "given with reduction %r" % reduction, "None, or reduction 'mean'")
        return weights
    if total is not None:
        return weights / total
    divisor = weights.sum()
    return weights / x.fill(divisor, divisor == 0, 1)


def z_losses(made, wishes, weights):
    """What z_loss is of the losses of rows. made: loss, metrics by the program's order"""
    squares = dict(zip(wishes.program.metrics, made.metrics)).get("lse_square")
    return made.loss * 0 if squares is None else wishes.z_loss * squares * weights
