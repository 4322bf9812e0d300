"""The scripts of tests/gpu find what they import wherever they run: a GPU's machine may have no more than they need."""
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import parts
import portable
import record
from flpgen_tool import findings, flpgen, needs_flpgen

TREE = Path(__file__).resolve().parents[2]
CARRIED = ("tests/gpu", "runtime/python", "runtime/flp.h", "autotune/tuning_records.py", "tests/tilings.json")


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


def test_a_campaign_leaves_the_callers_packages_in_reach(tmp_path, monkeypatch):
    """Where matplotlib, say, is in a folder that PYTHONPATH names."""
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    monkeypatch.setitem(parts.SCRIPTS, "said", ("said", "-c", "import json, os, sys\n"
                                                 "json.dump(os.environ['PYTHONPATH'], open(sys.argv[2], 'w'))"))
    campaign = record.Campaign("flpgen", tmp_path, [])
    campaign.script("said")
    said = (tmp_path / "said.json").read_text()
    assert not campaign.failed and said == '"%s"' % os.pathsep.join([str(TREE / "runtime/python"), "/elsewhere"])


@needs_flpgen
def test_a_campaigns_commands_are_understood():
    """Without a GPU they end for want of one, not for their options."""
    checks = [options for part in ("sanitize", "sanitize_modes") for options in parts.SANITIZERS[part][0]]
    benches = [options for records in parts.BENCHES.values() for options in records.values()]
    benches += [["--vocab", "8", "--hidden", str(hidden), *words.split(), "--arch", "sm_80"]
                for _, hidden, words in portable.CASES.values()]
    for command in [*(["bench", *options] for options in benches),
                    *(["check", *parts.SMALL, *options, *([] if "--rung" in options else ["--rung", "jit"])]
                      for options in checks)]:
        done = flpgen(*command, FLP_CUDA_LIBRARY="/nonexistent/libcuda.so.1")
        assert done.code == 3, (command, done.err)


def test_a_campaigns_peers_are_understood():
    pytest.importorskip("torch")
    from flp.bench import options
    for words in (words for records in parts.PEERS.values() for words in records.values()):
        options.parse([*parts.HEAD, *words])


def test_a_campaigns_examples_are_understood(monkeypatch):
    """Options of the comparison over seeds; its record has the part's name."""
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(TREE / "runtime/python/examples"))
    import grpo_tiny
    name, script, *words = parts.SCRIPTS["grpo_tail"]
    given = grpo_tiny.parser().parse_args(words)
    assert name == "grpo_tail" and (TREE / script).samefile(grpo_tiny.__file__)
    assert given.compare_tail and given.seeds == 3 and given.tail in (None, 2**-9) and grpo_tiny.TAIL == 2**-9


STAND_IN = """#!/bin/sh
for word; do case $word in --json=*) out=${word#--json=} ;; fp16) failed=1 ;; bf16|fp32) failed=0 ;; esac; done
echo "{\\"date\\": \\"today\\", \\"command\\": \\"$*\\", \\"checks\\": 1, \\"failed\\": $failed, \\"rows\\": [\\"$*\\"]}" >"$out"
exit $failed
"""


def test_checks_of_dtypes_side_by_side_are_one_record(tmp_path):
    stand_in = tmp_path / "flpgen"
    stand_in.write_text(STAND_IN)
    stand_in.chmod(0o755)
    campaign = record.Campaign(stand_in, tmp_path / "out", [])
    campaign.measure("check_tail", [])
    made = json.loads((tmp_path / "out/check_tail.json").read_text())
    assert made["command"] == "flpgen check --all --mode tail" and (made["checks"], made["failed"]) == (3, 1)
    assert [row.split()[-3:-1] for row in made["rows"]] == [
        [dtype, f"--json=check_tail-{dtype}.json"] for dtype in ("bf16", "fp16", "fp32")]
    assert campaign.failed == ["check_tail fp16"] and [path.name for path in (tmp_path / "out").iterdir()] == [
        "check_tail.json"]


def test_a_dtype_that_ends_without_a_record_fails_its_part(tmp_path):
    stand_in = tmp_path / "flpgen"
    stand_in.write_text(STAND_IN.replace("\necho", "\n[ $failed = 0 ] || exit 139\necho"))
    stand_in.chmod(0o755)
    campaign = record.Campaign(stand_in, tmp_path / "out", [])
    campaign.measure("check_targets", [])
    assert campaign.failed == ["check_targets fp16"] and not list((tmp_path / "out").glob("check_targets.json"))


def test_parts_and_single_records_are_selected():
    modes = list(parts.BENCHES["bench_modes"])
    assert parts.select("bench_forward_4096") == {"bench": ["bench_forward_4096"]}
    assert parts.select("peers_saved,bench_saved,large,bench_modes") == {
        "large": [], "bench_modes": modes, "peers_modes": ["peers_saved"]}
    everything = parts.select(",".join(parts.PARTS))
    assert parts.RECORDS.keys() <= parts.PARTS.keys()
    kept = {path.stem for path in (TREE / "autotune/bench").glob("bench_*.json")}
    assert kept <= {name for records in parts.BENCHES.values() for name in records}
    assert list(everything) == list(parts.PARTS) and everything["bench"] == list(parts.BENCHES["bench"])
    names = [*parts.PARTS, *(name for records in parts.RECORDS.values() for name in records)]
    assert len(set(names)) == len(names)
    with pytest.raises(ValueError, match="^bench_backward, parts: accepted are check, .*bench_forward_4096"):
        parts.select("check,parts,bench_backward")


@pytest.mark.first
@needs_flpgen
@pytest.mark.parametrize("part, outputs", [("sanitize_lora", {"grad_lora_a", "grad_lora_b"}),
                                           ("sanitize_mixed", {"grad_weight"}),
                                           ("sanitize_losses", {"loss", "grad_weight"})])
def test_problems_for_the_sanitizers_are_checked(part, outputs):
    """On the CPU, whatever their rung: a row list among their patterns."""
    for options in parts.SANITIZERS[part][0]:
        words = [word for word in options if word not in ("--rung", "generic")]
        done = flpgen("check", *parts.FEW, *words, "--rung", "eager", "-q", "--json")
        assert done.code == 0, done.err
        rows = findings(done.json())
        assert outputs <= {row["output"] for row in rows} and "row-list" in {row["case"] for row in rows}


def test_a_campaign_makes_the_records_that_it_is_asked_for(tmp_path):
    """With a command that writes what it was given as its record."""
    flpgen_alone = tmp_path / "flpgen"
    flpgen_alone.write_text('#!/bin/sh\nfor last; do :; done\necho "flpgen $*" > "${last#--json=}"\n')
    flpgen_alone.chmod(0o755)
    out = tmp_path / "records"
    command = [sys.executable, TREE / "tests/gpu/record.py", "--flpgen", flpgen_alone, "--out", out, "--only"]
    done = subprocess.run([*command, "bench_forward_1024,bench_saved"], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.endswith("all passed\n"), done.stdout + done.stderr
    assert sorted(path.name for path in out.iterdir()) == ["bench_forward_1024.json", "bench_saved.json"]
    assert (out / "bench_forward_1024.json").read_text().startswith("flpgen bench --vocab 151936 --hidden 1024 ")
    done = subprocess.run([*command, "bench_forward"], capture_output=True, text=True)
    assert done.returncode == 2 and "--only: bench_forward: accepted are check, " in done.stderr
