"""Sample tuning records for the report, in the schema of autotune/records.c.

The times of the best kernels and of the GEMM baselines are those of autotune/bench/*.json where a record has the shape.
Every other candidate is made up around them by a seeded generator: a stand-in for records of a tuning run, to look at
the page with and to test it by. Run it to write them: report_sample.py FILE.
"""
import json
import random
import re
import sqlite3
import sys
from pathlib import Path

TREE = Path(__file__).resolve().parents[2]

SCHEMA = "".join(re.findall('^    "(.*)"', (TREE / "autotune/records.c").read_text().split("schema[] =")[1].split(
    ";\n\n")[0], re.M))
SHARED_BYTES = 232448
SPECS = [("sample 4B", 151936, 2560), ("sample 8B", 151936, 4096), ("sample 70B", 128256, 8192)]
ROWS = 8192


def create(path):
    """An empty file of records -> connection."""
    db = sqlite3.connect(str(path))
    db.executescript(SCHEMA)
    return db


def insert(db, table, **values):
    """Adds a row -> its id."""
    names = ", ".join(values)
    marks = ", ".join("?" * len(values))
    return db.execute("INSERT INTO %s (%s) VALUES (%s)" % (table, names, marks), list(values.values())).lastrowid


def measured(vocab, hidden):
    """Forward time and GEMM times of a benchmark record of this shape, or None."""
    for name in ("bench_training", "bench_forward_%d" % hidden):
        path = TREE / "autotune" / "bench" / (name + ".json")
        record = json.loads(path.read_text()) if path.exists() else {"rows": []}
        for row in record["rows"]:
            if (row["N"], row["V"], row["D"], row["case"]) == (ROWS, vocab, hidden, "forward"):
                bare = {item["product"]: item for item in record["bare"] if item["N"] == ROWS}
                return row, bare
    return None


def legal(schedule, rows, columns, stages):
    """None, or why a tiling cannot be built, as templates/sm_90a/tune.lua words it."""
    accumulators = rows * columns // (256 if schedule == "cooperative" else 128)
    if accumulators > 192:
        return "tune: %dx%d %s needs %d accumulators a thread; at most 192 fit" % (rows, columns, schedule, accumulators)
    size = stages * (rows + columns) * 128 + 8 * 1024 + stages * 16 + 24
    if size > SHARED_BYTES:
        return "tune: %d stages of %dx%d need %d bytes of shared memory; there are %d" % (
            stages, rows, columns, size, SHARED_BYTES)
    return None


def tilings():
    for schedule in ("ping-pong", "cooperative"):
        for rows, columns in ((128, 128), (128, 192), (128, 256), (256, 128), (256, 192)):
            for stages in (3, 4, 5, 6):
                for cluster in (1, 2):
                    for raster in (8, 16, 32):
                        yield schedule, rows, columns, stages, cluster, raster


def slowdown(draw, schedule, rows, columns, stages, cluster, raster):
    """Made up: how much slower than the best a tiling is."""
    factor = 1.0
    factor *= {"ping-pong": 1.0, "cooperative": 1.03}[schedule]
    factor *= {128 * 128: 1.16, 128 * 192: 1.05, 128 * 256: 1.0, 256 * 192: 1.04}[rows * columns]
    factor *= {3: 1.09, 4: 1.02, 5: 1.0, 6: 1.005}[stages]
    factor *= {1: 1.04, 2: 1.0}[cluster]
    factor *= {8: 1.0, 16: 1.004, 32: 1.03}[raster]
    return factor * draw.uniform(1.0, 1.02)


