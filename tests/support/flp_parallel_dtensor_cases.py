"""What each rank does in the DTensor and FSDP2 tests of test_flp_parallel.py; needs torch 2.6."""
import torch
import torch.distributed as dist

import flp
from flp_parallel_cases import traffic, upstream
from flp_reference import problem


def parameter_of(tensor, mesh, placements):
    """The tensor, the same on every rank, as a DTensor parameter of these placements: "0" Shard(0), "r" Replicate."""
    from torch.distributed.tensor import DTensor, Replicate, Shard
    kinds = [Shard(0) if placement == "0" else Replicate() for placement in placements]
    whole = DTensor.from_local(tensor, mesh, [Replicate()] * len(kinds))
    return torch.nn.Parameter(whole.redistribute(mesh, kinds))


def dtensor_head(rank, group, placements, shape, axis=0, made=None):
    """A head of these placements over a mesh -> outputs, whole gradients, what forward sent; or the refusal."""
    from torch.distributed.device_mesh import init_device_mesh
    mesh = init_device_mesh("cpu", shape)
    hidden, weight, target, bias = problem(**(made or {}))
    hidden.requires_grad_()
    weight, bias = (parameter_of(tensor, mesh, placements) for tensor in (weight, bias))
    try:
        with traffic() as sent:
            results = flp.parallel.linear_logprob(hidden, weight, target, bias, group=mesh.get_group(axis),
                                                  entropy=True)
    except ValueError as error:
        dist.barrier()
        return str(error)
    g, e = upstream(target.shape[0])
    ((results[0] * g).sum() + (results[1] * e).sum()).backward()
    return {"logprob": results[0].detach(), "entropy": results[1].detach(), "sent": sent,
            "grads": [hidden.grad, weight.grad.full_tensor(), bias.grad.full_tensor()]}


class Head(torch.nn.Linear):
    """A head whose forward pass gives log-probabilities, so that FSDP gathers its weight around both passes."""

    def forward(self, hidden, target, group):
        return flp.parallel.linear_logprob(hidden, self.weight, target, self.bias, group=group)


def fsdp(rank, group, made, reshard, distributed):
    """A head sharded over 2 ranks, plain or distributed (DTensor), that FSDP2 shards over 2 others -> refusal,
    unsharded logprob, logprob, gradient of the plain shard or of the whole"""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    hidden, weight, target, bias = problem(**made)
    part = slice(0, 166) if rank % 2 == 0 else slice(166, 331)
    head = Head(64, weight[part].shape[0])
    if distributed:
        head.weight, head.bias = (parameter_of(tensor, mesh["tp"], "0") for tensor in (weight, bias))
    else:
        head.weight, head.bias = (torch.nn.Parameter(tensor[part].clone()) for tensor in (weight, bias))
    fully_shard(head, mesh=mesh["dp"], reshard_after_forward=reshard)
    refused = ""
    try:
        flp.parallel.linear_logprob(hidden, head.weight, target, group=mesh["tp"])
    except ValueError as error:
        refused = str(error)
    head.unshard()
    with torch.no_grad():
        opened = flp.parallel.linear_logprob(hidden, head.weight, target, head.bias, group=mesh["tp"])
    head.reshard()
    logprob = head(hidden, target, mesh["tp"])
    (logprob * upstream(target.shape[0])[0]).sum().backward()
    return refused, opened, logprob.detach(), head.weight.grad.full_tensor()
