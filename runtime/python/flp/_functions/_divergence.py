"""divergence and divergence_loss: how far a student's distribution is from a teacher's, both given by hidden states
and a head.

Invariants: the teacher is a constant. divergence makes its gradients in the backward pass, from both heads' operands;
divergence_loss, a sibling of policy_loss (_policy.py), makes them when it is called and hands them out once.
"""
from __future__ import annotations

import functools
from typing import Mapping, NamedTuple

import torch
from torch import Tensor

from .. import losses
from .._eager import _eager_divergence
from .._library import _plans, _programs
from .._passes import _autograd, _run, _watch
from .._tensors import _check
from .._tensors._call import Call
from .._tensors._compile import outside_graphs
from .._tensors._operands import GRADIENTS, OPERANDS, Operands
from . import _distill, _diverge, _hand_out, _payload, _policy
from ._payload import Payload


class Divergence(NamedTuple):
    """What flp.divergence gives of each row, (...) each: value, float32 in nats, differentiable; and without a gradient
    lse and teacher_lse, the log-sum-exps of the student's and the teacher's scores over T, float32 in nats; entropy of
    the student, float32 in nats; acceptance, Σ min(p, q), float32; agrees, bool, whether both have the same best
    token. With a payload, which lacks what they need, teacher_lse, acceptance and agrees are None."""

    value: Tensor
    lse: Tensor
    teacher_lse: Tensor | None
    entropy: Tensor
    acceptance: Tensor | None
    agrees: Tensor | None


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

    hidden           (..., D) bfloat16, float16 or float32; cpu or cuda; D a multiple of 8
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
                     whatever they hold
    parameters       {name: number}: of jsd mix, 0.001 to 0.999, 0.5; of skew_kl skew, 1e-6 to 0.999, 0.1; of lk decay,
                     from 0, 3; of neg_log_acceptance acceptance_min, 1.2e-38 to 0.5, 1e-30: a lower rate counts as that
                     and has no gradient
    temperature      a number above 0, or a tensor of one a row (...); teacher_temperature None: the same. Nothing is
                     multiplied by its square
    softcap, scale   as in flp.linear_logprob, of the student; teacher_softcap, teacher_scale of the teacher
    budget           bytes, or "64M", of workspace; None: FLP_BUDGET, else that of a pass with gradients. A chunk takes
                     8 bytes a row and token of V, with gradients 2 or 4 more; a trained head of 16 bits 4 an element.
                     As torch operations 2 KiB a token of V, 32 KiB an element of D and E and 72 MiB are needed on
                     the CPU, on a GPU eight times as much of the last two
    grad_weight_accumulate
                     as in flp.linear_logprob

    Returns a Divergence. Gradients of value reach hidden, weight and bias as they require them (no double backward);
    the teacher is a constant, even where it is the same head. A divergence of two heads is never below 0, and 0 with
    gradients of 0 where both heads and their operands are the same, but for
    float32's rounding; it is infinite where
    its formula is, as forward_kl of a token that the student excludes, and where its slope is too, as that of
    reverse_kl of one that the teacher excludes, its gradients are NaN. Rows whose temperature float32 does not hold
    above 0 are NaN and counted, as are rows whose largest score of either head over T is beyond 7.4e8 or -inf:
    flp.check() reports them. On a
    GPU torch makes the products, of 16-bit operands as they are, and a kernel of flp (flp_diverge) all that is of
    scores, in chunks of rows as the budget has room for; vocabularies over ranks, teacher_ids without renormalise and
    the CPU run as chunked torch operations, products in float32, sums in float64. Rows are counted on the host: this
    synchronises.
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
                 losses of micro-batches add up to that of the batch
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
    is_later = student.settings.accumulate is not None and _hand_out.are_hooks_in_force()
    with torch.no_grad():
        found, gradients = pair.run(*tensors, upstream=weights, grads=0 if is_later else student.grads)
        loss = torch.where(weights == 0, weights, weights * found.value).sum()
        loss = loss if grad_scale is None else loss / grad_scale
    if student.grads:
        leaves = [student.operands[leaf] for leaf in GRADIENTS]
        made, others = (functools.partial(_made_later, pair.run, student.grads), (weights, *tensors)) if is_later else \
            (_hand_out.existing, (*gradients, None, None))
        loss = _hand_out.HandOut.apply(*leaves, loss, made, grad_scale, pair.function, *others)
    share = pair.counted.reshape(-1).float() / pair.counted.sum().clamp(min=1)
    seen = {pair.program.name: found.value, "entropy": found.entropy, "acceptance": found.acceptance,
            "agreement": found.agrees.float()}
    return loss, {name: (values.detach() * share).sum() for name, values in seen.items()}


