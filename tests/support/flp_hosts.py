"""Small stand-ins for trainers: packages with the seams' names and parameters, whose own functions answer "host"."""
import importlib
import sys
import types

import flp_megatron
import flp_vllm
import torch

FUSED_HEAD = '''
import torch


class {name}(torch.autograd.Function):
    @staticmethod
    def forward(ctx, {parameters}):
        raise AssertionError("the tests replace apply")

    apply = staticmethod(lambda *arguments, **keywords: "host")
'''
FUNCTION = '''
{before}


def {name}({parameters}):
    return "host"
'''
ACTOR = '''
import torch


def unpad_and_slice_tensor(sequences, attention_mask, ring_attn_group):
    kept = attention_mask.flatten().nonzero().flatten()
    positions = (attention_mask.cumsum(-1) - 1).clamp(min=0)
    flat = [tensor.flatten()[kept].unsqueeze(0) for tensor in (sequences, positions, torch.roll(sequences, -1, 1))]
    return (*flat, 0, kept)


def gather_and_pad_tensor(tensor, ring_attn_group, ring_attn_pad_len, indices, batch, seqlen):
    return tensor.new_zeros(batch * seqlen).index_copy(0, indices, tensor[0]).view(batch, seqlen)


class Actor(torch.nn.Module):
    def __init__(self, model, temperature=1.0, packing_samples=False):
        super().__init__()
        self.model, self.temperature, self.packing_samples = model, temperature, packing_samples

    def forward(self, sequences, action_mask=None, attention_mask=None, return_output=False, allgather_logits=False,
                return_logprobs=False, ring_attn_group=None, packed_seq_lens=None, return_entropy=False, **mm_inputs):
        return "host"
'''
TRL_KERNEL = """
import torch

is_triton_available = lambda: True


def _supports_trl_loss_kernel(logits, index=None, row_mask=None):
    return logits.dtype is torch.float16 and index.shape == logits.shape[:-1]
"""
AGILERL = FUSED_HEAD.format(
    name="FusedLinearLogProbsFunction",
    parameters="hidden, head_w, head_b, target_ids, temperature, cast_to_fp32, chunk_rows") + FUNCTION.format(
    before="", name="fused_linear_logprobs_chunked",
    parameters="hidden, head_w, head_b, target_ids, temperature=1.0, cast_to_fp32=True, *, chunk_rows")
OF_SCORES = "vocab_parallel_logits, target, vocab_start_index, vocab_end_index, %s, inference_only=False"
DISTRIBUTED = "".join(
    FUSED_HEAD.format(name=name, parameters=OF_SCORES % group)
    for name, group in (("DistributedLogprob", "group"), ("ChunkedDistributedLogprob", "chunk_size, tp_group")))
