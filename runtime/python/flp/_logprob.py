"""linear_logprob: the public, differentiable function.

Invariants: what is saved for the backward pass is the operands, the targets, stats (N,4) and what the forward pass
keeps: in save mode exponentials, which the first backward pass writes over, so that they are no saved tensor that hooks
may copy; a later pass recomputes (recompute mode), as does one that asks for other gradients; in direction mode
directions and in tail mode lists of columns, which are a saved tensor like the others and serve every backward pass. A
call that needs no gradient runs the scoring plan, whose bits are the same.
"""
from __future__ import annotations

import copy
import functools
from typing import Any, Literal, overload

import torch
from torch import Tensor

from . import _accumulate, _c, _check, _logprob_op, _lora, _mixed, _run, _tail, _together, _top, _transforms
from ._compile import in_graph, outside_graphs
from ._lora import Lora

REVERSE = "plain reverse mode, torch.autograd"

# Returns, inside a backward pass, whether a node of the graph will run; absent before torch 2.0.
_will_run = getattr(torch._C, "_will_engine_execute_node", None)


class LinearLogprob(torch.autograd.Function):
    """Forward and backward of checked, two-dimensional operands."""

    @staticmethod
    def forward(ctx, hidden, weight, bias, target, temperature_rows, rows, list_offsets, list_ids, settings, grads):
        operands = hidden, weight, bias, target, temperature_rows, rows, list_offsets, list_ids
        ops = _run.Operands(*operands)
        kept = _run.keep(ops, settings, grads)
        top = _top.Outputs(ops.target, settings) if settings.topk or settings.rank else None
        logprob, entropy, stats = _run.forward(ops, settings, grads, keep_stats=True, kept=kept, top=top)
        ctx.kept, lasting = (None, kept.memory) if kept is not None and kept.lasts else (kept, None)
        ctx.save_for_backward(*operands, stats, lasting)
        ctx.settings, ctx.grads = settings, grads
        ctx.set_materialize_grads(False)
        more = () if top is None else top.tensors()
        constants = more + ((entropy,) if settings.entropy and settings.detached else ())
        if constants:
            ctx.mark_non_differentiable(*constants)
        return (logprob, entropy, *more) if settings.entropy else (logprob, *more) if more else logprob

    @staticmethod
    @outside_graphs
    def backward(ctx, grad_logprob, *others):
        grads, grad_entropy = used_grads(ctx), others[0] if ctx.settings.entropy else None
        results = (None, None, None)
        if grads and not (grad_logprob is None and grad_entropy is None):
            *saved, lasting = ctx.saved_tensors
            kept, ctx.kept = ctx.kept, None
            if lasting is not None:
                kept = _run.Kept.again(lasting, ctx.settings)
            if grads != ctx.grads:
                kept = None
            results = LastDerivative.apply(functools.partial(_gradients, ctx.settings, grads, kept), *saved,
                                           grad_logprob, grad_entropy)
        return results + (None,) * 7


def _gradients(settings, grads, kept, *tensors):
    *operands, stats, grad_logprob, grad_entropy = tensors
    return _run.backward(_run.Operands(*operands), settings, grads, stats, grad_logprob, grad_entropy, kept)


class LastDerivative(_transforms.LastDerivative):
    """The backward pass of a head."""

    @staticmethod
    def backward(ctx, *_grads):
        raise RuntimeError(_run.NO_SECOND_DERIVATIVE)


def used_grads(ctx):
    """The needs-grad mask of a backward pass: inputs that require a gradient, less those that autograd.grad(inputs=...)
    leaves out where torch knows it."""
    mask = 0
    for bit, wanted, edge in zip(_run.GRAD_FIELDS, ctx.needs_input_grad, ctx.next_functions):
        if wanted and is_used(edge[0]):
            mask |= bit
    return mask & ctx.grads


def is_used(node):
    if _will_run is None or node is None:
        return True
    try:
        return _will_run(node)
    except RuntimeError:
        # A leaf whose gradient autograd.grad() collects: used, but torch does not answer for it.
        return True


