#!/usr/bin/env python3
"""Measures on this machine's GPU how long the first logprob takes in a fresh process that has a pack and no generator.

    flpgen pack build --vocab 151936 --hidden 4096 --dtype bf16 -o ptx.flpp
    flpgen pack build --vocab 151936 --hidden 4096 --dtype bf16 --cubin sm_90 -o cubin.flpp       (ptxas: FLP_PTXAS)
    python3 tests/gpu/cold_start.py --package build/release --pack-ptx ptx.flpp --pack-cubin cubin.flpp \\
                                    --json autotune/bench/cold_start.json

Every process is new, with an empty HOME and empty caches of libflp, the driver, Triton and torch, a copy of libflp
(and what lies beside it, but for libflpgen) as its only flp, and FLP_CACHE_PATH naming the pack. `ms` is from the call
of flp_plan_create to the first logprobs on the host, workspace and output allocated in between:

  ptx, cubin            in a process whose primary context is up, as a trainer's; context_ms is how long that took
  ..., from nothing     flp_plan_create loads the driver and makes the context too; context_ms is that of the case above
  cubin, at once        --together processes that start at the same moment and share one empty cache
  torch-compile, cce    beside them, other libraries cold, from the first call to the first value on the host: the first
                        logprob for `forward`, the first gradients for `forward+backward`; their import is not counted

plan_ms is the part of `ms` in flp_plan_create. `compiled` counts the files that appeared in any cache, the driver's own
of compiled PTX among them; where the pack has cubins, one is a failure. Exit status 1 if anything of flp failed or its
median is above target_ms, 2 if nothing could be measured. Standard library only, but for the other libraries, which
need torch and say so where it is missing.
"""

import argparse
import datetime
import hashlib
import json
import os
import re
import select
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "autotune"))

import tuning_records  # noqa: E402

CHILD = Path(__file__).resolve().parent / "cold_child.py"
TARGETS = {"ptx": 300, "cubin": 60}  # ms, for the median
PEERS = ("torch-compile", "cce")
PASSES = {"forward": [], "forward+backward": ["hidden", "weight"]}
FROM_NOTHING = ", from nothing"
ERRORS_KEPT = 5  # of one row, each once
# Environment variables that would lead to a warm cache, to another kernel or to the generator.
DROPPED = re.compile("(FLP|TORCHINDUCTOR|CUDA_CACHE|XDG)_|(TRITON_.*(CACHE|HOME|DIR)|HOME|TMPDIR|LD_LIBRARY_PATH)$")
KEPT = ("FLP_CUDA_LIBRARY",)


class Refused(Exception):
    """The measurement cannot be made: one sentence for the user."""


# ---- what is measured ----

class Flp:
    """A copy of the libraries of a package, but for the generator."""

    def __init__(self, package, scratch):
        self.flpgen = package / "bin" / "flpgen"
        self.lib = scratch / "lib"
        found = [path for path in sorted((package / "lib").glob("lib*.so*")) if not path.name.startswith("libflpgen")]
        if not self.flpgen.exists() or not any(path.name == "libflp.so" for path in found):
            raise Refused(f"--package {package}: has no bin/flpgen and lib/libflp.so")
        self.lib.mkdir()
        for path in found:
            shutil.copy(path, self.lib / path.name)
        self.library = self.lib / "libflp.so"

    def sources(self):
        """In a process of its own: where libflp needs libraries that lie beside it, the loader needs their path."""
        code = ("import ctypes,sys; f = ctypes.CDLL(sys.argv[1]).flp_sources_id; f.restype = ctypes.c_char_p; "
                "print(f().decode())")
        done = subprocess.run([sys.executable, "-c", code, str(self.library)], capture_output=True, text=True,
                              env={**os.environ, "LD_LIBRARY_PATH": str(self.lib)})
        if done.returncode != 0:
            raise Refused(f"--package: libflp.so cannot be loaded: {done.stderr.strip().splitlines()[-1]}")
        return done.stdout.strip()

    def inspect(self, option, path):
        if not path.is_file():
            raise Refused(f"{option} {path}: there is no such file; `flpgen pack build` makes it, see --help")
        lib = f"{self.flpgen.parent.parent / 'lib'}:{os.environ.get('LD_LIBRARY_PATH', '')}"
        done = subprocess.run([str(self.flpgen), "pack", "inspect", str(path), "--json"], capture_output=True,
                              text=True, env={**os.environ, "LD_LIBRARY_PATH": lib.rstrip(":")})
        if done.returncode != 0:
            raise Refused(f"{option} {path}: {done.stderr.strip()}")
        return json.loads(done.stdout)["manifest"]


