"""divergence and divergence_loss: how far a student's distribution is from a teacher's, both given by hidden states
and a head.

Invariants: the teacher is a constant. divergence makes its gradients in the backward pass, from both heads' operands;
divergence_loss, a sibling of policy_loss (_policy.py), makes them when it is called and hands them out once.
"""
from __future__ import annotations

import functools
from typing import Mapping

import torch
from torch import Tensor

from .._library import _plans
from .._passes import _run
from .._tensors import _check
from .._tensors._compile import outside_graphs
from .._tensors._operands import Operands
from . import _distill, _hand_out, _payload, _policy
from ._info import PlanInfo
from ._kinds import Divergence
from ._pair import Pair
from ._payload import Payload


@outside_graphs
def divergence(hidden: Tensor, weight: Tensor, teacher_hidden: Tensor | None = None,
               teacher_weight: Tensor | None = None, kind: str = "reverse_kl", bias: Tensor | None = None,
               teacher_bias: Tensor | None = None, *, payload: Payload | None = None,
               teacher_ids: Tensor | None = None, renormalise: bool = False, mask: Tensor | None = None,
               parameters: Mapping[str, float] | None = None,
               temperature: float | Tensor = 1.0, teacher_temperature: float | Tensor | None = None,
               softcap: float | None = None, teacher_softcap: float | None = None, scale: float = 1.0,
               teacher_scale: float = 1.0, budget: int | str | None = None,
               grad_weight_accumulate: Tensor | None = None) -> Divergence:
    """Computes the divergence of each token's distributions under two heads over the same vocabulary, without their
    (N,V) scores.

    With p the teacher's probabilities, q the student's, each the softmax over all of V of t as in flp.linear_logprob:

        forward_kl           Σ_v p·log(p/q)                          KL(p‖q)
        reverse_kl           Σ_v q·log(q/p)                          KL(q‖p)
        jsd                  mix·KL(p‖m) + (1 − mix)·KL(q‖m), m = mix·p + (1 − mix)·q
        skew_kl              KL(p‖m), m = skew·p + (1 − skew)·q
        total_variation      ½ Σ_v |p − q| = 1 − a
        neg_log_acceptance   −log a, a = Σ_v min(p, q), at least acceptance_min
        lk                   b·forward_kl + (1 − b)·total_variation, b = exp(−decay·a), a constant to the gradient

    beta 0 of Liger and TRL is forward_kl and 1 is reverse_kl, which jsd does not tend to: near 0 it is mix·forward_kl.

    hidden           (..., D) bfloat16, float16 or float32; cpu or cuda; D a multiple of 8: zeros behind the columns of
                     hidden and weight change nothing
    weight           (V, D) of the same dtype; bias (V) of the same dtype, or None
    teacher_hidden   (..., E) of as many rows, of any of these dtypes; E a multiple of 8
    teacher_weight   (V, E) of teacher_hidden's dtype; may be weight itself. teacher_bias (V) of it, or None
    kind             one of these, losses.DIVERGENCES; or the path of a loss over targets, *.lua, in the language of
                     templates/README.md, whose targets are all columns: it reads target_logprob, log q, and
                     teacher_logprob, log p, and its weight is 1
    payload          what flp.divergence_payload gave of this very weight and bias, in the place of a teacher, or None;
                     with kind="forward_kl", a head without a gradient and without a softcap. temperature is the
                     student's then, whatever the teacher's was; teacher_lse, acceptance and agrees are None. It runs as
                     flp.linear_logprob does, on its rung and in its budget. The value is lse less as large numbers, so
                     off by their float32 rounding, some 1e-6 of lse; one far below 0, of a payload of another head, is
                     NaN
    teacher_ids      (V) int32 or int64, or None: the row of teacher_weight (U, E) that is each token of the student, as
                     of a draft whose vocabulary is a part of the teacher's; each once. None: the same rows
    renormalise      with teacher_ids. False: p is the softmax over all U tokens, of which those that the student lacks
                     are one more outcome, of q = 0; forward_kl and lk, which would be infinite, are refused always.
                     True: over the student's tokens alone
    mask             (...) bool or numbers 0 and 1: the rows that count; None: all. Others give 0 and cost no work,
                     whatever they hold. Any other number counts as 1: of labels give labels != -100
    parameters       {name: number}: of jsd mix, 0.001 to 0.999, 0.5; of skew_kl skew, 1e-6 to 0.999, 0.1; of lk decay,
                     from 0, 3; of neg_log_acceptance acceptance_min, 1.2e-38 to 0.5, 1e-30: a lower rate counts as that
                     and has no gradient
    temperature      a number above 0, or a tensor of one a row (...); teacher_temperature None: the same. Nothing is
                     multiplied by its square
    softcap, scale   as in flp.linear_logprob, of the student; teacher_softcap, teacher_scale of the teacher
    budget           bytes, or "64M", of workspace and of what the forward pass keeps; None: FLP_BUDGET, else that of a
                     pass with gradients. A chunk takes 8 bytes a row and token of V, with gradients 2 or 4 more; a
                     trained head of bfloat16 1 an element, of float16 4.
                     As torch operations 2 KiB a token of V, 32 KiB an element of D and E and 72 MiB are needed on
                     the CPU, on a GPU eight times as much of the last two
    grad_weight_accumulate
                     as in flp.linear_logprob

    Returns a Divergence. Gradients of value reach hidden, weight and bias as they require them (no double backward);
    the teacher is a constant, even where it is the same head. A divergence of two heads is never below 0, and 0 with
    gradients of 0 where both heads and their operands are the same, but for float32's rounding; it is infinite where
    its formula is, as forward_kl of a token that the student excludes, and where its slope is too, as that of
    reverse_kl of one that the teacher excludes, its gradients are NaN. Rows whose temperature float32 does not hold
    above 0 are NaN and counted, as are rows whose largest score of either head over T is beyond 7.4e8 or -inf:
    flp.check() reports them. On a GPU forward passes store the scores of chunks of rows, as the budget has room for, a
    kernel (flp_diverge) makes all that is of them, and backward passes the products with their gradient: values of a
    row depend on the row alone, to the bit. Of a frozen head the forward pass makes the gradient of hidden too, for
    upstream gradients of 1, and keeps it, 4 bytes an element; of another it keeps the gradient of all scores, 2 or 4
    bytes a row and token, where the budget has room for it; else the backward pass makes scores anew. With teacher_ids
    and without renormalise a third forward pass sums the scores of all U tokens. The CPU runs chunked torch
    operations, products in float32, sums in float64. With a mask, with teacher_ids, with temperatures of rows, in the
    backward pass of a trained head in flp.divergence and as torch operations something is counted on the host, which
    synchronises; else nothing does, and a CUDA graph can capture the call.
    error:  ValueError or TypeError naming the field, its value and what is accepted; flp.FlpError and its classes
    thread: safe
    source: as flp.distill_loss, over the whole vocabulary
    """
    if payload is not None:
        _alone(kind, {
            "teacher_hidden": teacher_hidden, "teacher_weight": teacher_weight, "teacher_bias": teacher_bias,
            "teacher_ids": teacher_ids, "renormalise": renormalise or None, "parameters": parameters or None,
            "teacher_temperature": teacher_temperature, "softcap": softcap, "teacher_softcap": teacher_softcap,
            "teacher_scale": None if teacher_scale == 1 else teacher_scale,
            "grad_weight_accumulate": grad_weight_accumulate})
        value, lse, entropy = _payload.divergence_of(payload, hidden, weight, bias, mask, temperature, scale, budget)
        return Divergence(value, lse, None, entropy, None, None)
    for field, value in (("teacher_hidden", teacher_hidden), ("teacher_weight", teacher_weight)):
        if value is None:
            _check.refuse(ValueError, field, None, "a tensor, or payload")
    pair = Pair("flp.divergence", kind, parameters, (hidden, weight, bias),
                (teacher_hidden, teacher_weight, teacher_bias), teacher_ids, renormalise, mask, {
        "temperature": temperature, "softcap": softcap, "scale": scale, "budget": budget,
        "grad_weight_accumulate": grad_weight_accumulate}, {
        "temperature": teacher_temperature, "softcap": teacher_softcap, "scale": teacher_scale})
    return pair.by_row()


