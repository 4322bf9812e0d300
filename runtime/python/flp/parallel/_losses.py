"""cross_entropy of a head whose vocabulary is divided over ranks.

Invariant: the loss is the program that flp.cross_entropy runs, here of the values that all ranks have of a row.
"""
from __future__ import annotations

import collections
from typing import Any, Literal

import torch
from torch import Tensor

from .. import losses
from .._eager import _eager_step
from .._library import _rules
from .._tensors import _check, _top
from .._tensors._compile import outside_graphs
from .._tensors._lora import Lora
from .._tensors._operands import Loss
from . import _head

Made = collections.namedtuple("Made", "loss metrics")
OWN = ("label_smoothing", "z_loss", "reduction", "row_weight", "total", "return_z_loss")


@outside_graphs
def cross_entropy(hidden: Tensor, weight_shard: Tensor, target: Tensor, bias_shard: Tensor | None = None, *,
                  label_smoothing: float = 0.0, z_loss: float = 0.0, reduction: str = "mean",
                  row_weight: Tensor | None = None, total: float | Tensor | None = None, return_z_loss: bool = False,
                  group: Any = None, vocab_offset: int | None = None, vocab_valid: int | None = None,
                  vocab_total: int | None = None, temperature: float | Tensor = 1.0, softcap: float | None = None,
                  scale: float = 1.0, ignore_index: int = -100, budget: int | str | None = None, merge: str = "sum",
                  reduce_grad_hidden: bool = True, reduce_dtype: torch.dtype = torch.float32,
                  sequence_parallel: bool = False, gather: Any = None, grad_weight_accumulate: Tensor | None = None,
                  save: bool | None = None, keep: tuple[Tensor, Tensor] | None = None,
                  mixed: Literal["round", "split"] | None = None, lora: Lora | None = None,
                  statistics: bool = False) -> Any:
    """flp.cross_entropy of a head whose vocabulary is sharded over the ranks of a group; every rank makes the same
    call.

    hidden, weight_shard, target, bias_shard, group, vocab_offset, vocab_valid, vocab_total, temperature, softcap,
    scale, ignore_index, budget, merge, reduce_grad_hidden, reduce_dtype, sequence_parallel, gather,
    grad_weight_accumulate, save, keep, mixed, lora, statistics
                  as in flp.parallel.linear_logprob
    label_smoothing, z_loss, reduction, row_weight, total, return_z_loss
                  as in flp.cross_entropy; rows are those of target, all N of them, row_weight the same on every rank

    Returns what flp.cross_entropy does, the same on every rank. Its gradients are computed in the backward pass, once:
    every rank is to back-propagate it alike. Label smoothing costs a second pass over the head, forward and backward;
    with either it or z_loss a frozen head keeps no directions.
    error: as flp.parallel.linear_logprob
    """
    given = dict(locals())
    for name in OWN:
        del given[name]
    wishes = _rules.smoothed_of(label_smoothing, z_loss, reduction)
    scores = 2 if "mean_score" in wishes.program.inputs else int("lse" in wishes.program.inputs)
    call, (logprob, *more) = _head.of_shards("flp.parallel.cross_entropy", **given, scores=scores,
                                               entropy=scores > 0, several=False)
    ids, ignored = call.operands["target"], call.settings.ignore_index
    counted = (ids != ignored).float()
    each = _check.row_values_of("row_weight", row_weight, call.lead, ids.device, "target's rows")
    weights = _rules.reduced_weights(losses.TORCH, counted, each, total, reduction)
    is_bad = (counted != 0) & ((ids < 0) | (ids >= call.settings.total))
    weights = weights.masked_fill(is_bad, torch.nan)  # at weight 0 too
    made = _made(wishes, weights, logprob, *more[:scores])
    z = _rules.z_losses(made, wishes, weights).detach()
    value, z = (rows.reshape(call.lead) if reduction == "none" else rows.sum() for rows in (made.loss, z))
    results = (value, *((z,) if return_z_loss else ()), *_top.packed(more[scores:], call.settings, call.lead))
    return results if len(results) > 1 else value


def _made(wishes, weights, *values):
    """The losses of rows and their metrics. values: logprob (N), and of all scores what the program reads"""
    program = _eager_step.program_of(wishes.program.data)
    loss = Loss(wishes.program, wishes.parameters, None, None, None, weights, {})
    names = _eager_step.LOGPROB, _eager_step.LSE, _eager_step.MEAN_SCORE
    inputs = {name: rows.masked_fill(weights == 0, 0) for name, rows in zip(names, values)}
    inputs[_eager_step.WEIGHT] = weights
    found = _eager_step.values_of(program, {name: rows[:, None].double() for name, rows in inputs.items()},
                                  _eager_step.parameters_of(loss), weights[:, None] != 0)
    loss, *metrics = (found[node][:, 0].float() for node in (program.loss, *program.metrics))
    return Made(loss, metrics)
