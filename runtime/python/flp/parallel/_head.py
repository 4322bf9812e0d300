"""The public function: checks, the place of the shard in the vocabulary, and the call."""
from __future__ import annotations

import contextlib
import dataclasses
import functools
from typing import Any, Literal, overload

import torch
from torch import Tensor

from .._library import _c, _together
from .._tensors import _check, _top, _transforms
from .._tensors._call import Call
from .._tensors._compile import outside_graphs
from .._tensors._lora import Lora
from .._tensors._operands import Operands
from . import _call, _group, _merge, _weights


@overload
def linear_logprob(hidden: Tensor, weight_shard: Tensor, target: Tensor, bias_shard: Tensor | None = ..., *,
                   group: Any = ..., vocab_offset: int | None = ..., vocab_valid: int | None = ...,
                   vocab_total: int | None = ..., temperature: float | Tensor = ..., entropy: Literal[False] = ...,
                   softcap: float | None = ..., scale: float = ..., ignore_index: int = ...,
                   budget: int | str | None = ..., rows: Tensor | None = ..., merge: str = ...,
                   reduce_grad_hidden: bool = ..., reduce_dtype: torch.dtype = ..., sequence_parallel: bool = ...,
                   gather: Any = ..., grad_weight_accumulate: Tensor | None = ..., save: bool | None = ...,
                   keep: tuple[Tensor, Tensor] | None = ..., tail: float | None = ...,
                   tail_report: Tensor | None = ...,
                   mixed: Literal["round", "split"] | None = ..., lora: Lora | None = ...) -> Tensor: ...


@overload
def linear_logprob(hidden: Tensor, weight_shard: Tensor, target: Tensor, bias_shard: Tensor | None = ..., *,
                   group: Any = ..., vocab_offset: int | None = ..., vocab_valid: int | None = ...,
                   vocab_total: int | None = ..., temperature: float | Tensor = ...,
                   entropy: Literal[True, "detached"], softcap: float | None = ..., scale: float = ...,
                   ignore_index: int = ..., budget: int | str | None = ..., rows: Tensor | None = ..., merge: str = ...,
                   reduce_grad_hidden: bool = ..., reduce_dtype: torch.dtype = ..., sequence_parallel: bool = ...,
                   gather: Any = ..., grad_weight_accumulate: Tensor | None = ...,
                   save: bool | None = ..., keep: tuple[Tensor, Tensor] | None = ..., tail: float | None = ...,
                   tail_report: Tensor | None = ...,
                   mixed: Literal["round", "split"] | None = ..., lora: Lora | None = ...) -> tuple[Tensor, Tensor]: ...


@overload
def linear_logprob(hidden: Tensor, weight_shard: Tensor, target: Tensor, bias_shard: Tensor | None = ..., *,
                   group: Any = ..., vocab_offset: int | None = ..., vocab_valid: int | None = ...,
                   vocab_total: int | None = ..., temperature: float | Tensor = ...,
                   entropy: bool | Literal["detached"] = ..., softcap: float | None = ..., scale: float = ...,
                   ignore_index: int = ..., budget: int | str | None = ..., rows: Tensor | None = ..., merge: str = ...,
                   reduce_grad_hidden: bool = ..., reduce_dtype: torch.dtype = ..., sequence_parallel: bool = ...,
                   gather: Any = ..., grad_weight_accumulate: Tensor | None = ...,
                   save: bool | None = ..., keep: tuple[Tensor, Tensor] | None = ..., tail: float | None = ...,
                   tail_report: Tensor | None = ..., topk: int = ..., rank: bool = ..., statistics: bool = ...,
                   mixed: Literal["round", "split"] | None = ..., lora: Lora | None = ...) -> Any: ...


