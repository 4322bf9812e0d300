"""Student and teacher of one call, checked, and the divergences of their rows.

Invariants: the teacher is a constant; a failure names the field, its value and what is accepted.
"""
from __future__ import annotations

import copy
import functools

import torch

from .._eager import _eager_divergence
from .._library import _c, _divergences, _plans
from .._passes import _autograd, _run, _watch
from .._tensors import _check
from .._tensors._call import Call
from .._tensors._compile import outside_graphs
from .._tensors._operands import OPERANDS, Operands
from . import _diverge, _diverge_rest
from ._head_scores import plan_of_scores
from ._kinds import Divergence, Kind

INSTEAD = "torch.autograd, or under torch.func.grad losses of scores that exist"


class Pair:
    """Student and teacher of one call, checked: a Call each; counted, the rows that count, bool (...); whole and ids,
    of the teacher's head where it has more columns, or None both."""

    def __init__(self, function, kind, parameters, student, teacher, ids, renormalise, mask, options, teacher_options,
                 others=None, shared=None, prefix="teacher_"):
        """student, teacher: hidden, weight and bias, or of the student a Call, whose options and rows that count are
        settled; options: those of Call, of either head; others: more tensors, by field; shared: what ranks have in
        common, parallel's Shared, or None; prefix: of the teacher's fields"""
        own = Kind(kind, parameters, takes_files=shared is None)
        self.function, self.kind, self.program, self.given, self.of = function, kind, own.program, own.given, own.of
        settled = student if isinstance(student, Call) else None
        hidden, weight, bias = student if settled is None else map(settled.operands.get, OPERANDS[:3])
        _check.tensor_of("hidden", hidden)
        rows = hidden.shape[:-1] if settled is None else settled.lead
        self.shared, lead = shared, rows if shared is None else shared.lead(hidden)
        every = torch.zeros(lead, dtype=torch.int64, device=hidden.device)
        of_teacher = dict(zip((prefix + "hidden", prefix + "weight", prefix + "bias"), teacher))
        self.student = settled or Call(function, hidden, weight, every, bias, instead=INSTEAD, several=False, lead=lead,
                                       others={"mask": mask, **of_teacher, **(others or {})}, **options)
        with _check.renaming(lambda name: prefix + name):
            self.teacher = _teacher_of(function, teacher, rows, every, {
                **teacher_options, "temperature": options["temperature"] if teacher_options["temperature"] is None
                else teacher_options["temperature"]})
        _check.same_device(prefix + "hidden", teacher[0], "hidden", hidden)
        for field, each in (("hidden", hidden), (prefix + "hidden", teacher[0])):
            if each.shape[-1] % 8:
                _check.refuse_shape(field, each, "(..., D), D a multiple of 8")
        if shared is None and len(weight) < 2:
            _check.refuse_shape("weight", weight, "(V, D), V at least 2")
        if ids is None and len(teacher[1]) != len(weight):
            _check.refuse_shape(prefix + "weight", teacher[1], "(%d, E), as weight has %d rows%s" %
                                (len(weight), len(weight), ", or teacher_ids" if settled is None else ""))
        self.whole = self.ids = None
        if not isinstance(renormalise, bool):
            _check.refuse_type("renormalise", renormalise, "True or False")
        if ids is not None or renormalise:
            self._take_part(ids, renormalise, weight)
        self.every = mask is None and settled is None
        if settled is None:
            self.counted = _check.leave_out(mask, every, self.student, self.teacher)

    def _take_part(self, ids, renormalise, weight):
        """Makes the teacher's head one of the student's tokens."""
        _check_ids(ids, weight, self.teacher.operands["weight"])
        if not renormalise and self.kind in _divergences.WITHOUT_REST:
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

    def explained(self):
        """-> PlanInfo's text, plan, and passes: forward, backward and step."""
        student, teacher, problem = _problem_of(self.student.settings, self.teacher.settings, self.of, self.shared,
                                                self.every, self.tensors())
        plan, kept, _ = _diverge.choose(problem, self.program, self.student.grads, keeps=self.student.grads)
        run = plan or _run.torch_plan(student, self.student.settings)
        texts = [run.describe()]
        if plan is not None:
            texts += ["%s's scores: %s" % (whose, plan_of_scores(ops, call.settings).describe()) for whose, ops, call in
                      (("student", student, self.student), ("teacher", teacher, self.teacher))]
        if plan is not None and problem.whole is not None:
            texts.append("all of the teacher's scores: " + _diverge_rest.plan_of_whole(problem).describe())
        return "\n".join(texts), run, _diverge.layouts_of(plan, problem, self.student.grads, kept)

    @property
    def run(self):
        """A function of tensors() -> the Divergence of flattened rows, and the gradients of hidden, weight and bias,
        None where they are not in the mask grads. upstream: (N) float32 that each row's value is multiplied by in
        them; beside: a _beside.Beside, or None. With keeps, the mask of a later call, the second are tensors of which
        that makes its gradients, where they are its kept"""
        return functools.partial(_run_pair, self.student.settings, self.teacher.settings, self.program,
                                 self.given, self.of, self.shared, self.every, self.student.grads)


