#!/usr/bin/env python3
"""Measures the vocabulary projection of a language model: peak memory and time, whole scores beside flp.logprob_head.

    FLP_LIBRARY=build/release/lib/libflp.so PYTHONPATH=runtime/python \\
        python3 tests/gpu/head_memory.py --json autotune/bench/head_memory.json

The step alone: hidden states (B, T, D) are there, logprobs (B, T-1) come out; `training` adds the gradients of the
hidden states and of the head's weight. All ways get the same tensors:

  naive        the head's scores, cast to float32, log_softmax, gather: what transformers' own loss does
  naive bf16   the same without the cast
  flp          under flp.logprob_head
  eager        under flp.logprob_head(eager=True): plain torch, chunk by chunk, checkpointed

peak_bytes is the peak of torch's allocator above what was there before, results included (null without a GPU); ms the
median of bursts; error the largest difference of a logprob from float64, over the first rows. Exit status 1 if flp or
eager is off by more than the record's tolerances.
"""
import argparse
import collections
import contextlib
import sys

import torch
from torch import nn

import flp
from flp.bench import record
from flp.bench.step import measured

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
# Nats: of flp 30 times what a float32 accumulation over 4096 products leaves; torch rounds the scores to 16 bits first.
TOLERANCES = {"flp": 1e-3, "eager": 0.1}
CHECKED_ROWS = 64
ROUNDS = 5


Output = collections.namedtuple("Output", "logits")


class HeadAlone(nn.Module):
    """A language model whose trunk hands on what it is given, so that nothing but the head is measured."""

    def __init__(self, depth, vocab, **where):
        super().__init__()
        self.lm_head = nn.Linear(depth, vocab, bias=False, **where)
        nn.init.normal_(self.lm_head.weight, std=2 / depth**0.5)

    def get_output_embeddings(self):
        return self.lm_head

    def forward(self, inputs_embeds, labels=None):
        return Output(self.lm_head(inputs_embeds))


class Step:
    """One size: the model, its inputs, and the ways to score them."""

    def __init__(self, options, depth, device):
        dtype = DTYPES[options.dtype]
        generator = torch.Generator(device).manual_seed(depth)
        self.model = HeadAlone(depth, options.vocab, device=device, dtype=dtype)
        shape = (options.batch, options.length)
        self.hidden = torch.randn(*shape, depth, device=device, generator=generator).to(dtype).requires_grad_()
        self.ids = torch.randint(0, options.vocab, shape, device=device, generator=generator)
        self.upstream = torch.randn(shape[0], shape[1] - 1, device=device, generator=generator)
        self.budget = options.budget

    def naive(self, dtype=torch.float32):
        logits = self.model(inputs_embeds=self.hidden).logits[:, :-1].to(dtype)
        return torch.log_softmax(logits, -1).gather(-1, self.ids[:, 1:, None]).squeeze(-1)

    def scored(self):
        return self.model(inputs_embeds=self.hidden, labels=self.ids).logprobs

    def ways(self):
        """{name: (what surrounds the calls, the call)}"""
        return {"naive": (contextlib.nullcontext(), self.naive),
                "naive " + str(self.hidden.dtype)[6:]: (contextlib.nullcontext(), lambda: self.naive(self.hidden.dtype)),
                "flp": (flp.logprob_head(self.model, budget=self.budget), self.scored),
                "eager": (flp.logprob_head(self.model, budget=self.budget, eager=True), self.scored)}

    def forward(self, call):
        with torch.no_grad():
            return call()

    def training(self, call):
        logprob = call()
        inputs = (self.hidden, self.model.lm_head.weight)
        return logprob, torch.autograd.grad(logprob, inputs, self.upstream.to(logprob.dtype))

    def error_of(self, logprob):
        """Against float64, over the first rows of the first sequence."""
        rows = min(CHECKED_ROWS, logprob.shape[1])
        logits = self.hidden.detach()[0, :rows].double() @ self.model.lm_head.weight.detach().double().t()
        want = torch.log_softmax(logits, -1).gather(-1, self.ids[0, 1:rows + 1, None]).squeeze(-1)
        return float((logprob.detach()[0, :rows].double() - want).abs().max())


def measure(step, name, which, burst_ms):
    around, call = step.ways()[name]
    run = {"forward": step.forward, "training": step.training}[which]
    first = {"forward": lambda result: result, "training": lambda result: result[0]}[which]
    with around:
        row = measured(lambda: run(call), lambda result: step.error_of(first(result)), step.hidden.device, ROUNDS, burst_ms)
    return {"peer": name, "pass": which, "hidden": step.hidden.shape[-1], **row}


def line_of(row):
    if row["ms"] is None:
        return "%-6d %-9s %-14s %s" % (row["hidden"], row["pass"], row["peer"], row["reason"])
    peak = "-" if row["peak_bytes"] is None else "%.3f GB" % (row["peak_bytes"] / 1e9)
    return "%-6d %-9s %-14s %10.2f ms %12s  error %.1e" % (row["hidden"], row["pass"], row["peer"], row["ms"], peak,
                                                           row["error"])


def parser():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--batch", type=int, default=8)
    options.add_argument("--length", type=int, default=2048)
    options.add_argument("--vocab", type=int, default=151936)
    options.add_argument("--hidden", default="2048,4096", help="sizes, default %(default)s")
    options.add_argument("--dtype", choices=DTYPES, default="bf16")
    options.add_argument("--budget", type=int, help="bytes of a pass, default libflp's")
    options.add_argument("--burst-ms", type=float, default=500)
    options.add_argument("--device", default="cuda", help="cpu: times alone, for small sizes")
    options.add_argument("--json", required=True, help="file for the record, - for the output")
    return options


def main(arguments=None):
    arguments = sys.argv[1:] if arguments is None else arguments
    options = parser().parse_args(arguments)
    device = torch.device(options.device)
    rows = []
    for depth in [int(size) for size in options.hidden.split(",")]:
        step = Step(options, depth, device)
        for which in ("forward", "training"):
            for name in step.ways():
                rows.append(measure(step, name, which, options.burst_ms))
                print(line_of(rows[-1]), file=sys.stderr, flush=True)
    failed = sum(not row.get("error", 1) <= TOLERANCES[row["peer"]] for row in rows if row["peer"] in TOLERANCES)
    said = [word for word in arguments if word not in ("--json", options.json)]
    head = record.head(" ".join(["tests/gpu/head_memory.py", *said]), device)
    sizes = {name: getattr(options, name) for name in ("batch", "length", "vocab", "dtype", "budget")}
    record.write({**head, **sizes, "torch": torch.__version__, "tolerances": TOLERANCES, "failed": failed, "rows": rows},
                 options.json)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
