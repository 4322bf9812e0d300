"""Divergences of two heads over the whole vocabulary, in float64 torch: a part of flp_exact, over its Head."""
import torch

import flp_exact
from flp_exact import AVERAGES, INFINITY, NAN, Head
from flp_exact_divergences import DIVERGENCES


class Pair:
    """Rows of a student and of a teacher, a Head each: those of the mask that are bad in neither (active), and what a
    divergence gives of these, by names (found). A row that is dead in one head, its largest score being beyond what is
    accepted, is NaN in both."""

    def __init__(self, hidden, weight, teacher_hidden, teacher_weight, kind="reverse_kl", bias=None, teacher_bias=None,
                 mask=None, parameters=None, temperature=1.0, teacher_temperature=None, softcap=None,
                 teacher_softcap=None, scale=1.0, teacher_scale=1.0, teacher_ids=None, renormalise=False, **_same):
        self.lead, self.hidden = hidden.shape[:-1], hidden.reshape(-1, hidden.shape[-1])
        self.mask = torch.ones(self.lead, dtype=torch.bool) if mask is None else mask != 0
        target = torch.zeros(self.lead, dtype=torch.int64).masked_fill(~self.mask, -100)
        if renormalise:
            teacher_weight, teacher_bias = (None if each is None else each[teacher_ids.long()]
                                            for each in (teacher_weight, teacher_bias))
        own = Head(hidden, weight, target, bias, temperature, softcap, scale)
        teacher_temperature = temperature if teacher_temperature is None else teacher_temperature
        other = Head(teacher_hidden, teacher_weight, target, teacher_bias, teacher_temperature, teacher_softcap,
                     teacher_scale)
        self.bad = own.bad | other.bad
        self.active = (self.mask.flatten() & ~self.bad).nonzero()[:, 0]
        places = [torch.isin(head.active, self.active) for head in (own, other)]
        dead = [(head.beyond & ~head.lost)[rows] for head, rows in zip((own, other), places)]
        self.dead = dead[0] | dead[1]
        self.counted = int(self.bad.sum() + self.dead.sum())
        factor = torch.ones(len(self.active), 1, dtype=torch.float64).masked_fill(self.dead[:, None], NAN)
        logs = [head.logp[rows] * factor for head, rows in zip((own, other), places)]
        lses = [head.lse[rows] * factor[:, 0] for head, rows in zip((own, other), places)]
        if teacher_ids is not None and not renormalise:
            logs = among(logs[0], logs[1], teacher_ids.long())
        self.found = {**of_rows(kind, logs[1].detach(), logs[0], parameters or {}), "lse": lses[0].detach(),
                      "teacher_lse": lses[1].detach()}

    def rows(self):
        """What is found, of every row (N): 0 outside the mask, NaN in bad ones, which agree in nothing."""
        lost, placed = self.hidden[self.bad].sum(1) * NAN, {}
        for name, values in self.found.items():
            every = torch.zeros(len(self.hidden), dtype=torch.float64).index_put((self.active,), values)
            own = lost if name == "value" else torch.zeros_like(lost) if name == "agrees" else lost.detach()
            placed[name] = every.index_put((self.bad.nonzero()[:, 0],), own)
        return placed


def among(log_q, log_p, ids):
    """Both over the teacher's tokens, the student's first: it has no share of the others."""
    is_other = torch.ones(log_p.shape[1], dtype=torch.bool).index_fill(0, ids, False)
    order = torch.cat([ids, is_other.nonzero()[:, 0]])
    nothing = torch.full((len(log_q), len(order) - len(ids)), -INFINITY, dtype=torch.float64)
    return torch.cat([log_q, nothing], 1), log_p[:, order]


def of_rows(kind, log_p, log_q, parameters):
    """What rows of log-probabilities give."""
    p, q = log_p.exp(), log_q.exp()

    def total(each):
        return each.sum(-1)

    lost = (log_p.isnan() | log_q.isnan()).any(1)
    constant = {"entropy": -total(q * log_q.masked_fill(q == 0, 0)), "acceptance": total(torch.minimum(p, q)),
                "agrees": ((log_p.argmax(1) == log_q.argmax(1)) & ~lost).double()}
    return {"value": DIVERGENCES[kind](log_p, log_q, p, q, total, **parameters),
            **{name: values.detach() for name, values in constant.items()}}


def divergence(payload=None, **given):
    if payload is not None:
        return of_payload(payload, **given)
    pair = Pair(**given)
    return {"bad": pair.counted, **{name: values.reshape(pair.lead) for name, values in pair.rows().items()}}


def selective_divergence(scores, teacher_scores, **given):
    return divergence(hidden=scores, weight=None, teacher_hidden=teacher_scores, teacher_weight=None, **given)


