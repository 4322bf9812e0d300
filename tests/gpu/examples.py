#!/usr/bin/env python3
"""Runs every example on this machine's GPU and writes one record of what each showed.

    FLP_LIBRARY=build/release/lib/libflp.so python3 tests/gpu/examples.py --json examples.json [--only grpo_lora]
    ... --tiny        on the CPU, in sizes for it

Every example is a process of its own with a time limit; what it writes with --json is its `results`. An example is held
to what it is there to show (`shows` of its row): rewards that rise, losses that fall, the naive path out of memory. One
that cannot run here is skipped with a reason: no file, too few GPUs, no transformers. Exit status 1 if any failed.
"""
import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

TREE = Path(__file__).resolve().parents[2]
PYTHON = TREE / "runtime" / "python"
sys.path.insert(0, str(PYTHON))
from flp.bench import record  # noqa: E402


class Unshown(Exception):
    """An example ran and did not show what it is there for: one sentence."""


def hold(condition, text):
    if not condition:
        raise Unshown(text)


# ---- what each shows: (what it wrote, what it printed) -> figures. error: Unshown ----

def rewards_rise(written, _):
    rewards = written["results"]["rewards"]
    first, last = sum(rewards[:3]) / 3, sum(rewards[-3:]) / 3
    hold(last > first + 0.04, "rewards went from %.3f to %.3f" % (first, last))
    return {"reward_start": first, "reward_end": last,
            "peak_bytes_above_held": written["results"].get("peak_bytes_above_held")}


def margins_grow(written, _):
    losses, margins = written["results"]["losses"], written["results"]["margins"]
    hold(losses[-1] < losses[0], "losses went from %.3f to %.3f" % (losses[0], losses[-1]))
    hold(margins[-1] > margins[0] + 0.1, "margins went from %.3f to %.3f" % (margins[0], margins[-1]))
    return {"loss_start": losses[0], "loss_end": losses[-1], "margin_end": margins[-1]}


def adapters_learn(written, printed):
    results = written["results"]
    hold(not results["head_has_gradient"], "the frozen head has a gradient")
    hold((results["products"], results["products_of_a_trained_head"]) in ((2, 3), (3, 4)),  # mode save, or recompute
         "%d products a step, with a trained head %d" % (results["products"], results["products_of_a_trained_head"]))
    return {**rewards_rise(written, printed), "products": results["products"]}


def losses_fall(written, _):
    results = written["results"]
    ours, theirs = results["losses_flp"], results["losses_materialised"]
    hold(ours[-1] < ours[0], "losses went from %.3f to %.3f" % (ours[0], ours[-1]))
    hold(results["largest_loss_difference"] < 0.05, "losses differ by %.3f" % results["largest_loss_difference"])
    return {"loss_start": ours[0], "loss_end": ours[-1], "materialised_loss_end": theirs[-1],
            "peak_bytes_above_held": results["peak_bytes_above_held_flp"],
            "materialised_peak_bytes_above_held": results["peak_bytes_above_held_materialised"]}


def ten_losses_fall(written, _):
    losses = written["results"]["losses"]
    hold(len(losses) == 20 and losses[-1] < losses[0], "losses were %s" % losses)
    return {"loss_start": losses[0], "loss_end": losses[-1]}


def divergences_fall(written, _):
    first, *_, last = written["results"]["divergences"]
    hold(last < 0.7 * first, "divergences went from %.3f to %.3f" % (first, last))
    return {"divergence_start": first, "divergence_end": last}


def acceptance_rises(written, _):
    first, *_, last = written["results"]["acceptance"]
    hold(last > first + 0.1, "acceptance went from %.3f to %.3f" % (first, last))
    return {"acceptance_start": first, "acceptance_end": last}


def all_heads_learn(written, _):
    losses, apart = written["results"]["losses"], written["results"]["largest_difference"]
    for first, last in zip(losses[0], losses[-1]):
        hold(last < first - 0.5, "a head's losses went from %.3f to %.3f" % (first, last))
    hold(apart < 1e-3, "gradients differ by %.1e" % apart)
    return {"losses_start": losses[0], "losses_end": losses[-1], "largest_difference": apart}


def losses_are_finite(written, _):
    losses = written["results"]["losses"]
    # a value that is not finite is null in a record
    hold(len(losses) == 8 and None not in losses, "losses were %s" % losses)
    return {"loss_start": losses[0], "loss_end": losses[-1]}


def naive_does_not_fit(written, _):
    hold(written["failed"] == 0, "; ".join(written["faults"]))
    rows = {(row["part"], row["way"]): row for row in written["rows"]}
    ours, naive = rows["step", "flp"], rows["step", "naive, fp32"]
    if written["gpu_memory_bytes"]:
        hold(naive["ms"] is None, "the naive step took %s ms: it fits this GPU" % naive["ms"])
    return {"ms": ours["ms"], "peak_bytes_above_held": ours["peak_bytes_above_held"],
            "logprob_error": rows["loss", "flp"]["logprob_error"], "gpu_memory_bytes": written["gpu_memory_bytes"],
            "naive_error": naive.get("reason"), "naive_requested_bytes": naive.get("requested_bytes")}


def two_processes_are_one(written, _):
    ranks = written["results"]["ranks"]
    hold(len(ranks) == 2, "%d ranks left losses" % len(ranks))
    start, *_, end = ranks[0]["losses_two_processes"]
    difference = max(abs(two - one) for rank in ranks for two, one in zip(*rank.values()))
    hold(end < start - 0.01, "losses went from %.3f to %.3f" % (start, end))
    hold(difference < 1e-3, "losses differ by %.1e" % difference)
    return {"loss_start": start, "loss_end": end, "largest_loss_difference": difference}


