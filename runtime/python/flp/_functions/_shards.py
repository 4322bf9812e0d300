"""Vocab-parallel heads: per-rank statistics, their merge, and the backward pass of one rank.

The library calls no collective: gather the partials of all ranks in rank order (torch.distributed.all_gather), merge
them on every rank, and sum grad_hidden over the ranks after the backward pass.
"""
from __future__ import annotations

import collections.abc
from typing import Any, Sequence, overload

import torch
from torch import Tensor

from .._library import _c, _plans
from .._passes import _run
from .._tensors import _check, _transforms
from .._tensors._address import address, dense
from .._tensors._call import Call
from .._tensors._compile import outside_graphs
from .._tensors._operands import OF_HEAD, targets_of

REVERSE = "torch.autograd, with a loss of flp.parallel.linear_logprob"


def _place(settings, offset, valid, total, rows):
    """Puts the place of a shard of so many rows into Settings; None of valid: all of them, of total: none follow."""
    settings.offset = _check.within("vocab_offset", offset, 0, _check.VOCAB_MAX)
    if valid is not None:
        settings.valid = _check.within("vocab_valid", valid, 1, rows, "None, or %d to %d, the rows of the shard")
    if total is not None:
        least = settings.offset + (settings.valid or rows)
        settings.total = _check.within("vocab_total", total, least, _check.VOCAB_MAX,
                                       "None, or at least vocab_offset and the real rows, %d, to %d")


@overload
def linear_logprob_partial(hidden: Tensor, weight_shard: Tensor, target: Tensor, bias: Tensor | None = ..., *,
                           vocab_offset: int, vocab_valid: int | None = ..., vocab_total: int,
                           temperature: float | Tensor = ..., entropy: bool = ..., softcap: float | None = ...,
                           scale: float = ..., ignore_index: int = ..., budget: int | str | None = ...,
                           rows: Tensor | None = ..., keep: tuple[Tensor, Tensor] | None = ...,
                           tail: None = ..., needs: Sequence[str] = ...) -> Tensor: ...


@overload
def linear_logprob_partial(hidden: Tensor, weight_shard: Tensor, target: Tensor, bias: Tensor | None = ..., *,
                           vocab_offset: int, vocab_valid: int | None = ..., vocab_total: int,
                           temperature: float | Tensor = ..., entropy: bool = ..., softcap: float | None = ...,
                           scale: float = ..., ignore_index: int = ..., budget: int | str | None = ...,
                           rows: Tensor | None = ..., keep: tuple[Tensor, Tensor] | None = ...,
                           tail: float, needs: Sequence[str] = ...) -> tuple[Tensor, Tensor | None]: ...


@outside_graphs
def linear_logprob_partial(hidden: Tensor, weight_shard: Tensor, target: Tensor, bias: Tensor | None = None, *,
                           vocab_offset: int, vocab_valid: int | None = None, vocab_total: int,
                           temperature: float | Tensor = 1.0, entropy: bool = False, softcap: float | None = None,
                           scale: float = 1.0, ignore_index: int = -100, budget: int | str | None = None,
                           rows: Tensor | None = None, keep: tuple[Tensor, Tensor] | None = None,
                           tail: float | None = None, needs: Sequence[str] = ("hidden", "weight", "bias")) -> Any:
    """Computes one rank's statistics of each row -> (N, 4) float32, N the product of target's shape; (N, 4 + K) with K
    targets a row, above 1; with tail a pair of these and what linear_logprob_backward takes as saved.

    weight_shard  (this rank's V, D) of hidden's dtype
    target        (...) int32 or int64 global ids, or (..., K)
    vocab_offset  global id of the shard's row 0
    vocab_valid   rows of the shard that are real, the rest is padding; None: all
    vocab_total   ids of the whole vocabulary
    keep          (offsets, token_ids) of the whole lists, the same on every rank
    tail          as for linear_logprob. The second result is (bytes) uint8, lists of columns, or None: exact gradients
    needs         with tail: the gradients that linear_logprob_backward will be asked for
    The other arguments are those of linear_logprob. Columns: maximum, sum and weighted sum in log2 units, raw target
    score (−inf where the target is on another shard); of K targets −inf, and their raw scores behind it. Not
    differentiable.
    error: ValueError or TypeError naming the field; flp.FlpError and its classes
    """
    call = Call("flp.linear_logprob_partial", hidden, weight_shard, target, bias, instead=REVERSE, grads=0,
                names=("weight_shard", "bias"), temperature=temperature, rows=rows, keep=keep, softcap=softcap,
                scale=scale, ignore_index=ignore_index, budget=budget, entropy=entropy, tail=tail)
    ops, settings = call.detached(), call.settings
    _place(settings, vocab_offset, vocab_valid, vocab_total, weight_shard.shape[0])
    if tail is None:
        return _run.partial(ops, settings)
    kept = _run.keep(ops, settings, _mask_of(needs, ops.bias)) if settings.tail else None
    return _run.partial(ops, settings, kept), None if kept is None else kept.memory


