"""What the public functions of flp compute, in float64 torch and by nothing of flp: the same keywords, {output: tensor}.

Rows without work are left out before anything is computed, bad ones are NaN with a NaN gradient of their own hidden row.
Gradients come from autograd, so formulas here form no value that they then throw away. Options that change no result
(budget, chunk_rows, save, ...) are taken and not read.
"""
import inspect
import math

import torch

from flp_exact_divergences import divergence_of

NAN, INFINITY, LIMIT = math.nan, math.inf, 2.0**30 * math.log(2)


# ---- heads ----

class Head:
    """Rows of a head: which of them have work (active), which are bad, and of the active ones the log-probabilities of
    all columns, logp (active, V), with lse and t, the scores. weight: None of hidden that are scores already"""

    def __init__(self, hidden, weight, target, bias=None, temperature=1.0, softcap=None, scale=1.0, ignore_index=-100,
                 rows=None, keep=None, lora=None, mixed=None, leave_out=None, **_same):
        self.hidden, self.several = hidden.reshape(-1, hidden.shape[-1]), target.dim() == hidden.dim()
        self.lead, self.shape = hidden.shape[:-1], target.shape
        n, vocab = len(self.hidden), self.hidden.shape[1] if weight is None else len(weight)
        ids = target.reshape(n, self.shape[-1] if self.several else 1).long()
        self.ignored = ids == ignore_index
        temperature = torch.as_tensor(temperature).double().expand(self.lead).reshape(n)
        offsets, self.listed = lists_of(keep, n, vocab)
        bad = ((ids < 0) | (ids >= vocab)) & ~self.ignored | ~((temperature > 1e-37) & (temperature < INFINITY))[:, None]
        if keep is not None:
            bad |= ~self.listed.gather(1, ids.clamp(0, vocab - 1)) | offsets[:, None]
        idle, outside = self.ignored.all(1), 0
        if rows is not None:
            known = [row for row in torch.as_tensor(rows).tolist() if 0 <= row < n]
            outside = len(rows) - len(known)
            idle = idle | ~torch.zeros(n, dtype=torch.bool).index_fill(0, torch.tensor(known, dtype=torch.int64), True)
        self.bad = bad.any(1) & ~idle
        if leave_out is not None:
            idle = idle | leave_out
        self.active = (~idle & ~self.bad).nonzero()[:, 0]
        self.ids = ids[self.active].masked_fill(self.ignored[self.active], 0)
        z = product(self.hidden[self.active], weight, mixed, None if keep is None else self.listed[self.active])
        if lora is not None:
            rows = self.hidden[self.active]
            own = torch.arange(len(rows)) if keep is None else (~rows.isnan().any(1)).nonzero()[:, 0]
            # A row with a NaN, which z has already, is in no sum of lists.
            z = z.index_add(0, own, lora.scale * (rows[own] @ lora.a.t()) @ lora.b.t())
        z = scale * (z if bias is None else z + bias)
        z = z if softcap is None else softcap * torch.tanh(z / softcap)
        t = z / temperature[self.active, None]
        self.t = t.masked_fill(~self.listed[self.active], -INFINITY)
        self.lost = self.t.detach().isnan().any(1)
        largest = self.t.detach().amax(1) if len(self.active) else self.t[:, 0].detach()
        self.beyond = ~(largest < LIMIT) | (largest == -INFINITY)
        self.t = self.t * torch.ones(len(self.active), 1).masked_fill(self.beyond[:, None], NAN)
        self.lse = torch.logsumexp(self.t, 1)
        self.logp = self.t - self.lse[:, None]
        self.logprob_rows = self.logp.gather(1, self.ids).masked_fill(self.ignored[self.active], 0)
        self.counted = outside + int(self.bad.sum() + (self.beyond & ~self.lost).sum())

    def mean(self):
        own = self.listed[self.active]
        return self.t.masked_fill(~own, 0).sum(1) / own.sum(1)

    def entropy_rows(self):
        p = self.logp.exp()
        return -(p * self.logp.masked_fill(p == 0, 0)).sum(1)

    def placed(self, values, shape=None):
        """Values of active rows (active, ...) among all rows: 0 where there is no work, NaN in bad ones."""
        n = self.hidden.shape[0]
        out = torch.zeros(n, *values.shape[1:], dtype=values.dtype).index_put((self.active,), values)
        if self.bad.any():
            lost = (self.hidden[self.bad].sum(1) * NAN).reshape(-1, *[1] * (values.dim() - 1))
            out = out.index_put((self.bad.nonzero()[:, 0],), lost.expand(-1, *values.shape[1:]).to(values.dtype))
        return out.reshape(self.lead if shape is None else shape)

    def logprob(self):
        return self.placed(self.logprob_rows if self.several else self.logprob_rows[:, 0], self.shape)

    def entropy(self):
        return self.placed(self.entropy_rows())


