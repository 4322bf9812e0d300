"""A small stand-in for vLLM: the names that flp's adapter needs, whose own reducing functions answer "host"."""
import importlib
import sys
import types
from pathlib import Path

import numpy as np
import torch

TREE = Path(__file__).resolve().parents[2]
LAYER = '''
import torch

from vllm.config import get_current_vllm_config
from vllm.model_executor.custom_op import PluggableLayer


class LogitsProcessor(PluggableLayer):
    logits_as_input, use_all_gather = False, True

    def __init__(self, vocab_size, soft_cap=None, scale=1.0):
        self.org_vocab_size, self.soft_cap, self.scale = vocab_size, soft_cap, scale
        config = get_current_vllm_config().model_config
        self.head_dtype = config and config.head_dtype

    def __call__(self, *arguments):
        return self.forward(*arguments)

    def forward(self, lm_head, hidden_states, embedding_bias=None, skip_gather=False):
        scores = torch.nn.functional.linear(hidden_states, lm_head.weight, embedding_bias)[:, :self.org_vocab_size]
        capped = torch.tanh(scores / self.soft_cap) * self.soft_cap if self.soft_cap else scores
        return capped * self.scale
'''
REGISTRY = '''
op_registry_oot = {}


class PluggableLayer:
    def __new__(cls, *arguments, **keywords):
        return super().__new__(op_registry_oot.get(cls.__name__, cls))

    @classmethod
    def register_oot(cls, name):
        return lambda layer: op_registry_oot.setdefault(name, layer)
'''
RUNNER_V1 = '''
from vllm.v1.sample.sampler import Sampler
from vllm.v1.structured_output.utils import apply_grammar_bitmask


class GPUModelRunner:
    def __init__(self, **fields):
        vars(self).update(fields)

    def _get_prompt_logprobs_dict(self, hidden_states, num_scheduled_tokens):
        found = {}
        for name, k in self.num_prompt_logprobs.items():
            logits = self.model.compute_logits(hidden_states[self.rows[name]])
            found[name] = Sampler.gather_logprobs(Sampler.compute_logprobs(logits), k, self.tokens[name])
        return found

    def _sample(self, logits, spec_decode_metadata):
        asked = self.input_batch.sampling_metadata.max_num_logprobs
        return asked is None or Sampler.gather_logprobs(Sampler.compute_logprobs(logits), asked, self.tokens)

    def _dummy_sampler_run(self, hidden_states):
        return self.model.compute_logits(hidden_states).shape
'''
SAMPLER_V1 = '''
from vllm.v1.outputs import LogprobsTensors


class Sampler:
    @staticmethod
    def compute_logprobs(logits):
        return logits.float().log_softmax(-1)

    @staticmethod
    def gather_logprobs(logprobs, num_logprobs, token_ids):
        return "host"
'''
RUNNER_V2 = '''
import types

from vllm.v1.worker.gpu.sample.logprob import compute_topk_scores


class GPUModelRunner:
    rejection_sampler = batch_sharder = None

    def __init__(self, **fields):
        vars(self).update(fields)
        self.sampler = types.SimpleNamespace(get_logprobs_dims=lambda at: self.dims, sampling_states=self.states)

    def sample(self, hidden_states, input_batch, grammar_output):
        logits = self.model.compute_logits(hidden_states)
        return self.dims is None or compute_topk_scores(
            logits, self.dims[0], self.tokens, [0, len(logits)], logprob_token_ids_state=object(),
            expanded_idx_mapping=object(), max_per_req_token_ids=self.dims[1], logits_mode=False)

    def _dummy_sampler_run(self, hidden_states):
        return self.model.compute_logits(hidden_states).shape
'''
PROMPTS = '''
import torch

from vllm.v1.worker.gpu.sample.logprob import compute_token_logprobs, compute_topk_scores

CHUNK_SIZE = 4


class PromptLogprobsWorker:
    def __init__(self, **fields):
        vars(self).update(fields)

    def compute_prompt_token_id_logprobs(self, logits_fn, hidden_states, input_batch, prompt_lens):
        return {name: [compute_token_logprobs(logits_fn(hidden_states[at:at + CHUNK_SIZE]), ids[at:at + CHUNK_SIZE])
                       for at in range(0, len(ids), CHUNK_SIZE)] for name, ids in self.token_id_scores.items()}

    def compute_prompt_logprobs(self, logits_fn, hidden_states, input_batch, all_token_ids, num_computed_tokens,
                                prompt_lens):
        k = int(self.num_prompt_logprobs.max())
        return [compute_topk_scores(logits_fn(hidden_states[at:at + CHUNK_SIZE]), k, all_token_ids[at:at + CHUNK_SIZE])
                for at in range(0, len(hidden_states), CHUNK_SIZE)]
'''
REDUCING = '''
from vllm.v1.outputs import LogprobsTensors


def compute_token_logprobs(logits, token_ids):
    return "host"


def compute_topk_scores(logits, num_logprobs, sampled_token_ids, cu_num_logits=None, logprob_token_ids_state=None,
                        expanded_idx_mapping=None, max_per_req_token_ids=0, logits_mode=False):
    return "host"
'''
OUTPUTS = '''
import collections

LogprobsTensors = collections.namedtuple(
    "LogprobsTensors", "logprob_token_ids logprobs selected_token_ranks cu_num_generated_tokens "
    "cu_num_generated_tokens_tensor", defaults=(None, None))
'''
SOURCES = {
    "vllm.config": "import types\n\nconfig = types.SimpleNamespace(model_config=None)\n\n\n"
                   "def get_current_vllm_config():\n    return config\n",
    "vllm.distributed": "import types\n\ngroup = None\n\n\n"
                        "def get_tp_group():\n    return types.SimpleNamespace(device_group=group)\n",
    "vllm.model_executor.custom_op": REGISTRY,
    "vllm.model_executor.layers.linear": "class UnquantizedLinearMethod:\n    pass\n",
    "vllm.model_executor.layers.vocab_parallel_embedding": "class UnquantizedEmbeddingMethod:\n    pass\n",
    "vllm.model_executor.layers.logits_processor": LAYER,
    "vllm.v1.outputs": OUTPUTS,
    "vllm.v1.sample.sampler": SAMPLER_V1,
    "vllm.v1.structured_output.utils": "def apply_grammar_bitmask(scheduler_output, grammar_output, input_batch, "
                                       "logits):\n    logits[:, 0] = -float('inf')\n",
    "vllm.v1.worker.gpu_model_runner": RUNNER_V1,
    "vllm.v1.worker.gpu.model_runner": RUNNER_V2,
    "vllm.v1.worker.gpu.sample.logprob": REDUCING,
    "vllm.v1.worker.gpu.sample.prompt_logprob": PROMPTS,
}


