#!/usr/bin/env python3
"""How much of the fragmentation of an RLHF loop (arXiv:2410.15651) is the log-prob step's own?

    FLP_LIBRARY=... PYTHONPATH=runtime/python python3 tests/gpu/fragmentation.py --json fragmentation.json --plots plots
    ... --tiny          the same loop on the CPU in seconds, without a record unless --json is given; memory is then
                        known of flp's host arena only

A PPO loop with actor, reference, critic and reward model, small transformers with random weights: a rollout and four
inferences, then updates of actor and critic, with responses of another length every iteration, as sampling gives them.
Every method runs with every placing of torch.cuda.empty_cache():

  naive         log-probs by materialised scores
  flp, torch    flp, its workspace from torch's caching allocator
  flp, arena    flp, its workspace from an arena that goes back to the driver at the end of each log-prob step
  never, inference, training, both     empty_cache() after these phases (the study's section 3.3)

Peaks are of a run of its own with flp.memory.Profiler, from an emptied allocator; times are of others without it, in
turn: `rounds` runs of "never", where methods are compared iteration by iteration, and one of every other place.
`fragmentation` is what was reserved and unallocated when an allocator asked the driver for more. Its part in memory that
log-prob steps had asked the driver for is split by what they requested:

  fragmentation_logprob    what the steps need themselves and have freed when they end: workspace, scores, temporaries
  fragmentation_gradients  what outlives them: the gradients, of the head's weight above all (V·D), which autograd makes
                           .grad as they are. Such memory idles once zero_grad(set_to_none=True) has freed it and the
                           allocator has put other tensors of that size elsewhere, whoever computed the gradient

The first is the study's question and is judged, the second is reported. Scores that a backward step reads are not freed
outside of these steps, so they count as their own. Not reproduced: ZeRO, LoRA, offloading and checkpointing, which the
study finds to add to fragmentation.

Exit status 1 if losses are not finite or differ between methods, or, on a GPU, if fragmentation_logprob of the arena is
above 1 % of the reserved peak, or its time more than 2 % above that of "flp, torch". Needs torch, and matplotlib for
--plots.
"""
import argparse
import gc
import importlib.util
import math
import os
import random
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F

import flp
from flp.bench import record as records
from flp.memory.timeline import idle_of

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "runtime" / "python" / "examples"))
from _tiny import TinyLM  # noqa: E402

METHODS = ("naive", "flp, torch", "flp, arena")
PLACES = {"never": (), "inference": ("inference",), "training": ("training",), "both": ("inference", "training")}
ACCEPTED_FRAGMENTATION, ACCEPTED_OVERHEAD = 0.01, 0.02
LOSS_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2}
TINY = {"vocab": 211, "hidden": 32, "layers": 1, "heads": 2, "batch": 4, "prompt": 4, "response": 12, "iterations": 3,
        "rounds": 1}
EVENTS_MAX = 1 << 22  # an iteration makes some hundred thousand
PEAKS = ("reserved", "allocated", "fragmentation", "without_fragmentation", "arena")
STEP = "logprob"
PARTS = ("fragmentation_logprob_bytes", "fragmentation_gradients_bytes")


# ---- the loop ----

def naive_logprob(hidden, weight, target):
    """(B, T) of materialised scores, as trainers compute them."""
    scores = (hidden @ weight.t()).float()
    return F.log_softmax(scores, -1).gather(-1, target.unsqueeze(-1)).squeeze(-1)


