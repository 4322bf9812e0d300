"""SGLang: log-probabilities of input tokens, with no scores but those that next tokens are drawn from; and its plug-in,
off unless FLP_SGLANG=prompt."""
import importlib
import itertools
import os
import sys

import torch

from .. import errors
from .._functions._logprob import linear_logprob
from .._functions._select import NEVER
from .._library import _c
from . import _call, install
from ._seam import Host, Seam

LOGPROBS, SCORES = "sglang.srt.layers.logprob_processor", "sglang.srt.layers.logits_processor"
# Of linear_logprob: tokens of a top list, and targets of a row beside its own token.
MOST_TOP, MOST_IDS = 128, 511


def register():
    """What the entry point of sglang.srt.plugins, flp_plugins.sglang, calls in each process of SGLang.

    FLP_SGLANG         unset or empty: nothing happens; "prompt": log-probabilities of input tokens run on flp
    FLP_SGLANG_STRICT  "1": an SGLang whose seams are not those that were tested is an error; unset or "0": it runs
                       without flp, which the log says
    error: SystemExit; SGLang goes on after any other
    """
    if not _setting("FLP_SGLANG", "prompt"):
        return
    is_strict = _setting("FLP_SGLANG_STRICT", "0", "1") == "1"
    try:
        install("sglang")
    except errors.HostError as error:
        if is_strict:
            sys.exit("flp: %s" % error)
        _c.log(_c.LOG_WARNING, str(error))


def _setting(name, *accepted):
    value = os.environ.get(name, "")
    if value and value not in accepted:
        sys.exit("flp: %s is %r (accepted: unset, %s)" % (name, value, ", ".join(accepted)))
    return value


def input_logprobs(host):
    """InputLogprobProcessor.forward: pruned_states (R, D), rows of which have an input token (N) or are drawn from (S)
    -> LogprobResult, scores (S, V)."""
    own, scoring = sys.modules[host.__module__], importlib.import_module(SCORES)
    functions = [getattr(scoring.LogitsProcessor, name) for name in ("_get_logits", "_compute_lm_head")]

    @_call.in_place("sglang", host)
    def forward(self, pruned_states, sample_indices, input_logprob_indices, token_to_seq_idx, lm_head, get_logits_fn,
                logits_metadata, skip_chunking_for_dp_attn=False):
        scored_by = getattr(get_logits_fn, "__self__", None)
        known = [getattr(get_logits_fn, "__func__", None), getattr(type(scored_by), "_compute_lm_head", None)]
        _call.refuse(known != functions and "its scores are not made by LogitsProcessor's own functions")
        _call.refuse(own._deterministic_inference_enabled() and
                     "deterministic inference gives input tokens the bits that they have when drawn")
        _call.refuse(_head_refusal(scored_by, lm_head, scoring.should_apply_lm_head_quant_method))
        asked = _Asked(logits_metadata)
        weight = lm_head.weight[:self.vocab_size]
        hidden = pruned_states if scored_by.use_fp32_lm_head else pruned_states.to(weight.dtype)
        _call.take(hidden, weight)
        found = linear_logprob(hidden[input_logprob_indices], weight, asked.targets(len(input_logprob_indices)),
                               scale=1.0 if scored_by.logit_scale is None else scored_by.logit_scale,
                               softcap=scored_by.final_logit_softcapping or None, ignore_index=NEVER, topk=asked.topk)
        result = own.LogprobResult(**asked.fields(*found if asked.topk else (found,)))
        return result, get_logits_fn(pruned_states[sample_indices], lm_head, logits_metadata, use_logits_buffer=False)

    return forward


def _head_refusal(processor, lm_head, is_quantised):
    """Why flp cannot stand in for the scores of a LogitsProcessor, or None."""
    if processor.do_tensor_parallel_all_gather or getattr(lm_head, "tp_size", 1) > 1:
        return "the head is divided over tensor parallel ranks"
    if hasattr(lm_head, "set_lora"):
        return "the head has LoRA"
    method = getattr(lm_head, "quant_method", None)
    if not hasattr(lm_head, "weight") or is_quantised(lm_head, method):
        return "the head is quantised (%s)" % type(method).__name__
    if getattr(lm_head, "use_intel_amx_backend", False):
        return "the head is packed for Intel AMX"
    if processor.rl_on_policy_target is not None:
        return "true on-policy sampling has scores in bfloat16"
    for field in ("logit_scale", "final_logit_softcapping"):
        if not isinstance(getattr(processor, field), (int, float, type(None))):
            return "%s is of type %s (accepted: a number)" % (field, type(getattr(processor, field)).__name__)
    return None


