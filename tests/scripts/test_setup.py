"""setup.sh and tests/run: a word that is no command, and a build folder that `./setup.sh run` left."""
import os
import subprocess

import pytest

from documents import TREE


@pytest.mark.parametrize("words", [["frob"], ["packages", "frob"], ["wheel", "frob"]])
def test_what_is_no_command_is_named(words):
    done = subprocess.run([TREE / "setup.sh", *words], capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("setup.sh: no command ") and "frob\nusage: " in done.stderr


@pytest.mark.parametrize("has_tests", ["OFF", "ON"])
def test_a_build_without_tests_gets_them(tmp_path, has_tests):
    build, calls = tmp_path / "build", tmp_path / "calls"
    (build / "tests").mkdir(parents=True)
    (build / "CMakeCache.txt").write_text(f"BUILD_TESTING:BOOL={has_tests}\n")
    for path, text in ((tmp_path / "cmake", f'echo "$@" >> {calls}'), (build / "tests" / "test_planner", "echo ran")):
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
    environment = {**os.environ, "FLP_TEST_BUILD": str(build), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run([TREE / "tests/run", "test_planner"], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "ran\n"), done.stderr
    configured = [f"-DBUILD_TESTING=ON {build}"] if has_tests == "OFF" else []
    assert calls.read_text().splitlines() == [*configured, f"--build {build} --target test_planner"]
