#!/usr/bin/env python3
"""Measures on this machine's GPU everything that the tree keeps as evidence, and writes the records to a directory.

    python3 tests/gpu/record.py --flpgen build/release/bin/flpgen --out records [--only check,bench_forward_4096,...]

PARTS

--only takes any of these, and of parts of several records single ones by name, where time is short.
Copy each to where one of its name stands, tests/gpu/evidence or autotune/bench; of plots/ naive_never.png and
flp_arena_never.png are fragmentation_naive.png and fragmentation_flp_arena.png there. Exit status 1 if anything failed.
"""

import argparse
import concurrent.futures
import json
import os
import re
import subprocess
import sys
from pathlib import Path

TREE = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TREE / "autotune"))

import tuning_records  # noqa: E402
from parts import BENCHES, CHECKS, CHECKS_OF_DTYPES, DTYPES, FLAGSHIP, PARTS, PEERS, RECORDS, SANITIZERS, SCRIPTS, \
    select  # noqa: E402

HOSTS_TOGETHER = 8  # files of tests/hosts that run side by side
TILINGS_AT_ONCE = 5 # of --only tilings, side by side
NO_TESTS = 5        # pytest's exit status where all of a file's tests are left out


class Campaign:
    def __init__(self, flpgen, out, packs, device="cuda"):
        self.flpgen, self.out, self.failed = str(Path(flpgen).resolve()), Path(out).resolve(), []
        self.device = device
        self.packs = [str(Path(pack).resolve()) for pack in packs]
        self.out.mkdir(parents=True, exist_ok=True)
        # Records name the command as a user types it, so the program is found by its bare name.
        self.env = dict(os.environ, PATH=f"{Path(self.flpgen).parent}:{os.environ['PATH']}")

    def run(self, name, command):
        done = subprocess.run(command, cwd=self.out, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True)
        print(f"{name}: exit {done.returncode}: {' '.join(command)}", flush=True)
        if done.returncode != 0:
            self.failed.append(name)
            print(done.stdout[-2000:], flush=True)
        return done

    def measure(self, part, names):
        """names: of its records, where it has any of its own"""
        if part in SCRIPTS:
            self.script(part)
        elif part in RECORDS:
            if part in PEERS:
                self.peers(part, names)
            for name in names if part in BENCHES else ():
                self.bench(name, RECORDS[part][name])
        elif part in CHECKS:
            for name, options in CHECKS[part].items():
                self.run(name, ["flpgen", "check", *options, f"--json={name}.json", "-q"])
        elif part in CHECKS_OF_DTYPES:
            self.check_dtypes(*CHECKS_OF_DTYPES[part])
        elif part in SANITIZERS:
            self.sanitize(part, *SANITIZERS[part])
        else:
            getattr(self, part)()

    def check_dtypes(self, name, options):
        """flpgen check --all: cases of each dtype in a process of their own, side by side, and one record of all."""
        command = ["flpgen", "check", "--all", *options]

        def run(dtype):
            part = self.out / f"{name}-{dtype}.json"
            self.run(f"{name} {dtype}", [*command, "--dtype", dtype, f"--json={part.name}", "-q"])
            return part

        with concurrent.futures.ThreadPoolExecutor(len(DTYPES)) as pool:
            files = list(pool.map(run, DTYPES))
        parts = [self.take(part) for part in files]  # not before all have ended: a campaign that is cut off leaves them
        if None in parts:
            return
        record = dict(parts[0], command=" ".join(command), rows=[row for part in parts for row in part["rows"]],
                      **{count: sum(part[count] for part in parts) for count in ("checks", "failed")})
        (self.out / f"{name}.json").write_text(tuning_records.text_of(record))

    @staticmethod
    def take(part):
        """What a process left as its part of a record, which goes; None of one that ended without."""
        if not part.exists():
            return None
        record = json.loads(part.read_text())
        part.unlink()
        return record

    def tilings(self):
        """One record of all tilings: the rows of a process each, several side by side, its tunables beside them."""
        tilings = json.loads((TREE / "tests/tilings.json").read_text())["tilings"]

        def run(arch, tune):
            command = [*"flpgen check --all --dtype bf16 --rung jit -q".split(), "--arch", arch, "--tune", tune]
            part = self.out / f"tiling-{arch}-{tilings[arch].index(tune)}.json"
            self.run(part.stem, [*command, f"--json={part.name}"])
            return part, {"arch": arch, "tune": tune, "command": " ".join(command)}

        with concurrent.futures.ThreadPoolExecutor(TILINGS_AT_ONCE) as pool:
            done = list(pool.map(run, *zip(*((arch, tune) for arch in ("sm_90a", "sm_80") for tune in tilings[arch]))))
        taken = [(row, self.take(part)) for part, row in done]  # as in check_dtypes
        rows = [{**row, "checks": part["checks"], "failed": part["failed"],
                 "failures": [found for found in part["rows"] if not found["pass"]]} for row, part in taken if part]
        if len(rows) < len(taken):
            return
        record = {key: taken[0][1][key] for key in ("gpu", "driver", "sources_hash", "date")}
        record.update(command="tests/gpu/record.py --only tilings", rows=rows,
                      **{count: sum(row[count] for row in rows) for count in ("checks", "failed")})
        (self.out / "check_tilings.json").write_text(tuning_records.text_of(record))

    def sanitize(self, part, problems, shape):
        """Each problem once with every tool; the record's header is that of a check."""
        results = []
        for tool in ("memcheck", "initcheck", "racecheck"):
            for options in problems:
                rung = [] if "--rung" in options else ["--rung", "jit"]
                command = ["flpgen", "check", *shape, *options, *rung, "-q", "--json=sanitized.json"]
                done = self.run(f"{part} {tool}", ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", *command])
                summary = re.findall(r"^=+ (.*SUMMARY.*)$", done.stdout, re.M)
                results.append({"tool": tool, "command": " ".join(command[:-2]), "summary": " ".join(summary),
                                "exit": done.returncode})
                self.write_sanitized(part, results)
        (self.out / "sanitized.json").unlink()

    def write_sanitized(self, part, results):
        """What is done so far: a tool may take minutes, and a GPU may be lent for less."""
        record = json.loads((self.out / "sanitized.json").read_text())
        record = {key: record[key] for key in ("gpu", "driver", "sources_hash", "date")}
        record.update(command=f"tests/gpu/record.py --only {part}", rows=results,
                      failed=sum(result["exit"] != 0 for result in results))
        (self.out / f"{part}.json").write_text(tuning_records.text_of(record))

    def bench(self, name, options):
        done = self.run(name, ["flpgen", "bench", *options, f"--json={name}.json"])
        print(done.stdout, flush=True)

    def peers(self, part, names):
        done = self.run(part, [sys.executable, str(TREE / "tests/gpu/peers.py"), "--out", ".",
                               "--only", ",".join(names)])
        print(done.stdout, flush=True)

    def tune(self):
        searches = {"exhaustive": ["--effort", "exhaustive", "--budget", "240s"],
                    "first": ["--seed", "1"], "second": ["--seed", "2"]}
        for name, options in searches.items():
            self.run(f"tune {name}", ["flpgen", "tune", *FLAGSHIP.split(), *options, "--out", f"tuned_{name}",
                                      "--record", f"{name}.sqlite"])
        tuning_records.export([self.out / f"{name}.sqlite" for name in searches], self.out / "tune_forward_4096.json")

    def cold(self):
        done = self.run("cold", [sys.executable, str(TREE / "tests/gpu/cold_start.py"), "--package",
                                 str(Path(self.flpgen).parents[1]), "--pack-ptx", self.packs[0], "--pack-cubin",
                                 self.packs[1], "--json", "cold_start.json"])
        print(done.stdout, flush=True)

    def prove(self):
        sizes = "--rows 512 --vocab 4096 --hidden 512 --repeats 20".split()
        self.run("prove", ["flpgen", "prove", "--arch", "sm_90a", *sizes, "--json=prove.json"])

    def hosts(self):
        self.run_hosts("hosts", [])

    def hosts_two_gpus(self):
        self.run_hosts("hosts_two_gpus", ["-m", "two_ranks"], gpus=2)

    def run_hosts(self, name, options, gpus=1):
        """From the top of the tree, as scripts are, a process for each file and some at a time, as what takes time is one
        core's work; a trainer that is not installed is skipped. Of their records one."""
        def run(file):
            part = self.out / f"{name}-{file.stem}.json"
            command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", str(file.relative_to(TREE)),
                       *options, "--device", self.device, "--record", str(part)]
            done = subprocess.run(command, cwd=TREE, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  text=True)
            print(f"{file.name}: exit {done.returncode}\n{done.stdout[-6000:]}", flush=True)
            return done.returncode, self.take(part)

        with concurrent.futures.ThreadPoolExecutor(HOSTS_TOGETHER) as pool:
            done = list(pool.map(run, sorted((TREE / "tests/hosts").glob("test_*.py"))))
        records, rows = [record for _, record in done], {}
        if None in records or any(code not in (0, NO_TESTS) for code, _ in done):
            self.failed.append(name)
        if None in records:
            return
        if records[0]["gpus"] < gpus:
            print(f"{name}: needs {gpus} GPUs; {records[0]['gpus']} are here", flush=True)
            self.failed.append(name)
            return
        for row in (row for record in records for row in record["rows"]):
            sums = rows.setdefault(row["trainer"], dict(row, passed=0, failed=0))
            sums.update((outcome, sums[outcome] + row[outcome]) for outcome in ("passed", "failed"))
        record = dict(records[0], rows=[rows[trainer] for trainer in sorted(rows)])
        (self.out / f"{name}.json").write_text(tuning_records.text_of(record))

    def script(self, part):
        """One of the tree's own that uses the binding: from the top of the tree, as FLP_LIBRARY may be a path from there."""
        name, *words = SCRIPTS[part]
        words = [word.format(out=self.out) for word in words]
        paths = os.pathsep.join(filter(None, [str(TREE / "runtime/python"), self.env.get("PYTHONPATH")]))
        done = subprocess.run([sys.executable, *words, "--json", str(self.out / f"{name}.json")], cwd=TREE,
                              env=dict(self.env, PYTHONPATH=paths))
        if done.returncode != 0:
            self.failed.append(part)


