#!/usr/bin/env python3
"""Measures the kernels that run on every GPU, sm_80's, on the one that is here, beside the best product that mma.sync
makes: CUTLASS' GEMM for sm_80 (mma_gemm.cu), built here.

    python3 tests/gpu/portable.py --flpgen build/release/bin/flpgen --cutlass CUTLASS/include --json portable.json

--cutlass has CUTLASS' headers: those of the wheel nvidia-cutlass stand in cutlass_library/source/include. A case is
measured --rounds times, products before and after it; ms, gemm_ms: medians, gemm: the fastest tiling; ratio: ms over so
many products. Exit status 1 if anything failed.
"""
import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "autotune"))

import tuning_records  # noqa: E402
from parts import FORWARD, LOSS, TRAINING  # noqa: E402

VOCAB = 151936
# name: (N, D, words of flpgen bench)
CASES = {
    **{f"forward_{hidden}": (8192, hidden, FORWARD) for hidden in (4096, 2048, 1024)},
    "forward_short": (1024, 4096, FORWARD),
    "training": (8192, 4096, f"--dtype bf16 {TRAINING}"),
    "saved": (8192, 4096, "--dtype bf16 --keep --grad hidden,weight --budget 4G"),
    "direction": (8192, 4096, "--dtype bf16 --mode direction --grad hidden --budget 512M"),
    "streamed": (8192, 4096, f"--dtype bf16 --mode stream {LOSS} --grad hidden,weight --budget 1.5G"),
}


def built(cutlass, folder):
    """The program of mma_gemm.cu."""
    program = folder / "mma_gemm"
    subprocess.run(["nvcc", "-std=c++17", "-O3", "-arch=native", "-I", cutlass, str(HERE / "mma_gemm.cu"), "-o",
                    str(program)], check=True)
    return [str(program)]


def products(gemm, n, hidden):
    """{tiling: ms}"""
    lines = subprocess.run([*gemm, str(n), str(VOCAB), str(hidden)], check=True, capture_output=True, text=True).stdout
    return {tiling: float(ms) for tiling, ms in map(str.split, lines.splitlines())}


def command_of(name):
    """What measures a case."""
    n, hidden, words = CASES[name]
    return f"flpgen bench --vocab {VOCAB} --hidden {hidden} {words} --rows {n} --arch sm_80"


def bench(flpgen, name, folder):
    """The record of flpgen bench."""
    out = folder / "bench.json"
    subprocess.run([flpgen, *command_of(name).split()[1:], "--no-baseline", "-q", f"--json={out}"], check=True,
                   stdout=subprocess.DEVNULL)
    return json.loads(out.read_text())


def measure(name, gemm, flpgen, rounds, folder):
    """-> the rows of a case, and the head of the last record"""
    n, hidden, _ = CASES[name]
    tilings, records = [products(gemm, n, hidden)], []
    for _ in range(rounds):
        records.append(bench(flpgen, name, folder))
        tilings.append(products(gemm, n, hidden))
    times = {tiling: statistics.median(found[tiling] for found in tilings) for tiling in tilings[0]}
    best = min(times, key=times.get)
    rows = []
    for each in zip(*(record["rows"] for record in records)):
        ms, count = statistics.median(row["ms"] for row in each), each[0]["gemms"]
        rows.append({"problem": name, "pass": each[0]["case"], "mode": each[0]["mode"], "N": n, "D": hidden,
                     "V": VOCAB, "ms": ms, "products": count, "gemm": best, "gemm_ms": times[best],
                     "ratio": ms / (count * times[best])})
    return rows, {key: records[-1][key] for key in ("gpu", "driver", "sources_hash", "date")}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flpgen", default="flpgen", help="the command to measure")
    parser.add_argument("--cutlass", required=True, help="folder of CUTLASS' headers")
    parser.add_argument("--only", default=",".join(CASES), help="cases, default %(default)s")
    parser.add_argument("--rounds", type=int, default=2, help="default %(default)s")
    parser.add_argument("--json", required=True, help="file for the record")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        gemm = built(options.cutlass, Path(folder))
        for name in options.only.split(","):
            found, head = measure(name, gemm, options.flpgen, options.rounds, Path(folder))
            rows += found
            for row in found:
                print("%(problem)-14s %(pass)-17s %(ms)8.3f ms %(products)d x %(gemm_ms).3f (%(gemm)s) %(ratio).3f"
                      % row, flush=True)
            said = f"tests/gpu/portable.py --only {options.only} --rounds {options.rounds}"
            record = dict(head, command=said, rows=rows)
            Path(options.json).write_text(tuning_records.text_of(record))  # all so far
    return 0


if __name__ == "__main__":
    sys.exit(main())