def check_manifest(option, manifest, sources, options):
    """Raises Refused unless a pack is of these sources, of this shape, and with cubins if and only if it should be."""
    shape = f"{options.vocab} x {options.hidden}"
    if manifest["sources"] != sources:
        raise Refused(f"{option}: the pack is of sources {manifest['sources'][:12]}, libflp of {sources[:12]}; "
                      "build it with the flpgen of the same build")
    if shape not in manifest["shapes"] or "bf16" not in manifest["dtypes"]:
        raise Refused(f"{option}: the pack has {', '.join(manifest['shapes'])} in {', '.join(manifest['dtypes'])}; "
                      f"{shape} in bf16 is measured")
    if bool(manifest["cubins"]) != (option == "--pack-cubin"):
        raise Refused(f"{option}: the pack has {', '.join(manifest['cubins']) or 'no'} cubins; it should have "
                      f"{'some' if option == '--pack-cubin' else 'none'}")


def check_packs(flp, options):
    """-> (sources of libflp, {"ptx": path, "cubin": path})"""
    sources, packs = flp.sources(), {}
    for name in TARGETS:
        path = getattr(options, f"pack_{name}")
        check_manifest(f"--pack-{name}", flp.inspect(f"--pack-{name}", path), sources, options)
        packs[name] = path.resolve()
    return sources, packs


# ---- fresh processes ----

def empty_home(scratch):
    """Folders that are new and empty -> (the folder of all, environment that leads there)."""
    root = Path(tempfile.mkdtemp(dir=scratch))
    names = {"HOME": "home", "FLP_CACHE_DIR": "flp", "CUDA_CACHE_PATH": "cuda", "TORCHINDUCTOR_CACHE_DIR": "inductor",
             "TRITON_CACHE_DIR": "triton", "TMPDIR": "tmp"}
    for folder in names.values():
        (root / folder).mkdir()
    return root, {name: str(root / folder) for name, folder in names.items()}


def environment(flp, folders, pack, base=os.environ):
    """The environment of one process. Python finds what it finds now, wherever HOME is."""
    kept = {name: value for name, value in base.items() if name in KEPT or not DROPPED.match(name)}
    beyond = [path for path in base.get("LD_LIBRARY_PATH", "").split(":")
              if path and not list(Path(path).glob("libflp*.so*"))]
    kept.update(folders, FLP_LIBRARY=str(flp.library), LD_LIBRARY_PATH=":".join([str(flp.lib), *beyond]),
                PYTHONPATH=":".join(filter(None, sys.path[1:])), PYTHONDONTWRITEBYTECODE="1")
    if pack:
        kept["FLP_CACHE_PATH"] = str(pack)
    return kept


def files_in(root):
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def wait_until_ready(processes, descriptor, deadline):
    """Until each process has written its byte or is gone."""
    ready = 0
    while ready < sum(process.poll() is None for process in processes) and time.monotonic() < deadline:
        if select.select([descriptor], [], [], 0.2)[0]:
            ready += len(os.read(descriptor, 4096))


def finish(process, deadline, limit, results, index):
    """Reads the result of a process, which is ended, with those it started, when its time is over."""
    try:
        out, err = process.communicate(timeout=max(deadline - time.monotonic(), 0.1))
        lines = out.strip().splitlines()
        results[index] = json.loads(lines[-1])
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        results[index] = {"errors": [f"not done within {limit:g} s"]}
    except (IndexError, ValueError):
        last = (err.strip().splitlines() or ["it said nothing"])[-1]
        results[index] = {"errors": [f"ended with {process.returncode}: {last[:300]}"]}


