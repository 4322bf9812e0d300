"""Which heads flp.logprob_head may stand in for, and what a model does to its scores after the head.

Invariants: whatever is not known to be an unchanged linear layer is refused with what to do about it; what the model's
config says of its scores is compared once with what the model itself does to a probe, so that a rule nobody knows is
found out instead of left out.
"""
import math
import weakref
from typing import Any

import torch
from torch import nn

from .. import errors
from .._tensors import _check
from .._tensors._compile import outside_graphs
from .._tensors._lora import Lora
from . import _patch

# What configs call z = a·x and z = c·tanh(x/c); a model that divides its scores has the inverse.
SOFTCAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
SCALES = {"logit_scale": 1, "lm_head_multiplier": 1, "logits_scaling": -1}
SHARDED = ("a whole (V, D) weight on every rank: leave the head out of what fully_shard, FSDP or ZeRO-3 shards; shards "
           "of a vocabulary are for flp.linear_logprob_partial")
UNQUANTISED = ("torch.nn.Linear, unquantised: name the head among the modules to skip, such as llm_int8_skip_modules "
               "of BitsAndBytesConfig or modules_to_not_convert")


def refuse(field, value, accepted):
    _check.refuse(errors.UnsupportedError, field, value, accepted)


def causal_lm(model):
    """The causal language model inside wrappers: a PEFT model, DistributedDataParallel and others with .module,
    torch.compile's module. error: TypeError, UnsupportedError"""
    if not isinstance(model, nn.Module):
        _check.refuse_type("model", model, "a torch.nn.Module")
    while True:
        if hasattr(model, "peft_config") and callable(getattr(model, "get_base_model", None)):
            return model.get_base_model()
        if isinstance(getattr(model, "_orig_mod", None), nn.Module):
            model = model._orig_mod
        elif callable(getattr(model, "get_output_embeddings", None)):
            return model
        elif isinstance(getattr(model, "module", None), nn.Module):
            model = model.module
        else:
            refuse("model", "of type %s, without get_output_embeddings()" % type(model).__name__,
                   "a causal language model, such as those of transformers")


def linears_of(model):
    """The linear layers of which each forward pass calls one: the head, or the copies that PEFT keeps of a head in
    modules_to_save, of which adapters in force choose. error: UnsupportedError"""
    head = model.get_output_embeddings()
    if head is None:
        refuse("head", "None", "a model whose get_output_embeddings() is its head")
    copies = getattr(head, "modules_to_save", None)
    if isinstance(copies, nn.ModuleDict) and isinstance(getattr(head, "original_module", None), nn.Module):
        no_hooks(head)
        found = [head.original_module, *copies.values()]
    else:
        found = [head]
    for linear in found:
        if _is_adapted(linear):
            parts_of(linear)
        else:
            _check_linear(linear)
    return found


def _is_adapted(head):
    """Whether it is PEFT's linear layer with LoRA, of that very class, below the one that _patch gives it."""
    return any((kind.__module__, kind.__qualname__) == ("peft.tuners.lora.layer", "Linear") and
               _patch.own_forward(head) is kind.forward for kind in type(head).__mro__)


def parts_of(head):
    """weight, bias and flp.Lora or None of a head as it is now: of PEFT's with one adapter in force, or none.
    error: UnsupportedError"""
    if not _is_adapted(head):
        return head.weight, head.bias, None
    base, names = head.base_layer, head.active_adapters
    _check_linear(base)
    _check_own_forward(head, "that of PEFT's layer")
    no_hooks(head)
    if head.disable_adapters and head.merged:
        refuse("head", "with adapters that are merged and disabled", "adapters unmerged before they are disabled")
    names = [name for name in ([names] if isinstance(names, str) else names) if name in head.lora_A]
    if head.disable_adapters or head.merged or not names:
        return base.weight, base.bias, None
    if len(names) > 1:
        refuse("head.active_adapters", repr(names), "one adapter on the head")
    return base.weight, base.bias, _adapter_of(head, names[0])


def _adapter_of(head, name):
    """flp.Lora of PEFT's adapter of that name, whose scores are h·Wᵀ + scaling·(h·Aᵀ)·Bᵀ and nothing else."""
    if getattr(head, "use_dora", {}).get(name) or name in getattr(head, "lora_magnitude_vector", ()):
        refuse("head.use_dora", "True of adapter %r" % name, "plain LoRA, or the adapter merged")
    if name in getattr(head, "lora_variant", ()):
        refuse("head.lora_variant", "%s of adapter %r" % (type(head.lora_variant[name]).__name__, name),
               "plain LoRA, or the adapter merged")
    if getattr(head, "fan_in_fan_out", False):
        refuse("head.fan_in_fan_out", "True", "False, as of torch.nn.Linear")
    dropout = head.lora_dropout[name]
    if getattr(dropout, "p", 0) and dropout.training:
        refuse("head.lora_dropout", "p=%g of adapter %r while the model trains" % (dropout.p, name),
               "lora_dropout=0, or model.eval()")
    a, b = head.lora_A[name], head.lora_B[name]
    for field, layer in (("lora_A", a), ("lora_B", b)):
        if type(layer) is not nn.Linear:
            refuse("head." + field, "of type " + _kind_of(layer), "torch.nn.Linear")
        no_hooks(layer)
        if layer.bias is not None:
            refuse("head.%s.bias" % field, "given (lora_bias=True)", "None, or the adapter merged")
        _check_weight(layer, "head.%s." % field)
    return Lora(a.weight, b.weight, float(head.scaling[name]))


