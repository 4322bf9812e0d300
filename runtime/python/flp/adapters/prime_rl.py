"""prime-rl: the chunked head of its trainer, FusedOutputLinear, with a temperature a token; Gemma's with a softcap."""
import torch

from .._functions._logprob import linear_logprob
from .._functions._select import NEVER
from . import _call
from ._seam import Host, Seam

LAYERS = "prime_rl.trainer.models.layers."
PARAMETERS = ("ctx", "hidden", "weight", "labels", "inv_temperature", "chunk_size")


class WithoutGradient(torch.autograd.Function):
    """The entropies as the host hands them over: a loss may look at them, its backward pass may not reach them."""

    @staticmethod
    def forward(ctx, entropy, _logprob):
        return entropy.view_as(entropy)

    @staticmethod
    def backward(ctx, gradient):
        if gradient.any():
            raise RuntimeError("prime-rl's head has no gradient of the entropy, and flp stands in for it: the loss may "
                               "use entropy.detach() (flp.linear_logprob with entropy=True computes that gradient)")
        return None, None


def fused_head(hidden, weight, labels, inv_temperature, chunk_size, softcap=None):
    """hidden (N,D), weight (V,D), labels (N), 1 / temperature (N) [, softcap] -> logprob (N), entropy (N), float32."""
    _call.take(hidden, weight)
    logprob, entropy = linear_logprob(hidden, weight, labels, temperature=inv_temperature.float().reciprocal(),
                                      entropy="detached", softcap=softcap, ignore_index=NEVER)
    return logprob, WithoutGradient.apply(entropy, logprob)


apply = _call.stands_for_apply("prime-rl", fused_head)
HOST = Host(
    "prime-rl", (
        Seam(LAYERS + "lm_head", "_SequenceChunkedLogProbEntropyFn.apply", PARAMETERS,
             "ce41392bc9c2309c b40824f1f0beed34", apply, "_SequenceChunkedLogProbEntropyFn.forward"),
        Seam(LAYERS + "lm_head_gemma", "_GemmaChunkedLogProbEntropyFn.apply", (*PARAMETERS, "softcap"),
             "66c7e17cf57bd948", apply, "_GemmaChunkedLogProbEntropyFn.forward"),
    ), "github.com/PrimeIntellect-ai/prime-rl at commit 559b44772e471d1538537b8805cc77f3824a5e64, or tag v0.8.0")
