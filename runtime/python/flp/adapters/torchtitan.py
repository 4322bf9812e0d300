"""torchtitan: the loss from hidden states, where its ChunkedLossWrapper applies the head chunk by chunk.

Invariants: the head is called, once, so that FSDP's hooks gather its weight and reduce its gradient; what stands where
its scores would be lets a loss compute log-probabilities and nothing else, so a loss that does more is found out and
runs in the host. Of a head whose vocabulary is sharded every rank has its own part of the hidden states' gradient, as
in the host: the gather before the head sums it.
"""
import functools
import sys
import threading

import torch

from .._functions._logprob import linear_logprob
from ..heads import _patch
from ..parallel import linear_logprob as parallel_logprob
from . import _call
from ._seam import Host, Seam

IGNORED = -100
SHARDING = "Module.parallelize.<locals>.forward_with_redistribution"
FSDP = "torch.distributed.fsdp."

# Types of losses that turned out to do more with the scores than compute log-probabilities.
needs_scores = set()

_turn = threading.RLock()


def wrapper(host):
    """ChunkedLossWrapper.__call__: hidden states, labels, how many tokens count -> (loss, metrics)."""
    module = sys.modules[host.__module__]

    @_call.in_place("torchtitan", host)
    def call(self, pred, labels, global_valid_tokens=None, **loss_inputs):
        _call.refuse(refusal(module, self, pred))
        try:
            with torch.set_grad_enabled(torch.is_grad_enabled() and pred.requires_grad):
                return loss_of(module, self, pred, labels, global_valid_tokens, loss_inputs)
        except _call.ScoresNeeded as needed:
            needs_scores.add(type(self.loss_fn))
            raise _call.Refused(refusal(module, self, pred)) from needed

    return call


def log_probabilities(host):
    """compute_logprobs, which the losses of reinforcement learning call with what their head returned."""

    @functools.wraps(host)
    def compute_logprobs(logits, labels, *, return_entropy=False):
        if isinstance(logits, _call.Unscored):
            return logits.score(labels, return_entropy)
        return host(logits, labels, return_entropy=return_entropy)

    return compute_logprobs


def refusal(module, wrapped, hidden):
    """Why the loss is the host's own to compute, or None."""
    head, loss = wrapped.lm_head, wrapped.loss_fn
    if head is None:
        return "set_lm_head has not been called"
    if type(wrapped) is not module.ChunkedLossWrapper:
        return "the loss is of type %s, not ChunkedLossWrapper" % type(wrapped).__name__
    if type(loss) in needs_scores:
        return "%s does more with the scores than compute log-probabilities" % type(loss).__name__
    if not isinstance(head, torch.nn.Linear) or _patch.own_forward(head) is not torch.nn.Linear.forward:
        return "the head is of type %s, not a plain linear layer" % type(head).__name__
    if [hook for hook in head._forward_hooks.values() if not (hook.__module__ or "").startswith(FSDP)]:
        return "the head has forward hooks, which could see its scores"
    return sharding_refusal(module, head) or weights_refusal(head, hidden)


def sharding_refusal(module, head):
    """Why the head's part in the host's parallelism is not for flp, or None."""
    if module.get_spmd_backend() == "spmd_types" and module.spmd.is_type_checking():
        return "types of shards are checked (debug.spmd_typechecking)"
    replaced = _patch.replaced_forward(head)
    if replaced is None:
        return None
    config = getattr(head, "_sharding_config", None)
    if getattr(replaced, "__qualname__", "") != SHARDING or config is None:
        return "the head's forward was replaced"
    if config.in_src_shardings != config.in_dst_shardings or config.out_src_shardings != config.out_dst_shardings \
            or config.local_map is not None:
        return "the head redistributes its hidden states or its scores"
    return None


def weights_refusal(head, hidden):
    """Why flp cannot take the operands, or None. A weight that FSDP shards is whole, and cast, when the head runs."""
    if isinstance(head, getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", ())):
        return _call.refusal(hidden, hidden)
    return _call.refusal(hidden, head.weight, head.bias)


def loss_of(module, wrapped, hidden, labels, global_valid_tokens, loss_inputs):
    """(loss, metrics) of all tokens at once."""
    score = functools.partial(scored, module, wrapped.lm_head, hidden)
    if type(wrapped.loss_fn) is module.CrossEntropyLoss:
        loss = -score(labels, False).sum()
        return loss if global_valid_tokens is None else loss / global_valid_tokens, {}
    scores = hidden.new_empty(1).expand(*hidden.shape[:-1], wrapped.lm_head.out_features).as_subclass(_call.Unscored)
    scores.score = score
    return wrapped.loss_fn(scores, labels, global_valid_tokens, **loss_inputs)


def scored(module, head, hidden, labels, entropy):
    """Log-probabilities, or a pair with entropies that have no gradient; 0 where a label is ignored."""
    options = {"entropy": "detached" if entropy else False, "ignore_index": IGNORED}
    ranks = module.spmd_mesh_size("tp")

    def score(linear, _below, hidden):
        if ranks > 1:
            return parallel_logprob(hidden, linear.weight, labels, linear.bias, reduce_grad_hidden=False,
                                    group=module.current_spmd_mesh().get_group("tp"), **options)
        return linear_logprob(hidden, linear.weight, labels, linear.bias, **options)

    with _turn:
        _patch.put(head, score)
        try:
            return head(hidden)
        finally:
            _patch.take(head, score)


LOSS = "torchtitan.components.loss"
HOST = Host(
    "torchtitan", (
        Seam(LOSS, "ChunkedLossWrapper.__call__", ("self", "pred", "labels", "global_valid_tokens", "loss_inputs"),
             "b03263dc98f5664f", wrapper),
        Seam(LOSS, "compute_logprobs", ("logits", "labels", "return_entropy"), "f5ddfa887ea25e8e", log_probabilities),
    ), "torchtitan==0.3.0")