def divergence_loss(kind="reverse_kl", row_weight=None, total=None, mask=None, **given):
    pair = Pair(kind=kind, mask=mask, **given)
    counted = pair.mask.flatten()
    share = counted.double() / counted.sum().clamp(min=1)
    weights = share if total is None else counted.double() / total
    if row_weight is not None:
        weights = row_weight.double().flatten().masked_fill(~counted, 0)
    weighed = weights != 0  # what rows of weight 0 hold reaches no gradient
    part = Pair(kind=kind, mask=weighed.reshape(pair.lead), **given)
    loss = (part.rows()["value"] * weights)[weighed].sum()
    metrics = {name: pair.rows()[field].detach() for name, field in (
        (kind, "value"), ("entropy", "entropy"), ("acceptance", "acceptance"), ("agreement", "agrees"))}
    return {"bad": pair.counted, "loss": loss,
            **{"metric " + name: (values * share)[counted].sum() for name, values in metrics.items()}}


def policy_loss(reference=None, rule=None, **given):
    """Rows that are bad or dead in one head, or bad by their id, are so in both losses."""
    if reference is None:
        return flp_exact.policy_loss(rule=rule, **given)
    target, ignored, mask = given["target"], given.get("ignore_index", -100), given.get("mask")
    counted = (target != ignored) & (True if mask is None else mask != 0)
    of_head = {name: given[name] for name in ("hidden", "weight", "bias", "temperature", "softcap", "scale")
               if name in given}
    of_pair = {("" if name in ("kind", "parameters") else "teacher_") + name: value
               for name, value in reference.items() if name != "coefficient"}
    own = Head(target=target.masked_fill(~counted, ignored), ignore_index=ignored, **of_head)
    bad = (own.bad | Pair(mask=counted, **of_head, **of_pair).bad).reshape(target.shape)
    hot = torch.as_tensor(given.get("temperature", 1.0)).double().expand(target.shape).masked_fill(bad, NAN)
    pair = Pair(mask=counted, **{**of_head, "temperature": hot}, **of_pair)
    dead = torch.ones(target.numel()).index_put((pair.active[pair.dead],), torch.tensor(NAN)).reshape(target.shape)
    hidden = given["hidden"] * dead[..., None]
    found = flp_exact.policy_loss(rule=rule, **{**given, "temperature": hot, "hidden": hidden})
    weights = flp_exact.shares_of(given.get("average") or AVERAGES.get(rule, "tokens"), counted, given.get("length"),
                                  given.get("total"))[counted]
    rows = {name: values[counted.flatten()] for name, values in pair.rows().items()}
    value = (rows["value"] * weights).sum()
    means = {"acceptance": rows["acceptance"], "agreement": rows["agrees"]}
    return {**found, "bad": pair.counted, "loss": found["loss"] + reference.get("coefficient", 1.0) * value,
            "metric " + reference.get("kind", "reverse_kl"): value.detach(),
            **{"metric " + name: values.detach().sum() / max(len(values), 1) for name, values in means.items()}}


def parallel_divergence(weight_shard, teacher_weight_shard, bias_shard=None, teacher_bias_shard=None, **given):
    return divergence(weight=weight_shard, teacher_weight=teacher_weight_shard, bias=bias_shard,
                      teacher_bias=teacher_bias_shard, **given)


# ---- what a teacher sends in the place of its scores ----

def head_of(hidden, weight, bias, mask, temperature, softcap, scale):
    """Rows of the mask of one head."""
    target = torch.zeros(hidden.shape[:-1], dtype=torch.int64)
    target = target if mask is None else target.masked_fill(mask == 0, -100)
    return Head(hidden, weight, target, bias, temperature, softcap, scale)


def of_payload(payload, hidden, weight, bias=None, mask=None, temperature=1.0, scale=1.0, **_same):
    head = head_of(hidden, weight, bias, mask, temperature, None, scale)
    entropy, of_bias = (values.flatten()[head.active] for values in payload[1:])
    mean = payload[0].reshape(head.hidden.shape)[head.active]
    factor = scale / torch.as_tensor(temperature).double().expand(head.lead).flatten()[head.active]
    value = head.lse - factor * ((head.hidden[head.active] * mean).sum(1) + of_bias) - entropy
    return {"bad": head.counted, "value": head.placed(value), "lse": head.placed(head.lse.detach()).detach(),
            "entropy": head.entropy().detach()}


def divergence_payload(teacher_hidden, teacher_weight, weight, teacher_bias=None, bias=None, mask=None, temperature=1.0,
                       softcap=None, scale=1.0, **_same):
    head = head_of(teacher_hidden, teacher_weight, teacher_bias, mask, temperature, softcap, scale)
    p, left = head.logp.exp(), torch.zeros(head.lead, dtype=torch.bool) if mask is None else mask == 0
    found = {"mean": head.placed(p @ weight, (*head.lead, weight.shape[1])), "entropy": head.entropy()}
    if bias is not None:
        found["bias"] = head.placed(p @ bias)
    return {"bad": head.counted, **{
        name: values.detach().masked_fill(left if values.shape == left.shape else left[..., None], NAN)
        for name, values in found.items()}}
