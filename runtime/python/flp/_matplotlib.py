"""matplotlib, which only pictures need."""
from __future__ import annotations

from typing import Any


def need(who: str) -> Any:
    """The module, drawing to files. error: ImportError that says how to install it"""
    try:
        import matplotlib
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        raise ImportError("%s needs matplotlib, which is not installed: pip install matplotlib" % who) from error
    matplotlib.use("Agg", force=False)
    return matplotlib
