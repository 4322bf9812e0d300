"""A small Megatron model. Without a GPU, what of megatron-core asks for one finds the CPU there while a process lasts;
every function that is compared is Megatron's own."""
import contextlib
import os
import types

import parity
import torch
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec, get_gpt_mtp_block_spec
from megatron.core.pipeline_parallel import schedules
from megatron.core.tensor_parallel.mappings import (copy_to_tensor_model_parallel_region,
                                                    gather_from_sequence_parallel_region,
                                                    gather_from_tensor_model_parallel_region)
from megatron.core.tensor_parallel.random import CudaRNGStatesTracker
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_config import TransformerConfig

VOCAB, HIDDEN, LENGTH, BATCH = 96, 32, 12, 2


class Norm(torch.nn.LayerNorm):
    """Megatron's own stand-in refuses sequence parallelism."""

    def __init__(self, config, hidden_size, eps=1e-5, **_others):
        super().__init__(hidden_size, eps)


class Attention(torch.nn.Module):
    """Causal attention over whatever is there: packed sequences see each other, which no head can tell."""

    def __init__(self, config, **_others):
        super().__init__()

    def forward(self, query, key, value, *_others, **_more):
        packed = query.dim() == 3
        query, key, value = (each.unsqueeze(1) if packed else each for each in (query, key, value))
        query, key, value = (each.permute(1, 2, 0, 3) for each in (query, key, value))
        mixed = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return mixed.permute(2, 0, 1, 3).flatten(2)


def device():
    return os.environ.get("FLP_TEST_DEVICE", "cpu")


class OnCpu(types.ModuleType):
    """torch, whose zeros are never on a GPU."""

    def __getattr__(self, name):
        return getattr(torch, name)

    def zeros(self, *sizes, device=None, **others):
        return torch.zeros(*sizes, device="cpu", **others)


def on_cpu():
    """For the rest of the process."""
    torch.compiler.set_stance("force_eager")
    CudaRNGStatesTracker.fork = lambda *_arguments, **_keywords: contextlib.nullcontext()
    if device() == "cpu":
        torch.cuda.current_device = lambda: torch.device("cpu")
        torch.Tensor.cuda = lambda self, *_arguments, **_keywords: self
        schedules.torch = OnCpu("torch")


def groups(ranks=1):
    """Megatron's groups, made once a process; torch.distributed is initialised already."""
    on_cpu()
    if not parallel_state.model_parallel_is_initialized():
        parallel_state.initialize_model_parallel(tensor_model_parallel_size=ranks)


def model(dtype=torch.float32, tied=False, sequence_parallel=False, seed=0, mtp=0, hidden=HIDDEN, **options):
    """A GPTModel, in Float16Module where dtype is bfloat16; parameters are the same for any number of ranks."""
    ranks = parallel_state.get_tensor_model_parallel_world_size()
    config = TransformerConfig(
        num_layers=1, hidden_size=hidden, num_attention_heads=2, use_cpu_initialization=True, hidden_dropout=0.0,
        attention_dropout=0.0, tensor_model_parallel_size=ranks, sequence_parallel=sequence_parallel and ranks > 1,
        bias_dropout_fusion=False, masked_softmax_fusion=False, apply_rope_fusion=False, mtp_num_layers=mtp or None,
        bf16=dtype is torch.bfloat16, init_method_std=0.3 * (HIDDEN / hidden)**0.5, **options)
    layer = get_gpt_layer_local_spec(normalization="LayerNorm")
    layer.submodules.input_layernorm = layer.submodules.pre_mlp_layernorm = Norm
    layer.submodules.self_attention.submodules.core_attention = Attention
    spec = TransformerBlockSubmodules(layer_specs=[layer], layer_norm=Norm)
    more = {}
    if mtp:
        more["mtp_block_spec"] = get_gpt_mtp_block_spec(config, spec, use_transformer_engine=False)
        for made in more["mtp_block_spec"].layer_specs:
            made.submodules.enorm = made.submodules.hnorm = made.submodules.layer_norm = Norm
    torch.manual_seed(seed)
    made = GPTModel(config, spec, VOCAB, 4 * LENGTH, position_embedding_type="none",
                    share_embeddings_and_output_weights=tied, **more)
    return (Float16Module(config, made) if config.bf16 else made).to(device())


def bare(made):
    """The GPTModel in a model."""
    return made.module if isinstance(made, Float16Module) else made


def batch(seed=0, length=LENGTH, rows=BATCH):
    """input_ids, position_ids, attention_mask, labels, loss_mask"""
    generator = torch.Generator().manual_seed(seed)
    ids, labels = torch.randint(0, VOCAB, (2, rows, length), generator=generator).to(device())
    mask = torch.randint(0, 2, (rows, length), generator=generator).to(device())
    return ids, torch.arange(length, device=device()).expand(rows, length), None, labels, mask


def by_scores(temperature=1.0, entropy=False):
    """An output processor that makes all scores in the model's dtype, as trainers do."""

    def processor(*, hidden_states, output_layer, output_weight, labels, scale_logits, **_others):
        scores, _ = output_layer(hidden_states, weight=output_weight)
        return of_scores(gather_from_tensor_model_parallel_region(scale_logits(scores)).float(), labels, temperature,
                         entropy)

    return processor


def exactly(temperature=1.0, entropy=False):
    """The same in float64 from the hidden states on; what both are compared with."""

    def processor(*, hidden_states, output_layer, output_weight, labels, scale_logits, **_others):
        spread = gather_from_sequence_parallel_region if output_layer.sequence_parallel else \
            copy_to_tensor_model_parallel_region
        weight = output_layer.weight if output_weight is None else output_weight
        scores = spread(hidden_states.double()) @ weight.double().t()
        return of_scores(gather_from_tensor_model_parallel_region(scale_logits(scores)), labels, temperature, entropy)

    return processor


def of_scores(scores, labels, temperature, entropy):
    """Log-probabilities (b, s), and entropies, of scores (s, b, V)."""
    temperature = temperature.t().unsqueeze(-1) if isinstance(temperature, torch.Tensor) else temperature
    logp = (scores / temperature).log_softmax(-1)
    logprob = logp.gather(-1, labels.t().unsqueeze(-1)).squeeze(-1).t()
    return (logprob, -(logp.exp() * logp).sum(-1).t()) if entropy else (logprob,)


def in_ranks(target, *arguments):
    """target(*arguments) in two tensor-parallel ranks (parity.in_ranks) -> what each gave, in rank order."""
    return parity.in_ranks(_of_a_rank, target, arguments)


def _of_a_rank(_rank, target, arguments):
    groups(parity.RANKS)
    return target(*arguments)


def exact_logprobs(head, hidden, target, *, temperature=1.0, entropy=False, ignore_index=None, **_others):
    """flp.adapters._megatron.logprobs in float64, of scores."""
    spread = gather_from_sequence_parallel_region if head.sequence_parallel else copy_to_tensor_model_parallel_region
    scores = spread(hidden.double()) @ head.weight.double().t()
    results = of_scores(gather_from_tensor_model_parallel_region(scores) * head.scale, target.t().clamp(min=0),
                        temperature, bool(entropy))
    skipped = (target < 0) if ignore_index is None else target == ignore_index
    results = tuple(torch.where(skipped, 0.0, each.t()) for each in results)
    return results if entropy else results[0]
