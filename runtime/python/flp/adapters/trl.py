"""TRL: the fused head that every trainer and reference model scores with, the divergence of two heads, and
selective_log_softmax."""
import inspect

import torch

from .._functions._divergence import divergence, divergence_loss
from .._functions._logprob import linear_logprob
from .._functions._select import NEVER, selective_log_softmax
from .._library import _programs
from .._tensors import _check
from . import _call
from ._seam import Host, Seam

# What TRL asks for beside log-probabilities and entropies, in its order: fields of flp.Statistics.
STATISTICS = {"log_sum_sq_probs": "log_squares", "mean_logits": "mean_score", "is_top1": "is_best"}
# Its beta that is a divergence of its own; any other is the mix of jsd.
KINDS = {0: "forward_kl", 1: "reverse_kl"}


def fused_head(hidden, weight, bias, targets, temperature, chunk_size, final_logit_softcapping=None, logit_scale=1.0,
               outputs=("entropy", *STATISTICS)):
    """ChunkedLogProbFunction.apply: hidden (N, D), weight (V, D), targets (N) -> five outputs (N) or None.

    The host rounds weight and bias to hidden's dtype, as for float32 masters beside a bfloat16 trunk. is_top1 counts a
    target that shares the highest score with an earlier token, which the host does not.
    """
    mixed = _call.rounded(hidden, weight, bias)
    _call.take(hidden, weight, bias, mixed)
    asked = [name for name in STATISTICS if name in outputs]
    wants_entropy = "entropy" in outputs
    results = linear_logprob(hidden, weight, targets, bias, temperature=temperature, entropy=wants_entropy,
                             softcap=final_logit_softcapping, scale=logit_scale, ignore_index=NEVER, mixed=mixed,
                             statistics=bool(asked))
    logprob, *more = results if wants_entropy or asked else (results,)
    entropy = more.pop(0) if wants_entropy else None
    return logprob, entropy, *(getattr(more[0], STATISTICS[name]) if name in asked else None for name in STATISTICS)


def two_heads(student_hidden, student_weight, student_bias, teacher_hidden, teacher_weight, teacher_bias, beta,
              temperature=1.0, student_logit_scale=1.0, student_final_logit_softcapping=None, teacher_logit_scale=1.0,
              teacher_final_logit_softcapping=None):
    """ChunkedDivergenceFunction.apply: hidden (N, D) and (N, E), weight (V, D) and (V, E) -> the divergence (N) and,
    without a gradient, the student's entropy (N), float32.

    The host rounds weight and bias to their hidden's dtype; this does so too, and with their gradients.
    """
    found = divergence(**_pair_of(
        student_hidden, student_weight, student_bias, teacher_hidden, teacher_weight, teacher_bias, beta, temperature,
        student_logit_scale, student_final_logit_softcapping, teacher_logit_scale, teacher_final_logit_softcapping))
    return found.value, found.entropy


def distillation_loss(student_hidden_states, teacher_hidden_states, student_lm_head_weight, teacher_lm_head_weight,
                      completion_mask, beta, num_items_in_batch=None, student_lm_head_bias=None,
                      teacher_lm_head_bias=None, student_logit_scale=1.0, teacher_logit_scale=1.0,
                      student_final_logit_softcapping=None, teacher_final_logit_softcapping=None, temperature=1.0):
    """_chunked_divergence_loss: hidden (B, K, D) and (B, K, E), weight (V, D) and (V, E), mask (B, K) -> the loss, its
    gradients made in this call, the sum of entropies and the number of rows that the mask has."""
    dtypes = student_hidden_states.dtype, _check.autocast_dtype(student_hidden_states.device.type)
    _call.refuse(torch.float16 in dtypes and
                 "gradients in float16 would be made before the loss scaler multiplies the loss")
    mask, total = completion_mask != 0, num_items_in_batch
    total = total.to(mask.device) if isinstance(total, torch.Tensor) else total
    loss, metrics = divergence_loss(mask=mask, total=total, **_pair_of(
        student_hidden_states, student_lm_head_weight, student_lm_head_bias, teacher_hidden_states,
        teacher_lm_head_weight, teacher_lm_head_bias, beta, temperature, student_logit_scale,
        student_final_logit_softcapping, teacher_logit_scale, teacher_final_logit_softcapping))
    counted = mask.sum()
    return loss, metrics["entropy"] * counted, counted