def needed_grads(hidden, weight, bias):
    """The needs-grad mask of a call made now."""
    if not torch.is_grad_enabled():
        return 0
    mask = _c.GRAD_HIDDEN if hidden.requires_grad else 0
    if weight.requires_grad:
        mask |= _c.GRAD_WEIGHT
    if bias is not None and bias.requires_grad:
        mask |= _c.GRAD_BIAS
    return mask


def prepare(hidden, weight, target, bias, temperature, rows, lead=None, names=("weight", "bias"), several=False,
            mixed=None):
    """Checks and flattens the tensors -> lead shape, hidden, weight, bias, target, T, temperature_rows, rows.

    lead     shape of target and temperature; None: hidden's without its last dimension
    names    what the call names weight and bias
    several  whether target may have one dimension more, of K targets a row; flattened (N, K) then, (N) for K = 1
    mixed    flp_mixed, or None of a call that takes operands of one dtype alone
    """
    _check.tensor_of("hidden", hidden)
    _check.tensor_of(names[0], weight)
    if bias is not None:
        _check.tensor_of(names[1], bias)
    if not mixed:
        hidden, weight, bias = _check.follow_autocast(hidden, weight, bias)
    _check.operands(hidden, weight, bias, names, mixed)
    lead = hidden.shape[:-1] if lead is None else lead
    flat_target = _check.target_of(target, lead, several)
    _check.devices(hidden, **{names[0]: weight, "target": target, names[1]: bias})
    scalar, temperature_rows = _check.temperature_of(temperature, lead, hidden.device)
    flat_hidden = hidden if hidden.dim() == 2 else hidden.reshape(hidden.shape[:-1].numel(), hidden.shape[-1])
    return (lead, flat_hidden, weight, bias, flat_target, scalar, temperature_rows,
            _check.rows_of(rows, hidden.device))


@overload
def linear_logprob(hidden: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None = ..., *,
                   temperature: float | Tensor = ..., entropy: Literal[False] = ..., softcap: float | None = ...,
                   scale: float = ..., ignore_index: int = ..., budget: int | None = ..., chunk_rows: int | None = ...,
                   rows: Tensor | None = ..., grad_weight_accumulate: Tensor | None = ..., save: bool | None = ...,
                   old_lse: Tensor | None = ..., keep: tuple[Tensor, Tensor] | None = ...,
                   kept_mass: Literal[False] = ..., tail: float | None = ...,
                   tail_report: Tensor | None = ...,
                   mixed: Literal["round", "split"] | None = ..., lora: Lora | None = ...) -> Tensor: ...


@overload
def linear_logprob(hidden: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None = ..., *,
                   temperature: float | Tensor = ..., entropy: Literal[True, "detached"], softcap: float | None = ...,
                   scale: float = ..., ignore_index: int = ..., budget: int | None = ..., chunk_rows: int | None = ...,
                   rows: Tensor | None = ..., grad_weight_accumulate: Tensor | None = ..., save: bool | None = ...,
                   old_lse: Tensor | None = ..., keep: tuple[Tensor, Tensor] | None = ...,
                   kept_mass: Literal[False] = ..., tail: float | None = ...,
                   tail_report: Tensor | None = ...,
                   mixed: Literal["round", "split"] | None = ..., lora: Lora | None = ...) -> tuple[Tensor, Tensor]: ...


@overload
def linear_logprob(hidden: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None = ..., *,
                   temperature: float | Tensor = ..., entropy: bool | Literal["detached"] = ...,
                   softcap: float | None = ...,
                   scale: float = ..., ignore_index: int = ..., budget: int | None = ..., chunk_rows: int | None = ...,
                   rows: Tensor | None = ..., grad_weight_accumulate: Tensor | None = ..., save: bool | None = ...,
                   old_lse: Tensor | None = ..., keep: tuple[Tensor, Tensor] | None = ...,
                   kept_mass: Literal[False] = ..., tail: float | None = ...,
                   tail_report: Tensor | None = ...,
                   mixed: Literal["round", "split"] | None = ..., lora: Lora | None = ...) -> Tensor | tuple[Tensor, Tensor]: ...


