"""Every command in the documents: what needs no GPU is run, the rest ends for want of one, not for its options.

Blocks `sh` of flpgen and of ordinary tools run as they stand, in an empty folder beside the tree's own. In a block
whose first line is "# needs a GPU" each command must end with 3, and one of a script must have options that it knows.
Scripts run in the long form of the tests, as do pages of records. What builds, installs or tests is held against the
tree.
"""
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from documents import TREE, blocks, words_of
from flp_report_tool import needs_matplotlib
from flpgen_tool import FLPGEN, HANG, needs_flpgen

BUILD = Path(os.environ.get("FLP_TEST_BUILD", "/nonexistent"))
TOOLS = {"flpgen", "cat", "cp", "openssl", "chmod", "sha256sum"}
WRITES_THE_TREE = {"tests/gpu/kernels.py"}
SH = blocks("sh")
REPORT, BENCH = ["python3", "-m", "flp.report"], ["-m", "flp.bench"]
NO_GPU = "/nonexistent/libcuda.so.1"


def head_of(words):
    """The program, behind variables that are set for it."""
    return next(word for word in words if not re.match(r"[A-Z_]+=", word))


def is_run(block):
    """Whether a block stands for itself: tools and heredocs alone."""
    parts = [part for command in block.commands() for part in words_of(command)]
    return not block.needs and all(head_of(part) in TOOLS or part[:2] == ["python3", "-"] or part[:3] == REPORT
                                    for part in parts)


def scripts(block):
    """Commands of a block that are Python scripts of the tree: [[path, option...]]"""
    return [part[1:] for command in block.commands() for part in words_of(command)
            if part[0] == "python3" and part[1].endswith(".py")]


