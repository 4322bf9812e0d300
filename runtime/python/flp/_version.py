"""The version, of the flp.h that travels with the package; in the tree that is runtime/flp.h.

setuptools runs this file alone, before there is a package: it imports nothing of flp.
"""
from __future__ import annotations

import os

_FOLDER = os.path.dirname(os.path.abspath(__file__))
HEADERS = (os.path.join(_FOLDER, "include", "flp.h"), os.path.join(os.path.dirname(os.path.dirname(_FOLDER)), "flp.h"))


def header() -> str:
    """Path of flp.h. error: ImportError"""
    for path in HEADERS:
        if os.path.exists(path):
            return path
    raise ImportError("flp.h, which has the version, is at neither %s nor %s; install the package whole" % HEADERS)


def read(path: str) -> str:
    """What FLP_VERSION_STRING is in a header, e.g. "0.1.0". error: ImportError"""
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            if line.startswith("#define FLP_VERSION_STRING "):
                return line.split('"')[1]
    raise ImportError("%s has no FLP_VERSION_STRING; install the package whole" % path)


__version__ = read(header())
