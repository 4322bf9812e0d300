"""What the command refuses, a case after the other in files of tests/golden/refused, with all that it says then.

`$ flpgen` and its words are a case; what it says stands below, behind `! `, and its exit status where that is not 2. A
line `> NAME TEXT` writes a small file, and `> NAME.safetensors TENSOR=DTYPE:SHAPE...` one of zeros, for all cases
below. `Try ... --help` at the end of an answer is left out. FLP_GOLDEN_UPDATE=1 writes the answers anew."""
import os
import re
import shlex
from pathlib import Path

import numpy
import pytest

from flpgen_tool import flpgen, needs_flpgen, write_safetensors

FAKE = os.environ.get("FLP_TEST_FAKE_CUDA", "")
GPU = {"FLP_CUDA_LIBRARY": FAKE, "FAKE_CUDA": "capability=9.0;fill=1"}
GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "refused"
COMMAND = re.compile(r"\$ ((?:\w+=\S* )*)flpgen ?(.*)")

pytestmark = [needs_flpgen,
              pytest.mark.skipif(not os.path.exists(FAKE), reason="the stand-in for libcuda was not built")]


def make(path, text):
    """A file of this text; keys are private."""
    if path.suffix == ".safetensors":
        tensors = (re.split("[=:]", word) for word in text.split())
        write_safetensors(path, **{name: (dtype, numpy.zeros([int(size) for size in shape.split(",")]))
                                   for name, dtype, shape in tensors})
    else:
        path.write_text(text.encode().decode("unicode_escape"))
        path.chmod(0o600 if "key" in path.name else 0o644)


def answer(line, folder):
    """What the command says now. It prints nothing, and makes no file."""
    before = sorted(folder.rglob("*"))
    settings, words = COMMAND.fullmatch(line).groups()
    settings = dict(setting.split("=", 1) for setting in settings.split())
    done = flpgen(*shlex.split(words), cwd=folder, **{**GPU, **settings})
    assert done.code != 0 and done.out == "" and sorted(folder.rglob("*")) == before, line
    text = re.sub(r"^Try `flpgen .*--help' .*\Z", "", done.err, flags=re.M | re.S)
    return [*(f"! {said}" for said in text.splitlines()), *([] if done.code == 2 else [f"[exit {done.code}]"])]


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.txt")), ids=lambda path: path.stem)
def test_what_is_refused(tmp_path, path):
    lines = path.read_text(encoding="utf-8").splitlines()
    now = []
    for line in lines:
        if line.startswith("> "):
            name, _, text = line[2:].partition(" ")
            make(tmp_path / name, text)
        if not line.startswith(("! ", "[exit ")):
            now.append(line)
        if line.startswith("$ "):
            now += answer(line, tmp_path)
    if os.environ.get("FLP_GOLDEN_UPDATE") == "1":
        path.write_text("\n".join(now) + "\n", encoding="utf-8")
    assert now == lines, f"{path}: FLP_GOLDEN_UPDATE=1 writes it anew"
