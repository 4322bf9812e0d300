"""Profiler: records the memory of the devices from its beginning to its end.

Three sources, by what there is: the trace of torch's allocator (2.1 and newer: every allocation), its totals when they
are asked for (older torch: at calls of flp, phases, steps and marks), and flp's arenas at their every change.
"""
from __future__ import annotations

import contextlib
import json
import os
import time
from typing import Any, Iterable, Iterator

import torch

from .._library import _c
from .._passes import _arena, _phase
from .._tensors import _check
from . import snapshots, timeline

FORMAT = 1
POINTS_MAX = 4000  # of a device in a report
SEGMENTS = "segment.all.allocated"  # counts the growths of torch's allocator
TRACES = tuple(int(word) for word in torch.__version__.split(".")[:2]) >= (2, 1)  # whose entries have a time

# Whether this process has begun to use a device: torch's accessor, where there is one.
_in_use = getattr(torch._C, "_cuda_hasPrimaryContext", lambda ordinal: True)


def _device_name(ordinal):
    return "cpu" if ordinal == _c.DEVICE_HOST else "cuda:%d" % ordinal


def arena_stats(device: str | int | torch.device = "cpu") -> dict[str, int]:
    """The statistics of flp's arena on a device -> dict of int.

    device  a torch device; "cpu" for the host's arena
    Returns reserved_bytes, allocated_bytes, fragmentation_bytes (at the last growth), their peaks as peak_*,
    driver_allocations (growths) and phases (ended), since the process began; zeros while no phase used the arena.
    error:  ValueError naming a device that is neither cpu nor cuda
    """
    ordinal = _check.ordinal_of(device)
    for arena in _arena.existing():
        if arena.device == ordinal:
            return arena.stats()
    return {name: 0 for name, _ in _c.ArenaStats._fields_ if name != "struct_bytes"}


class _Device:
    """Levels that were seen of one device, and the greatest use of the whole device."""

    def __init__(self):
        self.levels, self.counts, self.used = [], {}, None
        self.idle = 0  # of torch's allocator at the last poll
        self.held = {}  # what torch reported at the beginning

    def add(self, time_us, source, reserved, allocated, count, fragmentation):
        """A level of a source that grew if count, which never falls, rose above what it was at first: 0 unless set."""
        grown = count > self.counts.get(source, 0)
        self.counts[source] = count
        self.levels.append(timeline.Level(time_us, source, reserved, allocated, grown, fragmentation))