def add_kind(db, draw, spec, kind, best_ms, share):
    """All candidates of a kind; share of the legal ones is timed, the fastest is chosen."""
    timed = []
    for tiling in tilings():
        tune = "%s:%s,%dx%d,stages=%d,cluster=%d,raster=%d" % ((kind,) + tiling)
        row = dict(spec=spec, kind=kind, tune=tune, chunk_rows=0, chunk_vocab=0, rounds=0)
        reason = legal(*tiling[:4])
        factor = slowdown(draw, *tiling)
        row["predicted_ms"] = best_ms * factor * draw.uniform(0.93, 1.04)
        if reason:
            row.update(status="illegal", reason=reason)
        elif draw.random() < 0.02:
            row.update(status="waiting")
        elif draw.random() > share:
            row.update(status="pruned", reason="predicted %.3f ms, more than 1.15 times the best" % row["predicted_ms"])
        elif draw.random() < 0.02:
            row.update(status="wrong", reason="logprob misses the reference by %.2g, 3e-05 is accepted" % draw.uniform(1e-4, 1),
                       error=draw.uniform(1e-4, 1))
        elif draw.random() < 0.02:
            row.update(status="failed", reason="CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES (701) at launch")
        else:
            rounds = 9 if factor < 1.05 else 5 if factor < 1.1 else 2
            ms = best_ms * factor
            row.update(status="timed", ms=ms, ms_low=ms * draw.uniform(0.975, 0.998), ms_high=ms * draw.uniform(1.002, 1.03),
                       rounds=rounds, error=draw.uniform(4e-6, 1.2e-5), clock_mhz=draw.uniform(1480, 1620),
                       power_w=draw.uniform(685, 700))
            timed.append(row)
        if row["status"] != "timed":
            insert(db, "candidate", **row)
    timed.sort(key=lambda row: row["ms"])
    scale = best_ms / timed[0]["ms"]
    for i, row in enumerate(timed):
        row.update({name: row[name] * scale for name in ("ms", "ms_low", "ms_high")}, status="timed" if i else "chosen")
        row.update(ratio=row["ms"] / best_ms, is_default=int(i == 0))
        insert(db, "candidate", **row)


def add_layout(db, draw, spec, best_ms):
    """Chunk sizes of the backward pass."""
    for chunk in (8192, 16384, 32768, 50688, 65536):
        ms = best_ms * (1 + 2000 / chunk - 2000 / 65536) * draw.uniform(1, 1.004)
        status = "chosen" if chunk == 65536 else "timed"
        insert(db, "candidate", spec=spec, kind="layout", tune="", chunk_rows=0, chunk_vocab=chunk, status=status, ms=ms,
               ms_low=ms * 0.99, ms_high=ms * 1.01, rounds=7, predicted_ms=ms * 0.97, ratio=ms / best_ms)


def write(path, seed=7):
    """The sample -> None."""
    draw = random.Random(seed)
    db = create(path)
    run = insert(db, "run", started="2026-11-21T08:00:00Z", finished="2026-11-21T08:06:00Z", gpu="NVIDIA H200",
                 command="report_sample.py (made-up candidates around measured times)", multiprocessors=132, driver=13000,
                 flp_version="0.1.0", sources="sample", seed=seed, budget_s=120.0, effort="sample")
    for model, vocab, hidden in SPECS:
        spec = insert(db, "spec", run=run, text="V %d D %d bf16" % (vocab, hidden), vocab=vocab, hidden=hidden, dtype="bf16",
                      entropy="backward", grads="hidden,weight", bias=0, softcap=0, rows=ROWS, model=model)
        found = measured(vocab, hidden)
        guess = 2e-9 * ROWS * vocab * hidden / 690
        forward, bare = (found[0]["ms"], found[1]) if found else (guess, {})
        products = 0
        for product in ("scores", "grad_hidden", "grad_weight"):
            item = bare.get(product, {"ms": guess * 1.01, "ms_low": guess, "ms_high": guess * 1.03, "algorithm": 0})
            insert(db, "bare", spec=spec, product=product, rows=ROWS, ms=item["ms"], ms_low=item["ms_low"],
                   ms_high=item["ms_high"], algorithm=item["algorithm"])
            products += item["ms"] if product != "scores" else 0
        add_kind(db, draw, spec, "forward", forward, 0.5)
        add_kind(db, draw, spec, "dz", forward * 1.05 + products, 0.4)
        add_kind(db, draw, spec, "products", forward * 1.05 + products, 0.4)
        add_layout(db, draw, spec, forward * 1.05 + products)
    db.commit()
    db.close()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: report_sample.py FILE")
    Path(sys.argv[1]).unlink(missing_ok=True)
    write(sys.argv[1])