def product(hidden, weight, mixed, listed):
    """hidden·Wᵀ, or hidden, where there is no weight; mixed: as the product takes operands that are rounded to bfloat16,
    gradients passing by. listed: the columns that count (N,V), or None; there are no others, and a row with a NaN
    reaches no column's gradient (flp.h)."""
    if weight is None:
        return hidden
    if mixed == "round":
        hidden, weight = (x + (x.detach().bfloat16().double() - x.detach()) for x in (hidden, weight))
    if listed is None or not len(hidden):
        return hidden @ weight.t()
    rows = []
    for row, own in zip(hidden, listed):
        columns = weight.detach() if row.isnan().any() else weight
        rows.append(torch.zeros(len(weight), dtype=torch.float64).index_put((own,), columns[own] @ row))
    return torch.stack(rows)


def lists_of(keep, n, vocab):
    """Whether the list of a row is bad (N), and what it holds (N,V): without lists all."""
    listed, bad = torch.full((n, vocab), keep is None), torch.zeros(n, dtype=torch.bool)
    if keep is not None:
        offsets, ids = (values.tolist() for values in keep)
        for row in range(n):
            own = ids[offsets[row]:offsets[row + 1]]
            bad[row] = any(not 0 <= each < vocab for each in own)
            listed[row, [each for each in own if 0 <= each < vocab]] = True
    return bad, listed


def linear_logprob(entropy=False, topk=0, rank=False, statistics=False, keep=None, kept_mass=False, lora=None,
                   reference=False, **given):
    head = Head(keep=keep, lora=lora, **given)
    found = {"bad": head.counted, "logprob": head.logprob()}
    if entropy:
        found["entropy"] = head.entropy() if entropy is True else head.entropy().detach()
    if kept_mass or reference:  # of a pass of its own, which counts bad rows too
        whole = Head(**given)
        found["bad"] += whole.counted
    if kept_mass:
        found["kept_mass"] = (whole.logprob() - head.logprob()).detach()
    if reference:
        found["reference"] = whole.logprob().detach()
    return {**found, **best_and_rank(head, topk, rank), **(statistics_of(head) if statistics else {})}


def statistics_of(head):
    """What scores are as a whole; is_best counts columns that are above a target."""
    t, best = head.t.detach(), torch.zeros(head.bad.shape, dtype=torch.bool)
    own = t.gather(1, head.ids).masked_fill(head.ignored[head.active], -INFINITY)
    best[head.active] = (own[:, :, None] >= t[:, None]).all(2).any(1)
    found = {"lse": head.lse, "mean_score": head.mean(), "log_squares": torch.logsumexp(2 * head.logp, 1)}
    return {**{"statistics." + name: head.placed(values).detach() for name, values in found.items()},
            "statistics.is_best": best.reshape(head.lead).double()}


def best_and_rank(head, topk, rank):
    found = best_of(head, topk) if topk else {}
    if rank:
        above = (head.t.detach() > head.t.detach().gather(1, head.ids)).sum(1).double()
        above = above.masked_fill(head.logprob_rows[:, 0].isnan(), -1)
        ranks = torch.full(head.bad.shape, -1.0, dtype=torch.float64)
        ranks[head.active] = above
        found["rank"] = ranks.reshape(head.lead)
    return found


def best_of(head, k):
    logp, lost = head.logp.detach(), head.logp.detach().isnan().any(1)
    values, ids = logp.sort(dim=1, descending=True)
    values, ids = values[:, :k], ids[:, :k].double()
    rest = 1 - values.exp().sum(1)
    none = values == -INFINITY
    ids = ids.masked_fill(none | lost[:, None], -1)
    every = torch.full((head.bad.numel(), k), -1.0, dtype=torch.float64)
    every[head.active] = ids
    return {"top.ids": every.reshape(*head.lead, k), "top.rest": head.placed(rest).detach(),
            "top.logprobs": head.placed(values, (*head.lead, k)).detach()}