class Loop:
    """The four models, the optimisers, and one method of log-probs."""

    def __init__(self, sizes, method, place):
        torch.manual_seed(sizes.seed)
        self.sizes, self.place = sizes, PLACES[place]
        self.workspace = "arena" if method == "flp, arena" else "torch"
        self.logprob = naive_logprob if method == "naive" else flp.linear_logprob
        self.actor, self.reference, self.critic, self.reward = (
            TinyLM(sizes.vocab, sizes.hidden, sizes.layers, sizes.heads, device=sizes.device, dtype=sizes.dtype)
            for _ in range(4))
        for model in (self.critic, self.reward):
            model.head = torch.nn.Linear(sizes.hidden, 1).to(sizes.device, sizes.dtype)
        self.reference.load_state_dict(self.actor.state_dict())
        self.reference.requires_grad_(False), self.reward.requires_grad_(False)
        self.optimizers = [torch.optim.AdamW(model.parameters(), lr=sizes.rate) for model in (self.actor, self.critic)]
        self.lengths = random.Random(sizes.seed)

    def phase(self, name):
        return flp.phase(name, self.workspace, empty_cache=name in self.place)

    @torch.no_grad()
    def rollout(self, length):
        """-> ids (B, prompt + length)"""
        sizes = self.sizes
        ids = torch.randint(sizes.vocab, (sizes.batch, sizes.prompt)).to(sizes.device)
        for _ in range(length):
            scores = self.actor.head(self.actor(ids)[:, -1]).float()
            ids = torch.cat([ids, torch.multinomial(scores.softmax(-1), 1)], 1)
        return ids

    def response_hidden(self, model, ids):
        """Hidden states that encode the response's tokens: (B, length, D), dense, so that no log-prob step copies
        them"""
        return model(ids[:, :-1])[:, self.sizes.prompt - 1:].contiguous()

    def values(self, model, ids):
        return model.head(self.response_hidden(model, ids)).squeeze(-1).float()

    @torch.no_grad()
    def infer(self, length):
        """-> ids, log-probs of actor and reference, advantages, rewards"""
        ids = self.rollout(length)
        target, logprobs = ids[:, self.sizes.prompt:], []
        for model in (self.actor, self.reference):
            hidden = self.response_hidden(model, ids)
            with flp.phase(STEP, empty_cache=False):
                logprobs.append(self.logprob(hidden, model.head.weight, target))
        values = self.values(self.critic, ids)
        rewards = self.values(self.reward, ids)[:, -1:].expand_as(values)
        advantage = rewards - values
        return ids, logprobs, (advantage - advantage.mean()) / (advantage.std() + 1e-4), rewards

    def update_actor(self, ids, logprobs, advantage):
        hidden = self.response_hidden(self.actor, ids)
        leaf = hidden.detach().requires_grad_()  # so that the backward pass of the log-prob step is one of its own
        with flp.phase(STEP, empty_cache=False):
            logprob = self.logprob(leaf, self.actor.head.weight, ids[:, self.sizes.prompt:])
        loss, _ = flp.losses.policy_loss("ppo", logprob, advantage, old_logprob=logprobs[0], ref_logprob=logprobs[1],
                                         beta=0.1)
        self.optimizers[0].zero_grad(set_to_none=True)
        with flp.phase(STEP, empty_cache=False):
            loss.backward()
        hidden.backward(leaf.grad)
        self.optimizers[0].step()
        return loss.detach()

    def update_critic(self, ids, rewards):
        loss = F.mse_loss(self.values(self.critic, ids), rewards)
        self.optimizers[1].zero_grad(set_to_none=True)
        loss.backward()
        self.optimizers[1].step()
        return loss.detach()

    def iteration(self):
        """-> losses of actor and critic in the last update"""
        length = self.lengths.randint(self.sizes.response // 4, self.sizes.response)
        with self.phase("inference"):
            ids, logprobs, advantage, rewards = self.infer(length)
        with self.phase("training"):
            for _ in range(self.sizes.updates):
                losses = self.update_actor(ids, logprobs, advantage), self.update_critic(ids, rewards)
        return [loss.item() for loss in losses]


# ---- what is measured ----

def emptied(sizes):
    """Leaves nothing of an earlier run in torch's allocator."""
    gc.collect()
    if sizes.device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def timed(sizes, method, place):
    """ms of every iteration, without a profiler; the first, in which plans are made, is not counted."""
    emptied(sizes)
    loop, times = Loop(sizes, method, place), []
    for _ in range(sizes.iterations):
        start = time.perf_counter()
        loop.iteration()  # ends with losses on the host, behind all work on the device
        times.append(1000 * (time.perf_counter() - start))
    return times[1:]


def profiled(sizes, method, place):
    """-> losses of all iterations, the profiler"""
    emptied(sizes)
    loop = Loop(sizes, method, place)
    with flp.memory.Profiler([sizes.device], EVENTS_MAX) as profiler:
        losses = [loop.iteration() for _ in range(sizes.iterations)]
    return losses, profiler


def is_logprob(path):
    return path.endswith("/" + STEP)


def memory_columns(profiler, device):
    """Peaks in bytes; null where nothing was seen of the device."""
    name = "cpu" if device.type == "cpu" else "cuda:%d" % torch.cuda.current_device()
    seen = profiler.report["devices"].get(name)
    if seen is None:
        return dict.fromkeys([*(peak + "_bytes" for peak in PEAKS), *PARTS, "growths", "device_used_bytes"])
    columns = {peak + "_bytes": seen["peaks"][""][peak] for peak in PEAKS}
    columns.update(zip(PARTS, idle_of(profiler.timelines[name].growths, is_logprob)))
    columns.update(growths=seen["peaks"][""]["growths"], device_used_bytes=seen["device_used_peak"])
    if "drift" in seen:
        columns.update(drift_bytes=seen["drift"], unmatched=seen["unmatched"], truncated=seen["truncated"])
    return columns


def row_of(sizes, method, place, times):
    losses, profiler = profiled(sizes, method, place)
    if sizes.plots and profiler.report["devices"]:
        os.makedirs(sizes.plots, exist_ok=True)
        name = "%s_%s.%s" % (method.replace(", ", "_"), place, sizes.format)
        flp.memory.plot(profiler.report, os.path.join(sizes.plots, name), span=STEP)
    return {"method": method, "empty_cache": place, "ms": statistics.median(times), "ms_iterations": times,
            "recording": profiler.report["recording"], **memory_columns(profiler, sizes.device),
            "loss_actor": [loss[0] for loss in losses], "loss_critic": [loss[1] for loss in losses]}


def errors_of(row, base, sizes):
    """What is wrong with the losses of a row, beside those of the first."""
    if not all(map(math.isfinite, row["loss_actor"] + row["loss_critic"])):
        return ["losses are not finite"]
    # Where rounding differs, tokens that are sampled after an update may; on the CPU in fp32 they do not.
    compared = sizes.iterations if sizes.device.type == "cpu" else 1
    pairs = [pair for name in ("loss_actor", "loss_critic")
             for pair in zip(row[name][:compared], base[name][:compared])]
    difference = max(abs(a - b) / max(1, abs(b)) for a, b in pairs)
    tolerance = LOSS_TOLERANCE[sizes.dtype]
    return ["losses differ by %.2g (accepted: %g)" % (difference, tolerance)] if difference > tolerance else []


def accepted(rows, on_gpu):
    """The acceptance figures, and which were missed."""
    by_key = {(row["method"], row["empty_cache"]): row for row in rows}
    arena, torch_row = by_key["flp, arena", "never"], by_key["flp, torch", "never"]
    # The same iteration of another method has responses of the same length.
    ratios = [a / b for a, b in zip(arena["ms_iterations"], torch_row["ms_iterations"])]
    figures = {"time_overhead": statistics.median(ratios) - 1}
    for part in PARTS:
        figures[part.replace("_bytes", "_of_reserved")] = max(
            row[part] / row["reserved_bytes"] for row in rows if row["method"] == "flp, arena")
    limits = {"time_overhead": ACCEPTED_OVERHEAD, "fragmentation_logprob_of_reserved": ACCEPTED_FRAGMENTATION}
    missed = [name for name, limit in limits.items() if on_gpu and figures[name] > limit]
    return {**figures, "limits": limits, "missed": missed}


def measure(sizes):
    """-> rows of every method and place, one after the other in each round"""
    keys = [(method, place) for place in PLACES for method in METHODS]
    times = {key: [] for key in keys}
    for turn in range(sizes.rounds):
        for key in keys:
            if turn == 0 or key[1] == "never":
                times[key] += timed(sizes, *key)
    rows = []
    for key in keys:
        row = row_of(sizes, *key, times[key])
        row["errors"] = errors_of(row, (rows or [row])[0], sizes)
        rows.append(row)
        show(row)
    return rows


def show(row):
    sizes = ["%s %s" % (name, "-" if row[name + "_bytes"] is None else "%.3f GB" % (row[name + "_bytes"] / 1e9))
             for name in ("reserved", "allocated", "fragmentation", "fragmentation_logprob", "fragmentation_gradients")]
    print("%-10s  empty_cache %-9s  %8.1f ms  %s" % (row["method"], row["empty_cache"], row["ms"], "  ".join(sizes))
          + "".join("\n  error: " + error for error in row["errors"]), flush=True)


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="file for the record; - for standard output; --tiny does without one")
    parser.add_argument("--plots", help="folder for a picture of every row")
    parser.add_argument("--format", choices=("png", "svg"), default="png", help="of pictures, default %(default)s")
    parser.add_argument("--tiny", action="store_true", help="small sizes on the CPU, in fp32")
    for name, value, text in (
            ("vocab", 151936, ""), ("hidden", 1024, ""), ("layers", 8, ""), ("heads", 16, ""),
            ("batch", 16, "sequences"), ("prompt", 64, "tokens"),
            ("response", 192, "tokens at most; at least a quarter"),
            ("iterations", 5, "of a run, the first is not timed"), ("updates", 2, "of an iteration"),
            ("rounds", 3, "of timing with empty_cache never"), ("seed", 0, "")):
        parser.add_argument("--" + name, type=int, default=value, help=text + " default %(default)s")
    parser.add_argument("--rate", type=float, default=1e-4, help="of learning, default %(default)s")
    sizes = parser.parse_args(arguments)
    if sizes.tiny:
        vars(sizes).update(TINY)
    elif not torch.cuda.is_available():
        parser.error("no CUDA device is usable; accepted: --tiny")
    if not sizes.json and not sizes.tiny:
        parser.error("--json: a run on a GPU leaves a record; name its file, or - for standard output")
    if sizes.iterations < 2:
        parser.error("--iterations: %d is not accepted; 2 or more are" % sizes.iterations)
    if sizes.plots and importlib.util.find_spec("matplotlib") is None:
        parser.error("--plots: matplotlib is not installed; accepted: a run without pictures")
    sizes.device = torch.device("cpu" if sizes.tiny else "cuda")
    sizes.dtype = torch.float32 if sizes.tiny else torch.bfloat16
    return sizes


def main(arguments):
    sizes = parse(arguments)
    rows = measure(sizes)
    command = " ".join(["tests/gpu/fragmentation.py"] + [word.rsplit("/", 1)[-1] for word in arguments])
    record = {**records.head(command, sizes.device), "torch": torch.__version__,
              "sizes": {name: getattr(sizes, name) for name in (*TINY, "updates", "rate", "seed")},
              "acceptance": accepted(rows, sizes.device.type == "cuda"),
              "failed": sum(bool(row["errors"]) for row in rows), "rows": rows}
    if sizes.json:
        records.write(record, sizes.json)
    print("%d rows failed; missed: %s" % (record["failed"], ", ".join(record["acceptance"]["missed"]) or "nothing"),
          file=sys.stderr)
    return 1 if record["failed"] or record["acceptance"]["missed"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
