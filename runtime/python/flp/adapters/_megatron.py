"""The head of a Megatron model, and one call over its shards, from hidden states as the model has them.

Invariants: an output layer that is not known to be a plain product of the hidden states with the weight is refused, as
nothing here makes the scores that would show the difference; what the layer does to gradients (their sum over tensor
parallel ranks, the reduce-scatter of sequence parallelism, main_grad) is done here too.
"""
import typing

import torch

from .. import parallel
from .._functions._logprob import linear_logprob
from .._functions._select import NEVER
from .._tensors import _check
from ..heads import _patch
from ..heads._head_checks import no_hooks, refuse
from . import _call

# The second gives scores as the first does, unless it is asked for a loss.
LAYERS = ("ColumnParallelLinear", "LinearCrossEntropyModule")
PLAIN = ("megatron.core.tensor_parallel.ColumnParallelLinear, unquantised and outside of LoRA: leave the head out of "
         "what adapters and fp8 change, or leave output_processor out")
# Scores that any softcap in use changes, and either side of 0.
PROBE = (-120.0, -31.0, -3.0, 0.25, 17.0, 90.0)


class Head(typing.NamedTuple):
    """What an output layer computes with.

    weight             this rank's (V/R, D)
    bias               this rank's (V/R), or None
    group              tensor-parallel ProcessGroup; None: the head is whole on this rank
    sequence_parallel  whether hidden states are this rank's part of the sequence
    reduce             whether the gradient of the hidden states is summed over the group
    fused              whether the weight's gradient goes to weight.main_grad
    scale, softcap     as for flp.linear_logprob
    """

    weight: torch.Tensor
    bias: typing.Optional[torch.Tensor] = None
    group: typing.Any = None
    sequence_parallel: bool = False
    reduce: bool = True
    fused: bool = False
    scale: float = 1.0
    softcap: typing.Optional[float] = None


# ---- what an output layer is ----

def head_of(output_layer, output_weight=None, config=None, scale_logits=None, softcap=None, own_handler=False):
    """The Head of a model's output layer.

    output_weight  the weight of tied embeddings, or None: the layer's own
    config         the model's TransformerConfig, or None: the layer's
    scale_logits   what the model does to its scores after the layer (mup), or None
    softcap        the softcap that the model has after that, or None
    own_handler    whether the layer's forward is under a handler of the caller's (_patch)
    error: UnsupportedError naming what flp cannot stand in for
    """
    config = getattr(output_layer, "config", None) if config is None else config
    check_layer(output_layer, config, own_handler)
    named = getattr(config, "final_logit_softcapping", None)
    if named and softcap != named:
        refuse("softcap", softcap, "%s, as config.final_logit_softcapping has it" % named)
    weight = output_layer.weight if output_weight is None else output_weight
    bias = None if getattr(output_layer, "skip_bias_add", False) else output_layer.bias
    _check_operands(weight, bias)
    group = getattr(output_layer, "tp_group", None)
    if group is None and output_layer.output_size_per_partition != output_layer.output_size:
        from megatron.core import parallel_state

        group = parallel_state.get_tensor_model_parallel_group()
    whole = group is None or group.size() == 1
    return Head(weight, bias, None if whole else group, bool(output_layer.sequence_parallel) and not whole,
                not getattr(output_layer, "disable_grad_reduce", False),
                bool(getattr(output_layer, "gradient_accumulation_fusion", False)) and hasattr(weight, "main_grad"),
                1.0 if scale_logits is None else _scale_of(config, scale_logits), softcap)


