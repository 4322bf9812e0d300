"""liger-cute-kernels (LinkedIn): liger-kernel's scaled cross entropy by kernels that are compiled ahead of time,
CUTLASS with NVSHMEM; here for a vocab that is on one GPU.

It is meant for several: so a process group and an NVSHMEM job of this process alone are made. Where its library cannot
be used liger-kernel takes another way in silence; load() is here to fail instead.
"""
import ctypes
import glob
import importlib
import importlib.util
import os

import torch

from .seam import Peer, Result

# One GPU: nothing to reach over a network, nothing to multicast.
ENVIRONMENT = {"NVSHMEM_REMOTE_TRANSPORT": "none", "NVSHMEM_DISABLE_NVLS": "1", "GLOO_SOCKET_IFNAME": "lo"}
TOKENS_LEAST = 8192  # its capacity is set by the first call


def load_runtime():
    """CUDA 12's runtime, which its library names and a torch of CUDA 13 does not bring."""
    spec = importlib.util.find_spec("nvidia")
    for folder in spec.submodule_search_locations if spec else ():
        for path in glob.glob(os.path.join(folder, "cuda_runtime", "lib", "libcudart.so.12")):
            ctypes.CDLL(path)
            return


def own_group():
    """A process group of this process alone."""
    distributed = importlib.import_module("torch.distributed")
    if not distributed.is_initialized():
        distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    return distributed.group.WORLD


class Lck(Peer):
    name = "lck"
    title = "LigerFusedLinearScaledCrossEntropyTPFunction, native, of one GPU"
    distribution = "liger-cute-kernels"
    needs = ("liger-kernel", "apache-tvm-ffi", "nvidia-nvshmem-cu13", "nvidia-cuda-runtime-cu12")
    note = "its workspace, NVSHMEM's, is not in the memory column; makes the weight's gradient for a frozen head, too"
    entropy = True
    dtypes = ("bf16",)
    module = "liger_kernel.ops.fused_linear_scaled_cross_entropy"
    function_name = "LigerFusedLinearScaledCrossEntropyTPFunction"
    group = configured = None

    def load(self):
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        self.native = importlib.import_module("liger_cute_kernels")
        version = super().load()
        load_runtime()
        if torch.cuda.is_available():
            self.group = own_group()
            self.native.configure()
        return version

    def run(self, hidden, weight, bias, target, case):
        if self.configured is None:
            config = self.native.FusedLinearCrossEntropyConfig
            self.native.configure(flsce=config(max(case.n, TOKENS_LEAST), case.hidden, case.vocab))
            self.configured = case
        # temperature, ignore_index, tiles_per_reduce, return_entropy
        results = self.function.apply(hidden, weight, target, self.group, 1.0, -100, 1, case.entropy != "none")
        return Result(-results[0], results[1]) if case.entropy != "none" else Result(-results)
