"""What each rank does in tests/trainers/test_flp_parallel.py; results are numbers and tensors that pickle."""
import contextlib
import dataclasses
import sys
from pathlib import Path

import torch
import torch.distributed as dist

import flp
from binding_fixtures import torch_form
from flp._library import _plans
from flp_reference import problem

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "gpu"))

from traffic import traffic  # noqa: E402


def shard(tensor, rank, cuts):
    """This rank's rows of cuts, a list of (rows, of which real), where padding is poison; None stays."""
    if tensor is None:
        return None
    rows, real = cuts[rank]
    first = sum(cut[1] for cut in cuts[:rank])
    part = torch.full((rows, *tensor.shape[1:]), float("nan"), dtype=tensor.dtype)
    part[:real] = tensor[first:first + real]
    return part


def place_of(rank, cuts):
    """Where that part stands in the vocabulary, as options of a call."""
    return {"vocab_valid": cuts[rank][1], "vocab_total": sum(real for _, real in cuts),
            "vocab_offset": sum(cut[1] for cut in cuts[:rank])}


def upstream(n):
    return torch.linspace(-1, 1, n), torch.linspace(0.1, 1, n)


def rounded(tensor, dtypes):
    """Rounded to each of some dtypes in turn."""
    for dtype in dtypes:
        tensor = tensor.to(dtype)
    return tensor


def mine(tensor, rank, group):
    """This rank's rows, of a sequence that is split over the group."""
    n = tensor.shape[0] // dist.get_world_size(group)
    return tensor[rank * n:(rank + 1) * n].clone()


def adapter(made, rank, dtype=None, off=None):
    """A and B of this rank for the head of problem(**made), and their scale. off: what makes them do nothing"""
    hidden, weight, *_ = problem(**made)
    torch.manual_seed(5)
    a, b = torch.randn(rank, hidden.shape[1]) * 0.3, torch.randn(len(weight), rank) * (0 if off == "b" else 0.3)
    return a.to(dtype or hidden.dtype), b.to(dtype or hidden.dtype), 0.0 if off == "scale" else 1.5


@contextlib.contextmanager
def made_by(engine):
    """Plans of libflp, or of the torch form."""
    _plans.clear()
    create, _plans._create = _plans._create, torch_form if engine == "torch form" else _plans._create
    try:
        yield
    finally:
        _plans._create = create


def head(rank, group, cuts, made, options, place=True, sequence=False, needs=("hidden", "weight", "bias"), entropy=True,
         engine="libflp", edit=None, accumulate=False, report=False, targets=None, dtypes=None, lora=None):
    """Forward and backward of problem(**made) -> outputs, gradients (of hidden, weight, bias, an adapter's a, b), and
    what both passes sent. targets: (n,K) ids in the place of the problem's; dtypes: {operand: dtypes that it is
    rounded to in turn}, of all three; lora: of adapter()"""
    hidden, weight, target, bias = problem(**made)
    if edit is not None:
        edit(hidden, weight, target)
    target = target if targets is None else targets
    hidden = mine(hidden, rank, group) if sequence else hidden
    leaves = {"hidden": hidden, "weight": shard(weight, rank, cuts), "bias": shard(bias, rank, cuts)}
    if dtypes is not None:
        leaves = {name: rounded(tensor, dtypes[name]) for name, tensor in leaves.items()}
    options = dict(options, group=group, entropy=entropy, sequence_parallel=sequence, grad_weight_accumulate=torch.ones(
        leaves["weight"].shape) if accumulate else None, **(place_of(rank, cuts) if place else {}))
    if lora is not None:
        a, b, scale = adapter(made, **lora)
        leaves.update(a=a, b=shard(b, rank, cuts))
        options["lora"] = flp.Lora(leaves["a"], leaves["b"], scale)
    if report:
        options["tail_report"] = torch.full((4,), 7.0)
    for name, tensor in leaves.items():
        if tensor is not None:
            tensor.requires_grad_(name in needs)
    with made_by(engine):
        with traffic() as forward:
            results = flp.parallel.linear_logprob(leaves["hidden"], leaves["weight"], target, leaves["bias"], **options)
        results = results if isinstance(results, tuple) else (results,)
        g, e = upstream(target.shape[0])
        loss = (results[0] * (g if targets is None else g[:, None])).sum() + ((results[1] * e).sum() if entropy else 0)
        with traffic() as backward:
            if needs:
                loss.backward()
    return {"logprob": results[0].detach(), "entropy": results[1].detach() if entropy else None, "forward": forward,
            "best": results[2 if entropy else 1:], "backward": backward,
            "grads": [None if tensor is None else tensor.grad for tensor in leaves.values()],
            "buffer": options["grad_weight_accumulate"], "report": options.get("tail_report")}


