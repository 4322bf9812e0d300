"""speculators 0.9.0: the losses of a draft's scores beside its target's, and the loss of a step over them. Its fused
kernels need a GPU; elsewhere its own eager losses stand in for them."""
import pytest
import torch
from flp_exact_pair import selective_divergence
from flp_reference import doubles
from parity import DTYPES, bare, both, compare, with_gradients

import flp

pytest.importorskip("triton")
bare("speculators", "speculators.utils")
eager = pytest.importorskip("speculators.losses.eager")
losses = pytest.importorskip("speculators.losses.utils")
KINDS = {"kl_div": ("forward_kl", {}), "reverse_kl_div": ("reverse_kl", {}), "js_div": ("jsd", {}),
         "tv": ("total_variation", {}), "neg_log_acceptance": ("neg_log_acceptance", {"acceptance_min": 1e-5}),
         "lk_hybrid": ("lk", {})}


def scores(dtype, device):
    draw = torch.Generator().manual_seed(0)
    return [(2 * torch.randn(1, 24, 1000, generator=draw)).to(dtype).to(device) for _ in range(2)]


def is_fused(device):
    return device != "cpu" or "speculators" in flp.installed()


def exact(name, logits, targets):
    kind, parameters = KINDS[name]
    return selective_divergence(logits.cpu(), targets.double().cpu(), kind=kind, parameters=parameters)["value"].to(
        logits.device)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", KINDS)
def test_losses(name, dtype, device):
    logits, targets = scores(dtype, device)
    logits.requires_grad_()

    def call():
        loss = getattr(losses if is_fused(device) else eager, name + "_loss")
        return with_gradients([loss(logits, targets)], [logits])

    doubled = doubles(logits)
    compare(*both("speculators", call), with_gradients([exact(name, *doubled, targets)], doubled), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_step_of_several_losses(dtype, device):
    """A mask, and weights that decay, as its draft models have them."""
    logits, targets = scores(dtype, device)
    logits.requires_grad_()
    every = torch.arange(24, device=device).view(1, 24)
    mask, places = every % 5 > 0, every % 8
    weights = losses.dflash_loss_decay(places.double(), 4.0)

    def call():
        config = losses.resolve_loss_config('{"kl_div": 0.1, "tv": 0.9}', "fused" if is_fused(device) else "eager")
        total, terms = losses.compound_loss(logits, targets, mask, places, config,
                                            lambda at, **_: losses.dflash_loss_decay(at, 4.0))
        return {**with_gradients([total], [logits]), **terms}

    doubled = doubles(logits)
    terms = {name + "_loss": (exact(name, *doubled, targets) * mask * weights).sum() / (mask.sum() + 1e-5)
             for name in ("kl_div", "tv")}
    want = with_gradients([0.1 * terms["kl_div_loss"] + 0.9 * terms["tv_loss"]], doubled)
    compare(*both("speculators", call), {**want, **{name: term.detach() for name, term in terms.items()}}, dtype)