SKYRL = '''


def _fused_lm_head_logprob_apply(backend, hidden, weight, target, vocab_start_index, vocab_end_index, chunk_size,
                                 tp_group, inference_only):
    return "host", weight


def from_parallel_hidden_to_logprobs(hidden, lm_head_weight, target, vocab_start_index, vocab_end_index, tp_group,
                                     inference_only=False, cp_group=None, chunk_size=None, temperature=1.0,
                                     fused_backend="torch"):
    assert temperature == 1.0
    return _fused_lm_head_logprob_apply(fused_backend, hidden, lm_head_weight, target, vocab_start_index,
                                        vocab_end_index, chunk_size, tp_group, inference_only)


def from_parallel_hidden_to_logprobs_packed_sequences(
        hidden, lm_head_weight, target, cu_seqlens_padded, unpacked_seqlen, vocab_start_index, vocab_end_index, group,
        inference_only=False, cp_group=None, chunk_size=None, attention_mask=None, sub_seq_lengths=None,
        temperature=1.0, fused_backend="torch"):
    assert temperature == 1.0
    return _fused_lm_head_logprob_apply(fused_backend, hidden, lm_head_weight, target, vocab_start_index,
                                        vocab_end_index, chunk_size, group, inference_only)


def _fused_vocab_parallel_entropy_from_hidden(hidden, lm_head_weight, tp_group, chunk_size=None, temperature=1.0):
    return "host"
'''
TORCHTITAN = '''
import types

backend = "spmd_types"
spmd = types.SimpleNamespace(is_type_checking=lambda: False)


def get_spmd_backend():
    return backend


def spmd_mesh_size(axis_name):
    return 1


class CrossEntropyLoss:
    pass


class ChunkedLossWrapper:
    def __init__(self, head, loss=None):
        self.lm_head, self.loss_fn = head, loss or CrossEntropyLoss()

    def __call__(self, pred, labels, global_valid_tokens=None, **loss_inputs):
        return "host"


def compute_logprobs(logits, labels, *, return_entropy=False):
    return "host"
'''
NEMO_RL_LOSS = '''
class CrossTokenizerDistillationLossFn:
    def __init__(self, temperature, reverse_kl):
        self.temperature, self.reverse_kl = temperature, reverse_kl

    def _direct_full_vocab_kl(self, student_logits, teacher_logits, align, global_valid_toks, *, tp_group, cp_group):
        return "host"

    def _same_vocab_masked_kl(self, per_pos, align, global_valid_toks, cp_group):
        return (per_pos * align).sum() / global_valid_toks * self.temperature**2
'''
SGLANG_LOGPROBS = '''
import dataclasses


@dataclasses.dataclass
class LogprobResult:
    token_logprobs: object = None
    top_logprobs_val: object = None
    top_logprobs_idx: object = None
    token_ids_logprobs_val: object = None
    token_ids_logprobs_idx: object = None
    input_copy_done: object = None


def _deterministic_inference_enabled():
    return False


class InputLogprobProcessor:
    def __init__(self, vocab_size, chunking_group=None):
        self.vocab_size = vocab_size

    def forward(self, pruned_states, sample_indices, input_logprob_indices, token_to_seq_idx, lm_head, get_logits_fn,
                logits_metadata, skip_chunking_for_dp_attn=False):
        return "host"
'''
SGLANG_SCORES = '''
def should_apply_lm_head_quant_method(lm_head, quant_method):
    return quant_method is not None


class LogitsProcessor:
    logit_scale = final_logit_softcapping = rl_on_policy_target = None
    use_fp32_lm_head = do_tensor_parallel_all_gather = False

    def __init__(self, **changes):
        vars(self).update(changes)
        self.rows = []

    def _get_logits(self, hidden_states, lm_head, logits_metadata, embedding_bias=None, use_logits_buffer=True):
        assert not use_logits_buffer
        self.rows.append(len(hidden_states))
        return self._compute_lm_head(hidden_states, lm_head)

    def _compute_lm_head(self, hidden_states, lm_head, embedding_bias=None, *, out=None):
        return hidden_states @ lm_head.weight.T
'''

