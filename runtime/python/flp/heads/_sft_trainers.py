"""What flp.CrossEntropyHead changes of a trainer of transformers or of TRL's SFTTrainer, and what it refuses of one.

Invariants: attributes of the object alone change, and undo puts them back; a trainer whose loss is not the cross
entropy of its model (a function of the user's, DFT, a preference) is refused, never given another loss. What asks for scores
(compute_metrics, trainer.predict) runs in the trainer as it was.
"""
from __future__ import annotations

import functools
import types
from typing import Any

import torch

from .._tensors import _check
from . import _head_checks

ABSENT = object()
SFT = ("trl.trainer.sft_trainer", "SFTTrainer")


def is_trainer(model: Any) -> bool:
    return not isinstance(model, torch.nn.Module) and hasattr(model, "model") and hasattr(model, "compute_loss")


def smoothing_of(trainer: Any, label_smoothing: float, ignore_index: int) -> float:
    """The label smoothing that the trainer trains with, its own where none is given.

    error: UnsupportedError, ValueError if its loss is not one that the head can give
    """
    _check_loss(trainer)
    _check_ranks(trainer)
    if ignore_index != -100:
        _check.refuse(ValueError, "ignore_index", ignore_index, "-100 with a trainer, which counts all other labels")
    own = float(getattr(getattr(trainer, "label_smoother", None), "epsilon", 0.0))
    if own and label_smoothing not in (0, own):
        _check.refuse(ValueError, "label_smoothing", label_smoothing,
                      "%g, label_smoothing_factor of the trainer, or 0, which takes that" % own)
    return own or label_smoothing


def _check_loss(trainer):
    if getattr(trainer, "compute_loss_func", None) is not None:
        _head_checks.refuse("trainer.compute_loss_func", "given, which reads scores that are not made", "None")
    args = getattr(trainer, "args", None)
    liger = getattr(args, "liger_kernel_config", None) or {}
    if getattr(args, "use_liger_kernel", False) and liger.get("fused_linear_cross_entropy", True):
        _head_checks.refuse("trainer.args.use_liger_kernel", "True, which replaces the model's forward",
                            "False, or liger_kernel_config={'fused_linear_cross_entropy': False}")
    over = _owner_in_trl(trainer)
    if over is None:
        return
    owner = "trainer" if "compute_loss" in vars(trainer) else _with_loss(trainer)[0]
    if owner is not over or (over.__module__, over.__qualname__) != SFT:
        _head_checks.refuse("trainer.compute_loss", "that of %s, over %s of TRL" % (
            getattr(owner, "__qualname__", owner), over.__qualname__), "SFTTrainer's own, or one of transformers")
    if getattr(args, "loss_type", "nll") != "nll":
        _head_checks.refuse("trainer.args.loss_type", repr(args.loss_type), "'nll'")


def _check_ranks(trainer):
    count = getattr(getattr(trainer, "args", None), "n_gpu", 1)
    if count > 1:
        _head_checks.refuse("trainer.args.n_gpu", "%d, in torch.nn.DataParallel" % count,
                            "1 a process: torchrun, accelerate launch, or CUDA_VISIBLE_DEVICES of one")
    layout = getattr(getattr(trainer, "accelerator", None), "parallelism_config", None)
    if getattr(layout, "sp_enabled", False):
        _head_checks.refuse("trainer.accelerator.parallelism_config", "with sequence parallelism", "one without")


def _with_loss(trainer):
    """Its classes that have a compute_loss, the one that is in force first."""
    return [kind for kind in type(trainer).__mro__ if "compute_loss" in vars(kind)]


def _is_of_trl(kind):
    return kind.__module__.split(".")[0] == "trl"


def _owner_in_trl(trainer):
    """The class of TRL whose compute_loss the trainer has or stands over, or None."""
    return next(filter(_is_of_trl, _with_loss(trainer)), None)


class Changes:
    """The changed attributes of one trainer, while they are changed; nothing if trainer is None."""

    def __init__(self, trainer: Any) -> None:
        self.trainer, self.paused = trainer, False
        self._sft = None if trainer is None else _owner_in_trl(trainer)
        self._before: dict[str, Any] = {}
        self._seen: Any = None

    @property
    def logs(self) -> bool:
        """Whether the trainer is TRL's, which logs what it sees of scores, and adds the loss of experts itself."""
        return self._sft is not None

    def saw(self, mask: torch.Tensor, entropy: torch.Tensor, statistics: Any) -> None:
        """What the head saw of the tokens (B, T) of one call of the model. mask: those that are labels"""
        self._seen = {"label_mask": mask, "entropy": entropy, "is_top1": statistics.is_best}

    def make(self) -> None:
        trainer = self.trainer
        if trainer is None:
            return
        self._replace("model_accepts_loss_kwargs", True)
        if hasattr(trainer, "_loss_shifts_labels"):
            self._replace("_loss_shifts_labels", True)
        if getattr(trainer, "label_smoother", None) is not None:
            self._replace("label_smoother", None)
        if self.logs:
            self._replace("compute_loss", functools.partial(self._loss_of_sft, _loss_of_transformers(trainer)))
        if hasattr(trainer, "prediction_step"):
            self._replace("prediction_step", functools.partial(self._predict, trainer.prediction_step))

    def undo(self) -> None:
        for name, value in self._before.items():
            vars(self.trainer).pop(name, None)
            if value is not ABSENT:
                setattr(self.trainer, name, value)
        self._before = {}

    def _replace(self, name, value):
        self._before[name] = vars(self.trainer).get(name, ABSENT)
        setattr(self.trainer, name, value)

    def _predict(self, own, model, inputs, prediction_loss_only, *arguments, **keywords):
        """prediction_step: the trainer's own, all else of it, too, where it is asked for more than the loss."""
        if prediction_loss_only:
            return own(model, inputs, prediction_loss_only, *arguments, **keywords)
        self.undo()
        self.paused = True
        try:
            return own(model, inputs, prediction_loss_only, *arguments, **keywords)
        finally:
            self.paused = False
            self.make()

    def _loss_of_sft(self, own, model, inputs, return_outputs=False, num_items_in_batch=None):
        """What SFTTrainer's compute_loss does; own is that of transformers."""
        trainer, inputs = self.trainer, {**inputs, "use_cache": False}
        balanced = getattr(trainer, "aux_loss_enabled", False)
        if balanced:
            inputs["output_router_logits"] = True
        loss, outputs = own(trainer, model, inputs, True, num_items_in_batch)
        if balanced:
            steps = 1 if num_items_in_batch is None else trainer.current_gradient_accumulation_steps
            loss = loss + trainer.router_aux_loss_coef * outputs.aux_loss / steps
        self._log(inputs, outputs, num_items_in_batch)
        return (loss, outputs) if return_outputs else loss

    def _log(self, inputs, outputs, num_items_in_batch):
        """Runs SFTTrainer's own compute_loss for its metrics, over what the head saw."""
        seen, self._seen = self._seen, None
        fused = types.SimpleNamespace(aux_loss=getattr(outputs, "aux_loss", None),
                                      log_probs=torch.zeros_like(seen["entropy"]), **seen)
        with torch.no_grad():
            self._sft.compute_loss(self.trainer, lambda **_: fused, dict(inputs), num_items_in_batch=num_items_in_batch)


def _loss_of_transformers(trainer):
    """compute_loss of transformers' Trainer below that of TRL."""
    owners = _with_loss(trainer)
    below = owners[owners.index(_owner_in_trl(trainer)) + 1:]
    return next(vars(kind)["compute_loss"] for kind in below if not _is_of_trl(kind))
