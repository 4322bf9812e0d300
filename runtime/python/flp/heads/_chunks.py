"""linear_logprob as plain torch operations over chunks of rows: the force-eager path of flp.logprob_head.

Invariant: of the (N, V) scores one chunk exists at a time, forward and backward: each chunk is checkpointed, so that
its scores are computed anew from the hidden states when its gradient is due. Chunks depend on shapes, never on values.
"""
import math

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from .. import errors
from .._eager import _eager_torch
from .._library import _c, _plans
from .._passes import _watch
from .._tensors import _check
from .._tensors._call import Call

# (rows, V) tensors of the reduction's dtype alive at the worst moment of one chunk, beside its scores in the operands'
# dtype, by (gradients, entropy): read off torch's profiler. A softcap adds one.
ALIVE = {(False, False): 2, (True, False): 3, (False, True): 5, (True, True): 5}


def linear_logprob(hidden, weight, target, bias=None, *, temperature=1.0, entropy=False, softcap=None, scale=1.0,
                   ignore_index=-100, budget=None, chunk_rows=None, reduce_fp32=True):
    """Computes what flp.linear_logprob does, from the same arguments, without its kernels.

    budget       bytes of the scores of one chunk and of what is computed from them; None: FLP_BUDGET, else 256 MiB
    chunk_rows   rows of a chunk; None: as many as the budget holds for this V
    reduce_fp32  False: the scores are reduced in the operands' dtype too, to which torch's product has rounded them in
                 any case; chunks then have more rows, and 16-bit logprobs about a digit less
    Returns logprob (...) float32, or (logprob, entropy). Rows whose target is outside [0, V) or whose temperature is
    not above 0 are NaN; with FLP_STRICT=1 they are an error, which synchronises. The caller chose this path, so
    FLP_FORCE has nothing to choose.
    error: ValueError, TypeError naming the field; BudgetError if the budget holds no row; DataError;
           ArgumentError naming a setting
    """
    call = Call("flp.linear_logprob", hidden, weight, target, bias, several=False, temperature=temperature,
                softcap=softcap, scale=scale, ignore_index=ignore_index, budget=budget, entropy=entropy,
                chunk_rows=chunk_rows)
    flat, weight, bias, ids, temperature_rows = tuple(call.operands.values())[:5]
    settings, grads = call.settings, call.grads != 0
    if _plans.in_force().strict:
        _refuse_bad(ids, temperature_rows, settings, weight.shape[0])
    _watch.told("torch", "chunks")
    dtype = torch.float32 if reduce_fp32 else flat.dtype
    rows = settings.chunk_rows or rows_of(settings, weight.shape[0], dtype, flat.dtype, grads)
    hiddens = flat.split(rows)
    temperatures = [None] * len(hiddens) if temperature_rows is None else temperature_rows.unsqueeze(1).split(rows)
    parts = []
    for part in zip(hiddens, ids.split(rows), temperatures):
        chunk = (*part, weight, bias, settings, dtype)
        parts.append(checkpoint(_score, *chunk, use_reentrant=False, preserve_rng_state=False) if grads
                     else _score(*chunk))
    results = tuple(torch.cat(column).reshape(call.lead) for column in zip(*parts))
    if not settings.entropy:
        return results[0]
    return (results[0], results[1].detach()) if settings.detached else results


def rows_of(settings, vocab, dtype, operand_dtype, grads):
    """Rows of a chunk: budget // (V · bytes of a score's tensors). error: BudgetError naming the smallest budget"""
    alive = ALIVE[grads, settings.entropy] + (settings.softcap > 0)
    row_bytes = vocab * (torch.finfo(operand_dtype).bits + alive * torch.finfo(dtype).bits) // 8
    budget = settings.budget or _plans.in_force().budgets[_c.PASS_FORWARD]
    rows = budget // row_bytes
    if rows < 1:
        raise errors.BudgetError("budget is %d bytes (accepted: at least %d, one row of %d scores)"
                                 % (budget, row_bytes, vocab))
    return rows


def _refuse_bad(ids, temperature_rows, settings, vocab):
    bad = (ids < 0) | (ids >= vocab)
    if temperature_rows is not None:
        bad |= ~_check.usable(temperature_rows, settings.softcap, settings.scale)
    _eager_torch.refuse_bad(int((bad & (ids != settings.ignore_index)).sum()))


def _score(hidden, target, temperature, weight, bias, settings, dtype):
    """One chunk: hidden (r,D), target (r), temperature (r,1) or None -> (logprob,) or (logprob, entropy), (r) each."""
    # The operands have followed autocast already; reduce_fp32 decides what is reduced.
    with torch.autocast(hidden.device.type, enabled=False):
        scores = F.linear(hidden, weight, bias).to(dtype)
        if settings.scale != 1:
            scores = scores * settings.scale
        if settings.softcap:
            scores = settings.softcap * torch.tanh(scores / settings.softcap)
        known = (target >= 0) & (target < scores.shape[1])
        if temperature is not None:
            usable = _check.usable(temperature, settings.softcap, settings.scale)
            known &= usable.squeeze(1)
            scores = scores / torch.where(usable, temperature, torch.ones_like(temperature)).to(dtype)
        elif settings.temperature != 1:
            scores = scores / settings.temperature
        logp = torch.log_softmax(scores, -1)
        work = target != settings.ignore_index
        column = torch.where(known, target, torch.zeros_like(target)).long().unsqueeze(1)
        results = (logp.gather(1, column).squeeze(1),)
        if settings.entropy:
            # A score of -inf has probability 0, and 0 · lowest is 0 where 0 · -inf would be NaN.
            results += (-(logp.exp() * logp.clamp_min(torch.finfo(dtype).min)).sum(-1),)
        return tuple(value.float().masked_fill(~known, math.nan).masked_fill(~work, 0) for value in results)
