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
import collections
import sys
from pathlib import Path

import torch
from torch import nn

import flp

sys.path.insert(0, str(Path(__file__).resolve().parent))
import ways  # noqa: E402

# Nats: of flp 30 times what a float32 accumulation over 4096 products leaves; torch rounds the scores to 16 bits first.
TOLERANCES = {"flp": 1e-3, "eager": 0.1}
SIZES = {"batch": (8, None), "length": (2048, None), "vocab": (151936, None),
         "hidden": ("2048,4096", "sizes, default %(default)s")}
KEPT = ("batch", "length", "vocab", "dtype", "budget")
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


class Step(ways.Step):
    """One size: the model, its inputs, and the ways to score them."""

    def __init__(self, options, depth):
        device, dtype = torch.device(options.device), ways.DTYPES[options.dtype]
        generator = torch.Generator(device).manual_seed(depth)
        self.model = HeadAlone(depth, options.vocab, device=device, dtype=dtype)
        self.weight, self.columns = self.model.lm_head.weight, {"hidden": depth}
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
        self.around = {name: flp.logprob_head(self.model, budget=self.budget, eager=name == "eager") for name in TOLERANCES}
        return {"naive": self.naive, "naive " + str(self.hidden.dtype)[6:]: lambda: self.naive(self.hidden.dtype),
                "flp": self.scored, "eager": self.scored}

    def checked(self, logprob):
        """The first rows of the first sequence."""
        rows = min(ways.CHECKED_ROWS, logprob.shape[1])
        return logprob[0, :rows], self.hidden[0, :rows], self.ids[0, 1:rows + 1]


def parser():
    options = ways.parser(__doc__, SIZES)
    options.add_argument("--budget", type=int, help="bytes of a pass, default libflp's")
    return options


def main(arguments):
    options = parser().parse_args(arguments)
    steps = (Step(options, int(depth)) for depth in options.hidden.split(","))
    return ways.run("head_memory.py", arguments, options, steps, KEPT, TOLERANCES, ROUNDS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
