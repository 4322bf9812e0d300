"""Runs flpgen pack and looks into what it made."""
import functools
import os
import tempfile
from pathlib import Path

from flpgen_tool import flpgen

SHARED = tempfile.TemporaryDirectory(prefix="flp.")


def pack(action, *arguments, **environment):
    return flpgen("pack", action, *arguments, **environment)


def build(path, *arguments, **environment):
    done = pack("build", *arguments, "--out", path, **environment)
    assert done.code == 0, done.err
    return path


@functools.cache
def shared(*arguments):
    """A pack that is made once for all tests: for reading."""
    return build(Path(SHARED.name) / f"{len(os.listdir(SHARED.name))}.flpp", *arguments)


def entries_of(path):
    return pack("inspect", path, "--json").json()["entries"]
