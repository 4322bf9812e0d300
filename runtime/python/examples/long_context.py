#!/usr/bin/env python3
"""One training step of a policy over a long context, through flp within a budget and as trainers write it.

    python3 runtime/python/examples/long_context.py              65536 tokens, a head of 248320 x 2048, bf16: a GPU
    python3 runtime/python/examples/long_context.py --tiny       256 tokens, 1000 x 64: seconds without a GPU

--budget is the bytes of each pass of flp, as 4M or 1G. The model is a small trunk of plain torch. Every way computes
log-probabilities of the same tokens and takes the same clipped policy loss of them; what a way asks for and does not
get is in its row. Two parts are measured, each after one call that is not: `loss` is the head and the loss alone,
forward and backward from given hidden states to their gradient and the head's; `step` is the whole model with its
optimiser. Peaks are above what is held between steps (parameters and the optimiser's state). Errors are the greatest of
256 tokens against fp64 of the same hidden states, in nats.
"""
import gc
import math
import re
import sys

import _tiny
import torch
import torch.nn.functional as F
from flp.bench import clock, memory, options, record, table
from flp.bench.peers.naive import logprob_of as selected

import flp

SAMPLE = 256
UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def fused(hidden, weight, target, budget):
    """flp: the scores never exist, but for what the budget holds."""
    return flp.linear_logprob(hidden, weight, target, entropy=True, budget=budget)


WAYS = {
    "flp": fused,
    "naive, fp32": lambda h, w, y, _: selected(F.linear(h, w).float(), y, True),
    "naive, fp32, no entropy": lambda h, w, y, _: selected(F.linear(h, w).float(), y, False),
    "naive, no cast, no entropy": lambda h, w, y, _: selected(F.linear(h, w), y, False),
}
COLUMNS = ("part", "way", "ms", "peak", "loss", "error", "why not")


class Task:
    """A model, tokens that it is said to have chosen, and their advantages."""

    def __init__(self, arguments):
        device = arguments.device
        torch.manual_seed(arguments.seed)
        self.dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        self.budget = arguments.budget
        self.model = _tiny.TinyLM(arguments.vocab, arguments.hidden, arguments.layers, math.gcd(arguments.hidden, 16),
                                  device=device, dtype=self.dtype)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-6)
        tokens = torch.randint(arguments.vocab, (1, arguments.tokens + 1), device=device)
        self.inputs, self.targets = tokens[:, :-1], tokens[:, 1:]
        self.advantage = torch.randn(1, arguments.tokens, device=device)
        with torch.no_grad():
            self.hidden = self.model(self.inputs)
            self.old = fused(self.hidden, self.model.head.weight, self.targets, self.budget)[0]
        sample = torch.randperm(arguments.tokens, device=device)[:SAMPLE]
        self.sample = sample
        self.exact = selected(self.hidden[0, sample].double() @ self.model.head.weight.detach().double().t(),
                              self.targets[0, sample], False)[0]

    def loss_of(self, way, hidden):
        """-> the policy loss, and the log-probabilities (1, T) that it was taken of"""
        logprob, entropy = WAYS[way](hidden, self.model.head.weight, self.targets, self.budget)
        loss, _ = flp.losses.policy_loss("grpo", logprob, self.advantage, old_logprob=self.old, entropy=entropy,
                                         entropy_weight=0.0 if entropy is None else 1e-3)
        return loss, logprob.detach()

    def loss(self, way):
        """Head and loss alone, forward and backward -> {"loss", "logprob_error"}"""
        hidden = self.hidden.detach().requires_grad_()
        loss, logprob = self.loss_of(way, hidden)
        torch.autograd.grad(loss, [hidden, self.model.head.weight])
        return {"loss": loss.detach(), "logprob_error": (logprob[0, self.sample].double() - self.exact).abs().max()}

    def step(self, way):
        """One step of the optimiser over the whole model -> {"loss"}"""
        try:
            loss, _ = self.loss_of(way, self.model(self.inputs))
            loss.backward()
            self.optimizer.step()
        finally:
            self.optimizer.zero_grad(set_to_none=True)
        return {"loss": loss.detach()}

    def workspace(self):
        """Bytes that flp's passes take beside their results: {"workspace_forward_bytes", "workspace_backward_bytes"}"""
        plan = flp.explain(self.hidden.detach().requires_grad_(), self.model.head.weight, self.targets, entropy=True,
                           budget=self.budget)
        return {"workspace_forward_bytes": plan.forward["bytes"], "workspace_backward_bytes": plan.backward["bytes"],
                "plan": plan.text}


