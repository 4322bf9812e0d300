#!/usr/bin/env python3
"""Turns the SQLite records of `flpgen tune` into one JSON record of the tree, and fits the cost model to it.

    python3 autotune/tuning_records.py export --out autotune/bench/tune_forward_4096.json exhaustive.sqlite run1.sqlite ...
    python3 autotune/tuning_records.py heads --out autotune/bench/tune_presets.json first.sqlite second.sqlite ...
    python3 autotune/tuning_records.py fit autotune/bench/tune_forward_4096.json        (needs numpy)

export: rows are the timed candidates of the first file; `searches` says of every file how long it searched, what it chose
and against what. heads: a row for each specialisation and effort whose search was finished, of the last file that has
it: what was chosen for each kernel, beside the untuned one and the GEMM baselines. fit: least squares for the shares of
autotune/model.c, weighted towards the fast half, from the forward kernel of one deep head, so that everything but the
tiling is constant. Shares come out in the unit of model.c: of a tensor core at the device's full clock.
"""

import argparse
import json
import shlex
import sqlite3
import sys
from pathlib import Path

TIMED = ("timed", "chosen")


def read_search(path):
    """-> (run, spec, candidates) of the newest spec in a file."""
    db = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    db.row_factory = sqlite3.Row
    spec = db.execute("select * from spec order by id desc limit 1").fetchone()
    if spec is None:
        sys.exit(f"{path}: no specialisation was tuned")
    run = db.execute("select * from run where id = ?", (spec["run"],)).fetchone()
    candidates = db.execute("select * from candidate where spec = ? order by id", (spec["id"],)).fetchall()
    bare = db.execute("select ms from bare where spec = ? and product = 'scores'", (spec["id"],)).fetchone()
    return run, spec, candidates, bare


def search_of(run, spec, candidates, bare):
    count = {}
    for candidate in candidates:
        count[candidate["status"]] = count.get(candidate["status"], 0) + 1
    timed = [c for c in candidates if c["status"] in TIMED]
    most = max(c["rounds"] for c in timed)
    chosen = next(c for c in timed if c["status"] == "chosen")
    fastest = min((c for c in timed if c["rounds"] == most), key=lambda c: c["ratio"])
    return {"command": run["command"], "effort": run["effort"], "seed": run["seed"], "started": run["started"],
            "finished": run["finished"], "plan": spec["plan"], "candidates": count, "chosen": chosen["tune"],
            "chosen_ms": chosen["ms"], "chosen_ratio": chosen["ratio"], "fastest": fastest["tune"],
            "fastest_ratio": fastest["ratio"], "bare_ms": bare and bare["ms"]}


def text_of(record):
    """A record with its rows last, one a line, so that a diff can be read."""
    text = json.dumps({**{key: value for key, value in record.items() if key != "rows"}, "rows": None}, indent=1)
    rows = ",\n  ".join(json.dumps(row) for row in record["rows"])
    return text.replace('"rows": null', f'"rows": [\n  {rows}\n ]') + "\n"


def export(paths, out):
    searches = [read_search(path) for path in paths]
    run, spec, candidates, _ = searches[0]
    record = {
        "gpu": run["gpu"], "driver": f"{run['driver'] // 1000}.{run['driver'] % 1000 // 10}", "sources_hash": run["sources"],
        "command": "tests/gpu/record.py --only tune", "date": run["started"][:10],
        "spec": {key: spec[key] for key in ("vocab", "hidden", "dtype", "entropy", "grads")}, "N": spec["rows"],
        "searches": [search_of(*search) for search in searches],
        "rows": [{"tune": c["tune"], "ratio": round(c["ratio"], 4), "ms": round(c["ms"], 3),
                  "ms_low": round(c["ms_low"], 3), "ms_high": round(c["ms_high"], 3), "rounds": c["rounds"], "kind": c["kind"]}
                 for c in candidates if c["status"] in TIMED]}
    Path(out).write_text(text_of(record))


# ---- many heads ----

HERE = ("--record", "--out", "-o", "--list")    # options that name files of the machine that measured


def told(command):
    """A command without the names of files and how it was to print."""
    words, kept = iter(shlex.split(command)), []
    for word in words:
        if word in HERE:
            next(words, None)
        elif word not in ("-q", "--quiet", "--json"):
            kept.append(word)
    return shlex.join(kept)


def kernel_of(candidates):
    chosen = next(c for c in candidates if c["status"] == "chosen")
    own = next(c for c in candidates if c["is_default"])
    tiling = chosen["tune"]
    if chosen["chunk_vocab"]:
        tiling += f", chunks of {chosen['chunk_rows']} x {chosen['chunk_vocab']}"
    return {"chosen": tiling, "is_own": bool(chosen["is_default"]), "ms": round(chosen["ms"], 4), "own_ms": round(own["ms"], 4),
            "ratio": round(chosen["ratio"], 4), "timed": sum(c["status"] in TIMED for c in candidates)}


