"""verl's Megatron worker from hidden states: the output processor of its fused forward pass (use_fused_kernels), over a
vocabulary that is divided among ranks. A sequence-parallel model's hidden states are gathered chunk by chunk."""
from .. import errors
from .._functions._select import NEVER
from . import _call, _megatron
from ._seam import Host, Seam

NAME, MODULE = "verl-megatron", "verl.models.mcore.model_forward_fused"


def from_hidden(host):
    """fused_output_processor: hidden states (T/R, 1, D), labels (1, T) -> verl's output with log_probs, entropy (T)"""
    module = host.__globals__

    @_call.in_place(NAME, host)
    def fused_output_processor(*, hidden_states, output_layer, output_weight, labels, context, config, **others):
        if module["has_config_logger_enabled"](config):
            raise _call.Refused("Megatron's config logger asks for what it makes")
        try:
            head = _megatron.head_of(output_layer, output_weight, config, others.get("scale_logits"))
        except errors.UnsupportedError as error:
            raise _call.Refused(str(error)) from error
        _call.take(hidden_states, head.weight, head.bias)
        logprob, entropy = _megatron.logprobs(head, hidden_states, labels.t().contiguous(), entropy=True,
                                              temperature=context.temperature, ignore_index=NEVER)
        output = module["CausalLMOutputForPPO"](loss=None, logits=None, past_key_values=None,
                                                hidden_states=hidden_states, attentions=None)
        output.log_probs, output.entropy = logprob.t().reshape(-1), entropy.t().reshape(-1)
        return output

    return fused_output_processor


HOST = Host(
    NAME, (
        Seam(MODULE, "fused_output_processor", ("hidden_states", "output_layer", "output_weight", "labels", "context",
                                                "config", "_ignored"), "369cab7ebe251bd1", from_hidden),
    ), "verl==0.9.1 with megatron-core 0.18 or newer", "verl")