@pytest.fixture
def folder(tmp_path):
    """What commands find where they run: the tree's folders, a config, and the Lua files that a document shows."""
    shutil.copytree(TREE / "templates", tmp_path / "templates")
    for name in ("autotune", "tests", "runtime"):
        (tmp_path / name).symlink_to(TREE / name)
    config = {"vocab_size": 1000, "hidden_size": 64, "torch_dtype": "bfloat16"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    for block in blocks("lua"):
        named = re.match(r"-- (\w+\.lua):", block.text)
        if named:
            (tmp_path / named.group(1)).write_text(block.text)
    return tmp_path


def run(command, folder):
    """-> the ended process of a shell command, without a GPU and settings"""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FLP_")}
    bin = folder / "bin"
    bin.mkdir(exist_ok=True)
    for name, target in (("flpgen", FLPGEN), ("python3", sys.executable)):
        if not (bin / name).exists():
            (bin / name).symlink_to(target)
    environment.update(PATH=f"{bin}:{environment['PATH']}", FLP_CACHE_DIR=str(folder / "flp"), LC_ALL="C.UTF-8",
                       FLP_PYTHON=sys.executable, FLP_CUDA_LIBRARY=NO_GPU, FLP_LIBRARY=os.environ["FLP_LIBRARY"],
                       CUDA_VISIBLE_DEVICES="")
    return subprocess.run(["bash", "-ec", "set -o pipefail\n" + command], cwd=folder, env=environment, text=True,
                          capture_output=True, timeout=HANG)


def test_the_walk_finds_blocks():
    assert sum(map(is_run, SH)) >= 10 and sum("GPU" in block.needs for block in SH) >= 4
    assert sum(len(scripts(block)) for block in SH) >= 12


MARKS = {"flpgen check": [pytest.mark.long], " ".join(REPORT): [pytest.mark.long, needs_matplotlib]}
RUN = [pytest.param(block, id=block.name, marks=sum((MARKS[text] for text in MARKS if block.text.startswith(text)), []))
       for block in SH if is_run(block)]


@pytest.mark.first(8)
@needs_flpgen
@pytest.mark.parametrize("block", RUN)
def test_commands_run(block, folder):
    done = run(block.text, folder)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.first(8)
@needs_flpgen
@pytest.mark.parametrize("command", [command for block in SH if "GPU" in block.needs for command in block.commands()
                                     if words_of(command)[0][0] == "flpgen" or "-m flp.bench" in command])
def test_commands_end_for_want_of_a_gpu(command, folder, monkeypatch, capsys):
    if command.startswith("python3 -m flp.bench "):  # in this process, which imports torch once
        monkeypatch.setattr("torch.cuda.is_available", lambda: False)
        from flp.bench import main
        code, told = main.main(words_of(command)[0][3:]), capsys.readouterr().err
    else:
        done = run(command, folder)
        code, told = done.returncode, done.stderr
    assert code == 3, (code, told)
    assert "libcuda.so.1" in told or "no CUDA device" in told


HELP = """
import contextlib, io, json, os, runpy, sys
texts = {}
for path in sys.argv[1:]:
    sys.argv, printed = [path, "--help"], io.StringIO()
    sys.path[0] = os.path.dirname(path)
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        runpy.run_path(path, run_name="__main__")
    texts[path] = printed.getvalue()
print(json.dumps(texts))
"""


@pytest.fixture(scope="module")
def help_of():
    """script -> the text of its --help, all of one process, which imports torch once"""
    paths = sorted({str(TREE / words[0]) for block in SH for words in scripts(block)})
    done = subprocess.run([sys.executable, "-c", HELP, *paths], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("words", [words for block in SH for words in scripts(block)], ids=" ".join)
def test_scripts_know_their_options(words, help_of):
    """A script of transformers has its help without it."""
    known = set(re.findall(r"--[a-z][\w-]*", help_of[str(TREE / words[0])]))
    assert known and [word for word in words if word.startswith("--") and word not in known] == []


@pytest.mark.long
@needs_flpgen
@pytest.mark.parametrize("words", [words for block in SH if not block.needs for words in scripts(block)
                                   if words[0] not in WRITES_THE_TREE or "--check" in words], ids=" ".join)
def test_scripts_run(words, folder):
    done = run(" ".join(["python3", *words]), folder)
    assert done.returncode == 0, done.stdout + done.stderr


# ---- what builds, installs and tests

def presets():
    return {preset["name"] for preset in json.loads((TREE / "CMakePresets.json").read_text())["buildPresets"]}


def after(words, option):
    return words[words.index(option) + 1:] if option in words else []


def hold_cmake(words):
    assert set(after(words, "--preset")[:1]) <= presets()
    for target in after(words, "--target"):
        assert target in targets(), target


def targets():
    listed = subprocess.run(["cmake", "--build", BUILD, "--target", "help"], capture_output=True, text=True).stdout
    return {line.split(":")[0].split("/")[-1] for line in listed.splitlines()}


def hold_setup(words):
    usage = subprocess.run([TREE / "setup.sh", "--help"], capture_output=True, text=True).stdout
    assert " ".join(["./setup.sh", *words[1:]]) in usage


def hold_tests_run(words):
    name = words[1]
    assert (TREE / name).exists() or list((TREE / "tests/unit").rglob(f"{name}.c")), name


def hold_pip(words):
    assert words[1] == "install"
    for path in after(words, "-r") or [word for word in words if word.startswith("./")]:
        assert path == "./build/release/python" or (TREE / path).exists(), path


def hold_program(words):
    name = Path(head_of(words)).name
    assert list((TREE / "tests/unit").rglob(f"{name}.c")) and "FLP_GOLDEN_UPDATE=1" in words


def hold_package(words):
    usage = subprocess.run([TREE / words[0], "--help"], capture_output=True, text=True).stdout
    assert "tests/gpu/package.sh BUILD PACKAGE.tgz" in usage and len(words) == 3


def hold_flpgen(words):
    verbs = subprocess.run([BUILD / "bin/flpgen", "--help"], capture_output=True, text=True).stdout
    assert f"\n  {words[1]} " in verbs, words[1]


def hold_attack(words):
    """A script of the tree: its options are in its help, its other words are names there or of a harness."""
    usage = subprocess.run([TREE / words[0], "--help"], capture_output=True, text=True).stdout
    for word in words[1:]:
        known = word in usage if word.startswith("--") else word.isdigit() or (TREE / f"tests/fuzz/fuzz_{word}.c").exists()
        assert known, word


HELD = {"cmake": hold_cmake, "./setup.sh": hold_setup, "tests/run": hold_tests_run, "pip": hold_pip,
        "tests/gpu/package.sh": hold_package, "flpgen": hold_flpgen,
        "tests/campaign/run": hold_attack, "tests/fuzz/run": hold_attack, "packaging/abi/check": hold_attack}
BY_PROGRAM = {"docker": "tests/install/test_container.py holds it against the recipe",
              "apt-get": "tests/install/test_debian.py installs the packages in a Debian",
              "cc": "test_docs_code.py compiles the program", "git": "shows a difference",
              "python": "pytest of tests/hosts, which ./setup.sh hosts runs"}


@pytest.mark.parametrize("block", [block for block in SH if not is_run(block)], ids=lambda block: block.name)
def test_other_commands_are_those_of_the_tree(block):
    for command in block.commands():
        for words in words_of(command):
            head = head_of(words)
            if head in HELD:
                HELD[head](words)
            elif head.startswith("build/"):
                hold_program(words)
            elif head == "cp" and block.needs:
                assert (TREE / words[-1]).parent.is_dir()
            elif head == "python3":
                assert words[1].endswith(".py") or words[1:3] == BENCH and "GPU" in block.needs, words
            else:
                assert head in BY_PROGRAM, f"{head}: nothing holds this command against the tree"
