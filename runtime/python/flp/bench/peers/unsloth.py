"""unsloth_zoo: fused linear log-probabilities, cross entropy and Jensen-Shannon divergence.

With a frozen head the log-probabilities' forward pass makes d logprob / d hidden of each row beside them, so that any
upstream gradient costs two products; else its backward pass computes the scores anew. unsloth_zoo itself patches half
of the training stack when it is imported, so only its module of losses is loaded.
"""
import torch

from ..cases import TEACHER_SHARES
from .seam import Peer, Result


class Unsloth(Peer):
    name = "unsloth"
    title = "unsloth_zoo fused_linear_logprobs"
    distribution = "unsloth-zoo"
    needs_cuda = False
    entropy = bias = softcap = True
    module, function_name = "unsloth_zoo.fused_losses.fused_linear", "fused_linear_logprobs"
    packages = ("unsloth_zoo", "unsloth_zoo.fused_losses")

    def run(self, hidden, weight, bias, target, case):
        results = self.function(
            hidden, weight, target, bias=bias, logit_softcapping=case.softcap or 0.0,
            return_entropy=case.entropy != "none", entropy_requires_grad=case.entropy == "backward")
        return Result(*results) if case.entropy != "none" else Result(results)


class UnslothMean(Unsloth):
    name = "unsloth-mean"
    title = "unsloth_zoo fused_linear_cross_entropy"
    note = "takes the gradient of the mean loss only"
    any_upstream = entropy = False
    function_name = "fused_linear_cross_entropy"

    def run(self, hidden, weight, bias, target, case):
        return Result(loss=self.function(
            hidden, weight, bias, target, divisor=torch.tensor(float(case.n), device=hidden.device),
            logit_softcapping=case.softcap or 0.0))


class UnslothJsd(Unsloth):
    name = "unsloth-jsd"
    title = "unsloth_zoo fused_linear_jsd"
    note = "takes the gradient of the mean alone"
    divergences = tuple(TEACHER_SHARES)
    function_name = "fused_linear_jsd"

    def run(self, hidden, weight, teacher, case):
        return Result(loss=self.function(hidden, weight, teacher.hidden, teacher.weight,
                                         beta=TEACHER_SHARES[case.loss]))
