"""Hostile operands beside float64 (adversarial.py): the CPU rung, and kernels of sm_80 and sm_90a on the CPU. The long
form has more draws of more shapes."""
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import BUILD

DRIVER = Path(__file__).with_name("adversarial.py")
MADE = [BUILD / "lib" / "libflpgen.so", BUILD / "tests" / "libfake_ir_provider.so"]
needs_kernels = pytest.mark.skipif(
    not all(path.exists() for path in MADE) or not Path("/usr/lib/llvm-19/bin/llc").exists() or not shutil.which("cc"),
    reason="the build has no libflpgen, or this machine no llc of LLVM 19 or C compiler")


def run(folder, rung, tries, *options):
    """What the driver counts."""
    done = subprocess.run([sys.executable, DRIVER, "--rung", rung, "--tries", str(tries), "--folder", folder, *options],
                          capture_output=True, text=True, timeout=3600)
    assert done.returncode == 0, done.stderr
    words = re.findall(r"(\d+) ([a-zA-Z ]+?)(?:,|\n)", done.stdout.split(": ", 2)[2])
    counts = {name: int(count) for count, name in words}
    assert counts["tries"] == tries and counts["compared"] > tries and counts["values"] > 1000 * tries
    return counts


def test_the_cpu_rung(tmp_path):
    counts = run(tmp_path, "eager", 150)
    assert min(counts[kind] for kind in ("left out", "bad", "beyond", "NaN", "steps")) > 0


@pytest.mark.first
@needs_kernels
@pytest.mark.parametrize("rung", ["sm_80", "sm_90a"])
def test_kernels(tmp_path, rung):
    run(tmp_path, rung, 9, "--shapes", "short")


@pytest.mark.long
def test_the_cpu_rung_at_length(tmp_path):
    run(tmp_path, "eager", 6000, "--seed", "2")


@pytest.mark.long
@needs_kernels
@pytest.mark.parametrize("rung", ["sm_80", "sm_90a"])
def test_kernels_at_length(tmp_path, rung):
    run(tmp_path, rung, 400, "--seed", "2", "--shapes", "all")