def shards(**given):
    """Each of three shards counts a bad id, and their merge."""
    found = linear_logprob(**given)
    found["bad"] += 3 * int(Head(**given).bad.sum())
    return found


def parallel(weight_shard, bias_shard=None, **given):
    """The one shard counts a bad id, and the merge."""
    given = {"weight": weight_shard, "bias": bias_shard, **given}
    found = linear_logprob(**given)
    found["bad"] += int(Head(**given).bad.sum())
    return found


# ---- cross entropy ----

def cross_entropy(target, label_smoothing=0.0, z_loss=0.0, reduction="mean", row_weight=None, total=None, return_z_loss=False,
                  ignore_index=-100, entropy=False, statistics=False, **given):
    counted = (target != ignore_index).flatten()
    weights = counted.double() if row_weight is None else row_weight.double().flatten() * counted
    if reduction == "mean":
        divisor = weights.sum() if total is None else torch.as_tensor(total).double()
        weights = weights / (divisor if divisor != 0 else 1)
    head = Head(target=target, ignore_index=ignore_index, leave_out=weights == 0, **given)
    nll, e, square = -head.logprob_rows[:, 0], label_smoothing, head.lse**2
    each = (1 - e) * nll + z_loss * square
    if e:
        each = each + e * (head.lse - head.mean())
    own = weights[head.active]
    each, z = head.placed(each * own), head.placed(z_loss * square * own).detach() if z_loss else torch.zeros(head.lead)
    found = {"loss": each, "z_loss": z.double()} if return_z_loss else {"loss": each}
    if reduction != "none":
        found = {name: value.sum() for name, value in found.items()}
    whole = Head(target=target, ignore_index=ignore_index, **given)  # weights of 0 count
    if entropy:
        found["entropy"] = whole.entropy().detach()
    return {"bad": head.counted, **found, **(statistics_of(whole) if statistics else {})}


def parallel_cross_entropy(weight_shard, bias_shard=None, **given):
    """The one shard counts a bad id, and the merge."""
    given = {"weight": weight_shard, "bias": bias_shard, **given}
    found = cross_entropy(**given)
    known = {name: value for name, value in given.items() if name in inspect.signature(Head.__init__).parameters}
    found["bad"] += int(Head(**known).bad.sum())
    return found


# ---- policies: of logprob, entropy, ... (B,T) and a mask ----

AVERAGES = {"grpo": "sequences", "gspo": "sequences", "dr_grpo": "length"}
CLIPS = {"cispo": (1.0, 4.0), "dapo": (0.2, 0.28), "gspo": (3e-4, 4e-4)}
KL = {"k1": lambda d: d, "k2": lambda d: d * d / 2, "k3": lambda d: torch.exp(-d) - 1 + d}


def shares_of(average, mask, length, total):
    mask = mask.double()
    if average == "sequences":
        return mask / mask.sum(1, keepdim=True).clamp(min=1) / (max(len(mask), 1) if total is None else total)
    if average == "length":
        return mask / (max(len(mask), 1) if total is None else total) / length
    return mask / (mask.sum().clamp(min=1) if total is None else total)


def term_of(rule, d, logprob, advantage, low, high):
    """A token's term, or a sequence's, and whether it is clipped; in the domain of logarithms, where nothing overflows."""
    above, below = d > math.log1p(high), d < (math.log1p(-low) if low < 1 else -INFINITY)
    bound = torch.where(above, 1 + high, 1 - low).double()
    if rule in ("reinforce", "nll"):
        return -advantage * logprob, torch.zeros_like(above)
    if rule == "cispo":
        above = above | d.isnan()  # the program's ne() of a NaN
        ratio = torch.where(above | below, bound.masked_fill(d.isnan(), NAN), d.detach().masked_fill(above | below, 0).exp())
        return -ratio * advantage * logprob, above | below
    clipped = above & (advantage > 0) | below & (advantage < 0)
    free = -d.masked_fill(clipped | (advantage == 0) & ~d.isnan(), 0).exp() * advantage
    return torch.where(clipped, -bound * advantage, free), clipped


