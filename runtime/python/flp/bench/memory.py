"""Device memory of one call, as torch's allocator counts it. Ours takes its workspace there (_memory.workspace_on)."""
import gc

import torch

from .._tensors._address import address


def tensors_of(value):
    """Every tensor in nested tuples, lists and dictionaries."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (tuple, list)):
        return []
    return [tensor for item in value for tensor in tensors_of(item)]


def bytes_of(value):
    """Bytes of the distinct tensors in a result."""
    distinct = {address(tensor): tensor for tensor in tensors_of(value)}
    return sum(tensor.numel() * tensor.element_size() for tensor in distinct.values())


def peak_of(call, device):
    """Runs the call -> its result, and the peak above what was allocated before, results included; None on the CPU."""
    if device.type != "cuda":
        return call(), None
    gc.collect()
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    result = call()
    torch.cuda.synchronize(device)
    return result, torch.cuda.max_memory_allocated(device) - before
