#!/usr/bin/env python3
"""Measures on this machine's GPU what scoring many sequences and training on the few that a gate keeps costs.

    FLP_LIBRARY=build/release/lib/libflp.so PYTHONPATH=runtime/python \\
        python3 tests/gpu/gated_step.py --json tests/gpu/evidence/gated_step.json

One step is flp.score over all tokens, flp.delight, flp.gate, a loss of what is kept, and its backward pass. It is run

  eagerly    under torch.cuda.set_sync_debug_mode("error"): whatever makes torch wait for the device fails
  captured   as one CUDA graph, where a synchronisation anywhere, libflp's included, fails; captured with sequences of
             unequal lengths, it is replayed on other data (states, tokens, lengths of sequences and prompts, advantages)
             and must give the eager step's bits

and the replay is timed in turn with one forward pass and one backward pass, of all rows, of the same batch: `ratio` is
the step's time to forward + fraction * backward, which must not be above `target`. One of 30 sequences is 3.3 % of the
rows, yet counts as 3 %. One row more scores the same batch with half of every sequence a prompt. Exit status 1 if
anything failed, 2 without a GPU. --cpu: the same without graphs and target, at the size of --tiny unless given, to try
the script. Needs torch.
"""
import argparse
import functools
import math
import sys
from pathlib import Path

import torch

import flp
from flp.bench import clock as clocks
from flp.bench import data, record, rounds

sys.path.insert(0, str(Path(__file__).resolve().parent))

from graphs import capture  # noqa: E402

TARGET = 1.15
HALF_TARGET = 0.6       # of a forward pass, for scoring with half of the tokens prompts
FULL = {"sequences": 30, "length": 2048, "vocab": 151936, "hidden": 4096, "dtype": "bf16", "rounds": 7,
        "burst_ms": 75.0}
TINY = {"sequences": 6, "length": 24, "vocab": 61, "hidden": 16, "dtype": "fp32", "rounds": 3, "burst_ms": 0.5}


