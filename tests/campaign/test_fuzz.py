"""tests/fuzz/run, where clang is there: a fixed count of runs of every harness, and a minute of each. The builds
without it run the seeds and mutations of them (fuzz.cmake)."""
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TREE = Path(__file__).resolve().parents[2]
NAMES = sorted(path.stem.removeprefix("fuzz_") for path in (TREE / "tests/fuzz").glob("fuzz_*.c"))

needs_clang = pytest.mark.skipif(not shutil.which("clang"), reason="clang with libFuzzer is not there")


def fuzz(*arguments):
    return subprocess.run([sys.executable, TREE / "tests/fuzz/run", *arguments], capture_output=True, text=True)


def runs_of(done):
    """{harness: (runs, edges, crashes)}"""
    found = re.findall(r"^(\w+) +(\d+) runs +(\d+) edges +\d+ new units +(\d+) crashes$", done.stdout, re.M)
    return {name: tuple(map(int, numbers)) for name, *numbers in found}


def test_a_harness_that_is_not_there_is_named():
    done = fuzz("--runs", "1", "nothing")
    assert done.returncode == 2 and "'nothing' is no harness (accepted: container, desc" in done.stderr


@needs_clang
@pytest.mark.long
@pytest.mark.parametrize("length", [("--runs", "2000", "--seed", "1"), ("--seconds", "60")])
def test_every_harness_finds_nothing(length):
    done = fuzz(*length)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    found = runs_of(done)
    assert sorted(found) == NAMES
    assert all(runs >= 2000 and edges > 20 and crashes == 0 for runs, edges, crashes in found.values())
