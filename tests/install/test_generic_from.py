"""A build without generator: it warns that it has no kernels, or installs those of another build."""
import os
import subprocess
from pathlib import Path

import pytest
from installed import run

BUILD = Path(os.environ["FLP_TEST_BUILD"])
TREE = Path(os.environ["FLP_TEST_TREE"])
FAKE = os.environ.get("FLP_TEST_FAKE_CUDA", "")
GENERIC = BUILD / "share" / "flp" / "generic"
pytestmark = pytest.mark.skipif(not GENERIC.exists(), reason="this build has no generic kernels")

PROGRAM = r"""
#include <flp.h>
#include <stdio.h>
int main(void) {
  flp_spec spec = FLP_SPEC_INIT;
  spec.vocab = 1000, spec.hidden = 64;
  flp_plan *plan = NULL;
  if (flp_plan_create(&spec, NULL, &plan) != FLP_OK) puts(flp_error_detail());
  else printf("rung %d\n", (int)flp_plan_get_rung(plan));
  flp_plan_destroy(plan);
  return 0;
}
"""


def configure(build, *options):
    command = ["cmake", "-S", TREE, "-B", build, "-G", "Ninja", "-DFLP_GENERATOR=OFF", "-DBUILD_TESTING=OFF", *options]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    return done.returncode, " ".join(done.stderr.split())


def test_no_kernels_are_worth_a_warning(tmp_path):
    code, err = configure(tmp_path)
    assert code == 0
    assert "FLP_GENERATOR=OFF without FLP_GENERIC_FROM: no kernels are installed" in err


def test_a_folder_without_kernels_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    code, err = configure(tmp_path / "build", f"-DFLP_GENERIC_FROM={tmp_path}/empty")
    assert code != 0
    assert f"FLP_GENERIC_FROM={tmp_path}/empty has no kernels (*.flpk)" in err


def test_kernels_of_another_build_are_taken(tmp_path):
    for _ in range(2):  # configuring again changes nothing
        code, err = configure(tmp_path, f"-DFLP_GENERIC_FROM={GENERIC}")
        assert (code, err) == (0, "")
    taken = tmp_path / "share" / "flp" / "generic"
    names = sorted(path.name for path in GENERIC.glob("*.flpk"))
    assert names and sorted(path.name for path in taken.iterdir()) == names
    assert all((taken / name).read_bytes() == (GENERIC / name).read_bytes() for name in names)


@pytest.mark.long
def test_the_installed_library_runs_them(tmp_path):
    (tmp_path / "plan.c").write_text(PROGRAM)
    environment = {"FLP_CUDA_LIBRARY": FAKE, "FLP_CACHE_DIR": "/dev/null/flp"}
    for name, options, found in (("with", [f"-DFLP_GENERIC_FROM={GENERIC}"], "rung 4\n"),
                                 ("without", [], "has no sm_80 kernel rows")):
        assert configure(tmp_path / name, *options)[0] == 0
        run("cmake", "--build", tmp_path / name)
        run("cmake", "--install", tmp_path / name, "--prefix", tmp_path / "opt" / name)
        prefix = tmp_path / "opt" / name
        run("gcc", tmp_path / "plan.c", f"-I{prefix}/include", f"-L{prefix}/lib", "-lflp", f"-Wl,-rpath,{prefix}/lib",
            "-o", tmp_path / f"{name}.out")
        assert found in run(tmp_path / f"{name}.out", env=environment)
