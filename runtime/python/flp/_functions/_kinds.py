"""Divergences over the whole vocabulary, by name or by the path of a file: what flp.divergence and
flp.selective_divergence give, and take as kind and parameters."""
from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from .. import losses
from .._library import _divergences


class Divergence(NamedTuple):
    """What flp.divergence and flp.selective_divergence give of each row, (...) each: value, float32 in nats,
    differentiable; and without a gradient lse and teacher_lse, the log-sum-exps of the student's and the teacher's
    scores over T, float32 in nats; entropy of the student, float32 in nats; acceptance, Σ min(p, q), float32; agrees,
    bool, whether both have the same best token. With a payload, which lacks what they need, teacher_lse, acceptance and
    agrees are None."""

    value: Tensor
    lse: Tensor
    teacher_lse: Tensor | None
    entropy: Tensor
    acceptance: Tensor | None
    agrees: Tensor | None


class Kind:
    """One of them, checked. program: of libflp; given: {name: number} of its parameters; of: its formula for torch
    operations, (log p, log q, p, q, total) -> D, None of a file."""

    def __init__(self, kind, parameters, takes_files=True):
        own, formula = _divergences.kind_of(kind, takes_files), losses.DIVERGENCES.get(kind)
        self.program, self.given = own.program, _divergences.given_of(kind, own, parameters or {})
        given = self.given
        self.of = formula and (lambda *values: formula.of(losses.Outcomes(*values), **given))
