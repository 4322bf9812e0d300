#!/usr/bin/env python3
"""Trains adapters on the trunk of a language model with GRPO, its head frozen: a backward pass of fewer products.

    python3 runtime/python/examples/grpo_lora.py [--steps 40] [--rank 8] [--device cuda]

Every linear map of the trunk gets a LoRA of its own, in plain torch (LoraLinear below); everything else stays as it is.
As the head needs no gradient, flp computes that of the hidden states alone: three matrix products a step (the scores,
the scores again, the gradient) where a trained head costs a fourth. The reference needs no second model: it is this one
with its adapters off. _grpo.py has the task and the loop.
"""
import contextlib
import math

import _grpo
import _tiny
import torch
import torch.nn.functional as F
from torch import nn

import flp


class LoraLinear(nn.Module):
    """x Wᵀ + b + (alpha / rank) · x Aᵀ Bᵀ, with W and b frozen and B zero at first. source: arXiv:2106.09685"""

    def __init__(self, base, rank, alpha):
        super().__init__()
        self.base, self.scale, self.on = base.requires_grad_(False), alpha / rank, True
        self.lora_a = nn.Parameter(torch.randn(rank, base.in_features) / math.sqrt(base.in_features))
        self.lora_b = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x):
        """(..., in) -> (..., out)"""
        y = self.base(x)
        return y + self.scale * F.linear(F.linear(x, self.lora_a), self.lora_b) if self.on else y


def add_lora(model, rank, alpha):
    """Freezes a _tiny.TinyLM and puts an adapter around each linear map of its blocks."""
    model.requires_grad_(False)
    for block in model.blocks:
        for name, layer in list(block.named_children()):
            if isinstance(layer, nn.Linear):
                setattr(block, name, LoraLinear(layer, rank, alpha).to(layer.weight.device))


@contextlib.contextmanager
def adapters_off(model):
    """The model without what it has learned."""
    adapters = [layer for layer in model.modules() if isinstance(layer, LoraLinear)]
    for adapter in adapters:
        adapter.on = False
    try:
        yield
    finally:
        for adapter in adapters:
            adapter.on = True


def products_of(model, arguments, frozen):
    """Matrix products of the head in one training step, forward and backward, as flp plans them."""
    shape = arguments.prompts * arguments.group, arguments.length
    tokens = torch.zeros(shape, dtype=torch.int64, device=arguments.device)
    weight = model.head.weight.detach().requires_grad_(not frozen)
    with _tiny.autocast(arguments.device):
        plan = flp.explain(model(tokens), weight, tokens, entropy=True)
    return plan.forward["products"] + plan.backward["products"]


def train(arguments, say=_tiny.say):
    """-> what the loop showed, and what was trained of how much"""
    model = _grpo.policy_of(arguments)
    add_lora(model, arguments.rank, 2 * arguments.rank)

    def reference(tokens):
        with adapters_off(model):
            return model.logprob(tokens)

    results = _grpo.run(model, reference, arguments, say)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    results.update(trained_parameters=trained, parameters=sum(p.numel() for p in model.parameters()),
                   head_has_gradient=model.head.weight.grad is not None,
                   products=products_of(model, arguments, frozen=True),
                   products_of_a_trained_head=products_of(model, arguments, frozen=False))
    say("trained %(trained_parameters)d of %(parameters)d parameters, gradient of the head: %(head_has_gradient)s; "
        "%(products)d matrix products a step, with a trained head %(products_of_a_trained_head)d" % results)
    return results


def parser():
    options = _grpo.parser(__doc__)
    options.add_argument("--rank", type=int, default=8, help="of every adapter")
    options.set_defaults(lr=1e-2)
    return options


if __name__ == "__main__":
    given = parser().parse_args()
    _tiny.write_record(given, train(given))