# ---- one call ----

INSTEAD = "torch.autograd, or under torch.func.grad losses of scores that exist"
KINDS = ", ".join(losses.DIVERGENCES) + ", or the path of a loss over targets, *.lua"
OTHERS = ("entropy", "acceptance", "agreement")  # metrics beside the divergence
OF_COLUMNS = {"target_logprob", "teacher_logprob", "weight"}  # what a loss over all columns may read
WITHOUT_REST = ("forward_kl", "lk")  # kinds that are infinite where p > 0 and q = 0


class Pair:
    """Student and teacher of one call, checked: a Call each; counted, the rows that count, bool (...); whole and ids,
    of the teacher's head where it has more columns, or None both."""

    def __init__(self, function, kind, parameters, student, teacher, ids, renormalise, mask, options, teacher_options,
                 others=None, shared=None):
        """student, teacher: hidden, weight and bias; options: those of Call, of either head; others: more tensors, by
        field; shared: what ranks have in common, parallel's Shared, or None"""
        own, self.program = _kind_of(kind, shared)
        given = {**own.options, **_options_of(kind, self.program, own, parameters or {})}
        self.function, self.kind, self.given = function, kind, given
        self.of = own.of and (lambda *values: own.of(losses.Outcomes(*values), **given))
        hidden, weight, bias = student
        _check.tensor_of("hidden", hidden)
        self.shared, lead = shared, hidden.shape[:-1] if shared is None else shared.lead(hidden)
        every = torch.zeros(lead, dtype=torch.int64, device=hidden.device)
        of_teacher = dict(zip(("teacher_hidden", "teacher_weight", "teacher_bias"), teacher))
        self.student = Call(function, hidden, weight, every, bias, instead=INSTEAD, several=False, lead=lead,
                            others={"mask": mask, **of_teacher, **(others or {})}, **options)
        with _check.renaming(lambda name: "teacher_" + name):
            self.teacher = _teacher_of(function, teacher, hidden, every, {
                **teacher_options, "temperature": options["temperature"] if teacher_options["temperature"] is None
                else teacher_options["temperature"]})
        _check.same_device("teacher_hidden", teacher[0], "hidden", hidden)
        for field, each in (("hidden", hidden), ("teacher_hidden", teacher[0])):
            if each.shape[-1] % 8:
                _check.refuse_shape(field, each, "(..., D), D a multiple of 8")
        if shared is None and len(weight) < 2:
            _check.refuse_shape("weight", weight, "(V, D), V at least 2")
        if ids is None and len(teacher[1]) != len(weight):
            _check.refuse_shape("teacher_weight", teacher[1], "(%d, E), as weight has %d rows, or teacher_ids" %
                                (len(weight), len(weight)))
        self.whole = self.ids = None
        if not isinstance(renormalise, bool):
            _check.refuse_type("renormalise", renormalise, "True or False")
        if ids is not None or renormalise:
            self._take_part(ids, renormalise, weight)
        self.counted = _payload.leave_out(mask, every, self.student, self.teacher)

    def _take_part(self, ids, renormalise, weight):
        """Makes the teacher's head one of the student's tokens."""
        _check_ids(ids, weight, self.teacher.operands["weight"])
        if not renormalise and self.kind in WITHOUT_REST:
            _check.refuse(ValueError, "renormalise", renormalise, "True with %s, which is infinite where the student "
                          "lacks a token" % self.kind)
        rows = self.teacher.operands
        if not renormalise and self.of is None:
            _check.refuse(ValueError, "renormalise", renormalise, "True with a kind of a file")
        if not renormalise:
            self.whole, self.ids = dict(rows), ids.long()
        rows.update({name: None if rows[name] is None else rows[name][ids.long()] for name in ("weight", "bias")})

    def tensors(self):
        """What run takes."""
        whole = (None,) * 2 if self.whole is None else (self.whole["weight"], self.whole["bias"])
        return (*self.student.operands.values(), *self.teacher.operands.values(), *whole, self.ids)

    def by_row(self):
        """The Divergence of this call."""
        grads, tensors = self.student.grads, self.tensors()
        found = _ByRow.apply(*tensors, self.run, grads) if grads else self.run(*tensors)[0]
        return Divergence(*(values.reshape(self.student.lead) for values in found))

    @property
    def run(self):
        """A function of tensors() -> the Divergence of flattened rows, and the gradients of hidden, weight and bias,
        None where they are not in the mask grads. upstream: (N) float32 that each row's value is multiplied by in
        them"""
        return functools.partial(_run_pair, self.student.settings, self.teacher.settings, self.program,
                                 self.given, self.of, self.shared, self.student.grads)


