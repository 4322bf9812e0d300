#!/usr/bin/env python3
"""Trains a small language model from scratch with GRPO: rollout, scoring and training through flp.

    python3 runtime/python/examples/grpo_tiny.py [--steps 40] [--device cuda] [--rule grpo]

The task has no data: a sequence is rewarded for every token that is greater than the one before it. Chance gets one half,
and the model learns to climb. Each step samples groups of sequences from a first token, scores them with the policy that
sampled and with the reference (the untrained model), and makes a few updates on the clipped ratio. The scores of shape
(tokens, vocab) exist nowhere but for the one position that is sampled.
"""
import argparse
import copy
import json
import math

import torch
from torch import nn

import flp


class TinyLM(nn.Module):
    """A causal transformer up to the hidden states that its head is applied to."""

    def __init__(self, vocab, hidden, layers, length):
        super().__init__()
        self.embed = nn.Embedding(vocab, hidden)
        self.place = nn.Parameter(0.02 * torch.randn(length, hidden))
        block = nn.TransformerEncoderLayer(hidden, 4, 2 * hidden, dropout=0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, layers, nn.LayerNorm(hidden), enable_nested_tensor=False)
        self.head = nn.Linear(hidden, vocab, bias=False)
        nn.init.normal_(self.head.weight, std=hidden**-0.5)

    def forward(self, tokens):
        """tokens (B, T) -> hidden states (B, T, D)"""
        length = tokens.shape[1]
        causal = torch.full((length, length), -math.inf, device=tokens.device).triu(1)
        return self.blocks(self.embed(tokens) + self.place[:length], mask=causal)

    def logprob(self, tokens, entropy=False):
        """tokens (B, T+1) -> log-probabilities (B, T) of all but the first; or these and entropies"""
        return flp.linear_logprob(self(tokens[:, :-1]), self.head.weight, tokens[:, 1:], entropy=entropy)


@torch.no_grad()
def rollout(model, first, length):
    """Samples: first (B) -> tokens (B, length + 1)"""
    tokens = first[:, None]
    for _ in range(length):
        scores = model.head(model(tokens)[:, -1])
        tokens = torch.cat([tokens, torch.multinomial(scores.softmax(-1), 1)], 1)
    return tokens


def reward(tokens):
    """(B, T+1) -> (B), the share of tokens that are greater than the one before"""
    return (tokens[:, 1:] > tokens[:, :-1]).float().mean(-1)


def advantages(rewards, group):
    """Rewards (B) centred and scaled inside each group. source: arXiv:2402.03300"""
    grouped = rewards.view(-1, group)
    return ((grouped - grouped.mean(1, keepdim=True)) / (grouped.std(1, keepdim=True) + 1e-4)).flatten()


def train(arguments, say=print):
    """-> the mean reward of every step"""
    torch.manual_seed(arguments.seed)
    model = TinyLM(arguments.vocab, arguments.hidden, 2, arguments.length + 1).to(arguments.device)
    reference = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters(), lr=arguments.lr)
    rewards = []
    for step in range(arguments.steps):
        first = torch.randint(arguments.vocab // 4, (arguments.prompts,), device=arguments.device)
        tokens = rollout(model, first.repeat_interleave(arguments.group), arguments.length)
        got = reward(tokens)
        with torch.no_grad():
            old, ref = model.logprob(tokens), reference.logprob(tokens)
        for _ in range(arguments.updates):
            logprob, entropy = model.logprob(tokens, entropy=True)
            loss, metrics = flp.losses.policy_loss(
                arguments.rule, logprob, advantages(got, arguments.group), old_logprob=old, ref_logprob=ref,
                entropy=entropy, beta=arguments.beta, entropy_weight=0.003, length=arguments.length)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        rewards.append(got.mean().item())
        say("step %3d  reward %.3f  entropy %.3f  clipped %.3f  kl %.4f" % (
            step, rewards[-1], metrics["entropy"], metrics["clip_fraction"], metrics["kl"]))
    return rewards


def parser():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--steps", type=int, default=40)
    options.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options.add_argument("--rule", default="grpo", choices=sorted(flp.losses.RULES))
    options.add_argument("--vocab", type=int, default=64)
    options.add_argument("--hidden", type=int, default=64)
    options.add_argument("--length", type=int, default=12, help="tokens that are sampled")
    options.add_argument("--prompts", type=int, default=16)
    options.add_argument("--group", type=int, default=8, help="samples a prompt")
    options.add_argument("--updates", type=int, default=2, help="of each rollout")
    options.add_argument("--beta", type=float, default=0.005)
    options.add_argument("--lr", type=float, default=3e-3)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--json", metavar="FILE", help="write the rewards")
    return options


def main():
    arguments = parser().parse_args()
    rewards = train(arguments)
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump({"rule": arguments.rule, "device": arguments.device, "rewards": rewards}, file)


if __name__ == "__main__":
    main()