def description():
    parts = (f"  {part:<11}" + text.replace("\n", "\n" + 13 * " ") if len(part) < 11 else
             f"  {part}\n{13 * ' '}" + text.replace("\n", "\n" + 13 * " ") for part, text in PARTS.items())
    return __doc__.replace("PARTS\n", "\n".join(parts) + "\n")


def main():
    parser = argparse.ArgumentParser(description=description(), formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flpgen", required=True, help="the command to measure")
    parser.add_argument("--out", required=True, help="directory for the records")
    parser.add_argument("--only", default=",".join(PARTS),
                        help="parts to run, or single records of bench and peers, default all parts: %(default)s")
    parser.add_argument("--pack-ptx", default="ptx.flpp", help="for cold: pack without cubins, default %(default)s")
    parser.add_argument("--pack-cubin", default="cubin.flpp", help="for cold: pack with cubins, default %(default)s")
    parser.add_argument("--device", default="cuda", help="of hosts: cpu tries it without a GPU, default %(default)s")
    arguments = parser.parse_args()
    try:
        selected = select(arguments.only)
    except ValueError as error:
        parser.error(f"--only: {error}")
    campaign = Campaign(arguments.flpgen, arguments.out, (arguments.pack_ptx, arguments.pack_cubin), arguments.device)
    for part, names in selected.items():
        campaign.measure(part, names)
    print("failed: " + ", ".join(campaign.failed) if campaign.failed else "all passed")
    return 1 if campaign.failed else 0


if __name__ == "__main__":
    sys.exit(main())
