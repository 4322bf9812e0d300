"""Runs flpgen pack and looks into what it made."""
import functools
import hashlib
import os
import struct
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


def of_other_sources(made, path, **manifest):
    """The pack as another flp would have made it. manifest: texts of its manifest in place of others as long"""
    data = made.read_bytes()
    sources, other = pack("inspect", made, "--json").json()["manifest"]["sources"], "0123456789abcdef" * 4
    at = 40 + sum(struct.unpack_from("<2I", data, 12))  # behind head, manifest and index: their digest
    table = data[:at].replace(sources.encode(), other.encode()).replace(bytes.fromhex(sources), bytes.fromhex(other))
    for old, new in manifest.items():
        table = table.replace(old.encode(), new.encode())
    path.write_bytes(table + hashlib.sha256(table).digest() + data[at + 32:])
    return path
