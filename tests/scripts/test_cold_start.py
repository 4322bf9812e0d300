"""tests/gpu/cold_start.py without a GPU: what it refuses, what its processes see and print, the record it writes."""
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import cold_start
from flpgen_tool import FLPGEN, flpgen, needs_flpgen
from test_evidence import check_record

TREE = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("FLP_TEST_BUILD", "/nonexistent"))
FAKE = os.environ.get("FLP_TEST_FAKE_CUDA", "")
SHAPE = ["--vocab", "200", "--hidden", "8"]
JOB = {"kind": "flp", "vocab": 200, "hidden": 8, "n": 40, "context": True}
NEEDED = ["--package", "a", "--pack-ptx", "b", "--pack-cubin", "c", "--json", "d"]

on_a_device = pytest.mark.skipif(not os.path.exists(FLPGEN) or not os.path.exists(FAKE),
                                 reason="flpgen, or the stand-in for libcuda, was not built")


@pytest.fixture
def bench(tmp_path):
    """The path of a package without libraries, for children that do not run flp."""
    class NoFlp:
        lib, library = tmp_path / "lib", tmp_path / "lib" / "libflp.so"
    return cold_start.Bench(NoFlp, tmp_path, limit=600)


@pytest.fixture
def flp_bench(tmp_path, monkeypatch):
    monkeypatch.setenv("FLP_CUDA_LIBRARY", FAKE)
    monkeypatch.setenv("FAKE_CUDA", "capability=9.0;compute=1")
    return cold_start.Bench(cold_start.Flp(BUILD, tmp_path), tmp_path, limit=600)


def use_child(monkeypatch, tmp_path, text):
    """Other text for the child, after its job was read and before it reports that it is ready."""
    path = tmp_path / "child.py"
    path.write_text("import json, os, signal, sys, time\njob = json.loads(sys.argv[1])\n" + text)
    monkeypatch.setattr(cold_start, "CHILD", path)


READY = "os.write(job['ready'], b'.'); sys.stdin.read()\n"


# ---- the command line


def test_what_is_measured_by_default():
    options = cold_start.parse(NEEDED)
    assert (options.vocab, options.hidden, options.rows) == (151936, 4096, [8192, 256])
    assert (options.together, options.together_rows, options.limit) == (64, 64, 120)
    assert options.peers == ["torch-compile", "cce"] and options.pack_ptx == Path("b")
    assert cold_start.parse([*NEEDED, "--peers", "", "--rows", "7"]).peers == []


def test_commands_name_no_paths():
    command = cold_start.command_of(["--package", "/a/b", "--pack-ptx=/x/p.flpp", "--json", "o.json", "--rows", "8,7"])
    assert command == "tests/gpu/cold_start.py --package b --pack-ptx=p.flpp --json o.json --rows 8,7"


def test_a_package_that_is_none(tmp_path, capsys):
    assert cold_start.main([*NEEDED[2:], "--package", str(tmp_path)]) == 2
    assert "has no bin/flpgen and lib/libflp.so" in capsys.readouterr().err


@needs_flpgen
def test_packs_that_are_not_there_or_none(tmp_path, capsys):
    pack = tmp_path / "a.flpp"
    arguments = ["--package", str(BUILD), "--pack-ptx", str(pack), "--pack-cubin", str(pack), "--json",
                 str(tmp_path / "o.json"), *SHAPE]
    assert cold_start.main(arguments) == 2
    assert f"--pack-ptx {pack}: there is no such file; `flpgen pack build` makes it" in capsys.readouterr().err
    pack.write_bytes(b"something else")
    assert cold_start.main(arguments) == 2
    assert "--pack-ptx" in capsys.readouterr().err and not (tmp_path / "o.json").exists()


# ---- its processes


