"""SkyRL: the fused head of its Megatron workers (fused_lm_head_logprob), its log-probabilities of scores elsewhere."""
import contextvars
import functools
import inspect

import torch

from . import _call, _vocab_parallel
from ._seam import Host, Seam
from ._vocab_parallel import RANGE, SCORES

MODULE = "skyrl.backends.skyrl_train.distributed.megatron.model_utils"

# What the caller of the fused head divides scores by, for which the host would divide a copy of the head.
_asked = contextvars.ContextVar("temperature", default=1.0)


def at_temperature(host):
    """from_parallel_hidden_to_logprobs and its form for packed sequences: the head is left as it is."""
    signature = inspect.signature(host)

    @functools.wraps(host)
    def call(*arguments, **keywords):
        bound = signature.bind(*arguments, **keywords)
        before = _asked.set(bound.arguments.pop("temperature", 1.0))
        try:
            return host(*bound.args, **bound.kwargs)
        finally:
            _asked.reset(before)

    return call


def fused_head(host):
    """_fused_lm_head_logprob_apply: hidden (B,S,D), weight (V/R,D), target (B,S) -> (B,S) float32.

    Other hidden states than of the weight's dtype are cast, as in the host. Their gradient is this rank's part of it,
    which the gather before the head sums.
    """

    @functools.wraps(host)
    def apply(backend, hidden, weight, target, vocab_start_index, vocab_end_index, chunk_size, tp_group,
              inference_only):
        temperature = _asked.get()
        hidden = hidden.to(weight.dtype)
        reason = _call.refusal(hidden, weight)
        if reason:
            weight = weight if temperature == 1.0 else weight / temperature
            return _call.to_host("skyrl", reason, host, backend, hidden, weight, target, vocab_start_index,
                                 vocab_end_index, chunk_size, tp_group, inference_only)
        return _vocab_parallel.of_hidden(hidden, weight, target, vocab_start_index, tp_group, inference_only,
                                         temperature=temperature, reduce_grad_hidden=False)

    return apply


def fused_entropy(hidden, lm_head_weight, tp_group, chunk_size=None, temperature=1.0):
    """_fused_vocab_parallel_entropy_from_hidden: hidden (B,S,D), weight (V/R,D) -> (B,S) float32, no gradient."""
    hidden = hidden.to(lm_head_weight.dtype)
    _call.take(hidden, lm_head_weight)
    target = torch.zeros(hidden.shape[:-1], dtype=torch.int64, device=hidden.device)
    start = torch.distributed.get_rank(tp_group) * lm_head_weight.shape[0]
    return _vocab_parallel.of_hidden(hidden.detach(), lm_head_weight.detach(), target, start, tp_group, True,
                                     temperature=temperature, entropy=True)[1]


HIDDEN = ("hidden", "lm_head_weight", "target")
megatron = functools.partial(Seam, MODULE, needs="megatron")
HOST = Host(
    "skyrl", (
        megatron("_fused_lm_head_logprob_apply",
                 ("backend", "hidden", "weight", "target", *RANGE, "chunk_size", "tp_group", "inference_only"),
                 "b1fd80d39024d71c", fused_head),
        megatron("from_parallel_hidden_to_logprobs",
                 (*HIDDEN, *RANGE, "tp_group", "inference_only", "cp_group", "chunk_size", "temperature",
                  "fused_backend"), "1e721dedc8a67fc0", at_temperature),
        megatron("from_parallel_hidden_to_logprobs_packed_sequences",
                 (*HIDDEN, "cu_seqlens_padded", "unpacked_seqlen", *RANGE, "group", "inference_only", "cp_group",
                  "chunk_size", "attention_mask", "sub_seq_lengths", "temperature", "fused_backend"),
                 "7577d481347a8d9f", at_temperature),
        megatron("_fused_vocab_parallel_entropy_from_hidden",
                 ("hidden", "lm_head_weight", "tp_group", "chunk_size", "temperature"), "ab5f8541ddbcc05f",
                 _call.stands("skyrl", fused_entropy)),
        megatron("DistributedLogprob.apply", (*SCORES, "group", "inference_only"), "c1436cfdb8cdef78",
                 _vocab_parallel.of_scores("skyrl", False), "DistributedLogprob.forward"),
        megatron("ChunkedDistributedLogprob.apply", (*SCORES, "chunk_size", "tp_group", "inference_only"),
                 "e032ef61ec7e9eb5", _vocab_parallel.of_scores("skyrl", True), "ChunkedDistributedLogprob.forward"),
        Seam("skyrl.backends.skyrl_train.utils.torch_utils", "logprobs_from_logits",
             ("logits", "labels", "inplace_backward"), "00352bb01baf4cb3",
             _call.from_logits("skyrl", "FLASH_ATTN_CROSS_ENTROPY_LOSS_AVAILABLE")),
    ), "skyrl==0.3.0")