@outside_graphs
def linear_logprob(hidden: Tensor, weight_shard: Tensor, target: Tensor, bias_shard: Tensor | None = None, *,
                   group: Any = None, vocab_offset: int | None = None, vocab_valid: int | None = None,
                   vocab_total: int | None = None, temperature: float | Tensor = 1.0,
                   entropy: bool | Literal["detached"] = False, softcap: float | None = None, scale: float = 1.0,
                   ignore_index: int = -100, budget: int | str | None = None, rows: Tensor | None = None,
                   merge: str = "sum", reduce_grad_hidden: bool = True, reduce_dtype: torch.dtype = torch.float32,
                   sequence_parallel: bool = False, gather: Any = None,
                   grad_weight_accumulate: Tensor | None = None,
                   save: bool | None = None, keep: tuple[Tensor, Tensor] | None = None,
                   tail: float | None = None, tail_report: Tensor | None = None,
                   topk: int = 0, rank: bool = False, statistics: bool = False,
                   mixed: Literal["round", "split"] | None = None, lora: Lora | None = None) -> Any:
    """flp.linear_logprob of a head whose vocabulary is sharded over the ranks of a group; every rank makes the same
    call.

    hidden        (..., D) the same on every rank; with sequence_parallel this rank's rows, (N/R, D) or (S/R, B, D)
    weight_shard  (this rank's V, D), shards in rank order, of any sizes; or a DTensor of Shard(0) over the group.
                  One that is replicated over the group is taken whole, and nothing is sent.
    target        (...) int32 or int64 global ids of all N rows, the same on every rank
    bias_shard    (this rank's V), or None
    group         ProcessGroup or DeviceMesh of one dimension; None: all processes
    vocab_offset, vocab_valid, vocab_total
                  global id of the shard's first row; rows that are real, the others are padding; ids of the whole
                  vocabulary. What is None follows from one gather of the ranks' sizes at a weight's first call, the
                  only one that waits for the device: valid rows are then all, or, with vocab_total, all ids below it.
                  Each must be given, or not, on every rank.
    merge         "sum": one MAX of [N] and one SUM of [2,N], with entropy [3,N], float32; "gather": the ranks'
                  partials, (N,4) float32, merged in rank order, bits that depend on nothing else
    reduce_grad_hidden
                  False: the gradient of hidden is this rank's part (where Megatron's
                  copy_to_tensor_model_parallel_region sums it)
    reduce_dtype  dtype that the gradient of hidden is summed over the ranks in; None: hidden's
    sequence_parallel
                  True, or rows of each rank that are gathered at a time (True: 4096 over the ranks): hidden is
                  gathered chunk by chunk, in both passes, and its gradient reduce-scattered
    gather        called with a list of weight_shard and bias_shard, gives a context manager that is entered around each
                  pass, in backward until the gradients have been added (deepspeed.zero.GatheredParameters)
    grad_weight_accumulate
                  (this rank's V, D) float32 buffer that the weight's gradient is added to
    save          whether a frozen head's forward pass keeps this rank's directions, 4·N·D bytes, so that the backward
                  pass makes no product (direction mode). None: where a rung has kernels for it and those of all chunks
                  fit the budget, with the workspace of either pass; True: where a rung has them; False: never
    keep          (offsets, token_ids) of all N rows, global ids, the same on every rank; no save or tail
    tail, tail_report
                  as for flp.linear_logprob, the bound the same on every rank; a rank's report is of its own shard,
                  whose part of dz obeys the bound, and so does their sum. Ranks may leave out more or less of a row
    topk, rank    as for flp.linear_logprob, the same on every rank. They send their best K tokens to each other, (N,K)
                  ids and float32; for the rank a MAX of (N) float32 before the pass, and (N) int32
    statistics    as for flp.linear_logprob, the same on every rank, which send (N,5) float32 to each other
    mixed         as for flp.linear_logprob, the same on every rank, as are the dtypes: float32 shards of a head beside
                  hidden states of 16 bits, which are sent as they are, or the reverse
    lora          as for flp.linear_logprob: a (r, D) the same on every rank, b (this rank's V, r) its rows as those of
                  weight_shard; a frozen shard. The gradient of a is summed over the ranks in float32, whatever
                  reduce_grad_hidden is. No sequence_parallel, gather or mixed, nor what flp.linear_logprob refuses
    The other arguments are those of flp.linear_logprob; rows and temperature are of all N rows.

    Returns logprob (...) float32 in nats, in target's shape and the same on every rank; or a tuple of it, the entropy,
    top, the rank and statistics, as asked for. Every rank is to form the same loss of them, and to require gradients of
    the same operands; they are computed once (no double backward). That of hidden is sent only if hidden requires it.
    source: arXiv:1909.08053, section 3
    error:  ValueError or TypeError naming the field, its value and what is accepted; flp.FlpError and its classes. What
            one rank refuses, all refuse where they gather sizes; elsewhere the others wait for it, for the group's
            timeout
    """
    call, results = of_shards(NAME, **locals())
    return call.shaped(results)


