"""Stand-ins of the libraries that flp.bench compares with: their signatures, computed by torch. A call that the library
would not take, or would take for something else, fails here."""
import types

import torch


def nll_of(hidden, weight, target, bias=None, softcap=None):
    scores = torch.nn.functional.linear(hidden, weight, bias).float()
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    return torch.nn.functional.cross_entropy(scores, target, reduction="none")


def entropy_of(hidden, weight):
    logp = torch.log_softmax((hidden @ weight.t()).float(), -1)
    return -(logp.exp() * logp).sum(-1)


def cce_release(e, c, targets, ignore_index=-100, softcap=None, reduction="mean", shift=False, filter_eps="high",
                impl="cce"):
    assert reduction == "none" and filter_eps is None and impl == "cce" and not shift
    return nll_of(e, c, targets, softcap=softcap)


def cce_presets(e, c, targets, bias=None, ignore_index=-100, softcap=None, reduction="mean", shift=0, return_lse=False,
                filter_eps="auto", accum_e_fp32=False, accum_c_fp32=False, filter_e_grad=True, filter_c_grad=True,
                vocab_parallel_options=None, impl="cce"):
    assert reduction == "none" and impl == "cce_exact" and filter_eps == "auto"
    return nll_of(e, c, targets, softcap=softcap)


class LigerFlce:
    """LigerFusedLinearCrossEntropyFunction of liger-kernel 0.8."""

    @staticmethod
    def forward(ctx, _input, weight, target, bias=None, ce_weight=None, ignore_index=-100, lse_square_scale=0.0,
                label_smoothing=0.0, reduction="mean", softcap=None, return_z_loss=False):
        raise AssertionError("autograd functions are applied")

    @staticmethod
    def apply(_input, weight, target, bias, ce_weight, ignore_index, lse_square_scale, label_smoothing, reduction,
              softcap):
        assert (ce_weight, ignore_index, lse_square_scale, label_smoothing) == (None, -100, 0.0, 0.0)
        nll = nll_of(_input, weight, target, bias, softcap)
        return {"none": nll, "mean": nll.mean()}[reduction], None, None, None


class LigerScaled:
    @staticmethod
    def apply(_input, weight, target, temperature=1.0, ignore_index=-100, m_tiles_per_cluster=1, return_entropy=False,
              selected_token_ids=None):
        assert (temperature, ignore_index, m_tiles_per_cluster, selected_token_ids) == (1.0, -100, 1, None)
        nll = nll_of(_input, weight, target)
        return (nll, entropy_of(_input, weight)) if return_entropy else nll


class LigerGrpo:
    """LigerFusedLinearGRPOLoss of liger-kernel 0.8: a module, called as trl calls it."""

    def __init__(self, beta=0.04, compiled=True, use_ref_model=True, chunk_size=1, epsilon_low=0.2, epsilon_high=0.2,
                 loss_type="dapo", max_completion_length=None):
        assert compiled and chunk_size == 1 and loss_type in ("grpo", "dr_grpo")
        self.beta, self.use_ref_model, self.bounds = beta, use_ref_model, (1 - epsilon_low, 1 + epsilon_high)
        self.length = max_completion_length if loss_type == "dr_grpo" else None

    def __call__(self, _input, lin_weight, selected_token_ids, attention_mask, advantages, bias=None,
                 ref_per_token_logps=None, old_per_token_logps=None):
        assert self.use_ref_model == (ref_per_token_logps is not None) and (attention_mask == 1).all()
        logprob = -nll_of(_input.flatten(0, 1), lin_weight, selected_token_ids.flatten(), bias).view(attention_mask.shape)
        ratio, advantage = (logprob - old_per_token_logps).exp(), advantages[:, None]
        terms = -torch.minimum(ratio * advantage, ratio.clamp(*self.bounds) * advantage)
        if self.use_ref_model:
            d = logprob - ref_per_token_logps
            terms = terms + self.beta * (torch.expm1(-d) + d)
        return terms.sum() / (len(terms) * self.length) if self.length else terms.mean(-1).mean(), []


def verl_function(hidden, weight, labels, temperature=1.0, reduction="none", dist_process_group=None):
    assert isinstance(temperature, float) and reduction == "none" and dist_process_group is None
    return -nll_of(hidden, weight, labels), entropy_of(hidden, weight)


def quack_none(x, weight, bias, target, ignore_index=-100, reduction="mean", inplace_backward=False):
    assert reduction == "none" and not inplace_backward
    return nll_of(x, weight, target, bias)


def quack_mean(x, weight, target, chunk_size=4096, ignore_index=-100, reduction="mean", tuned=True,
               use_scaled_exp=None):
    assert reduction == "mean" and tuned
    return nll_of(x, weight, target).mean()


def agile_scoring(hidden, head_w, head_b, target_ids, temperature=1.0, cast_to_fp32=True, *, chunk_rows):
    assert not torch.is_grad_enabled() and 128 <= chunk_rows <= 4096 and temperature == 1.0
    return -nll_of(hidden[0], head_w, target_ids[0], head_b)[None]


class AgileFunction:
    @staticmethod
    def apply(hidden, head_w, head_b, target_ids, temperature, cast_to_fp32, chunk_rows):
        assert torch.is_grad_enabled() and temperature == 1.0
        return -nll_of(hidden[0], head_w, target_ids[0], head_b)[None]


def module(name, **contents):
    made = types.ModuleType(name)
    vars(made).update(contents)
    return made


def modules():
    """The innermost modules that the adapters import."""
    ops = "liger_kernel.ops."
    return (
        module("cut_cross_entropy", linear_cross_entropy=cce_release, __version__="25.1.1"),
        module(ops + "fused_linear_cross_entropy", LigerFusedLinearCrossEntropyFunction=LigerFlce),
        module(ops + "fused_linear_scaled_cross_entropy", LigerFusedLinearScaledCrossEntropyFunction=LigerScaled),
        module("liger_kernel.chunked_loss.grpo_loss", LigerFusedLinearGRPOLoss=LigerGrpo),
        module("verl.utils.kernel.linear_cross_entropy", linear_cross_entropy=verl_function),
        module("quack.linear_cross_entropy", linear_cross_entropy_func=quack_none,
               chunked_linear_cross_entropy=quack_mean),
        module("agilerl.algorithms.core.llm_ops.fused_logprobs", fused_linear_logprobs_chunked=agile_scoring,
               FusedLinearLogProbsFunction=AgileFunction))
