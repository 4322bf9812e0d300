#!/usr/bin/env python3
"""Measures a Megatron trainer's head where most tokens are prompt (slime#2253): peak memory and time of
log-probabilities and entropies of packed sequences, from all scores beside flp.adapters.megatron.output_processor.

    FLP_LIBRARY=build/release/lib/libflp.so PYTHONPATH=runtime/python \\
        python3 tests/gpu/response_rows.py --json autotune/bench/response_rows.json

One microbatch: hidden states (T, 1, D) are there, log-probabilities and entropies (1, T) come out, the entropies
without a gradient; `training` adds the gradients of the hidden states and of the head's weight. A third of each
sequence is response. All ways get the same tensors:

  scores         scores of all T tokens in the model's dtype, cast to float32, then log-probabilities in chunks of rows:
                 the way of slime and Miles, at its best (no temperature, which would copy the scores once more)
  scores, responses alone
                 the same over the rows of responses, which no trainer does yet
  slime          scores as above, then slime's own calculate_log_probs_and_entropy (where PYTHONPATH has slime)
  flp            the output processor, with the responses as loss_mask
  flp, all rows  the same without loss_mask

peak_bytes is the peak of torch's allocator above what was there before, results included (null without a GPU); ms the
median of bursts; error the largest difference of a log-probability from float64, over the first rows of a response. No
Megatron is needed: a stand-in has what the processor reads of an output layer. Exit status 1 if flp is off by more than
the record's tolerance.
"""
import importlib.util
import sys
from pathlib import Path

import torch
from torch import nn

import flp

sys.path.insert(0, str(Path(__file__).resolve().parent))
import ways  # noqa: E402

TOLERANCES = {"flp": 1e-3, "flp, all rows": 1e-3}  # nats; as head_memory.py
SIZES = {"tokens": (32768, None), "sequence": (4096, "tokens of each sequence, default %(default)s"),
         "share": (3, "one in so many tokens is response, default %(default)s"), "vocab": (248320, None),
         "hidden": (4096, None), "chunk": (1024, "rows at a time of scores, default %(default)s")}
ROUNDS = 3


class ColumnParallelLinear(nn.Module):
    """What flp reads of Megatron's layer of this name, on one rank."""

    bias, skip_bias_add, sequence_parallel, tp_group, config = None, False, False, None, None
    gradient_accumulation_fusion = False

    def __init__(self, depth, vocab, **where):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab, depth, **where))
        self.output_size = self.output_size_per_partition = vocab
        nn.init.normal_(self.weight, std=2 / depth**0.5)


class Step(ways.Step):
    """The tensors, and the ways to make log-probabilities and entropies (1, T) of them."""

    def __init__(self, options):
        device, dtype, tokens = torch.device(options.device), ways.DTYPES[options.dtype], options.tokens
        generator = torch.Generator(device).manual_seed(0)
        self.layer = ColumnParallelLinear(options.hidden, options.vocab, device=device, dtype=dtype)
        self.weight = self.layer.weight
        self.hidden = torch.randn(tokens, 1, options.hidden, device=device, generator=generator).to(dtype)
        self.hidden.requires_grad_()
        self.labels = torch.randint(0, options.vocab, (1, tokens), device=device, generator=generator)
        place = torch.arange(tokens, device=device).unsqueeze(0) % options.sequence
        self.responses = place >= options.sequence - options.sequence // options.share
        self.upstream = torch.randn(1, tokens, device=device, generator=generator) * self.responses
        self.chunk = options.chunk

    def ways(self):
        found = {"scores": self.of_scores, "scores, responses alone": lambda: self.of_scores(self.responses[0])}
        if importlib.util.find_spec("slime") and importlib.util.find_spec("slime.utils"):
            found["slime"] = self.of_slime
        return {**found, "flp": lambda: self.of_hidden(self.responses), "flp, all rows": lambda: self.of_hidden(None)}

    def of_hidden(self, mask):
        processor = flp.adapters.megatron.output_processor(entropy="detached")
        return processor(hidden_states=self.hidden, output_layer=self.layer, labels=self.labels, loss_mask=mask)

    def of_scores(self, rows=None):
        hidden, labels = self.hidden[:, 0], self.labels[0]
        if rows is not None:
            rows = rows.nonzero().squeeze(-1)
            hidden, labels = hidden[rows], labels[rows]
        scores = (hidden @ self.weight.t()).float()
        logprobs, entropies = [], []
        for part, ids in zip(scores.split(self.chunk), labels.split(self.chunk)):
            logprobs.append(part.gather(-1, ids.unsqueeze(-1)).squeeze(-1) - part.logsumexp(-1))
            with torch.no_grad():
                logp = part.log_softmax(-1)
                entropies.append(-(logp.exp() * logp).sum(-1))
        results = torch.cat(logprobs), torch.cat(entropies)
        if rows is None:
            return tuple(result.unsqueeze(0) for result in results)
        every = [result.new_zeros(self.labels.shape[1]) for result in results]
        return tuple(all_rows.index_put((rows,), result).unsqueeze(0) for all_rows, result in zip(every, results))

    def of_slime(self):
        from slime.utils.ppo_utils import calculate_log_probs_and_entropy

        scores = (self.hidden[:, 0] @ self.weight.t()).float()
        logprob, entropy = calculate_log_probs_and_entropy(scores, self.labels[0], alone(), with_entropy=True,
                                                           chunk_size=self.chunk, with_entropy_grad=False)
        return logprob.reshape(1, -1), entropy.reshape(1, -1)

    def checked(self, logprob):
        """The first rows of a response."""
        rows = self.responses[0].nonzero().squeeze(-1)[:ways.CHECKED_ROWS]
        return logprob[0, rows], self.hidden[rows, 0], self.labels[0, rows]


def alone():
    """A process group of this process, as slime's functions want one."""
    import torch.distributed as dist

    if not dist.is_initialized():
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo", rank=0, world_size=1,
                                store=dist.HashStore())
    return dist.group.WORLD


def parser():
    return ways.parser(__doc__, SIZES)


def main(arguments):
    options = parser().parse_args(arguments)
    return ways.run("response_rows.py", arguments, options, [Step(options)], (*SIZES, "dtype"), TOLERANCES, ROUNDS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