SOURCES = {
    "trl": {
        "trl.kernels.chunked_logprob": FUSED_HEAD.format(
            name="ChunkedLogProbFunction",
            parameters="hidden, weight, bias, targets, temperature, chunk_size, final_logit_softcapping=None, "
                       "logit_scale=1.0, outputs=()"),
        "trl.kernels.chunked_divergence": FUSED_HEAD.format(
            name="ChunkedDivergenceFunction",
            parameters="student_hidden, student_weight, student_bias, teacher_hidden, teacher_weight, teacher_bias, "
                       "beta, temperature=1.0, student_logit_scale=1.0, student_final_logit_softcapping=None, "
                       "teacher_logit_scale=1.0, teacher_final_logit_softcapping=None"),
        "trl.trainer.distillation_trainer": FUNCTION.format(
            before="", name="_chunked_divergence_loss",
            parameters="student_hidden_states, teacher_hidden_states, student_lm_head_weight, teacher_lm_head_weight, "
                       "completion_mask, beta, num_items_in_batch=None, student_lm_head_bias=None, "
                       "teacher_lm_head_bias=None, student_logit_scale=1.0, teacher_logit_scale=1.0, "
                       "student_final_logit_softcapping=None, teacher_final_logit_softcapping=None, temperature=1.0"),
        "trl.trainer.utils": FUNCTION.format(
            before=TRL_KERNEL, name="selective_log_softmax", parameters="logits, index, temperature=1.0, row_mask=None")},
    "agilerl": {"agilerl.algorithms.core.llm_ops.fused_logprobs": AGILERL},
    "verl": {
        "verl.utils.kernel.linear_cross_entropy": FUSED_HEAD.format(
            name="LinearCrossEntropy",
            parameters="hidden, weight, labels, temperature=1.0, reduction='none', dist_process_group=None")
        + "\n\nlinear_cross_entropy = LinearCrossEntropy.apply\n",
        "verl.utils.torch_functional": FUNCTION.format(
            before="FLAH_ATTN_CROSS_ENTROPY_LOSS_AVAILABLE = False", name="logprobs_from_logits",
            parameters="logits, labels, inplace_backward=True")},
    "prime-rl": {
        "prime_rl.trainer.models.layers.lm_head": FUSED_HEAD.format(
            name="_SequenceChunkedLogProbEntropyFn", parameters="hidden, weight, labels, inv_temperature, chunk_size"),
        "prime_rl.trainer.models.layers.lm_head_gemma": FUSED_HEAD.format(
            name="_GemmaChunkedLogProbEntropyFn",
            parameters="hidden, weight, labels, inv_temperature, chunk_size, softcap")},
    "torchtitan": {"torchtitan.components.loss": TORCHTITAN},
    "nemo-rl": {"nemo_rl.distributed.model_utils": DISTRIBUTED + FUSED_HEAD.format(
        name="ChunkedDistributedHiddenStatesToLogprobs",
        parameters="tensor_parallel_hidden_states, target, output_weight_layer, vocab_start_index, vocab_end_index, "
                   "chunk_size, tp_group, inference_only=False") + FUSED_HEAD.format(
        name="DistributedCrossEntropy", parameters="student_logits, target_logits, group, inference_only=False"),
        "nemo_rl.algorithms.loss.loss_functions": NEMO_RL_LOSS},
    "skyrl": {
        "skyrl.backends.skyrl_train.distributed.megatron.model_utils": DISTRIBUTED + SKYRL,
        "skyrl.backends.skyrl_train.utils.torch_utils": FUNCTION.format(
            before="FLASH_ATTN_CROSS_ENTROPY_LOSS_AVAILABLE = False", name="logprobs_from_logits",
            parameters="logits, labels, inplace_backward=True")},
    "speculators": {"speculators.losses.fused": "".join(
        FUNCTION.format(before="", name="fused_%s_loss" % name,
                        parameters="logits, targets" + ", eta=3.0" * (name == "lk_hybrid"))
        for name in ("kl_div", "reverse_kl_div", "js_div", "tv", "nla", "lk_hybrid"))},
    "openrlhf": {"openrlhf.models.actor": ACTOR},
    "sglang": {"sglang.srt.layers.logprob_processor": SGLANG_LOGPROBS,
               "sglang.srt.layers.logits_processor": SGLANG_SCORES},
    "slime": {"slime.utils.ppo_utils": FUNCTION.format(
        before="", name="calculate_log_probs_and_entropy",
        parameters="logits, tokens, tp_group, with_entropy=False, chunk_size=-1, log_prob_keep_mask=None, "
                   "with_entropy_grad=True")},
    "miles": {"miles.backends.training_utils.loss_hub.math_utils": FUNCTION.format(
        before="", name="calculate_log_probs_and_entropy",
        parameters="logits, tokens, tp_group, with_entropy=False, entropy_requires_grad=True, chunk_size=-1, "
                   "true_on_policy=False, vocab_size=None")},
    **flp_megatron.SOURCES,
    "vllm": flp_vllm.SOURCES,
}


def write_package(root, modules):
    """Writes {dotted name: source} as packages below root."""
    for name, source in modules.items():
        path = root.joinpath(*name.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        for parent in path.parent.relative_to(root).parents:
            (root / parent / "__init__.py").touch()
        (path.parent / "__init__.py").touch()
        path.write_text(source)
    importlib.invalidate_caches()


def forget_package(name):
    """Takes a package out of sys.modules."""
    for module in [module for module in sys.modules if module == name or module.startswith(name + ".")]:
        del sys.modules[module]


class Output(dict):
    """A model's output as transformers has it: items that are attributes too."""

    def __setattr__(self, name, value):
        self[name] = value

    __getattr__ = dict.__getitem__


class TinyModel(torch.nn.Module):
    """Embedding and head, which may be called more than once; scores may pass a softcap on their way out."""

    def __init__(self, vocab=97, depth=32, softcap=None, heads=1):
        super().__init__()
        torch.manual_seed(0)
        self.embed = torch.nn.Embedding(vocab, depth)
        self.head = torch.nn.Linear(depth, vocab, bias=False)
        self.softcap, self.heads = softcap, heads

    def get_output_embeddings(self):
        return self.head

    def hidden(self, ids, positions):
        return self.embed(ids) + torch.sin(positions.to(self.head.weight.dtype)).unsqueeze(-1)

    def forward(self, ids, attention_mask=None, position_ids=None):
        hidden = self.hidden(ids, position_ids)
        logits = [self.head(hidden) for _ in range(self.heads)][-1]
        if self.softcap:
            logits = self.softcap * torch.tanh(logits / self.softcap)
        return Output(logits=logits, aux_loss=0.0)


def module_of(name="standin", **names):
    """A module object with these names."""
    module = types.ModuleType(name)
    vars(module).update(names)
    return module
