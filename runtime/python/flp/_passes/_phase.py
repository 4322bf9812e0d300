"""phase: where flp's workspace comes from during a part of a training loop, and what is released when it ends.

Invariants: the phases in force belong to the process, not to a thread, since autograd runs backward passes on threads
of its own; the innermost decides; outputs come from torch's allocator always; while a CUDA graph is captured workspace
does too, in the graph's own pool, because a graph keeps the addresses that a phase would release.
"""
from __future__ import annotations

import contextlib
import dataclasses
from typing import ContextManager

import torch

from .. import errors
from .._library import _c
from .._tensors import _check
from . import _arena

WORKSPACES = ("arena", "torch")

_stack = []
observers = []  # called as observer(kind, value): "begin" and "end" of a phase's name, "call" of a device


@dataclasses.dataclass(eq=False)
class Phase:
    """One phase in force and the arenas that it used."""

    name: str
    workspace: str
    empty_cache: bool
    arenas: set[_arena.Arena] = dataclasses.field(default_factory=set)


def notify(kind, value):
    """Notifies every observer."""
    for observer in observers:
        observer(kind, value)


def name_of(value):
    """A name that may be part of a path of names."""
    if not isinstance(value, str):
        _check.refuse_type("name", value, "a str")
    if not value or "/" in value:
        _check.refuse(ValueError, "name", repr(value), "at least one character, none of them /")
    return value


def phase(name: str, workspace: str | None = None, *, empty_cache: bool | None = None) -> ContextManager[None]:
    """A context manager: where flp's workspace comes from inside, and what is given back to the driver at its end.

        with flp.phase("inference"):
            old = flp.linear_logprob(hidden, weight, tokens)

    name         a str without "/"; flp.memory.Profiler reports peaks by it, "inference" and "training" say
    workspace    "arena": the workspace of every call on a device is taken from one growing block, outside of torch's
                 allocator, that all heads share; at the end the block returns to the driver's memory pool in stream
                 order, and the host waits for nothing; other allocators can have it from the next synchronisation on.
                 "torch": from torch's caching allocator, as outside of every phase.
                 None: that of the phase around this one, else "arena"
    empty_cache  whether the end also calls torch.cuda.empty_cache(), which returns all unused memory of torch's
                 allocator, whoever used it, and synchronises the device. None: True for "torch", as the study
                 recommends after inference, False for "arena"

    Phases nest; the innermost decides, and each releases what was used inside it, after an exception too. They hold for
    all threads of the process. Streams that made calls inside must exist until the end; if there were several on a
    device, its current stream waits for the others there (on the device). On the CPU the block is host memory. A call
    inside that is captured in a CUDA graph takes its workspace from the graph's own pool, whatever the phase is, so
    the graph may be replayed after the phase. The torch form of the eager rung allocates from torch always.
    error:  ValueError, TypeError naming the argument; UnsupportedError if the phase begins or ends while the current
            stream is captured; ArgumentError at the end if a call of another thread still runs; DriverError
    source: arXiv:2410.15651, section 3.3
    """
    name_of(name)
    if workspace is not None and workspace not in WORKSPACES:
        _check.refuse(ValueError, "workspace", repr(workspace), ", ".join(WORKSPACES) + ", None")
    if empty_cache is not None and not isinstance(empty_cache, bool):
        _check.refuse_type("empty_cache", empty_cache, "a bool, None")
    return _entered(name, workspace, empty_cache)


@contextlib.contextmanager
def _entered(name, workspace, empty_cache):
    _refuse_capture(name, "begins")
    if workspace is None:
        workspace = _stack[-1].workspace if _stack else "arena"
    entered = Phase(name, workspace, workspace == "torch" if empty_cache is None else empty_cache)
    _stack.append(entered)
    notify("begin", name)
    try:
        yield
    except BaseException:
        try:
            _end(entered)
        except Exception as error:  # what went wrong first is what the caller must see
            _c.log(_c.LOG_ERROR, "the end of phase %r failed too: %s" % (name, error))
        raise
    _end(entered)


def _end(ended):
    _stack.remove(ended)
    try:
        _refuse_capture(ended.name, "ends")
        with contextlib.ExitStack() as ends:  # all end, the first failure is raised
            for arena in list(ended.arenas):
                ends.callback(arena.end_phase)
        if ended.empty_cache and torch.cuda.is_initialized():
            torch.cuda.empty_cache()
    finally:
        notify("end", ended.name)


def _refuse_capture(name, does):
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        raise errors.UnsupportedError("phase %r %s while the current stream is captured in a CUDA graph (accepted: "
                                      "phases that begin and end outside of the capture)" % (name, does))


def _capturing(device):
    if device < 0:
        return False
    with torch.cuda.device(device):
        return torch.cuda.is_current_stream_capturing()


def arena_for(device):
    """The arena that the calls on a device borrow from now, or None for torch's allocator."""
    innermost = _stack[-1:]  # another thread may end its phase between two looks
    if not innermost or innermost[0].workspace != "arena" or _capturing(device):
        return None
    arena = _arena.of(device)
    innermost[0].arenas.add(arena)
    return arena