@overload
def linear_logprob(hidden: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None = ..., *,
                   temperature: float | Tensor = ..., entropy: bool | Literal["detached"] = ...,
                   softcap: float | None = ...,
                   scale: float = ..., ignore_index: int = ..., budget: int | None = ..., chunk_rows: int | None = ...,
                   rows: Tensor | None = ..., grad_weight_accumulate: Tensor | None = ..., save: bool | None = ...,
                   old_lse: Tensor | None = ..., keep: tuple[Tensor, Tensor],
                   kept_mass: Literal[True]) -> tuple[Tensor, ...]: ...


@overload
def linear_logprob(hidden: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None = ..., *,
                   temperature: float | Tensor = ..., entropy: bool | Literal["detached"] = ...,
                   softcap: float | None = ...,
                   scale: float = ..., ignore_index: int = ..., budget: int | None = ..., chunk_rows: int | None = ...,
                   rows: Tensor | None = ..., grad_weight_accumulate: Tensor | None = ..., save: bool | None = ...,
                   old_lse: Tensor | None = ..., tail: float | None = ..., tail_report: Tensor | None = ...,
                   topk: int, rank: bool = ...) -> tuple[Any, ...]: ...


@overload
def linear_logprob(hidden: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None = ..., *,
                   temperature: float | Tensor = ..., entropy: bool | Literal["detached"] = ...,
                   softcap: float | None = ...,
                   scale: float = ..., ignore_index: int = ..., budget: int | None = ..., chunk_rows: int | None = ...,
                   rows: Tensor | None = ..., grad_weight_accumulate: Tensor | None = ..., save: bool | None = ...,
                   old_lse: Tensor | None = ..., rank: Literal[True]) -> tuple[Any, ...]: ...


@overload
def linear_logprob(hidden: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None = ..., *,
                   temperature: float | Tensor = ..., entropy: bool | Literal["detached"] = ...,
                   softcap: float | None = ..., scale: float = ..., ignore_index: int = ..., budget: int | None = ...,
                   chunk_rows: int | None = ..., rows: Tensor | None = ..., save: bool | None = ...,
                   lora: Lora, reference: Literal[True]) -> tuple[Tensor, ...]: ...