@outside_graphs
def combine_partials(partials: Tensor | Sequence[Tensor], target: Tensor, *, vocab_total: int,
                     weight_shard: Tensor | None = None, temperature: float | Tensor = 1.0, entropy: bool = False,
                     softcap: float | None = None, scale: float = 1.0, ignore_index: int = -100,
                     rows: Tensor | None = None) -> tuple[Tensor, Tensor | None, Tensor]:
    """Merges the partials of all ranks, in rank order -> logprob of target's shape, entropy (...) or None, stats (N,4).

    partials      sequence of (N, 4), or one (R, N, 4) float32; with K targets a row (N, 4 + K), (R, N, 4 + K)
    target        (...) int32 or int64 global ids, or (..., K), as linear_logprob_partial had them
    vocab_total   ids of the whole vocabulary
    weight_shard  this rank's shard, with its padding: its plan is used again; None makes a plan of its own
    The other arguments are those of linear_logprob. logprob and entropy are float32 in nats; stats, float32, is what
    linear_logprob_backward reads. Not differentiable.
    error: ValueError or TypeError naming the field; flp.FlpError and its classes
    """
    lead = target.shape[:-1] if _has_targets(partials, target) else getattr(target, "shape", torch.Size())
    ids = _check.target_of(target, lead, several=True)
    parts: Tensor = _partials_of(partials, ids)
    _check.devices(parts, "partials", target=target)
    scalar, temperature_rows = _check.temperature_of(temperature, lead, parts.device)
    settings = _check.Settings(scalar, softcap, scale, ignore_index, None, entropy)
    settings.total = _check.within("vocab_total", vocab_total, 2, _check.VOCAB_MAX)
    plan = _combine_plan(parts, ids, weight_shard, temperature_rows, settings)
    settings.valid = min(plan.key.vocab, settings.total)  # a shard's rows may be more, of padding
    parts = dense("partials", parts.detach())
    if address(parts) % 16:
        parts = parts.clone()
    logprob, entropy_rows, stats = _run.combine(plan, parts, ids, temperature_rows,
                                                _check.rows_of(rows, parts.device), settings)
    entropies = None if entropy_rows is None else entropy_rows.reshape(lead)
    return logprob.reshape(target.shape), entropies, stats


def _has_targets(partials, target):
    """Whether partials are of several targets a row, by their columns."""
    first = partials if isinstance(partials, torch.Tensor) else next(iter(partials), None) \
        if isinstance(partials, collections.abc.Sequence) else None
    return isinstance(target, torch.Tensor) and target.dim() > 0 and isinstance(first, torch.Tensor) \
        and first.dim() >= 2 and first.shape[-1] > 4


def _partials_of(partials, ids):
    """The partials of all ranks as one tensor (R, N, 4), or (R, N, 4 + K)."""
    if isinstance(partials, torch.Tensor):
        fields = {"partials": partials}
    else:
        try:
            fields = {"partials[%d]" % rank: partial for rank, partial in enumerate(partials)}
        except TypeError:
            _check.refuse_type("partials", partials, "a sequence of torch.Tensor, or one")
    rows = (ids.shape[0], 4 + targets_of(ids))
    for field, tensor in fields.items():
        _check.tensor_of(field, tensor)
        _transforms.check_plain("flp.combine_partials", (tensor,), REVERSE)
        shape = tuple(tensor.shape)
        if tensor.dtype is not torch.float32 or (shape[1:] if tensor is partials else shape) != rows:
            _check.refuse(ValueError, field, "of dtype %s and shape %s" % (tensor.dtype, shape),
                          "torch.float32 (%s%d, %d)" % ("R, " if tensor is partials else "", *rows))
    if not fields or isinstance(partials, torch.Tensor) and not len(partials):
        _check.refuse(ValueError, "partials", "of no rank", "those of at least one")
    return partials if isinstance(partials, torch.Tensor) else torch.stack(tuple(fields.values()))


def _combine_plan(partials, ids, weight_shard, temperature_rows, settings):
    """The plan of the shard's forward pass, whose specialisation the merge shares, or one of the smallest head."""
    vocab, depth, dtype = settings.total, 8, _c.DTYPE_BF16
    if weight_shard is not None:
        _check.tensor_of("weight_shard", weight_shard)
        if weight_shard.dtype not in _check.DTYPES:
            _check.refuse_dtype("weight_shard", weight_shard, _check.ACCEPTED_DTYPES)
        if weight_shard.dim() != 2:
            _check.refuse_shape("weight_shard", weight_shard, "(V, D)")
        _check.same_device("weight_shard", weight_shard, "partials", partials)
        vocab, depth, dtype = weight_shard.shape[0], weight_shard.shape[1], _run.TO_C[weight_shard.dtype]
    return _plans.get(_plans.Spec(
        _run.device_of(partials), dtype=dtype, target_dtype=_run.TO_C[ids.dtype], vocab=vocab, hidden=depth,
        entropy=_c.ENTROPY_FORWARD if settings.entropy else _c.ENTROPY_NONE, softcap=settings.softcap,
        per_row_temperature=int(temperature_rows is not None), targets=targets_of(ids)))


