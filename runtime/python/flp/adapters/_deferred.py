"""Scores that an output layer was asked for and that nobody has made: hidden states and head, on their way to the loss.

For trainers that take a Megatron model's scores as its result and turn them into log-probabilities later, over fewer
rows. Invariants: what computes with such scores otherwise is an error that names the function, never another number; a
layer and its model are as they were when the block ends.
"""
import contextlib
import functools
import inspect
import threading

import torch

from .. import errors
from .._functions._select import NEVER
from ..heads import _patch
from . import _call, _megatron, _mtp

PROPERTIES = {"shape", "dtype", "device", "layout", "ndim", "requires_grad", "is_leaf", "is_cuda", "is_cpu", "is_meta",
              "is_sparse", "is_quantized", "is_nested", "_base", "grad_fn", "itemsize", "nbytes"}
READS = {"size", "dim", "numel", "get_device", "is_floating_point", "is_contiguous", "is_complex", "__len__"}
SAME = {"contiguous", "float"}


class Deferred(torch.Tensor):
    """Scores (S, B, V/R), or (B, S, V/R), in float32."""

    hidden: torch.Tensor  # (S, B, D), or (S/R, B, D) under sequence parallelism
    head: _megatron.Head
    batch_first: bool

    @staticmethod
    def __new__(cls, hidden, head, batch_first=False):
        ranks = head.group.size() if head.sequence_parallel else 1
        lead = (hidden.shape[0] * ranks, hidden.shape[1])
        made = torch.Tensor._make_wrapper_subclass(cls, (*(lead[::-1] if batch_first else lead), head.weight.shape[0]),
                                                   dtype=torch.float32, device=hidden.device)
        made.hidden, made.head, made.batch_first = hidden, head, batch_first
        return made

    def __repr__(self):
        return "Deferred(%s)" % (tuple(self.shape),)

    def logprobs(self, target, **options):
        """_megatron.logprobs of target (B, S) -> (B, S), or a tuple of such."""
        results = _megatron.logprobs(self.head, self.hidden, target.t().contiguous(), **options)
        if isinstance(results, tuple):
            return tuple(result.t() for result in results)
        return results.t()

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        name, self = getattr(function, "__name__", ""), args[0] if args else None
        if name == "__get__":
            name = getattr(function.__self__, "__name__", "")
            if name == "data":
                return self
            if name in PROPERTIES:
                return super().__torch_function__(function, types, args, kwargs)
        elif name in READS:
            return super().__torch_function__(function, types, args, kwargs)
        elif not kwargs and isinstance(self, Deferred):
            made = self._becomes(name, args[1:])
            if made is not None:
                return made
        raise _needed(name or repr(function))

    def _becomes(self, name, args):
        """What the few things that trainers do on the way to their loss make of it; None of all others."""
        if name in SAME or name == "to" and args == (torch.float32,):
            return self
        if name == "transpose" and sorted(args) == [0, 1]:
            return Deferred(self.hidden, self.head, not self.batch_first)
        if name in ("mul", "__mul__", "__rmul__") and isinstance(args[0], (int, float)) and self.head.softcap is None:
            return Deferred(self.hidden, self.head._replace(scale=self.head.scale * args[0]), self.batch_first)
        return Total(self) if name == "sum" and not args else None

    @classmethod
    def __torch_dispatch__(cls, function, _types, _args=(), _kwargs=None):
        raise _needed(str(function))


class Total:
    """The sum of all scores, where it is multiplied with 0 to have every gradient made."""

    def __init__(self, scores):
        self.scores = scores

    def __mul__(self, factor):
        if factor != 0:
            raise _needed("sum")
        return 0 * (self.scores.hidden.float().sum() + self.scores.head.weight[:1].float().sum())

    __rmul__ = __mul__


def _needed(name):
    return errors.HostError(
        "the scores of a Megatron model are computed with (%s) while flp has them left out; uninstall flp's adapter, or "
        "leave what computes with them to the trainer's own log-probabilities" % name)


# ---- models ----

def owners_of(chunks):
    """The models that output layers belong to, in a model's pipeline chunks, inside their wrappers, one a chunk."""
    for chunk in chunks:
        yield from [module for module in chunk.modules()
                    if isinstance(getattr(module, "output_layer", None), torch.nn.Module)][:1]


@contextlib.contextmanager
def deferring(host, chunks):
    """Within the block the output layers of a model's chunks give Deferred scores to this thread; where one cannot,
    host's log says why and it gives scores."""
    with contextlib.ExitStack() as stack:
        for model in owners_of(chunks):
            try:
                _megatron.check_layer(model.output_layer, getattr(model, "config", None))
            except errors.UnsupportedError as error:
                _call.note(host, str(error), "output layer")
                continue
            stack.enter_context(_one(host, model))
        yield


