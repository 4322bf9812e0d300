"""The C and Lua of the documents: programs run, functions compile, kernels and losses are traced and run on the CPU."""
import os
import re
import sys
from pathlib import Path

import numpy
import pytest

import installed
from documents import TREE, blocks
from flpgen_tool import flpgen, needs_flpgen
from test_docs_commands import folder, run  # noqa: F401

sys.path.insert(0, str(TREE / "tests/simt"))

from cpu_kernel import needs_llc  # noqa: E402

LIBRARY = Path(os.environ.get("FLP_LIBRARY", "/nonexistent"))
C, LUA = blocks("c"), blocks("lua")
WARNINGS = ["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]


def compiled(block, tmp_path, *more):
    (tmp_path / "block.c").write_text(block.text)
    out = tmp_path / "block"
    installed.run("cc", *WARNINGS, f"-I{TREE / 'runtime'}", tmp_path / "block.c", "-o", out, *more)
    return out


def test_there_is_c_to_compile():
    assert sum("int main" in block.text for block in C) == 1 and len(C) >= 3


def test_the_program_is_the_example_that_is_installed():
    program, = [block.text for block in C if "int main" in block.text]
    assert program == (TREE / "examples/c/score.c").read_text()


@pytest.mark.skipif(not LIBRARY.exists(), reason="libflp was not built")
@pytest.mark.parametrize("block", [block for block in C if "int main" in block.text], ids=lambda block: block.name)
def test_programs_run(block, tmp_path):
    program = compiled(block, tmp_path, LIBRARY, f"-Wl,-rpath,{LIBRARY.parent}")
    printed = installed.run(program).split()
    hidden = (numpy.arange(4 * 64) % 7 / 10).reshape(4, 64)
    scores = hidden @ (numpy.arange(1000 * 64) % 11 / 10).reshape(1000, 64).T
    wanted = scores[range(4), [1, 2, 3, 4]] - numpy.log(numpy.exp(scores).sum(1))
    assert numpy.allclose(list(map(float, printed)), wanted, atol=1e-5)


@pytest.mark.parametrize("block", [block for block in C if "int main" not in block.text], ids=lambda block: block.name)
def test_functions_compile(block, tmp_path):
    compiled(block, tmp_path, "-c")


# ---- Lua

def is_kernel(block):
    return "k.kernel" in block.text


@needs_flpgen
@pytest.mark.parametrize("block", [block for block in LUA if not is_kernel(block)], ids=lambda block: block.name)
def test_losses_pass_the_check(block, tmp_path):
    (tmp_path / "shown.lua").write_text(block.text)
    done = flpgen("loss", "check", tmp_path / "shown.lua")
    assert done.code == 0, done.out + done.err


@needs_llc
@needs_flpgen
def test_the_tutorial_runs(folder):  # noqa: F811
    """Its template, its commands, and its program on the emulator, as they stand."""
    document = TREE / "templates/README.md"
    tutorial = document.read_text().split("\n## Tutorial")[1].split("\n## ")[0]
    commands, = re.findall(r"```sh\n(.*?)```", tutorial, re.S)
    program, = re.findall(r"```python\n(.*?)```", tutorial, re.S)
    done = run(commands, folder)
    assert done.returncode == 0, done.stderr
    (folder / "tutorial.py").write_text(program)
    done = run("python3 tutorial.py", folder)
    assert done.returncode == 0 and len(done.stdout.split()) >= 5, done.stderr


@needs_flpgen
def test_the_tutorial_is_short_and_its_errors_name_the_line(folder):  # noqa: F811
    (kernel,) = [block for block in LUA if is_kernel(block)]
    assert len(kernel.text.splitlines()) <= 22
    broken = kernel.text.replace("k.load(k.f32, row, v)", "k.load(k.f32, row)")
    assert broken != kernel.text
    (folder / "mean.lua").write_text(broken)
    done = run('cp -r templates mine && cp mean.lua "$(find mine -name select.lua)"\n'
               "flpgen gen --op select --vocab 1000 --dtype fp32 --template-dir mine", folder)
    assert done.returncode == 5 and "select.lua:8:" in done.stderr
