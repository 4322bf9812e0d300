"""Tensors whose values are not those in their memory."""
import torch


def negative(tensor):
    """The same values, with torch's negative bit over memory that holds the others."""
    view = torch._neg_view(tensor.detach().neg())
    assert view.is_neg() and view.is_contiguous() and torch.equal(view, tensor)
    return view


class Elsewhere(torch.Tensor):
    """A subclass as quantisation and functional collectives make them: its values are those of another tensor."""

    @staticmethod
    def __new__(cls, inner):
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        plain = [value.inner if isinstance(value, cls) else value for value in args]
        return cls(function(*plain, **(kwargs or {})))


def freed(tensor):
    """A view of storage that is gone, as FSDP leaves one."""
    padded = torch.cat([tensor[:1], tensor])
    view = padded[1:]
    (padded.untyped_storage() if hasattr(padded, "untyped_storage") else padded.storage()).resize_(0)
    return view


def unmade(tensor):
    """Zeros, which take no memory."""
    return torch._efficientzerotensor(*tensor.shape, device=tensor.device, dtype=tensor.dtype)
