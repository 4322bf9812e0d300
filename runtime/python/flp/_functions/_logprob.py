"""linear_logprob: the public, differentiable function."""
from __future__ import annotations

from typing import Any, Literal, overload

from torch import Tensor

from .._library._together import given_of
from .._passes import _autograd
from .._tensors._call import NONE, Call
from .._tensors._check import refuse
from .._tensors._compile import in_graph, is_tracing, outside_graphs, outside_graphs_if_untold
from .._tensors._lora import Lora
from . import _logprob_op


@overload
def linear_logprob(hidden: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None = ..., *,
                   temperature: float | Tensor = ..., entropy: Literal[False] = ..., softcap: float | None = ...,
                   scale: float = ..., ignore_index: int = ..., budget: int | str | None = ..., save: bool | None = ...,
                   chunk_rows: int | None = ..., rows: Tensor | None = ..., old_lse: Tensor | None = ...,
                   grad_weight_accumulate: Tensor | None = ..., keep: tuple[Tensor, Tensor] | None = ...,
                   kept_mass: Literal[False] = ..., tail: float | None = ..., tail_report: Tensor | None = ...,
                   mixed: Literal["round", "split"] | None = ..., lora: Lora | None = ...) -> Tensor: ...


@overload
def linear_logprob(hidden: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None = ..., *,
                   temperature: float | Tensor = ..., entropy: Literal[True, "detached"],
                   softcap: float | None = ..., scale: float = ..., ignore_index: int = ...,
                   budget: int | str | None = ..., chunk_rows: int | None = ..., rows: Tensor | None = ...,
                   grad_weight_accumulate: Tensor | None = ..., save: bool | None = ..., old_lse: Tensor | None = ...,
                   keep: tuple[Tensor, Tensor] | None = ..., kept_mass: Literal[False] = ...,
                   tail: float | None = ..., tail_report: Tensor | None = ...,
                   mixed: Literal["round", "split"] | None = ...,
                   lora: Lora | None = ...) -> tuple[Tensor, Tensor]: ...


@overload
def linear_logprob(hidden: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None = ..., *,
                   temperature: float | Tensor = ..., entropy: bool | Literal["detached"] = ...,
                   softcap: float | None = ..., scale: float = ..., ignore_index: int = ...,
                   budget: int | str | None = ..., chunk_rows: int | None = ..., rows: Tensor | None = ...,
                   grad_weight_accumulate: Tensor | None = ..., save: bool | None = ..., old_lse: Tensor | None = ...,
                   keep: tuple[Tensor, Tensor] | None = ..., kept_mass: bool = ..., tail: float | None = ...,
                   tail_report: Tensor | None = ..., topk: int = ..., rank: bool = ...,
                   statistics: bool = ..., mixed: Literal["round", "split"] | None = ..., lora: Lora | None = ...,
                   reference: bool = ...) -> Any: ...


