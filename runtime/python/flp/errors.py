"""Exceptions of flp: one class for each status of flp.h, and the one place that turns a status into a raise.

Invariant: every class is a FlpError and also the built-in exception that Python users would expect, so that
`except ValueError` catches a bad argument and `except ImportError` a missing library.
"""
from __future__ import annotations

from typing import NoReturn


class FlpError(RuntimeError):
    """A call of libflp failed. `status` is the number of flp.h, `detail` the library's sentence."""

    status: int | None = None

    def __init__(self, detail: str = "") -> None:
        super().__init__(detail)
        self.detail = detail


class ArgumentError(FlpError, ValueError):
    """A field has a value that is not accepted; the message names both."""

    status = 1


class UnsupportedError(FlpError):
    """Well formed, but no rung of this build computes it."""

    status = 2


class HostMemoryError(FlpError, MemoryError):
    """Host memory ran out."""

    status = 3


class WorkspaceError(FlpError):
    """The workspace is smaller than the smallest layout."""

    status = 4


class BudgetError(FlpError, ValueError):
    """No layout fits the budget; the message names the smallest that would do."""

    status = 5


class UnavailableError(FlpError):
    """No usable GPU, driver or kernel."""

    status = 6


class DriverError(FlpError):
    """A CUDA call failed; the message names it."""

    status = 7


class FileError(FlpError):
    """A file could not be read or written."""

    status = 8


class CorruptError(FlpError):
    """A file is not what it claims to be."""

    status = 9


class CompileError(FlpError):
    """A template or the code generator failed."""

    status = 10


class DataError(FlpError, ValueError):
    """The device met bad values: target ids, row ids, temperatures or scores."""

    status = 11


class InternalError(FlpError):
    """A bug in flp."""

    status = 12


class HostError(FlpError):
    """A trainer is not what its adapter was written for; the message names its version, what was expected and what to do."""


class LibraryError(FlpError, ImportError):
    """libflp could not be loaded; the message names FLP_LIBRARY."""


OK = 0
UNAVAILABLE = UnavailableError.status

BY_STATUS = {
    cls.status: cls
    for cls in (
        ArgumentError, UnsupportedError, HostMemoryError, WorkspaceError, BudgetError, UnavailableError, DriverError,
        FileError, CorruptError, CompileError, DataError, InternalError,
    )
}


def raise_status(status: int, detail: str) -> NoReturn:
    """Raises the exception of a status other than OK."""
    cls = BY_STATUS.get(status, InternalError)
    raise cls(detail or "libflp returned status %d without a detail" % status)
