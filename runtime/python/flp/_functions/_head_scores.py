"""Raw scores of one head, some rows at a time: hidden·weightᵀ + bias, of operands as they are, summed in float32.

A forward pass that stores them (flp_spec.raw_scores) makes them, and their log-sum-exps: a row's bits depend on the row
alone.
"""
import copy
import functools

import torch

from .._library import _c, _plans
from .._passes import _run
from .._tensors._operands import Operands


class HeadScores:
    """Operands of one head, and its rows that are active: ids, or None of all. unit: (count) float32, what raw scores,
    or with a softcap their tanh, are multiplied by; has_sums: whether forward passes sum unit times scores"""

    def __init__(self, ops, settings, active):
        self.ops, self.active, self.plan = ops, active, plan_of_scores(ops, settings)
        self.count = len(ops.hidden) if active is None else len(active)
        unit = settings.softcap or settings.scale
        self.cap_in = settings.scale / settings.softcap if settings.softcap else None
        self.settings, scale = as_they_are(settings), unit / settings.temperature
        self.has_sums = self.cap_in is None and ops.temperature_rows is None and _is_normal(scale)
        if self.has_sums:
            self.settings.scale = scale
        if ops.temperature_rows is None:
            self.unit = torch.full((self.count,), scale, device=ops.hidden.device)
        else:
            self.unit = (unit / self.among(ops.temperature_rows).double()).float()

    @functools.cached_property
    def wide_unit(self):
        """unit in float64."""
        return self.unit.double()

    @functools.cached_property
    def _targets(self):
        return self.ops.hidden.new_zeros(self.count, dtype=torch.int64)

    def among(self, values):
        """Those of the active rows."""
        return values if self.active is None else values[self.active]

    def place(self, part):
        """Where some active rows are among all."""
        return part if self.active is None else self.active[part]

    def hidden(self, part):
        return self.ops.hidden[self.place(part)]

    def scores_into(self, part, out):
        """Stores raw scores of some active rows, of a softcap their tanh, in the first columns of out (n, V or more)
        -> flp_args.partial of them, (n, 4) float32, or None without has_sums."""
        hidden = self.hidden(part)
        ops = Operands(hidden, self.ops.weight, self.ops.bias, self._targets[:len(hidden)])
        sums = torch.empty((len(hidden), 4), dtype=torch.float32, device=hidden.device)
        fields = _run.operand_fields(ops, self.settings)
        fields.update(partial=sums, raw_scores=out, raw_scores_stride=out.stride(0))
        _run.enqueue(self.plan, _c.PASS_FORWARD, len(hidden), hidden.device, self.settings, fields)
        if self.cap_in is not None:
            out[:, :len(self.ops.weight)].mul_(self.cap_in).tanh_()
        return sums if self.has_sums else None


def plan_of_scores(ops, settings):
    """The plan of a forward pass that stores raw scores of rows of these operands. ops: of a head; settings: its
    Settings, whose softcap such a pass leaves out"""
    return plan_of_pass(ops, settings, ops.bias)


def plan_of_pass(ops, settings, bias=None, grads=0):
    """The plan of a pass that stores raw scores, or with grads takes their gradient."""
    ops = Operands(ops.hidden, ops.weight, bias, ops.hidden.new_empty(1, dtype=torch.int64))
    return _plans.get(_run.key_of(ops, settings, grads)._replace(raw_scores=1, softcap=0.0, entropy=_c.ENTROPY_NONE))


def without_targets(ops, hidden, bias=None, temperature_rows=None):
    """Rows of a head, hidden, whose targets say nothing."""
    return Operands(hidden, ops.weight, bias, hidden.new_zeros(len(hidden), dtype=torch.int64), temperature_rows)


def as_they_are(settings):
    """Those of passes over raw scores: nothing is done to these, and no row is left out."""
    settings = copy.copy(settings)
    settings.temperature, settings.scale, settings.softcap, settings.ignore_index = 1.0, 1.0, 0.0, -1
    return settings


def _is_normal(number):
    """Whether libflp takes it as a scale."""
    return number == 0 or torch.finfo(torch.float32).tiny <= abs(number) <= torch.finfo(torch.float32).max