def linear_logprob(hidden: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None = None, *,
                   temperature: float | Tensor = 1.0, entropy: bool | Literal["detached"] = False,
                   softcap: float | None = None, scale: float = 1.0, ignore_index: int = -100,
                   budget: int | None = None, chunk_rows: int | None = None, rows: Tensor | None = None,
                   grad_weight_accumulate: Tensor | None = None, save: bool | None = None,
                   old_lse: Tensor | None = None, keep: tuple[Tensor, Tensor] | None = None,
                   kept_mass: bool = False, tail: float | None = None, tail_report: Tensor | None = None,
                   topk: int = 0, rank: bool = False, mixed: Literal["round", "split"] | None = None,
                   lora: Lora | None = None, reference: bool = False) -> Tensor | tuple[Any, ...]:
    """Computes the log-probability of each target token under a language-model head, without the (N,V) scores.

    z = scale·(hidden weightᵀ + bias);  z ← softcap·tanh(z/softcap);  t = z / temperature
    logprob_i = t_{i,target_i} − log Σ_v exp t_{i,v};   entropy_i = −Σ_v p_{i,v} log p_{i,v}

    hidden       (..., D) bfloat16, float16 or float32; cpu or cuda; D a multiple of 8
    weight       (V, D) of the same dtype; bias (V) of the same dtype, or None. See mixed
    target       (...) int32 or int64 ids; ignore_index marks tokens without work: logprob 0, entropy 0, no gradient.
                 Or (..., K), 1 to 512 ids a row, such as a teacher's best tokens: logprob is (..., K), each under the
                 softmax over all of V, and gradients reach all of them (those of one id twice add up); an id that is
                 ignore_index gives 0, a row of nothing else is a token without work. The backward pass recomputes: with
                 K above 1 no keep, save=True, old_lse or tail
    temperature  a number above 0, or a tensor of one a row (...); not differentiable
    entropy      True: return (logprob, entropy); both are differentiable. "detached": the entropy is a value without a
                 gradient, so that a frozen head may keep directions (save)
    softcap      a number above 0, or None
    budget       workspace bytes of each pass, with what is kept between them (save); None: FLP_BUDGET, else 256 MiB
                 forward, 1 GiB backward and where something is kept
    chunk_rows   rows of one chunk of the backward pass, whatever the budget is; None: the planner chooses
    rows         ids, into the flattened leading dimensions, of the only rows to compute; the others give 0
    grad_weight_accumulate
                 (V, D) float32 buffer that the backward pass adds the weight's gradient to (Megatron's main_grad);
                 weight.grad then stays as it is. Memory that no tensor of the call uses
    save         whether the forward pass keeps something, so that the backward pass need not multiply hidden by weight
                 again. None: where a rung has kernels for it and what is kept fits the budget, with the workspace of
                 either pass; True: whatever the budget is; False: never (recompute mode)
                 save mode: exponentials, 2·N·V bytes; the first backward pass uses them up, a later one recomputes
                 direction mode: of a frozen head (hidden alone needs a gradient, and the entropy has none) the
                 directions that the backward pass scales, 4·N·D bytes, for any number of backward passes. The forward
                 pass then makes the backward pass's product, so one whose backward pass never comes, or is of a few
                 rows only, costs twice what it must: torch.no_grad() and save=False spare that
    old_lse      (...) float32 in nats, log Σ exp t of a policy near this one, or None: what exponentials are stored
                 relative to; no result depends on it
    keep         (offsets, token_ids), or None: the only columns that count in each row, as the mask of a sampler's top-p
                 or top-k. Σ_v above, and the entropy, go over token_ids[offsets[i]:offsets[i + 1]] of row i alone;
                 other rows of weight are not read, and gradients do not reach them. offsets (N + 1) int32 or int64, N
                 the rows of target; token_ids int32 or int64 in any order, an id that stands twice counts once. A row
                 whose list lacks its target or holds an id outside [0, V) is NaN and counted, as is every row where
                 offsets do not ascend. No chunk_rows, save, old_lse or tail
    kept_mass    True: return last the log of the mass that the kept tokens have in the softmax over all of V, (...)
                 float32 in nats, <= 0, a value without a gradient: logprob + kept_mass is the log-probability without
                 keep. Costs a full pass; with keep alone
    tail         None or 0: exact gradients. 2**-20 to 2**-2: what a backward pass may leave out of dz, the gradient of
                 the scores (N, V): Σ|dz left out| <= tail·Σ|dz| over all of its elements, always; 2**-9 is what
                 rounding to bfloat16 may do to each. Tail mode: the forward pass lists the columns of each row that
                 carry its mass, and the backward pass reads those; rows whose tail counts are recomputed. Any number of
                 backward passes. Values keep their bits. Exact where no rung has kernels for it, where the lists and
                 the workspace of either pass do not fit the budget, and for other gradients than the call's. No save
    tail_report  (4,) float32 on hidden's device, which each backward pass fills: Σ|dz| that was left out, from above;
                 Σ|dz| in all, from below, dz being the loss's derivative by hidden weightᵀ + bias; rows that were
                 recomputed; columns that the other rows read, row by row. Zeros where it was exact. Memory that no
                 tensor of the call uses
    topk         K, 0 to 128: return top too, the best K tokens of each row: top.ids (..., K) of target's dtype, by
                 falling probability, top.logprobs (..., K) float32 in nats, and top.rest (...) float32, the probability
                 of all others. Of the pass that gives logprob, which keeps its bits; without a gradient. Rows that
                 are not computed have ids -1 and zeros, bad ones ids -1 and NaN; behind the last token of a
                 score above -inf stand -1 and -inf. No keep, save or tail
    rank         True: return last the rank of each target, (...) int32: how many tokens have a higher score; -1 where
                 there is none. As topk
    mixed        what becomes of one float32 operand beside a bfloat16 or float16 one (weight, as of a head in float32; or
                 hidden), and of a float32 bias. None: operands of two dtypes are refused. "round": the float32 operand
                 is rounded to the other's dtype on the way into the product, a slice of the weight at a time, so no
                 (V, D) copy exists; results have the bits of a call with the rounded operand. Sums are float32: what
                 vLLM's head_dtype and prime-rl's fp32 head compute. "split": two terms of the other's dtype, the rounded
                 operand and its rounded rest: two products, scores nearly those of float32 (2**-17 of each element of a
                 bfloat16 product, 2**-22 of a float16 one); gradients have the error of 16 bits; bias of 16 bits.
                 Gradients have the dtypes of their operands. With a float32 weight, or "split", the backward pass
                 recomputes: no keep, several targets, save=True, chunk_rows, tail, topk or rank. Autocast leaves such a
                 call alone. Without effect where all operands have one dtype
    lora         flp.Lora(a, b, scale), a low-rank adapter on the head, or None: z = scale·(hidden weightᵀ +
                 lora.scale·(hidden aᵀ) bᵀ + bias), without a copy of weight. a (r, D) and b (V, r) of hidden's dtype or
                 float32, r from 1 to 512. hidden aᵀ is rounded once, to hidden's dtype, as PEFT rounds it; where b is 0
                 the results have the bits that they have without lora. Gradients reach hidden, a, b and bias; weight is
                 frozen. One target a row; no keep, save=True, grad_weight_accumulate, tail, topk, rank or mixed
    reference    True: return last the logprob without the adapter, (...), a value without a gradient: the reference
                 policy of one whose head alone is trained. With lora alone; costs a scoring pass

    Returns logprob of target's shape, float32 in nats, never above 0; or a tuple of it, the entropy (...) and the kept
    mass, or top and the rank, or the reference, as asked for.
    Gradients reach hidden, weight and bias as they require them, once (no double backward). Rows whose target is
    outside [0, V) or whose temperature float32 does not hold above 0 are NaN and counted, as are rows whose largest
    score over T is beyond 7.4e8: flp.check() reports them. Asynchronous on the caller's current stream, with the
    caller's allocator. The first call of a specialisation makes its plan (seconds when kernels must be compiled): make it
    before capturing a CUDA graph. torch.compile keeps a call whole, except with keep, chunk_rows, save=True,
    grad_weight_accumulate, tail, tail_report, topk, rank, mixed or lora; temperature, softcap and scale may change from
    call to call of one graph (where torch has no has_static_value, each value but a tensor's makes a graph of its own).
    torch.func.grad and vjp work, vmap and forward-mode derivatives are refused.
    error:  ValueError or TypeError naming the field, its value and what is accepted; flp.FlpError and its classes
    thread: safe
    """
    given = {"hidden": hidden, "weight": weight, "bias": bias, "target": target, "temperature": temperature,
             "rows": rows, "old_lse": old_lse}
    _check.entropy_of(entropy)
    how = _mixed.mixed_of(mixed)
    several = isinstance(target, torch.Tensor) and isinstance(hidden, torch.Tensor) and target.dim() == hidden.dim()
    asked = {"target": _together.several(target, hidden), "lora": lora, "keep": keep, "kept_mass": kept_mass, "save": save,
             "old_lse": old_lse, "tail": tail, "tail_report": tail_report, "topk": topk, "rank": rank, "mixed": mixed,
             "chunk_rows": chunk_rows, "grad_weight_accumulate": grad_weight_accumulate}
    _together.check(**asked)
    if reference and lora is None:
        _check.refuse(ValueError, "reference", repr(reference), "False without lora")
    if keep is not None:
        return _over_lists(hidden, weight, target, bias, temperature, rows, keep, kept_mass, grad_weight_accumulate,
                           (softcap, scale, ignore_index, budget, entropy), given, how)
    if kept_mass:
        _check.refuse(ValueError, "kept_mass", repr(kept_mass), "False without keep: all of V is kept")
    lead, flat, weight, bias, ids, scalar, temperature_rows, rows = prepare(hidden, weight, target, bias, temperature,
                                                                            rows, several=True, mixed=how)
    how = _mixed.settled(how, flat, weight, bias, asked)
    tensors = flat, weight, bias, ids, temperature_rows, rows
    options = scalar, softcap, scale, ignore_index, budget, entropy
    if lora is not None:
        made = tuple(result.reshape(lead if entropy and place == 1 else target.shape) for place, result in
                     enumerate(_lora.linear_logprob(lora, reference, tensors, options, chunk_rows)))
        return made if len(made) > 1 else made[0]
    if _top.is_asked(topk, rank):
        logprob, *more = _with_top(tensors, options, chunk_rows, grad_weight_accumulate, tail_report, topk, rank, lead,
                                   given, how)
        return (logprob.reshape(target.shape), *more)
    if in_graph() and grad_weight_accumulate is None and tail_report is None and not (chunk_rows or save or tail or how):
        results = _logprob_op.linear_logprob(*tensors, *options)
    else:
        results = _checked(tensors, options, chunk_rows, save, old_lse, grad_weight_accumulate, tail, tail_report,
                           given, how)
    if len(lead) == 1 and not several:
        return results if entropy else results[0]
    shaped: Any = (results[0].reshape(target.shape), *(result.reshape(lead) for result in results[1:]))
    return shaped if entropy else shaped[0]