class Profiler:
    """Records memory inside its with block; then .report has the result, and save() writes it.

        with flp.memory.Profiler() as profiler:
            with flp.phase("inference"):
                with profiler.step("logprob"):
                    ...

    devices      CUDA devices to watch; None: all. Arenas are watched wherever they are
    max_entries  how many events of torch's allocator are kept, the latest; a report has "truncated" if there were more

    With torch 2.1 or newer the recording is a "trace": torch records the history of its allocator without stacks (some
    hundred bytes of host memory and a microsecond an event), reserved and every growth are exact, and allocated is
    exact but for the padding of blocks, which a trace does not have. It is read backwards from what is held at the end:
    "drift" is the difference from torch's own totals at the beginning. Boundaries of phases and steps are
    placed by the clock, to some microseconds. A recording that is under way already is used and left on.
    With older torch it is a "poll": the totals at calls of flp, phases, steps and marks; a growth is noticed at the
    next poll, its fragmentation is that of the poll before, and peaks in between are missed.
    Arenas are exact in both. Nothing here synchronises.
    thread: spans belong to the process, as phases do
    """

    def __init__(self, devices: Iterable[str | int | torch.device] | None = None, max_entries: int = 1 << 20) -> None:
        if _check.integer_of("max_entries", max_entries) < 1:
            _check.refuse(ValueError, "max_entries", max_entries, "1 or more")
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        self._cuda = sorted({_check.ordinal_of(device) for device in (range(count) if devices is None else devices)}
                            - {_c.DEVICE_HOST})
        self._max_entries = max_entries
        self._last = 0  # of _now
        self._report: dict[str, Any] | None = None
        self._seen: dict[int, Any] = {}
        self._marks: list[Any] = []
        self.timelines: dict[str, timeline.Timeline] = {}  # device name -> timeline.Timeline, after the end

    # ---- recording ----

    def __enter__(self) -> Profiler:
        self._begin()
        return self

    def _begin(self):  # without annotations: what it asks of torch has other names and arguments in each version
        self._spans, self._seen, self._marks, self._report = timeline.Spans(), {}, [], None
        self._recording = "trace" if TRACES and self._cuda else "poll" if self._cuda else "arena"
        if self._cuda:
            torch.cuda.init()  # before which its allocator may not be asked
        self._own_history = self._recording == "trace" and not torch._C._cuda_isHistoryEnabled()
        if self._own_history:
            torch.cuda.memory._record_memory_history("all", context=None, max_entries=self._max_entries)
        self._start = self._now()
        for arena in _arena.existing():
            stats = arena.stats()
            if stats["reserved_bytes"]:
                self._of(arena.device).counts[timeline.ARENA] = stats["driver_allocations"]
                self._arena_changed(arena)
        for ordinal in self._cuda:
            device = self._of(ordinal)
            device.counts["torch"] = torch.cuda.memory_stats(ordinal).get(SEGMENTS, 0)
            device.held = {"reserved": torch.cuda.memory_reserved(ordinal),
                           "allocated": torch.cuda.memory_allocated(ordinal)}
        self._look()
        _arena.watchers.append(self._arena_changed)
        _phase.observers.append(self._observe)

    def __exit__(self, *_: object) -> None:
        self._end()

    def _end(self):
        _phase.observers.remove(self._observe)
        _arena.watchers.remove(self._arena_changed)
        self._look()
        snapshot = torch.cuda.memory._snapshot() if self._recording == "trace" else None
        if self._own_history:
            torch.cuda.memory._record_memory_history(None)
        self._report = self._finish(snapshot)

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[None]:
        """A span inside the phase in force, which the report has peaks of.

        name  a str without "/"
        error: ValueError, TypeError naming it
        """
        self._enter(_phase.name_of(name))
        try:
            yield
        finally:
            self._leave(name)

    def mark(self, name: str) -> None:
        """Notes a moment, which plots show; a poll takes the totals.

        name  a str without "/"
        error: ValueError, TypeError naming it
        """
        self._poll()
        self._marks.append((self._now(), _phase.name_of(name)))

    def _now(self):
        """Microseconds of the clock that torch's traces have, rising with every look."""
        self._last = max(time.time_ns() // 1000, self._last + 1)
        return self._last

    def _enter(self, name):
        self._poll()
        self._spans.enter(name, self._now())

    def _leave(self, name):
        self._poll()
        self._spans.leave(name, self._now())

    def _observe(self, kind, value):
        if kind == "begin":
            self._enter(value)
            self._look()
        elif kind == "end" and value in self._spans.names:
            self._look()
            self._leave(value)
        else:
            self._poll()

    def _of(self, ordinal):
        return self._seen.setdefault(ordinal, _Device())

    def _arena_changed(self, arena):
        stats = arena.stats()
        self._of(arena.device).add(self._now(), timeline.ARENA, stats["reserved_bytes"], stats["allocated_bytes"],
                                   stats["driver_allocations"], stats["fragmentation_bytes"])

    def _poll(self):
        if self._recording != "poll":
            return
        for ordinal in self._cuda:
            stats, device = torch.cuda.memory_stats(ordinal), self._of(ordinal)
            reserved, allocated = (stats.get(name + "_bytes.all.current", 0) for name in ("reserved", "allocated"))
            device.add(self._now(), "torch", reserved, allocated, stats.get(SEGMENTS, 0), device.idle)
            device.idle = reserved - allocated

    def _look(self):
        """The use of whole devices, torch, arenas, other libraries and processes together. Asking a device that this
        process does not use would put a context of some hundred megabytes there."""
        self._poll()
        for ordinal in filter(_in_use, self._cuda):
            free, total = torch.cuda.mem_get_info(ordinal)
            device = self._of(ordinal)
            device.used = max(device.used or 0, total - free)

    # ---- the report ----

    def _finish(self, snapshot):
        devices = {}
        for ordinal, seen in sorted(self._seen.items()):
            entry, events, pool = {}, [], None
            if snapshot is not None and ordinal != _c.DEVICE_HOST:
                events, pool, entry = _of_trace(snapshot, ordinal, self._start, self._max_entries)
                entry["drift"] = {name: getattr(pool, name) - size for name, size in seen.held.items()}
            line = timeline.Timeline(pool, self._start, self._spans.at)
            line.run(sorted(events + seen.levels, key=lambda event: event.time_us))
            name = _device_name(ordinal)
            self.timelines[name] = line
            entry.update(device_used_peak=seen.used, arena=arena_stats(name))
            devices[name] = _device_report(line, self._spans, self._start, entry)
        return _report(self._recording, devices, self._spans, self._marks, self._start)

    @property
    def report(self) -> dict[str, Any]:
        """What was recorded, as JSON has it; all sizes in bytes, times in ms since the beginning.

        devices: {"cuda:0": {"peaks": {path: {reserved, allocated, arena, fragmentation, without_fragmentation,
        growths}}, "growths": [{ms, source, bytes, fragmentation, path, idle_by_path, handed_on_by_path}, ...],
        "points": [[ms, reserved, allocated, arena], ...] (at most 4000), "arena": statistics, ...}}; spans: [[ms, path],
        ...]; a path is "inference" or "inference/logprob", "" everything; marks: [[ms, name], ...].
        handed_on_by_path is the part of idle_by_path that a span got for blocks which outlive the spans of its name.
        error: RuntimeError before the end of the with block
        """
        if self._report is None:
            raise RuntimeError("flp.memory.Profiler has no report yet (accepted: after the end of its with block)")
        return self._report

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the report as JSON to the file at path. error: OSError; RuntimeError before the end of the with block"""
        with open(path, "w", encoding="utf-8") as file:
            json.dump(self.report, file)


def read_snapshot(path: str | os.PathLike[str]) -> dict[str, Any]:
    """A report (see Profiler.report) of a file that torch.cuda.memory._dump_snapshot wrote; it has no phases.

    Reads numbers, strings and containers only, so that the file need not be trusted.
    error: OSError; ValueError naming the path if it is no snapshot
    """
    snapshot, spans, devices = snapshots.load(path), timeline.Spans(), {}
    for ordinal in range(len(snapshot["device_traces"])):
        events, pool, entry = _of_trace(snapshot, ordinal)
        if events or pool.reserved:
            start = events[0].time_us if events else 0
            line = timeline.Timeline(pool, start).run(events)
            devices[_device_name(ordinal)] = _device_report(line, spans, start, entry)
    return _report("trace", devices, spans, [], 0)


def _of_trace(snapshot, ordinal, since_us=0, limit=None):
    """-> the events of a device, its pool before them, their part of a report"""
    events = snapshots.events_of(snapshot, ordinal, since_us)
    pool = snapshots.pool_of(snapshot, ordinal)
    timeline.rewind(pool, events)
    return events, pool, {"truncated": limit is not None and len(events) >= limit}


def _device_report(line, spans, start, entry):
    growths = [dict(growth._asdict(), time_us=None, ms=(growth.time_us - start) / 1000) for growth in line.growths]
    for growth in growths:
        del growth["time_us"]
    points = [[(point.time_us - start) / 1000, point.reserved, point.allocated, point.arena]
              for point in timeline.thinned(line.points, POINTS_MAX)]
    return dict(entry, unmatched=line.pool.unmatched, peaks=timeline.peaks(line, spans), growths=growths, points=points)


def _report(recording, devices, spans, marks, start):
    return {"format": FORMAT, "torch": torch.__version__, "recording": recording, "devices": devices,
            "spans": [[(time_us - start) / 1000, path] for time_us, path in zip(spans.times, spans.paths)],
            "marks": [[(time_us - start) / 1000, name] for time_us, name in marks]}