@outside_graphs
def linear_logprob_backward(hidden: Tensor, weight: Tensor, target: Tensor, stats: Tensor, grad_logprob: Tensor | None,
                            grad_entropy: Tensor | None = None, bias: Tensor | None = None, *,
                            needs: Sequence[str] = ("hidden", "weight", "bias"), vocab_offset: int = 0,
                            vocab_valid: int | None = None, vocab_total: int | None = None,
                            temperature: float | Tensor = 1.0, softcap: float | None = None, scale: float = 1.0,
                            ignore_index: int = -100, budget: int | str | None = None, rows: Tensor | None = None,
                            grad_weight_accumulate: Tensor | None = None, keep: tuple[Tensor, Tensor] | None = None,
                            tail: float | None = None, saved: Tensor | None = None, tail_report: Tensor | None = None
                            ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Computes the gradients of one head or one shard from stats -> (grad_hidden, grad_weight, grad_bias).

    stats         (N, 4) float32 of combine_partials, the same on every rank
    grad_logprob, grad_entropy
                  (...) upstream gradients, grad_logprob of target's shape; either may be None
    needs         which gradients to compute; the others are None, as is the bias's without a bias
    tail, saved   as linear_logprob_partial had and gave them, with the same needs and budget, and entropy where
                  grad_entropy is given; saved may be read any number of times. None: exact
    tail_report   as for linear_logprob, of this shard
    The other arguments are those of linear_logprob and linear_logprob_partial. Gradients have shape and dtype of what
    they are of; grad_hidden of a shard is this rank's part: sum it over the ranks.
    error: ValueError or TypeError naming the field; flp.FlpError and its classes
    """
    call = Call("flp.linear_logprob_backward", hidden, weight, target, bias, instead=REVERSE,
                grads=_mask_of(needs, bias), temperature=temperature, rows=rows, keep=keep, softcap=softcap,
                scale=scale, ignore_index=ignore_index, budget=budget, entropy=grad_entropy is not None, tail=tail,
                tail_report=tail_report, grad_weight_accumulate=grad_weight_accumulate,
                others={"stats": stats, "grad_logprob": grad_logprob, "grad_entropy": grad_entropy})
    ops, settings = call.detached(), call.settings
    _place(settings, vocab_offset, vocab_valid, vocab_total, weight.shape[0])
    kept = _kept_of(saved, settings, ops.hidden.device)
    n = ops.hidden.shape[0]
    _check.tensor_of("stats", stats)
    if stats.dtype is not torch.float32 or stats.shape != (n, 4):
        _check.refuse(ValueError, "stats", "of dtype %s and shape %s" % (stats.dtype, tuple(stats.shape)),
                      "torch.float32 (%d, 4)" % n)
    if grad_logprob is None and grad_entropy is None:
        _check.refuse(ValueError, "grad_logprob", "None, as grad_entropy is", "one of the two")
    upstream = [_flat_upstream("grad_logprob", grad_logprob, ops.target.shape),
                _flat_upstream("grad_entropy", grad_entropy, (n,))]
    _check.devices(ops.hidden, stats=stats, grad_logprob=grad_logprob, grad_entropy=grad_entropy)
    grad_hidden, grad_weight, grad_bias = _run.backward(ops, settings, call.grads, stats, upstream[0],
                                                        upstream[1], kept)
    return None if grad_hidden is None else grad_hidden.reshape(hidden.shape), grad_weight, grad_bias


def _kept_of(saved, settings, device):
    """What linear_logprob_partial gave for a backward pass, as _run.Kept; None of None."""
    if saved is None:
        return None
    _check.tensor_of("saved", saved)
    if not settings.tail:
        _check.refuse(ValueError, "saved", "a tensor", "None without tail")
    if saved.dtype is not torch.uint8 or saved.dim() != 1 or saved.device != device:
        _check.refuse(ValueError, "saved", "%s of shape %s on %s" % (saved.dtype, tuple(saved.shape), saved.device),
                      "what flp.linear_logprob_partial gave with tail, torch.uint8 (bytes) on %s" % device)
    return _run.Kept.again(saved.contiguous(), settings)


def _flat_upstream(field, grad, shape):
    """Gradients as (N), or (N, K) of K targets a row."""
    if grad is None:
        return None
    _check.float_tensor_of(field, grad)
    if grad.numel() != torch.Size(shape).numel():
        each = "row" if len(shape) == 1 else "target"
        _check.refuse_shape(field, grad, "%d elements, one a %s" % (torch.Size(shape).numel(), each))
    return grad.detach().reshape(shape)


def _mask_of(needs, bias):
    mask = 0
    if isinstance(needs, str) or not isinstance(needs, collections.abc.Iterable):
        _check.refuse(TypeError, "needs", repr(needs), "a sequence of names: " + ", ".join(OF_HEAD))
    for need in needs:
        if not isinstance(need, str) or need not in OF_HEAD:
            _check.refuse(ValueError, "needs", "%r" % (need,), ", ".join(OF_HEAD))
        mask |= OF_HEAD[need]
    mask = mask if bias is not None else mask & ~_c.GRAD_BIAS
    if not mask:
        _check.refuse(ValueError, "needs", "%r" % (tuple(needs),), "at least one of hidden, weight, bias (with a bias)")
    return mask
