"""Addresses of torch's tensors: the one place that takes them, for all that libflp reads and writes.

Invariants: an address is handed out only where a tensor's values stand in memory as they are. Those of some tensors do
not: views with torch's negative or conjugate bit, zeros without memory, freed storages, subclasses, wrappers of
torch.func. What is read is settled, or refused by its field; what is written is refused, as the values of a copy would
be lost; address() stops what came another way. Nothing here reads a value, so nothing synchronises.
"""
import torch

from .. import errors
from . import _check

PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))
ACCEPTED = "a torch.Tensor whose values are in memory of its own"


def address(tensor):
    """The address of a tensor's values, None of None. Its bits were settled before. error: InternalError"""
    if tensor is None:
        return None
    if tensor.is_neg() or tensor.is_conj():
        raise errors.InternalError("a tensor with torch's negative or conjugate bit came to libflp unsettled")
    return tensor.data_ptr()


def range_of(tensor):
    """Addresses of the first byte and behind the last, whatever the bits; None where no values are in memory."""
    if tensor.layout is not torch.strided or not tensor.numel() or _fault_of(tensor):
        return None
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()


def is_lazy(tensor):
    """Whether the values are those in memory with another sign."""
    return tensor.is_neg() or tensor.is_conj()


def check_readable(field, tensor):
    """Refuses a tensor whose values are not in memory."""
    fault = _fault_of(tensor)
    if fault is not None:
        _check.refuse(TypeError, field, fault, ACCEPTED)


def check_writable(field, tensor):
    """Refuses a tensor that cannot be written where it stands."""
    check_readable(field, tensor)
    if is_lazy(tensor):
        _check.refuse(ValueError, field, "a view with torch's negative or conjugate bit",
                      "a tensor that is written as it stands in memory")


def settled(field, tensor):
    """The tensor as its values stand in memory, copied only where a bit says that they are other ones; None stays."""
    if tensor is None:
        return None
    check_readable(field, tensor)
    return tensor.resolve_conj().resolve_neg() if tensor.is_neg() or tensor.is_conj() else tensor


def dense(field, tensor):
    """settled, with elements side by side."""
    return None if tensor is None else settled(field, tensor).contiguous()


def _fault_of(tensor):
    kind = type(tensor)
    if kind not in PLAIN and kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        return "of type %s, which has its values elsewhere" % kind.__name__
    try:
        start = tensor.data_ptr()
    except RuntimeError:
        return "a wrapper of torch.func, which has its values elsewhere"
    if start and not tensor.storage_offset() or not is_freed(tensor):
        return None
    return "a tensor of zeros without memory" if tensor._is_zerotensor() else "a tensor whose storage was freed"


def is_wrapper(tensor):
    """Whether torch has no address of a tensor, such as one of vmap."""
    try:
        tensor.data_ptr()
    except RuntimeError:
        return True
    return False


def is_freed(tensor):
    """Whether a tensor with elements has no storage, as FSDP leaves parameters that it has sharded again."""
    return tensor.data_ptr() == tensor.storage_offset() * tensor.element_size() and tensor.numel() > 0
