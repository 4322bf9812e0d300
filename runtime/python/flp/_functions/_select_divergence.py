"""selective_divergence: how far two distributions of scores that exist already are apart, a row at a time.

Invariants: float32 scores whose rows stand apart are read where they are; others are widened, as many rows at a time as
the budget has room for. What is saved for the backward pass is the scores themselves and two numbers a row. A row
outside the mask has the unit 0, what its scores are multiplied by, so that none of them counts as bad. Nothing waits
for the device.
"""
from __future__ import annotations

import collections
import functools
import math
from typing import Mapping

import torch
from torch import Tensor

from .. import errors
from .._eager import _diverge_torch, _eager_torch
from .._library import _c, _divergences, _plans
from .._passes import _autograd, _run, _watch
from .._tensors import _check, _transforms
from .._tensors._address import address, settled
from .._tensors._compile import in_graph, numbers_of_graph, outside_graphs
from .._tensors._ops import ops
from . import _diverge
from ._kinds import Divergence, Kind
from ._select import has_dense_rows, matrices, stride_of, tensor_of

# A Kind; and whether rows have temperatures of their own, which may be bad
Call = collections.namedtuple("Call", "kind has_rows")
NAME = "flp.selective_divergence"
NO_SECOND_DERIVATIVE = _transforms.NO_SECOND_DERIVATIVE % NAME
INSTEAD = "torch.autograd"


def selective_divergence(scores: Tensor, teacher_scores: Tensor, kind: str = "reverse_kl", *,
                         mask: Tensor | None = None, parameters: Mapping[str, float] | None = None,
                         temperature: float | Tensor = 1.0,
                         teacher_temperature: float | Tensor | None = None) -> Divergence:
    """Computes the divergence of each row's distributions, q = softmax(scores / temperature), the student's, and
    p = softmax(teacher_scores / teacher_temperature), of scores that exist already.

    scores           (..., V) bfloat16, float16 or float32; cpu or cuda; V at least 2; rows may stand apart
                     (logits[:, :-1])
    teacher_scores   (..., V) of the same shape, of any of these dtypes; may be scores themselves
    kind             as of flp.divergence: a name of losses.DIVERGENCES, or the path of a loss over targets, *.lua
    mask             (...) bool or numbers 0 and 1: the rows that count; None: all. Others give 0 and have no gradient,
                     whatever they hold, at the cost of any row
    parameters       {name: number} of the kind, as of flp.divergence
    temperature      a number above 0, or a tensor of one a row (...); teacher_temperature None: the same. Nothing is
                     multiplied by its square

    Returns a Divergence, float32 in nats whatever the scores are. The gradient of value reaches scores, in their dtype
    and rounded once (no double backward); the teacher is a constant. Of equal rows both are 0, of kinds but forward_kl,
    reverse_kl and total_variation up to float32's rounding; infinities and NaN are those of flp.divergence. A row whose
    largest score of either over T is beyond 7.4e8 or is -inf is NaN and counted, as one is whose temperature float32
    does not hold above 0: flp.check() reports them; a row that holds a NaN or +inf is NaN. float32 scores are read
    where they stand; those of 16 bits, and rows that overlap or are not dense, are copied to float32, 4 bytes a score,
    as many rows at a time as the budget (FLP_BUDGET) of a step has room for, at least one. Nothing of size V is kept
    for the backward pass but the scores themselves. Asynchronous on the caller's current stream; torch.func is refused.
    error:  ValueError or TypeError naming the field, its value and what is accepted; flp.FlpError and its classes
    thread: safe
    source: as flp.distill_loss, over the whole vocabulary
    """
    for field, value in (("scores", scores), ("teacher_scores", teacher_scores)):
        tensor_of(field, value, _check.DTYPES)
    if scores.dim() < 1 or scores.shape[-1] < 2:
        _check.refuse_shape("scores", scores, "(..., V) with V at least 2")
    if teacher_scores.shape != scores.shape:
        _check.refuse_shape("teacher_scores", teacher_scores, "%s, as scores" % (tuple(scores.shape),))
    compute = traced if in_graph() else dispatch
    return compute(scores, teacher_scores, kind, mask, parameters or {}, temperature,
                   temperature if teacher_temperature is None else teacher_temperature)


def traced(scores, teacher, kind, mask, parameters, *temperatures):
    """dispatch as an operator in a graph (_select_divergence_op.py), which checks numbers when it runs."""
    numbers, rows = [], []
    for value in temperatures:
        number, each = _check.temperature_of(value, scores.shape[:-1], scores.device, "scores", "scores")
        numbers.append(number)
        rows.append(each if each is None else each.view(scores.shape[:-1]))
    numbers += parameters.values()
    changing = numbers_of_graph(*numbers)
    value, *others = ops.selective_divergence(
        scores, teacher, mask, *rows, kind, ",".join(parameters),
        [0.0] * len(numbers) if changing is not None else [float(number) for number in numbers], changing)
    return Divergence(value, *(each.detach() for each in others))


@outside_graphs
def dispatch(scores, teacher, kind, mask, parameters, *temperatures):
    """What the call returns."""
    _transforms.check_plain(NAME, (scores, teacher, mask, *temperatures), INSTEAD)
    call, tensors = prepared(scores, teacher.detach(), kind, mask, parameters, *temperatures)
    if torch.is_grad_enabled() and scores.requires_grad:
        return Divergence(*_ByRow.apply(*tensors, call))
    return Divergence(*values_of(call, tensors[0].detach(), *tensors[1:]))


