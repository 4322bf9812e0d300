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


class UnsupportedError(FlpError):
    """Well formed, but no rung of this build computes it."""


class HostMemoryError(FlpError, MemoryError):
    """Host memory ran out."""


class WorkspaceError(FlpError):
    """The workspace is smaller than the smallest layout."""


class BudgetError(FlpError, ValueError):
    """No layout fits the budget; the message names the smallest that would do."""


class UnavailableError(FlpError):
    """No usable GPU, driver or kernel."""


class DriverError(FlpError):
    """A CUDA call failed; the message names it."""


class FileError(FlpError):
    """A file could not be read or written."""


class CorruptError(FlpError):
    """A file is not what it claims to be."""


class CompileError(FlpError):
    """A template or the code generator failed."""


class DataError(FlpError, ValueError):
    """The device met bad values: target ids, row ids, temperatures or scores."""


class InternalError(FlpError):
    """A bug in flp."""


class HostError(FlpError):
    """A trainer is not what its adapter was written for; the message names its version, what was expected and what to do."""


class ContractError(FlpError):
    """Two programs whose log-probabilities may differ in their bits; the message names what differs."""


class LibraryError(FlpError, ImportError):
    """libflp could not be loaded; the message names FLP_LIBRARY."""


OK = 0
# In the order of flp_status.
BY_STATUS = dict(enumerate((
    ArgumentError, UnsupportedError, HostMemoryError, WorkspaceError, BudgetError, UnavailableError, DriverError,
    FileError, CorruptError, CompileError, DataError, InternalError), 1))
for _status, _class in BY_STATUS.items():
    _class.status = _status
del _status, _class
UNAVAILABLE = UnavailableError.status


def raise_status(status: int, detail: str) -> NoReturn:
    """Raises the exception of a status other than OK."""
    cls = BY_STATUS.get(status, InternalError)
    raise cls(detail or "libflp returned status %d without a detail" % status)