def run_together(job, count, env, limit):
    """Starts count processes, lets all of them begin their measured part at the same moment -> their results.

    limit: seconds for all of it
    """
    deadline = time.monotonic() + limit
    start_read, start_write = os.pipe()
    ready_read, ready_write = os.pipe()
    command = [sys.executable, str(CHILD), json.dumps({**job, "ready": ready_write})]
    processes = [subprocess.Popen(command, stdin=start_read, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                  env=env, pass_fds=[ready_write], start_new_session=True) for _ in range(count)]
    os.close(start_read)
    os.close(ready_write)
    wait_until_ready(processes, ready_read, deadline)
    os.close(start_write)
    results = [None] * count
    threads = [threading.Thread(target=finish, args=(process, deadline, limit, results, i))
               for i, process in enumerate(processes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os.close(ready_read)
    return results


class Bench:
    def __init__(self, flp, scratch, limit):
        self.flp, self.scratch, self.limit, self.device = flp, scratch, limit, None

    def measure(self, job, pack=None, rounds=1, together=1):
        """-> (results, files that appeared in caches); a round is a new set of empty caches."""
        results, written = [], []
        for _ in range(rounds):
            root, folders = empty_home(self.scratch)
            results += run_together(job, together, environment(self.flp, folders, pack), self.limit)
            written += files_in(root)
            shutil.rmtree(root)
        for result in results:
            if "gpu" in result:
                self.device = result
        return results, written


# ---- rows ----

def rungs_of(results):
    """"heuristic", or all that ran, as "generic, heuristic"."""
    found = {match.group(1) for match in (re.match("rung ([a-z]+)", r.get("describe", "")) for r in results) if match}
    return ", ".join(sorted(found)) or None


def median_of(results, field):
    values = [result[field] for result in results if field in result]
    return statistics.median(values) if values else None


def row_of(case, n, results, at_once=1, **more):
    """One row from the results of its processes."""
    times = [result["ms"] for result in results if "ms" in result]
    errors = sorted({error for result in results for error in result.get("errors", [])})
    if len(errors) > ERRORS_KEPT:
        errors[ERRORS_KEPT:] = [f"and {len(errors) - ERRORS_KEPT} other errors"]
    row = {"case": case, "n": n, "processes": len(results), "at_once": at_once, "ms": times or None,
           "median_ms": median_of(results, "ms"), "worst_ms": max(times) if times else None}
    row.update(more, errors=errors)
    if not times:
        row["reason"] = next((r["reason"] for r in results if "reason" in r), None) or "; ".join(errors) or "no result"
    return row


def flp_row(case, n, results, written, target=None, at_once=1):
    """Rungs that would need a generator, or files where nothing is to be compiled, are errors."""
    row = row_of(case, n, results, at_once, plan_ms=median_of(results, "plan_ms"),
                 context_ms=median_of(results, "context_ms"), compiled=len(written), rung=rungs_of(results),
                 target_ms=target)
    if row["ms"] and row["rung"] not in ("tuned", "heuristic", "heuristic, tuned"):
        row["errors"].append(f"rung {row['rung']}; tuned or heuristic is expected")
    if written and case.startswith("cubin"):
        row["errors"].append(f"{len(written)} files appeared in caches, such as {written[0]}")
    return row


def has_failed(row):
    """What goes wrong in another library is in its row, and no failure of the measurement."""
    return bool(row["errors"]) and "peer" not in row


def is_late(row):
    return row.get("target_ms") is not None and row["median_ms"] is not None and row["median_ms"] > row["target_ms"]


def show(row):
    times = f"median {row['median_ms']:.1f} ms, worst {row['worst_ms']:.1f} ms" if row["ms"] else row["reason"]
    target = f", target {row['target_ms']} ms" if row.get("target_ms") else ""
    print(f"{row['case']}, N={row['n']}, {row['processes']} processes: {times}{target}"
          + "".join(f"\n  error: {error}" for error in row["errors"]), flush=True)
    return row


def flp_rows(bench, options, packs):
    job = {"kind": "flp", "vocab": options.vocab, "hidden": options.hidden}
    rows = []
    for name, target in TARGETS.items():
        for n in options.rows:
            results = bench.measure({**job, "n": n, "context": True}, packs[name], options.repeats)
            up = flp_row(name, n, *results, target=target)
            results = bench.measure({**job, "n": n, "context": False}, packs[name], options.repeats)
            nothing = flp_row(name + FROM_NOTHING, n, *results)
            nothing["context_ms"] = up["context_ms"]
            rows += [show(up), show(nothing)]
    together = {**job, "n": options.together_rows, "context": True}
    results = bench.measure(together, packs["cubin"], together=options.together)
    return rows + [show(flp_row("cubin, at once", options.together_rows, *results, at_once=options.together))]


def peer_rows(bench, options):
    rows = []
    for peer in options.peers:
        for name, grads in PASSES.items():
            job = {"kind": "peer", "peer": peer, "grads": grads, "n": max(options.rows), "vocab": options.vocab,
                   "hidden": options.hidden}
            results, written = bench.measure(job, rounds=options.peer_repeats)
            first = next((result for result in results if "version" in result), {})
            rows.append(show(row_of(f"{peer} {name}", job["n"], results, compiled=len(written), peer=peer,
                                   version=first.get("version"), title=first.get("title"))))
    return rows


# ---- the record ----

def driver_text(cuda_version, module=Path("/sys/module/nvidia/version")):
    """ "580.159.04 (CUDA 13.0)", as the other records have it."""
    cuda = f"CUDA {cuda_version // 1000}.{cuda_version % 1000 // 10}"
    return f"{module.read_text().strip()} ({cuda})" if module.exists() else cuda


def command_of(arguments):
    """As a user types it: of a path only the name."""
    words = [re.sub("^(--[a-z-]+=)?.*/", lambda match: match.group(1) or "", word) for word in arguments]
    return " ".join(["tests/gpu/cold_start.py", *words])


def record_of(rows, device, sources, packs, command):
    now = datetime.datetime.now(datetime.timezone.utc)
    return {"gpu": device["gpu"], "driver": driver_text(device["cuda_version"]), "sources_hash": sources,
            "command": command, "date": now.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "packs": {name: {"bytes": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
                      for name, path in packs.items()},
            "late": sum(map(is_late, rows)), "failed": sum(map(has_failed, rows)), "rows": rows}


def rounded(value):
    if isinstance(value, float):
        return round(value, 3)
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, list) else value


def parse(arguments):
    def positive(text):
        number = int(text) if text.isdecimal() else 0
        if number < 1:
            raise argparse.ArgumentTypeError(f"{text!r} is not accepted; numbers from 1 are")
        return number

    def numbers(text):
        return [positive(part) for part in text.split(",")]

    def names(text):
        chosen = [name for name in text.split(",") if name]
        if set(chosen) - set(PEERS):
            raise argparse.ArgumentTypeError(f"{text!r} is not accepted; some of {','.join(PEERS)}, or '' are")
        return chosen

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--package", type=Path, required=True, help="directory with bin, lib and share")
    parser.add_argument("--pack-ptx", type=Path, required=True, help="pack without cubins")
    parser.add_argument("--pack-cubin", type=Path, required=True, help="pack with cubins for this GPU")
    parser.add_argument("--json", required=True, help="file for the record")
    parser.add_argument("--vocab", type=positive, default=151936, help="default %(default)s")
    parser.add_argument("--hidden", type=positive, default=4096, help="default %(default)s")
    parser.add_argument("--rows", type=numbers, default=[8192, 256], help="numbers of rows N, default 8192,256")
    parser.add_argument("--repeats", type=positive, default=5,
                        help="processes of a case, one after the other, default %(default)s")
    parser.add_argument("--together", type=positive, default=64, help="processes at once, default %(default)s")
    parser.add_argument("--together-rows", type=positive, default=64, help="their N, default %(default)s")
    parser.add_argument("--peers", type=names, default=list(PEERS), help=f"default {','.join(PEERS)}; '' for none")
    parser.add_argument("--peer-repeats", type=positive, default=1,
                        help="processes of another library's case, default %(default)s")
    parser.add_argument("--limit", type=positive, default=120, help="seconds for any process, default %(default)s")
    return parser.parse_args(arguments)


def measure(options, arguments):
    """-> exit status"""
    with tempfile.TemporaryDirectory(prefix="flp-cold-") as name:
        scratch = Path(name)
        flp = Flp(options.package, scratch)
        sources, packs = check_packs(flp, options)
        bench = Bench(flp, scratch, options.limit)
        rows = flp_rows(bench, options, packs)
        if bench.device is None:
            raise Refused("no process came as far as a plan: " + "; ".join(rows[0]["errors"]))
        rows += peer_rows(bench, options)
        record = record_of(rows, bench.device, sources, packs, command_of(arguments))
        Path(options.json).write_text(tuning_records.text_of(rounded(record)))
    print(f"{options.json}: {record['failed']} rows failed, {record['late']} later than their target")
    return 1 if record["failed"] or record["late"] else 0


def main(arguments):
    try:
        return measure(parse(arguments), arguments)
    except Refused as refused:
        print(f"cold_start.py: {refused}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