@contextlib.contextmanager
def _one(host, model):
    thread, own_layer = threading.get_ident(), model.output_layer

    def defer(layer, below, input_, weight=None, runtime_gather_output=None, **others):
        wants_scores = runtime_gather_output or others.get("output_cross_entropy_loss")
        if threading.get_ident() == thread and not wants_scores:
            try:
                head = _megatron.head_of(layer, weight, getattr(model, "config", None), own_handler=True)
                reason = _call.refusal(input_, head.weight, head.bias)
                if reason is None:
                    return Deferred(input_, head), None
            except errors.UnsupportedError as error:
                reason = str(error)
            _call.note(host, reason, "output layer")
        return below(input_, weight=weight, runtime_gather_output=runtime_gather_output, **others)

    own_loss, in_instance = model.compute_language_model_loss, "compute_language_model_loss" in vars(model)

    def compute_language_model_loss(labels, logits):
        if not isinstance(logits, Deferred):
            return own_loss(labels, logits)
        return -logits.logprobs(labels)  # of heads that predict further tokens

    setattr(compute_language_model_loss, _mtp.OWN_LOSS, True)
    _patch.put(own_layer, defer)
    vars(model)["compute_language_model_loss"] = compute_language_model_loss
    try:
        yield
    finally:
        vars(model).pop("compute_language_model_loss")
        if in_instance:
            vars(model)["compute_language_model_loss"] = own_loss
        _patch.take(own_layer, defer)


# ---- log-probabilities of responses ----

def of_responses(scores, get_responses, temperature, entropy, **more):
    """What get_log_probs_and_entropy of slime and Miles gives: {"log_probs": one tensor a sample, "entropy": likewise}.

    scores         Deferred (B, T, V/R)
    get_responses  the host's, which cuts the rows of each sample's response out of scores: here out of row numbers
    entropy        as for flp.linear_logprob
    """
    count = scores.shape[0] * scores.shape[1]
    if count > 2**24:
        raise errors.HostError("%d tokens in one batch (accepted: 2**24, as float32 counts them)" % count)
    numbers = torch.arange(count, dtype=torch.float32, device=scores.device)
    pairs = list(get_responses(numbers.view(*scores.shape[:2], 1), **more))
    sizes = [len(tokens) for _, tokens in pairs]
    rows = torch.cat([places.reshape(-1) for places, _ in pairs] or [numbers[:0]]).long()
    tokens = torch.cat([tokens for _, tokens in pairs] or [rows]).to(rows)
    target = torch.full((count,), NEVER, dtype=torch.long, device=scores.device).scatter(0, rows, tokens)
    results = scores.logprobs(target.view(scores.shape[:2]), temperature=temperature, entropy=entropy)
    results = results if entropy else (results,)
    cut = [result.reshape(-1).index_select(0, rows).split(sizes) for result in results]
    return {name: list(parts) for name, parts in zip(("log_probs", "entropy"), cut)}


# An argument of slime and of trainers made from it, when it makes a step's scores needed, and why.
IN_PIECES = "overlap_moe_expert_parallel_comm", bool, "hands scores on in pieces"


def passes(name, needing, from_scores):
    """The two passes of slime and of trainers made from it, as makers of what stands in their place: forward_only, of
    log-probabilities, and train_one_step, of the losses that take them. needing: rows as IN_PIECES; from_scores: the
    function that asks for log-probabilities"""
    def asked(f, **_others):
        return None if getattr(f, "__name__", "") == from_scores else "%r is asked for" % (f,)

    def trained(args, **_others):
        return None if args.loss_type in ("policy_loss", "sft_loss") else "loss_type is %r" % args.loss_type

    def needed(args):
        reasons = ("%s %s" % (argument, why) for argument, is_needing, why in needing
                   if hasattr(args, argument) and is_needing(getattr(args, argument)))
        return next(reasons, None)

    def standing(refusal):
        def make(host):
            signature = inspect.signature(host)

            @functools.wraps(host)
            def call(*arguments, **keywords):
                given = signature.bind(*arguments, **keywords).arguments
                reason = refusal(**given) or needed(given["args"])
                if reason:
                    return _call.to_host(name, reason, host, *arguments, **keywords)
                with deferring(name, given["model"]):
                    return host(*arguments, **keywords)

            return call

        return make

    return standing(asked), standing(trained)