class Example:
    """One example: what is run, at full size and tiny, what it needs then, and what it shows."""

    def __init__(self, name, shows, options=(), tiny=None, gpus=1, needs=(), tiny_needs=()):
        self.name, self.shows, self.options, self.tiny = name, shows, options, tiny
        self.gpus, self.needs, self.tiny_needs = gpus, needs, tiny_needs
        self.script = PYTHON / "examples" / (name + ".py")

    def reason_against(self, tiny):
        """Why it is not run, or None."""
        if not self.script.exists():
            return "%s is not there" % self.script.name
        if not tiny and torch.cuda.device_count() < self.gpus:
            return "needs %d GPUs, %d are here" % (self.gpus, torch.cuda.device_count())
        needs = self.tiny_needs if tiny else self.needs
        absent = [name for name in needs if importlib.util.find_spec(name) is None]
        return "%s is not installed" % " and ".join(absent) if absent else None


SMALL = ["--device", "cpu", "--prompts", "8", "--length", "8", "--hidden", "32", "--vocab", "32", "--steps", "14"]
EXAMPLES = (
    Example("ten_lines", ten_losses_fall, tiny=["--device", "cpu", "--tiny"], needs=("transformers",),
            tiny_needs=("transformers",)),
    Example("train_tiny_lm", losses_fall, ["--compare", "--steps", "40"],
            ["--tiny", "--compare", "--device", "cpu", "--rate", "1e-2"], needs=("transformers",)),
    Example("grpo_tiny", rewards_rise, tiny=SMALL),
    Example("grpo_lora", adapters_learn, tiny=SMALL),
    Example("hf_logprobs", losses_are_finite, tiny=["--device", "cpu"], needs=("transformers", "peft"),
            tiny_needs=("transformers", "peft")),
    Example("gated_batch", rewards_rise, tiny=["--device", "cpu", "--steps", "40"]),
    Example("preferences", margins_grow, tiny=["--device", "cpu", "--tiny"]),
    Example("distill", divergences_fall, tiny=["--device", "cpu", "--tiny", "--payload"]),
    Example("teacher", divergences_fall, tiny=["--device", "cpu", "--tiny"]),
    Example("draft_head", acceptance_rises, tiny=["--device", "cpu", "--tiny"]),
    Example("mtp", all_heads_learn, ["--compare"], ["--device", "cpu", "--tiny", "--compare"]),
    Example("long_context", naive_does_not_fit, tiny=["--device", "cpu", "--tiny"]),
    Example("tensor_parallel", two_processes_are_one, tiny=["--device", "cpu"], gpus=2),
)


def last_line(text):
    return (text.strip().splitlines() or ["it said nothing"])[-1][:300]


def run(example, tiny, limit):
    """-> the row of one example"""
    reason = example.reason_against(tiny)
    if reason:
        return {"example": example.name, "status": "skipped", "reason": reason}
    options = list(example.tiny if tiny else example.options)
    command = [str(example.script.relative_to(TREE)), *options]
    row = {"example": example.name, "status": "ran", "command": " ".join(["python3", *command])}
    paths = os.pathsep.join(filter(None, [str(PYTHON), os.environ.get("PYTHONPATH")]))
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "record.json"
        try:
            done = subprocess.run([sys.executable, *command, "--json", str(out)],
                                  cwd=TREE, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True,
                                  timeout=limit)
            hold(done.returncode == 0, "exit status %d: %s" % (done.returncode, last_line(done.stderr)))
            written = json.loads(out.read_text()) if out.exists() else {}
            row.update(shows=example.shows(written, done.stdout),
                       results=written.get("results", {"rows": written.get("rows")}))
        except subprocess.TimeoutExpired:
            row.update(status="failed", reason="not done within %g s" % limit)
        except (Unshown, ValueError, KeyError, IndexError) as error:
            row.update(status="failed", reason="%s: %s" % (type(error).__name__, error))
    return {**row, "seconds": time.monotonic() - start}


def show(row):
    shown = row.get("reason") or ", ".join("%s %s" % item for item in record.rounded(row["shows"]).items())
    print("%s: %s%s: %s" % (row["example"], row["status"],
                            ", %.1f s" % row["seconds"] if "seconds" in row else "", shown), flush=True)


def names(text):
    known = [example.name for example in EXAMPLES]
    chosen = text.split(",")
    if set(chosen) - set(known):
        raise argparse.ArgumentTypeError("%r is not accepted; some of %s are" % (text, ",".join(known)))
    return chosen


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", required=True, help="file for the record; - for standard output")
    parser.add_argument("--only", type=names, default=[example.name for example in EXAMPLES], help="default all")
    parser.add_argument("--tiny", action="store_true", help="on the CPU, in small sizes")
    parser.add_argument("--limit", type=float, default=150, help="seconds for each, default %(default)s")
    options = parser.parse_args(arguments)
    if not options.tiny and not torch.cuda.is_available():
        parser.error("no GPU is here; --tiny runs on the CPU")
    rows = []
    for example in EXAMPLES:
        if example.name in options.only:
            rows.append(run(example, options.tiny, options.limit))
            show(rows[-1])
    device = torch.device("cpu" if options.tiny else "cuda")
    command = "tests/gpu/examples.py" + " --tiny" * options.tiny
    failed = sum(row["status"] == "failed" for row in rows)
    head = {**record.head(command, device), "torch": torch.__version__}
    record.write({**head, "failed": failed, "rows": rows}, options.json)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