def requested(message):
    """Bytes requested according to an error of the allocator, as exact as the text; None if it names none."""
    found = re.search(r"Tried to allocate ([\d.]+) (bytes|[KMG]iB)", message)
    return int(float(found.group(1)) * UNITS[found.group(2)]) if found else None


def measure(call, device):
    """-> the figures of a call, or why there are none, with the bytes that were asked for in vain"""
    timer = clock.CudaClock() if device.type == "cuda" else clock.HostClock()
    try:
        call()
        figures, peak = memory.peak_of(call, device)
        return {"ms": timer.burst(call, 1), "peak_bytes_above_held": peak,
                **{name: value.item() for name, value in figures.items()}}
    except torch.cuda.OutOfMemoryError as error:
        reason = " ".join(str(error).split())
    gc.collect()
    torch.cuda.empty_cache()
    return {"ms": None, "reason": reason, "requested_bytes": requested(reason)}


def rows_of(task, device, say):
    """Losses first, while the weights are those that the errors are against."""
    rows = []
    for part, call in (("loss", task.loss), ("step", task.step)):
        for way in WAYS:
            say("measuring %s, %s" % (part, way))
            if device.type == "cuda":
                torch.cuda.empty_cache()
            rows.append({"part": part, "way": way, **measure(lambda: call(way), device)})
    return rows


def cells(row):
    reason = row.get("reason") or ""
    return (row["part"], row["way"], table.number_text("%.1f", row["ms"]),
            table.bytes_text(row.get("peak_bytes_above_held")), table.number_text("%.5f", row.get("loss")),
            table.number_text("%.1e", row.get("logprob_error")), reason if len(reason) < 70 else reason[:67] + "...")


def faults_of(rows, workspace, budget):
    """What keeps this from showing what it should: sentences."""
    faults = ["flp, %s: %s" % (row["part"], row["reason"]) for row in rows if row["way"] == "flp" and row["ms"] is None]
    faults += ["%s: %d, beyond the budget of %d" % (name, workspace[name], budget)
               for name in ("workspace_forward_bytes", "workspace_backward_bytes") if workspace[name] > budget]
    return faults


def run(arguments, say):
    """-> the record: sizes, workspace, rows, and their faults"""
    device = arguments.device
    task = Task(arguments)
    workspace = task.workspace()
    rows = rows_of(task, device, say)
    faults = faults_of(rows, workspace, arguments.budget)
    return {**record.head(_tiny.command_line(arguments.json), device),
            "gpu_memory_bytes": torch.cuda.mem_get_info(device)[1] if device.type == "cuda" else None,
            "torch": torch.__version__, "libflp": flp.version(), "dtype": str(task.dtype).split(".")[-1],
            "tokens": arguments.tokens, "vocab": arguments.vocab, "hidden": arguments.hidden,
            "layers": arguments.layers, "budget_bytes": arguments.budget, **workspace, "failed": len(faults),
            "faults": faults, "rows": rows}


def parser():
    given = _tiny.parser(__doc__)
    kinds = {"tokens": options.integer(1), "vocab": options.integer(2), "hidden": options.depth, "budget": options.size}
    _tiny.add_sizes(given, kinds, tokens=(65536, 256), vocab=(248320, 1000), hidden=(2048, 64),
                    budget=(1 << 30, 4 << 20))
    given.add_argument("--layers", type=options.integer(1), default=2, help="of the trunk, default %(default)s")
    return given


def parse(words=None):
    return _tiny.with_sizes(parser().parse_args(words))


def main():
    arguments = parse()
    done = run(arguments, _tiny.say)
    print("\n".join(table.lines_of([COLUMNS, *map(cells, done["rows"])])))
    print("flp's workspace: %s forward, %s backward, of a budget of %s" % tuple(map(table.bytes_text, (
        done["workspace_forward_bytes"], done["workspace_backward_bytes"], done["budget_bytes"]))))
    for fault in done["faults"]:
        print("fault: " + fault, file=sys.stderr)
    if arguments.json:
        record.write(done, arguments.json)
    return 1 if done["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
