#!/usr/bin/env python3
"""Measures whole steps of a policy update: time and peak memory of a model's forward and backward pass, its head's
log-probabilities made in several ways.

    FLP_LIBRARY=build/release/lib/libflp.so PYTHONPATH=runtime/python \\
        python3 tests/gpu/trainer_step.py --json tests/gpu/evidence/trainer_step.json

The model is a Qwen3 of 2 billion parameters by transformers, its weights drawn, with gradient checkpointing; tokens are
drawn from it. `lora` trains adapters of rank 64 on the linear layers of its blocks, the head is frozen; `full` trains
all of it. A step is a forward pass over sequences of --length tokens, the loss of GRPO and the entropy of each token,
and the backward pass; there is no optimizer.

  whole    the head's scores in float32, log_softmax, gather: what transformers' own loss does
  chunks   the same in chunks of 256 rows, each checkpointed
  trl, liger-grpo, unsloth
           kernels of these libraries, where they are installed (runtime/python/flp/bench/peers); liger-grpo without
           the entropy, which it does not give
  flp      flp.policy_loss; with a tail of 2^-9 `flp, tail`

peak_bytes is the peak of torch's allocator above the model (null without a GPU); ms the median of bursts; error the
difference of the loss, in units of the mean advantage, from that of float64 scores of the same hidden states. Exit
status 1 if flp is off by more than the record's tolerance.
"""
import dataclasses
import functools
import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import flp
from flp.bench.cases import TAIL, Case
from flp.bench.data import Batch
from flp.bench.ours import Flp, FlpTail
from flp.bench.peers import liger, trl, unsloth
from flp.bench.peers.seam import Peer, Result
from flp.bench.step import Measured

sys.path.insert(0, str(Path(__file__).resolve().parent))
import ways  # noqa: E402

TOLERANCES = {Flp.name: 2e-3, TAIL: 2e-3}
SIZES = {"tokens": ("4096,16384,65536", "of a step, default %(default)s"),
         "trains": ("lora,full", "what is trained, default %(default)s"),
         "length": (2048, "of a sequence, default %(default)s"), "layers": (28, None), "hidden": (2048, None),
         "vocab": (151936, None), "budget": (1 << 30, None)}
ROUNDS = 3
ROWS = 256  # of a chunk
RANK = 64
SPREAD = 8  # one deviation of a row's scores: entropies are then near 1 nat, as a policy's


class Whole(Peer):
    """Scores of all rows at once, or of so many, which are then made again in the backward pass."""

    entropy, needs_cuda = True, False

    def __init__(self, name, rows=None):
        self.name, self.rows = name, rows

    def load(self):
        return torch.__version__

    def run(self, hidden, weight, bias, target, case):
        if self.rows is None:
            return Result(*self.scored(hidden, weight, target))
        parts = [checkpoint(self.scored, h, weight, t, use_reentrant=False)
                 for h, t in zip(hidden.split(self.rows), target.split(self.rows))]
        return Result(*map(torch.cat, zip(*parts)))

    @staticmethod
    def scored(hidden, weight, target):
        logp = F.linear(hidden, weight).float().log_softmax(-1)
        return logp.gather(-1, target[:, None])[:, 0], -(logp.detach().exp() * logp.detach()).sum(-1)


class Lora(nn.Module):
    """A frozen linear layer and an adapter beside it."""

    def __init__(self, base):
        super().__init__()
        self.base = base.requires_grad_(False)
        where = {"device": base.weight.device, "dtype": base.weight.dtype}
        self.a = nn.Parameter(torch.randn(RANK, base.in_features, **where) / base.in_features**0.5)
        self.b = nn.Parameter(torch.zeros(base.out_features, RANK, **where))

    def forward(self, x):
        return self.base(x) + (x @ self.a.t()) @ self.b.t()


def model_of(options, kind):
    import transformers

    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        vocab_size=options.vocab, hidden_size=options.hidden, intermediate_size=3 * options.hidden,
        num_hidden_layers=options.layers, num_attention_heads=options.hidden // 128,
        num_key_value_heads=max(1, options.hidden // 256), head_dim=128, tie_word_embeddings=False,
        attn_implementation="sdpa", use_cache=False)
    with torch.device(options.device):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=ways.DTYPES[options.dtype])
    nn.init.normal_(model.lm_head.weight, std=SPREAD / options.hidden**0.5)
    if kind == "lora":
        model.requires_grad_(False)
        for block in model.model.layers:
            for owner in (block.self_attn, block.mlp):
                for name, layer in list(owner.named_children()):
                    if isinstance(layer, nn.Linear):
                        setattr(owner, name, Lora(layer))
    model.gradient_checkpointing_enable({"use_reentrant": False})
    return model.train()


