"""The ranks that share one vocabulary, and the few collectives that they run.

Invariants: a group of one rank sends nothing; empty tensors are not sent, as every rank has the same number of rows;
nothing here waits for a device on the host, except lists().
"""
import torch
import torch.distributed as dist

from .._tensors import _check


class Group:
    """A process group with this process's place in it; handle None: this process alone."""

    def __init__(self, handle):
        self.handle = handle
        self.size = dist.get_world_size(handle) if handle is not None else 1
        self.rank = dist.get_rank(handle) if handle is not None else 0

    def maximum(self, tensor):
        """The maximum over the ranks, in place."""
        self._reduce(tensor, "MAX")

    def total(self, tensor):
        """The sum over the ranks, in place."""
        self._reduce(tensor, "SUM")

    def _reduce(self, tensor, kind):
        if self.size > 1 and tensor.numel():
            dist.all_reduce(tensor, op=getattr(dist.ReduceOp, kind), group=self.handle)

    def gather(self, tensor):
        """The tensors of all ranks, in rank order: (...) -> (R, ...)"""
        return self.gather_later(tensor)()

    def gather_later(self, tensor):
        """Starts a gather -> a function that gives its result."""
        tensor = tensor.contiguous()
        if self.size == 1 or not tensor.numel():
            return lambda: tensor.expand(self.size, *tensor.shape)
        out = tensor.new_empty((self.size, *tensor.shape))
        if self._is_nccl(tensor):
            work = dist.all_gather_into_tensor(out.flatten(0, 1), tensor, group=self.handle, async_op=True)
        else:
            work = dist.all_gather(list(out.unbind(0)), tensor, group=self.handle, async_op=True)

        def wait():
            work.wait()
            return out

        return wait

    def scatter_total(self, tensor):
        """The sum over the ranks of this rank's rows: (R·c, D) -> (c, D)"""
        if self.size == 1 or not tensor.numel():
            return tensor
        count = tensor.shape[0] // self.size
        if self._is_nccl(tensor):
            out = tensor.new_empty((count, *tensor.shape[1:]))
            dist.reduce_scatter_tensor(out, tensor, group=self.handle)
            return out
        # gloo has no reduce-scatter before torch 2.
        self.total(tensor)
        return tensor[self.rank * count:(self.rank + 1) * count]

    def lists(self, values, device):
        """The integers of all ranks, in rank order, as lists on the host; synchronises."""
        return self.gather(torch.tensor(values, dtype=torch.int64, device=device)).tolist()

    def _is_nccl(self, tensor):
        return tensor.is_cuda and "nccl" in str(dist.get_backend(self.handle))


def group_of(group):
    """The Group of a ProcessGroup, of a DeviceMesh of one dimension, or (None) of all processes."""
    if not dist.is_available() or not dist.is_initialized():
        _check.refuse(ValueError, "group", "%r while torch.distributed is not initialised" % (group,),
                      "a process group, after torch.distributed.init_process_group; flp.linear_logprob needs none")
    if group is None:
        return Group(dist.group.WORLD)
    if hasattr(group, "get_group") and getattr(group, "ndim", 1) != 1:
        _check.refuse(ValueError, "group", "a DeviceMesh of %d dimensions" % group.ndim, "one of its dimensions")
    handle = group.get_group() if hasattr(group, "get_group") else group
    if not isinstance(handle, dist.ProcessGroup) and handle is not dist.GroupMember.NON_GROUP_MEMBER:
        _check.refuse_type("group", group, "None, a ProcessGroup or a DeviceMesh of one dimension")
    if dist.get_rank(handle) < 0:
        _check.refuse(ValueError, "group", "one that this process is not in", "a group of this process")
    return Group(handle)