def prepared(scores, teacher, kind, mask, parameters, *temperatures):
    """-> the Call, and what values_of and gradient_of take, of which shapes were checked."""
    named = dict(zip(("temperature", "teacher_temperature"), temperatures))
    _check.devices(scores, "scores", teacher_scores=teacher, mask=mask if isinstance(mask, Tensor) else None, **{
        field: value for field, value in named.items() if isinstance(value, Tensor) and value.dim()})
    call = Call(Kind(kind, parameters), any(isinstance(value, Tensor) for value in temperatures))
    return call, (settled("scores", scores), settled("teacher_scores", teacher), *_units_of(scores, mask, named))


def _units_of(scores, mask, temperatures):
    """What scores of student and teacher are multiplied by, (..., 1) float32 each: 0 outside the mask, NaN where either
    temperature is bad."""
    lead, device, units = scores.shape[:-1], scores.device, []
    counted = _check.counted_of(mask, torch.ones(lead, dtype=torch.bool, device=device))
    bad = torch.zeros_like(counted)
    for field, value in temperatures.items():
        with _check.renaming(lambda _: field):
            number, rows = _check.temperature_of(value, lead, device, "scores", "scores")
            _check.scales_of(number, 0, 1)
        if rows is None:
            units.append(torch.full(lead, 1 / number, dtype=torch.float32, device=device))
            continue
        units.append((1 / rows.double()).float().view(lead))
        bad |= ~_check.usable(rows, 0, 1).view(lead)
    return [unit.masked_fill(bad, math.nan).masked_fill(~counted, 0).unsqueeze(-1) for unit in units]


@outside_graphs
def values_of(call, scores, teacher, *units):
    """-> what a Divergence has."""
    values = torch.empty((*scores.shape[:-1], _diverge.VALUES), dtype=torch.float32, device=scores.device)
    _run_pass(call, (scores, teacher, *units, values), ("values",))
    return tuple(_diverge.columns_of(values.masked_fill_(units[0] == 0, 0), call.kind.program, call.kind.of))


@outside_graphs
def gradient_of(call, scores, teacher, unit, teacher_unit, grad_value):
    out = torch.empty(scores.shape, dtype=scores.dtype, device=scores.device)
    upstream = grad_value.unsqueeze(-1).float().masked_fill(unit == 0, 0)
    _run_pass(call, (scores, teacher, unit, teacher_unit, upstream, out), ("upstream", "dx"))
    return out


def _run_pass(call, tensors, names):
    """One pass over scores, teacher, their units, and more tensors, whose names are those of _diverge.execute."""
    for x, y, unit, teacher_unit, *others in matrices(tensors):
        if not len(x):
            continue
        more = {name: each if each.shape[1] > 1 else each[:, 0] for name, each in zip(names, others)}
        read = [each if each.dtype is torch.float32 and has_dense_rows(each) else None for each in (x, y)]
        plan = _plan_of(call.kind, x, (*read, more.get("dx")))
        _watch.told(_plans.rung_name(plan.rung), "diverge")
        units = unit[:, 0], teacher_unit[:, 0]
        if call.has_rows and "values" in more:
            _eager_torch.count_bad(plan, units[0].isnan().sum())
        if plan.handle is None:
            _diverge_torch.run(plan, call.kind.of, (x, y), units, **more)
            continue
        parameters = _diverge.parameters_of(call.kind.program, call.kind.given)
        for part, held, strides in _chunks(plan, (x, y), read):
            _diverge.execute(plan, parameters, held, (*strides, stride_of(more.get("dx", x))), [
                each[part] for each in units], **{name: each[part] for name, each in more.items()})


def _plan_of(kind, scores, matrices):
    """The plan of flp_diverge. matrices: those that it reads and writes, and None. error: UnavailableError of a kind of
    a file where it has no kernel"""
    places = [place for matrix in matrices if matrix is not None
              for place in (address(matrix), stride_of(matrix) * matrix.element_size())]
    plan = _plans.get(_plans.Spec(
        _run.device_of(scores), dtype=_check.DTYPES[scores.dtype], vocab=scores.shape[1], op=_c.OP_DIVERGE,
        loss=kind.program.data, alignment=_check.alignment_of(scores.element_size(), *places)))
    if plan.handle is None and kind.of is None:
        raise errors.UnavailableError("kind %s has no kernel: %s" % (kind.program.name, plan.reason))
    return plan


def _chunks(plan, scores, read):
    """Parts of the rows, both scores of each in float32, and their strides: as read has them, or in memory that the
    next part takes."""
    count, vocab = scores[0].shape
    width = _divergences.width_of(vocab)
    copies, step = sum(each is None for each in read), count
    if copies:
        step = max(1, min(count, plan.in_force.budgets[_c.PASS_STEP] // (4 * width * copies)))
    held = [each.new_empty((step, width), dtype=torch.float32) if own is None else own
            for each, own in zip(scores, read)]
    for first in range(0, count, step):
        part = slice(first, min(first + step, count))
        for each, own, into in zip(scores, read, held):
            if own is None:
                into[:part.stop - first, :vocab].copy_(each[part])
        yield part, [into if own is None else own[part] for own, into in zip(read, held)], map(stride_of, held)


class _ByRow(torch.autograd.Function):
    """The rows of a call, whose backward pass makes the gradient. Takes scores, teacher, units and a Call"""

    @staticmethod
    def forward(ctx, *arguments):
        *tensors, ctx.call = arguments
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)
        found = values_of(ctx.call, *tensors)
        ctx.mark_non_differentiable(*found[1:])
        return found

    @staticmethod
    @outside_graphs
    def backward(ctx, grad_value, *others):
        if grad_value is None:
            return (None,) * 5
        made = _autograd.last_derivative(functools.partial(gradient_of, ctx.call), *ctx.saved_tensors, grad_value,
                                         function=NAME)
        return made, None, None, None, None
