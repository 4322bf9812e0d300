"""Trains a small causal language model with flp in place of materialised scores, and compares the two.

    python train_tiny_lm.py                          flp, a Llama of transformers with random weights, on the GPU if any
    python train_tiny_lm.py --compare --json f.json  the same steps with materialised scores too; losses, peak memory
    python train_tiny_lm.py --tiny --compare         plain torch modules and small sizes: no transformers, no GPU

The data is synthetic: walks through a fixed random table of successors of a thousand ids, one step in ten at random, so
the loss has something to learn. The first step is not measured: it allocates the optimiser's state.
"""
import time

import _tiny
import torch
import torch.nn.functional as F
from flp.bench import memory

import flp


class LlamaLM(torch.nn.Module):
    """A Llama of transformers with random weights, split into hidden states and head."""

    def __init__(self, sizes):
        super().__init__()
        transformers, = _tiny.needed("transformers")
        self.model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
            vocab_size=sizes.vocab, hidden_size=sizes.hidden, intermediate_size=11 * sizes.hidden // 4,
            num_hidden_layers=sizes.layers, num_attention_heads=sizes.heads, max_position_embeddings=sizes.length))
        self.head = self.model.lm_head

    def forward(self, ids):
        """ids (B, T) -> hidden states (B, T, D)"""
        return self.model.model(ids).last_hidden_state


def fused_loss(model, ids, targets):
    """Mean negative log-probability; the scores never exist."""
    return -flp.linear_logprob(model(ids), model.head.weight, targets).mean()


def materialised_loss(model, ids, targets):
    """The same with the (N, V) scores in memory."""
    scores = model.head(model(ids))
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


def step_of(name, model, optimizer, ids):
    """One training step -> its loss."""
    with _tiny.autocast(ids.device):
        loss = LOSSES[name](model, ids[:, :-1], ids[:, 1:])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.item()


def model_of(sizes):
    """A model of random weights, from the seed."""
    torch.manual_seed(sizes.seed)
    if sizes.tiny:
        return _tiny.TinyLM(sizes.vocab, sizes.hidden, sizes.layers, sizes.heads)
    return LlamaLM(sizes)


def train(name, sizes, say=_tiny.say):
    """Trains from the seed -> losses of every step, peak bytes above those held before a step (None on the CPU)."""
    model = model_of(sizes).to(sizes.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=sizes.rate)
    losses, peaks = [], []
    for ids in token_batches(sizes, sizes.device):
        loss, peak = memory.peak_of(lambda: step_of(name, model, optimizer, ids), sizes.device)
        losses.append(loss)
        peaks.append(peak)
        say("%-12s step %3d  loss %.4f" % (name, len(losses), loss))
    return losses, max(peaks[1:], default=None) if sizes.device.type == "cuda" else None


def results_of(sizes, runs, seconds):
    """The results in the record."""
    results = {"tokens_a_step": sizes.batch * sizes.length, "vocab": sizes.vocab, "hidden": sizes.hidden,
               "layers": sizes.layers, "torch": torch.__version__, "libflp": flp.version(), "seconds": seconds}
    for name, (losses, peak) in runs.items():
        results["losses_" + name], results["peak_bytes_above_held_" + name] = losses, peak
    if len(runs) == 2:
        pairs = zip(*(losses for losses, _ in runs.values()))
        results["largest_loss_difference"] = max(abs(a - b) for a, b in pairs)
    return results


def parse(arguments):
    parser = _tiny.parser(__doc__)
    parser.add_argument("--compare", action="store_true", help="also train with materialised scores")
    _tiny.add_sizes(parser, steps=(20, 6), batch=(8, 2), length=(1024, 24), vocab=(128256, 509), hidden=(1024, 32),
                    layers=(4, 1), heads=(16, 2))
    parser.set_defaults(seed=1)
    parser.add_argument("--rate", type=float, default=3e-4)
    return _tiny.with_sizes(parser.parse_args(arguments))


def main(arguments=None):
    sizes, runs, start = parse(arguments), {}, time.perf_counter()
    for name in ("flp", "materialised") if sizes.compare else ("flp",):
        runs[name] = losses, peak = train(name, sizes)
        memory_text = "" if peak is None else ", peak %.0f MiB above what is held between steps" % (peak / 2**20)
        print("%-12s loss %.4f -> %.4f%s" % (name, losses[0], losses[-1], memory_text))
    results = results_of(sizes, runs, time.perf_counter() - start)
    if sizes.compare:
        print("largest loss difference: %.2e" % results["largest_loss_difference"])
    _tiny.write_record(sizes, results)


if __name__ == "__main__":
    main()