@outside_graphs
def _over_lists(hidden, weight, target, bias, temperature, rows, keep, kept_mass, accumulate, options, given, mixed):
    """linear_logprob over the listed columns alone."""
    _transforms.check_plain("flp.linear_logprob with keep", (hidden, weight, target, bias, temperature, rows), REVERSE)
    lead, flat, weight, bias, ids, scalar, temperature_rows, rows = prepare(hidden, weight, target, bias, temperature,
                                                                            rows, mixed=mixed)
    offsets, list_ids, ids = _check.lists_of(keep, ids)
    settings = _check.Settings(scalar, *options)
    settings.mixed = _mixed.settled(mixed, flat, weight, bias, {"keep": keep})
    settings.accumulate = _accumulate.accumulator_of(accumulate, weight, given)
    if settings.accumulate is not None:
        _check.devices(flat, grad_weight_accumulate=settings.accumulate)
    tensors = flat, weight, bias, ids, temperature_rows, rows
    results = dispatch(*tensors, settings, (offsets, list_ids))
    if kept_mass:
        whole = copy.copy(settings)
        whole.entropy = whole.detached = False
        full, _, _ = _run.forward(_run.Operands(*(None if t is None else t.detach() for t in tensors)), whole, 0,
                                  keep_stats=False)
        results += ((full - results[0].detach()).clamp(max=0),)
    shaped = tuple(result.reshape(lead) for result in results)
    return shaped if len(shaped) > 1 else shaped[0]


