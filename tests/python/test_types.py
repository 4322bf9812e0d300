"""Annotations of the package: all of the public API has them, mypy finds none wrong, and they tell right uses from wrong
ones (types_used.py). torch is a stub of its types here, and the real one in the long form."""
import importlib
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import flp

HERE = Path(__file__).parent
TREE = HERE.parents[1]
PACKAGE = TREE / "runtime" / "python"
STUBS = HERE / "stubs"

needs_mypy = pytest.mark.skipif(not importlib.util.find_spec("mypy"), reason="mypy is not installed")


def mypy(folder, *options, path, cwd=PACKAGE):
    """-> what mypy said, in lines, and how it ended"""
    done = subprocess.run([sys.executable, "-m", "mypy", "--cache-dir", folder, "--no-error-summary", *map(str, options)],
                          cwd=cwd, capture_output=True, text=True, env={**os.environ, "MYPYPATH": path, "PYTHONPATH": ""})
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout.splitlines(), done.returncode


@pytest.fixture(scope="module")
def cache():
    """What mypy has read once: its own stubs of the standard library take seconds."""
    return Path(os.environ["FLP_TEST_BUILD"]) / "tests" / "mypy"


@needs_mypy
def test_the_package_is_consistent(cache):
    said, code = mypy(cache, "--no-site-packages", "--ignore-missing-imports", path=str(STUBS))
    assert (said, code) == ([], 0)


@pytest.mark.long
@needs_mypy
def test_the_package_is_consistent_with_torch_itself(cache):
    said, code = mypy(str(cache) + "-torch", "--ignore-missing-imports", path="")
    assert (said, code) == ([], 0)


def expected():
    """{line: the type or error that its comment names}"""
    found = {}
    for number, line in enumerate((HERE / "types_used.py").read_text().splitlines(), 1):
        comment = re.search(r"  # (says|error): (.*)$", line)
        if comment:
            found[number] = comment.groups()
    return found


@needs_mypy
def test_uses_are_told_apart(cache, tmp_path):
    (tmp_path / "mypy.ini").write_text("[mypy]\nstrict = True\n[mypy-flp.*]\nignore_errors = True\n")
    said, _ = mypy(str(cache) + "-used", "--no-site-packages", "--ignore-missing-imports", "--config-file",
                   tmp_path / "mypy.ini", HERE / "types_used.py", path=f"{STUBS}:{PACKAGE}", cwd=tmp_path)
    found = {}
    for line in said:
        number, kind, text = re.match(r".*types_used\.py:(\d+): (note|error): (.*)", line).groups()
        revealed, wrong = re.match(r'Revealed type is "(.*)"', text), re.search(r"\[([\w-]+)\]$", text)
        if revealed:
            found[int(number)] = ("says", revealed.group(1))
        elif kind == "error":
            found[int(number)] = ("error", wrong.group(1))
    assert len(found) > 30 and found == expected()


def public():
    """{name: function} of flp and its modules, and the methods of its classes"""
    found = {}
    for module in (flp, flp.losses, flp.memory, flp.parallel):
        for name in module.__all__:
            value = getattr(module, name)
            place = f"{module.__name__}.{name}"
            if inspect.isclass(value):
                found.update({f"{place}.{method}": function for method, function in vars(value).items()
                              if inspect.isfunction(function) and method[0] != "_" and function.__module__[:3] == "flp"})
            elif inspect.isfunction(value):
                found[place] = value
    return found


def test_all_of_the_public_api_is_annotated():
    functions = public()
    assert {"flp.linear_logprob", "flp.Scores.keep", "flp.memory.Profiler.step", "flp.losses.kl"} <= set(functions)
    for name, function in functions.items():
        signature = inspect.signature(function)
        bare = [word for word, value in signature.parameters.items() if value.annotation is value.empty and word != "self"]
        assert bare == [] and signature.return_annotation is not signature.empty, name


def test_names_for_type_checkers_are_those_that_there_are():
    """The exceptions, which stand in no __all__ at run time."""
    source = (PACKAGE / "flp" / "__init__.py").read_text()
    listed = re.findall(r'"(\w+)"', source.split("if TYPE_CHECKING:\n")[1].split("]")[0])
    assert set(listed) == {name for name in vars(flp.errors) if name.endswith("Error")} | {"__version__"}
    assert [name for name in listed if not hasattr(flp, name)] == []
    assert (PACKAGE / "flp" / "py.typed").exists()