class _Asked:
    """What the requests of a step ask for beside the log-probability of each input token: the best tokens, k of each
    request, and tokens by id, a list or None of each; counts has the rows of each. error: Refused"""

    def __init__(self, metadata):
        self.tokens = metadata.extend_input_logprob_token_ids_gpu
        self.counts = [max(count, 0) for count in metadata.extend_logprob_pruned_lens_cpu]
        self.top = metadata.top_logprobs_nums if metadata.extend_return_top_logprob else None
        self.ids = metadata.token_ids_logprobs if metadata.extend_token_ids_logprob else None
        self.topk = max(self.top or [0])
        self.width = max(len(ids or ()) for ids in self.ids or [()])
        for what, count, most in (("top lists", self.topk, MOST_TOP), ("lists of token ids", self.width, MOST_IDS)):
            _call.refuse(count > most and "%s of %d tokens are asked for (accepted: up to %d)" % (what, count, most))

    def targets(self, count):
        """Each row's token (N), or that and its request's ids (N, 1 + K), filled up with token 0."""
        tokens = self.tokens[:count].long()
        if not self.width:
            return tokens
        of_request = [[*(ids or ()), *[0] * (self.width - len(ids or ()))] for ids in self.ids]
        rows = [ids for ids, count in zip(of_request, self.counts) for _ in range(count)]
        return torch.cat([tokens.unsqueeze(1), tokens.new_tensor(rows).view(len(rows), self.width)], 1)

    def fields(self, logprob, top=None):
        """Those of a LogprobResult, its lists by request and row."""
        found = {"token_logprobs": logprob[:, 0].contiguous() if self.width else logprob}
        if self.top is not None:
            found["top_logprobs_val"] = self._lists(top.logprobs, self.top)
            found["top_logprobs_idx"] = self._lists(top.ids, self.top)
        if self.ids is not None:
            widths = [None if ids is None else len(ids) for ids in self.ids]
            found["token_ids_logprobs_val"] = self._lists(logprob[:, 1:] if self.width else logprob[:, None], widths)
            found["token_ids_logprobs_idx"] = [[] if ids is None else [ids] * count
                                               for ids, count in zip(self.ids, self.counts)]
        return found

    def _lists(self, values, widths):
        """The first of each row's values (N, K), as many as its request has; no rows where that is None."""
        rows = iter(values.tolist())
        parts = [list(itertools.islice(rows, count)) for count in self.counts]
        return [[] if width is None else [row[:width] for row in part] for part, width in zip(parts, widths)]


HOST = Host(
    "sglang", (
        Seam(LOGPROBS, "InputLogprobProcessor.forward",
             ("self", "pruned_states", "sample_indices", "input_logprob_indices", "token_to_seq_idx", "lm_head",
              "get_logits_fn", "logits_metadata", "skip_chunking_for_dp_attn"), "a80fb7d8576bb7b2", input_logprobs),
        Seam(LOGPROBS, "InputLogprobProcessor", ("vocab_size", "chunking_group"), "099ccb7a2f4d4f5f", None),
        Seam(LOGPROBS, "LogprobResult",
             ("token_logprobs", "top_logprobs_val", "top_logprobs_idx", "token_ids_logprobs_val",
              "token_ids_logprobs_idx", "input_copy_done"), "0de10be15b419ff1", None),
        Seam(SCORES, "LogitsProcessor._get_logits",
             ("self", "hidden_states", "lm_head", "logits_metadata", "embedding_bias", "use_logits_buffer"),
             "565c058034e5f7e2", None),
        Seam(SCORES, "LogitsProcessor._compute_lm_head",
             ("self", "hidden_states", "lm_head", "embedding_bias", "out"), "c5062fc225cae30d", None),
    ), "sglang==0.5.23")