def losses_policy_loss(rule, logprob, advantage, old_logprob=None, ref_logprob=None, entropy=None, mask=None, clip=None,
                       beta=0.0, kl_kind="k3", entropy_weight=0.0, length=None, total=None, average=None):
    mask = torch.ones_like(logprob, dtype=torch.bool) if mask is None else mask != 0
    low, high = clip or CLIPS.get(rule, (0.2, 0.2))
    average = average or AVERAGES.get(rule, "tokens")

    def kept(values):
        return values.masked_fill(~mask, 0)

    advantage = (advantage if advantage.dim() > 1 else advantage[:, None]).double().expand(mask.shape)
    logprob, old = kept(logprob), kept(logprob.detach() if old_logprob is None else old_logprob.double())
    d, shares = logprob - old, shares_of(average, mask, length, total)
    of_tokens = mask.double().sum().clamp(min=1)
    units, weights = mask, shares
    ratios, values = d, logprob
    if rule == "gspo":
        counts = mask.sum(1).clamp(min=1)
        ratios, values, advantage = (kept(each).sum(1) / counts for each in (d, logprob, advantage))
        units = mask.any(1)
        weights = units.double() / (max(len(mask), 1) if total is None else total)
    terms, clipped = term_of(rule, ratios[units], values[units], advantage[units], low, high)
    loss = (terms * weights[units]).sum()
    count = units.sum().clamp(min=1)
    found = {"policy_loss": loss, "clip_fraction": clipped.double().sum() / count, "ratio": ratios[units].exp().sum() / count,
             "kl_old": KL["k3"](d[mask]).sum() / of_tokens}
    if ref_logprob is not None:
        found["kl"] = (KL[kl_kind]((logprob - kept(ref_logprob.double()))[mask]) * shares[mask]).sum()
        loss = loss + beta * found["kl"]
    if entropy is not None:
        bonus = mask.double() / (of_tokens if total is None or average != "tokens" else total)
        bonus = bonus if total is None or average == "tokens" else bonus * (len(mask) / total)
        loss = loss - entropy_weight * (kept(entropy) * bonus).sum()
        found["entropy"] = kept(entropy).sum() / of_tokens
    return {"loss": loss, **{"metric " + name: value.detach() for name, value in found.items()}}


def policy_loss(rule, target, advantage=None, old_logprob=None, ref_logprob=None, mask=None, clip=None, beta=0.0, kl_kind="k3",
                entropy_weight=0.0, entropy=False, length=None, total=None, average=None, parameters=None, vectors=None,
                ignore_index=-100, topk=0, rank=False, **given):
    counted = target != ignore_index
    counted = counted if mask is None else counted & (mask != 0)
    head = Head(target=target.masked_fill(~counted, ignore_index), ignore_index=ignore_index, **given)
    entropies = head.entropy() if entropy or entropy_weight else None
    advantage = torch.ones(len(target)) if rule == "nll" else advantage
    if rule.endswith("weighed.lua"):
        rule, advantage = "reinforce", advantage[:, None] * vectors["worth"] * parameters["share"]
    found = losses_policy_loss(rule, head.logprob(), advantage, old_logprob, ref_logprob, entropies, counted, clip, beta,
                               kl_kind, entropy_weight, length, total, average)
    if vectors:  # a file has no metrics but its own
        found = {name: found[name] for name in ("loss", "metric policy_loss")}
    if head.bad.any():
        found = {name: value if name == "loss" else value * NAN for name, value in found.items()}
    return {"bad": head.counted, **found, **best_and_rank(head, topk, rank)}


def losses_preference_loss(rule, logprob, ref_logprob=None, chosen=None, beta=None, margin=None, label_smoothing=0.0,
                           nll_weight=None, kl=0.0, desirable_weight=1.0, undesirable_weight=1.0, total=None):
    of_means = rule in ("ipo", "simpo", "orpo")
    ratios = logprob[of_means] - (0 if ref_logprob is None else ref_logprob[of_means].double())
    beta = (2.0 if rule == "simpo" else 0.1) if beta is None else beta
    n = len(ratios) // 2
    liked = torch.arange(2 * n) < n if chosen is None else chosen
    good, bad = ratios[liked], ratios[~liked]

    def softplus(x):
        return torch.logaddexp(torch.zeros_like(x), x)

    if rule == "kto":
        each = torch.cat([desirable_weight / (1 + torch.exp(beta * (good - kl))),
                          undesirable_weight / (1 + torch.exp(beta * (kl - bad)))])
    elif rule == "ipo":
        each = (good - bad - 1 / (2 * beta))**2
    elif rule == "orpo":
        each = beta * softplus(bad - torch.log1p(-bad.exp()) - good + torch.log1p(-good.exp()))
    else:
        x = beta * (good - bad) - ((1.0 if rule == "simpo" else 0.0) if margin is None else margin)
        each = (1 - label_smoothing) * softplus(-x) + label_smoothing * softplus(x)
    count = len(each) if total is None else total
    nll_weight = float(rule in ("cpo", "orpo")) if nll_weight is None else nll_weight
    loss = each.sum() / count - (nll_weight * logprob[1][liked].sum() / count if nll_weight else 0)
    found = {"loss": loss, "metric chosen_reward": beta * good.detach().mean(),
             "metric rejected_reward": beta * bad.detach().mean()}
    if chosen is None:
        found["metric accuracy"] = (good > bad).double().mean()
    return found


