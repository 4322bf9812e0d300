"""Arenas of libflp: workspace of every head from one growing block a device, which goes back when a phase ends.

Invariants: one arena a device and process, made at its first use and kept, empty between phases; what a call borrows it
gives back on the stream it ran on before it returns, so an arena never waits and no tensor lies in it.
"""
import contextlib
import ctypes
import os
import threading

import torch

from .._library import _c


class Arena:
    """The flp_arena of one device: a CUDA ordinal or _c.DEVICE_HOST."""

    def __init__(self, device):
        self.device = device
        self._streams = set()
        self._handle = ctypes.c_void_p()
        _c.call("flp_arena_create", device, ctypes.byref(self._handle))

    @contextlib.contextmanager
    def lend(self, size, stream):
        """The address of size bytes, aligned to 256, for work that the body queues on the stream (None: default)."""
        address = ctypes.c_void_p()
        _c.call("flp_arena_take", self._handle, size, stream, ctypes.byref(address))
        self._streams.add(stream)
        self._changed()
        try:
            yield address.value
        finally:
            _c.call("flp_arena_give_back", self._handle, address, stream)
            self._changed()

    def end_phase(self):
        """Returns every block to the driver, ordered after the work of all streams that borrowed, without waiting.

        error: ArgumentError if a call of another thread still borrows; DriverError
        """
        streams, self._streams = self._streams, set()
        try:
            _c.call("flp_arena_end_phase", self._handle, _last_of(self.device, streams))
        except BaseException:
            self._streams |= streams
            raise
        self._changed()

    def stats(self):
        """The fields of flp_arena_stats."""
        stats = _c.new_arena_stats()
        _c.call("flp_arena_get_stats", self._handle, stats)
        return {name: getattr(stats, name) for name, _ in _c.ArenaStats._fields_ if name != "struct_bytes"}

    def _changed(self):
        for watcher in watchers:
            watcher(self)


def _last_of(device, streams):
    """A stream behind the work of all: the only one, or the caller's current one, which then waits for the others."""
    if len(streams) < 2:
        return next(iter(streams), None)
    current = torch.cuda.current_stream(device)
    for stream in streams - {current.cuda_stream or None}:
        current.wait_stream(torch.cuda.default_stream(device) if stream is None
                            else torch.cuda.ExternalStream(stream, device))
    return current.cuda_stream or None


watchers = []  # called with the arena after its every change
_arenas = {}
_lock = threading.Lock()


def of(device):
    """The arena of a device; makes it at the first call. thread: safe"""
    arena = _arenas.get(device)
    if arena is None:
        with _lock:
            arena = _arenas.get(device)
            if arena is None:
                arena = _arenas[device] = Arena(device)
    return arena


def existing():
    """The arenas that have been made."""
    return list(_arenas.values())


def _after_fork_in_child():
    """Drops the parent's arenas without destroying them: CUDA did not survive the fork, and locks may be held."""
    global _arenas, _lock
    _arenas, _lock = {}, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