def check_unchanged(model, heads, rule):
    """What a call asks again, as the model can change after the installation: that the heads it has now are among those
    that were installed, and that its config states the same rule. error: UnsupportedError"""
    for head in linears_of(model):
        if not any(head is known for known in heads):
            refuse("head", "another one than when logprob_head was installed",
                   "the same: uninstall, change the head (or its adapters), and install again")
    if rule_of(model) != rule:
        refuse("config", "changed after logprob_head was made, to scale %g and softcap %s" % rule_of(model),
               "scale %g and softcap %s: make logprob_head anew after the change" % rule)


def _check_linear(head):
    if hasattr(head, "base_layer"):
        refuse("head", "of type %s, which an adapter changes" % _kind_of(head),
               "peft.tuners.lora.layer.Linear over torch.nn.Linear; a head outside of the adapter: not in target_modules; "
               "in modules_to_save, to be trained; or with the adapter merged")
    if not isinstance(head, nn.Linear) or _patch.own_forward(head) is not nn.Linear.forward:
        refuse("head", "of type " + _kind_of(head), UNQUANTISED)
    _check_own_forward(head, "torch.nn.Linear's own: remove what replaced it, such as accelerate's hooks of a "
                             "device_map")
    no_hooks(head)
    _check_weight(head)


def _kind_of(head):
    return "%s.%s" % (type(head).__module__, type(head).__qualname__)


def _check_own_forward(head, accepted):
    replaced = _patch.replaced_forward(head)
    if replaced is not None:
        refuse("head.forward", "replaced by %s" % getattr(replaced, "__qualname__", type(replaced).__name__), accepted)


def no_hooks(head, field="head", kinds=("_forward_hooks", "_backward_hooks", "_backward_pre_hooks")):
    """error: UnsupportedError that names the field, where a head has hooks of these kinds"""
    for name in kinds:
        hooks = getattr(head, name, None)
        if hooks:
            refuse(field, "under %d %s" % (len(hooks), name.strip("_").replace("_", " ")),
                   "none, as scores that they could see are never made")


def _check_weight(head, name="head."):
    for field in ("weight", "bias"):
        tensor = getattr(head, field)
        if tensor is None:
            continue
        if field not in head._parameters:
            refuse(name + field, "computed from other parameters", "a torch.nn.Parameter of the head")
        if hasattr(tensor, "to_local") or hasattr(tensor, "ds_id") and tensor.numel() == 0:
            refuse(name + field, "sharded (%s)" % type(tensor).__name__, SHARDED)
        if type(tensor) not in (nn.Parameter, torch.Tensor):  # the latter under torch.func.functional_call
            refuse(name + field, "of type " + type(tensor).__name__, "a torch.nn.Parameter; " + UNQUANTISED)
        if tensor.dtype not in _check.DTYPES:
            refuse(name + field, "of dtype %s" % tensor.dtype, _check.ACCEPTED_DTYPES)
        if tensor.is_meta:
            refuse(name + field, "on the device meta", "a weight that has been loaded")
        if tensor.dim() != (2 if field == "weight" else 1) or tensor.numel() == 0:
            refuse(name + field, "of shape %s" % (tuple(tensor.shape),), SHARDED)


# ---- what happens to scores after the head ----

def rule_of(model):
    """(scale, softcap or None) that the model's config names. error: ValueError, TypeError naming config's field"""
    config = getattr(model, "config", None)
    if hasattr(config, "get_text_config"):
        config = config.get_text_config()
    stated = {name: _above_zero("config." + name, getattr(config, name)) for name in (*SOFTCAPS, *SCALES)
            if getattr(config, name, None) is not None}
    scale = math.prod([value ** SCALES[name] for name, value in stated.items() if name in SCALES])
    return scale, next((stated[name] for name in SOFTCAPS if name in stated), None)


def _above_zero(field, value):
    if not _check.number_of(field, value) > 0:
        _check.refuse(ValueError, field, value, "a number above 0")
    return float(value)


_verified: Any = weakref.WeakKeyDictionary()  # model -> the rule that it was seen to follow


def is_verified(model, rule):
    return _verified.get(model) == rule


def probe_of(head):
    """Made-up scores (1, 1, V) in float64 that every rule changes: uneven about 0, and far beyond any softcap."""
    return torch.linspace(-60, 45, head.out_features, dtype=torch.float64, device=head.weight.device).view(1, 1, -1)


@outside_graphs
def verify(model, head, rule, seen):
    """Compares what the model made of a probe with the rule; reads from the device, once a model.
    error: UnsupportedError if they differ"""
    scale, softcap = rule
    want = probe_of(head) * scale
    want = want if softcap is None else softcap * torch.tanh(want / softcap)
    named = "scale %g and softcap %s" % (scale, softcap)
    accepted = "scores that config describes (%s, %s); verify=False takes %s on trust" % (
        ", ".join(SOFTCAPS), ", ".join(SCALES), named)
    if not isinstance(seen, torch.Tensor) or seen.shape != want.shape or not seen.is_floating_point():
        refuse("model", "one that makes %s of scores of shape %s" % (
            "a tensor of shape %s" % (tuple(seen.shape),) if isinstance(seen, torch.Tensor) else type(seen).__name__,
            tuple(want.shape)), accepted)
    tolerance = max(1e-6, 4 * torch.finfo(seen.dtype).eps) * float(want.abs().max())
    error = float((seen.detach().double() - want).abs().max())
    if not error <= tolerance:
        refuse("model", "one that changes its scores otherwise than by %s (by %g)" % (named, error), accepted)
    _verified[model] = rule
