"""Divergences over K targets and what is left as one more outcome, in float64 torch: a part of flp_exact."""
import torch


def gain(share, log_share, log_other):
    """share·(log_share − log_other), of those that have a share."""
    some = share != 0
    return torch.zeros_like(share).index_put((some,), share[some] * (log_share[some] - log_other[some]))


def mixed_log(p, q, share):
    m = share * p + (1 - share) * q
    return m.masked_fill(m == 0, 1).log()


# By kind, of the outcomes: (log p, log q, p, q, Σ, the options) -> (...)
DIVERGENCES = {
    "forward_kl": lambda log_p, log_q, p, q, total: total(gain(p, log_p, log_q)),
    "reverse_kl": lambda log_p, log_q, p, q, total: total(gain(q, log_q, log_p)),
    "jsd": lambda log_p, log_q, p, q, total, mix=0.5: total(
        mix * gain(p, log_p, mixed_log(p, q, mix)) + (1 - mix) * gain(q, log_q, mixed_log(p, q, mix))),
    "skew_kl": lambda log_p, log_q, p, q, total, skew=0.1: total(gain(p, log_p, mixed_log(p, q, skew))),
    "total_variation": lambda log_p, log_q, p, q, total: total((p - q).abs()) / 2,
}


def neg_log_acceptance(log_p, log_q, p, q, total, acceptance_min=1e-30):
    rate = total(torch.minimum(p, q))
    return -rate.masked_fill(rate < acceptance_min, acceptance_min).log()


def lk(log_p, log_q, p, q, total, decay=3.0):
    blend = (-decay * total(torch.minimum(p, q))).exp().detach()
    return blend * total(gain(p, log_p, log_q)) + (1 - blend) * total((p - q).abs()) / 2


DIVERGENCES |= {"neg_log_acceptance": neg_log_acceptance, "lk": lk}


def divergence_of(kind, logprob, teacher_logprob, counted=None, rest_min=1e-6, rest_weight=1.0, **options):
    """-> the divergence, and its other metrics"""
    counted = torch.ones_like(logprob, dtype=torch.bool) if counted is None else counted
    logs = [teacher_logprob.double().detach(), logprob]
    shares = [torch.zeros_like(log).index_put((counted,), log[counted].exp()) for log in logs]
    rests = [(1 - share.sum(-1, keepdim=True)).clamp(min=rest_min) for share in shares]
    outcomes = [torch.cat([log, rest.log()], -1) for log, rest in zip(logs, rests)]
    outcomes += [torch.cat([share, rest], -1) for share, rest in zip(shares, rests)]

    def total(each):
        return each[..., :-1].sum(-1) + rest_weight * each[..., -1]

    is_drafting = kind in ("neg_log_acceptance", "lk")
    return DIVERGENCES[kind](*outcomes, total, **options), \
        {"acceptance": total(torch.minimum(*outcomes[2:])).detach()} if is_drafting else {}
