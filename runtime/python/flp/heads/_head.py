"""logprob_head: log-probabilities straight from a causal language model's forward, its head a pass-through.

    with flp.logprob_head(model, entropy=True):
        out = model(input_ids=ids, attention_mask=mask)          # out.logprobs, out.entropy (B, T-1); no scores

Invariants: the log-probabilities are computed where the model calls its head, so under the same autocast and after the
same hooks; the model finds an empty tensor where its scores would be; what changes of the model and of its head is
their class, to a subclass that _patch makes, and that is put back; each call asks again whether the head is the one
that was installed, so that what changes in between is scored or refused, never overlooked.
"""
from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import inspect
import threading
from typing import Any, Literal

import torch
from torch import Tensor
import torch.nn.functional as F

from .._functions import _logprob
from .._library import _together
from .._passes import _counts
from .._tensors import _check
from .._tensors._compile import is_tracing
from . import _chunks, _head_checks, _patch

LogprobOutput = collections.namedtuple("LogprobOutput", "logprobs entropy output")
LogprobOutput.__doc__ = """What a model's forward returns under logprob_head.

logprobs  (B, T-1) float32 in nats: [:, t] of token t + 1 given tokens 0 to t; or targets' shape
entropy   the same shape, or of K targets a position (B, T); None if it was not asked for
output    the model's own output (past_key_values, aux_loss, ...), without scores and without a loss
"""


