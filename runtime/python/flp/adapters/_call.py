"""What the adapters share: what flp takes, the way to the host's own function, and scores in Megatron's shapes."""
import functools
import sys

import torch

from .._functions import _select
from .._library import _c
from .._passes import _counts
from .._tensors import _check

PLAIN = (torch.Tensor, torch.nn.Parameter)

_logged = set()


class ScoresNeeded(Exception):
    """The host does more with its scores than flp computes from hidden states."""


class Refused(Exception):
    """A call is for the host's own function; with the reason, or without where that is nobody's loss."""


def refuse(reason):
    """Leaves a call to the host where there is a reason. error: Refused"""
    if reason:
        raise Refused(reason)


def in_place(name, host):
    """A decorator: a function that stands in the place of the host's, which gets the call where that raises Refused."""

    def standing(function):
        @functools.wraps(host)
        def call(*arguments, **keywords):
            try:
                return function(*arguments, **keywords)
            except Refused as refused:
                reason = str(refused)
            return to_host(name, reason, host, *arguments, **keywords) if reason else host(*arguments, **keywords)

        return call

    return standing


def stands(name, function):
    """What makes a function that needs nothing of the host's stand in its place (Seam.make)."""
    return lambda host: in_place(name, host)(function)


def stands_for_apply(name, function):
    """stands, for a method of a class that is called without an object."""
    return lambda host: staticmethod(in_place(name, host)(function))


class Unscored(torch.Tensor):
    """Stands where the scores would be: whatever computes with it raises, only its properties can be read."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if getattr(function, "__name__", "") == "__get__":
            return super().__torch_function__(function, types, args, kwargs)
        raise ScoresNeeded(function)


def to_host(host, reason, function, *arguments, **keywords):
    """The host's own function, with the reason counted, and logged once."""
    note(host, reason, getattr(function, "__qualname__", function))
    return function(*arguments, **keywords)


def note(host, reason, name):
    """Counts, and logs once, why the host's own function runs."""
    _counts.left(reason)
    if (host, reason) not in _logged:
        _logged.add((host, reason))
        _c.log(_c.LOG_WARNING, "%s: its own %s runs instead of flp's, because %s" % (host, name, reason))


def forget(host):
    """Lets every reason of a host be logged again."""
    _logged.difference_update([logged for logged in _logged if logged[0] == host])


def rounded(hidden, *others):
    """mixed of linear_logprob for a host that itself rounds a float32 weight or bias (or None) to hidden's 16 bits:
    "round", or None where one dtype is met, that of autocast too."""
    narrow = hidden.dtype in (torch.bfloat16, torch.float16) and _check.autocast_dtype(hidden.device.type) is None
    wide = any(tensor is not None and tensor.dtype is torch.float32 for tensor in others)
    return "round" if narrow and wide else None


def refusal(hidden, weight, bias=None, mixed=None):
    """Why flp cannot take a head's operands, or None. mixed: of rounded(); None: the host rounds nothing, so that
    operands of two dtypes are its own affair"""
    operands = {"hidden": hidden, "weight": weight}
    if bias is not None:
        operands["bias"] = bias
    for field, tensor in operands.items():
        reason = _kind_refusal(field, tensor, _check.DTYPES)
        if reason:
            return reason
        if hasattr(tensor, "ds_id"):
            return "%s is partitioned by DeepSpeed's ZeRO-3" % field
        taken = (hidden.dtype, torch.float32) if mixed else (hidden.dtype,)
        if tensor.dtype not in taken and _check.autocast_dtype(hidden.device.type) is None:
            return ("%s is of dtype %s while hidden is of dtype %s (give both one dtype, or call flp.linear_logprob, "
                    "which takes float32 beside 16 bits with mixed)" % (field, tensor.dtype, hidden.dtype))
    if hidden.shape[-1] % 8:
        return "the hidden size %d is no multiple of 8" % hidden.shape[-1]
    return None


def take(hidden, weight, bias=None, mixed=None):
    """Leaves a call with a head's operands to the host, if flp cannot take them. error: Refused"""
    refuse(refusal(hidden, weight, bias, mixed))


def scores_refusal(logits):
    """Why flp cannot take scores that exist already, or None."""
    return _kind_refusal("logits", logits, _select.DTYPES)


def take_pair(**scores):
    """Leaves a call with the scores of two heads, by field, to the host, if flp cannot compare them. error: Refused"""
    for field, tensor in scores.items():
        refuse(_kind_refusal(field, tensor, _check.DTYPES))


def _kind_refusal(field, tensor, dtypes):
    if type(tensor) not in PLAIN:
        return "%s is of type %s" % (field, type(tensor).__name__)
    if tensor.dtype not in dtypes:
        return "%s is of dtype %s" % (field, tensor.dtype)
    if tensor.device.type not in ("cpu", "cuda"):
        return "%s is on device %s" % (field, tensor.device)
    return None


def shards(group):
    """Over how many ranks a group spreads the vocabulary; None is the whole world, as torch.distributed has it."""
    if hasattr(group, "size"):
        return group.size()
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_world_size(group) if distributed else 1


def one_rank(group):
    """Leaves a call to the host, if its vocabulary is divided. error: Refused"""
    if shards(group) > 1:
        raise Refused("the vocabulary is spread over several ranks")


def megatron_scores(logits, tokens, group, entropy, entropy_grad):
    """Log-probabilities (N, 1) and entropies (N), or None, of scores (N, V), both float32. error: Refused"""
    refuse(scores_refusal(logits))
    one_rank(group)
    if logits.shape[0] == 0:
        raise Refused
    scores = logits.float() if logits.dtype is torch.float64 else logits
    results = _select.selective_log_softmax(scores, tokens, entropy=entropy, out_dtype=torch.float32)
    if not entropy:
        return results.unsqueeze(-1), None
    logprob, values = results
    return logprob.unsqueeze(-1), values if entropy_grad else values.detach()


def from_logits(name, flash):
    """logprobs_from_logits as verl has it: logits (..., V), labels (...) -> (...); gradients in place where the host's
    would be, which its module's attribute flash tells."""

    def make(host):
        module = sys.modules[host.__module__]

        @in_place(name, host)
        def logprobs_from_logits(logits, labels, inplace_backward=True):
            refuse(scores_refusal(logits))
            return _select.selective_log_softmax(logits, labels,
                                                 inplace_backward=inplace_backward and getattr(module, flash))

        return logprobs_from_logits

    return make