@outside_graphs
def divergence_loss(hidden: Tensor, weight: Tensor, teacher_hidden: Tensor, teacher_weight: Tensor,
                    kind: str = "reverse_kl", bias: Tensor | None = None, teacher_bias: Tensor | None = None, *,
                    teacher_ids: Tensor | None = None, renormalise: bool = False, row_weight: Tensor | None = None,
                    mask: Tensor | None = None, total: float | Tensor | None = None,
                    parameters: Mapping[str, float] | None = None, temperature: float | Tensor = 1.0,
                    teacher_temperature: float | Tensor | None = None, softcap: float | None = None,
                    teacher_softcap: float | None = None, scale: float = 1.0, teacher_scale: float = 1.0,
                    budget: int | str | None = None, grad_weight_accumulate: Tensor | None = None,
                    grad_scale: float | Tensor = 1.0) -> tuple[Tensor, dict[str, Tensor]]:
    """Computes the mean, or a weighted sum, of flp.divergence over its rows, and its gradients, in one call.

    row_weight   (...) floating point, or None: what each row's divergence counts, the loss being their sum; None: the
                 mean of the rows of the mask
    total        a number or 0-dim tensor: what the mean divides by in place of the rows of this call's mask, so that
                 losses of micro-batches add up to that of the batch; 1 gives the sum
    grad_scale   as in flp.policy_loss
    All others are those of flp.divergence; grad_weight_accumulate is added to here, not in the backward pass.

    Returns (loss, metrics): a float32 scalar, differentiable once in hidden, weight and bias, and a dict of detached
    scalars: the divergence by its name, entropy of the student, acceptance and agreement, the share of rows whose best
    tokens agree, as means of the rows of the mask, whatever their row_weight. Gradients are computed here; under
    torch.no_grad() there are none.
    error:  ValueError or TypeError naming the field, its value and what is accepted; flp.FlpError and its classes;
            RuntimeError in a second backward pass
    thread: safe
    source: as flp.distill_loss, over the whole vocabulary
    """
    pair = Pair("flp.divergence_loss", kind, parameters, (hidden, weight, bias),
                (teacher_hidden, teacher_weight, teacher_bias), teacher_ids, renormalise, mask, {
        "temperature": temperature, "softcap": softcap, "scale": scale, "budget": budget,
        "grad_weight_accumulate": grad_weight_accumulate}, {
        "temperature": teacher_temperature, "softcap": teacher_softcap, "scale": teacher_scale},
        {"row_weight": row_weight})
    student, tensors = pair.student, pair.tensors()
    student.settings = _run.settings_of_step(Operands(**student.operands), student.settings, student.grads)
    weights = _distill.weights_of(row_weight, pair.counted, total, student.lead)
    grad_scale = _policy._scale_of(grad_scale, student.settings)
    weights = weights if grad_scale is None else weights * grad_scale
    later = _hand_out.is_later(student.settings, student.grads)
    with torch.no_grad():
        found, gradients = pair.run(*tensors, upstream=weights, grads=0 if later else student.grads)
        loss = torch.where(weights == 0, weights, weights * found.value).sum()
        loss = loss if grad_scale is None else loss / grad_scale
    loss = _hand_out.handed_out(student, loss, grad_scale, pair.function, gradients, later and functools.partial(
        _made_later, pair.run, student.grads), (weights, *tensors))
    share = pair.counted.reshape(-1).float() / pair.counted.sum().clamp(min=1)
    seen = {pair.program.name: found.value, "entropy": found.entropy, "acceptance": found.acceptance,
            "agreement": found.agrees.float()}
    return loss, {name: (values.detach() * share).sum() for name, values in seen.items()}


