"""Stand-ins of the libraries that flp.bench compares with: their signatures, computed by torch. A call that the library
would not take, or would take for something else, fails here."""
import torch

from flp_hosts import module_of as module


def scores_of(hidden, weight, bias=None, softcap=None):
    scores = torch.nn.functional.linear(hidden, weight, bias).float()
    return scores if softcap is None else softcap * torch.tanh(scores / softcap)


def nll_of(hidden, weight, target, bias=None, softcap=None):
    return torch.nn.functional.cross_entropy(scores_of(hidden, weight, bias, softcap), target, reduction="none")


def entropy_of(*head):
    logp = torch.log_softmax(scores_of(*head), -1)
    return -(logp.exp() * logp).sum(-1)


CCE_CALLS = []  # (impl, filter_eps)


def cce_release(e, c, targets, ignore_index=-100, softcap=None, reduction="mean", shift=False, filter_eps="high",
                impl="cce"):
    assert reduction == "none" and impl == "cce" and not shift
    CCE_CALLS.append((impl, filter_eps))
    return nll_of(e, c, targets, softcap=softcap)


def cce_presets(e, c, targets, bias=None, ignore_index=-100, softcap=None, reduction="mean", shift=0, return_lse=False,
                filter_eps="auto", accum_e_fp32=False, accum_c_fp32=False, filter_e_grad=True, filter_c_grad=True,
                vocab_parallel_options=None, impl="cce"):
    assert reduction == "none" and filter_eps == "auto"
    CCE_CALLS.append((impl, filter_eps))
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
        assert (ce_weight, ignore_index) == (None, -100)
        nll = nll_of(_input, weight, target, bias, softcap)
        if label_smoothing or lse_square_scale:
            scores = scores_of(_input, weight, bias)
            lse = scores.logsumexp(-1)
            nll = (1 - label_smoothing) * nll + label_smoothing * (lse - scores.mean(-1)) + lse_square_scale * lse**2
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
    assert reduction == "mean" and use_scaled_exp in (True, False) and not tuned
    return nll_of(x, weight, target).mean()


def liger_cute(_input, weight, target, ignore_index=-100, reduction="mean"):
    assert reduction == "mean"
    return nll_of(_input, weight, target).mean()


class LckConfig:
    """FusedLinearCrossEntropyConfig of liger-cute-kernels 0.8.5."""

    def __init__(self, max_tokens, hidden_size, local_vocab_size, group=None, tiles_per_reduce=1):
        assert group is None and tiles_per_reduce == 1 and max_tokens >= hidden_size
        self.capacity = (max_tokens, hidden_size, local_vocab_size)


LCK_CALLS = []


def lck_configure(*, process_groups=None, bootstrap_group=None, device=None, flsce=None, moe=None):
    LCK_CALLS.append(flsce and flsce.capacity)


class LckFunction:
    @staticmethod
    def apply(_input, weight, target, tp_group, temperature=1.0, ignore_index=-100, tiles_per_reduce=1,
              return_entropy=False):
        assert LCK_CALLS and LCK_CALLS[-1] is not None, "the capacity is set before the first call"
        return LigerScaled.apply(_input, weight, target, temperature, ignore_index, tiles_per_reduce, return_entropy)


def unsloth_logprobs(hidden, weight, targets, *, bias=None, mask=None, temperature=1.0, logit_scale_multiply=0.0,
                     logit_scale_divide=0.0, logit_softcapping=0.0, return_entropy=False, return_mean_logits=False,
                     return_log_sum_sq_probs=False, return_is_top1=False, rows_per_chunk=None,
                     entropy_requires_grad=True, max_rows_per_chunk=None):
    assert mask is None and isinstance(entropy_requires_grad, bool) and isinstance(logit_softcapping, float)
    logprob = -nll_of(hidden, weight, targets, bias, logit_softcapping or None)
    if not return_entropy:
        return logprob
    entropy = entropy_of(hidden, weight, bias, logit_softcapping or None)
    return logprob, entropy if entropy_requires_grad else entropy.detach()


def unsloth_mean(hidden, weight, bias, targets, *, divisor, scaling=None, ignore_index=-100, logit_scale_multiply=0.0,
                 logit_scale_divide=0.0, logit_softcapping=0.0, label_smoothing=0.0, logits_bias=None,
                 fp32_head_grad=False, rows_per_chunk=None):
    return nll_of(hidden, weight, targets, bias, logit_softcapping or None).sum() / divisor


class TrlFunction:
    @staticmethod
    def apply(hidden, weight, bias, targets, temperature, chunk_size, final_logit_softcapping=None, logit_scale=1.0,
              outputs=("entropy", "log_sum_sq_probs", "mean_logits", "is_top1")):
        assert (temperature, chunk_size, logit_scale) == (1.0, 32768, 1.0) and outputs in ((), ("entropy",))
        entropy = entropy_of(hidden, weight, bias, final_logit_softcapping) if outputs else None
        return -nll_of(hidden, weight, targets, bias, final_logit_softcapping), entropy, None, None, None


def megatron_function(hidden, weight, labels, tp_group=None, reduction="mean", ignore_index=-100,
                      sequence_parallel=False):
    assert tp_group is None and reduction == "none"
    return nll_of(hidden, weight, labels)


class TorchOptions:
    """torch.nn.LinearCrossEntropyOptions of torch 2.13."""