def losses_kl(logprob, ref_logprob, kind="k3"):
    return {"kl": KL[kind](logprob - ref_logprob)}


# ---- divergences over K targets and the rest ----

def losses_divergence(**given):
    return {"divergence": divergence_of(**given)[0]}


def distill_loss(target, teacher_logprob, loss="forward_kl", row_weight=None, mask=None, total=None, parameters=None, vectors=None,
                 entropy=False, ignore_index=-100, topk=0, **given):
    counted = (target != ignore_index).any(-1)
    counted = counted if mask is None else counted & (mask != 0)
    share = counted.double() / counted.sum().clamp(min=1)
    weights = share if total is None else counted.double() / total
    weights = weights if row_weight is None else row_weight.double() * counted
    target = target.masked_fill(~counted[..., None], ignore_index)
    head = Head(target=target, ignore_index=ignore_index, leave_out=weights.flatten() == 0, **given)
    numbers, names = dict(parameters or {}), loss.split("+")
    bonus = numbers.pop("entropy_weight", 0.0)
    at = head.active[(weights.flatten()[head.active] != 0)]
    of_row = (head.active[:, None] == at).nonzero()[:, 0]
    logprob, teacher = head.logprob_rows[of_row], teacher_logprob.double().flatten(0, -2)[at]
    each, metrics = divergence_of(names[0], logprob, teacher, ~head.ignored[at], **numbers)
    found = {names[0]: each, **metrics, **({"entropy": head.entropy_rows()[of_row]} if names[1:] else {})}
    whole = each - bonus * found["entropy"] if names[1:] else each

    def spread(values, rows):
        full = torch.zeros(len(head.active), dtype=torch.float64).index_put((rows,), values)
        return head.placed(full)

    result = {"bad": head.counted, "loss": (spread(whole * weights.flatten()[at], of_row)).sum()}
    result.update({"metric " + name: (spread(values, of_row) * share).sum().detach() for name, values in found.items()})
    if entropy:
        result["metric entropy"] = (head.entropy() * share).sum().detach()
    return {**result, **best_and_rank(head, topk, False)}


# ---- scores that exist ----

def selective_log_softmax(logits, index, temperature=1.0, entropy=False, ignore_index=None, **_same):
    lead, vocab = logits.shape[:-1], logits.shape[-1]
    logits = logits.reshape(-1, vocab)
    n = len(logits)
    ids = index.reshape(n, -1).long()
    ignored = torch.zeros_like(ids, dtype=torch.bool) if ignore_index is None else ids == ignore_index
    bad = ((ids < 0) | (ids >= vocab)) & ~ignored
    active = (~ignored.all(1)).nonzero()[:, 0]
    t = logits[active] / temperature
    logp = t - torch.logsumexp(t, 1, keepdim=True)
    factor = torch.ones(ids.shape).masked_fill(bad, NAN)[active]
    chosen = logp.gather(1, ids[active].clamp(0, vocab - 1)).masked_fill(ignored[active], 0) * factor
    p = logp.exp()
    entropies = -(p * logp.masked_fill(p == 0, 0)).sum(1)
    lost = ((t == -INFINITY).all(1) | bad.any(1)[active]).sum()
    found = {"bad": int(lost), "logprob": torch.zeros(ids.shape, dtype=torch.float64).index_put((active,), chosen).reshape(index.shape)}
    if entropy:
        found["entropy"] = torch.zeros(n, dtype=torch.float64).index_put((active,), entropies).reshape(lead)
    return found


# ---- sequences ----

