"""CrossEntropyHead: a causal language model whose forward with labels computes its loss by flp.cross_entropy, without the
scores; or that of a trainer of transformers or TRL.

Invariants: as logprob_head, whose pass-through this is: the loss is computed where the model calls its head, and the model
finds an empty tensor where its scores would be. Without labels the model gives its scores, as ever. Of a trainer nothing
changes but two attributes of the object, which uninstall puts back.
"""
from __future__ import annotations

import dataclasses
import functools
from typing import Any

import torch
from torch import Tensor

from . import _check, _cross_entropy, _head_checks, heads

ABSENT = object()


class CrossEntropyHead(heads.LogprobHead):
    """Makes a model's forward with labels give the loss of flp.cross_entropy, and no scores.

        with flp.CrossEntropyHead(model, label_smoothing=0.1):
            loss = model(input_ids=ids, labels=labels).loss

        flp.CrossEntropyHead(trainer).install()     # Trainer of transformers, SFTTrainer of TRL: before trainer.train()

    model            as for flp.logprob_head; or a trainer, that is an object with a model and compute_loss: it is then told
                     that its model takes num_items_in_batch, and a compute_loss of TRL, which reads the scores for
                     metrics of its own (token accuracy, entropy), gives way to that of transformers
    label_smoothing, z_loss, budget, ignore_index
                     as for flp.cross_entropy
    verify           as for flp.logprob_head

    model(..., labels=(B, T)) gives the model's own output with loss, a float32 scalar, and logits None: position t is
    scored on label t + 1, the mean is over the labels that are not ignore_index. With num_items_in_batch=n the sum is
    divided by n, as transformers' trainers ask for, so that micro-batches of a step add up to the batch's mean. What the
    model adds to its loss (aux_loss of a mixture of experts) is in the output, not in the loss. Without labels nothing
    is other than it was.
    install(), uninstall(), blocks, copies, threads: as for flp.logprob_head.
    error: flp.UnsupportedError if head or model cannot be stood in for; ValueError, TypeError naming the field
    """

    def __init__(self, model: Any, *, label_smoothing: float = 0.0, z_loss: float = 0.0, budget: int | None = None,
                 ignore_index: int = -100, verify: bool = True) -> None:
        self.trainer = model if _is_trainer(model) else None
        _cross_entropy._wishes_of(label_smoothing, z_loss, "mean", False)
        super().__init__(model.model if self.trainer is not None else model, entropy=False, temperature=1.0, budget=budget,
                         chunk_rows=None, reduce_fp32=True, eager=False, ignore_index=ignore_index, verify=verify, tail=None,
                         tail_report=None)
        scale, softcap = self.rule
        self._loss = functools.partial(_cross_entropy.cross_entropy, label_smoothing=label_smoothing, z_loss=z_loss,
                                       budget=budget, ignore_index=ignore_index, softcap=softcap, scale=scale)
        self._total: float | Tensor | None = None
        self._before: dict[str, Any] = {}

    def install(self) -> CrossEntropyHead:
        """As that of flp.logprob_head."""
        super().install()
        if self.trainer is not None:
            self._replace("model_accepts_loss_kwargs", True)
            own = _loss_of_transformers(self.trainer)
            if own is not None:
                self._replace("compute_loss", functools.partial(own, self.trainer))
        return self

    def uninstall(self) -> None:
        """As that of flp.logprob_head."""
        super().uninstall()
        for name, value in self._before.items():
            vars(self.trainer).pop(name, None)
            if value is not ABSENT:
                setattr(self.trainer, name, value)
        self._before = {}

    def _replace(self, name, value):
        self._before[name] = vars(self.trainer).get(name, ABSENT)
        setattr(self.trainer, name, value)

    def _run(self, model, below, arguments, keywords):
        named = dict(zip(self._names, arguments))
        if self._call is not None or keywords.get("labels", named.get("labels")) is None:
            keywords.pop("num_items_in_batch", None)
            return below(*arguments, **keywords)
        self._total = _total_of(keywords.pop("num_items_in_batch", None))
        return super()._run(model, below, arguments, keywords)

    def _head_forward(self, head, below, hidden):
        return below(hidden) if self._call is None else super()._head_forward(head, below, hidden)

    def _scored(self, hidden, head, targets):
        weight, bias, lora = _head_checks.parts_of(head)
        if lora is not None:
            _head_checks.refuse("head", "with an adapter, which flp.cross_entropy does not take",
                                "a head outside of the adapter, or the adapter merged")
        return self._loss(hidden, weight, targets, bias, total=self._total), None

    def _result(self, call, output):
        loss = call.results[0]
        if dataclasses.is_dataclass(output) and hasattr(output, "loss"):
            return dataclasses.replace(output, loss=loss, logits=None)
        if isinstance(output, tuple):  # return_dict=False: the loss first, no scores
            return (loss, *output[1:])
        _head_checks.refuse("model", "one whose output has no loss", "one of transformers")


def _total_of(items):
    """num_items_in_batch as the trainers of transformers give it: a number, or a tensor of one."""
    if not isinstance(items, Tensor):
        return items
    if items.numel() != 1:
        _check.refuse(ValueError, "num_items_in_batch", "of shape %s" % (tuple(items.shape),), "a number, or a tensor of one")
    return items.reshape(()).to(torch.float32)


def _is_trainer(model):
    return not isinstance(model, torch.nn.Module) and hasattr(model, "model") and hasattr(model, "compute_loss")


def _loss_of_transformers(trainer):
    """compute_loss of transformers' Trainer, where another stands over it; else None."""
    for kind in type(trainer).__mro__:
        if "compute_loss" in vars(kind):
            return None if kind.__module__.split(".")[0] != "trl" else _below(type(trainer), kind)
    return None


def _below(kind, over):
    for base in kind.__mro__[kind.__mro__.index(over) + 1:]:
        if "compute_loss" in vars(base) and base.__module__.split(".")[0] != "trl":
            return vars(base)["compute_loss"]
    return None
