"""Megatron-Core: a callback for GPTModel.forward(output_processor=...), which megatron-core has since 0.18. install()
replaces what the model does before the callback: the losses of its heads that predict further tokens (MTP)."""
from __future__ import annotations

from typing import Any, Callable, Literal

import torch
from torch import Tensor

from .._tensors import _check
from . import _megatron, _mtp
from ._seam import Host, Seam

IGNORED = -100
# What a call may give through output_processor_context.
PER_CALL = ("temperature", "entropy", "labels", "mask", "keep")


def output_processor(*, temperature: float | Tensor = 1.0, entropy: bool | Literal["detached"] = False,
                     softcap: float | None = None, vocab_size: int | None = None, ignore_index: int = IGNORED,
                     **options: Any) -> Callable[..., Any]:
    """A callback that turns a Megatron model's hidden states into log-probabilities, without scores.

        processor = flp.adapters.megatron.output_processor(temperature=0.7, entropy="detached")
        logprob, entropy = model(ids, positions, mask, labels=labels, loss_mask=loss_mask, output_processor=processor)

    temperature   a number above 0, or a tensor of one a token, (b, s)
    entropy       as for flp.linear_logprob
    softcap       what the model caps its scores to behind the output layer, or None. A scale (mup) is the config's
    vocab_size    ids of the real vocabulary; None: tokens that pad it count too, as in Megatron's own loss
    ignore_index  label of tokens without work
    options       of flp.linear_logprob (flp.parallel.linear_logprob under tensor parallelism): budget, save, tail, ...

    output_processor_context of a model's call is None, or a dict of what differs in that call: temperature, entropy,
    labels (b, s) where the model shall not be given them, mask (b, s) of tokens that count (beside loss_mask, whose
    zeros cost no work either), keep. Labels are aligned with hidden states, as Megatron has them; without any, each
    token's label is the next of input_ids within its packed sequence, and loss_mask and mask are those of input_ids.

    Returns the callback. It gives logprob (b, s) float32 in nats, 0 where a token does not count, or a tuple as
    flp.linear_logprob. Tensor and sequence parallelism are those of the model's output layer, and with
    gradient_accumulation_fusion the weight's gradient goes to main_grad.
    error:  the callback: UnsupportedError for a head that flp cannot stand in for (LoRA, fp8, hooks, ...), ValueError
            and TypeError naming the field
    """
    def processor(*, hidden_states, output_layer, output_weight=None, labels=None, loss_mask=None, input_ids=None,
                  inference_context=None, packed_seq_params=None, context=None, scale_logits=None, config=None,
                  **_others):
        own = _own(context)
        if inference_context is not None:
            _megatron.refuse("inference_context", "given", "None: a model's call in training or scoring")
        head = _megatron.head_of(output_layer, output_weight, config, scale_logits, softcap)
        given = own.pop("labels", labels)
        masks = [mask for mask in (loss_mask, own.pop("mask", None)) if mask is not None]
        target = targets(given, input_ids, masks, packed_seq_params, config, ignore_index)
        settings = {"temperature": temperature, "entropy": entropy, **own, **options}
        if isinstance(settings["temperature"], torch.Tensor) and settings["temperature"].dim() == 2:
            settings["temperature"] = settings["temperature"].t()
        results = _megatron.logprobs(head, hidden_states, target.t().contiguous(), vocab_size=vocab_size,
                                     ignore_index=ignore_index, **settings)
        return tuple(map(batch_first, results)) if isinstance(results, tuple) else batch_first(results)

    return processor


def batch_first(result):
    """(s, b) -> (b, s), contiguous; also of best tokens."""
    if isinstance(result, torch.Tensor):
        return result.transpose(0, 1).contiguous()
    return type(result)(*map(batch_first, result))


def _own(context):
    """What a call's context gives, checked."""
    if context is None:
        return {}
    if not isinstance(context, dict):
        _check.refuse_type("output_processor_context", context, "None, or a dict of " + ", ".join(PER_CALL))
    for name in context:
        if name not in PER_CALL:
            _check.refuse(ValueError, "output_processor_context", "a dict with %r" % (name,), ", ".join(PER_CALL))
    return {name: value for name, value in context.items() if value is not None}


# ---- labels ----

def targets(labels, input_ids, masks, packed_seq_params=None, config=None, ignore_index=IGNORED):
    """The target of each position (b, s), ignore_index where none counts.

    labels  (b, s), aligned with hidden states; None: the next of input_ids, whose masks are then shifted likewise
    """
    if labels is None:
        if input_ids is None:
            _check.refuse(ValueError, "labels", "None without input_ids", "one of them")
        if _context_ranks(config, packed_seq_params) > 1:
            _megatron.refuse("labels", "None under context parallelism, where the next token may be on another rank",
                             "labels, in the call or in output_processor_context")
        has_next = _has_next(input_ids, packed_seq_params)
        labels, masks = rolled(input_ids), [has_next, *map(rolled, masks)]
    labels = labels.long()
    for mask in masks:
        if mask.shape != labels.shape:
            _check.refuse_shape("mask", mask, "%s, as labels" % (tuple(labels.shape),))
        labels = labels.masked_fill(mask == 0, ignore_index)
    return labels


def rolled(tokens):
    """(b, s): each position's next."""
    return torch.roll(tokens, -1, -1)


def _has_next(tokens, packed):
    """Which positions (b, s) have a next token of their own sequence."""
    place = torch.arange(tokens.shape[-1], device=tokens.device)
    ends = getattr(packed, "cu_seqlens_q", None)
    if ends is None:
        return (place < tokens.shape[-1] - 1).expand(tokens.shape)
    padded = getattr(packed, "cu_seqlens_q_padded", None)
    begins = (ends if padded is None else padded).long()
    if tokens.shape[0] != 1:
        _check.refuse(ValueError, "packed_seq_params", "given with %d rows of input_ids" % tokens.shape[0], "1 row")
    # What is behind the last sequence belongs to one of no tokens.
    lengths = torch.cat([(ends[1:] - ends[:-1]).long(), ends.new_zeros(1, dtype=torch.long)])
    sequence = torch.bucketize(place, begins[1:].contiguous(), right=True)
    return (place - begins[sequence] < lengths[sequence] - 1).unsqueeze(0)


def _context_ranks(config, packed):
    group = getattr(packed, "cp_group", None)
    if group is not None:
        return group.size()
    return getattr(packed, "local_cp_size", None) or getattr(config, "context_parallel_size", 1)


HOST = Host(
    _mtp.NAME, (
        Seam("megatron.core.transformer.multi_token_prediction", "process_mtp_loss",
             ("hidden_states", "labels", "loss_mask", "output_layer", "output_weight", "runtime_gather_output",
              "is_training", "compute_language_model_loss", "config", "cp_group", "tp_group", "packed_seq_params",
              "scale_logits_fn", "input_ids"), "7a459bac5884e8bf", _mtp.from_hidden),
    ), "megatron-core==0.19.2", "megatron-core")
