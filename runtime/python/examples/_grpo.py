"""GRPO on a task without data, for the examples that train by it: the policy, rollouts, reward, and the loop.

A sequence is rewarded for every token that is greater than the one before it. Chance gets one half, and the model
learns to climb. The scores of shape (tokens, vocab) exist nowhere but for the one position that is sampled.
"""
import time

import _tiny
import torch
from _tiny import TinyLM, autocast
from flp.bench import memory

import flp


ENTROPY_WEIGHT = 0.003


class Policy(TinyLM):
    """A language model that scores what was sampled from it."""

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


def loss_of(model, tokens, advantage, old, ref, arguments):
    """Loss and metrics of a rollout, over log-probabilities and entropies."""
    logprob, entropy = model.logprob(tokens, entropy=True)
    return flp.losses.policy_loss(
        arguments.rule, logprob, advantage, old_logprob=old, ref_logprob=ref, entropy=entropy, beta=arguments.beta,
        entropy_weight=ENTROPY_WEIGHT, length=arguments.length)


def update(model, optimizer, loss_of, *batch):
    """One step of the optimiser on a rollout -> metrics of the loss."""
    with autocast(batch[-1].device):
        loss, metrics = loss_of(model, *batch)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    return metrics


def loop(model, reference, arguments, say=_tiny.say, loss_of=loss_of):
    """Trains those parameters that require gradients -> the mean reward of every step.

    reference  tokens (B, T+1) -> log-probabilities (B, T) of the policy that beta holds the model to
    loss_of    as the function of that name
    """
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=arguments.lr)
    rewards = []
    for step in range(arguments.steps):
        first = torch.randint(arguments.vocab // 4, (arguments.prompts,), device=arguments.device)
        with torch.no_grad(), autocast(arguments.device):
            tokens = rollout(model, first.repeat_interleave(arguments.group), arguments.length)
            old, ref = model.logprob(tokens), reference(tokens)
        got = reward(tokens)
        for _ in range(arguments.updates):
            metrics = update(model, optimizer, loss_of, tokens, advantages(got, arguments.group), old, ref, arguments)
        rewards.append(got.mean().item())
        say("step %3d  reward %.3f  entropy %.3f  clipped %.3f  kl %.4f" % (
            step, rewards[-1], metrics["entropy"], metrics["clip_fraction"], metrics["kl"]))
    return rewards


def run(model, reference, arguments, say=_tiny.say, loss_of=loss_of):
    """The loop -> what it showed: rewards, seconds, and the peak above the bytes held before (None on the CPU)."""
    start = time.perf_counter()
    rewards, peak = memory.peak_of(lambda: loop(model, reference, arguments, say, loss_of), arguments.device)
    return {"rule": arguments.rule, "torch": torch.__version__, "rewards": rewards,
            "seconds": time.perf_counter() - start, "peak_bytes_above_held": peak}


def parser(text):
    """The command line of an example whose help is text."""
    options = _tiny.parser(text)
    options.add_argument("--steps", type=int, default=40)
    options.add_argument("--rule", default="grpo", choices=sorted(flp.losses.RULES))
    options.add_argument("--vocab", type=int, default=64)
    options.add_argument("--hidden", type=int, default=64)
    options.add_argument("--length", type=int, default=12, help="tokens that are sampled")
    options.add_argument("--prompts", type=int, default=16)
    options.add_argument("--group", type=int, default=8, help="samples a prompt")
    options.add_argument("--updates", type=int, default=2, help="of each rollout")
    options.add_argument("--beta", type=float, default=0.005)
    options.add_argument("--lr", type=float, default=3e-3)
    return options


def policy_of(arguments):
    """A model of random weights, from the seed."""
    torch.manual_seed(arguments.seed)
    return Policy(arguments.vocab, arguments.hidden, 2, 4).to(arguments.device)
