"""Megatron-Core (NVIDIA): its fused linear cross entropy, whose kernels for Hopper are CuTe.

No release has these kernels: they are in pull request 3345 of NVIDIA/Megatron-LM. So the version is what a checkout on
PYTHONPATH says of itself, and only the module is loaded, not the framework around it.
"""
import importlib

import torch

from .seam import Peer, Result

KERNELS = "megatron.core.fusions.linear_cross_entropy.hopper.entry"


class Megatron(Peer):
    name = "megatron"
    title = "megatron.core.fusions.fused_linear_cross_entropy.linear_cross_entropy(reduction='none')"
    distribution = "megatron-core"
    install = "put a checkout of NVIDIA/Megatron-LM with pull request 3345 on PYTHONPATH; no release has its kernels"
    note = "makes the weight's gradient for a frozen head, too"
    dtypes = ("bf16", "fp16")
    depth_multiple = 64

    module, function_name = "megatron.core.fusions.fused_linear_cross_entropy", "linear_cross_entropy"
    packages = ("megatron", "megatron.core", "megatron.core.fusions")

    def load(self):
        version = super().load()
        if torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9:
            importlib.import_module("cutlass")  # without it the next import goes on, and its kernels are not there
            importlib.import_module(KERNELS)
        return version

    def run(self, hidden, weight, bias, target, case):
        # process group, reduction
        return Result(-self.function(hidden, weight, target, None, "none"))
