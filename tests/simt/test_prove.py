"""flpgen prove on a GPU that is none, which takes sm_90a for an architecture that has never run: kernels on the CPU
that are right, wrong, slow, or hang or die in a launch; what plans, explain, doctor and packs make of the stamp."""
import os
from pathlib import Path

import emulator
import pytest

from emulator import needs_emulator
from flpgen_tool import flpgen, needs_flpgen, succeed

pytestmark = [needs_flpgen, needs_emulator]
SHAPE = "--rows 20 --vocab 140 --hidden 24 --repeats 3 --quiet".split()
EXPLAIN = "explain --vocab 140 --hidden 24 --json".split()
LIMIT = 60  # seconds, of a process that takes a few


def environment(folder, compiler=None, more="", unproven=True):
    settings = emulator.environment(folder, "9.0", compiler)
    settings["FLP_GENERIC_DIR"] = "/nonexistent"  # PTX, which this GPU does not take
    settings["FAKE_CUDA"] += f"{';unproven=sm_90a' if unproven else ''};{more}"
    return settings


def plan(folder, *arguments, **settings):
    return flpgen(*EXPLAIN, *arguments, **{**environment(folder), **settings}).json()["plan"]


def doctor(folder):
    document = succeed("doctor", "--json", **environment(folder)).json()
    found, = document["architectures"]
    return found


def stamps(folder):
    return list((folder / "cache").glob("*.flps"))


def test_without_a_stamp_portable_kernels_run_and_say_why(tmp_path):
    assert doctor(tmp_path) == {"device": 0, "arch": "sm_90a", "verdict": "unproven", "reason": None, "time": None}
    found = plan(tmp_path)
    assert found["description"].split("; ")[0].endswith("for sm_80") and found["rung"] == "jit"
    assert found["unproven"].startswith("kernels for sm_90a are off on Fake H200 until `flpgen prove --arch sm_90a`")
    assert found["unproven"] in flpgen(*EXPLAIN[:-1], **environment(tmp_path)).out
    words = "run --demo --vocab 140 --hidden 24 --rows 5 --strict --json".split()
    done = succeed(*words, **environment(tmp_path))
    assert done.err == f"flpgen: warning: {found['unproven']}\n"
    assert succeed(*words, "--arch", "sm_90a", **environment(tmp_path)).err == ""
    assert not stamps(tmp_path)


# In modules that have the entry of Hopper's forward: what its launches do in the place of their work.
FAULTS = {
    "dies": ("abort();", "scores/bf16 dies: Aborted"),
    "hangs": ("for (;;) pause();", "scores/bf16 hangs: no end within"),
    "ends": ("_exit(0);", "scores/bf16 dies: its process ended without an answer"),
}


def broken_compiler(folder, statement):
    """A compiler whose forward of sm_90a has one statement; all else is as compile.py makes it."""
    compiler = folder / "compiler.py"
    compiler.write_text(f"""import pathlib, shutil, subprocess, sys
sys.path.insert(0, {str(emulator.SIMT)!r})
import compile
text, made = open(sys.argv[1]).read(), pathlib.Path(sys.argv[2])
kept = (compile.kept_libraries() or made.parent) / (made.name.split(".")[0] + ".so")
if "@flp_forward_map(" in text or "@flp_forward_short_map(" in text:
    source = made.with_suffix(".c")
    source.write_text("#include <stdlib.h>\\n#include <unistd.h>\\n" + "".join(
        "void run_%s(int ctas, int threads, int cluster, void **params) {{ {statement} }}\\n" % entry
        for entry in ("forward_map", "forward_short_map")))
    subprocess.run(["cc", "-shared", "-fPIC", "-o", made, source], check=True)
elif kept.exists():
    shutil.copy(kept, made)
else:
    compile.compile_module(text, made)
""")
    return compiler


def expect_refuted(folder, done, reason):
    assert done.code == 1, done.err
    assert done.err.startswith(f"flpgen prove: sm_90a is refuted on Fake H200: {reason}"), done.err
    assert done.err.endswith("; plans take portable kernels\n") and done.err.count("\n") == 1
    assert len(stamps(folder)) == 1
    found = doctor(folder)
    assert found["verdict"] == "refuted" and found["reason"].startswith(reason) and found["time"]
    made = plan(folder)
    assert made["description"].split("; ")[0].endswith("for sm_80")
    assert made["unproven"].endswith(f"are off on Fake H200, flpgen prove has refuted them: {found['reason']}")


def processes_of(folder):
    """Commands that run with settings of that folder."""
    def is_of(process):
        try:
            is_command = process.joinpath("exe").readlink().name == "flpgen"
            return is_command and bytes(folder) in (process / "environ").read_bytes()
        except OSError:
            return False
    return [process for process in Path("/proc").iterdir() if process.name.isdigit() and is_of(process)]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_kernel_that_breaks_its_process_is_refuted(tmp_path, fault):
    statement, reason = FAULTS[fault]
    compiler = broken_compiler(tmp_path, statement)
    done = flpgen("prove", *SHAPE, "--limit", LIMIT, timeout=8 * LIMIT, **environment(tmp_path, compiler))
    expect_refuted(tmp_path, done, reason)
    assert not processes_of(tmp_path)


