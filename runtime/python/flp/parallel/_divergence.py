"""divergence of two heads whose vocabulary is divided over ranks, in the same way.

Invariant: what the ranks exchange is numbers of a row: the largest score and two sums of each head, the sums of the
divergence and each rank's best columns, as torch operations one more in the backward pass; and the gradient of hidden.
"""
from __future__ import annotations

from typing import Any, Mapping

import torch
from torch import Tensor

from .._functions import _kinds, _pair
from .._library import _c
from .._tensors import _check, _transforms
from .._tensors._compile import outside_graphs
from . import _call, _group, _head, _weights

NAME = "flp.parallel.divergence"


class Shared(_call.Call):
    """What ranks have in common. chunk: 1 where each rank has its own rows of hidden states, else 0"""

    __slots__ = ()

    def __init__(self, hidden, group, sequence, reduce_grad_hidden, reduce_dtype):
        super().__init__()
        self.group, self.chunk = group, int(sequence)
        self.reduce_dtype = _head.reduction_of(hidden, reduce_grad_hidden, reduce_dtype, self)

    def lead(self, hidden):
        """The shape of all rows."""
        lead = hidden.shape[:-1]
        if self.chunk and not lead:
            _check.refuse_shape("hidden", hidden, "(N/R, D) with sequence_parallel")
        return torch.Size((lead[0] * self.group.size, *lead[1:])) if self.chunk else lead

    def rows(self, hidden):
        return self.group.gather(hidden).flatten(0, 1) if self.chunk else hidden


@outside_graphs
def divergence(hidden: Tensor, weight_shard: Tensor, teacher_hidden: Tensor, teacher_weight_shard: Tensor,
               kind: str = "reverse_kl", bias_shard: Tensor | None = None, teacher_bias_shard: Tensor | None = None, *,
               group: Any = None, vocab_offset: int | None = None, vocab_valid: int | None = None,
               vocab_total: int | None = None, mask: Tensor | None = None,
               parameters: Mapping[str, float] | None = None, temperature: float | Tensor = 1.0,
               teacher_temperature: float | Tensor | None = None, softcap: float | None = None,
               teacher_softcap: float | None = None, scale: float = 1.0, teacher_scale: float = 1.0,
               budget: int | str | None = None, reduce_grad_hidden: bool = True,
               reduce_dtype: torch.dtype = torch.float32, sequence_parallel: bool = False,
               grad_weight_accumulate: Tensor | None = None) -> _kinds.Divergence:
    """flp.divergence of two heads whose vocabulary is sharded over the ranks of a group; every rank makes the same
    call.

    hidden, teacher_hidden
                  (..., D) and (..., E), the same on every rank; with sequence_parallel this rank's rows, (N/R, ...)
    weight_shard, teacher_weight_shard
                  (this rank's V, D) and (this rank's V, E), the same ids of both
    bias_shard, teacher_bias_shard
                  (this rank's V), or None
    group, vocab_offset, vocab_valid, vocab_total, reduce_grad_hidden, reduce_dtype, grad_weight_accumulate
                  as in flp.parallel.linear_logprob
    sequence_parallel
                  True: hidden states are gathered, and the gradient of hidden is reduce-scattered
    mask, temperature, teacher_temperature
                  of all N rows, the same on every rank
    The other arguments are those of flp.divergence.

    Returns a Divergence of all N rows, the same on every rank, which is to form the same loss of it. By kernels, as
    flp.divergence, where every rank has them and two columns that are no padding; the host waits for the device.
    error: as flp.parallel.linear_logprob
    source: arXiv:1909.08053, section 3
    """
    if not isinstance(sequence_parallel, bool):
        _check.refuse_type("sequence_parallel", sequence_parallel, "True or False")
    tensors = {"hidden": hidden, "weight_shard": weight_shard, "teacher_hidden": teacher_hidden,
               "teacher_weight_shard": teacher_weight_shard}
    for field, tensor in tensors.items():
        _check.tensor_of(field, tensor)
    _transforms.check_plain(NAME, tuple(tensors.values()), _pair.INSTEAD)
    whole, given = _group.group_of(group), _head.place_given(vocab_offset, vocab_valid, vocab_total)
    with _weights.told_if_refused(weight_shard, given, whole, hidden.device):
        own = _weights.local_of("weight_shard", weight_shard, whole)
        teacher_weight, bias, teacher_bias = (
            None if tensor is None else _weights.local_of(field, tensor, whole).tensor for field, tensor in (
                ("teacher_weight_shard", teacher_weight_shard), ("bias_shard", bias_shard),
                ("teacher_bias_shard", teacher_bias_shard)))
        shared = Shared(hidden, _group.Group(None) if own.replicated else whole, sequence_parallel,
                        reduce_grad_hidden, reduce_dtype)
        with _check.renaming(lambda name: name + "_shard" if name.endswith(("weight", "bias")) else name):
            pair = _pair.Pair(NAME, kind, parameters, (hidden, own.tensor, bias),
                                    (teacher_hidden, teacher_weight, teacher_bias), None, False, mask, {
                "temperature": temperature, "softcap": softcap, "scale": scale, "budget": budget,
                "grad_weight_accumulate": grad_weight_accumulate}, {
                "temperature": teacher_temperature, "softcap": teacher_softcap, "scale": teacher_scale}, shared=shared)
    place = _weights.place_of(weight_shard, len(own.tensor), own.place or given, shared.group)
    for call in (pair.student, pair.teacher):
        call.settings.offset, call.settings.valid, call.settings.total = place
    pair.student.settings.wide_grads = _c.GRAD_HIDDEN
    return pair.by_row()
