#!/usr/bin/env python3
"""Trains a small language model from scratch with GRPO: rollout, scoring and training through flp.

    python3 runtime/python/examples/grpo_tiny.py [--steps 40] [--device cuda] [--rule grpo] [--tail 2^-9]
    python3 runtime/python/examples/grpo_tiny.py --compare-tail --json f.json    exact gradients beside such, three seeds

Each step samples groups of sequences from a first token, scores them with the policy that sampled and with the
reference (the untrained model), and makes a few updates on the clipped ratio: flp.policy_loss gives loss, metrics and
gradients in one call, from hidden states. _grpo.py has the task and the loop.

Rollouts of two runs part ways at the first token that a rounding tips, whatever the gradients are, so runs are compared
by the means over their seeds: they agree where these are no further apart, over all steps, than seeds are. A comparison
ends with status 1 where they do not, or where a GPU computed every row exactly, after the record is written.
"""
import argparse
import copy
import math
import statistics
import sys
import time

import _grpo
import _tiny
import torch

import flp

TAIL = 2.0**-9
WAYS = ("exact", "tail")
LEFT_OUT = ("largest_share_left_out", "share_of_rows_recomputed", "listed_columns_a_row")


def bound(text):
    """A number, also as a power: "2^-9"."""
    try:
        base, caret, power = text.partition("^")
        number = float(base) ** float(power) if caret else float(base)
    except (ValueError, OverflowError, ZeroDivisionError):
        raise argparse.ArgumentTypeError("%r is no number (accepted: such as 2^-9 or 0.002)" % text)
    return number


def parser():
    options = _grpo.parser(__doc__)
    options.add_argument("--tail", type=bound, help="what a backward pass may leave out: 0 (default), or 2^-20 to 2^-2")
    options.add_argument("--compare-tail", action="store_true",
                         help="train with exact gradients and with --tail (default 2^-9), from each of --seeds seeds")
    options.add_argument("--seeds", type=int, default=3, help="of a comparison, from --seed on")
    options.set_defaults(reports=[])
    return options


def loss_of(model, tokens, advantage, old, ref, arguments):
    """Loss and metrics of a rollout; the gradients of hidden states and head exist when it returns."""
    report = torch.zeros(4, device=tokens.device) if arguments.tail else None
    if arguments.tail:
        arguments.reports.append(report)
    return flp.policy_loss(
        arguments.rule, model(tokens[:, :-1]), model.head.weight, tokens[:, 1:], advantage, old_logprob=old,
        ref_logprob=ref, beta=arguments.beta, entropy_weight=_grpo.ENTROPY_WEIGHT, length=arguments.length,
        tail=arguments.tail, tail_report=report)


def train(arguments, say=_tiny.say):
    """-> what the loop showed: rewards, seconds, peak; with tail what its backward passes left out"""
    model = _grpo.policy_of(arguments)
    reference = copy.deepcopy(model)
    arguments.reports = []
    results = _grpo.run(model, reference.logprob, arguments, say, loss_of)
    if arguments.tail:
        results.update(tail=arguments.tail, **left_out(arguments.reports, arguments))
    return results


def left_out(reports, arguments):
    """What the backward passes of a run left out: the largest share of Σ|dz| in one, and means a row of their rows."""
    left, whole, recomputed, listed = torch.stack(reports).double().cpu().unbind(1)
    rows = len(reports) * arguments.prompts * arguments.group * arguments.length
    shares = left / whole.clamp(min=torch.finfo(torch.float32).tiny)
    return dict(zip(LEFT_OUT, (shares.max().item(), recomputed.sum().item() / rows, listed.sum().item() / rows)))


# ---- exact gradients beside those within a bound ----

def compare(arguments, say=_tiny.say):
    """Trains both ways from every seed -> their rewards by seed, and whether the means agree."""
    tail, runs, start = arguments.tail or TAIL, {way: [] for way in WAYS}, time.perf_counter()
    for seed in range(arguments.seed, arguments.seed + arguments.seeds):
        for way in WAYS:
            own = argparse.Namespace(**{**vars(arguments), "seed": seed, "tail": tail if way == "tail" else None})
            runs[way].append(train(own, lambda line: None))
            say("seed %d  %-5s  reward %.3f -> %.3f" % (seed, way, runs[way][-1]["rewards"][0],
                                                        runs[way][-1]["rewards"][-1]))
    results = agreement({way: [run["rewards"] for run in runs[way]] for way in WAYS})
    say("rewards of the last step %s; the means are %.4f apart, seeds %.4f: they %s" % (
        ", ".join("%.3f %s" % (results["mean_rewards_" + way][-1], way) for way in WAYS), results["apart"],
        results["spread_of_seeds"], "agree" if results["agree"] else "do not agree"))
    shares = {name: [run[name] for run in runs["tail"]] for name in LEFT_OUT}
    return {"rule": arguments.rule, "torch": torch.__version__, "tail": tail, "first_seed": arguments.seed,
            "seconds": time.perf_counter() - start, **shares, **results}


def agreement(rewards):
    """{way: [rewards of every step] a seed} -> these, their means over seeds, and how they compare.

    apart            root mean square over steps of the difference of the two means
    spread_of_seeds  the same of the standard deviation of one way's seeds, of both ways together
    agree            whether apart is at most spread_of_seeds; None: one seed has no spread
    """
    means = {way: [statistics.fmean(step) for step in zip(*rewards[way])] for way in WAYS}
    apart = root_mean_square([one - other for one, other in zip(*means.values())])
    spread = None
    if len(rewards["exact"]) > 1:
        spread = root_mean_square([statistics.stdev(step) for way in WAYS for step in zip(*rewards[way])])
    return {**{"rewards_" + way: rewards[way] for way in WAYS}, **{"mean_rewards_" + way: means[way] for way in WAYS},
            "apart": apart, "spread_of_seeds": spread, "agree": None if spread is None else apart <= spread}


def faults(results, device):
    """Why a comparison does not show what it is there for: sentences. The CPU leaves nothing out."""
    found = []
    if results["agree"] is False:
        found.append("mean rewards are %.4f apart, further than seeds, %.4f" % (results["apart"],
                                                                                results["spread_of_seeds"]))
    if device.type == "cuda" and not max(results["listed_columns_a_row"]) > 0:
        found.append("no row was served by its list: both ways are exact")
    return found


def root_mean_square(values):
    return math.sqrt(statistics.fmean(value * value for value in values))


def main(arguments=None):
    given = parser().parse_args(arguments)
    if given.compare_tail and given.seeds < 2:
        raise SystemExit("--seeds is %d (accepted: at least 2 with --compare-tail)" % given.seeds)
    results = compare(given) if given.compare_tail else train(given)
    _tiny.write_record(given, results)
    if given.compare_tail and faults(results, given.device):
        sys.exit("; ".join(faults(results, given.device)))


if __name__ == "__main__":
    main()
