#!/usr/bin/env python3
"""A draft for speculative decoding: a small head over a part of the vocabulary learns what its target would accept.

    python3 runtime/python/examples/draft_head.py [--kind lk] [--share 0.5] [--tiny] [--device cuda] [--json FILE]

The target is the teacher of distill.py. The draft is one block over its hidden states, one token behind, and a head
over the tokens that are most frequent, as EAGLE-3 has it (arXiv:2503.01840): teacher_ids says which of the target's
they are. It minimises a loss of the rate at which a speculative sampler accepts its tokens, by default lk
(arXiv:2602.23881), against the target renormalised to these tokens. The acceptance that is printed is against the
target's distribution as it is: Σ min(p, q) over the tokens that both have.
"""
import _tiny
import distill
import torch
from torch import nn

import flp


class Draft(nn.Module):
    """One block over the target's hidden states and the token that each of them predicted."""

    def __init__(self, target, hidden, ids):
        super().__init__()
        of_target = target.head.in_features
        self.both, self.block = nn.Linear(2 * of_target, hidden), _tiny.Block(hidden, 4)
        self.norm, self.head = nn.LayerNorm(hidden), nn.Linear(hidden, len(ids), bias=False)
        self.embed = target.embed

    def forward(self, states, tokens):
        """States (B, T, E) of the tokens before, tokens (B, T) -> (B, T, D)"""
        return self.norm(self.block(self.both(torch.cat([states, self.embed(tokens)], -1))))


def frequent(arguments, batches=20):
    """The ids of the most frequent tokens, a share of all."""
    counts = sum(torch.bincount(_tiny.batch_of(arguments, step).flatten().cpu(), minlength=arguments.vocab)
                 for step in range(batches))
    return counts.topk(max(8, int(arguments.share * arguments.vocab))).indices.sort().values.to(arguments.device)


def train(arguments, say=_tiny.say):
    """-> the acceptance rate of every step, against the whole target"""
    target = distill.taught(arguments)
    ids = frequent(arguments)
    draft = Draft(target, arguments.hidden, ids).to(arguments.device)
    optimizer = torch.optim.AdamW([value for value in draft.parameters() if value.requires_grad],
                                  lr=0.3 / arguments.hidden)
    rates = []
    for step in range(arguments.steps):
        tokens = _tiny.batch_of(arguments, arguments.lessons + step)
        with _tiny.autocast(arguments.device):
            states = target(tokens)
            pair = draft(states[:, :-1], tokens[:, 1:]), draft.head.weight, states[:, 1:], target.head.weight
            loss, _ = flp.divergence_loss(*pair, arguments.kind, teacher_ids=ids, renormalise=True)
            with torch.no_grad():
                seen = flp.divergence(*pair, "total_variation", teacher_ids=ids).acceptance.mean()
        loss.backward(), optimizer.step(), optimizer.zero_grad()
        rates.append(seen.item())
        say("step %3d  loss %.4f  acceptance %.3f" % (step, loss.item(), rates[-1]))
    return {"acceptance": rates}


def parser():
    options = _tiny.parser(__doc__)
    options.add_argument("--share", type=float, default=0.5, help="of the vocabulary that the draft has")
    return distill.add_options(options, "lk")


if __name__ == "__main__":
    given = _tiny.with_sizes(parser().parse_args())
    torch.manual_seed(given.seed)
    _tiny.write_record(given, train(given))