@outside_graphs_if_untold
def linear_logprob(hidden: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None = None, *,
                   temperature: float | Tensor = 1.0, entropy: bool | Literal["detached"] = False,
                   softcap: float | None = None, scale: float = 1.0, ignore_index: int = -100,
                   budget: int | str | None = None, chunk_rows: int | None = None, rows: Tensor | None = None,
                   grad_weight_accumulate: Tensor | None = None, save: bool | None = None,
                   old_lse: Tensor | None = None, keep: tuple[Tensor, Tensor] | None = None,
                   kept_mass: bool = False, tail: float | None = None, tail_report: Tensor | None = None,
                   topk: int = 0, rank: bool = False, statistics: bool = False,
                   mixed: Literal["round", "split"] | None = None, lora: Lora | None = None,
                   reference: bool = False) -> Any:
    """Computes the log-probability of each target token under a language-model head, without the (N,V) scores.

    z = scale·(hidden weightᵀ + bias);  z ← softcap·tanh(z/softcap);  t = z / temperature
    logprob_i = t_{i,target_i} − log Σ_v exp t_{i,v};   entropy_i = −Σ_v p_{i,v} log p_{i,v}

    hidden       (..., D) bfloat16, float16 or float32; cpu or cuda; D a multiple of 8
    weight       (V, D) of the same dtype; bias (V) of the same dtype, or None. See mixed
    target       (...) int32 or int64 ids; ignore_index marks tokens without work: logprob 0, entropy 0, no gradient.
                 Or (..., K), 1 to 512 ids a row, each under the softmax over all of V: logprob is (..., K)
    temperature  a number above 0, or a tensor of one a row (...); not differentiable
    entropy      True: return the entropy too, both are differentiable. "detached": as a value without a gradient
    softcap      a number above 0, or None
    budget       bytes, or "64M", of workspace of each pass, with what is kept between them (save); None: FLP_BUDGET,
                 else 256 MiB forward, 1 GiB backward and where something is kept
    chunk_rows   rows of one chunk of the backward pass, whatever the budget is; None: the planner chooses
    rows         ids, into the flattened leading dimensions, of the only rows to compute; the others give 0
    grad_weight_accumulate
                 (V, D) float32 buffer that the backward pass adds the weight's gradient to (Megatron's main_grad);
                 weight.grad then stays as it is. Memory that no tensor of the call uses
    save         whether the forward pass keeps something, so that the backward pass need not multiply hidden by weight
                 again: exponentials, or directions of a frozen head. None: where a rung has kernels for it and it fits
                 the budget; True: whatever the budget is; False: never
    old_lse      (...) float32 in nats, log Σ exp t of a policy near this one, or None: what exponentials are stored
                 relative to; no result depends on it
    keep         (offsets, token_ids), or None: Σ_v, and the entropy, go over token_ids[offsets[i]:offsets[i + 1]] of
                 row i alone, as the mask of a sampler's top-p or top-k. offsets (N + 1) int32 or int64, N the rows of
                 target; token_ids int32 or int64. A row whose list lacks its target or holds an id outside [0, V) is
                 NaN and counted, as is every row where offsets do not ascend
    kept_mass    True, with keep: return last the log of the mass that the kept tokens have in the softmax over all of
                 V, (...) float32 in nats, <= 0, a value without a gradient
    tail         None or 0: exact gradients. 2**-20 to 2**-2: what a backward pass may leave out of dz, the gradient of
                 the scores (N, V): Σ|dz left out| <= tail·Σ|dz| over all of its elements. Values keep their bits
    tail_report  (4,) float32 on hidden's device, which each backward pass fills: Σ|dz| that was left out, from above;
                 Σ|dz| in all, from below; rows that were recomputed; columns that the other rows read. Zeros where it
                 was exact. Memory that no tensor of the call uses
    topk         K, 0 to 128: return top too, the best K tokens of each row: top.ids (..., K) of target's dtype, by
                 falling probability, top.logprobs (..., K) float32 in nats, and top.rest (...) float32, the probability
                 of all others; without a gradient
    rank         True: return last the rank of each target, (...) int32: how many tokens have a higher score; -1 where
                 there is none
    statistics   True: return last flp.Statistics: the log-sum-exp of each row, the mean of its scores, log Σ p², and
                 whether no token has a higher score than the target; values without a gradient
    mixed        what becomes of one float32 operand beside a bfloat16 or float16 one, and of a float32 bias. None:
                 operands of two dtypes are refused. "round": it is rounded to the other's dtype. "split": two terms of
                 the other's dtype, in two products. Without effect where all operands have one dtype
    lora         flp.Lora(a, b, scale), a low-rank adapter on a frozen head, or None: z = scale·(hidden weightᵀ +
                 lora.scale·(hidden aᵀ) bᵀ + bias). a (r, D) and b (V, r) of hidden's dtype or float32, r from 1 to 512
    reference    True, with lora: return last the logprob without the adapter, (...), a value without a gradient

    Returns logprob of target's shape, float32 in nats, never above 0; or a tuple of it, the entropy (...) and the kept
    mass, or top, the rank and statistics, or the reference, as asked for. Gradients reach hidden, weight, bias and the
    adapter as they require them, once (no double backward). Rows whose target is outside [0, V) or whose temperature
    float32 does not hold above 0 are NaN and counted, as are rows whose largest score over T is beyond 7.4e8:
    flp.check() reports them. Asynchronous on the caller's current stream, with the caller's allocator.
    Which options go together, what each costs, torch.compile and torch.func: runtime/python/README.md.
    error:  ValueError or TypeError naming the field, its value and what is accepted; flp.FlpError and its classes
    thread: safe
    source: arXiv:1805.02867 (the softmax online), arXiv:2411.09009 (without the scores)
    """
    if is_tracing():
        return _traced(hidden, weight, target, bias, {
            "temperature": temperature, "rows": rows, "softcap": softcap, "scale": scale, "ignore_index": ignore_index,
            "budget": budget, "entropy": entropy, "old_lse": old_lse}, {
            "chunk_rows": chunk_rows, "grad_weight_accumulate": grad_weight_accumulate, "save": save, "keep": keep,
            "kept_mass": kept_mass, "tail": tail, "tail_report": tail_report, "topk": topk, "rank": rank,
            "statistics": statistics, "mixed": mixed, "lora": lora, "reference": reference})
    call = Call("flp.linear_logprob", hidden, weight, target, bias, temperature=temperature, rows=rows,
                softcap=softcap, scale=scale, ignore_index=ignore_index, budget=budget, entropy=entropy,
                chunk_rows=chunk_rows, save=save, old_lse=old_lse, keep=keep, lora=lora, tail=tail,
                tail_report=tail_report, grad_weight_accumulate=grad_weight_accumulate, topk=topk, rank=rank,
                statistics=statistics, mixed=mixed, asked={"kept_mass": kept_mass} if kept_mass else NONE)
    if kept_mass and keep is None:
        refuse(ValueError, "kept_mass", repr(kept_mass), "False without keep: all of V is kept")
    if reference and lora is None:
        refuse(ValueError, "reference", repr(reference), "False without lora")
    results = _autograd.run(call)
    if kept_mass:
        results += ((_autograd.plain_logprob(call) - results[0].detach()).clamp(max=0),)
    if reference:
        results += (_autograd.plain_logprob(call),)
    return call.shaped(results)


_eagerly = outside_graphs(linear_logprob)


def _traced(hidden, weight, target, bias, options, more):
    """linear_logprob while torch.compile makes a graph: an operator in it, or a call outside. more: options that no
    operator takes"""
    if in_graph() and not given_of(more) and not isinstance(options["budget"], str):
        return _logprob_op.linear_logprob(hidden, weight, target, bias, **options)
    return _eagerly(hidden, weight, target, bias, **options, **more)
