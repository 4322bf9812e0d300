"""What runs and what it met: plan_info, explain and check."""
from __future__ import annotations

import dataclasses
from typing import Any, Collection, Literal

import torch
from torch import Tensor

from .. import errors
from .._eager import _eager_lists, _eager_torch
from .._library import _c, _plans, _programs, _together
from .._passes import _run
from .._tensors import _check
from .._tensors._call import Call
from .._tensors._compile import outside_graphs
from .._tensors._operands import OF_PRODUCTS, Operands, grads_of


@dataclasses.dataclass(frozen=True)
class PlanInfo:
    """A plan in words and numbers. str() is its description."""

    text: str
    rung: str
    reasons: dict[str, str]  # why each rung above was not taken
    plan_id: str  # equal on two ranks if they run the same kernels
    device: str
    forward: dict[str, Any]  # flp_layout of the forward pass for n rows, by field; its mode is a word, as "direction"
    backward: dict[str, Any]  # the same of the backward pass; empty without gradients
    step: dict[str, Any] = dataclasses.field(default_factory=dict)  # the same of the step of a loss; empty without one

    def __str__(self) -> str:
        return self.text


def _layout(plan, which, n, budget, list_count):
    if plan.handle is not None:
        layout = plan.layout(which, n, budget, list_count)
        values = {name: getattr(layout, name) for name, _ in _c.Layout._fields_ if name != "struct_bytes"}
        return {**values, "mode": _plans.mode_name(layout.mode)}
    if list_count is not None:
        size = _eager_lists.workspace_bytes(plan, which, n, list_count, budget)
        return {"mode": "torch", "products": 0, "bytes": size}
    passes = {_c.PASS_FORWARD: 1}
    if plan.key.grads:
        passes[_c.PASS_BACKWARD] = 1 + bin(plan.key.grads & OF_PRODUCTS).count("1")
    passes = passes if which == _c.PASS_STEP else {which: passes[which]}
    sizes = [_eager_torch.workspace_bytes(plan, each, n, plan.key.hidden, budget) for each in passes]
    return {"mode": "torch", "products": sum(passes.values()), "bytes": max(sizes)}


def _info_of(plan, n, budget, keep_budget=None, list_count=None):
    """keep_budget: that of save, direction or tail mode, where one is taken; list_count: ids of a call whose columns
    are listed."""
    passes = {_c.PASS_FORWARD: True, _c.PASS_BACKWARD: plan.key.grads, _c.PASS_STEP: plan.key.loss}
    forward, backward, step = (
        {} if not is_made else _layout(plan, which, n, budget, list_count) if keep_budget is None else
        _layout(plan, _run.SAVED_PASSES[which], n, keep_budget, None) for which, is_made in passes.items())
    return PlanInfo(plan.describe(), _plans.rung_name(plan.rung), plan.reasons(), plan.plan_id(),
                    _plans.device_name(plan.key.device), forward, backward, step)