def test_wrong_numbers_are_refuted_and_recorded(tmp_path):
    from test_check import wrong_compiler
    compiler = wrong_compiler(tmp_path, "@flp_forward_short_map(", ("fmul float", "fadd float"))
    done = flpgen("prove", *SHAPE, "--dtype", "bf16", "--json", tmp_path / "record.json",
                  **environment(tmp_path, compiler))
    expect_refuted(tmp_path, done, "scores/bf16 differs from fp64: logprob of case ")
    record = emulator.json.loads((tmp_path / "record.json").read_text())
    row, = record["rows"]
    assert record["gpu"] == "Fake H200" and record["verdicts"][0]["verdict"] == "refuted" and row["pass"] is False
    assert row["part"] == "scores/bf16" and "forward" in row["kinds"] and row["worst"] > 1


def test_slower_kernels_are_refuted(tmp_path):
    more = "cost=flp_forward:1.0;cost=flp_forward_short_map:1.5;jitter=30"
    done = flpgen("prove", *SHAPE, "--dtype", "bf16", **environment(tmp_path, more=more))
    expect_refuted(tmp_path, done, "scores/bf16 is slower than the portable kernels: 1.50 times as long a call, beyond")


@pytest.mark.first(3)
@pytest.mark.parametrize("cost,jitter,slower", [(1.04, 0, False), (1.07, 0, True), (1.07, 2000, False)])
def test_the_margin_of_times(tmp_path, cost, jitter, slower):
    """At least 5 %, and what times spread by; of one part, as its own process tells it."""
    more = f"cost=flp_forward:1.0;cost=flp_forward_short_map:{cost};jitter={jitter}"
    words = ["--arch", "sm_90a", "--part", "scores/bf16"]
    told = succeed("prove", *SHAPE, *words, **environment(tmp_path, more=more)).json()
    assert bool(told["reason"]) == slower and told["ratio"] > 1
    assert told["ratio_low"] <= told["ratio"] <= told["ratio_high"]
    assert told["checks"] > 10 and told["repeats"] == 3 and 0 < told["worst"] < 1 and told["ms"] > 0.9


def test_faults_of_the_machine_are_not_the_architectures(tmp_path):
    """Where portable kernels fail as well nothing is refuted, and no stamp is left."""
    from test_check import wrong_compiler
    compiler = wrong_compiler(tmp_path, "@flp_combine(", ("fadd float", "fsub float"))
    done = flpgen("prove", *SHAPE, **environment(tmp_path, compiler))
    reason = "nothing is proven: of gradients/bf16 the portable kernels fail here too: differs from fp64: grad_bias"
    assert done.code == 3 and done.err.startswith(f"flpgen prove: {reason}"), done.err
    broken = flpgen("prove", *SHAPE, **environment(tmp_path, more="fail:cuModuleLoadDataEx=222"))
    assert broken.code == 3 and "nothing is proven: the portable kernels fail here: scores/bf16: " in broken.err
    assert not stamps(tmp_path)


@pytest.mark.long
def test_one_dtype_alone_leaves_no_proof(tmp_path):
    done = succeed("prove", *SHAPE, "--arch", "sm_90a", "--dtype", "fp32", **environment(tmp_path))
    assert "sm_90a is proven on Fake H200 with this driver, of this dtype; a stamp needs all" in done.out
    assert not stamps(tmp_path) and doctor(tmp_path)["verdict"] == "unproven"


@pytest.mark.long
def test_kernels_that_are_right_are_proven_and_taken(tmp_path):
    done = succeed("prove", *SHAPE, "--json", tmp_path / "record.json", **environment(tmp_path))
    assert "sm_90a is proven on Fake H200 with this driver; plans take it from now on" in done.out
    record = emulator.json.loads((tmp_path / "record.json").read_text())
    assert {row["part"].split("/")[1] for row in record["rows"]} == {"bf16", "fp16", "fp32"}
    assert all(row["pass"] and row["worst"] <= 1 and row["repeats"] == 3 for row in record["rows"])
    assert doctor(tmp_path)["verdict"] == "proven" and len(stamps(tmp_path)) == 1
    found = plan(tmp_path)
    assert found["description"].split("; ")[0].endswith("for sm_90a") and found["unproven"] is None
    assert plan(tmp_path, FAKE_CUDA=environment(tmp_path, more="driver=12090")["FAKE_CUDA"])["unproven"]
    # A directory that is only read counts.
    given = {"FLP_CACHE_DIR": str(tmp_path / "other"), "FLP_CACHE_PATH": str(tmp_path / "cache")}
    os.chmod(tmp_path / "cache", 0o500)
    assert plan(tmp_path, **given)["unproven"] is None
    os.chmod(tmp_path / "cache", 0o700)
    # A pack that is made beside a stamp has kernels of sm_90a, and no stamp; so has what is installed of it.
    pack, other = tmp_path / "kernels.flpp", {**environment(tmp_path), "FLP_CACHE_DIR": str(tmp_path / "installed")}
    other["FAKE_CUDA"] = "capability=9.0;unproven=sm_90a"
    succeed("pack", "build", "--vocab", 140, "--hidden", 24, "-o", pack, **environment(tmp_path))
    succeed("pack", "install", pack, **other)
    listed = succeed("cache", "ls", "--json", **other).out
    assert " arch=sm_90a " in listed and "flp-proof" not in listed
    verdict, = succeed("doctor", "--json", **other, FLP_CACHE_PATH=str(pack)).json()["architectures"]
    assert verdict["verdict"] == "unproven"
    assert "flp-proof/1 arch=sm_90a gpu=Fake H200" in succeed("cache", "ls", "--json", **environment(tmp_path)).out
    assert " stamp " in succeed("cache", "ls", **environment(tmp_path)).out