def check_layer(layer, config, own_handler=False):
    """error: UnsupportedError for a layer that may be more than a product"""
    kind = type(layer)
    if kind.__name__ not in LAYERS:
        refuse("output_layer", "of type %s.%s" % (kind.__module__, kind.__qualname__), PLAIN)
    if not own_handler and (isinstance(layer, _patch.Patched) or _patch.replaced_forward(layer) is not None):
        refuse("output_layer.forward", "replaced", PLAIN)
    no_hooks(layer, "output_layer", ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"))
    if getattr(config, "defer_embedding_wgrad_compute", False):
        refuse("config.defer_embedding_wgrad_compute", "True",
               "False: flp makes the weight's gradient where it makes that of the hidden states")
    if getattr(layer, "explicit_expert_comm", False) or getattr(layer, "gtp_remat_size", 1) > 1:
        refuse("output_layer", "an expert's, or divided by generalized tensor parallelism",
               "one that is divided by vocabulary over the tensor-parallel group alone")


def _check_operands(weight, bias):
    if weight is None:
        refuse("output_weight", "None while the layer has no weight", "the embedding's, as the model shares it")
    for field, tensor in (("weight", weight), ("bias", bias)):
        if tensor is None:
            continue
        reason = _call._kind_refusal(field, tensor, _check.DTYPES)
        if reason is None and hasattr(tensor, "__fsdp_param__"):
            reason = field + " is a parameter of Megatron-FSDP"
        if reason:
            refuse("output_layer", "refused: " + reason, PLAIN)


def _scale_of(config, scale_logits):
    """What the scores are multiplied with after the layer; what the model does to made-up ones must agree."""
    scale = float(getattr(config, "mup_output_mult", 1.0)) if getattr(config, "use_mup", False) else 1.0
    with torch.no_grad():
        probe = torch.tensor(PROBE, device="cpu")
        seen = scale_logits(probe.clone())
    if not torch.allclose(seen, probe * scale, rtol=1e-5, atol=0):
        refuse("scale_logits", "a function that makes %s of %s" % (seen.tolist(), list(PROBE)),
               "scores times %g, as the model's config says" % scale)
    return scale


# ---- the call ----

def logprobs(head, hidden, target, *, temperature=1.0, entropy=False, vocab_size=None, ignore_index=NEVER, **options):
    """flp.linear_logprob of hidden states in Megatron's order.

    head        the Head
    hidden      (S, B, D), or (S/R, B, D) under sequence parallelism; or (N, D)
    target      (S, B) or (N) ids, the same on every rank of the group; ignore_index marks rows without work
    vocab_size  ids of the real vocabulary; None: rows that pad the weight count too, as in Megatron's own loss
    options     of flp.linear_logprob; under tensor parallelism of flp.parallel.linear_logprob
    Returns logprob of target's shape, float32, or what the options ask for as well.
    """
    weight, options = head.weight, dict(options)
    if torch.is_grad_enabled() and weight.requires_grad and head.fused:
        # A main_grad of another dtype is left to Megatron's hook, which adds the gradient to it.
        if weight.main_grad.dtype is torch.float32:
            options["grad_weight_accumulate"] = weight.main_grad
            weight = IntoMainGrad.apply(weight)
    options.update(temperature=temperature, entropy=entropy, ignore_index=ignore_index, scale=head.scale,
                   softcap=head.softcap)
    rows, bias = weight.shape[0], head.bias
    if head.group is None:
        if vocab_size is not None and vocab_size < rows:
            weight, bias = weight[:vocab_size], None if bias is None else bias[:vocab_size]
            if "grad_weight_accumulate" in options:
                options["grad_weight_accumulate"] = options["grad_weight_accumulate"][:vocab_size]
        return linear_logprob(hidden, weight, target, bias, **options)
    rank, total = torch.distributed.get_rank(head.group), rows * head.group.size()
    total = total if vocab_size is None else min(vocab_size, total)
    offset = min(rank * rows, total)
    return parallel.linear_logprob(
        hidden, weight, target, bias, group=head.group, vocab_offset=offset,
        vocab_valid=min(rows, total - offset), vocab_total=total, sequence_parallel=head.sequence_parallel,
        reduce_grad_hidden=head.reduce or head.sequence_parallel, **options)


class IntoMainGrad(torch.autograd.Function):
    """A weight whose gradient is in main_grad already when the backward pass comes here. Megatron's hooks wait for a
    gradient all the same: one without meaning, or zeros where others are added to it (tied embeddings)."""

    @staticmethod
    def forward(ctx, weight):
        ctx.set_materialize_grads(False)
        ctx.weight = weight
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx, _grad):
        weight = ctx.weight
        if not hasattr(weight, "grad_added_to_main_grad"):
            return None
        weight.grad_added_to_main_grad = True
        make = torch.zeros_like if getattr(weight, "zero_out_wgrad", False) else torch.empty_like
        return make(weight)
