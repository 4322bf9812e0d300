"""Trains a small causal language model with flp in place of materialised scores, and compares the two.

    python train_tiny_lm.py                        flp, a Llama of transformers with random weights, on the GPU if any
    python train_tiny_lm.py --compare --out f.json the same steps with materialised scores too; losses, peak memory
    python train_tiny_lm.py --tiny-torch --compare plain torch modules and small sizes: no transformers, no GPU

The data is synthetic: walks through a fixed random table of successors of a thousand ids, one step in ten at random, so
the loss has something to learn. The first step is not measured: it allocates the optimiser's state.
"""
import argparse
import contextlib
import datetime
import json
import subprocess
import sys

import torch
import torch.nn.functional as F

import flp


class TinyLM(torch.nn.Module):
    """Embedding, causal transformer layers, head: the parts of a Llama that the loss needs, in plain torch."""

    def __init__(self, sizes):
        super().__init__()
        self.embedding = torch.nn.Embedding(sizes.vocab, sizes.hidden)
        layer = torch.nn.TransformerEncoderLayer(sizes.hidden, sizes.heads, 4 * sizes.hidden, dropout=0.0,
                                                 batch_first=True, norm_first=True)
        self.layers = torch.nn.TransformerEncoder(layer, sizes.layers, enable_nested_tensor=False)
        self.head = torch.nn.Linear(sizes.hidden, sizes.vocab, bias=False)

    def hidden_states(self, ids):
        length = ids.shape[1]
        mask = torch.ones(length, length, dtype=torch.bool, device=ids.device).triu(1)
        return self.layers(self.embedding(ids), mask=mask)


class LlamaLM(torch.nn.Module):
    """A Llama of transformers with random weights, split into hidden states and head."""

    def __init__(self, sizes):
        super().__init__()
        from transformers import LlamaConfig, LlamaForCausalLM

        self.model = LlamaForCausalLM(LlamaConfig(
            vocab_size=sizes.vocab, hidden_size=sizes.hidden, intermediate_size=11 * sizes.hidden // 4,
            num_hidden_layers=sizes.layers, num_attention_heads=sizes.heads, max_position_embeddings=sizes.length))
        self.head = self.model.lm_head

    def hidden_states(self, ids):
        return self.model.model(ids).last_hidden_state


def fused_loss(model, ids, targets):
    """Mean negative log-probability; the scores never exist."""
    return -flp.linear_logprob(model.hidden_states(ids), model.head.weight, targets).mean()


def materialised_loss(model, ids, targets):
    """The same with the (N, V) scores in memory."""
    scores = model.head(model.hidden_states(ids))
    return F.cross_entropy(scores.flatten(0, 1).float(), targets.flatten())


LOSSES = {"flp": fused_loss, "materialised": materialised_loss}


def token_batches(sizes, device):
    """steps batches of (batch, length + 1) ids, the same in every run."""
    generator = torch.Generator().manual_seed(sizes.seed)
    known = min(sizes.vocab, 1000)
    successor = torch.randperm(known, generator=generator)
    for _ in range(sizes.steps):
        walk = [torch.randint(0, known, (sizes.batch,), generator=generator)]
        for _ in range(sizes.length):
            jump = torch.randint(0, known, (sizes.batch,), generator=generator)
            walk.append(torch.where(torch.rand(sizes.batch, generator=generator) < 0.1, jump, successor[walk[-1]]))
        yield torch.stack(walk, 1).to(device)


def train(name, sizes, device):
    """Trains from the seed -> losses of every step, peak bytes above those held before a step (None on the CPU)."""
    torch.manual_seed(sizes.seed)
    model = (TinyLM if sizes.tiny_torch else LlamaLM)(sizes).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=sizes.rate)
    on_gpu = device.type == "cuda"
    losses, peak = [], 0
    for step, ids in enumerate(token_batches(sizes, device)):
        held = torch.cuda.memory_allocated() if on_gpu else 0
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
        with torch.autocast("cuda", torch.bfloat16) if on_gpu else contextlib.nullcontext():
            loss = LOSSES[name](model, ids[:, :-1], ids[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        if on_gpu and step > 0:
            peak = max(peak, torch.cuda.max_memory_allocated() - held)
    return losses, peak if on_gpu else None


def driver_version():
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[0].strip()
    except (OSError, subprocess.CalledProcessError, IndexError):
        return "unknown"


def command_line(out):
    """This command, without the place where its record goes."""
    words = [word for word in sys.argv if word != out and word not in ("--out", "--out=%s" % out)]
    return " ".join(["python"] + words)


def record_of(sizes, device, runs):
    """The JSON record: where and how it was measured, and results."""
    on_gpu = device.type == "cuda"
    results = {"tokens_a_step": sizes.batch * sizes.length, "vocab": sizes.vocab, "hidden": sizes.hidden,
               "layers": sizes.layers, "torch": torch.__version__, "libflp": flp.version()}
    for name, (losses, peak) in runs.items():
        results["losses_" + name], results["peak_bytes_above_held_" + name] = losses, peak
    if len(runs) == 2:
        pairs = zip(*(losses for losses, _ in runs.values()))
        results["largest_loss_difference"] = max(abs(a - b) for a, b in pairs)
    return {"command": command_line(sizes.out), "date": datetime.date.today().isoformat(),
            "gpu": torch.cuda.get_device_name() if on_gpu else "none", "driver": driver_version() if on_gpu else "none",
            "sources_hash": flp.sources_id(), "results": results}


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compare", action="store_true", help="also train with materialised scores")
    parser.add_argument("--tiny-torch", action="store_true", help="plain torch modules and small sizes")
    parser.add_argument("--out", help="file for the JSON record")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=float, default=3e-4)
    for name, full, tiny in (("steps", 20, 6), ("batch", 8, 2), ("length", 1024, 24), ("vocab", 128256, 509),
                             ("hidden", 1024, 32), ("layers", 4, 1), ("heads", 16, 2)):
        parser.add_argument("--" + name, type=int, help="default %d, with --tiny-torch %d" % (full, tiny))
        parser.set_defaults(**{"_" + name: (full, tiny)})
    sizes = parser.parse_args(arguments)
    for name in ("steps", "batch", "length", "vocab", "hidden", "layers", "heads"):
        if getattr(sizes, name) is None:
            setattr(sizes, name, getattr(sizes, "_" + name)[sizes.tiny_torch])
    return sizes


def main(arguments=None):
    sizes = parse(arguments)
    device = torch.device(sizes.device)
    runs = {}
    for name in ("flp", "materialised") if sizes.compare else ("flp",):
        runs[name] = losses, peak = train(name, sizes, device)
        memory = "" if peak is None else ", peak %.0f MiB above what is held between steps" % (peak / 2**20)
        print("%-12s loss %.4f -> %.4f%s" % (name, losses[0], losses[-1], memory))
    record = record_of(sizes, device, runs)
    if sizes.compare:
        print("largest loss difference: %.2e" % record["results"]["largest_loss_difference"])
    if sizes.out:
        with open(sizes.out, "w") as file:
            json.dump(record, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
