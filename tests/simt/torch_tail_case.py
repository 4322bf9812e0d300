"""tail= of flp.linear_logprob, flp.policy_loss, shards by hand and flp.parallel's calls, on the stand-in for libcuda
that runs kernels on the CPU: prints errors against float64, and reports beside what they are of, as JSON. As
torch_case.py, run by test_torch.py; with the dtype of heads, or `steps and shards`."""
import json
import sys

import torch

from torch_case import flp, pretend, relative
from flp._library import _c
from flp._passes import _run
from flp.parallel import _call
from torch_direction_case import Others, call_of

B, T, D, V = 2, 24, 40, 1100
CUTS = 0, 500, 1100  # two shards, as torch_direction_case.py has them
TAIL = 2.0**-9
FLAT = 3  # rows whose mass is everywhere
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


class Batch:
    """Rows of a trained model: most of the mass is on a few columns, but for FLAT rows; and an upstream gradient a row.
    sure: the share of rows whose target has most of the mass; of others another column has as much"""

    def __init__(self, dtype=torch.bfloat16, rows=B * T, seed=3, bias=False, sharp=18, sure=0.5):
        generator = torch.Generator().manual_seed(seed)
        weight = 0.3 * torch.randn(V, D, generator=generator)
        self.target = torch.randint(V, (rows,), generator=generator)
        likely = torch.where(torch.rand(rows, generator=generator) < sure, self.target,
                             torch.randint(V, (rows,), generator=generator))
        sharp = torch.linspace(sharp, 28, rows)[:, None] / (0.09 * D)
        hidden = sharp * (weight[likely] + 0.9 * weight[self.target]) / 1.9
        hidden[rows // 2:rows // 2 + min(FLAT, rows - 1)] *= 0.1
        hidden += 0.05 * torch.randn(rows, D, generator=generator)
        self.hidden, self.weight = (tensor.to(dtype).requires_grad_() for tensor in (hidden, weight))
        self.bias = torch.zeros(V, dtype=dtype, requires_grad=True) if bias else None
        self.upstream, self.of_entropy = torch.randn(rows, generator=generator), torch.rand(rows, generator=generator)
        self.advantage = torch.tensor([1.0, -0.5])

    @property
    def leaves(self):
        return [leaf for leaf in (self.hidden, self.weight, self.bias) if leaf is not None]

    def exact(self, entropy=True):
        """Gradients in float64, and those of the scores."""
        leaves = [leaf.detach().double().requires_grad_() for leaf in self.leaves]
        scores = torch.nn.functional.linear(*leaves)
        logp = torch.log_softmax(scores, -1)
        loss = (logp.gather(-1, self.target[:, None])[:, 0] * self.upstream).sum()
        if entropy:
            loss = loss - ((logp.exp() * logp).sum(-1) * self.of_entropy).sum()
        *gradients, dz = torch.autograd.grad(loss, [*leaves, scores])
        return gradients, dz

    def run(self, report=None, entropy=True, **options):
        """-> results, and the gradients of two backward passes"""
        results = flp.linear_logprob(self.hidden, self.weight, self.target, self.bias, entropy=entropy,
                                     tail_report=report, **options)
        results = results if entropy else (results,)
        loss = (results[0] * self.upstream).sum()
        if entropy:
            loss = loss + (results[1] * self.of_entropy).sum()
        return results, [torch.autograd.grad(loss, self.leaves, retain_graph=True) for _ in range(2)]


def marked():
    return torch.full((4,), 7.0)


def whole(dtype, entropy, bias):
    """One head, exact and with a tail: bits of values, errors, the report beside Σ|dz| in float64."""
    batch, report, small = Batch(dtype, bias=bias), marked(), marked()
    gradients, dz = batch.exact(entropy)
    plain, (of_exact, _) = batch.run(entropy=entropy, save=False)
    values, (first, second) = batch.run(report, entropy, tail=TAIL)
    _, (within, _) = batch.run(small, entropy, tail=TAIL, budget=1 << 18)
    info = flp.explain(*batch.leaves[:2], batch.target, batch.bias, entropy=entropy, tail=TAIL)
    return {"modes": [info.forward["mode"], info.backward["mode"]], "products": info.forward["products"],
            "same_bits": all(map(torch.equal, plain, values)), "again": all(map(torch.equal, first, second)),
            "error": relative(first, gradients), "of_exact": relative(of_exact, gradients), "report": report.tolist(),
            "sum": dz.abs().sum().item(), "without_room": [small.tolist(), all(map(torch.equal, within, of_exact))]}


def one_row(seed):
    """The gradient of a bias is dz itself: what is 0 there was left out."""
    batch, report = Batch(torch.float32, rows=1, seed=seed, bias=True, sharp=60, sure=0), marked()
    _, dz = batch.exact()
    _, ((_, _, grad_bias), _) = batch.run(report, tail=TAIL)
    left = dz[0].abs()[grad_bias == 0].sum().item()
    kept = (grad_bias.double() - dz[0]).abs()[grad_bias != 0].max().item()
    return {"left": left, "sum": dz.abs().sum().item(), "kept_off": kept, "report": report.tolist(),
            "columns": int((grad_bias != 0).sum())}


def stepped(dtype):
    """flp.policy_loss by its step, exact and with a tail."""
    batch, report, found = Batch(dtype), marked(), {}
    lead = batch.target.view(B, T)
    wide = [leaf.detach().double().requires_grad_() for leaf in batch.leaves]
    logp = torch.log_softmax(wide[0] @ wide[1].t(), -1)
    logprob = logp.gather(-1, batch.target[:, None])[:, 0].view(B, T)
    old = (logprob.detach() + 0.1 * batch.upstream.view(B, T)).float()
    entropies = -(logp.exp() * logp).sum(-1).view(B, T)
    options = {"old_logprob": old, "entropy_weight": 0.01}
    want, _ = flp.losses.policy_loss("grpo", logprob, batch.advantage, entropy=entropies, **options)
    wanted = torch.autograd.grad(want, wide)
    for name, given in (("of_exact", {}), ("error", {"tail": TAIL, "tail_report": report})):
        loss, _ = flp.policy_loss("grpo", batch.hidden.view(B, T, D), batch.weight, lead, batch.advantage, **options,
                                  **given)
        found[name] = relative(torch.autograd.grad(loss, batch.leaves), wanted)
        found["loss " + name] = loss.item()
    info = flp.explain(batch.hidden, batch.weight, batch.target, entropy=True, loss="grpo+entropy", tail=TAIL)
    return {**found, "mode": info.step["mode"], "report": report.tolist(), "want": want.item()}


def by_hand():
    """Two shards: the bound of each, their sum beside one head."""
    batch, places = Batch(), list(zip(CUTS, CUTS[1:]))
    gradients, dz = batch.exact(entropy=False)
    hidden, weight = batch.hidden.detach(), batch.weight.detach()
    found = {}
    for name, tail in (("of_exact", None), ("error", TAIL)):
        parts = [flp.linear_logprob_partial(hidden, weight[begin:end], batch.target, vocab_offset=begin, vocab_total=V,
                                            tail=tail, needs=("hidden", "weight")) for begin, end in places]
        parts = parts if tail else [(part, None) for part in parts]
        logprob, _, stats = flp.combine_partials([part for part, _ in parts], batch.target, vocab_total=V)
        reports, made = [marked() for _ in places], []
        for report, (begin, end), (_, saved) in zip(reports, places, parts):
            made.append(flp.linear_logprob_backward(
                hidden, weight[begin:end], batch.target, stats, batch.upstream, needs=("hidden", "weight"),
                vocab_offset=begin, vocab_total=V, tail=tail, saved=saved, tail_report=report))
        total = made[0][0].double() + made[1][0].double(), torch.cat([part[1] for part in made])
        found[name], found["bits " + name] = relative(total, gradients), logprob
        found["kept " + name] = [saved is not None for _, saved in parts]
    same = torch.equal(found.pop("bits of_exact"), found.pop("bits error"))
    sums = [dz[:, begin:end].abs().sum().item() for begin, end in places]
    return {**found, "same_bits": same, "reports": [report.tolist() for report in reports], "sums": sums}


def parallel(chunk, tail):
    """The same through the autograd function of flp.parallel, on a rank after the other."""
    batch = Batch()
    gradients, _ = batch.exact(entropy=False)
    hidden = batch.hidden.detach().requires_grad_()
    weights = [batch.weight.detach()[begin:end].requires_grad_() for begin, end in zip(CUTS, CUTS[1:])]
    calls = [call_of(shard, chunk, None) for shard in range(2)]
    partials = [_run.partial(_run.Operands(hidden.detach(), weight.detach(), None, batch.target), call.settings)
                for call, weight in zip(calls, weights)]
    total, of_weights, reports, kept = 0, [], [], []
    for rank, (call, weight) in enumerate(zip(calls, weights)):
        call.group, call.settings.save = Others(rank, partials), False
        call.settings.tail, call.settings.tail_report = tail, marked()
        logprob = _call.ParallelLogprob.apply(hidden, weight, None, batch.target, *[None] * 6, call,
                                              _c.GRAD_HIDDEN | _c.GRAD_WEIGHT)
        kept.append(len(logprob.grad_fn.saved_tensors) - _call.SAVED)
        dh, dw = torch.autograd.grad(logprob, [hidden, weight], batch.upstream)
        total, of_weights = total + dh.double(), [*of_weights, dw]
        reports.append(call.settings.tail_report.tolist())
    return {"error": relative([total, torch.cat(of_weights)], gradients), "reports": reports, "kept": kept}


def heads(dtype, *kinds):
    """kinds: whether there is a gradient of the entropy, and a bias"""
    found = {"whole": {"%s %s" % kind: whole(DTYPES[dtype], *kind) for kind in kinds}}
    return found if dtype != "fp32" else {**found, "rows": [one_row(seed) for seed in range(6)]}


def steps_and_shards():
    return {"step": {name: stepped(DTYPES[name]) for name in ("bf16", "fp32")}, "by_hand": by_hand(),
            "parallel": {"%d %g" % (chunk, tail): parallel(chunk, tail) for chunk in (0, 20) for tail in (0.0, TAIL)}}


KINDS = {"bf16": ((True, False), (False, True)), "fp16": ((False, False),), "fp32": ((True, True),)}


def main(kind):
    pretend()
    with flp.phase("all"):
        print(json.dumps(heads(kind, *KINDS[kind]) if kind in KINDS else steps_and_shards()))


if __name__ == "__main__":
    main(sys.argv[1])
