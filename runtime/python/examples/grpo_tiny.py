#!/usr/bin/env python3
"""Trains a small language model from scratch with GRPO: rollout, scoring and training through flp.

    python3 runtime/python/examples/grpo_tiny.py [--steps 40] [--device cuda] [--rule grpo]

Each step samples groups of sequences from a first token, scores them with the policy that sampled and with the
reference (the untrained model), and makes a few updates on the clipped ratio: flp.policy_loss gives loss, metrics and
gradients in one call, from hidden states. _grpo.py has the task and the loop.
"""
import copy

import _grpo
import _tiny

import flp


def parser():
    return _grpo.parser(__doc__)


def loss_of(model, tokens, advantage, old, ref, arguments):
    """Loss and metrics of a rollout; the gradients of hidden states and head exist when it returns."""
    return flp.policy_loss(
        arguments.rule, model(tokens[:, :-1]), model.head.weight, tokens[:, 1:], advantage, old_logprob=old,
        ref_logprob=ref, beta=arguments.beta, entropy_weight=_grpo.ENTROPY_WEIGHT, length=arguments.length)


def train(arguments, say=_tiny.say):
    """-> what the loop showed: rewards, seconds, peak"""
    model = _grpo.policy_of(arguments)
    reference = copy.deepcopy(model)
    return _grpo.run(model, reference.logprob, arguments, say, loss_of)


if __name__ == "__main__":
    given = parser().parse_args()
    _tiny.write_record(given, train(given))
