"""distill_loss: loss, metrics and gradients of distillation from a teacher's log-probabilities, in one call.

Invariants: those of policy_loss (_policy.py), whose sibling this is: the loss is a program over the targets of a row
that libflp runs between the passes over the head, gradients exist when the call returns, and the backward pass hands
them out once, times its upstream gradient.
"""
from __future__ import annotations

from typing import Literal, Mapping

from torch import Tensor

from .. import losses
from .._library import _programs, _rules
from .._tensors import _check, _lora, _top
from .._tensors._call import Call
from .._tensors._compile import outside_graphs
from .._tensors._operands import Loss
from . import _hand_out, _policy


@outside_graphs
def distill_loss(hidden: Tensor, weight: Tensor, target: Tensor, teacher_logprob: Tensor, bias: Tensor | None = None, *,
                 loss: str = "forward_kl", row_weight: Tensor | None = None, mask: Tensor | None = None,
                 total: float | Tensor | None = None, parameters: Mapping[str, float] | None = None,
                 vectors: Mapping[str, Tensor] | None = None, entropy: bool = False,
                 temperature: float | Tensor = 1.0, softcap: float | None = None, scale: float = 1.0,
                 ignore_index: int = -100, budget: int | str | None = None, lora: _lora.Lora | None = None,
                 grad_weight_accumulate: Tensor | None = None, grad_scale: float | Tensor = 1.0, topk: int = 0,
                 mixed: Literal["round", "split"] | None = None) -> tuple[Tensor, dict[str, Tensor]]:
    """Computes a divergence between a teacher and the head over the teacher's best tokens, and its gradients, without
    the (N,V) scores.

    With p_k the teacher's probability of target k of a row, q_k the head's under the softmax over all of V, and
    p_r = 1 − Σ p_k, q_r = 1 − Σ q_k all that is left, as one more outcome:

        forward_kl   Σ_k p_k·log(p_k/q_k) + p_r·log(p_r/q_r)         KL(p‖q), where the teacher's mass is
        reverse_kl   Σ_k q_k·log(q_k/p_k) + q_r·log(q_r/p_r)         KL(q‖p), where the student's is
        jsd          mix·KL(p‖m) + (1 − mix)·KL(q‖m), m = mix·p + (1 − mix)·q
        skew_kl      KL(p‖m), m = skew·p + (1 − skew)·q
        total_variation      ½ Σ |p − q| = 1 − a
        neg_log_acceptance   −log a, a = Σ min(p, q), the rate at which a speculative sampler accepts tokens of q
        lk           b·forward_kl + (1 − b)·total_variation, b = exp(−decay·a), a constant to the gradient

    hidden, weight, bias, temperature, softcap, scale, ignore_index, budget, mixed
                     as in flp.linear_logprob
    target           (..., K) int32 or int64, 1 to 512 ids a row, such as the teacher's top-k, each of them once; an id
                     that is ignore_index takes no part, a row of nothing else is outside the mask
    teacher_logprob  (..., K) floating point, in nats, of the same ids under the teacher's whole softmax
    loss             one of these, losses.DIVERGENCES; a sum of such with terms that read no logprob of one token, as
                     "forward_kl+entropy"; or the path of a Lua file with a loss over targets (flpgen loss --help),
                     which needs libflpgen
    row_weight       (...) floating point, or None: what each row's divergence counts, the loss being their sum; None:
                     the mean of the rows of the mask. A row of weight 0 counts 0 in metrics too
    mask             (...) bool or numbers 0 and 1: the rows that count; None: all. Others cost no matrix work
    total            a number or 0-dim tensor: what the mean divides by in place of the rows of this call's mask, so
                     that losses of micro-batches add up to that of the batch
    parameters       {name: number}: rest_min, the least that p_r and q_r are taken to be, 1e-6 (sums of float32
                     log-probabilities of nearly all mass end on either side of 1; q_r is a constant there);
                     rest_weight, the weight of the last outcome, 1 (0: the K tokens alone); of jsd mix, 0.5; of
                     skew_kl skew, 0.1; of lk decay, 3; of neg_log_acceptance acceptance_min, 1e-30, below which there
                     is no gradient; a file's own
    vectors          {name: (...) floating point} that a file's loss reads
    entropy          True: report the entropy of the head
    grad_weight_accumulate, grad_scale
                     as in flp.policy_loss
    lora, topk       as in flp.policy_loss; the head's own best tokens, beside the teacher's

    Returns (loss, metrics): a float32 scalar, differentiable once in hidden, weight, bias and the adapter, and a dict
    of detached scalars: the divergence by its name (each of a sum's), acceptance of lk and neg_log_acceptance, and
    entropy if it was asked for, as means of the rows of the mask. Gradients are computed here, as flp.policy_loss
    computes them; under torch.no_grad() there are none. A teacher equal to the head gives gradients of 0.
    error:  ValueError or TypeError naming the field, its value and what is accepted; flp.FlpError and its classes;
            RuntimeError in a second backward pass
    thread: safe
    source: arXiv:2306.13649 (forward and generalised Jensen-Shannon), arXiv:2306.08543 (reverse), arXiv:2402.03898
            (skew), arXiv:2606.12370 (total variation), arXiv:2602.23881 (the losses of the acceptance rate)
    """
    vectors = vectors or {}
    _check_ids(hidden, target)
    call = Call("flp.distill_loss", hidden, weight, target, bias,
                instead="torch.autograd, or under torch.func.grad flp.losses.divergence of flp.linear_logprob",
                others={"teacher_logprob": teacher_logprob, "row_weight": row_weight, "mask": mask,
                        **{"vectors[%r]" % name: value for name, value in vectors.items()}},
                entropy=_check.DETACHED if entropy else False, temperature=temperature, softcap=softcap, scale=scale,
                ignore_index=ignore_index, budget=budget, grad_weight_accumulate=grad_weight_accumulate, lora=lora,
                topk=topk, mixed=mixed)
    program = program_of(loss)
    values = _rules.parameters_of(parameters or {}, program)
    counted, lead = _counted(target, mask, call.settings.ignore_index), call.lead
    ids = call.operands["target"]
    call.operands["target"] = target.masked_fill(~counted.unsqueeze(-1), call.settings.ignore_index).reshape(ids.shape)
    teacher = _check.row_values_of("teacher_logprob", teacher_logprob, lead, target.device, targets=target.shape[-1:])
    weights = weights_of(row_weight, counted, total, lead)
    rows = {name: _check.row_values_of("vectors[%r]" % name, value, lead, target.device, ROWS)
            for name, value in vectors.items()}
    if "advantage" in program.inputs:
        _check.refuse(ValueError, "loss", "%r, which reads advantage" % loss,
                      "a loss that reads row_weight and vectors")
    _rules.check_vectors(rows, program.vectors, loss)
    grad_scale = _policy._scale_of(grad_scale, call.settings)
    weights = weights if grad_scale is None else weights * grad_scale
    value, made = _hand_out.loss_of(call, Loss(program, values, None, None, None, weights, rows, teacher), grad_scale,
                                    "flp.distill_loss")
    found = dict(zip(program.metrics, made.metrics))
    if call.settings.entropy:
        found["entropy"] = made.entropy
    share = counted.reshape(-1).float() / counted.sum().clamp(min=1)  # of the rows of the mask; others have 0
    means = {name: (values * share).sum() for name, values in found.items()}
    return value, {**means, **_top.metrics_of(made.top.tensors(), call.settings, lead)}


