"""quack (Tri Dao), CuTe kernels: a cross entropy over materialised scores, and a chunked one of the mean loss.

The chunked one computes the gradients in the forward pass, so it takes no other upstream gradient than a scalar.
"""
import importlib

from .seam import Peer, Result, version_of


class QuackNone(Peer):
    name = "quack"
    title = "quack.linear_cross_entropy.linear_cross_entropy_func(reduction='none')"
    distribution = "quack-kernels"
    install = "pip install quack-kernels"
    note = "keeps the (N,V) scores in memory"
    bias = True
    function_name = "linear_cross_entropy_func"

    def load(self):
        module = importlib.import_module("quack.linear_cross_entropy")
        self.function = getattr(module, self.function_name)
        return version_of(self.distribution)

    def run(self, hidden, weight, bias, target, case):
        return Result(-self.function(hidden, weight, bias, target, reduction="none"))


class QuackMean(QuackNone):
    name = "quack-mean"
    title = "quack.linear_cross_entropy.chunked_linear_cross_entropy(reduction='mean')"
    note = "takes the gradient of the mean loss only"
    any_upstream = False
    bias = False
    function_name = "chunked_linear_cross_entropy"
    dtypes = ("bf16", "fp16")
    depth_multiple = 8

    def supports(self, case, device):
        if case.n % 8 or case.vocab % 8:
            return "needs rows and vocab that are multiples of 8"
        return super().supports(case, device)

    def run(self, hidden, weight, bias, target, case):
        return Result(loss=self.function(hidden, weight, target, reduction="mean"))
