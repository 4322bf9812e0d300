"""liger-kernel (LinkedIn): its fused linear cross entropy, per row and as a mean, its scaled cross entropy, its fused
linear GRPO loss, and its fused linear Jensen-Shannon divergence.

The mean computes the gradients in the forward pass and takes no other upstream gradient than a scalar; per row they are
recomputed in the backward pass. The scaled cross entropy runs CuTe kernels on Hopper, which need nvidia-cutlass-dsl,
and chunked torch operations on other devices; a mean by CuTe kernels is for Hopper alone. The divergence has a part in
Triton, in CuTe from Hopper on and in cuTile from Blackwell on, which no record has.
"""
import functools
import importlib
import inspect

import torch

from ..cases import BETA, CROSS_ENTROPY, SMOOTHING, TEACHER_SHARES, Z_LOSS
from .pins import CUTE
from .seam import Peer, Result


@functools.lru_cache(maxsize=None)
def parameters_of(function):
    """The parameters of an autograd function's forward, after the context."""
    return list(inspect.signature(function.forward).parameters.values())[1:]


def positional(function, values):
    """The arguments of an autograd function's forward, by name; its releases differ in their number and order."""
    parameters = parameters_of(function)
    unknown = set(values) - {parameter.name for parameter in parameters}
    if unknown:
        raise TypeError("%s takes no %s" % (function.__name__, ", ".join(sorted(unknown))))
    last = max(i for i, parameter in enumerate(parameters) if parameter.name in values)
    return [values.get(parameter.name, parameter.default) for parameter in parameters[:last + 1]]


class LigerNone(Peer):
    name = "liger"
    title = "LigerFusedLinearCrossEntropyFunction(reduction='none')"
    distribution = "liger-kernel"
    bias = softcap = True
    lacks = None
    module, function_name = "liger_kernel.ops.fused_linear_cross_entropy", "LigerFusedLinearCrossEntropyFunction"
    reduction = "none"

    def run(self, hidden, weight, bias, target, case):
        loss = self.losses_of(hidden, weight, bias, target, case)
        return Result(loss=loss) if self.reduction == "mean" else Result(-loss)

    def losses_of(self, hidden, weight, bias, target, case, **more):
        results = self.function.apply(*positional(self.function, {
            "_input": hidden, "weight": weight, "target": target, "bias": bias, "reduction": self.reduction,
            "softcap": case.softcap, **more}))
        return results[0] if isinstance(results, tuple) else results

    def step(self, hidden, weight, bias, target, batch, case):
        if case.loss != CROSS_ENTROPY:
            return super().step(hidden, weight, bias, target, batch, case)
        return Result(loss=self.losses_of(hidden, weight, bias, target, case, label_smoothing=SMOOTHING,
                                          lse_square_scale=Z_LOSS).mean())


class LigerMean(LigerNone):
    name = "liger-mean"
    title = "LigerFusedLinearCrossEntropyFunction(reduction='mean')"
    note = "takes the gradient of the mean loss only"
    any_upstream = False
    reduction = "mean"


class LigerCute(Peer):
    name = "liger-cute"
    title = "liger_fused_linear_cross_entropy_sm90(reduction='mean')"
    distribution = "liger-kernel"
    needs = CUTE
    note = "takes the gradient of the mean loss only; keeps the (N,V) scores in memory"
    any_upstream = False
    dtypes = ("bf16",)
    rows_multiple, vocab_multiple = 128, 256
    module = "liger_kernel.ops.cutedsl.ops.fused_linear_cross_entropy_sm90"
    function_name = "liger_fused_linear_cross_entropy_sm90"

    def run(self, hidden, weight, bias, target, case):
        return Result(loss=self.function(hidden, weight, target, reduction="mean"))


class LigerScaled(Peer):
    name = "liger-scaled"
    title = "LigerFusedLinearScaledCrossEntropyFunction"
    distribution = "liger-kernel"
    needs = CUTE
    note = "makes the weight's gradient for a frozen head, too"
    entropy = True
    dtypes = ("bf16",)
    module = "liger_kernel.ops.fused_linear_scaled_cross_entropy"
    function_name = "LigerFusedLinearScaledCrossEntropyFunction"

    def load(self):
        if torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0):
            importlib.import_module("liger_kernel.ops.cutedsl.ops.fused_scaled_cross_entropy_sm90")
        return super().load()

    def run(self, hidden, weight, bias, target, case):
        # temperature, ignore_index, m_tiles_per_cluster, return_entropy
        results = self.function.apply(hidden, weight, target, 1.0, -100, 1, case.entropy != "none")
        return Result(-results[0], results[1]) if case.entropy != "none" else Result(-results)


class LigerGrpo(Peer):
    name = "liger-grpo"
    title = "LigerFusedLinearGRPOLoss, sequence by sequence as trl calls it"
    distribution = "liger-kernel"
    note = "makes its gradients in the forward pass"
    bias = True
    losses = ("grpo", "grpo+k3", "dr_grpo", "dr_grpo+k3")
    module, function_name = "liger_kernel.chunked_loss.grpo_loss", "LigerFusedLinearGRPOLoss"

    def step(self, hidden, weight, bias, target, batch, case):
        tokens, mask = target.view(-1, batch.tokens), torch.ones_like(batch.old)
        loss = self.function(beta=BETA if case.kl_kind else 0.0, use_ref_model=bool(case.kl_kind),
                             loss_type=case.rule, max_completion_length=batch.tokens)
        results = loss(hidden.view(*tokens.shape, -1), weight, tokens, mask, batch.advantage, bias,
                       ref_per_token_logps=batch.ref, old_per_token_logps=batch.old)
        return Result(loss=results[0])


class LigerJsd(Peer):
    name = "liger-jsd"
    title = "LigerFusedLinearJSDFunction, Triton"
    distribution = "liger-kernel"
    note = "takes the gradient of the mean alone, and makes that of the hidden states in every call"
    divergences = tuple(TEACHER_SHARES)
    module, function_name = "liger_kernel.ops.fused_linear_jsd", "LigerFusedLinearJSDFunction"
    kernels = "nvidia-triton"

    def run(self, hidden, weight, teacher, case):
        return Result(loss=self.function.apply(*positional(self.function, {
            "student_input": hidden, "student_weight": weight, "teacher_input": teacher.hidden,
            "teacher_weight": teacher.weight, "jsd_beta": TEACHER_SHARES[case.loss], "jsd_impl": self.kernels})))


class LigerJsdCute(LigerJsd):
    name = "liger-jsd-cute"
    title = "LigerFusedLinearJSDFunction, CuTe"
    needs = CUTE
    kernels = "nvidia-cutedsl"
