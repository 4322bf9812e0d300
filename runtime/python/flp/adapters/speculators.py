"""speculators: the divergences of a draft's scores from its target's, of the fused losses that its draft models train
with."""
import functools

from .._functions._select_divergence import selective_divergence
from . import _call
from ._seam import Host, Seam

MODULE = "speculators.losses.fused"


def divergence(kind, parameters, logits, targets):
    """logits, targets (B,T,V) -> (B,T) float32; the targets are a constant, as in the host."""
    _call.take_pair(logits=logits, targets=targets)
    return selective_divergence(logits, targets, kind, parameters=parameters).value


def lk_hybrid(logits, targets, eta=3.0):
    _call.refuse(not eta >= 0 and "eta is %g (accepted: from 0)" % eta)
    return divergence("lk", {"decay": eta}, logits, targets)


def seam(name, source, kind, parameters=None):
    return Seam(MODULE, name, ("logits", "targets"), source,
                _call.stands("speculators", functools.partial(divergence, kind, parameters)))


HOST = Host(
    "speculators", (
        seam("fused_kl_div_loss", "730640067ebe87b6", "forward_kl"),
        seam("fused_reverse_kl_div_loss", "9dfb72c1adf9152e", "reverse_kl"),
        seam("fused_js_div_loss", "7ea59c13074d552d", "jsd"),
        seam("fused_tv_loss", "52f80ccc2cda44b8", "total_variation"),
        seam("fused_nla_loss", "f81305a5d0ae0c3f", "neg_log_acceptance", {"acceptance_min": 1e-5}),
        Seam(MODULE, "fused_lk_hybrid_loss", ("logits", "targets", "eta"), "953830dc9d2aed5b",
             _call.stands("speculators", lk_hybrid)),
    ), "speculators==0.9.0")