def sequences_of(mask, cu_seqlens):
    """The flat places of each sequence."""
    if cu_seqlens is None:
        width = mask.shape[1]
        return [list(range(row * width, (row + 1) * width)) for row in range(len(mask))]
    bounds = cu_seqlens.tolist()
    return [list(range(begin, end)) for begin, end in zip(bounds, bounds[1:])]


def sequence_logprob(logprob, mask=None, cu_seqlens=None):
    mask = torch.ones_like(logprob, dtype=torch.bool) if mask is None else mask != 0
    values, kept = logprob.flatten(), mask.flatten()
    sums, means = [], []
    for places in sequences_of(mask, cu_seqlens):
        own = values[[place for place in places if kept[place]]]
        sums.append(own.sum())
        means.append(own.sum() / max(1, len(own)))
    return {"sum": torch.stack(sums), "mean": torch.stack(means)}


def score(tokens, hidden, cu_seqlens=None, prompt_lengths=None, mask=None, lengths=None, attention_mask=None, shifted=False,
          temperature=1.0, ignore_index=-100, **given):
    flat, every = tokens.flatten(), torch.ones_like(tokens, dtype=torch.bool)
    scored, place_of = torch.zeros_like(flat, dtype=torch.bool), {}
    exists = (every if attention_mask is None else attention_mask != 0).flatten()
    for at, places in enumerate(sequences_of(tokens, cu_seqlens)):
        places = places if lengths is None else places[:int(lengths[at])]
        real = 0
        for i, place in enumerate(places):
            if not exists[place]:
                continue
            skip = 0 if prompt_lengths is None else int(prompt_lengths[at])
            first = not shifted and (i == 0 or not exists[places[i - 1]])
            wanted = (mask is None or mask.flatten()[place] != 0) and flat[place] != ignore_index
            if real >= skip and not first and wanted:
                scored[place] = True
                place_of[place] = place if shifted else places[i - 1]
            real += 1
    target = torch.full_like(flat, ignore_index)
    for place, source in place_of.items():
        target[source] = flat[place]
    step = 0 if shifted else 1
    hot = temperature.flatten().roll(-step) if isinstance(temperature, torch.Tensor) and temperature.dim() else temperature
    found = linear_logprob(hidden=hidden.reshape(-1, hidden.shape[-1]), target=target, temperature=hot,
                           ignore_index=ignore_index, **given)
    bad = found.pop("bad")
    found = {name: values.roll(step, 0).reshape(*tokens.shape, *values.shape[1:]) for name, values in found.items()}
    scored = scored.reshape(tokens.shape)
    return {"bad": bad, **found, "mask": scored.double(), **sequence_logprob(found["logprob"], scored, cu_seqlens)}


# ---- gates ----

def delight(logprob, advantage):
    return {"worth": (-advantage * logprob).detach()}


def gate(worth, fraction=None, price=None, temperature=None, seed=None, mask=None):
    """seed: of no number that the platform draws; a sure choice alone (a chance of 0 or 1) is compared"""
    allowed = ~worth.isnan() & (torch.ones_like(worth, dtype=torch.bool) if mask is None else mask != 0)
    if price is not None:
        return {"kept": (allowed & (worth > price)).double()}
    places = sorted((place for place in range(worth.numel()) if allowed.flatten()[place]),
                    key=lambda place: -worth.flatten()[place].item())
    kept = torch.zeros(worth.numel())
    kept[places[:max(1, math.ceil(fraction * len(places)))]] = 1
    return {"kept": kept.reshape(worth.shape).double()}


# ---- models ----

def logprob_head(model, input_ids, entropy=False, temperature=1.0, **_same):
    logits = model(input_ids).logits[:, :-1]
    temperature = torch.as_tensor(temperature)
    logp = torch.log_softmax(logits / (temperature.double()[..., None] if temperature.dim() else temperature), -1)
    found = {"logprob": logp.gather(-1, input_ids[:, 1:, None])[..., 0]}
    if entropy:
        found["entropy"] = -(logp.exp() * logp).sum(-1)
    return found


def cross_entropy_head(model, input_ids, **given):
    logits = model(input_ids).logits[:, :-1].flatten(0, 1)
    eye = torch.eye(logits.shape[1], dtype=torch.float64)
    return {"loss": cross_entropy(hidden=logits, weight=eye, target=input_ids[:, 1:].flatten(), **given)["loss"]}
