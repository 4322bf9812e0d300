"""Memory of a call beside its results: the workspace of a pass, and what a forward pass keeps for the backward pass."""
import torch

from .._library import _c
from .._tensors._address import address
from . import _phase

_refused = set()  # sizes that were logged


def workspace_on(device, size):
    """A block of at least size bytes and its first address that is a multiple of 256."""
    if size == 0:
        return None, None
    block = torch.empty(size, dtype=torch.uint8, device=device)
    start = address(block)
    if start % _c.WORKSPACE_ALIGNMENT:
        block = torch.empty(size + _c.WORKSPACE_ALIGNMENT, dtype=torch.uint8, device=device)
        start = -(-address(block) // _c.WORKSPACE_ALIGNMENT) * _c.WORKSPACE_ALIGNMENT
    return block, start


def memory_on(device, size):
    """size > 0 bytes whose first address is a multiple of 256."""
    block, start = workspace_on(device, size)
    offset = start - address(block)
    return block[offset:offset + size]


class workspace:
    """The address of size bytes (None for 0) for the work that the body queues on the stream.

    Of an arena inside a phase that wants it, else of torch's allocator; both order reuse after the work on the stream.
    """

    __slots__ = ("size", "device", "ordinal", "stream", "block", "lent")

    def __init__(self, size, device, ordinal, stream):
        self.size, self.device, self.ordinal, self.stream = size, device, ordinal, stream

    def __enter__(self):
        arena = _phase.arena_for(self.ordinal) if self.size else None
        self.lent = None if arena is None else arena.lend(self.size, self.stream)
        if self.lent is not None:
            return self.lent.__enter__()
        self.block, start = workspace_on(self.device, self.size)
        return start

    def __exit__(self, *error):
        if self.lent is not None:
            self.lent.__exit__(*error)
        if error[0] is None:
            _phase.notify("call", self.ordinal)


def to_keep(device, size, settings):
    """memory_on, or None where there is no such memory and the call may compute scores again; that is logged once."""
    try:
        return memory_on(device, size)
    except torch.cuda.OutOfMemoryError:
        if settings.save:
            raise
        if size not in _refused:
            _refused.add(size)
            _c.log(_c.LOG_WARNING, "%s has no %d bytes for what a forward pass keeps; its backward pass computes the "
                                   "scores again" % (device, size))
        return None
