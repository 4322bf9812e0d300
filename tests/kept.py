"""Files that tests make and share: compiled kernels under the hash of what they were made from, in build/ of the tree."""
import hashlib
import os
import threading
from pathlib import Path

BUILD = Path(__file__).resolve().parents[1] / "build"


def hash_of(*parts):
    """32 hexadecimal digits. parts: bytes or texts"""
    return hashlib.sha256(b"\0".join(part.encode() if isinstance(part, str) else part for part in parts)).hexdigest()[:32]


def kept_folder(name):
    """The folder build/<name>, made if it is not there; None where build/ cannot be written."""
    path = BUILD / name
    try:
        path.mkdir(exist_ok=True, parents=True)
    except OSError:
        return None
    return path if os.access(path, os.W_OK) else None


def kept(folder, name, make):
    """The file build/<folder>/<name>, by make(path) if it is not there; None where build/ cannot be written. Processes
    and threads that make the same file at once each make it whole, and the last one stays."""
    folder = kept_folder(folder)
    if not folder:
        return None
    path = folder / name
    try:
        if not path.exists():
            own = path.with_name(f"{os.getpid()}.{threading.get_ident()}.{name}")
            make(own)
            own.rename(path)
    except OSError:
        return None
    return path
