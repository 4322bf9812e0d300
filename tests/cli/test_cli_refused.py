"""What the command refuses: the files of tests/golden/refused, whose questions are commands.

An answer is all that the command says, but for `Try ... --help`, and its exit status where that is not 2. `> NAME TEXT`
writes a small file, and `> NAME.safetensors TENSOR=DTYPE:SHAPE...` one of zeros."""
import functools
import re
import shlex
from pathlib import Path

import numpy
import pytest

import transcripts
from flpgen_tool import FAKE, flpgen, needs_fake, needs_flpgen, write_safetensors

GPU = {"FLP_CUDA_LIBRARY": FAKE, "FAKE_CUDA": "capability=9.0;fill=1"}
GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "refused"
COMMAND = re.compile(r"((?:\w+=\S* )*)flpgen ?(.*)")

pytestmark = [needs_flpgen, needs_fake]


def make(folder, words):
    """A file of a name and a text; keys are private."""
    name, _, text = words.partition(" ")
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    if path.suffix == ".safetensors":
        tensors = (re.split("[=:]", word) for word in text.split())
        write_safetensors(path, **{name: (dtype, numpy.zeros([int(size) for size in shape.split(",")]))
                                   for name, dtype, shape in tensors})
    else:
        path.write_bytes(text.encode().decode("unicode_escape").encode("latin-1"))
        path.chmod(0o600 if "key" in path.name else 0o644)


def answer(folder, command):
    """What the command says now. It prints nothing, and makes no file."""
    before = sorted(folder.rglob("*"))
    settings, words = COMMAND.fullmatch(command).groups()
    settings = dict(setting.split("=", 1) for setting in settings.split())
    done = flpgen(*shlex.split(words), cwd=folder, **{**GPU, **settings})
    assert done.code != 0 and done.out == "" and sorted(folder.rglob("*")) == before, command
    text = re.sub(r"^Try `flpgen .*--help' .*\Z", "", done.err, flags=re.M | re.S)
    return [*text.splitlines(), *([] if done.code == 2 else [f"[exit {done.code}]"])]


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.txt")), ids=lambda path: path.stem)
def test_what_is_refused(tmp_path, path):
    transcripts.check(path, functools.partial(make, tmp_path), functools.partial(answer, tmp_path))
