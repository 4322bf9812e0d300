"""What a user of another library calls for its loss of two heads, on the CPU: each peer's formula in float64 beside the
flp call that takes its place, values and gradients.

A case: the rows of the peer's loss over log-probabilities (log q of the student, log p of the teacher), and kind and
parameters of flp.divergence. Betas of Liger and TRL: 0 is forward_kl, 1 reverse_kl, another the mix of jsd, which does
not tend to either: at a small beta it is near beta times forward_kl.
"""
import math

import pytest
import torch

import flp
from flp_reference import DEVICE, DTYPES, GRAD_TOLERANCE, relative
from test_flp_divergence import STUDENT, N, V, problem, scores
from test_flp_divergence_kinds import file  # noqa: F401

COUNTED = torch.arange(N, device=DEVICE) % 3 != 1


def kl(log_a, log_b):
    return (log_a.exp() * (log_a - log_b)).sum(-1)


def generalised(beta):
    """Of Liger's fused_linear_jsd and chunked JSD, of TRL's generalized_jsd_loss and ChunkedDivergenceFunction."""
    def rows(log_q, log_p):
        log_m = torch.logaddexp(log_p + math.log(beta), log_q + math.log1p(-beta))
        return beta * kl(log_p, log_m) + (1 - beta) * kl(log_q, log_m)

    return {0: lambda log_q, log_p: kl(log_p, log_q), 1: kl}.get(beta, rows)


def overlap(log_q, log_p):
    return torch.minimum(log_q.exp(), log_p.exp()).sum(-1)


def hybrid(log_q, log_p):
    """lk_hybrid of speculators, eta 3."""
    share = torch.exp(-3 * overlap(log_q, log_p).detach())
    return share * kl(log_p, log_q) + (1 - share) * (1 - overlap(log_q, log_p))


CASES = {
    "beta 0": (generalised(0), "forward_kl", None), "beta 1": (generalised(1), "reverse_kl", None),
    **{"beta %g" % beta: (generalised(beta), "jsd", {"mix": beta}) for beta in (0.001, 0.1, 0.5, 0.9, 0.999)},
    "speculators tv": (lambda *logs: 1 - overlap(*logs), "total_variation", None),
    "speculators nla": (lambda *logs: -overlap(*logs).clamp_min(1e-5).log(), "neg_log_acceptance",
                        {"acceptance_min": 1e-5}),
    "speculators lk_hybrid": (hybrid, "lk", {"decay": 3}),
}
# What a peer's reduction makes of rows, and the arguments of divergence_loss that stand for it.
REDUCTIONS = {
    "mean of labels that count": (lambda rows: rows[COUNTED].mean(), {"mask": COUNTED}),
    "batchmean": (lambda rows: rows.mean(), {}),
    "sum": (lambda rows: rows.sum(), {"total": 1}),
    "mean over V too": (lambda rows: rows.mean() / V, {"total": N * V}),
    "num_items_in_batch": (lambda rows: rows[COUNTED].sum() / 37,
                           {"mask": COUNTED, "total": torch.tensor(37, device=DEVICE)}),
}


def check(given, loss, want, leaves, dtype):
    assert loss.item() == pytest.approx(want.item(), rel=2e-6, abs=1e-5)
    loss.backward()
    want.backward()
    for name in STUDENT:
        assert relative(given[name].grad.cpu(), leaves[name].grad) < GRAD_TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows, kind, parameters", CASES.values(), ids=CASES)
def test_losses_of_peers(rows, kind, parameters, dtype):
    given = problem(dtype=dtype, seed=21)
    log_q, log_p, leaves = scores(given)
    weights = torch.linspace(-1, 2, N)
    value = flp.divergence(kind=kind, parameters=parameters, **given).value
    check(given, (value * weights.to(DEVICE)).sum(), (rows(log_q, log_p) * weights).sum(), leaves, dtype)


@pytest.mark.parametrize("reduce, options", REDUCTIONS.values(), ids=REDUCTIONS)
def test_reductions_of_peers(reduce, options):
    given = problem(seed=22)
    log_q, log_p, leaves = scores(given)
    loss, _ = flp.divergence_loss(kind="jsd", **given, **options)
    check(given, loss, reduce(generalised(0.5)(log_q, log_p).to(DEVICE)), leaves, torch.float32)


def test_the_mixed_kl_of_nemo_rl_is_a_file(file):  # noqa: F811
    given = problem(seed=23)
    log_q, log_p, leaves = scores(given)
    loss, _ = flp.divergence_loss(kind=file, parameters={"mix": 0.3}, **given)
    check(given, loss, (0.3 * kl(log_p, log_q) + 0.7 * kl(log_q, log_p)).mean(), leaves, torch.float32)


def test_a_hard_loss_beside_the_soft_one():
    """Liger's LigerFusedLinearJSDLoss: the hard loss has no temperature, and its share is of the same labels."""
    given, labels = problem(seed=24), torch.arange(N, device=DEVICE).masked_fill(~COUNTED, -100)
    leaves = scores(given)[2]
    raw = [leaves[part + "hidden"] @ leaves[part + "weight"].t() + leaves[part + "bias"] for part in ("", "teacher_")]
    log_q, log_p = (torch.log_softmax(each / 2, -1) for each in raw)
    want = 0.1 * torch.nn.functional.cross_entropy(raw[0], labels.cpu()) \
        + 0.9 * generalised(0.8)(log_q, log_p)[COUNTED.cpu()].mean()
    hard = flp.cross_entropy(given["hidden"], given["weight"], labels, given["bias"])
    soft, _ = flp.divergence_loss(kind="jsd", parameters={"mix": 0.8}, temperature=2.0, mask=labels != -100, **given)
    check(given, 0.1 * hard + 0.9 * soft, want, leaves, torch.float32)


def test_columns_of_0_make_a_depth_a_multiple_of_8():
    given = problem(seed=25)
    for name in ("hidden", "weight"):
        given[name] = given[name].detach()[..., :20].contiguous().requires_grad_()
    log_q, log_p, leaves = scores(given)
    wide = {name: torch.nn.functional.pad(given[name], (0, 4)) for name in ("hidden", "weight")}
    loss, _ = flp.divergence_loss(kind="jsd", **{**given, **wide})
    check(given, loss, generalised(0.5)(log_q, log_p).mean(), leaves, torch.float32)