def torch_mean(input, linear_weight, target, *, linear_bias=None, weight=None, reduction="mean", ignore_index=None,
               label_smoothing=0.0, options=None):
    assert isinstance(options, TorchOptions) and reduction == "mean"
    return nll_of(input, linear_weight, target, linear_bias).mean()


def agile_scoring(hidden, head_w, head_b, target_ids, temperature=1.0, cast_to_fp32=True, *, chunk_rows):
    assert not torch.is_grad_enabled() and 128 <= chunk_rows <= 4096 and temperature == 1.0
    return -nll_of(hidden[0], head_w, target_ids[0], head_b)[None]


class AgileFunction:
    @staticmethod
    def apply(hidden, head_w, head_b, target_ids, temperature, cast_to_fp32, chunk_rows):
        assert torch.is_grad_enabled() and temperature == 1.0
        return -nll_of(hidden[0], head_w, target_ids[0], head_b)[None]


def generalised_jsd(beta, student, teacher):
    """Of each row; student and teacher: hidden and weight."""
    log_q, log_p = (torch.log_softmax(scores_of(*head), -1) for head in (student, teacher))
    log_m = ((1 - beta) * log_q.exp() + beta * log_p.exp()).log()
    kl = [(log.exp() * (log - other)).sum(-1)
          for log, other in ((log_p, log_q), (log_q, log_p), (log_p, log_m), (log_q, log_m))]
    return kl[int(beta)] if beta in (0, 1) else beta * kl[2] + (1 - beta) * kl[3]


class TrlDivergence:
    @staticmethod
    def apply(student_hidden, student_weight, student_bias, teacher_hidden, teacher_weight, teacher_bias, beta,
              temperature=1.0, student_logit_scale=1.0, student_final_logit_softcapping=None, teacher_logit_scale=1.0,
              teacher_final_logit_softcapping=None):
        assert (student_bias, teacher_bias, temperature) == (None, None, 1.0)
        value = generalised_jsd(beta, (student_hidden, student_weight), (teacher_hidden, teacher_weight))
        return value, entropy_of(student_hidden, student_weight).detach()


def unsloth_jsd(student_hidden, student_weight, teacher_hidden, teacher_weight, *, mask=None, labels=None,
                ignore_index=-100, beta=0.5, temperature=1.0, student_bias=None, teacher_bias=None,
                student_logit_scale=1.0, student_logit_softcapping=0.0, teacher_logit_scale=1.0,
                teacher_logit_softcapping=0.0, num_items_in_batch=None, scaling=None, rows_per_chunk=None):
    return generalised_jsd(beta, (student_hidden, student_weight), (teacher_hidden, teacher_weight)).mean()


class LigerJsd:
    """LigerFusedLinearJSDFunction of liger-kernel 0.8."""

    @staticmethod
    def forward(ctx, student_input, student_weight, teacher_input, teacher_weight, shift_labels=None, jsd_beta=0.5,
                ignore_index=-100, temperature=1.0, accum_dtype=None, jsd_impl=None, jsd_mode=None):
        raise AssertionError("autograd functions are applied")

    @staticmethod
    def apply(student_input, student_weight, teacher_input, teacher_weight, shift_labels, jsd_beta, ignore_index,
              temperature, accum_dtype, jsd_impl):
        assert (shift_labels, ignore_index, temperature, accum_dtype) == (None, -100, 1.0, None)
        assert jsd_impl in ("nvidia-triton", "nvidia-cutedsl")
        return generalised_jsd(jsd_beta, (student_input, student_weight), (teacher_input, teacher_weight)).mean()


def modules():
    """The innermost modules that the adapters import."""
    ops = "liger_kernel.ops."
    return (
        module("cut_cross_entropy", linear_cross_entropy=cce_release, __version__="25.1.1"),
        module(ops + "fused_linear_cross_entropy", LigerFusedLinearCrossEntropyFunction=LigerFlce),
        module(ops + "fused_linear_scaled_cross_entropy", LigerFusedLinearScaledCrossEntropyFunction=LigerScaled,
               LigerFusedLinearScaledCrossEntropyTPFunction=LckFunction),
        module(ops + "cutedsl.ops.fused_linear_cross_entropy_sm90", liger_fused_linear_cross_entropy_sm90=liger_cute),
        module("liger_cute_kernels", configure=lck_configure, FusedLinearCrossEntropyConfig=LckConfig),
        module("unsloth_zoo.fused_losses.fused_linear", fused_linear_logprobs=unsloth_logprobs,
               fused_linear_cross_entropy=unsloth_mean, fused_linear_jsd=unsloth_jsd),
        module("trl.kernels.chunked_logprob", ChunkedLogProbFunction=TrlFunction),
        module("trl.kernels.chunked_divergence", ChunkedDivergenceFunction=TrlDivergence),
        module(ops + "fused_linear_jsd", LigerFusedLinearJSDFunction=LigerJsd),
        module("megatron.core.fusions.fused_linear_cross_entropy", linear_cross_entropy=megatron_function),
        module("liger_kernel.chunked_loss.grpo_loss", LigerFusedLinearGRPOLoss=LigerGrpo),
        module("verl.utils.kernel.linear_cross_entropy", linear_cross_entropy=verl_function),
        module("quack.linear_cross_entropy", linear_cross_entropy_func=quack_none,
               chunked_linear_cross_entropy=quack_mean),
        module("agilerl.algorithms.core.llm_ops.fused_logprobs", fused_linear_logprobs_chunked=agile_scoring,
               FusedLinearLogProbsFunction=AgileFunction))
