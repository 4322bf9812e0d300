#!/usr/bin/env python3
"""What untuned shapes lose: the time of an untuned plan against that after tuning, on shapes drawn from a seed.

    python3 tests/gpu/regret.py --flpgen build/release/bin/flpgen --tuned h200.flpp --out regret.json [--resume] [--most 10]

Thirty heads, V from 16384 to 262144 and D from 512 to 8192, both even in their logarithm and rounded to 64, N of 1024 to
16384, half of them scoring alone and half training. Each is tuned for twenty seconds with what a plan would run without
that, the tiling of the nearest tuned shape in the caches that --tuned names, timed beside it to the end. The regret of
a kernel is the time of that tiling over the time of what tuning chose, less one; of a shape it is the greatest of its
kernels. Shapes done are kept in the record, so that several runs make one. Standard library only.
"""

import argparse
import datetime
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "autotune"))

import tuning_records  # noqa: E402

SEED, SHAPES = 20261121, 30
VOCAB, HIDDEN, ROWS = (16384, 262144), (512, 8192), (1024, 16384)
TRAINING = ["--entropy", "backward", "--grad", "hidden,weight"]
TILINGS = ("forward", "dz", "products")


def draw(seed=SEED, count=SHAPES):
    """-> [{vocab, hidden, rows, training}], the same for a seed wherever it runs."""
    source = random.Random(seed)

    def pick(least, most, step):
        return round(math.exp(source.uniform(math.log(least), math.log(most))) / step) * step

    return [{"vocab": pick(*VOCAB, 64), "hidden": pick(*HIDDEN, 64), "rows": pick(*ROWS, 256), "training": i % 2 == 1}
            for i in range(count)]


def options_of(shape):
    head = ["--vocab", str(shape["vocab"]), "--hidden", str(shape["hidden"]), "--dtype", "bf16"]
    return head + (TRAINING if shape["training"] else ["--entropy", "forward"])


def run(command, **environment):
    done = subprocess.run(command, env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit {done.returncode}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def untuned_tilings(flpgen, shape, tuned, folder):
    """-> the tile configuration of a plan without tuning, as --include takes it; "" for defaults."""
    explained = run([flpgen, "explain", *options_of(shape), "--json"], FLP_CACHE_PATH=tuned,
                    FLP_CACHE_DIR=f"{folder}/plan")
    plan = explained["plan"]
    if plan["rung"] == "tuned":
        sys.exit(f"{shape}: tuned already: choose another seed")
    return plan["tune"], plan["cut"]


def regret_of(step):
    """-> time of the untuned tiling over that of the chosen one, less 1."""
    included = step["included"]
    if included and included["ratio"] is None:
        sys.exit(f"{step['kind']}: {included['cut']} is {included['status']}: {included['reason']}")
    untuned = included["ratio"] if included else 1.0
    return max(untuned / step["ratio"] - 1, 0.0)


def measure(flpgen, shape, tuned, budget):
    with tempfile.TemporaryDirectory() as folder:
        tune, tiling = untuned_tilings(flpgen, shape, tuned, folder)
        command = [flpgen, "tune", *options_of(shape), "--rows", str(shape["rows"]), "--budget", f"{budget}s", "--json",
                   "--no-bare", "--out", f"{folder}/tuned", *(["--include", tune] if tune else [])]
        document = run(command)
    steps = [step for step in document["targets"][0]["steps"] if step["kind"] in TILINGS]
    kernels = {step["kind"]: {"untuned": tune or "own", "chosen": step["chosen"], "ratio": step["ratio"],
                              "noise": step["noise"], "regret": round(regret_of(step), 4)} for step in steps}
    head = {"gpu": document["gpu"], "driver": f"{document['driver'] // 1000}.{document['driver'] % 1000 // 10}"}
    return head, {**shape, "untuned": tiling, "kernels": kernels,
                  "regret": max(kernel["regret"] for kernel in kernels.values())}


def summary(rows):
    regrets = [row["regret"] for row in rows]
    return {"shapes": len(rows), "median": statistics.median(regrets), "worst": max(regrets)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flpgen", required=True)
    parser.add_argument("--tuned", default="", help="packs and directories of tuned kernels, as FLP_CACHE_PATH")
    parser.add_argument("--out", required=True)
    parser.add_argument("--resume", action="store_true", help="go on with the record --out")
    parser.add_argument("--most", type=int, default=SHAPES, help="shapes of this run")
    parser.add_argument("--budget", type=float, default=20, help="seconds a shape")
    arguments = parser.parse_args()
    path = Path(arguments.out)
    flpgen = str(Path(arguments.flpgen).resolve())
    sources = run([flpgen, "doctor", "--json"])["generator"]["sources"]
    record = json.loads(path.read_text()) if arguments.resume and path.exists() else {"rows": []}
    if record["rows"] and record["sources_hash"] != sources:
        sys.exit(f"{path}: of sources {record['sources_hash'][:12]}, this generator has {sources[:12]}")
    waiting = [shape for shape in draw() if all(any(row[key] != shape[key] for key in shape) for row in record["rows"])]
    for shape in waiting[:arguments.most]:
        head, row = measure(flpgen, shape, arguments.tuned, arguments.budget)
        rows = [*record["rows"], row]
        record = {**head, "sources_hash": sources, "command": "tests/gpu/regret.py", "seed": SEED,
                  "date": record.get("date") or datetime.date.today().isoformat(),
                  "budget_s": arguments.budget, "summary": summary(rows), "rows": rows}
        path.write_text(tuning_records.text_of(record))
        print(f"{shape}: {100 * row['regret']:.1f} %", flush=True)
    print(json.dumps(summary(record["rows"])))


if __name__ == "__main__":
    main()
