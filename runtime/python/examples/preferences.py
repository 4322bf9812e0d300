#!/usr/bin/env python3
"""Trains a small language model on preferences between completions: DPO, IPO, SimPO, CPO, ORPO or KTO.

    python3 runtime/python/examples/preferences.py [--rule dpo] [--tiny] [--device cuda] [--json FILE]

A step is one call of flp.linear_logprob for chosen and rejected completions together, whose memory grows neither with
the vocabulary nor with their length, sums by flp.sequence_logprob, and flp.losses.preference_loss of these. Here a
chosen completion counts upwards and a rejected one downwards; the reference is the model as it was before.
"""
import copy

import _tiny
import torch

import flp


def pairs(arguments):
    """Tokens (2B, T + 1), chosen completions first, and which count: all behind a prompt of four."""
    first = torch.randint(arguments.vocab, (arguments.batch, 1), device=arguments.device)
    steps = torch.arange(arguments.length + 1, device=arguments.device)
    tokens = torch.cat([first + steps, first + steps.clamp(max=4) - (steps - 4).clamp(min=0)]) % arguments.vocab
    return tokens, (steps[1:] > 4).expand(len(tokens), -1)


def sequences(model, tokens, mask):
    """-> the log-probabilities' sum and mean of each sequence (2B)"""
    with _tiny.autocast(tokens.device):
        return flp.sequence_logprob(flp.linear_logprob(model(tokens[:, :-1]), model.head.weight, tokens[:, 1:]), mask)


def train(arguments, say=_tiny.say):
    """-> losses, and how far chosen rewards are above rejected ones, of every step"""
    model = _tiny.TinyLM(arguments.vocab, arguments.hidden, layers=2, heads=4, device=arguments.device)
    reference, rule = copy.deepcopy(model), flp.losses.PREFERENCES[arguments.rule]
    optimizer, losses, margins = torch.optim.AdamW(model.parameters(), lr=0.1 / arguments.hidden), [], []
    for step in range(arguments.steps):
        tokens, mask = pairs(arguments)
        chosen = torch.arange(len(tokens), device=tokens.device) < arguments.batch
        options = {} if rule.in_pairs else {"chosen": chosen}
        if rule.needs_ref:
            with torch.no_grad():
                options["ref_logprob"] = sequences(reference, tokens, mask)
        loss, metrics = flp.losses.preference_loss(arguments.rule, sequences(model, tokens, mask), **options)
        loss.backward(), optimizer.step(), optimizer.zero_grad()
        losses.append(loss.item())
        margins.append((metrics["chosen_reward"] - metrics["rejected_reward"]).item())
        say("step %3d  loss %.4f  margin %.4f" % (step, losses[-1], margins[-1]))
    return {"losses": losses, "margins": margins}


def parser():
    options = _tiny.parser(__doc__)
    options.add_argument("--rule", choices=sorted(flp.losses.PREFERENCES), default="dpo")
    _tiny.add_sizes(options, steps=(40, 12), batch=(16, 8), length=(1024, 24), vocab=(151936, 64), hidden=(512, 32))
    return options


if __name__ == "__main__":
    given = _tiny.with_sizes(parser().parse_args())
    torch.manual_seed(given.seed)
    _tiny.write_record(given, train(given))