class Batch:
    """Packed sequences with prompts of 0 to 8 tokens, and the head they are scored with. ragged: of random lengths."""

    NAMES = ("hidden", "tokens", "ends", "prompts", "advantage")

    def __init__(self, options, weight, seed, ragged=False):
        generator = torch.Generator(device=weight.device).manual_seed(seed)
        n, count = options.sequences * options.length, options.sequences
        self.weight, self.ends = weight, torch.arange(count + 1, device=weight.device) * options.length
        if ragged:
            self.ends[1:-1] += torch.randint(options.length // 2, (count - 1,), generator=generator, device=weight.device)
        self.hidden = data.normal((n, options.hidden), 1.0, weight.dtype, weight.device, generator).requires_grad_()
        self.tokens = torch.randint(options.vocab, (n,), generator=generator, device=weight.device)
        self.prompts = torch.randint(9, (count,), generator=generator, device=weight.device)
        self.advantage = torch.randn(count, generator=generator, device=weight.device)

    @torch.no_grad()
    def copy_(self, other):
        for name in self.NAMES:
            getattr(self, name).copy_(getattr(other, name))


def score(batch, prompts):
    return flp.score(batch.hidden, batch.weight, batch.tokens, cu_seqlens=batch.ends, prompt_lengths=prompts)


def step(batch, fraction, by_tokens):
    """-> loss, what is kept (N), grad_hidden, grad_weight"""
    scores = score(batch, batch.prompts)
    if by_tokens:
        worth = flp.delight(scores.logprob, scores.per_token(batch.advantage))
        chosen = scores.keep(tokens=flp.gate(worth, fraction=fraction, mask=scores.mask))
    else:
        kept = flp.gate(flp.delight(scores.mean, batch.advantage), fraction=fraction, mask=scores.counts > 0)
        chosen = scores.keep(sequences=kept)
    loss = -(batch.advantage * chosen.sum).sum() / chosen.counts.sum().clamp(min=1)
    return (loss.detach(), chosen.mask, *torch.autograd.grad(loss, (batch.hidden, batch.weight)))


def without_waiting(call):
    """The call while torch refuses to wait for the device."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        return call()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def unlike(got, want):
    """Names of the results of a step that differ in a bit."""
    names = ("loss", "kept", "grad_hidden", "grad_weight")
    return [name for name, a, b in zip(names, got, want) if not torch.equal(a, b)]


class Case:
    """One way of gating: proven once, then timed as a subject of the rounds. batch takes the data of one, then of other,
    which it keeps."""

    def __init__(self, name, by_tokens, options, batch, one, other, on_gpu):
        self.name, self.on_gpu, self.errors = name, on_gpu, []
        self.run = functools.partial(step, batch, options.fraction, by_tokens)
        self.results = None     # of a graph; without one, run returns them
        elsewhere = functools.partial(step, other, options.fraction, by_tokens)
        want = elsewhere()
        batch.copy_(one)
        if on_gpu:
            self.attempt("waits for the device", lambda: without_waiting(elsewhere))
            self.attempt("cannot be captured", self.capture)
        batch.copy_(other)
        got = self.run()
        self.errors += ["%s is not that of the eager step" % part for part in unlike(self.results or got, want)]
        self.kept = int(want[1].sum())
        self.subject = rounds.Subject(name, self.run)

    def capture(self):
        self.run, self.results = capture(self.run)

    def attempt(self, what, call):
        try:
            call()
        except RuntimeError as error:
            self.errors.append("%s: %s" % (what, error))

    def row(self, times, options):
        bound = times["forward"] + options.fraction * times["backward"]
        row = {"case": self.name, **ms_of(self.subject), "bound_ms": bound, "target": TARGET if self.on_gpu else None,
               "kept_rows": self.kept, "kept_share": self.kept / (options.sequences * options.length),
               "graph": self.results is not None}
        row["ratio"] = row["ms"] / bound if row["ms"] else None
        return judged(row, self.errors)


def judged(row, errors):
    if row["target"] and row["ratio"] and row["ratio"] > row["target"]:
        errors = [*errors, "ratio %.3f is above the target %.2f" % (row["ratio"], row["target"])]
    if row["ms"] is None:
        errors = [*errors, row["reason"]]
    return {**row, "errors": errors}


def ms_of(subject):
    if not subject.samples:
        return {"ms": None, "reason": subject.reason}
    ms, low, high = subject.summary()
    return {"ms": ms, "ms_low": low, "ms_high": high}


def plain_subjects(batch, options):
    """One forward pass that keeps what the backward pass needs, one backward pass of all rows, and half a score."""
    logprob = flp.linear_logprob(batch.hidden, batch.weight, batch.tokens)
    upstream = torch.full_like(logprob, -1.0 / logprob.numel())
    half = torch.full_like(batch.prompts, options.length // 2)
    return {
        "forward": rounds.Subject("forward", lambda: flp.linear_logprob(batch.hidden, batch.weight, batch.tokens)),
        "backward": rounds.Subject("backward", lambda: torch.autograd.grad(
            logprob, (batch.hidden, batch.weight), upstream, retain_graph=True)),
        "half": rounds.Subject("scoring, half of every sequence a prompt", lambda: score(batch, half))}


def measure(options, device):
    """-> rows"""
    generator = torch.Generator(device=device).manual_seed(options.seed)
    weight = data.normal((options.vocab, options.hidden), 1.5 / math.sqrt(options.hidden),
                         data.TORCH_DTYPES[options.dtype], device, generator).requires_grad_()
    on_gpu = device.type == "cuda"
    batches = [Batch(options, weight, options.seed + i, ragged=i == 2) for i in (1, 2, 3)]
    cases = [Case("gated step, %s" % what, what == "tokens", options, *batches, on_gpu)
             for what in ("sequences", "tokens")]
    plain = plain_subjects(batches[0], options)
    clock = clocks.CudaClock() if on_gpu else clocks.HostClock()
    rounds.measure([*plain.values(), *(case.subject for case in cases)], clock, options.rounds, options.burst_ms,
                   options.seed)
    times = {name: ms_of(subject)["ms"] or math.nan for name, subject in plain.items()}
    rows = [judged({"case": name, **ms_of(plain[name]), "target": None}, []) for name in ("forward", "backward")]
    half = {"case": plain["half"].name, **ms_of(plain["half"]), "ratio": times["half"] / times["forward"],
            "bound_ms": times["forward"], "target": HALF_TARGET if on_gpu else None}
    return [*rows, judged(half, []), *(case.row(times, options) for case in cases)]


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in FULL.items():
        parser.add_argument("--" + name.replace("_", "-"), type=type(value),
                            help="default %s, tiny %s" % (value, TINY[name]))
    parser.add_argument("--fraction", type=float, default=0.03, help="kept of sequences or tokens, default %(default)s")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tiny", action="store_true", help="small sizes")
    parser.add_argument("--cpu", action="store_true", help="without a GPU; implies --tiny")
    parser.add_argument("--json", default="-", help="file for the record, default standard output")
    options = parser.parse_args(arguments)
    for name, value in (TINY if options.tiny or options.cpu else FULL).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    return options


def main(arguments):
    options = parse(arguments)
    if not options.cpu and not torch.cuda.is_available():
        print("gated_step.py: torch sees no GPU; --cpu tries the script without", file=sys.stderr)
        return 2
    device = torch.device("cpu" if options.cpu else "cuda")
    command = " ".join(["tests/gpu/gated_step.py", *(word.rsplit("/", 1)[-1] for word in arguments)])
    made = record.head(command, device)
    made.update((name, getattr(options, name)) for name in (*FULL, "fraction", "seed"))
    made["rows"] = measure(options, device)
    made["failed"] = sum(bool(row["errors"]) for row in made["rows"])
    record.write(made, options.json)
    for row in made["rows"]:
        print("%s: %s ms, ratio %s, target %s %s" % (row["case"], row["ms"], row.get("ratio"), row["target"],
                                                    "; ".join(row["errors"])), file=sys.stderr)
    return 1 if made["failed"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
