"""contract: what decides the bits of a call, in words that a trainer and a rollout engine can compare."""
from __future__ import annotations

from typing import Collection, Literal

import torch
from torch import Tensor

from .. import errors
from .._passes import _run
from .._tensors import _check
from .._tensors._call import Call
from .._tensors._compile import outside_graphs
from .._tensors._lora import Lora
from .._tensors._operands import Operands, grads_of


@outside_graphs
def contract(weight: Tensor, bias: Tensor | None = None, *, hidden_dtype: torch.dtype | None = None,
             temperature: float | Literal["rows"] = 1.0, softcap: float | None = None, scale: float = 1.0,
             grads: Collection[str] = (), mixed: Literal["round", "split"] | None = None, lora: Lora | None = None,
             shards: int | None = None, expect: str | None = None) -> str:
    """Says what decides the bits of log-probabilities, entropies, ranks and best tokens that calls with this head give.

    Where two programs get the same words, rows with equal operands have equal bits in both, whatever else is in a call:
    the number of rows, their order, chunks, gradients, other outputs. Words differ where the architecture of kernels or
    GPU does, a number of the call, or the code (on the CPU its products and its library of functions, too). They say
    nothing of gradients, whose bits depend on other rows.

        flp.contract(lm_head.weight, expect=words_of_the_other_side)

    weight, bias  (V, D) and (V) or None, as for flp.linear_logprob; only their shape, dtype, device and address count
    hidden_dtype  of the hidden states; None: weight's. Their rows begin at multiples of 16 bytes, as torch makes them
    temperature   a number above 0, or "rows": one a row, whose values are the caller's to compare
    grads         any of "hidden", "weight", "bias": of calls that train. The words are the same where one architecture
                  has the kernels of both
    softcap, scale, mixed, lora
                  as for flp.linear_logprob
    shards        over how many ranks flp.parallel.linear_logprob has the vocabulary, with merge="gather"; weight is one
                  of them. Other merges add in an order of the group's own
    expect        the other side's words: ContractError if they are others

    Returns words such as "sm_90a on 9.0: bf16 V=151936 D=4096 scale=1 temperature=1 code=0f5a3c91d2b84e67".
    error:  ContractError naming what differs; UnsupportedError where torch operations take the place of kernels, whose
            bits nobody promises; ValueError or TypeError naming the field
    """
    rows = temperature == "rows"
    _check.tensor_of("weight", weight)
    if weight.dim() != 2:
        _check.refuse_shape("weight", weight, "(V, D)")
    if weight.dtype not in _check.DTYPES:
        _check.refuse_dtype("weight", weight, _check.ACCEPTED_DTYPES)
    if expect is not None and not isinstance(expect, str):
        _check.refuse_type("expect", expect, "None, or the words of another contract")
    count = _check.count_of("shards", shards, "shard")
    hidden, mask = weight.new_empty((0, weight.shape[1]), dtype=hidden_dtype), grads_of(grads)
    call = Call("flp.contract", hidden, weight, torch.empty(0, dtype=torch.int64, device=weight.device), bias,
                temperature=hidden.new_ones(0, dtype=torch.float32) if rows else temperature, softcap=softcap,
                scale=scale, grads=mask, mixed=mixed, lora=lora)
    settings, ops = call.settings, Operands(*call.operands.values())
    words = _run.plan_for(ops, settings, mask).contract(settings)
    if count:
        words += " shards=%d" % count
    if expect is not None and expect != words:
        raise errors.ContractError(_difference(words, expect))
    return words


def _difference(ours, theirs):
    """A sentence that names the words which one side alone has."""
    own, others = ours.split(), theirs.split()
    only = [" ".join(word for word in words if word not in than) or "nothing"
            for words, than in ((own, others), (others, own))]
    return ("expect: this side has %s where the other has %s, so their log-probabilities may differ in their bits (%s)"
            % (*only, ours))
