"""A library that stands before others in a process."""
from pathlib import Path


def preloaded(library):
    """The environment that preloads it, wherever it lies: LD_PRELOAD takes no folder with a blank."""
    path = Path(library)
    return {"LD_PRELOAD": path.name, "LD_LIBRARY_PATH": str(path.parent)}
