"""Versions of libflp's symbols: old programs run, and the loader refuses one that needs what its library lacks."""
import os
import re
import shutil
from pathlib import Path

import pytest
from installed import exported_symbols, refused, run

TREE = Path(os.environ["FLP_TEST_TREE"])
NEWER = "FLP_0 { global: flp_version; local: *; };\nFLP_0.99 { global: flp_new; } FLP_0;\n"


@pytest.fixture(scope="module")
def library(prefix):
    return (prefix / "lib" / "libflp.so.0").resolve()  # in a wheel libflp.so is a script of the linker


def test_every_function_has_the_version_of_its_release(library):
    """Those of 0.1.0 are in FLP_0, whatever is added later."""
    nodes = dict(re.findall(r"^(FLP_[0-9.]+) \{(.*?)\}", (TREE / "runtime/flp.map").read_text(), re.M | re.S))
    listed = {name: node for node, text in nodes.items() for name in re.findall(r"^ +(flp_\w+);", text, re.M)}
    assert exported_symbols(library) == listed
    debian = (TREE / "packaging/debian/libflp0.symbols").read_text()
    assert dict(re.findall(r"^ (flp_\w+)@(\S+) ", debian, re.M)) == listed
    assert {listed[name] for name in ("flp_plan_create", "flp_execute", "flp_step", "flp_select")} == {"FLP_0"}


def test_calls_inside_the_library_stay_inside(library):
    """A process may hold two releases: those of a program and of a wheel."""
    assert re.findall(r" (flp_\w+)", run("readelf", "-rW", library)) == []


@pytest.fixture()
def newer(tmp_path):
    """A library of a release to come: one function more, with a version of its own. -> its folder"""
    (tmp_path / "newer.c").write_text('const char *flp_version(void) { return "0.99.0"; }\n'
                                      'int flp_new(void) { return 0; }\n')
    (tmp_path / "newer.map").write_text(NEWER)
    folder = tmp_path / "newer"
    folder.mkdir()
    run("cc", "-shared", "-fPIC", tmp_path / "newer.c", "-Wl,-soname,libflp.so.0",
        f"-Wl,--version-script={tmp_path}/newer.map", "-o", folder / "libflp.so.0")
    return folder


def build(text, folder, library):
    (folder / "main.c").write_text("#include <stdio.h>\nconst char *flp_version(void);\nint flp_new(void);\n" + text)
    run("cc", folder / "main.c", library, "-o", folder / "main")
    return folder / "main"


def test_a_program_of_this_release_runs_with_a_newer_library(newer, library, tmp_path):
    program = build("int main(void) { puts(flp_version()); return 0; }", tmp_path, library)
    assert run(program, env={"LD_LIBRARY_PATH": str(newer)}) == "0.99.0\n"


def test_a_newer_program_is_told_what_it_lacks(newer, library, tmp_path):
    older = tmp_path / "older"
    older.mkdir()
    shutil.copy(library, older / "libflp.so.0")
    here = {"LD_LIBRARY_PATH": str(older)}
    program = build("int main(void) { puts(flp_version()); return flp_new(); }", tmp_path, newer / "libflp.so.0")
    assert "version `FLP_0.99' not found" in refused(program, env=here)
    program = build("int main(void) { puts(flp_version()); return 0; }", tmp_path, newer / "libflp.so.0")
    assert run(program, env=here).startswith("0.")  # nothing new is needed


def test_dlsym_needs_no_version(library, tmp_path):
    program = build("""#include <dlfcn.h>
int main(int count, char **words) {
  void *library = dlopen(words[count - 1], RTLD_NOW);
  const char *(*version)(void) = library ? (const char *(*)(void))dlsym(library, "flp_version") : 0;
  return !version || !puts(version());
}
""", tmp_path, "-ldl")
    assert run(program, library).startswith("0.")
