"""verl (ByteDance): the Triton kernels of verl.utils.kernel.linear_cross_entropy, which always give the entropy too.

verl itself needs ray, tensordict, transformers and more to be imported; its kernels need torch and Triton. So only
their module and what it imports are loaded.
"""
from .seam import Peer, Result


class Verl(Peer):
    name = "verl"
    title = "verl.utils.kernel.linear_cross_entropy.linear_cross_entropy"
    distribution = "verl"
    note = "computes the entropy in every case"
    entropy = True
    dtypes = ("bf16", "fp16")
    depth_multiple = 128
    module, function_name = "verl.utils.kernel.linear_cross_entropy", "linear_cross_entropy"
    packages = ("verl", "verl.utils", "verl.utils.kernel", "verl.plugin")

    def run(self, hidden, weight, bias, target, case):
        # temperature, reduction, process group
        logprob, entropy = self.function(hidden, weight, target, 1.0, "none", None)
        return Result(logprob, entropy if case.entropy != "none" else None)