@outside_graphs
def _with_top(tensors, options, chunk_rows, accumulate, tail_report, topk, rank, lead, given, mixed):
    """linear_logprob with the best tokens of each row, or the rank of its target."""
    settings = _check.Settings(*options, chunk_rows)
    settings.mixed = mixed
    settings.accumulate = _accumulate.accumulator_of(accumulate, tensors[1], given)
    if settings.accumulate is not None:
        _check.devices(tensors[0], grad_weight_accumulate=settings.accumulate)
    _tail.settle(settings, None, tail_report, tensors[0].device, given)
    _top.settle(settings, topk, rank, tensors[1].shape[0])
    if _transforms.in_force():
        _transforms.check_plain("flp.linear_logprob with topk or rank", tensors, REVERSE)
    results = dispatch(*tensors, settings)
    values = 2 if settings.entropy else 1
    shaped = tuple(result.reshape(lead) for result in results[:values])
    return shaped + _top.packed(results[values:], settings, lead)


@outside_graphs
def _checked(tensors, options, chunk_rows, save, old_lse, accumulate, tail, tail_report, given,
             mixed):
    """Checks what is no operand and runs -> (logprob,) or (logprob, entropy). given: see accumulator_of"""
    settings = _check.Settings(*options, chunk_rows)
    settings.mixed = mixed
    settings.accumulate = _accumulate.accumulator_of(accumulate, tensors[1], given)
    if settings.accumulate is not None:
        _check.devices(tensors[0], grad_weight_accumulate=settings.accumulate)
    settings.save = _check.save_of(save)
    settings.old_lse = _check.row_values_of("old_lse", old_lse, given["hidden"].shape[:-1], tensors[0].device)
    _tail.settle(settings, tail, tail_report, tensors[0].device, given)
    return dispatch(*tensors, settings)


