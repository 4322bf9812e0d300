"""The exact divergence to a reference's head beside the loss of a policy update, in one step.

Invariants: those of policy_loss (_policy.py). The reference is a constant. Scores of both heads are made once, a chunk
of rows at a time; the loss's program runs between the divergence's values and its gradient (_beside.py), which takes
the gradients of log-probability and entropy with it.
"""
from __future__ import annotations

import functools
from typing import Mapping, NamedTuple

import torch
from torch import Tensor

from .._eager._beside import Beside
from .._passes import _run
from .._tensors import _check
from .._tensors._operands import OPERANDS, Loss, Operands
from . import _hand_out, _loss_rows
from ._pair import Pair

UNREAD = "lse", "mean_score"  # inputs of a loss whose gradients a divergence's do not take with them
METRICS = "policy_loss", "clip_fraction", "ratio", "kl_old", "kl"  # of policies, beside those of a loss
TARGET = OPERANDS.index("target")


class Reference(NamedTuple):
    """A head whose distribution flp.policy_loss keeps the policy's near: hidden (B, T, E), weight (V, E) and bias (V)
    of the reference, constants of one dtype on hidden's device; kind, one of flp.divergence's, and its parameters;
    coefficient, above 0, which the divergence is multiplied by; temperature, a number or (B, T), None: that of the
    call; softcap and scale as in flp.linear_logprob."""

    hidden: Tensor
    weight: Tensor
    bias: Tensor | None = None
    kind: str = "reverse_kl"
    coefficient: float = 1.0
    parameters: Mapping[str, float] | None = None
    temperature: float | Tensor | None = None
    softcap: float | None = None
    scale: float = 1.0


def tensors_of(reference):
    """The tensors of what may be a Reference, by field."""
    given = reference if isinstance(reference, Reference) else ()
    return {"reference." + name: each for name, each in zip(Reference._fields, given) if isinstance(each, Tensor)}


def beside_of(function, call, reference, temperature, wishes):
    """What makes the loss of a call and a Reference, as loss_of its last arguments; None without one. temperature: of
    the call, as it was given. error: ValueError and TypeError naming the field"""
    if reference is None:
        return None
    if not isinstance(reference, Reference):
        _check.refuse_type("reference", reference, "a flp.Reference, or None")
    if wishes.program is None:
        _check.refuse(ValueError, "reference", "given with rule %r" % wishes.rule, "None, as it is no loss of tokens")
    unread = [name for name in UNREAD if name in wishes.program.inputs]
    if unread:
        _check.refuse(ValueError, "reference", "given with a loss that reads %s" % " and ".join(unread), "None")
    if call.operands["hidden"].dtype is torch.float16:
        _check.refuse_dtype("hidden", call.operands["hidden"], "bfloat16 or float32 with reference")
    if not _check.number_of("reference.coefficient", reference.coefficient) > 0:
        _check.refuse(ValueError, "reference.coefficient", reference.coefficient, "a number above 0")
    options = {"temperature": reference.temperature, "softcap": reference.softcap, "scale": reference.scale,
               "ignore_index": call.settings.ignore_index}
    with _check.renaming(lambda name: "reference." + name if name.startswith(("kind", "parameters")) else name):
        pair = Pair(function, reference.kind, reference.parameters, call, reference[:3], None, False, None,
                    {"temperature": temperature}, options, prefix="reference.")
        taken = *METRICS, *wishes.program.metrics
        if pair.program.name in taken:
            _check.refuse(ValueError, "kind", repr(reference.kind), "a file of another name than the metrics %s" %
                          ", ".join(dict.fromkeys(taken)))
    return functools.partial(loss_of, pair, reference.coefficient)


def loss_of(pair, coefficient, loss, grad_scale, mask):
    """-> the sum of a Loss and the divergence times the coefficient, differentiable, as _hand_out.loss_of; the Step of
    the loss; metrics of the divergence. mask: (N), the rows that count"""
    call, tensors = pair.student, pair.tensors()
    call.settings = _run.settings_of_step(Operands(**call.operands), call.settings, call.grads)
    later = _hand_out.is_later(call.settings, call.grads)
    scale = 1.0 if grad_scale is None else grad_scale
    with torch.no_grad():
        step, found, gradients = _made(pair.run, coefficient, 0 if later else call.grads, loss, tensors)
        divergence = torch.where(loss.weight == 0, loss.weight, loss.weight * found.value).sum() / scale
        value = step.loss.sum() / scale + coefficient * divergence
    value = _hand_out.handed_out(call, value, grad_scale, pair.function, gradients, later and functools.partial(
        _made_later, pair.run, coefficient, call.grads, loss.program, loss.parameters, len(tensors)),
        (*tensors, *loss.tensors()))
    share = mask / mask.sum().clamp(min=1)
    seen = {"acceptance": found.acceptance, "agreement": found.agrees.float()}
    return value, step, {pair.program.name: divergence,
                         **{name: (values * share).sum() for name, values in seen.items()}}


def _made(run, coefficient, grads, loss, tensors):
    """-> the Step, the Divergence of rows, and the gradients of hidden, weight and bias."""
    target = tensors[TARGET]
    beside = Beside(loss, target, bool(grads), _loss_rows.evaluate_of(loss.program, _run.device_of(target)))
    return (beside.step, *run(*tensors, upstream=loss.weight * coefficient, grads=grads, beside=beside))


def _made_later(run, coefficient, grads, program, parameters, count, *saved):
    """The gradients of a loss that is made now. saved: leaves, what run takes, so many, and tensors of the Loss"""
    tensors = saved[_hand_out.LEAVES:]
    loss = Loss.of_tensors(program, parameters, tensors[count:])
    return _made(run, coefficient, grads, loss, tensors[:count])[2]