def _problem_of(student_settings, teacher_settings, of, shared, every, tensors):
    """-> Operands of student and teacher, and the Problem. tensors: of Pair.tensors"""
    *pair, whole_weight, whole_bias, ids = tensors
    if shared is not None:
        pair[0], pair[len(OPERANDS)] = shared.rows(pair[0]), shared.rows(pair[len(OPERANDS)])
    student, teacher = (Operands(*pair[at:at + len(OPERANDS)]) for at in (0, len(OPERANDS)))
    whole = None if ids is None else Operands(teacher.hidden, whole_weight, whole_bias, *pair[len(OPERANDS) + 3:])
    return student, teacher, _eager_divergence.Problem(
        student, student_settings, teacher, teacher_settings, whole, ids, of, shared and shared.group,
        every and student.temperature_rows is None and teacher.temperature_rows is None)


def _run_pair(student_settings, teacher_settings, program, given, of, shared, every, all_grads, *tensors,
              upstream=None, grads=0, counts=True, beside=None, keeps=0, kept=()):
    with torch.no_grad():
        student, _, problem = _problem_of(student_settings, teacher_settings, of, shared, every, tensors)
        found, gradients = None, _of_kept(problem, kept, upstream, grads) if kept else None
        if gradients is None:
            choice = _diverge.choose(problem, program, all_grads, grads, keeps)
            way, run = choice.kept, choice.plan or _run.torch_plan(student, student_settings)
            if way is not None:
                upstream, grads = torch.ones(len(student.hidden), device=student.hidden.device), keeps
            if way == _diverge.HIDDEN:
                problem = _wide(problem)
            if choice.plan is not None:
                found, gradients = _diverge.run(choice, problem, program, given, upstream, grads, counts, beside)
            else:
                found, gradients = _eager_divergence.run(run, problem, upstream, grads, counts, beside)
            _watch.told(_plans.rung_name(run.rung), "diverge")
        if keeps:
            return Divergence(*found), {None: (), _diverge.HIDDEN: gradients[:1], _diverge.SCORES: gradients}[way]
        if shared is not None and gradients[0] is not None:
            gradients = (shared.reduced(gradients[0]).to(student.hidden.dtype), *gradients[1:])
    return found and Divergence(*found), gradients


def _wide(problem):
    settings = copy.copy(problem.student_settings)
    settings.wide_grads |= _c.GRAD_HIDDEN
    return problem._replace(student_settings=settings)


def _of_kept(problem, kept, upstream, grads):
    """The gradients of hidden, weight and bias of what run kept, or None."""
    if len(kept) > 1:
        return _diverge.gradients_of_kept(problem, kept, upstream, grads)
    pulls = upstream.unsqueeze(1)
    made = torch.where(pulls == 0, 0, pulls * kept[0])
    return made if problem.group is not None else made.to(problem.student.hidden.dtype), None, None


class _ByRow(torch.autograd.Function):
    """The rows of a Pair, whose backward pass makes the gradients: of a frozen head from that of hidden, which forward
    makes of upstream gradients of 1; else from those of all scores, if the budget has room for them, or anew. Takes its
    tensors, run, and the needs-grad mask"""

    @staticmethod
    def forward(ctx, *arguments):
        *tensors, ctx.run, ctx.grads = arguments
        found, kept = ctx.run(*tensors, keeps=ctx.grads)
        ctx.save_for_backward(*tensors, *kept)
        ctx.tensors = len(tensors)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*found[1:])
        return tuple(found)

    @staticmethod
    @outside_graphs
    def backward(ctx, grad_value, *others):
        results, grads = (None,) * 3, _autograd.used_grads(ctx)
        if grads and grad_value is not None:
            results = _autograd.last_derivative(
                lambda upstream, *saved: ctx.run(*saved[:ctx.tensors], upstream=upstream, grads=grads, counts=False,
                                                 kept=saved[ctx.tensors:])[1],
                grad_value, *ctx.saved_tensors, function="flp.divergence")
        return results + (None,) * (len(ctx.needs_input_grad) - len(results))


# ---- checks ----

def _teacher_of(function, tensors, lead, every, options):
    """The Call of a teacher. tensors: hidden, weight and bias; lead: of the student's hidden; every: 0 a row"""
    hidden, weight, bias = tensors
    _check.tensor_of("hidden", hidden)
    if hidden.shape[:-1] != lead:
        rows = ", ".join(map(str, (*lead, "E")))
        _check.refuse_shape("hidden", hidden, "(%s), as hidden is (..., D)" % rows)
    return Call(function, hidden, weight, every, bias, instead=INSTEAD, several=False, lead=every.shape, grads=0,
                **options)


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