NAME, TRANSFORMS = "flp.parallel.linear_logprob", "torch.autograd"


def of_shards(name, hidden, weight_shard, target, bias_shard, *, group, vocab_offset, vocab_valid, vocab_total, merge,
              reduce_grad_hidden, reduce_dtype, sequence_parallel, gather, topk=0, rank=False, statistics=False,
              scores=0, **options):
    """A call as linear_logprob has it -> the Call of this rank, and what autograd gives of it. scores: _call.Call's"""
    if merge not in _merge.METHODS:
        _check.refuse(ValueError, "merge", repr(merge), ", ".join(_merge.METHODS))
    if gather is not None and not callable(gather):
        _check.refuse_type("gather", gather, "None, or a callable")
    _check.tensor_of("hidden", hidden)
    _check.tensor_of("target", target)
    _together.check({"target": _together.several(target, hidden), "gather": gather, "topk": topk, "rank": rank,
                     "statistics": statistics, "sequence_parallel": sequence_parallel, **options})
    _transforms.check_plain(name, (weight_shard, bias_shard, hidden, target, options["temperature"],
                                   options.get("rows"), *(getattr(options["lora"], x, None) for x in "ab")), TRANSFORMS)
    whole_group = _group.group_of(group)
    shared = _call.Call()
    shared.merge, shared.scores = merge, scores
    parameters = [parameter for parameter in (weight_shard, bias_shard) if parameter is not None]
    shared.gather = None if gather is None else functools.partial(_entered, gather, parameters)
    given = place_given(vocab_offset, vocab_valid, vocab_total)
    with contextlib.nullcontext() if shared.gather is None else shared.gather():
        with _weights.told_if_refused(weight_shard, given, whole_group, hidden.device):
            weight = _weights.local_of("weight_shard", weight_shard, whole_group)
            shared.group = _group.Group(None) if weight.replicated else whole_group
            shared.chunk = _chunk_of(sequence_parallel, shared.group, weight.replicated)
            shared.reduce_dtype = reduction_of(hidden, reduce_grad_hidden, reduce_dtype, shared)
            call = _checked(name, shared, whole_group, hidden, weight.tensor, target, bias_shard, options,
                            {"topk": topk, "rank": rank, "statistics": statistics})
        place = _weights.place_of(weight_shard, weight.tensor.shape[0], weight.place or given, shared.group)
        return call, _run(shared, call, place, topk, rank, statistics)


def place_given(offset, valid, total):
    """The Place of what the caller gave, None for the rest."""
    return _weights.Place(*(value if value is None else _check.within(field, value, least, _check.VOCAB_MAX)
                            for field, value, least in (("vocab_offset", offset, 0), ("vocab_valid", valid, 0),
                                                        ("vocab_total", total, 2))))


