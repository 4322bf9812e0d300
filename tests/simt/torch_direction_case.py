"""Direction mode through flp.linear_logprob and flp.parallel's calls, on the stand-in for libcuda that runs kernels on
the CPU: prints errors against float64 as JSON. As torch_case.py, run by test_torch.py."""
import json

import torch

from torch_case import Batch, D, V, flp, pretend, relative
from flp._library import _c
from flp._passes import _run
from flp._tensors import _check
from flp.parallel import _call, _group

CUTS = 0, 500, 1100  # two shards
CHUNK = 20           # rows of a chunk: two and a rest


def wanted(batch):
    """grad_hidden in float64 of a gradient of every row."""
    leaves, logprob, _ = batch.exact()
    return torch.autograd.grad((logprob * batch.old).sum(), leaves[:1])


def whole(batch):
    """One head, beside recompute mode: forward's bits, and two backward passes."""
    weight, made = batch.weight.detach(), {}
    for name, save in (("R", False), ("D", True)):
        *results, statistics = flp.linear_logprob(batch.hidden, weight, batch.target, entropy="detached", save=save,
                                                  statistics=True)
        loss = (results[0] * batch.old).sum()
        grads = [torch.autograd.grad(loss, batch.hidden, retain_graph=True)[0] for _ in range(2)]
        made[name] = (*results, *statistics), grads
        twice, = torch.autograd.grad(2 * loss, batch.hidden, retain_graph=True)
    info = flp.explain(batch.hidden, weight, batch.target, entropy="detached", save=True)
    return {"modes": [info.forward["mode"], info.backward["mode"]],
            "products": [info.forward["products"], info.backward["products"]],
            "same_bits": all(torch.equal(a, b) for a, b in zip(made["R"][0], made["D"][0])),
            "again": torch.equal(*made["D"][1]), "linear": torch.equal(twice, 2 * made["D"][1][0]), "error": relative(made["D"][1][:1], wanted(batch)),
            "of_R": relative(made["R"][1][:1], wanted(batch))}


class Others(_group.Group):
    """A rank whose gather finds the other ranks' partials; nothing is summed."""

    def __init__(self, rank, partials):
        super().__init__(None)
        self.place, self.partials = rank, partials

    def gather(self, tensor):
        return torch.stack([tensor if rank == self.place else other for rank, other in enumerate(self.partials)])


def call_of(shard, chunk, save):
    call = _call.Call()
    call.settings = settings = _check.Settings(1.0, None, 1.0, -100, None, False)
    settings.save, settings.wide_grads = save, _c.GRAD_HIDDEN
    settings.offset, settings.valid, settings.total = CUTS[shard], CUTS[shard + 1] - CUTS[shard], V
    call.merge, call.chunk, call.reduce_dtype, call.gather, call.empty = "gather", chunk, None, None, False
    return call


def sharded(batch, chunk, save):
    """The sum over two shards of their parts of grad_hidden, and whether forward made it: how many chunks were kept."""
    hidden, target = batch.hidden.detach().view(-1, D).requires_grad_(), batch.target.view(-1)
    weights = [batch.weight.detach()[begin:end] for begin, end in zip(CUTS, CUTS[1:])]
    calls = [call_of(shard, chunk, save) for shard in range(2)]
    partials = [_run.partial(_run.Operands(hidden.detach(), weight, None, target), call.settings)
                for call, weight in zip(calls, weights)]
    total, kept, logprobs = 0, [], []
    for rank, (call, weight) in enumerate(zip(calls, weights)):
        call.group = Others(rank, partials)
        logprob = _call.ParallelLogprob.apply(hidden, weight, None, target, *[None] * 6, call, _c.GRAD_HIDDEN)
        kept.append(len(logprob.grad_fn.saved_tensors) - _call.SAVED)
        upstream = batch.old.view(-1)
        first, second = (torch.autograd.grad(logprob, hidden, upstream, retain_graph=True)[0] for _ in range(2))
        assert torch.equal(first, second)
        total, logprobs = total + first.double(), [*logprobs, logprob]
    alone = flp.linear_logprob(batch.hidden.detach(), batch.weight.detach(), batch.target).view(-1)
    return {"kept": kept, "error": relative([total], [wanted(batch)[0].view(-1, D)]),
            "same_on_both": torch.equal(*logprobs), "off": (logprobs[0] - alone).abs().max().item()}


def main():
    pretend()
    with flp.phase("all"):
        batch = Batch()
        print(json.dumps({"whole": whole(batch), "shards": {
            "%d %s" % (chunk, save): sharded(batch, chunk, save)
            for chunk, save in ((0, None), (CHUNK, None), (CHUNK, True), (CHUNK, False))}}))


if __name__ == "__main__":
    main()