def _run_pair(student_settings, teacher_settings, program, given, of, shared, all_grads, *tensors, upstream=None,
              grads=0, counts=True):
    *pair, whole_weight, whole_bias, ids = tensors
    if shared is not None:
        pair[0], pair[len(OPERANDS)] = shared.rows(pair[0]), shared.rows(pair[len(OPERANDS)])
    student, teacher = (Operands(*pair[at:at + len(OPERANDS)]) for at in (0, len(OPERANDS)))
    whole = None if ids is None else Operands(teacher.hidden, whole_weight, whole_bias, *pair[len(OPERANDS) + 3:])
    with torch.no_grad():
        problem = _eager_divergence.Problem(
            student, student_settings, teacher, teacher_settings, whole, ids, of, shared and shared.group)
        plan = _diverge.plan_of(problem, program, all_grads)
        if plan is not None:
            found, gradients = _diverge.run(plan, problem, program, given, upstream, grads, counts)
        else:
            plan = _run.torch_plan(student, student_settings)
            found, gradients = _eager_divergence.run(plan, problem, upstream, grads, counts)
        _watch.told(_plans.rung_name(plan.rung), "diverge")
        if shared is not None and gradients[0] is not None:
            gradients = (shared.reduced(gradients[0]).to(student.hidden.dtype), *gradients[1:])
    return Divergence(*found), gradients


def _made_later(run, grads, *saved):
    """The gradients of a loss that run makes now. saved: leaves, weights of rows, and what run takes"""
    weights, *tensors = saved[_hand_out.LEAVES:]
    return (*run(*tensors, upstream=weights, grads=grads, counts=False)[1], None, None)


class _ByRow(torch.autograd.Function):
    """The rows of a Pair, whose backward pass makes the gradients. Takes its tensors, run, and the needs-grad mask"""

    @staticmethod
    def forward(ctx, *arguments):
        *tensors, ctx.run, ctx.grads = arguments
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)
        found, _ = ctx.run(*tensors)
        ctx.mark_non_differentiable(*found[1:])
        return tuple(found)

    @staticmethod
    @outside_graphs
    def backward(ctx, grad_value, *others):
        results, grads = (None,) * 3, _autograd.used_grads(ctx)
        if grads and grad_value is not None:
            results = _autograd.last_derivative(
                lambda upstream, *saved: ctx.run(*saved, upstream=upstream, grads=grads, counts=False)[1],
                grad_value, *ctx.saved_tensors, function="flp.divergence")
        return results + (None,) * (len(ctx.needs_input_grad) - len(results))


