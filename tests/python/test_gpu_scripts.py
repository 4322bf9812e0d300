"""The scripts of tests/gpu find what they import wherever they run: a GPU's machine may have no more than they need."""
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from flpgen_tool import flpgen, needs_flpgen

TREE = Path(__file__).resolve().parents[2]
CARRIED = ("tests/gpu", "runtime/python", "autotune/tuning_records.py", "tests/tilings.json")


def test_scripts_import_what_is_carried_and_nothing_else(tmp_path):
    for name in CARRIED:
        target = tmp_path / "tree" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (TREE / name).is_dir():
            shutil.copytree(TREE / name, target, ignore=shutil.ignore_patterns("__pycache__", "*.json"))
        else:
            shutil.copy(TREE / name, target)
    scripts = [path for path in sorted((tmp_path / "tree/tests/gpu").glob("*.py")) if "__main__" in path.read_text()]
    assert len(scripts) >= 8
    program = "import runpy, sys\nfor path in sys.argv[1:]:\n    runpy.run_path(path)"
    done = subprocess.run([sys.executable, "-c", program, *map(str, scripts)], cwd=tmp_path, capture_output=True,
                          text=True, env={**os.environ, "PYTHONPATH": str(tmp_path / "tree/runtime/python")})
    assert done.returncode == 0, done.stderr


def record_script():
    spec = importlib.util.spec_from_file_location("record", TREE / "tests/gpu/record.py")
    record = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(record)
    return record


def test_a_campaign_leaves_the_callers_packages_in_reach(tmp_path, monkeypatch):
    """Where matplotlib, say, is in a folder that PYTHONPATH names."""
    record = record_script()
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    monkeypatch.setitem(record.SCRIPTS, "said", ("said", "-c", "import json, os, sys\n"
                                                 "json.dump(os.environ['PYTHONPATH'], open(sys.argv[2], 'w'))"))
    campaign = record.Campaign("flpgen", tmp_path, [])
    campaign.script("said")
    said = (tmp_path / "said.json").read_text()
    assert not campaign.failed and said == '"%s"' % os.pathsep.join([str(TREE / "runtime/python"), "/elsewhere"])


@needs_flpgen
def test_a_campaigns_commands_are_understood():
    """Without a GPU they end for want of one, not for their options."""
    record = record_script()
    checks = [*([*record.GRADS, *options] for options in (*record.SANITIZED, *record.SANITIZED_MODES)), *record.PLAIN]
    for command in [*(["bench", *options] for options in record.BENCHES.values()),
                    *(["check", *record.SMALL, *options, *([] if "--rung" in options else ["--rung", "jit"])] for options in checks)]:
        done = flpgen(*command, FLP_CUDA_LIBRARY="/nonexistent/libcuda.so.1")
        assert done.code == 3, (command, done.err)


def test_a_campaigns_peers_are_understood():
    pytest.importorskip("torch")
    from flp.bench import options
    for words in record_script().PEERS.values():
        options.parse(words)