class Step:
    """One model's steps over so many tokens."""

    def __init__(self, options, peers, kind, model, tokens):
        self.model, self.columns, self.kind, self.peers = model, {"tokens": tokens}, kind, peers
        self.device = torch.device(options.device)
        generator = torch.Generator(self.device).manual_seed(tokens)
        shape = (tokens // options.length, options.length)
        self.ids = torch.randint(options.vocab, shape, device=self.device, generator=generator)
        self.case = Case(n=tokens, hidden=options.hidden, vocab=options.vocab, dtype=options.dtype, loss="grpo",
                         entropy="forward", grads=("hidden",) if kind == "lora" else ("hidden", "weight"),
                         budget=options.budget, frozen=kind == "lora", tail=2**-9)
        self.target, logprob = self.drawn(generator)
        old = logprob + 0.1 * torch.randn(tokens, device=self.device, generator=generator)
        advantage = torch.randn(shape[0], device=self.device, generator=generator)
        self.batch = Batch(self.case, options.length, advantage, old.view(shape).float(), None, None)
        self.loss, self.scale = self.batch.loss_of(logprob).item(), advantage.abs().mean().item()

    def hidden(self):
        """(N, D), with the graph of the model's blocks behind it."""
        embedded = self.model.get_input_embeddings()(self.ids).requires_grad_()  # or checkpoints would have no inputs
        return self.model.model(inputs_embeds=embedded).last_hidden_state.flatten(0, 1)

    @torch.no_grad()
    def drawn(self, generator):
        """Tokens (N) that the model draws behind each position, and their log-probabilities from float64 scores."""
        weight, found = self.model.lm_head.weight.double(), []
        for hidden in self.hidden().split(ROWS):
            logp = (hidden.double() @ weight.t()).log_softmax(-1)
            ids = torch.multinomial(logp.float().exp(), 1, generator=generator)
            found.append((ids[:, 0], logp.gather(-1, ids)[:, 0]))
        return map(torch.cat, zip(*found))

    def run(self, peer):
        """One step -> its loss."""
        loss = self.loss_of(peer, self.hidden(), self.model.lm_head.weight)
        loss.backward()
        self.model.zero_grad(set_to_none=True)
        return loss.detach()

    def loss_of(self, peer, hidden, weight):
        if isinstance(peer, Flp):  # whose own step has no entropy
            shape = self.ids.shape
            return flp.policy_loss("grpo", hidden.view(*shape, -1), weight, self.target.view(shape),
                                   self.batch.advantage, entropy=True, budget=self.case.budget,
                                   **peer.bound(self.case), **self.batch.options())[0]
        return peer.step(hidden, weight, None, self.target, self.batch, self.case_of(peer)).loss

    def case_of(self, peer):
        return self.case if peer.entropy else dataclasses.replace(self.case, entropy="none")

    def error_of(self, loss):
        return abs(loss.item() - self.loss) / self.scale

    def rows(self, rounds, burst_ms):
        """A row for each peer that takes the step. Their bursts come in turn: a GPU's clock wanders within minutes."""
        if self.device.type == "cuda":
            torch.compiler.reset()  # peers' compiled functions need not take another number of rows
        steps = {peer: Measured(functools.partial(self.run, peer), self.error_of, self.device, burst_ms)
                 for peer in self.peers if not peer.supports(self.case_of(peer), self.device)}
        for _ in range(rounds):
            for step in steps.values():
                step.time()
                if self.device.type == "cuda":
                    torch.cuda.empty_cache()
        for peer, step in steps.items():
            yield {"peer": peer.name, "version": peer.load(), "pass": self.kind, **self.columns, **step.row()}


def installed(peers):
    for peer in peers:
        try:
            peer.load()
        except ImportError as error:
            print("%s is left out: %s" % (peer.name, error), file=sys.stderr)
        else:
            yield peer


def steps(options):
    """Each kind's model is there until its last step."""
    peers = list(installed([Whole("whole"), Whole("chunks", ROWS), trl.Trl(), liger.LigerGrpo(), unsloth.Unsloth(),
                            Flp(), FlpTail()]))
    for kind in options.trains.split(","):
        model = model_of(options, kind)
        for tokens in map(int, options.tokens.split(",")):
            yield Step(options, peers, kind, model, tokens)
        del model


def parser():
    return ways.parser(__doc__, SIZES)


def main(arguments):
    options = parser().parse_args(arguments)
    kept = [name for name in (*SIZES, "dtype") if name not in ("tokens", "trains")]
    return ways.run("trainer_step.py", arguments, options, steps(options), kept, TOLERANCES, ROUNDS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
