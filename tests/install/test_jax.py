"""flp.jax: what jax_cases.py says in a Python with jax, the rows of flp_cases.py, and what happens without one.

That Python is FLP_TEST_JAX_PYTHON, or this one, or build/jax, where `./setup.sh test` puts jax.
"""
import functools
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import flp
import flp_jax_form
from flp_cases import differences

HERE = Path(__file__).parent
TREE = Path(os.environ["FLP_TEST_TREE"])
LIBRARY = Path(os.environ["FLP_LIBRARY"])
CASES = [case for file in ("jax_cases.py", "jax_pairs.py")
         for case in re.findall(r"^def case_(\w+)", (HERE / file).read_text(), re.M)]
SLOW = {"a_library_found_by_the_loader", "agrees_with_the_formula_in_jax",
        "an_exported_program_runs_in_another_process", "divergence_in_chunks_is_that_of_all_rows",
        "divergence_under_transforms", "import_leaves_other_frameworks_alone", "scan_and_checkpoint",
        "small_upstream_gradients_of_float16_are_kept", "strict_mode_refuses_bad_rows", "vmap_of_rows"}
SHORT = 36  # of so many rows one runs in the short form
OWN = {"unsaid", "axis_name", "vocab_total"}  # parameters that torch's functions have not


@functools.cache
def python():
    """A Python that has jax."""
    for candidate in (os.environ.get("FLP_TEST_JAX_PYTHON"), sys.executable, TREE / "build/jax/bin/python"):
        if candidate and Path(candidate).exists():
            program = "import importlib.util as u; print(u.find_spec('jax') is not None)"
            found = subprocess.run([candidate, "-c", program], capture_output=True, text=True)
            if found.stdout.strip() == "True":
                return str(candidate)
    pytest.skip("no Python has jax: ./setup.sh test fetches it into build/jax")


@pytest.fixture(scope="module")
def outcomes(request, tmp_path_factory):
    """{case: what jax_cases.py says of it}, of the cases that this run has chosen."""
    chosen = [item.callspec.params["case"] for item in request.session.items
              if item.originalname == "test_case" and item.path == request.path]
    out = tmp_path_factory.mktemp("jax") / "outcomes.json"
    done = subprocess.run([python(), HERE / "jax_cases.py", "--json", out, *chosen], capture_output=True, text=True,
                          env={**os.environ, "JAX_PLATFORMS": "cpu"})
    assert out.exists(), done.stdout + done.stderr
    return json.loads(out.read_text())


@pytest.mark.parametrize("case", [pytest.param(case, marks=pytest.mark.long) if case in SLOW else case
                                  for case in CASES])
def test_case(outcomes, case):
    if outcomes[case] and outcomes[case].startswith("skipped: "):
        pytest.skip(outcomes[case])
    assert outcomes[case] is None, outcomes[case]


def test_there_are_cases():
    assert len(CASES) > 20 and SLOW < set(CASES)


# ---- the list of cases that other forms of linear_logprob run too

@pytest.fixture(scope="module")
def results(request, tmp_path_factory):
    """{row: what a process with jax makes of it}, of the rows that this run has chosen."""
    chosen = [item.callspec.params["row"] for item in request.session.items
              if item.originalname == "test_row" and item.path == request.path]
    return flp_jax_form.run(python(), HERE / "jax_rows.py", chosen, tmp_path_factory.mktemp("rows"),
                            {**os.environ, "JAX_PLATFORMS": "cpu"})


@pytest.mark.parametrize("row", [pytest.param(row, marks=pytest.mark.long) if place % SHORT else row
                                 for place, row in enumerate(flp_jax_form.ROWS)], ids=str)
def test_row(results, row):
    """A row agrees with float64, or an option that flp.jax has not is refused by name; no option is forgotten."""
    of, refused = row.function, results["unsaid " + row.function]
    assert set(inspect.signature(getattr(flp, of)).parameters) == results["options " + of] - OWN | refused
    result = results[str(row)]
    unsaid = [name for name in row.options if name in refused and row.options[name]]
    if unsaid:
        assert f"flp.jax.{of} has no {unsaid[0]}: " in str(result["refused"])
    else:
        assert not {"refused", "failed"} & result.keys(), result
        for form in {name.partition("output.")[0] for name in result if "output." in name}:
            assert differences(row, flp_jax_form.share_of(row),
                               lambda row: flp_jax_form.as_computed(row, result, form)) == [], form


def test_layout_is_that_of_jaxlibs_header():
    include = subprocess.run([python(), "-c", "import jax.ffi; print(jax.ffi.include_dir())"], capture_output=True,
                             text=True, check=True).stdout.strip()
    done = subprocess.run(["cc", "-std=c11", "-fsyntax-only", "-I", include, "-I", TREE, HERE / "jax_layout.c"],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_library_exports_what_python_calls():
    said = subprocess.run(["nm", "-DP", "--defined-only", LIBRARY.parent / "libflp_jax.so"], capture_output=True,
                          text=True, check=True).stdout
    assert {line.split()[0] for line in said.splitlines()} == {
        "flp_jax_cuda", "flp_jax_host", "flp_jax_plan_count", "flp_jax_workspace"}


# ---- without jax, or without the library

def import_error(folder, library=LIBRARY):
    """What `import flp.jax` says where folder is found first."""
    program = ("import sys; sys.modules['torch'] = None\n"
               "try:\n    import flp.jax\nexcept ImportError as error:\n    print(error)")
    path = os.pathsep.join([str(folder), os.environ["PYTHONPATH"]])
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True,
                          env={**os.environ, "PYTHONPATH": path, "FLP_LIBRARY": str(library)}).stdout.strip()


def stand_in(folder, version):
    """A package jax that has a version."""
    (folder / "jax").mkdir()
    numbers = tuple(int(part) for part in version.split("."))
    (folder / "jax/__init__.py").write_text(f"__version__, __version_info__ = {version!r}, {numbers}\n")
    (folder / "jax/ffi.py").write_text("")
    return folder


def test_without_jax(tmp_path):
    (tmp_path / "jax.py").write_text("raise ModuleNotFoundError('no', name='jax')")
    assert import_error(tmp_path) == "flp.jax needs jax, which is not installed: pip install jax"


def test_an_older_jax(tmp_path):
    said = import_error(stand_in(tmp_path, "0.8.2"))
    assert said == "jax is version 0.8.2; flp.jax needs 0.8.3 or newer: pip install --upgrade jax"


def test_a_libflp_without_its_handlers(tmp_path):
    library = tmp_path / "libflp.so"
    shutil.copy(LIBRARY, library)
    said = import_error(stand_in(tmp_path, "0.10.0"), library)
    assert said.startswith(f"{tmp_path}/libflp_jax.so does not exist; flp.jax needs it beside libflp")


def test_a_library_that_is_none(tmp_path):
    shutil.copy(LIBRARY, tmp_path / "libflp.so")
    (tmp_path / "libflp_jax.so").write_bytes(b"no library")
    said = import_error(stand_in(tmp_path, "0.10.0"), tmp_path / "libflp.so")
    assert said.startswith(f"libflp_jax could not be loaded from {tmp_path}/libflp_jax.so (")