def _checked(name, shared, group, hidden, weight, target, bias, options, asked):
    """The call of this rank. shared: what the ranks share; weight: what this rank has of it"""
    bias = bias if bias is None else _weights.local_of("bias_shard", bias, group).tensor
    lora = options["lora"]
    if isinstance(lora, Lora):
        options["lora"] = dataclasses.replace(lora, **{
            field: _weights.local_of("lora." + field, value, group).tensor
            for field, value in (("a", lora.a), ("b", lora.b)) if isinstance(value, Tensor)})
    lead = target.shape[:hidden.dim() - 1]
    _check_rows(hidden, lead, shared)
    call = Call(name, hidden, weight, target, bias, instead=TRANSFORMS, names=("weight_shard", "bias_shard"),
                lead=lead if shared.chunk else None, asked=asked, **options)
    call.settings.wide_grads = _c.GRAD_LORA_A | (_c.GRAD_HIDDEN if shared.reduce_dtype is torch.float32 else 0)
    return call


def _run(shared, call, place, *asked):
    """Scores, or runs the autograd function -> logprob, the entropy, the best tokens and the rank, as asked for"""
    settings = shared.settings = call.settings
    settings.offset, settings.valid, settings.total = place
    shared.empty = place.valid == 0
    if _top.is_asked(*asked):
        _top.settle(settings, *asked, place.total)
    if call.operands["weight"].shape[0] == 1:
        _weights.of_two_rows(call)
    if not call.grads:
        return _call.scored(shared, Operands(*call.operands.values()), 0)[0]
    results = _call.ParallelLogprob.apply(*call.operands.values(), shared, call.grads)
    return results if isinstance(results, tuple) else (results,)


def _entered(gather, parameters):
    """The context manager that the caller's function gives."""
    given = gather(parameters)
    if not hasattr(given, "__enter__"):
        _check.refuse(TypeError, "gather", "a callable that gives " + type(given).__name__,
                      "one that gives a context manager")
    return given


def _chunk_of(sequence_parallel, group, replicated):
    """Rows of a rank in a chunk; 0 without sequence parallelism."""
    if sequence_parallel is False:
        return 0
    if replicated:
        _check.refuse(ValueError, "sequence_parallel", "%r while weight_shard is the whole head on every rank"
                      % (sequence_parallel,), "False, as each rank can score its own rows")
    if sequence_parallel is True:
        return max(1, _call.CHUNK_ROWS // group.size)
    if _check.integer_of("sequence_parallel", sequence_parallel) < 1:
        _check.refuse(ValueError, "sequence_parallel", sequence_parallel, "False, True, or at least 1 row")
    return int(sequence_parallel)


def reduction_of(hidden, reduce_grad_hidden, reduce_dtype, call):
    """The dtype that gradients of hidden are summed in, or None where they are not."""
    if not isinstance(reduce_grad_hidden, bool):
        _check.refuse_type("reduce_grad_hidden", reduce_grad_hidden, "True or False")
    if reduce_dtype is not None and not (isinstance(reduce_dtype, torch.dtype) and reduce_dtype in _check.DTYPES):
        _check.refuse(TypeError, "reduce_dtype", reduce_dtype, "None, " + _check.ACCEPTED_DTYPES)
    if call.chunk and not reduce_grad_hidden:
        _check.refuse(ValueError, "reduce_grad_hidden", "False with sequence_parallel",
                      "True, as each rank gets the gradient of its own rows")
    if not reduce_grad_hidden or call.group.size == 1:
        return None
    return reduce_dtype or hidden.dtype


def _check_rows(hidden, lead, call):
    """Under sequence parallelism every rank has an equal share of the target's rows, whose shape is lead."""
    if not call.chunk:
        return
    own = hidden.shape[:-1].numel()
    if lead.numel() != own * call.group.size:
        ranks = call.group.size
        _check.refuse(ValueError, "target", "of %d ids" % lead.numel(),
                      "%d, one for each of hidden's %d rows on %d ranks" % (own * ranks, own, ranks))
