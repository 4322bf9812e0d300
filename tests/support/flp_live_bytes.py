"""How large tensors get while something runs: the largest, those saved for backward, and the bytes alive at once."""
import contextlib

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten


class _Sizes(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.largest = 0

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        results = function(*arguments, **(keywords or {}))
        made = [value for value in tree_flatten(results)[0] if isinstance(value, torch.Tensor)]
        self.largest = max([self.largest, *(value.numel() * value.element_size() for value in made)])
        return results


@contextlib.contextmanager
def largest_tensor():
    """Yields a function -> bytes of the largest tensor that any operation made meanwhile, backward included."""
    with _Sizes() as sizes:
        yield lambda: sizes.largest


@contextlib.contextmanager
def saved_sizes():
    """Yields the list of bytes of tensors saved for backward."""
    sizes = []

    def pack(tensor):
        sizes.append(tensor.numel() * tensor.element_size())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield sizes


def live_bytes(step):
    """Runs a step on the CPU -> the most bytes that it had allocated at once."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns() if hasattr(event, "start_ns") else event.start_us())
    alive = most = 0
    for event in events:
        alive += event.nbytes()
        most = max(most, alive)
    return most
