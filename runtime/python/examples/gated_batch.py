#!/usr/bin/env python3
"""Trains on the few sequences that are worth it: batched generation, one scoring pass, a gate, one backward pass.

    python3 runtime/python/examples/gated_batch.py [--steps 100] [--fraction 0.1] [--json FILE]

30 agents a step each sample a reply to a prompt, of unequal lengths. A reply is rewarded for each token that is greater
than the one before it. All of them are scored in one pass; delight = advantage x surprisal selects the few to learn
from.
"""
import _tiny
import torch
from torch import nn

import flp

VOCAB, HIDDEN, WIDTH = 32, 64, 20       # WIDTH: of the longest prompt with its reply


@torch.no_grad()
def generate(embed, trunk, head, agents, device):
    """All agents at once -> tokens (B, T), prompt_lengths (B) and lengths (B), which stay on the device."""
    prompts = torch.randint(2, 5, (agents,), device=device)
    tokens = torch.randint(VOCAB, (agents, WIDTH), device=device)
    for place in range(2, WIDTH):
        drawn = torch.multinomial(head(trunk(embed(tokens[:, :place]))[0][:, -1]).softmax(-1), 1)[:, 0]
        tokens[:, place] = torch.where(place < prompts, tokens[:, place], drawn)
    return tokens, prompts, torch.randint(12, WIDTH + 1, (agents,), device=device)


def train(steps, fraction, agents=30, device="cpu", say=_tiny.say, seed=0):
    """-> the mean reward of every step"""
    torch.manual_seed(seed)
    embed, trunk = nn.Embedding(VOCAB, HIDDEN).to(device), nn.GRU(HIDDEN, HIDDEN, batch_first=True).to(device)
    head = nn.Linear(HIDDEN, VOCAB, bias=False).to(device)
    optimizer = torch.optim.Adam([*embed.parameters(), *trunk.parameters(), *head.parameters()], lr=0.01)
    rewards = []
    for step in range(steps):
        tokens, prompts, lengths = generate(embed, trunk, head, agents, device)
        scores = flp.score(trunk(embed(tokens))[0], head.weight, tokens, prompt_lengths=prompts, lengths=lengths)
        rising = (torch.diff(tokens, prepend=tokens[:, :1]) > 0) & scores.mask
        reward = rising.sum(1) / scores.counts
        advantage = reward - reward.mean()
        kept = flp.gate(flp.delight(scores.mean, advantage), fraction=fraction)
        chosen = scores.keep(sequences=kept)
        loss, _ = flp.losses.policy_loss("reinforce", chosen.logprob, advantage, mask=chosen.mask)
        optimizer.zero_grad(), loss.backward(), optimizer.step()
        rewards.append(reward.mean())           # a tensor: nothing has waited for the device
        if step % 10 == 9:
            say("step %3d  reward %.3f  kept %d of %d" % (step, rewards[-1], kept.sum(), agents))
    return torch.stack(rewards).tolist()


def parser():
    options = _tiny.parser(__doc__)
    options.add_argument("--steps", type=int, default=100)
    options.add_argument("--fraction", type=float, default=0.1, help="of the sequences that are trained on")
    return options


if __name__ == "__main__":
    given = parser().parse_args()
    rewards = train(given.steps, given.fraction, device=given.device, seed=given.seed)
    _tiny.write_record(given, {"rewards": rewards})