@outside_graphs
def explain_divergence(hidden: Tensor, weight: Tensor, teacher_hidden: Tensor, teacher_weight: Tensor,
                       kind: str = "reverse_kl", bias: Tensor | None = None, teacher_bias: Tensor | None = None, *,
                       teacher_ids: Tensor | None = None, renormalise: bool = False, softcap: float | None = None,
                       teacher_softcap: float | None = None, budget: int | str | None = None,
                       grad_weight_accumulate: Tensor | None = None) -> PlanInfo:
    """Reports what the same call of flp.divergence or flp.divergence_loss would run over all its rows -> PlanInfo;
    computes nothing.

    Its forward and backward are those of flp.divergence with gradients of operands that require them; its step is
    flp.divergence_loss. Each has mode, "diverge" of kernels or "torch"; products; bytes beyond results; and of kernels
    the rows whose scores, and whose gradient, a chunk holds (chunk_rows, gradient_rows), and how many chunks there are;
    forward saved_bytes, if it keeps any. All arguments are those of flp.divergence, of which the others change nothing
    here.
    error:  ValueError or TypeError naming the field, its value and what is accepted; flp.FlpError and its classes
    """
    pair = Pair("flp.explain_divergence", kind, None, (hidden, weight, bias),
                (teacher_hidden, teacher_weight, teacher_bias), teacher_ids, renormalise, None, {
        "temperature": 1.0, "softcap": softcap, "budget": budget, "grad_weight_accumulate": grad_weight_accumulate},
        {"temperature": None, "softcap": teacher_softcap})
    text, plan, passes = pair.explained()
    return PlanInfo(text, _plans.rung_name(plan.rung), plan.reasons(), plan.plan_id(),
                    _plans.device_name(plan.key.device), *passes)


def _made_later(run, grads, *saved):
    """The gradients of a loss that run makes now. saved: leaves, weights of rows, and what run takes"""
    weights, *tensors = saved[_hand_out.LEAVES:]
    return run(*tensors, upstream=weights, grads=grads, counts=False)[1]


def _alone(kind, others):
    """Refuses what does not go with a payload."""
    if kind != "forward_kl":
        _check.refuse(ValueError, "kind", repr(kind), "forward_kl with payload")
    for field, value in others.items():
        if value is not None:
            _check.refuse(ValueError, field, "given", "None with payload")