class LogprobHead:
    """Makes a model's forward return log-probabilities (and entropies) instead of scores -> a context manager.

    model         a causal language model of transformers, or one like it (get_output_embeddings, config); alone, inside
                  a PEFT model (LoRA on the trunk, or one adapter on the head, whose weight is frozen then and no copy
                  of it made; a head in modules_to_save), or inside DistributedDataParallel. Until
                  the block ends the classes of model and head are subclasses of their own, of the same names; nothing
                  else is changed
    entropy       True: entropies too; both are differentiable. "detached": entropies without a gradient, with which a
                  frozen head takes two matrix products (save of flp.linear_logprob)
    temperature   a number above 0, or a tensor that expands to (B, T), such as (B, 1) one a sequence
    budget        bytes of workspace of a pass, as for flp.linear_logprob; eager: of one chunk, None: FLP_BUDGET, else
                  256 MiB
    chunk_rows    rows of a chunk, instead of those that V and the budget give
    reduce_fp32   False: with eager, reduces in the operands' dtype. libflp reduces in float32 always
    eager         True: plain torch operations, chunk by chunk and checkpointed, instead of libflp's kernels; their
                  product rounds the scores to the operands' dtype, which in bfloat16 costs 0.05 nats
    ignore_index  label without work: logprob 0, entropy 0, no gradient
    verify        True: at the first call with a model, what it does to its scores is compared with its config
                  (final_logit_softcapping, logit_scale, logits_scaling, ...); synchronises that once
    tail, tail_report
                  as for flp.linear_logprob; not with eager
    mixed         as for flp.linear_logprob, of a head whose weight is float32 under a trunk of 16 bits, or the reverse;
                  not with eager

    Inside the block, model(...) runs the trunk as ever and takes one of
        labels   (B, T) int32 or int64, as in transformers: position t is scored on label t + 1
        targets  (B, T) position t is scored on target t; logprobs then are (B, T). With logits_to_keep=k (B, k). Or
                 (B, T, K), K targets a position as for flp.linear_logprob: logprobs (B, T, K); not with eager
        neither  input_ids are the labels; what attention_mask (B, T) leaves out, or what follows it, gives 0
    and returns a LogprobOutput. logits_to_keep=k scores the last k positions: logprobs (B, k-1). Gradients reach the
    trunk and, if they require it, the head's weight and bias. Packed sequences need labels with ignore_index where one
    begins.

    A copy that is made inside the block is a plain model with weights of its own, inside and after it, whether by
    copy.deepcopy, pickle, torch.save or DataParallel: ref = copy.deepcopy(policy) is a reference model that gives
    scores, and logprobs under a logprob_head of its own. (copy.copy shares its modules with the model, so the head that
    they share refuses it inside the block.) Weights are read at each call, so that they may be replaced, tied, cast and
    moved inside the block; another head, an adapter in it, a hook, shards of it or another rule in config are refused
    at the next call, by name.

    The same object has install() and uninstall() in place of the block; a copy of it is not installed. Blocks nest: the
    inner one's options hold. Threads may call the model; their forward passes take turns.
    error: flp.UnsupportedError if head or model cannot be stood in for, naming what is and what to do; ValueError,
           TypeError naming the field
    """

    _heads: list[Any]
    _name = "logprob_head"

    def __init__(self, model: torch.nn.Module, *, entropy: bool | Literal["detached"] = False,
                 temperature: float | Tensor = 1.0, budget: int | str | None = None, chunk_rows: int | None = None,
                 reduce_fp32: bool = True, eager: bool = False, ignore_index: int = -100,
                 verify: bool = True, tail: float | None = None, tail_report: Tensor | None = None,
                 mixed: Literal["round", "split"] | None = None) -> None:
        _check.Settings(1.0, None, 1.0, ignore_index, budget, entropy, chunk_rows)
        self._asked = {"eager": eager, "tail": tail, "tail_report": tail_report, "mixed": mixed}
        _together.check(self._asked)
        _check.tail_of(tail)
        self.model = _head_checks.causal_lm(model)
        self.rule = _head_checks.rule_of(self.model)
        self.verify, self._budget = verify, budget
        scale, softcap = self.rule
        options = {"entropy": entropy, "softcap": softcap, "scale": scale, "ignore_index": ignore_index,
                   "budget": budget, "chunk_rows": chunk_rows}
        self._score = functools.partial(_chunks.linear_logprob, reduce_fp32=reduce_fp32, **options) if eager \
            else functools.partial(_logprob.linear_logprob, tail=tail, tail_report=tail_report, mixed=mixed,
                                   **options)
        self.entropy, self.ignore_index, self.temperature = bool(entropy), ignore_index, temperature
        self._reset()

    def install(self) -> LogprobHead:
        """Puts the pass-through in place, or leaves all as it was. error: UnsupportedError; RuntimeError if it is in
        place already, or another's forward was put over it"""
        if self._heads:
            raise RuntimeError("logprob_head is installed (accepted: once, until uninstall)")
        heads = _head_checks.linears_of(self.model)
        names = [name for name, parameter in inspect.signature(self.model.forward).parameters.items()
                 if parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
        with contextlib.ExitStack() as undo:
            for module, handler in self._handlers(heads):
                _patch.put(module, handler)
                undo.callback(_patch.take, module, handler)
            undo.pop_all()
        self._heads, self._names = heads, names
        self._calls = _counts.install_head(self._name, self.model, "budget %s" % (self._budget or "by default"))
        return self

    def uninstall(self) -> None:
        """Puts back what was there. error: RuntimeError if forward was replaced again since, and not put back"""
        installed = list(self._handlers(self._heads)) if self._heads else []
        for module, _ in installed:
            _patch.check_in_force(module)
        self._heads = []
        _counts.uninstall_head(self._calls)
        for module, handler in installed:
            _patch.take(module, handler)

    def __enter__(self) -> LogprobHead:
        return self.install()

    def __exit__(self, *_error: object) -> None:
        self.uninstall()

    def __getstate__(self):
        return {name: value for name, value in vars(self).items() if name not in ("_heads", "_call", "_calls", "_turn")}

    def __setstate__(self, state):
        vars(self).update(state)
        self._reset()

    def _reset(self):
        """Not installed, in no call."""
        self._heads, self._names, self._call, self._calls, self._turn = [], [], None, None, threading.RLock()

    def _handlers(self, heads):
        yield self.model, self._model_forward
        for head in heads:
            yield head, self._head_forward

    def _model_forward(self, model, below, *arguments, **keywords):
        if is_tracing():
            return self._run(model, below, arguments, keywords)
        with self._turn:  # a call that the model makes of itself is part of the one that counts
            run = self._run if self._call is not None else self._calls.counting(self._run)
            return run(model, below, arguments, keywords)

    def _run(self, model, below, arguments, keywords):
        if self._call is not None:  # below has kept model.forward of an earlier installation, and calls that
            return _patch.own_forward(model)(model, *arguments, **keywords)
        if len(arguments) > len(self._names):
            _check.refuse(TypeError, "model's arguments", "%d without a name" % len(arguments), "keywords")
        _head_checks.check_unchanged(model, self._heads, self.rule)
        keywords.update(zip(self._names, arguments))
        call = self._call = _Call(keywords, self.ignore_index)
        try:
            output = below(**keywords)
        finally:
            self._call = None
        if call.results is None:
            _head_checks.refuse("model", "one whose forward does not call its head", "one that calls it once")
        if call.probed is not None:
            scores = output[0] if isinstance(output, tuple) else getattr(output, "logits", output)
            _head_checks.verify(model, call.probed, self.rule, scores)
        return self._result(call, output)

    def _result(self, call, output):
        """What the caller gets for what the model's own forward gave."""
        if hasattr(output, "logits") and dataclasses.is_dataclass(output):
            output = dataclasses.replace(output, logits=None)
        return LogprobOutput(*(call.cut(result) for result in call.results), output)

    def _head_forward(self, head, _below, hidden):
        call = self._call
        if call is None or call.results is not None:
            _head_checks.refuse("head", "called twice in a forward pass" if call else "called outside of one",
                                "one call, by the model's forward")
        targets = call.targets_for(hidden)
        call.results = self._scored(hidden, head, targets)
        if self.verify and not _head_checks.is_verified(self.model, self.rule):
            call.probed = head
            return _head_checks.probe_of(head)
        return hidden.detach()[..., :0]

    def _scored(self, hidden, head, targets):
        weight, bias, lora = _head_checks.parts_of(head)
        if lora is not None:
            for pair in _together.apart(_together.given_of({"lora": lora, **self._asked})):
                option = next(option for option in pair if option != "lora")
                _head_checks.refuse("head", "with an adapter, while %s is given" % option,
                                    "%s left out, or the adapter merged" % option)
        adapter = {} if lora is None else {"lora": lora}
        results = self._score(hidden, weight, targets, bias, temperature=_expanded(self.temperature, hidden.shape[:-1]),
                              **adapter)
        return results if self.entropy else (results, None)


logprob_head = LogprobHead  # as the package has it


class _Call:
    """One call of the model: what is scored, and the results when the head has been called. Takes labels and targets
    out of the model's keywords."""

    def __init__(self, keywords, ignore_index):
        labels, targets = keywords.pop("labels", None), keywords.pop("targets", None)
        if labels is not None and targets is not None:
            _check.refuse(ValueError, "labels, targets", "both given", "one of the two, or neither")
        keep = keywords.get("logits_to_keep", 0)
        if targets is None and isinstance(keep, torch.Tensor):
            _check.refuse(TypeError, "logits_to_keep", "a torch.Tensor", "an integer, or targets of what it keeps")
        self.keep, self.shifted = keep, targets is None
        self.targets = _next_of(labels, keywords, ignore_index) if self.shifted else targets
        _check.tensor_of("targets", self.targets)
        self.results = self.probed = None

    def targets_for(self, hidden):
        """The targets of each position that the head sees. hidden (B, T, D) -> (B, T), or (B, T, K) as they came"""
        targets = self.targets
        if self.shifted:
            targets = targets[:, -self.keep:] if self.keep else targets
        if targets.shape[:hidden.dim() - 1 if not self.shifted else None] != hidden.shape[:-1] or \
                targets.dim() > hidden.dim():
            _check.refuse(ValueError, "labels" if self.shifted else "targets",
                          "for positions of shape %s" % (tuple(targets.shape),),
                          "%s, the positions that the head sees" % (tuple(hidden.shape[:-1]),))
        return targets.to(hidden.device)

    def cut(self, result):
        """Without the last position, whose next token is not there, unless targets name it."""
        return result[:, :-1] if self.shifted and result is not None else result


def _next_of(labels, keywords, ignore_index):
    """The label after each position, ignore_index after the last. (B, T) -> (B, T)"""
    mask = None
    if labels is None:
        labels, mask = keywords.get("input_ids"), keywords.get("attention_mask")
        if labels is None:
            _check.refuse(ValueError, "labels", None, "labels or targets, as input_ids are not given")
    _check.tensor_of("labels", labels)
    if labels.dim() != 2:
        _check.refuse_shape("labels", labels, "(B, T)")
    after = labels[:, 1:]
    if mask is not None:
        if not isinstance(mask, torch.Tensor) or mask.shape != labels.shape:
            _check.refuse(ValueError, "labels", "None while attention_mask is not of input_ids' shape, %s" %
                          (tuple(labels.shape),), "labels or targets")
        kept = mask.to(labels.device) != 0
        after = after.masked_fill(~(kept[:, 1:] & kept[:, :-1]), ignore_index)
    return F.pad(after, (0, 1), value=ignore_index)


def _expanded(temperature, shape):
    """One temperature a position, if it is a tensor of several."""
    if not isinstance(temperature, torch.Tensor) or temperature.dim() == 0:
        return temperature
    try:
        return temperature.expand(shape)
    except RuntimeError:
        _check.refuse_shape("temperature", temperature, "a number, or what expands to %s" % (tuple(shape),))