# ---- checks ----

def _check_ids(hidden, target):
    _check.tensor_of("hidden", hidden)
    _check.tensor_of("target", target)
    if target.dim() != hidden.dim():
        _check.refuse_shape("target", target, "%s without its last dimension, and K" % (tuple(hidden.shape),))


def program_of(loss):
    """The program of a loss over targets. error: ValueError naming loss"""
    if not isinstance(loss, str):
        _check.refuse_type("loss", loss, "a name, such as forward_kl, or a path")
    program = _programs.named(loss)
    if not program.inputs & OF_TARGETS:
        _check.refuse(ValueError, "loss", "%r, which reads no values of several targets" % loss,
                      "%s, a sum with one of them, or a file whose loss reads target_logprob"
                      % ", ".join(losses.DIVERGENCES))
    return program


OF_TARGETS = frozenset(("target_logprob", "teacher_logprob"))
ROWS = "hidden's rows"


def _counted(target, mask, ignore_index):
    """The rows that count, bool (...)."""
    return _check.counted_of(mask, (target != ignore_index).any(-1))


def weights_of(row_weight, counted, total, lead):
    _rules.check_totals(False, None, total)
    flat = counted.reshape(-1).float()
    if row_weight is None:
        return flat / (flat.sum().clamp(min=1) if total is None else total)
    if total is not None:
        _check.refuse(ValueError, "total", "given with row_weight", "None, as the weights are the average")
    return _check.row_values_of("row_weight", row_weight, lead, counted.device, ROWS).masked_fill(flat == 0, 0)
