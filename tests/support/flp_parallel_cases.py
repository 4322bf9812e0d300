"""What each rank does in tests/trainers/test_flp_parallel.py; results are numbers and tensors that pickle."""
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


def head(rank, group, cuts, made, options, place=True, sequence=False, needs=("hidden", "weight", "bias"), entropy=True,
         engine="libflp", edit=None, accumulate=False, report=False, targets=None, dtypes=None):
    """Forward and backward of problem(**made) -> outputs, gradients, and what both passes sent. targets: (n,K) ids in the
    place of the problem's; dtypes: {operand: dtypes that it is rounded to in
    turn}, of all three"""
    _plans.clear()
    create, _plans._create = _plans._create, torch_form if engine == "torch form" else _plans._create
    hidden, weight, target, bias = problem(**made)
    if edit is not None:
        edit(hidden, weight, target)
    if dtypes is not None:
        hidden, weight, bias = [rounded(tensor, dtypes[name])
                                for name, tensor in (("hidden", hidden), ("weight", weight), ("bias", bias))]
    target = target if targets is None else targets
    hidden = mine(hidden, rank, group) if sequence else hidden
    weight, bias = shard(weight, rank, cuts), shard(bias, rank, cuts)
    for name, tensor in (("hidden", hidden), ("weight", weight), ("bias", bias)):
        if tensor is not None:
            tensor.requires_grad_(name in needs)
    buffer = torch.ones(weight.shape) if accumulate else None
    options = dict(options, group=group, entropy=entropy, grad_weight_accumulate=buffer)
    if report:
        options["tail_report"] = torch.full((4,), 7.0)
    if place:
        options.update(place_of(rank, cuts))
    if sequence:
        options["sequence_parallel"] = sequence
    try:
        with traffic() as forward:
            results = flp.parallel.linear_logprob(hidden, weight, target, bias, **options)
        logprob, entropies = results if entropy else (results, None)
        g, e = upstream(target.shape[0])
        g = g if targets is None else g[:, None]
        loss = (logprob * g).sum() + ((entropies * e).sum() if entropy else 0)
        with traffic() as backward:
            if needs:
                loss.backward()
    finally:
        _plans._create = create
    grads = [None if tensor is None else tensor.grad for tensor in (hidden, weight, bias)]
    detached = [None if tensor is None else tensor.detach() for tensor in (logprob, entropies)]
    return {"logprob": detached[0], "entropy": detached[1], "grads": grads, "buffer": buffer, "forward": forward,
            "backward": backward, "report": options.get("tail_report")}


def best(rank, group, cuts, made, options, sequence=False, engine="libflp", edit=None):
    """The best tokens, ranks and log-probabilities of problem(**made) -> logprob, Top, rank, gradient of hidden"""
    _plans.clear()
    create, _plans._create = _plans._create, torch_form if engine == "torch form" else _plans._create
    hidden, weight, target, bias = problem(**made)
    if edit is not None:
        edit(hidden, weight, target)
    hidden = (mine(hidden, rank, group) if sequence else hidden).requires_grad_()
    options = dict(options, group=group, sequence_parallel=sequence, **place_of(rank, cuts))
    try:
        *values, top, above = flp.parallel.linear_logprob(hidden, shard(weight, rank, cuts), target,
                                                          shard(bias, rank, cuts), rank=True, **options)
        values[0].masked_fill(values[0].isnan(), 0).sum().backward()
    finally:
        _plans._create = create
    return values[0].detach(), top, above, hidden.grad


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


def adapted(made, rank, kind, adapter=None, off=None):
    """problem(**made) with an adapter of a rank -> {hidden, a, b, bias}, weight, target"""
    hidden, weight, target, bias = (tensor.detach() for tensor in problem(**made))
    torch.manual_seed(5)
    a, b = torch.randn(rank, hidden.shape[1]) * 0.3, torch.randn(len(weight), rank) * (0 if off == "b" else 0.3)
    tensors = {"hidden": hidden.to(kind), "a": a.to(adapter or kind), "b": b.to(adapter or kind), "bias": bias.to(kind)}
    return tensors, weight.to(kind), target


def lora_head(rank, group, cuts, made, rank_of, options, kind=torch.float32, adapter=None, off=None,
              needs=("hidden", "a", "b", "bias")):
    """Forward and backward with an adapter of rank rank_of -> outputs, gradients, and what backward sent"""
    tensors, weight, target = adapted(made, rank_of, kind, adapter, off)
    tensors.update({name: shard(tensors[name], rank, cuts) for name in ("b", "bias")})
    for name in needs:
        tensors[name].requires_grad_()
    logprob, entropy = flp.parallel.linear_logprob(
        tensors["hidden"], shard(weight, rank, cuts), target, tensors["bias"], group=group, entropy=True,
        lora=flp.Lora(tensors["a"], tensors["b"], 0.0 if off == "scale" else 1.5), **place_of(rank, cuts), **options)
    g, e = upstream(target.shape[0])
    with traffic() as backward:
        if needs:
            ((logprob * g).sum() + (entropy * e).sum()).backward()
    return {"logprob": logprob.detach(), "entropy": entropy.detach(), "backward": backward,
            "grads": {name: tensor.grad for name, tensor in tensors.items()}}
