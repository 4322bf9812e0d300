"""Arguments that argp has no memory to read."""
import shutil
import subprocess

import pytest

from flpgen_tool import flpgen, needs_flpgen
from preloaded import preloaded

# Lets the first malloc inside argp_parse fail.
SHIM = r"""
#include <argp.h>
#include <dlfcn.h>
#include <errno.h>
extern void *__libc_malloc(size_t);
static int fails;
void *malloc(size_t bytes) {
  if (!fails) return __libc_malloc(bytes);
  fails = 0;
  errno = ENOMEM;
  return 0;
}
error_t argp_parse(const struct argp *argp, int argc, char **argv, unsigned flags, int *index, void *input) {
  error_t (*parse)(const struct argp *, int, char **, unsigned, int *, void *) = dlsym(RTLD_NEXT, "argp_parse");
  fails = 1;
  error_t failed = parse(argp, argc, argv, flags, index, input);
  fails = 0;
  return failed;
}
"""


@pytest.fixture(scope="module")
def shim(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shim")
    if not shutil.which("gcc"):
        pytest.skip("no gcc")
    (folder / "shim.c").write_text(SHIM)
    subprocess.run(["gcc", "-D_GNU_SOURCE", "-shared", "-fPIC", "-o", folder / "shim.so", folder / "shim.c", "-ldl"],
                   check=True)
    return str(folder / "shim.so")


@needs_flpgen
@pytest.mark.parametrize("words", (
    ("gen", "--vocab", 100, "--hidden", 64), ("run", "--demo"), ("check", "--quick"), ("bench",), ("explain",),
    ("tune",),
    ("doctor",), ("cache", "ls"), ("cache", "gc"), ("loss", "list"), ("loss", "show", "grpo"),
    ("loss", "check", "grpo"), ("pack", "build"), ("pack", "inspect", "x"), ("pack", "verify", "x"),
    ("pack", "install", "x")), ids=lambda words: " ".join(map(str, words[:2])))
def test_arguments_that_there_is_no_memory_for(shim, tmp_path, words):
    name = "flpgen " + " ".join(words[:2] if words[0] in ("loss", "pack") else words[:1])
    done = flpgen(*words, **preloaded(shim), cwd=tmp_path)
    assert (done.code, done.out, done.err) == (3, "", f"{name}: reading the arguments: out of memory\n")


@needs_flpgen
def test_json_says_so_too(shim):
    done = flpgen("doctor", "--json", **preloaded(shim))
    assert done.code == 3
    assert done.json()["error"] == {"status": "FLP_ERROR_MEMORY", "exit": 3,
                                    "message": "reading the arguments: out of memory"}