def row(rank, group, row, cuts, sequence, engine, **options):
    """A row of flp_cases.py whose vocabulary is divided -> its results as flp_cases.computed gives them, gradients of
    shards in their places"""
    from flp_calls import FUNCTIONS
    from flp_cases import computed
    call, exact, operands = FUNCTIONS[row.function]

    def of_shards(**given):
        first = place_of(rank, cuts)["vocab_offset"]
        for name, value in given.items():
            if name.endswith("_shard"):
                given[name] = padded(value, first, *cuts[rank])
            elif name.endswith("hidden") and sequence:
                given[name] = mine(value, rank, group)
            elif name == "lora":
                given[name] = dataclasses.replace(value, b=padded(value.b, first, *cuts[rank]))
            elif name == "grad_weight_accumulate":
                given[name] = value[first:first + cuts[rank][0]]
        return call(**{**given, **place_of(rank, cuts), "group": group, "sequence_parallel": sequence, **options})

    FUNCTIONS[row.function] = of_shards, exact, operands
    try:
        with made_by(engine):
            found, gradients, _ = computed(row, wide=False)
    finally:
        FUNCTIONS[row.function] = call, exact, operands
    return {name: (value.detach(), value.requires_grad) for name, value in found.items()}, gradients


def padded(values, first, rows, real):
    """A shard's, differentiable, whose rows behind the real ones are poison; None stays."""
    if values is None:
        return None
    own = values[first:first + real]
    return torch.cat([own, own.new_full((rows - real, *own.shape[1:]), float("nan"))]) if rows > real else own * 1


def twice(rank, group, cuts, made, options):
    """What a first and a second call with one weight send."""
    hidden, weight, target, _ = problem(**made)
    weight = shard(weight, rank, cuts)
    sent = []
    for _ in range(2):
        with traffic() as seen:
            logprob = flp.parallel.linear_logprob(hidden, weight, target, group=group, **options)
        sent.append(seen)
    return logprob, sent


def refusal(rank, group, cuts, made, options, spoiled=None):
    """The error of a call, the same group used after it. spoiled: the rank whose shard is of a wrong dtype"""
    hidden, weight, target, _ = problem(**made)
    weight = shard(weight, rank, cuts)
    try:
        flp.parallel.linear_logprob(hidden, weight.char() if rank == spoiled else weight, target,
                                    **{"group": group, **options})
    except (TypeError, ValueError) as error:
        dist.barrier(group)
        return type(error).__name__, str(error)
    return None


class Partitioned:
    """Stands in for deepspeed.zero.GatheredParameters: values are there inside the block only."""

    entered = 0

    class Status:
        def __init__(self, name):
            self.name = name

    def __init__(self, parameters):
        self.parameters = parameters

    @classmethod
    def part(cls, parameter):
        parameter.ds_id, parameter.whole = 0, parameter.data
        parameter.data, parameter.ds_status = torch.empty(0), cls.Status("NOT_AVAILABLE")

    def __enter__(self):
        Partitioned.entered += 1
        for parameter in self.parameters:
            parameter.data, parameter.ds_status = parameter.whole, self.Status("AVAILABLE")

    def __exit__(self, *_error):
        for parameter in self.parameters:
            self.part(parameter)


def zero3(rank, group, cuts, made):
    """A partitioned parameter: refused, then gathered by the hook -> message, logprob, its gradient, gathers"""
    hidden, weight, target, _ = problem(**made)
    weight = torch.nn.Parameter(shard(weight, rank, cuts))
    Partitioned.part(weight)
    message = ""
    try:
        flp.parallel.linear_logprob(hidden, weight, target, group=group)
    except ValueError as error:
        message = str(error)
    Partitioned.entered = 0
    logprob = flp.parallel.linear_logprob(hidden, weight, target, group=group, gather=Partitioned)
    assert weight.numel() == 0
    logprob.sum().backward()
    assert weight.numel() == 0
    return message, logprob.detach(), weight.grad, Partitioned.entered


def freed(rank, group, cuts, made):
    """The storage of the weight goes between the passes, as FSDP does it -> messages of both passes"""
    hidden, weight, target, _ = problem(**made)
    weight = shard(weight, rank, cuts).requires_grad_()
    logprob = flp.parallel.linear_logprob(hidden, weight, target, group=group)
    weight.data.storage().resize_(0)
    messages = []
    for run in (lambda: logprob.sum().backward(),
                lambda: flp.parallel.linear_logprob(hidden, weight, target, group=group)):
        try:
            run()
        except ValueError as error:
            messages.append(str(error))
    return messages


def second_derivative(rank, group, cuts, made):
    hidden, weight, target, _ = problem(**made)
    hidden.requires_grad_()
    logprob = flp.parallel.linear_logprob(hidden, shard(weight, rank, cuts), target, group=group)
    (grad,) = torch.autograd.grad(logprob.sum(), hidden, create_graph=True)
    try:
        grad.sum().backward()
    except RuntimeError as error:
        return str(error)
    return None


# ---- DTensor and FSDP2, of torch 2.6 ----

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