@outside_graphs
def plan_info(*, vocab: int, hidden: int, n: int = 1024, dtype: torch.dtype = torch.bfloat16,
              device: str | int | torch.device = "cpu", target_dtype: torch.dtype = torch.int64,
              entropy: bool | Literal["detached"] = False, grads: Collection[str] = (), bias: bool = False,
              softcap: float | None = None, per_row_temperature: bool = False, budget: int | str | None = None,
              save: bool | None = False, tail: float | None = None) -> PlanInfo:
    """Makes the plan of a specialisation and reports which rung runs, why, and what n rows take -> PlanInfo.

    vocab, hidden        V and D of the head
    n                    rows of a call, N
    dtype, target_dtype  of the operands: torch.bfloat16, float16 or float32; of targets: torch.int32 or int64
    device               a torch device, cpu or cuda
    bias                 whether there is one
    grads                any of "hidden", "weight", "bias"
    entropy, softcap, budget, save, tail
                         as for linear_logprob; save=False shows recompute mode, or tail mode with tail
    per_row_temperature  whether there is one temperature a row
    error: ValueError or TypeError naming the field; flp.FlpError and its classes
    """
    if dtype not in _check.DTYPES:
        _check.refuse(TypeError, "dtype", dtype, _check.ACCEPTED_DTYPES)
    if target_dtype not in _check.TARGET_DTYPES:
        _check.refuse(TypeError, "target_dtype", target_dtype, _check.ACCEPTED_TARGETS)
    mask = grads_of(grads)
    settings = _check.Settings(1.0, softcap, 1.0, 0, budget, entropy)
    settings.save, settings.tail = _check.save_of(save), _check.tail_of(tail)
    _together.check({"save": save, "tail": tail})
    key = _plans.Spec(  # type: ignore[call-arg]
        _check.ordinal_of(device), dtype=_run.TO_C[dtype], target_dtype=_run.TO_C[target_dtype],
        vocab=_check.integer_of("vocab", vocab), hidden=_check.integer_of("hidden", hidden),
        entropy=_run.entropy_of(settings, mask), grads=mask, has_bias=int(bool(bias)), softcap=settings.softcap,
        per_row_temperature=int(bool(per_row_temperature)))
    n = _check.integer_of("n", n)
    plan, kept = _run.plan_that_keeps(key, settings, n)
    return _info_of(plan, n, settings.budget, _run.keep_budget(settings) if kept else None)


@outside_graphs
def explain(hidden: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None = None, *,
            temperature: float | Tensor = 1.0, entropy: bool | Literal["detached"] = False,
            softcap: float | None = None, scale: float = 1.0, ignore_index: int = -100, budget: int | str | None = None,
            chunk_rows: int | None = None, rows: Tensor | None = None, grad_weight_accumulate: Tensor | None = None,
            save: bool | None = None, keep: tuple[Tensor, Tensor] | None = None, loss: str | None = None,
            tail: float | None = None) -> PlanInfo:
    """Reports which plan the same call of linear_logprob would run -> PlanInfo; computes nothing.

    loss  a loss program, "grpo+k3+entropy" or the path of a Lua file: the plan of flp.policy_loss by it, its step too

    error: that of linear_logprob, and of policy_loss for its loss
    """
    call = Call("flp.explain", hidden, weight, target, bias, asked={"loss": loss}, temperature=temperature, rows=rows,
                entropy=entropy, softcap=softcap, scale=scale, ignore_index=ignore_index, budget=budget,
                chunk_rows=chunk_rows, save=save, keep=keep, tail=tail, grad_weight_accumulate=grad_weight_accumulate)
    ops, settings, grads = Operands(*call.operands.values()), call.settings, call.grads
    n = ops.hidden.shape[0]
    if ops.is_listed:
        return _info_of(_run.plan_for(ops, settings, grads), n, settings.budget, list_count=ops.list_ids.numel())
    if loss is not None:
        plan = _run.plan_for(ops, _run.settings_of_step(ops, settings, grads), grads, program=_programs.named(loss))
        return _info_of(plan, n, settings.budget)
    plan, saved = _run.keeping_plan(ops, settings, grads)
    return _info_of(plan, n, settings.budget, _run.keep_budget(settings) if saved else None)


@outside_graphs
def check(device: str | int | torch.device | None = None) -> None:
    """Synchronises and raises DataError if rows held bad values since the last check.

    device  a torch device; None: every device that has a plan
    error: DataError with the count; ValueError naming a device that is neither cpu nor cuda
    """
    failures = []
    for plan in _plans.existing(None if device is None else _check.ordinal_of(device)):
        for look in (_eager_torch.check, _check_kernels):
            try:
                look(plan)
            except errors.DataError as error:
                failures.append(error)
    if len(failures) == 1:
        raise failures[0]
    _eager_torch.refuse_bad(sum(int(error.detail.split(None, 1)[0]) for error in failures))


def _check_kernels(plan):
    if plan.handle is not None:
        _c.call("flp_plan_check", plan.handle, _run.stream_of(plan.key.device))
