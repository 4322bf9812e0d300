"""The environment is the caller's: one place changes it, before there are threads, for what the driver reads from it."""
import errno
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from flpgen_tool import FLPGEN, flpgen, needs_flpgen, succeed
from preloaded import preloaded

TREE = Path(__file__).resolve().parents[2]

# Stands in for libcuda: writes the environment that it is loaded in, and is of no use beyond that.
LIBRARY = r"""
#include <stdio.h>
extern char **environ;
__attribute__((constructor)) static void note(void) {
  FILE *file = fopen(PATH, "w");
  for (char **at = environ; file && *at; at++) fprintf(file, "%s%c", *at, 0);
  if (file) fclose(file);
}
"""


@pytest.mark.parametrize("folder", ("runtime", "gen", "autotune"))
def test_one_source_changes_the_environment(folder):
    """setenv is a race with every getenv of every thread, those of the driver and of BLAS libraries among them."""
    calls = re.compile(r"\b(setenv|unsetenv|putenv|clearenv)\s*\(|\benviron\s*(\[[^]]*\]\s*)?=[^=]")
    found = [str(path.relative_to(TREE)) for path in sorted((TREE / folder).rglob("*.[ch]"))
             for line in path.read_text().splitlines() if calls.search(line)]
    assert found == ["gen/cli/shared/scratch.c"] * (folder == "gen")


@pytest.fixture
def driver(tmp_path):
    if not shutil.which("gcc"):
        pytest.skip("no gcc")
    (tmp_path / "note.c").write_text(LIBRARY)
    subprocess.run(["gcc", "-shared", "-fPIC", '-DPATH="%s"' % (tmp_path / "seen"), str(tmp_path / "note.c"), "-o",
                    str(tmp_path / "note.so")], check=True)
    return tmp_path / "note.so"


@needs_flpgen
@pytest.mark.parametrize("verb", ("bench", "tune"))
@pytest.mark.parametrize("before", (None, "/somewhere/driver"))
def test_the_driver_has_a_cache_of_its_own_that_is_removed(driver, tmp_path, verb, before):
    temporary, cache = tmp_path / "temporary", tmp_path / "cache"
    temporary.mkdir()
    given = {"FLP_CUDA_LIBRARY": str(driver), "TMPDIR": str(temporary), "WORD": "two words"}
    if before:
        given["CUDA_CACHE_PATH"] = before
    done = flpgen(verb, "--vocab", 1000, "--hidden", 64, cache=cache, **given)
    assert done.code == 3, done.err  # no driver
    assert done.out == ""
    seen = dict(line.split("=", 1) for line in (tmp_path / "seen").read_text().split("\0")[:-1])
    assert re.fullmatch("%s/flpgen-%s-[A-Za-z0-9]{6}/driver" % (re.escape(str(temporary)), verb),
                        seen["CUDA_CACHE_PATH"])
    assert {name: seen[name] for name in given if name != "CUDA_CACHE_PATH"} == {
        name: value for name, value in given.items() if name != "CUDA_CACHE_PATH"}
    assert seen["FLP_CACHE_DIR"] == str(cache) and "FLP_CACHE_PATH" not in seen
    assert list(temporary.iterdir()) == []


FAILURES = os.environ.get("FLP_TEST_FAKE_FAILURES", "")
RUN = ("run", "--demo", "--vocab", 3000, "--hidden", 256, "--rows", 128, "--dtype", "fp32")


def results(tmp_path, name, **environment):
    done = succeed(*RUN, "-o", tmp_path / name, **environment)
    assert "OpenBLAS blas_thread_init" not in done.err
    return (tmp_path / name).read_bytes()


@needs_flpgen
@pytest.mark.skipif(not os.path.exists(FAILURES), reason="libfake_failures.so was not built")
@pytest.mark.parametrize("fault", ("1", "2", "3", "1+", "2+"))
def test_a_run_does_with_the_threads_that_it_gets(tmp_path, fault):
    """OpenBLAS raises SIGINT where it cannot start a thread of its own."""
    assert results(tmp_path, "few", **preloaded(FAILURES), FAKE_FAILURES=f"thread:{fault}:{errno.EAGAIN}") == results(tmp_path, "all")


@needs_flpgen
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs root and setpriv")
def test_a_run_without_another_process_of_the_user(tmp_path):
    user = ["setpriv", "--reuid", "12345", "--clear-groups"]
    if subprocess.run([*user, "test", "-x", FLPGEN]).returncode:
        pytest.skip("the command lies where another user cannot reach it")
    done = subprocess.run([*user, "bash", "-c", "ulimit -u 1; exec \"$@\"", "-", FLPGEN, *map(str, RUN)],
                          capture_output=True, text=True, env={"PATH": os.environ["PATH"], "HOME": "/nonexistent"})
    assert done.returncode == 0, (done.returncode, done.stderr)
    assert "OpenBLAS" not in done.stderr
