"""Which sequences or tokens are worth a backward pass: the gate between batched scoring and training, all on the device.

Invariant: nothing here reads a value from the device, so scoring, gate and backward can be captured in one CUDA graph; what
is not kept gets a gradient of exactly 0, and flp's backward pass leaves such rows out, which it decides on the device too.
"""
from __future__ import annotations

import math

import torch
from torch import Tensor

from .._tensors import _check


def sequence_logprob(logprob: Tensor, mask: Tensor | None = None,
                     cu_seqlens: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Sums and averages log-probabilities over the tokens of each sequence; a sequence without tokens gives 0.

    logprob     (B, T) with mask, or packed (N) with cu_seqlens; floating point, in nats
    mask        (B, T) bool or numbers 0 and 1: the tokens that count, e.g. not prompts and padding; None: all.
                Packed: (N), likewise
    cu_seqlens  (S+1) int32 or int64: where each sequence begins in packed tokens, 0 first and N last; with bounds that
                do not begin so, run backwards or exceed N every sum is NaN
    Returns (sum, mean), each (B) or (S) float32, differentiable. Sums are formed in float64, in a fixed order. A NaN stays
    in its sequence. error: ValueError, TypeError naming the field
    """
    _check.float_tensor_of("logprob", logprob)
    dims = 2 if cu_seqlens is None else 1
    if logprob.dim() != dims:
        _check.refuse_shape("logprob", logprob,
                            "(B, T), or (N) with cu_seqlens" if cu_seqlens is None else "(N), as cu_seqlens is given")
    if cu_seqlens is not None:
        cu_seqlens_of(cu_seqlens, "logprob", logprob)
    kept = torch.ones_like(logprob, dtype=torch.bool) if mask is None else mask_of("mask", mask, "logprob", logprob)
    total, count = totals(logprob, kept, cu_seqlens)
    return total.float(), (total / count.clamp(min=1)).float()


def totals(logprob, kept, cu_seqlens):
    """Sums and numbers of what is kept of each sequence: (B, T), or (N) with cu_seqlens, checked -> (B) or (S) float64"""
    values = logprob.double().masked_fill(~kept, 0.0)
    if cu_seqlens is None:
        return values.sum(-1), kept.double().sum(-1)
    (bounds, are_wrong), sequences = bounds_of(cu_seqlens, values), len(cu_seqlens) - 1
    if not sequences or not len(values):  # which torch refuses
        total, count = (x.sum().expand(sequences) for x in (values, kept.double()))
    else:
        total, count = (torch.segment_reduce(x, "sum", offsets=bounds, unsafe=True, initial=0)
                        for x in (values, kept.double()))
    return total.masked_fill(are_wrong, float("nan")), count


def bounds_of(cu_seqlens, values):
    """Bounds of packed sequences within the values, ascending: (S+1) int64, and whether those that were given are not
    so, or do not begin with 0: () bool, on the device."""
    given = cu_seqlens.long()
    bounds = given.clamp(0, len(values)).cummax(0).values
    return bounds, (bounds != given).any() | (given[0] != 0)


def delight(logprob: Tensor, advantage: Tensor) -> Tensor:
    """advantage × surprisal, where surprisal = −logprob: how much there is to learn from a sequence or token.

    logprob, advantage  floating point, logprob in nats; of one shape, or broadcasting to one: (B) a sequence, (B, T)
                        and (B, 1) a token
    Returns float32 of that shape, detached. error: TypeError naming the field
    """
    _check.float_tensor_of("logprob", logprob)
    _check.float_tensor_of("advantage", advantage)
    return advantage.detach().float() * -logprob.detach().float()


def gate(worth: Tensor, *, fraction: float | None = None, price: float | None = None, temperature: float | None = None,
         seed: int | Tensor | None = None, mask: Tensor | None = None) -> Tensor:
    """Chooses what is kept for the backward pass, by one of three rules, without asking the device for a value.

    worth        (...) floating point, e.g. flp.delight(...): the greater the better; NaN is never kept
    fraction     f in (0, 1]: keeps the best max(1, ⌈f·n⌉) of n; equal ones by place, the first first
    price        keeps what is worth more than that
    temperature  with price: keeps with probability σ((worth − price)/temperature), > 0; needs a seed
    seed         an integer, or an int64 tensor () on worth's device, which a captured CUDA graph reads at each replay:
                 the same seed gives the same choice for the same places, on any device
    mask         (...) bool or numbers 0 and 1: what may be kept, and what n counts; None: all
    Returns bool (...), for Scores.keep or the mask of a loss. With nothing to choose from, nothing is kept.
    error: ValueError, TypeError naming the field
    """
    _check.float_tensor_of("worth", worth)
    allowed = ~torch.isnan(worth)
    if mask is not None:
        allowed &= mask_of("mask", mask, "worth", worth)
    if (fraction is None) == (price is None):
        _check.refuse(ValueError, "fraction, price", "both given" if price is not None else "None",
                      "one of the two")
    if fraction is not None:
        if not 0 < _check.number_of("fraction", fraction) <= 1:
            _check.refuse(ValueError, "fraction", fraction, "a number above 0 and at most 1")
        return _best(worth.detach().float(), allowed, float(fraction))
    price = _check.number_of("price", price)
    if temperature is None:
        return allowed & (worth.detach() > price)
    if not _check.number_of("temperature", temperature) > 0:
        _check.refuse(ValueError, "temperature", temperature, "a number above 0")
    if seed is None:
        _check.refuse(ValueError, "seed", None, "an integer, as temperature is given")
    chance = torch.sigmoid((worth.detach().double() - price) / temperature)
    return allowed & (uniform(worth.shape, _seed_of(seed, worth), worth.device) < chance)


def uniform(shape, seed, device):
    """Numbers in [0, 1), float64, that depend on seed (64 bits, signed) and place alone: splitmix64 of a counter, so that
    every device and every CUDA graph has the same.
    source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014"""
    z = torch.arange(1, math.prod(shape) + 1, device=device) * _signed(0x9E3779B97F4A7C15) + seed
    z = (z ^ _shifted(z, 30)) * _signed(0xBF58476D1CE4E5B9)
    z = (z ^ _shifted(z, 27)) * _signed(0x94D049BB133111EB)
    return (_shifted(z ^ _shifted(z, 31), 11).double() * 2.0**-53).reshape(shape)


def _signed(bits):
    return bits - 2**64 if bits >= 2**63 else bits


def _shifted(z, by):
    """A logical shift to the right of 64 bits."""
    return (z >> by) & (2 ** (64 - by) - 1)


def _best(worth, allowed, fraction):
    flat = torch.where(allowed, worth, torch.full((), -float("inf"), device=worth.device)).flatten()
    open_places = allowed.flatten()
    # What is allowed stands before what is not even where it is worth -inf; equal ones keep their order.
    by_worth = torch.sort(flat, descending=True, stable=True).indices
    order = by_worth[torch.sort((~open_places[by_worth]).to(torch.uint8), stable=True).indices]
    rank = torch.empty_like(order).scatter_(0, order, torch.arange(order.numel(), device=order.device))
    count = open_places.sum()
    most = torch.ceil(count.double() * fraction - 1e-9).clamp(min=1)
    return (open_places & (rank < most)).reshape(worth.shape)


def _seed_of(seed, worth):
    if not isinstance(seed, torch.Tensor):
        return _check.integer_of("seed", seed)
    if seed.dtype is not torch.int64 or seed.dim() != 0:
        _check.refuse(ValueError, "seed", "%s of shape %s" % (seed.dtype, tuple(seed.shape)),
                      "an integer, or () torch.int64")
    _check.same_device("seed", seed, "worth", worth)
    return seed


def mask_of(field, mask, other, tensor):
    """A mask of bool or numbers, of the other's shape, as bool."""
    _check.like(field, mask, other, tensor)
    return mask != 0


def cu_seqlens_of(cu_seqlens, other, tensor):
    """Checks the bounds of packed sequences; other names the tensor that they are of."""
    _check.tensor_of("cu_seqlens", cu_seqlens)
    if cu_seqlens.dtype not in _check.TARGET_DTYPES or cu_seqlens.dim() != 1 or cu_seqlens.numel() < 1:
        _check.refuse(ValueError, "cu_seqlens", "%s of shape %s" % (cu_seqlens.dtype, tuple(cu_seqlens.shape)),
                      "(S+1) " + _check.ACCEPTED_TARGETS)
    _check.same_device("cu_seqlens", cu_seqlens, other, tensor)
