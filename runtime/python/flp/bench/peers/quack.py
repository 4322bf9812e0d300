"""quack (Tri Dao), CuTe kernels: a cross entropy over materialised scores, and two chunked ones of the mean loss.

The chunked ones compute the gradients in the forward pass, so they take no other upstream gradient than a scalar. One
keeps scaled exponentials of a chunk, on Hopper alone; it is what the library chooses where it can. The other keeps
16-bit scores and their gradients; its products are not tuned here, which alone would take minutes.
"""
from .pins import CUTE
from .seam import Peer, Result


class QuackNone(Peer):
    name = "quack"
    title = "quack.linear_cross_entropy.linear_cross_entropy_func(reduction='none')"
    distribution = "quack-kernels"
    needs = (*CUTE, "torch-c-dlpack-ext", "einops")
    note = "keeps the (N,V) scores in memory"
    bias = True
    module, function_name = "quack.linear_cross_entropy", "linear_cross_entropy_func"

    def run(self, hidden, weight, bias, target, case):
        return Result(-self.function(hidden, weight, bias, target, reduction="none"))


class QuackMean(QuackNone):
    name = "quack-mean"
    title = "quack.linear_cross_entropy.chunked_linear_cross_entropy(use_scaled_exp=False, tuned=False)"
    note = "takes the gradient of the mean loss only"
    any_upstream = False
    bias = False
    function_name = "chunked_linear_cross_entropy"
    dtypes = ("bf16", "fp16")
    rows_multiple = vocab_multiple = depth_multiple = 8
    scaled = False

    def run(self, hidden, weight, bias, target, case):
        return Result(loss=self.function(hidden, weight, target, reduction="mean", tuned=False,
                                         use_scaled_exp=self.scaled))


class QuackScaled(QuackMean):
    name = "quack-scaled"
    title = "quack.linear_cross_entropy.chunked_linear_cross_entropy(use_scaled_exp=True)"
    dtypes = ("bf16",)
    rows_multiple = 1  # it pads them
    vocab_multiple = 128
    scaled = True
