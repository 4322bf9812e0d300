#!/usr/bin/env python3
"""Sixteen processes on one cache: pack install, cache gc, verify and ls, plans, pack build, gen. Half of them are
killed at random times. No process meets a corrupt entry as a good one; afterwards the cache verifies, and stale
temporaries go.

    tests/campaign/storm.py --processes 700
    tests/campaign/storm.py --seconds 600 --seed 3

exit: 0 all of that holds; 1 otherwise, with what did not; 2 wrong usage
"""
import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from faults import FLPGEN, HANG, ON_GPU, SM80, SPEC, STALE, clean_environment  # noqa: E402

AT_ONCE = 16
KILLED = 0.7  # of all processes, after a time that is drawn; some end before it
MEAN_SECONDS = 0.1

PLAN = ["explain", *SPEC, "--rows", "64", "--json"]
COMMANDS = {"install": ["pack", "install", "made.flpp"], "verify": ["cache", "verify"], "ls": ["cache", "ls", "--json"],
            "gc": ["cache", "gc"], "gc small": ["cache", "gc", "--keep", "100K"], "plan": PLAN,
            "build": ["pack", "build", *SM80, "-o", "other.flpp"], "gen": ["gen", *SM80, "--out", "kernels"],
            "gen cache": ["gen", *SM80, "--install-cache"]}


class Storm:
    def __init__(self, folder, seed):
        self.folder, self.draw = folder, random.Random(seed)
        (folder / "tmp").mkdir(parents=True)
        self.environment = {**clean_environment(folder), **ON_GPU}
        assert self.run("pack", "build", *SM80, "-o", "made.flpp").returncode == 0
        self.count, self.outcomes, self.wrong = 0, Counter(), []

    def run(self, *arguments):
        return subprocess.run([FLPGEN, *arguments], cwd=self.folder, env=self.environment, capture_output=True,
                              text=True, errors="replace", timeout=HANG)

    def start(self):
        name = self.draw.choice(sorted(COMMANDS))
        delay = self.draw.expovariate(1 / MEAN_SECONDS) if self.draw.random() < KILLED else None
        out = open(self.folder / "tmp" / f"out-{self.count}", "w+")
        self.count += 1
        process = subprocess.Popen([FLPGEN, *COMMANDS[name]], cwd=self.folder, env=self.environment,
                                   stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)
        return name, process, out, time.monotonic(), delay

    def end(self, name, process, out):
        out.seek(0)
        said = out.read()
        out.close()
        Path(out.name).unlink()
        self.outcomes["killed" if process.returncode == -9 else "ended"] += 1
        # A reader may find no file where another process has just removed one: verify and ls say so, with status 4.
        accepted = (0, -9, 4) if name in ("verify", "ls") else (0, -9)
        if process.returncode not in accepted or "corrupt" in said.lower() or "checksum" in said.lower():
            self.wrong.append(f"{name}: exit status {process.returncode}: {said[-300:]}")

    def blow(self, processes, seconds):
        """Starts processes until there were that many, or the time is over."""
        until, alive = time.monotonic() + seconds, []
        while alive or (self.count < processes and time.monotonic() < until):
            while len(alive) < AT_ONCE and self.count < processes and time.monotonic() < until:
                alive.append(self.start())
            time.sleep(0.005)
            for entry in list(alive):
                name, process, out, began, delay = entry
                age = time.monotonic() - began
                if process.poll() is not None:
                    self.end(name, process, out)
                    alive.remove(entry)
                elif delay is not None and age > delay:
                    process.kill()
                elif age > HANG:
                    process.kill()
                    self.wrong.append(f"{name} hangs")

    def judge(self):
        """What must hold once all is still."""
        cache = self.folder / "cache"
        verified = self.run("cache", "verify")
        if verified.returncode:
            self.wrong.append(f"cache verify afterwards: {verified.stdout[-200:]}{verified.stderr[-300:]}")
        left = [path for path in cache.iterdir() if not path.name.endswith(".flpk")]
        self.wrong += [f"{path.name}: a corrupt entry was set aside" for path in left if ".bad" in path.name]
        for path in left:
            os.utime(path, (time.time() - STALE,) * 2)
        collected = self.run("cache", "gc")
        stays = [path.name for path in cache.iterdir() if not path.name.endswith((".flpk", ".cubin"))]
        if collected.returncode or stays:
            self.wrong.append(f"cache gc leaves {stays[:3]}: {collected.stderr}")
        again = self.run("pack", "install", "made.flpp")
        if again.returncode or self.run("cache", "verify").returncode:
            self.wrong.append(f"the cache is not whole after another install: {again.stderr}")
        return len([path for path in left if path.name.startswith(".tmp")])


def storm(folder, processes, seconds, seed):
    """-> the storm, over and judged, and the line that it prints."""
    it = Storm(folder, seed)
    it.blow(processes, seconds)
    temporaries = it.judge()
    return it, (f"storm: {it.count} processes, {it.outcomes['killed']} killed; {temporaries} temporary files left, "
                f"collected when stale; {len(it.wrong)} wrong")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    length = parser.add_mutually_exclusive_group(required=True)
    length.add_argument("--processes", type=int)
    length.add_argument("--seconds", type=int)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="flp-storm-") as root:
        it, line = storm(Path(root) / "storm", arguments.processes or 1 << 30, arguments.seconds or 1 << 30,
                         arguments.seed)
    for wrong in it.wrong:
        print(f"WRONG {wrong}")
    print(line)
    return 1 if it.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