def test_no_setting_leads_a_process_elsewhere(tmp_path, bench):
    (tmp_path / "flp").mkdir()
    (tmp_path / "flp" / "libflpgen.so").touch()
    base = {"FLP_FORCE": "jit", "FLP_JIT_LIBRARY": "x", "CUDA_CACHE_DISABLE": "1", "TRITON_HOME": "x", "HOME": "x",
            "FLP_CUDA_LIBRARY": "kept", "PATH": "kept", "TRITON_PTXAS_PATH": "kept", "XDG_CACHE_HOME": "x",
            "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1", "LD_LIBRARY_PATH": f"{tmp_path / 'flp'}:/kept"}
    root, folders = cold_start.empty_home(tmp_path)
    env = cold_start.environment(bench.flp, folders, "/p.flpp", base)
    assert {name for name in base if env.get(name) == "kept"} == {"FLP_CUDA_LIBRARY", "PATH", "TRITON_PTXAS_PATH"}
    assert env["LD_LIBRARY_PATH"] == f"{bench.flp.lib}:/kept" and env["FLP_CACHE_PATH"] == "/p.flpp"
    assert "x" not in env.values() and not {"CUDA_CACHE_DISABLE", "TORCHINDUCTOR_FORCE_DISABLE_CACHES"} & set(env)
    for name in ("HOME", "FLP_CACHE_DIR", "CUDA_CACHE_PATH", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        assert os.listdir(env[name]) == [] and env[name].startswith(str(root))


def test_processes_start_together(tmp_path, monkeypatch, bench):
    use_child(monkeypatch, tmp_path, "time.sleep(os.getpid() % 7 / 10); ready = time.monotonic()\n" + READY +
              "print(json.dumps({'ready': ready, 'ms': time.monotonic()}))")
    results, written = bench.measure({}, together=6)
    assert len(results) == 6 and written == []
    assert max(result["ready"] for result in results) <= min(result["ms"] for result in results)


@pytest.mark.parametrize("child,error", [
    (READY + "time.sleep(60)", "not done within 1 s"), ("time.sleep(60)", "not done within 1 s"),
    (READY + "os.kill(os.getpid(), signal.SIGSEGV)", "ended with -11: it said nothing"),
    ("sys.exit('no ' + 'luck')", "ended with 1: no luck"), (READY + "print('{')", "ended with 0: it said nothing")])
def test_processes_that_fail(tmp_path, monkeypatch, bench, child, error):
    use_child(monkeypatch, tmp_path, child)
    bench.limit = 1 if "sleep" in child else 600
    results, _ = bench.measure({}, together=2)
    assert results == [{"errors": [error]}] * 2
    row = cold_start.flp_row("ptx", 8, results, [])
    assert row["ms"] is None and row["reason"] == error and cold_start.has_failed(row)


def test_files_in_caches_are_counted(tmp_path, monkeypatch, bench):
    use_child(monkeypatch, tmp_path, READY + "open(os.environ['CUDA_CACHE_PATH'] + '/index', 'w').close()\n"
              "print(json.dumps({'ms': 1.0, 'describe': 'rung tuned on'}))")
    results, written = bench.measure({}, rounds=2)
    assert written == ["cuda/index", "cuda/index"]
    assert cold_start.flp_row("ptx", 8, results, written)["errors"] == []
    row = cold_start.flp_row("cubin, at once", 8, results, written)
    assert row["compiled"] == 2 and row["errors"] == ["2 files appeared in caches, such as cuda/index"]


def test_errors_are_kept_once_and_not_all():
    results = [{"errors": [str(i // 2)]} for i in range(20)]
    assert cold_start.row_of("ptx", 8, results)["errors"] == ["0", "1", "2", "3", "4", "and 5 other errors"]


def test_other_rungs_are_errors():
    results = [{"ms": 1.0, "describe": "rung generic on"}, {"ms": 2.0, "describe": "rung tuned on"}]
    errors = cold_start.flp_row("ptx", 8, results, [])["errors"]
    assert errors == ["rung generic, tuned; tuned or heuristic is expected"]


@pytest.mark.parametrize("context", [True, False])
@on_a_device
def test_the_first_logprobs_are_right(tmp_path, flp_bench, context):
    """With kernels that the stand-in can compute: those that the stand-in for libflpgen makes."""
    stand_ins = {name: FAKE.replace("fake_cuda", fake) for name, fake in (
        ("FLP_CUDA_LIBRARY", "fake_cuda"), ("FLP_JIT_LIBRARY", "fake_provider"),
        ("FLP_CUBLASLT_LIBRARY", "fake_cublaslt"))}
    done = flpgen("tune", *SHAPE, "--rows", 40, "--burst-ms", 1, "--effort", "quick", "--no-bare",
                  cache=tmp_path / "tuned", FAKE_CUDA="capability=9.0;compute=1;jitter=5", **stand_ins)
    assert done.code == 0, done.err
    results, written = flp_bench.measure({**JOB, "context": context}, tmp_path / "tuned", together=3)
    row = cold_start.flp_row("cubin", 40, results, written, target=60, at_once=3)
    assert row["errors"] == [] and row["rung"] == "tuned" and row["processes"] == len(row["ms"]) == 3
    assert (row["context_ms"] is not None) == context and flp_bench.device["gpu"] == "Fake H200"
    assert 0 < row["median_ms"] <= row["worst_ms"]


@pytest.mark.long
def test_other_libraries_are_timed_or_give_the_reason(bench):
    job = {"kind": "peer", "vocab": 96, "hidden": 16, "n": 6, "device": "cpu", "grads": ["hidden", "weight"]}
    (result,), _ = bench.measure({**job, "peer": "torch-fp32"})
    assert result.get("errors") == [] and 0 < result["forward_ms"] < result["ms"] and result["version"]
    (result,), _ = bench.measure({**job, "peer": "cce"})
    row = cold_start.row_of("cce forward", 6, [result], peer="cce")
    assert row["reason"] == "needs a CUDA device" and row["ms"] is None and not cold_start.has_failed(row)


# ---- the record


def test_the_record_is_one_of_the_tree(tmp_path):
    pack = tmp_path / "a.flpp"
    pack.write_bytes(b"pack")
    rows = [cold_start.flp_row("ptx", 8, [{"ms": ms, "context_ms": 1.23456, "describe": "rung heuristic on"}
                                          for ms in (301.0, 10.0, 305.00049)], [], target=300),
            cold_start.row_of("cce forward", 8, [{"reason": "not installed"}], peer="cce")]
    record = cold_start.record_of(rows, {"gpu": "A", "cuda_version": 13010}, "ab" * 32, {"ptx": pack}, "command")
    text = cold_start.tuning_records.text_of(cold_start.rounded(record))
    written = json.loads(text)
    assert check_record(written) is None and "CUDA 13.1" in written["driver"]
    assert (written["late"], written["failed"], written["packs"]["ptx"]["bytes"]) == (1, 0, 4)
    assert written["rows"][0] == {
        "case": "ptx", "n": 8, "processes": 3, "at_once": 1, "ms": [301.0, 10.0, 305.0], "median_ms": 301.0,
        "worst_ms": 305.0, "plan_ms": None, "context_ms": 1.235, "compiled": 0, "rung": "heuristic", "target_ms": 300,
        "errors": []}
    assert sum(line.startswith('  {"case"') for line in text.splitlines()) == 2


@pytest.mark.long
@on_a_device
def test_the_whole_measurement(tmp_path, monkeypatch):
    """Kernels of the generator, which the stand-in loads and does not run: all is right but the numbers."""
    ptxas = os.environ.get("FLP_PTXAS")
    if not ptxas:
        pytest.skip("no ptxas")
    monkeypatch.setenv("FLP_CUDA_LIBRARY", FAKE)
    monkeypatch.setenv("FAKE_CUDA", "capability=9.0;driver=13900")
    packs = {"ptx": [], "cubin": ["--cubin", "sm_90"]}
    for name, options in packs.items():
        made = flpgen("pack", "build", *SHAPE, *options, "--out", tmp_path / name, FLP_PTXAS=ptxas)
        assert made.code == 0, made.err
    out = tmp_path / "cold_start.json"
    code = cold_start.main(["--package", str(BUILD), "--pack-ptx", str(tmp_path / "ptx"), "--pack-cubin",
                            str(tmp_path / "cubin"), "--json", str(out), *SHAPE, "--rows", "40,7", "--repeats", "2",
                            "--together", "6", "--peers", ""])
    record = json.loads(out.read_text())
    assert code == 1 and record["failed"] == len(record["rows"]) == 9 and record["gpu"] == "Fake H200"
    assert [(row["case"], row["n"]) for row in record["rows"]] == [
        ("ptx", 40), ("ptx, from nothing", 40), ("ptx", 7), ("ptx, from nothing", 7), ("cubin", 40),
        ("cubin, from nothing", 40), ("cubin", 7), ("cubin, from nothing", 7), ("cubin, at once", 64)]
    for row in record["rows"]:
        assert row["rung"] == "heuristic" and row["compiled"] == 0 and row["context_ms"] > 0, row
        assert row["errors"] == [f"{row['n']} of {row['n']} logprobs are wrong: nan, -5.298317 is right"], row
        assert row["processes"] == len(row["ms"]) == (6 if row["at_once"] == 6 else 2)


@needs_flpgen
def test_the_campaign_names_the_pack_that_is_missing(tmp_path):
    command = [str(TREE / "tests/gpu/record.py"), "--flpgen", FLPGEN, "--out", str(tmp_path), "--only", "cold",
               "--pack-ptx", str(tmp_path / "a.flpp")]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True)
    assert done.returncode == 1 and done.stdout.endswith("failed: cold\n")
    assert f"--pack-ptx {tmp_path / 'a.flpp'}: there is no such file" in done.stdout
