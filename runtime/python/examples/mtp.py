#!/usr/bin/env python3
"""Multi-token prediction: k heads' predictions are rows of one call, each row with a weight of its own.

    python3 runtime/python/examples/mtp.py [--heads 3] [--share 0.3] [--compare] [--tiny] [--device cuda] [--json FILE]

A trunk predicts the next token; behind it one block after the other predicts a token further ahead, each from the
states before it and the token that they predicted, all through one language-model head (arXiv:2412.19437, section 2.2).
The states of all of them are one (K, B, T, D) for flp.linear_logprob, their targets one (K, B, T): the weight is read
once, not once a head. A row counts 1 if it predicts the next token, share / (K - 1) further ahead, over their number.

--compare also takes the losses head by head, each in a call of its own, and the same step as flp.policy_loss, whose
advantage is the weight of a row: three matrix products in place of four.
"""
import _tiny
import torch
import torch.nn.functional as F
from torch import nn

import flp

IGNORED = -100


class Ahead(nn.Module):
    """States that predict a token further than those before them."""

    def __init__(self, hidden, heads, **where):
        super().__init__()
        self.before, self.token = nn.LayerNorm(hidden, **where), nn.LayerNorm(hidden, **where)
        self.both, self.block = nn.Linear(2 * hidden, hidden, **where), _tiny.Block(hidden, heads, **where)
        self.norm = nn.LayerNorm(hidden, **where)

    def forward(self, states, embedded):
        return self.norm(self.block(self.both(torch.cat([self.before(states), self.token(embedded)], -1))))


class Model(nn.Module):
    """A small language model with K - 1 further predictions."""

    def __init__(self, vocab, hidden, layers, heads, **where):
        super().__init__()
        self.trunk = _tiny.TinyLM(vocab, hidden, layers, 4, **where)
        self.ahead = nn.ModuleList(Ahead(hidden, 4, **where) for _ in range(heads - 1))

    def forward(self, tokens):
        """(B, T) -> (K, B, T, D): [k, :, t] is to predict token t + 1 + k"""
        states = [self.trunk(tokens)]
        for k, module in enumerate(self.ahead, 1):
            states.append(module(states[-1], self.trunk.embed(shifted(tokens, k, 0))))
        return torch.stack(states)


def shifted(tokens, by, fill):
    """[:, t] is token t + by, or fill behind the last. (B, T) -> (B, T)"""
    return F.pad(tokens[:, by:], (0, by), value=fill)


def rows_of(tokens, heads, share):
    """The targets of every head and the weight of every row, (K, B, T) each."""
    targets = torch.stack([shifted(tokens, k + 1, IGNORED) for k in range(heads)])
    parts = torch.full((heads, 1, 1), share / max(heads - 1, 1), device=tokens.device)
    parts[0] = 1
    return targets, parts / (targets != IGNORED).sum((1, 2), keepdim=True).clamp(min=1)


def loss_of(model, tokens, heads, share):
    """-> the loss of all heads in one call, and each head's mean without its weight"""
    targets, weights = rows_of(tokens, heads, share)
    logprob = flp.linear_logprob(model(tokens), model.trunk.head.weight, targets)
    means = -logprob.detach().sum((1, 2)) / (targets != IGNORED).sum((1, 2)).clamp(min=1)
    return -(weights * logprob).sum(), means


def one_by_one(model, tokens, heads, share):
    """The same loss in K calls."""
    targets, weights = rows_of(tokens, heads, share)
    parts = [-(w * flp.linear_logprob(states, model.trunk.head.weight, ids)).sum()
             for states, ids, w in zip(model(tokens), targets, weights)]
    return sum(parts)


def as_step(model, tokens, heads, share):
    """The same loss with its gradients made at once, in three products."""
    targets, weights = rows_of(tokens, heads, share)
    states = model(tokens)
    loss, _ = flp.policy_loss("reinforce", states.flatten(0, 1), model.trunk.head.weight, targets.flatten(0, 1),
                              weights.expand_as(targets).flatten(0, 1), total=1.0)
    return loss


def gradients_of(loss, model):
    return torch.cat([grad.flatten() for grad in torch.autograd.grad(loss, list(model.parameters()))])


def largest_difference(model, tokens, arguments):
    """Of the gradients of the other two forms from those of one call, beside their norm."""
    given = model, tokens, arguments.heads, arguments.share
    want = gradients_of(loss_of(*given)[0], model)
    return max(float((gradients_of(form(*given), model) - want).norm() / want.norm()) for form in (one_by_one, as_step))


def train(arguments, say=_tiny.say):
    """-> what each head's mean loss is after every step, and the largest difference of --compare"""
    model = Model(arguments.vocab, arguments.hidden, 2, arguments.heads).to(arguments.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.3 / arguments.hidden)
    losses, differences = [], []
    for step in range(arguments.steps):
        tokens = _tiny.batch_of(arguments, step)
        if arguments.compare:
            differences.append(largest_difference(model, tokens, arguments))
        with _tiny.autocast(arguments.device):
            loss, means = loss_of(model, tokens, arguments.heads, arguments.share)
        loss.backward(), optimizer.step(), optimizer.zero_grad()
        losses.append(means.tolist())
        each = " ".join("%.3f" % mean for mean in losses[-1])
        say("step %3d  loss %.4f  of each head %s" % (step, loss.item(), each))
    return {"losses": losses, "largest_difference": max(differences, default=None)}


def parser():
    options = _tiny.parser(__doc__)
    options.add_argument("--heads", type=int, default=3, help="K, the next token's among them")
    options.add_argument("--share", type=float, default=0.3, help="of the predictions further ahead in the loss")
    options.add_argument("--compare", action="store_true", help="with K calls and with flp.policy_loss")
    _tiny.add_sizes(options, steps=(40, 40), batch=(8, 4), length=(1024, 24), vocab=(32000, 211), hidden=(1024, 64))
    return options


if __name__ == "__main__":
    given = _tiny.with_sizes(parser().parse_args())
    torch.manual_seed(given.seed)
    _tiny.write_record(given, train(given))
