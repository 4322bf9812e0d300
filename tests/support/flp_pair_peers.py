"""Divergences of two heads as other libraries' tests write them, over log-probabilities (N,V) of student and teacher."""
import torch


def liger(log_q, log_p, beta):
    """JSD of Liger's test_fused_linear_jsd.py."""
    kl = torch.nn.KLDivLoss(reduction="none", log_target=True)
    m = torch.lerp(log_q.exp(), log_p.exp(), beta)
    loss = beta * kl(m.log(), log_p).sum(-1) + (1 - beta) * kl(m.log(), log_q).sum(-1)
    return (loss / len(log_q)).sum()


def trl(log_q, log_p, beta):
    """generalized_jsd_loss of TRL's GKDTrainer, reduction batchmean over all rows."""
    beta = torch.tensor(beta, dtype=log_q.dtype)
    mixture = torch.logsumexp(torch.stack([log_q + torch.log1p(-beta), log_p + torch.log(beta)]), 0)
    of_teacher = torch.nn.functional.kl_div(mixture, log_p, reduction="none", log_target=True)
    of_student = torch.nn.functional.kl_div(mixture, log_q, reduction="none", log_target=True)
    return (beta * of_teacher + (1 - beta) * of_student).sum() / len(log_q)