def _pair_of(hidden, weight, bias, teacher_hidden, teacher_weight, teacher_bias, beta, temperature, scale, softcap,
             teacher_scale, teacher_softcap):
    """What divergence takes of the host's numbers. error: Refused"""
    kind = KINDS.get(beta, "jsd")
    if kind == "jsd":
        _, least, most = _programs.builtin(kind).parameters["mix"]
        if not least <= beta <= most:
            raise _call.Refused("beta is %g (accepted: 0, 1 and %g to %g)" % (beta, least, most))
    weight, bias = _head_of(hidden, weight, bias)
    teacher_weight, teacher_bias = _head_of(teacher_hidden, teacher_weight, teacher_bias, "in the teacher, ")
    if len(teacher_weight) != len(weight):
        raise _call.Refused("the teacher has %d tokens, the student %d" % (len(teacher_weight), len(weight)))
    return {"hidden": hidden, "weight": weight, "bias": bias, "teacher_hidden": teacher_hidden,
            "teacher_weight": teacher_weight, "teacher_bias": teacher_bias, "kind": kind, "temperature": temperature,
            "parameters": {"mix": beta} if kind == "jsd" else None, "scale": scale, "softcap": softcap,
            "teacher_scale": teacher_scale, "teacher_softcap": teacher_softcap}


def _head_of(hidden, weight, bias, whose=""):
    """weight and bias as the host computes with them. error: Refused"""
    mixed = _call.rounded(hidden, weight, bias)
    reason = _call.refusal(hidden, weight, bias, mixed)
    _call.refuse(reason and whose + reason)
    return [tensor.to(hidden.dtype) if mixed and tensor is not None else tensor for tensor in (weight, bias)]


def selective(host):
    """selective_log_softmax: logits (..., V), index (...) or (..., K) -> log-probabilities of index's shape: float32
    where the host has a kernel of its own (on a GPU, one index a row), else of the scores' dtype."""
    own = host.__globals__

    @_call.in_place("trl", host)
    def through_flp(logits, index, temperature=1.0, row_mask=None):
        _call.refuse(_call.scores_refusal(logits))
        fused = own["is_triton_available"]() and own["_supports_trl_loss_kernel"](logits, index, row_mask)
        if row_mask is not None:
            index = index.long().masked_fill(row_mask == 0, NEVER)
        return selective_log_softmax(logits, index, temperature=temperature, ignore_index=NEVER,
                                     out_dtype=torch.float32 if fused else None)

    return through_flp


HOST = Host(
    "trl", (
        Seam("trl.kernels.chunked_logprob", "ChunkedLogProbFunction.apply",
             ("ctx", "hidden", "weight", "bias", "targets", "temperature", "chunk_size", "final_logit_softcapping",
              "logit_scale", "outputs"), "1d8220b44273cdf3", _call.stands_for_apply("trl", fused_head),
             "ChunkedLogProbFunction.forward"),
        Seam("trl.kernels.chunked_divergence", "ChunkedDivergenceFunction.apply",
             ("ctx", *inspect.signature(two_heads).parameters), "ca2ff98ab97c5c7c",
             _call.stands_for_apply("trl", two_heads), "ChunkedDivergenceFunction.forward"),
        Seam("trl.trainer.distillation_trainer", "_chunked_divergence_loss",
             tuple(inspect.signature(distillation_loss).parameters), "550cb45191ab1654",
             _call.stands("trl", distillation_loss)),
        Seam("trl.trainer.utils", "selective_log_softmax", ("logits", "index", "temperature", "row_mask"),
             "e55428ff89caff25", selective),
    ), "trl==1.16.0")
