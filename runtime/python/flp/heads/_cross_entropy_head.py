"""CrossEntropyHead: a causal language model whose forward with labels computes its loss by flp.cross_entropy, without the
scores; or that of a trainer of transformers or TRL.

Invariants: as logprob_head, whose pass-through this is: the loss is computed where the model calls its head, and the model
finds an empty tensor where its scores would be. Without labels the model gives its scores, as ever. What changes of a
trainer is in _sft_trainers.py.
"""
from __future__ import annotations

import dataclasses
import functools
from typing import Any

import torch
from torch import Tensor

from .._functions import _cross_entropy
from .._library import _rules
from .._tensors import _check
from . import _head, _head_checks, _sft_trainers

# Losses of transformers that compare position t with label t + 1: the ends of a model's loss_type.
SHIFTED = ("ForCausalLM", "ForConditionalGeneration")
LOSS = "ForCausalLMLoss"  # their function


class CrossEntropyHead(_head.LogprobHead):
    """Makes a model's forward with labels give the loss of flp.cross_entropy, and no scores.

        with flp.CrossEntropyHead(model, label_smoothing=0.1):
            loss = model(input_ids=ids, labels=labels).loss

        flp.CrossEntropyHead(trainer).install()     # Trainer of transformers, SFTTrainer of TRL: before trainer.train()

    model            as for flp.logprob_head; or a trainer, that is an object with a model and compute_loss: it is then told
                     that its model takes num_items_in_batch, and the compute_loss of TRL's SFTTrainer, which has a fused
                     head of its own, gives way to that of transformers; it logs what it does without (token accuracy,
                     entropy, num_tokens)
    label_smoothing, z_loss, budget, ignore_index
                     as for flp.cross_entropy; label_smoothing of a trainer is its label_smoothing_factor, if it has one
    verify           as for flp.logprob_head

    model(..., labels=(B, T)) gives the model's own output with loss, a float32 scalar, and logits None: position t is
    scored on label t + 1, or on shift_labels (B, T) at t where these are given too; the mean is over the labels that are
    not ignore_index. With num_items_in_batch=n the sum is divided by n, as transformers' trainers ask for, so that
    micro-batches of a step add up to the batch's mean. aux_loss of a mixture of experts is added with the model's
    router_aux_loss_coef, as transformers does; what other models add is in the output, not in the loss. Without labels
    nothing is other than it was.
    What a trainer does with scores (compute_metrics, predict) it does as without the head, its loss too. Refused are
    models with a loss of their own (model.loss_function = mine), here and at each call; trainers with a loss of another
    kind: compute_loss_func, loss_type 'dft', TRL's other trainers; Liger's fused loss;
    nn.DataParallel and DeepSpeed's sequence parallelism.
    install(), uninstall(), blocks, copies, threads: as for flp.logprob_head.
    error: flp.UnsupportedError if head, model or trainer cannot be stood in for; ValueError, TypeError naming the field
    """

    _name = "CrossEntropyHead"

    def __init__(self, model: Any, *, label_smoothing: float = 0.0, z_loss: float = 0.0,
                 budget: int | str | None = None, ignore_index: int = -100, verify: bool = True) -> None:
        self.trainer = model if _sft_trainers.is_trainer(model) else None
        _rules.smoothed_of(label_smoothing, z_loss, "mean")
        if self.trainer is not None:
            label_smoothing = _sft_trainers.smoothing_of(model, label_smoothing, ignore_index)
        super().__init__(model.model if self.trainer is not None else model, budget=budget, ignore_index=ignore_index,
                         verify=verify)
        _check_loss(self.model)
        scale, softcap = self.rule
        self._loss = functools.partial(_cross_entropy.cross_entropy, label_smoothing=label_smoothing, z_loss=z_loss,
                                       budget=budget, ignore_index=ignore_index, softcap=softcap, scale=scale)
        self._total: float | Tensor | None = None
        self._changes = _sft_trainers.Changes(self.trainer)

    def install(self) -> CrossEntropyHead:
        """As that of flp.logprob_head."""
        super().install()
        self._changes.make()
        return self

    def uninstall(self) -> None:
        """As that of flp.logprob_head."""
        super().uninstall()
        self._changes.undo()

    def _run(self, model, below, arguments, keywords):
        if self._changes.paused:
            return below(*arguments, **keywords)
        named = dict(zip(self._names, arguments))
        if self._call is not None or keywords.get("labels", named.get("labels")) is None:
            keywords.pop("num_items_in_batch", None)
            return below(*arguments, **keywords)
        _check_loss(self.model)
        self._total = _total_of(keywords.pop("num_items_in_batch", None))
        shifted = keywords.pop("shift_labels", None)
        if shifted is not None:
            arguments, keywords = arguments[len(self._names):], {**keywords, **named, "labels": None, "targets": shifted}
        return super()._run(model, below, arguments, keywords)

    def _head_forward(self, head, below, hidden):
        return below(hidden) if self._call is None else super()._head_forward(head, below, hidden)

    def _scored(self, hidden, head, targets):
        weight, bias, lora = _head_checks.parts_of(head)
        if lora is not None:
            _head_checks.refuse("head", "with an adapter, which flp.cross_entropy does not take",
                                "a head outside of the adapter, or the adapter merged")
        if not self._changes.logs:
            return self._loss(hidden, weight, targets, bias, total=self._total), None
        loss, *seen = self._loss(hidden, weight, targets, bias, total=self._total, entropy=True, statistics=True)
        self._changes.saw(targets != self.ignore_index, *seen)
        return loss, None

    def _result(self, call, output):
        loss = call.results[0]
        if not self._changes.logs:
            loss = _with_aux(loss, self.model, output)
        if dataclasses.is_dataclass(output) and hasattr(output, "loss"):
            return dataclasses.replace(output, loss=loss, logits=None)
        if isinstance(output, tuple):  # return_dict=False: the loss first, no scores
            return (loss, *output[1:])
        _head_checks.refuse("model", "one whose output has no loss", "one of transformers")


