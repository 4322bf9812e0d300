"""Runs flpgen pack and looks into what it made."""
from flpgen_tool import flpgen


def pack(action, *arguments, **environment):
    return flpgen("pack", action, *arguments, **environment)


def build(path, *arguments, **environment):
    done = pack("build", *arguments, "--out", path, **environment)
    assert done.code == 0, done.err
    return path


def entries_of(path):
    return pack("inspect", path, "--json").json()["entries"]