# ---- checks ----

def _alone(kind, others):
    """Refuses what does not go with a payload."""
    if kind != "forward_kl":
        _check.refuse(ValueError, "kind", repr(kind), "forward_kl with payload")
    for field, value in others.items():
        if value is not None:
            _check.refuse(ValueError, field, "given", "None with payload")


def _teacher_of(function, tensors, student, every, options):
    """The Call of a teacher. tensors: hidden, weight and bias; student: its hidden; every: 0 a row"""
    hidden, weight, bias = tensors
    _check.tensor_of("hidden", hidden)
    if hidden.shape[:-1] != student.shape[:-1]:
        rows = ", ".join(map(str, (*student.shape[:-1], "E")))
        _check.refuse_shape("hidden", hidden, "(%s), as hidden is (..., D)" % rows)
    return Call(function, hidden, weight, every, bias, instead=INSTEAD, several=False, lead=every.shape, grads=0,
                **options)


def _kind_of(kind, shared):
    """The losses.Divergence of a kind, of a Lua file one without a formula for torch; and its program."""
    if not isinstance(kind, str):
        _check.refuse_type("kind", kind, KINDS)
    if not kind.endswith(_programs.FILE):
        if kind not in losses.DIVERGENCES:
            _check.refuse(ValueError, "kind", repr(kind), KINDS)
        return losses.DIVERGENCES[kind], _programs.builtin(kind)
    if shared is not None:
        _check.refuse(ValueError, "kind", repr(kind), ", ".join(losses.DIVERGENCES))
    program = _programs.of_file(kind)
    if program.name in OTHERS:
        _check.refuse(ValueError, "kind", repr(kind), "a file of another name than the metrics %s" % ", ".join(OTHERS))
    if not program.inputs <= OF_COLUMNS or not program.inputs & {"target_logprob"}:
        _check.refuse(ValueError, "kind", repr(kind), "a loss that reads %s alone" % ", ".join(sorted(OF_COLUMNS)))
    return losses.Divergence(None, {name: default for name, (default, _, _) in program.parameters.items()}), program


def _options_of(kind, program, own, parameters):
    if not isinstance(parameters, Mapping):
        _check.refuse_type("parameters", parameters, "{name: number}")
    for name, value in parameters.items():
        field = "parameters[%r]" % name
        if name not in own.options:
            _check.refuse(ValueError, field, value, ", ".join(own.options) or "none with %s" % kind)
        _, least, most = program.parameters[name]
        if not least <= _check.number_of(field, value) <= most:
            _check.refuse(ValueError, field, value, "%g to %g" % (least, most))
    return parameters


def _check_ids(ids, weight, teacher_weight):
    if ids is None:
        _check.refuse(ValueError, "renormalise", True, "False without teacher_ids")
    _check.tensor_of("teacher_ids", ids)
    if ids.dtype not in _check.TARGET_DTYPES:
        _check.refuse_dtype("teacher_ids", ids, _check.ACCEPTED_TARGETS)
    if ids.shape != weight.shape[:1]:
        _check.refuse_shape("teacher_ids", ids, "(%d,), as weight has %d rows" % (len(weight), len(weight)))
    _check.same_device("teacher_ids", ids, "weight", weight)
    inside = (ids >= 0) & (ids < len(teacher_weight))
    if not inside.all() or torch.bincount(ids).max() > 1:
        held = "%d to %d, %d of them different" % (ids.min(), ids.max(), len(ids.unique()))
        _check.refuse(ValueError, "teacher_ids", held, "rows of teacher_weight, 0 to %d, each once" %
                      (len(teacher_weight) - 1))