def _with_aux(loss, model, output):
    """The loss and what a mixture of experts of transformers adds to it."""
    aux, where = getattr(output, "aux_loss", None), model
    if not hasattr(where, "router_aux_loss_coef"):
        config = getattr(model, "config", None)
        where = config.get_text_config() if hasattr(config, "get_text_config") else config
    weight = getattr(where, "router_aux_loss_coef", None)
    return loss + weight * aux.to(loss.device) if weight and isinstance(aux, Tensor) else loss


def _check_loss(model):
    """error: UnsupportedError if the model compares position t with label t, or has a loss of its own"""
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        _head_checks.refuse("model", "an encoder and decoder, whose labels are not those of the next position",
                            "a causal language model")
    kind = getattr(model, "loss_type", None)
    if isinstance(kind, str) and not kind.endswith(SHIFTED):
        _head_checks.refuse("model.loss_type", repr(kind), "that of a causal language model")
    loss = getattr(model, "loss_function", None)
    if loss is not None and not (getattr(loss, "__name__", "") == LOSS and loss.__module__.startswith("transformers.")):
        _head_checks.refuse("model.loss_function", getattr(loss, "__qualname__", type(loss).__name__),
                            "%s, of transformers, as scores that another could read are never made" % LOSS)


def _total_of(items):
    """num_items_in_batch as the trainers of transformers give it: a number, or a tensor of one. 0, where nothing counts,
    is as good as 1."""
    if not isinstance(items, Tensor):
        return 1 if items == 0 else items
    if items.numel() != 1:
        _check.refuse_shape("num_items_in_batch", items, "a number, or a tensor of one")
    items = items.reshape(()).to(torch.float32)
    return torch.where(items == 0, torch.ones_like(items), items)
