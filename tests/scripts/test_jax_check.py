"""tests/gpu/jax_check.py: what it says without jax; the oracle of its rows; its record, in a Python with jax."""
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TREE = Path(__file__).resolve().parents[2]
SCRIPT = TREE / "tests/gpu/jax_check.py"
sys.path.insert(0, str(TREE / "tests/install"))

from installed import run  # noqa: E402
from test_evidence import check_record  # noqa: E402
from test_jax import python  # noqa: E402


def test_without_jax(tmp_path):
    (tmp_path / "jax.py").write_text("raise ModuleNotFoundError('no', name='jax')")
    done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert done.returncode == 2
    assert done.stderr == "jax_check.py: flp.jax needs jax, which is not installed: pip install jax\n"


@pytest.mark.long
def test_its_record_is_evidence(tmp_path):
    out = tmp_path / "jax.json"
    run(python(), SCRIPT, "--cpu", "--json", out)
    record = json.loads(out.read_text())
    assert check_record(record) is None and record["command"] == "tests/gpu/jax_check.py --cpu --json jax.json"
    assert record["cases"]["failed"] == [] and record["cases"]["passed"] > 25
    assert [(row["way"], row["pass"]) for row in record["rows"]] == [
        (way, name) for way in ("flp", "formula") for name in ("forward", "training", "frozen", "divergence")]
    assert all(row["ms"] > 0 and row["planned_bytes"] > 0 for row in record["rows"])


@pytest.mark.long
def test_without_a_gpu():
    done = subprocess.run([python(), SCRIPT], capture_output=True, text=True,
                          env={**os.environ, "JAX_PLATFORMS": "cpu"})
    assert done.returncode == 2 and "jax sees no GPU; --cpu tries the script without" in done.stderr


WRONG = """
import runpy, sys
import flp.jax
for name in ("linear_logprob", "divergence"):
    exact = getattr(flp.jax, name)
    setattr(flp.jax, name, lambda hidden, *rest, exact=exact, **options: exact(1.01 * hidden, *rest, **options))
script = runpy.run_path(sys.argv[1])
script["main"].__globals__["cases"] = lambda: None
sys.exit(script["main"](["--cpu", "--rounds", "1"]))
"""


@pytest.mark.long
def test_wrong_numbers_fail():
    done = subprocess.run([python(), "-c", WRONG, SCRIPT], capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    record = json.loads(done.stdout)
    assert record["failed"] == 4 and record["rows"][1]["failed"] == ["logprob", "grad_hidden", "grad_weight"]
    assert record["rows"][3]["failed"] == ["divergence", "grad_hidden", "grad_weight"]
    assert "failed" not in record["rows"][4]
