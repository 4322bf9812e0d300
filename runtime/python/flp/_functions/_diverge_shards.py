"""What ranks that share a vocabulary exchange of a divergence by kernels: sums of exponentials and of the divergence,
and the best columns of a chunk of rows; before that, whether all of them have kernels, and how large their chunks are.

Invariant: every rank makes the same exchanges, whatever it finds of its own.
"""
import copy
import math

import torch

from .._eager import _eager_torch
from .._eager._eager_torch import LOWEST
from .._library._divergences import STATE

LOG2E = 1 / math.log(2)
BLOCK_COLUMNS = 16 << 10  # of scores that are widened at a time


def of_rank(problem):
    """A problem of shards as one of whole heads, this rank's real columns."""
    made = {}
    for name in ("student", "teacher"):
        ops, settings = copy.copy(getattr(problem, name)), copy.copy(getattr(problem, name + "_settings"))
        ops.weight = ops.weight[:settings.valid]
        ops.bias = None if ops.bias is None else ops.bias[:settings.valid]
        settings.accumulate = None if settings.accumulate is None else settings.accumulate[:settings.valid]
        settings.offset = settings.valid = settings.total = 0
        made.update({name: ops, name + "_settings": settings})
    return problem._replace(**made, group=None)


def padded(grad, operand):
    """A gradient of real columns, as one of an operand that has padding behind them, or None."""
    if grad is None or len(grad) == len(operand):
        return grad
    whole = grad.new_zeros((len(operand), *grad.shape[1:]))
    whole[:len(grad)] = grad
    return whole


def least(group, device, *numbers):
    """The least of all ranks of each number; waits for the device."""
    return [min(each) for each in zip(*group.lists(list(numbers), device))]


def ends_of(scores, unit):
    """The largest of scores (n, V) times unit (n), in log2 units, and the sum of exponentials less it -> (n, 2)
    float32."""
    def blocks():
        for first in range(0, scores.shape[1], BLOCK_COLUMNS):
            yield scores[:, first:first + BLOCK_COLUMNS].double() * (unit.double() * LOG2E).unsqueeze(1)

    top = torch.stack([block.amax(1) for block in blocks()]).amax(0).float().clamp(min=LOWEST)
    total = sum(torch.exp2(block - top.double().unsqueeze(1)).sum(1) for block in blocks())
    return torch.stack([top, total.float()], 1)


class Ranks:
    """The ranks of a group, of whose columns this rank's begin at offset."""

    def __init__(self, group, offset):
        self.group, self.offset = group, offset

    def partials(self, ends, _part):
        """flp_args.partial of all ranks' columns (n, 4), of which two numbers count, of each head. ends: (n, 2) of this
        rank's"""
        top, total = self.group.gather(torch.stack(ends).double()).unbind(-1)
        most = top.amax(0)
        return torch.stack([most, (total * torch.exp2(top - most)).sum(0), most, most], -1).float().unbind(0)

    def total(self, state, scores, units, _of_shard):
        """Makes of this rank's state (n, STATE) that of all, in place. scores: of student and teacher (n, V); units:
        (n) float64 each"""
        sums = state[:, 2:STATE - 2].contiguous()
        self.group.total(sums)
        state[:, 2:STATE - 2] = sums
        best = state[:, STATE - 2:].long()
        tops = torch.stack([each.gather(1, best[:, at:at + 1])[:, 0] * unit
                            for at, (each, unit) in enumerate(zip(scores, units))], 1).nan_to_num(-math.inf)
        tops, best = self.group.gather(torch.cat([tops, (best + self.offset).double()], 1)).split(2, -1)
        state[:, STATE - 2:] = best.masked_fill(tops < tops.amax(0), math.inf).amin(0)


def count_beyond(plan, partials):
    """Counts rows whose largest score of a head is beyond the limit, as one rank's kernel does."""
    bad = [_eager_torch.is_beyond(m, s.isnan()) & (m < math.inf)
           for m, s in (partial[:, :2].unbind(1) for partial in partials)]
    _eager_torch.count_bad(plan, (bad[0] | bad[1]).sum())