def part(name):
    return importlib.import_module("vllm." + name)


class Model:
    """A head (padded rows and all) under a layer, as vLLM builds them. after: what else becomes of the scores"""

    def __init__(self, weight, vocab, bias=None, after=None, **layer):
        method = part("model_executor.layers.vocab_parallel_embedding").UnquantizedEmbeddingMethod()
        self.lm_head = types.SimpleNamespace(weight=weight, tp_size=1, quant_method=method)
        self.layer = part("model_executor.layers.logits_processor").LogitsProcessor(vocab, **layer)
        self.bias, self.after = bias, after or (lambda scores: scores)

    def compute_logits(self, hidden):
        return self.after(self.layer(self.lm_head, hidden, self.bias))


def step(uses, k, lens, done, count):
    """(worker, batch, prompt_lens) of runner V2 for requests that schedule count tokens behind done of theirs."""
    at = np.arange(len(uses))
    worker = part("v1.worker.gpu.sample.prompt_logprob").PromptLogprobsWorker(
        uses_prompt_logprobs=np.array(uses), num_prompt_logprobs=np.array(k), token_id_scores={})
    batch = types.SimpleNamespace(
        idx_mapping_np=at, num_computed_prefill_tokens_np=np.array(done), num_scheduled_tokens=np.array(count),
        prefill_len_np=np.array(lens), query_start_loc_np=np.cumsum([0, *count]))
    return worker, batch, np.array(lens)


def divided(start, ranks, added=0):
    """What a head has that is divided over ranks, of which this one's rows begin at start."""
    return {"tp_size": ranks, "shard_indices": types.SimpleNamespace(padded_org_vocab_start_index=start),
            "num_added_embeddings": added}


def on_a_rank(rank, group, root, weight, cuts, hidden, tokens, k):
    """Prompts of runner V2 where rank has rows cuts[rank]:cuts[rank + 1] of the head, the last one's padded."""
    import flp
    import flp_hosts

    sys.path.insert(0, root)
    if rank == 0:
        flp_hosts.write_package(Path(root), SOURCES)
    torch.distributed.barrier(group)
    flp.install("vllm", untested=True)
    try:
        part("distributed").group = group
        start, end = cuts[rank:rank + 2]
        shard = weight.new_ones(cuts[1], weight.shape[1])
        shard[:end - start] = weight[start:end]
        model = Model(shard, len(weight))
        vars(model.lm_head).update(divided(start, len(cuts) - 1))
        worker, batch, lens = step([True], [k], [len(hidden) + 1], [0], [len(hidden)])
        (found,) = worker.compute_prompt_logprobs(model.compute_logits, hidden, batch, tokens, None, lens)
        worker.token_id_scores = {"a": tokens.unsqueeze(1).expand(-1, 3)}
        ((ids,),) = worker.compute_prompt_token_id_logprobs(model.compute_logits, hidden, batch, lens).values()
        return tuple(found[:3]), ids
    finally:
        flp.uninstall("vllm")
        flp_hosts.forget_package("vllm")
        sys.path.remove(root)