@outside_graphs
def dispatch(hidden, weight, bias, target, temperature_rows, rows, settings, lists=(None, None)):
    """Runs the scoring plan, or the autograd function -> (logprob,) or (logprob, entropy).

    lists  offsets and ids, where those columns alone count, and no transform is in force
    """
    if lists[0] is None and _transforms.in_force():
        results = _transformed(hidden, weight, bias, target, temperature_rows, rows, settings)
        if results is not None:
            return results
    grads = needed_grads(hidden, weight, bias)
    if grads:
        results = LinearLogprob.apply(hidden, weight, bias, target, temperature_rows, rows, *lists, settings, grads)
        return results if isinstance(results, tuple) else (results,)
    ops = _run.Operands(hidden, weight, bias, target, temperature_rows, rows, *lists)
    top = _top.Outputs(ops.target, settings) if settings.topk or settings.rank else None
    logprob, entropy, _ = _run.forward(ops, settings, 0, keep_stats=False, top=top)
    more = () if top is None else top.tensors()
    return (logprob, entropy, *more) if settings.entropy else (logprob, *more)


def _transformed(*arguments):
    """dispatch under torch.func; None where none of its transforms is in force. error: UnsupportedError"""
    *tensors, settings = arguments
    name = "flp.linear_logprob"
    settings = copy.copy(settings)
    settings.old_lse = None
    if _transforms.is_active():
        for field, value in (("grad_weight_accumulate", settings.accumulate), ("save=True", settings.save or None),
                             ("tail", settings.tail or None), ("tail_report", settings.tail_report)):
            if value is not None:
                _transforms.refuse(name, field + " under torch.func", "None there")

    def forward(*tensors):
        logprob, entropy, stats = _run.forward(_run.Operands(*tensors), settings, 0, keep_stats=True)
        return logprob, logprob.new_empty(0) if entropy is None else entropy, stats

    def backward(needed):
        grads = sum(bit for bit, wanted in zip(_run.GRAD_FIELDS, needed) if wanted)

        def gradients(*given):
            *operands, _, _, stats, grad_logprob, grad_entropy = given
            made = _run.backward(_run.Operands(*operands), settings, grads, stats, grad_logprob,
                                 grad_entropy if settings.entropy and not settings.detached else None)
            return tuple(grad for grad in made if grad is not None)

        return gradients

    results = _transforms.run(_transforms.Rule(name, _run.NO_SECOND_DERIVATIVE, forward, backward), *tensors)
    if results is None or not settings.entropy:
        return results if results is None else results[:1]
    return (results[0], results[1].detach()) if settings.detached else results