def arch_of(spec):
    """The architecture that was asked for, if one was."""
    return dict(word.split("=") for word in spec["text"].split() if word.startswith("arch="))


def head_of(db, spec):
    candidates = db.execute("select * from candidate where spec = ? and ms is not null order by id", (spec["id"],)).fetchall()
    kinds = list(dict.fromkeys(c["kind"] for c in candidates))
    bare = db.execute("select product, ms from bare where spec = ?", (spec["id"],)).fetchall()
    return {"model": spec["model"], **{key: spec[key] for key in ("vocab", "hidden", "dtype", "entropy", "grads", "softcap")},
            **arch_of(spec), "N": spec["rows"], "plan": spec["plan"],
            "kernels": {kind or "layout": kernel_of([c for c in candidates if c["kind"] == kind]) for kind in kinds},
            "bare_ms": {row["product"]: round(row["ms"], 4) for row in bare}}


def export_heads(paths, out):
    rows, run = {}, None
    for path in paths:
        db = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        db.row_factory = sqlite3.Row
        for spec in db.execute("select * from spec where finished is not null order by id").fetchall():
            run = db.execute("select * from run where id = ?", (spec["run"],)).fetchone()
            head = {**head_of(db, spec), "effort": run["effort"], "sources": run["sources"][:12]}
            rows[spec["text"], spec["rows"], run["effort"]] = head
    if not rows:
        sys.exit(f"{', '.join(map(str, paths))}: no search of a specialisation was finished")
    record = {"gpu": run["gpu"], "driver": f"{run['driver'] // 1000}.{run['driver'] % 1000 // 10}",
              "sources_hash": run["sources"], "command": told(run["command"]), "date": run["started"][:10],
              "rows": list(rows.values())}
    Path(out).write_text(text_of(record))


# ---- the fit ----

SHARES = ("base", "shared", "l2", "cluster2", "cluster4", "half_rows", "ahead^2", "epilogue", "panel", "again")


def features(tune, spec, n, l2_bytes=50 << 20):
    """What each share is multiplied by for a tiling, in the order of SHARES: see model.c."""
    schedule, tile, stages, cluster, raster = tune.split(",")
    rows, columns = map(int, tile.split("x"))
    stages, cluster, raster = (int(text.split("=")[1]) for text in (stages, cluster, raster))
    ping_pong, panel_rows = schedule == "ping-pong", rows * cluster
    panels = -(-n // panel_rows)
    sweeps = -(-panels // raster)
    panel = -(-panels // sweeps) * panel_rows * spec["hidden"] * 2 / l2_bytes
    return [1, 1 / columns, (rows + columns / cluster) / (rows * columns), cluster == 2, cluster == 4,
            ping_pong and rows == 64, ((stages - 1) * rows * columns) ** -2.0, (not ping_pong) / spec["hidden"],
            max(0, min(panel, 3) - 0.5), (sweeps - 1) / n]


def fit(path, clock=1.98e9, multiprocessors=132):
    import numpy
    record = json.loads(Path(path).read_text())
    spec, n = record["spec"], record["N"]
    unit = n * spec["vocab"] * spec["hidden"] / (2048 * multiprocessors * clock) * 1e3  # ms at a share of 1
    own = record["searches"][0]["chosen_ms"] / record["searches"][0]["chosen_ratio"]
    rows = [row for row in record["rows"] if not row["tune"].split(",")[1].startswith("256x64")]  # half empty wgmma
    x = numpy.array([features(row["tune"], spec, n) for row in rows], float)
    y = numpy.array([row["ratio"] for row in rows]) * own / unit
    weight = (y / y.min()) ** -4
    shares, *_ = numpy.linalg.lstsq(x * weight[:, None], y * weight, rcond=None)
    predicted = x @ shares
    order, near = numpy.argsort(predicted), y < 1.2 * y.min()
    for name, share in zip(SHARES, shares):
        print(f"{name:10s} {share:.4g}" + (f" = {max(share, 0) ** 0.5:.4g}^2" if name == "ahead^2" else ""))
    print(f"as factors: panel {shares[-2] / y.min():.3f}, again {shares[-1] / y.min():.3g}")
    print(f"off by {((predicted - y)[near] ** 2).mean() ** 0.5 / y.min():.3f} up to 1.2 times the fastest")
    for first in (1, 4, 8, 16, 32):
        print(f"best of the first {first}: {y[order[:first]].min() / y.min():.4f} of the fastest")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb in ("export", "heads"):
        exporting = verbs.add_parser(verb)
        exporting.add_argument("--out", required=True)
        exporting.add_argument("records", nargs="+")
    verbs.add_parser("fit").add_argument("record")
    arguments = parser.parse_args()
    if arguments.verb == "export":
        export(arguments.records, arguments.out)
    elif arguments.verb == "heads":
        export_heads(arguments.records, arguments.out)
    else:
        fit(arguments.record)


if __name__ == "__main__":
    main()
