"""flp.memory: timelines against a model that knows every byte, snapshots of torch, the profiler, pictures."""
import json
import pickle
import random
import subprocess
import sys
import xml.etree.ElementTree

import pytest
import torch

import flp
from flp.memory import plots, profiler, snapshots, timeline
from flp.memory.timeline import Event, Growth, Level, Point, Spans, Timeline
from flp_reference import problem

UNIT = timeline.GRAIN


# ---- timelines against brute force: an owner and a mark for every grain of memory


class EveryByte:
    """The same definitions over an array of grains."""

    def __init__(self, grains):
        self.owner, self.taken = [None] * grains, [False] * grains

    def apply(self, event, path):
        cells = range(event.address // UNIT, (event.address + event.bytes) // UNIT)
        for cell in cells:
            if event.action in ("segment_alloc", "segment_map"):
                self.owner[cell] = path
            elif event.action in ("segment_free", "segment_unmap"):
                self.owner[cell] = None
            else:
                self.taken[cell] = {"alloc": True, "free_requested": False}.get(event.action, self.taken[cell])

    def sizes(self):
        return (UNIT * sum(owner is not None for owner in self.owner), UNIT * sum(self.taken))

    def idle(self):
        """-> by path all of it, and what was handed on; an owner is a path and whether it was"""
        idle, handed_on = {}, {}
        for owner, taken in zip(self.owner, self.taken):
            if owner is not None and not taken:
                for sizes in (idle, handed_on)[:1 + owner[1]]:
                    sizes[owner[0]] = sizes.get(owner[0], 0) + UNIT
        return idle, handed_on


def outlives(events, place, path_at):
    """Whether the block that the growth at this place was for is freed, if ever, outside of the span that took it."""
    later = [event for event in events[place:] if event.action in ("alloc", "free_requested")]
    takes = [i for i, event in enumerate(later) if event.action == "alloc"]
    if not takes:
        return False
    taken = later[takes[0]]
    name = path_at(taken.time_us).split("/")[-1]
    ends = [event for event in later[takes[0] + 1:] if event.action == "free_requested"
            and event.address == taken.address]
    return name != "" and not (ends and name in path_at(ends[0].time_us).split("/"))


def random_events(rng, grains, count):
    """Events that an allocator with segments of consecutive grains could make, expandable ones too."""
    blocks, events = {}, []
    memory = EveryByte(grains)

    def add(action, start, size):
        events.append(Event(10 * len(events), action, start * UNIT, size * UNIT))
        memory.apply(events[-1], "")

    def spans_of(free):
        """Maximal runs of cells for which free(cell) is true."""
        cells, runs = [cell for cell in range(grains) if free(cell)], []
        for cell in cells:
            if runs and runs[-1][0] + runs[-1][1] == cell:
                runs[-1][1] += 1
            else:
                runs.append([cell, 1])
        return runs

    while len(events) < count:
        move = rng.choice(["grow", "grow", "take", "take", "take", "free", "free", "shrink", "other"])
        runs = {"grow": lambda: spans_of(lambda cell: memory.owner[cell] is None),
                "take": lambda: spans_of(lambda cell: memory.owner[cell] is not None and not memory.taken[cell]),
                "shrink": lambda: spans_of(lambda cell: memory.owner[cell] is not None and not memory.taken[cell]),
                }.get(move, list)()
        if move == "other":
            add(rng.choice(["oom", "snapshot", "free_completed"]), 0, 1)
        elif move == "free" and blocks:
            start = rng.choice(sorted(blocks))
            add("free_requested", start, blocks.pop(start))
        elif runs:
            start, length = rng.choice(runs)
            size = rng.randint(1, min(length, 9))
            start += rng.randint(0, length - size)
            if move == "take":
                blocks[start] = size
            add({"grow": rng.choice(["segment_alloc", "segment_map"]), "take": "alloc",
                 "shrink": rng.choice(["segment_free", "segment_unmap"])}[move], start, size)
    return events


def random_spans(rng, end):
    spans, open_names = Spans(), []
    for time_us in sorted(rng.sample(range(end), 12)):
        if open_names and rng.random() < 0.5:
            spans.leave(open_names.pop(rng.randrange(len(open_names))), time_us)
        else:
            open_names.append(rng.choice(["inference", "training", "logprob"]))
            spans.enter(open_names[-1], time_us)
    return spans


@pytest.mark.parametrize("seed", range(12))
def test_timelines_agree_with_a_model_of_every_byte(seed):
    rng = random.Random(seed)
    events, spans = random_events(rng, 60, 150), random_spans(rng, 1500)
    line = Timeline(None, 0, spans.at).run(events)
    model, points, growths = EveryByte(60), [(0, 0)], []
    for place, event in enumerate(events):
        reserved, allocated = model.sizes()
        if event.action in ("segment_alloc", "segment_map"):
            growths.append((event.time_us, event.bytes, reserved - allocated, spans.at(event.time_us), *model.idle()))
        model.apply(event, (spans.at(event.time_us), outlives(events, place, spans.at)))
        if event.action.startswith("segment") or event.action in ("alloc", "free_requested"):
            points.append(model.sizes())
    assert [(point.reserved, point.allocated) for point in line.points] == points
    assert [(g.time_us, g.bytes, g.fragmentation, g.path, g.idle_by_path, g.handed_on_by_path)
            for g in line.growths] == growths
    assert line.pool.unmatched == 0 and all(g.source == "torch" for g in line.growths)


@pytest.mark.parametrize("seed", range(12))
def test_rewinding_finds_the_state_before(seed):
    rng = random.Random(100 + seed)
    events = random_events(rng, 60, 150)
    for cut in (0, 40, 150):
        before, after = Timeline().run(events[:cut]).pool, Timeline().run(events).pool
        timeline.rewind(after, events[cut:])
        assert (after.reserved, after.allocated, after.blocks, after.unmatched) == (
            before.reserved, before.allocated, before.blocks, 0)
        line = Timeline(after, 0, lambda time_us: "x").run(events[cut:])
        whole = Timeline().run(events)
        assert [tuple(point)[1:] for point in line.points[1:]] == [
            tuple(point)[1:] for point in whole.points if point.time_us >= 10 * cut and point.time_us > 0
            or cut == 0 and point is not whole.points[0]]
        assert [growth.fragmentation for growth in line.growths] == [
            growth.fragmentation for growth in whole.growths if growth.time_us >= 10 * cut]


@pytest.mark.parametrize("seed", range(6))
def test_peaks_are_the_greatest_of_what_was_in_force(seed):
    """Against a walk over every microsecond."""
    rng = random.Random(200 + seed)
    events, spans = random_events(rng, 40, 120), random_spans(rng, 1200)
    line = Timeline(None, 0, spans.at).run(events)
    got = timeline.peaks(line, spans)
    for prefix in {"", *spans.paths}:
        def inside(path):
            return prefix == "" or path == prefix or path.startswith(prefix + "/")
        levels, fragmentations, held = [0], [0], line.points[0]
        at = {}
        for point in line.points:
            at.setdefault(point.time_us, []).append(point)
        for time_us in range(1300):
            if inside(spans.at(time_us)):
                levels += [held.reserved]
                levels += [point.reserved for point in at.get(time_us, [])]
            held = at.get(time_us, [held])[-1]
        chosen = [growth for growth in line.growths if inside(spans.at(growth.time_us))]
        fragmentations += [growth.fragmentation for growth in chosen]
        found = got[prefix]
        assert (found["reserved"], found["fragmentation"], found["growths"]) == (
            max(levels), max(fragmentations), len(chosen)), prefix


def test_the_studys_terms_by_hand():
    """Two segments of 4 grains; half of each idle when 4 grains in a row are asked for: 4 grains of fragmentation."""
    events = [Event(1, "segment_alloc", 0, 4 * UNIT), Event(2, "alloc", 0, 2 * UNIT),
              Event(3, "alloc", 2 * UNIT, 2 * UNIT),
              Event(4, "segment_alloc", 8 * UNIT, 4 * UNIT), Event(5, "alloc", 8 * UNIT, 700),
              Event(6, "free_requested", 0, 2 * UNIT), Event(7, "free_completed", 0, 2 * UNIT),
              Event(11, "segment_alloc", 16 * UNIT, 4 * UNIT), Event(12, "alloc", 16 * UNIT, 4 * UNIT)]
    spans = Spans()
    spans.enter("inference", 0), spans.enter("logprob", 3), spans.leave("logprob", 6), spans.leave("inference", 10)
    spans.enter("training", 10)
    line = Timeline(None, 0, spans.at).run(events)
    assert line.growths[-1] == Growth(11, "torch", 4 * UNIT, 4 * UNIT, "training",
                                      {"inference": 2 * UNIT, "inference/logprob": 2 * UNIT},
                                      {"inference/logprob": 2 * UNIT})  # 700 bytes of it are in use to the end
    assert timeline.idle_of(line.growths, lambda path: path == "inference") == (2 * UNIT, 0)
    assert timeline.idle_of(line.growths, lambda path: path.endswith("logprob")) == (0, 2 * UNIT)
    assert timeline.idle_of(line.growths, lambda path: path == "training") == timeline.idle_of([], bool) == (0, 0)
    peaks = timeline.peaks(line, spans)
    assert peaks[""] == {"reserved": 12 * UNIT, "allocated": 8 * UNIT, "arena": 0, "fragmentation": 4 * UNIT,
                         "without_fragmentation": 8 * UNIT, "growths": 3}
    assert peaks["inference"]["reserved"] == 8 * UNIT and peaks["inference/logprob"]["fragmentation"] == 0


def test_results_of_a_step_are_told_from_what_it_needs():
    """Scores that the forward step keeps for the backward one, a temporary and the gradient of a weight, which is freed
    between steps, each in a segment of its own; an unexplained one, outside of all spans, is nobody's."""
    spans = Spans()
    spans.enter("training", 10)
    for enter, leave in ((20, 30), (40, 50), (70, 80)):
        spans.enter("logprob", enter), spans.leave("logprob", leave)
    scores, temporary, gradient, other = (place << 20 for place in range(4))
    events = [Event(5, "segment_map", other, UNIT), Event(5, "alloc", other, UNIT),
              Event(21, "segment_alloc", scores, 8 * UNIT), Event(21, "alloc", scores, 8 * UNIT),
              Event(41, "segment_alloc", temporary, 2 * UNIT), Event(41, "alloc", temporary, 2 * UNIT),
              Event(42, "segment_alloc", gradient, 4 * UNIT), Event(42, "alloc", gradient, 3 * UNIT),
              Event(43, "free_requested", temporary, 2 * UNIT), Event(44, "free_requested", scores, 8 * UNIT),
              Event(60, "free_requested", gradient, 3 * UNIT), Event(61, "free_requested", other, UNIT),
              Event(71, "segment_alloc", 9 << 20, 4 * UNIT), Event(71, "alloc", gradient, UNIT)]
    line = Timeline(None, 0, spans.at).run(events)
    assert line.growths[-1].idle_by_path == {"": UNIT, "training/logprob": 14 * UNIT}
    assert line.growths[-1].handed_on_by_path == {"training/logprob": 4 * UNIT}
    assert timeline.idle_of(line.growths, lambda path: path.endswith("/logprob")) == (10 * UNIT, 4 * UNIT)


def test_arenas_and_polls_are_levels_beside_the_pool():
    spans = Spans()
    spans.enter("logprob", 0)
    events = [Event(1, "segment_alloc", 0, 10 * UNIT), Event(2, "alloc", 0, 4 * UNIT),
              Level(3, "arena", 100, 80, True, 0), Level(4, "arena", 100, 0, False, 0),
              Event(5, "segment_alloc", 90 * UNIT, UNIT), Level(6, "arena", 300, 300, True, 100),
              Level(7, "arena", 300, 300, False, 0), Level(8, "arena", 0, 0, False, 0)]
    line = Timeline(None, 0, spans.at).run(events)
    assert [point[1:] for point in line.points] == [
        (0, 0, 0), (10 * UNIT, 0, 0), (10 * UNIT, 4 * UNIT, 0), (10 * UNIT + 100, 4 * UNIT + 80, 100),
        (10 * UNIT + 100, 4 * UNIT, 100), (11 * UNIT + 100, 4 * UNIT, 100), (11 * UNIT + 300, 4 * UNIT + 300, 300),
        (11 * UNIT, 4 * UNIT, 0)]
    assert [(g.source, g.bytes, g.fragmentation, g.idle_by_path) for g in line.growths] == [
        ("torch", 10 * UNIT, 0, {}), ("arena", 100, 6 * UNIT, {"logprob": 6 * UNIT}),
        ("torch", UNIT, 6 * UNIT + 100, {"logprob": 6 * UNIT + 100}),
        ("arena", 200, 7 * UNIT + 100, {"logprob": 7 * UNIT + 100})]
    polled = Timeline().run([Level(1, "torch", 50, 30, False, 0), Level(2, "torch", 90, 60, True, 20)])
    assert polled.growths == [Growth(2, "torch", 40, 20, "", {}, {})]


def test_events_that_do_not_fit_are_counted():
    events = [Event(1, "free_requested", 0, UNIT), Event(2, "alloc", 0, 600), Event(3, "alloc", 0, 100)]
    pool = Timeline().run(events).pool
    assert pool.unmatched == 2 and pool.allocated == UNIT


def test_thinned_points_keep_the_peaks():
    rng = random.Random(5)
    points = [Point(i, rng.randrange(1000), rng.randrange(1000), 0) for i in range(5000)]
    kept = timeline.thinned(points, 100)
    assert len(kept) <= 100 and set(kept) <= set(points) and kept == sorted(kept)
    for field in ("reserved", "allocated"):
        assert max(getattr(p, field) for p in kept) == max(getattr(p, field) for p in points)
    assert timeline.thinned(points[:100], 100) == points[:100]


# ---- snapshots of torch


def segment(address, blocks, device=0):
    return {"device": device, "address": address, "total_size": sum(size for size, _ in blocks), "stream": 0,
            "blocks": [{"size": size, "requested_size": size - 8, "state": state} for size, state in blocks]}


SNAPSHOT = {
    "segments": [segment(0, [(2 * UNIT, "active_allocated"), (UNIT, "active_awaiting_free"), (UNIT, "inactive")]),
                 segment(1 << 20, [(UNIT, "active_allocated")]),
                 segment(1 << 30, [(UNIT, "active_allocated")], device=1)],
    "device_traces": [[
        {"action": "alloc", "addr": 2 * UNIT, "size": UNIT - 3, "time_us": 100, "stream": 0},
        {"action": "free_requested", "addr": 2 * UNIT, "size": UNIT - 3, "time_us": 110, "stream": 0},
        {"action": "snapshot", "size": 0, "time_us": 115},
        {"action": "segment_alloc", "addr": 1 << 20, "size": UNIT, "time_us": 120, "stream": 0},
        {"action": "alloc", "addr": 1 << 20, "size": UNIT, "time_us": 120, "stream": 0}], []]}


def write(tmp_path, value):
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(value))
    return path


def test_a_snapshot_is_read_back_to_its_beginning(tmp_path):
    report = flp.memory.read_snapshot(write(tmp_path, SNAPSHOT))
    device = report["devices"]["cuda:0"]
    assert [point[1:3] for point in device["points"]] == [
        [4 * UNIT, 2 * UNIT], [4 * UNIT, 3 * UNIT], [4 * UNIT, 2 * UNIT], [5 * UNIT, 2 * UNIT], [5 * UNIT, 3 * UNIT]]
    assert [point[0] for point in device["points"]] == [0, 0, 0.01, 0.02, 0.02]
    assert device["growths"] == [{"ms": 0.02, "source": "torch", "bytes": UNIT, "fragmentation": 2 * UNIT, "path": "",
                                  "idle_by_path": {"": 2 * UNIT}, "handed_on_by_path": {}}]
    assert device["unmatched"] == 0 and report["devices"]["cuda:1"]["peaks"][""]["reserved"] == UNIT
    assert json.loads(json.dumps(report)) == report


def test_traces_without_times_keep_their_order():
    trace = [{key: value for key, value in entry.items() if key != "time_us"} for entry in SNAPSHOT["device_traces"][0]]
    events = snapshots.events_of({"device_traces": [trace]}, 0)
    assert [event.time_us for event in events] == [0, 1, 2, 3, 4]
    assert snapshots.events_of(SNAPSHOT, 0, since_us=111)[0].action == "snapshot"
    assert snapshots.events_of(SNAPSHOT, 7) == []


class Evil:
    def __reduce__(self):
        return (print, ("this ran",))


@pytest.mark.parametrize("content,says", [
    (pickle.dumps({"segments": [Evil()], "device_traces": []}), "builtins.print is no part of a memory snapshot"),
    (b"", "Ran out of input"), (b"nothing", ""), (pickle.dumps([1]), "it has no segments"),
    (pickle.dumps({"segments": []}), "it has no segments and device_traces")])
def test_files_that_are_no_snapshot(tmp_path, capsys, content, says):
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="file is no memory snapshot: .*" + says):
        flp.memory.read_snapshot(path)
    assert "this ran" not in capsys.readouterr().out


# ---- the profiler on the host


def score(n):
    with torch.no_grad():
        flp.linear_logprob(*(tensor.cpu() for tensor in problem(n=n)[:3]))


def test_the_host_arena_by_phase_and_step(tmp_path):
    with flp.memory.Profiler(devices=()) as prof:
        score(300)  # outside of phases: torch's allocator, which is not watched on the host
        with flp.phase("inference"):
            score(20)
            with prof.step("critic"):
                score(300)
            prof.mark("half")
        with flp.phase("training"):
            score(20)
    report = prof.report
    cpu = report["devices"]["cpu"]
    peaks = cpu["peaks"]
    assert set(peaks) == {"", "inference", "inference/critic", "training"} and report["recording"] == "arena"
    assert peaks["inference"]["reserved"] == peaks["inference"]["arena"] >= peaks["inference"]["allocated"] > 0
    assert peaks["inference/critic"]["allocated"] > peaks["training"]["allocated"] > 0
    assert peaks[""]["growths"] == peaks["inference"]["growths"] + peaks["training"]["growths"]
    assert cpu["points"][-1][1:] == [0, 0, 0] and cpu["arena"] == flp.memory.arena_stats("cpu")
    assert [path for _, path in report["spans"]] == ["inference", "inference/critic", "inference", "", "training", ""]
    assert [name for _, name in report["marks"]] == ["half"]
    assert set(prof.timelines) == {"cpu"}
    prof.save(tmp_path / "memory.json")
    assert json.loads((tmp_path / "memory.json").read_text()) == json.loads(json.dumps(report))


def test_a_profiler_leaves_nothing_behind_and_needs_its_end():
    from flp import _arena, _phase
    prof = flp.memory.Profiler(devices=["cpu"])
    for _ in range(2):
        with pytest.raises(KeyError):
            with prof, flp.phase("inference"):
                score(10)
                with pytest.raises(RuntimeError, match="no report yet"):
                    prof.report
                raise KeyError
        assert prof.report["devices"]["cpu"]["peaks"]["inference"]["reserved"] > 0
        assert _arena.watchers == [] and _phase.observers == []


def test_phases_around_a_profiler_are_not_its_own():
    with flp.phase("inference"):
        score(10)
        with flp.memory.Profiler(devices=()) as prof:
            score(10)
        outer = flp.memory.Profiler(devices=())
        outer.__enter__()
    outer.__exit__(None, None, None)
    assert prof.report["spans"] == outer.report["spans"] == []
    found = prof.report["devices"]["cpu"]
    assert found["points"][0][1] == 0 < found["points"][1][1] and found["growths"] == []
    assert "cpu" in outer.report["devices"]


FIRST_USE = """
import flp, torch
with flp.memory.Profiler(devices=()) as unused:
    pass
with flp.memory.Profiler(devices=()) as prof, flp.phase("inference"), torch.no_grad():
    flp.linear_logprob(torch.ones(5, 8), torch.ones(9, 8), torch.zeros(5, dtype=torch.int64))
print(unused.report["devices"], prof.report["devices"]["cpu"]["peaks"]["inference"]["growths"])
"""


def test_the_first_use_of_an_arena_is_a_growth():
    done = subprocess.run([sys.executable, "-c", FIRST_USE], capture_output=True, text=True)
    assert done.stdout == "{} 1\n", done.stderr


def test_arguments_that_are_refused():
    with pytest.raises(ValueError, match="max_entries is 0"):
        flp.memory.Profiler(max_entries=0)
    with pytest.raises(ValueError, match="device is meta"):
        flp.memory.Profiler(devices=["meta"])
    with flp.memory.Profiler(devices=()) as prof:
        with pytest.raises(ValueError, match="name is 'a/b'"):
            prof.mark("a/b")
        with pytest.raises(ValueError, match="name is ''"):
            with prof.step(""):
                pass


# ---- the profiler on a device, by stand-ins for torch's allocator


class Allocator:
    """What torch.cuda tells of one device, and a trace of it; blocks of 10 grains in segments of 20."""

    def __init__(self, monkeypatch, clock):
        self.trace, self.reserved, self.allocated, self.segments, self.clock = [], 0, 0, 0, clock
        self.enabled, self.blocks, self.unused = False, [], []
        functions = dict(is_available=lambda: True, device_count=lambda: 1, is_initialized=lambda: True,
                         current_device=lambda: 0, is_current_stream_capturing=lambda: False, init=lambda: None,
                         empty_cache=lambda: None, memory_stats=self.stats,
                         memory_reserved=lambda device: self.reserved, memory_allocated=lambda device: self.allocated,
                         mem_get_info=lambda device: (1 << 30, (1 << 30) + self.reserved))
        for name, function in functions.items():
            monkeypatch.setattr(torch.cuda, name, function)
        monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", self.record, raising=False)
        monkeypatch.setattr(torch.cuda.memory, "_snapshot", self.snapshot, raising=False)
        monkeypatch.setattr(torch._C, "_cuda_isHistoryEnabled", lambda: self.enabled, raising=False)
        monkeypatch.setattr(profiler, "_in_use", lambda device: device not in self.unused)
        monkeypatch.setattr(profiler.time, "time_ns", lambda: 1000 * self.clock[0])

    def record(self, enabled=None, context="unset", max_entries=None):
        assert context is None or enabled is None
        self.enabled = enabled is not None
        self.trace = self.trace if self.enabled else []

    def snapshot(self):
        blocks = [(10 * UNIT, "active_allocated" if taken else "inactive") for taken in self.blocks]
        return {"segments": [segment(place * 10 * UNIT, blocks[place:place + 2]) for place in range(0, len(blocks), 2)],
                "device_traces": [list(self.trace)]}

    def stats(self, device):
        assert device == 0
        return {"reserved_bytes.all.current": self.reserved, "allocated_bytes.all.current": self.allocated,
                "segment.all.allocated": self.segments}

    def add(self, action, address, size):
        self.clock[0] += 1000
        if self.enabled:
            self.trace.append({"action": action, "addr": address, "size": size, "time_us": self.clock[0], "stream": 0})

    def allocate(self):
        if False not in self.blocks:
            self.add("segment_alloc", len(self.blocks) * 10 * UNIT, 20 * UNIT)
            self.blocks += [False, False]
            self.reserved, self.segments = self.reserved + 20 * UNIT, self.segments + 1
        place = self.blocks.index(False)
        self.blocks[place] = True
        self.allocated += 10 * UNIT
        self.add("alloc", place * 10 * UNIT, 10 * UNIT - 5)
        return place

    def free(self, place):
        self.blocks[place] = False
        self.allocated -= 10 * UNIT
        self.add("free_requested", place * 10 * UNIT, 10 * UNIT - 5)
        self.add("free_completed", place * 10 * UNIT, 10 * UNIT - 5)


@pytest.fixture
def allocator(monkeypatch):
    return Allocator(monkeypatch, [1_000_000])


def loop(allocator):
    """A block before, then an inference phase that takes four and frees three, a training phase that takes four."""
    allocator.allocate()
    with flp.memory.Profiler() as prof:
        with flp.phase("inference", "torch", empty_cache=False):
            places = [allocator.allocate() for _ in range(3)]
            with prof.step("logprob"):
                places.append(allocator.allocate())
            [allocator.free(place) for place in places[:1] + places[2:]]
        with flp.phase("training", "torch", empty_cache=False):
            [allocator.allocate() for _ in range(4)]
            prof.mark("end")
    return prof


def test_a_trace_of_a_device(allocator, monkeypatch):
    monkeypatch.setattr(profiler, "TRACES", True)
    prof = loop(allocator)
    cuda = prof.report["devices"]["cuda:0"]
    assert prof.report["recording"] == "trace" and not allocator.enabled
    assert cuda["drift"] == {"reserved": 0, "allocated": 0} and cuda["unmatched"] == 0 and not cuda["truncated"]
    assert cuda["device_used_peak"] == 60 * UNIT and allocator.reserved == 60 * UNIT
    assert cuda["points"][0][1:3] == [20 * UNIT, 10 * UNIT]
    assert [(growth["path"], growth["fragmentation"]) for growth in cuda["growths"]] == [
        ("inference", 0), ("inference/logprob", 0)]
    peaks = cuda["peaks"]
    assert peaks["inference/logprob"] == {"reserved": 60 * UNIT, "allocated": 50 * UNIT, "arena": 0, "fragmentation": 0,
                                          "without_fragmentation": 60 * UNIT, "growths": 1}
    assert peaks["training"]["allocated"] == 60 * UNIT and peaks["training"]["growths"] == 0


def test_a_trace_that_lost_its_beginning_says_so(allocator, monkeypatch):
    monkeypatch.setattr(profiler, "TRACES", True)
    with flp.memory.Profiler(max_entries=4) as prof:
        for _ in range(3):
            allocator.allocate()
        del allocator.trace[:-4]
    cuda = prof.report["devices"]["cuda:0"]
    assert cuda["truncated"] and cuda["drift"] == {"reserved": 20 * UNIT, "allocated": 0}
    assert cuda["points"][-1][1:3] == [40 * UNIT, 30 * UNIT]


def test_a_recording_under_way_is_left_on(allocator, monkeypatch):
    monkeypatch.setattr(profiler, "TRACES", True)
    allocator.record("all", context=None)
    allocator.allocate()
    allocator.clock[0] += 1
    with flp.memory.Profiler() as prof:
        allocator.allocate()
    assert allocator.enabled and len(prof.report["devices"]["cuda:0"]["points"]) == 2


def test_no_context_is_made_on_a_device_that_is_not_in_use(allocator, monkeypatch):
    monkeypatch.setattr(profiler, "TRACES", True)
    allocator.unused = [0]
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: pytest.fail("asked cuda:%d" % device))
    assert loop(allocator).report["devices"]["cuda:0"]["device_used_peak"] is None


def test_polls_where_torch_has_no_times(allocator, monkeypatch):
    monkeypatch.setattr(profiler, "TRACES", False)
    prof = loop(allocator)
    cuda = prof.report["devices"]["cuda:0"]
    assert prof.report["recording"] == "poll" and "drift" not in cuda and not allocator.enabled
    assert cuda["peaks"][""]["reserved"] == 60 * UNIT and cuda["peaks"][""]["allocated"] == 60 * UNIT
    growths = [(growth["path"], growth["bytes"], growth["fragmentation"]) for growth in cuda["growths"]]
    assert growths == [("inference", 20 * UNIT, 10 * UNIT), ("inference/logprob", 20 * UNIT, 0)]


def test_calls_of_flp_poll(allocator, monkeypatch):
    monkeypatch.setattr(profiler, "TRACES", False)
    with flp.memory.Profiler() as prof:
        allocator.allocate()
        score(5)
        allocator.free(0)
    points = [point[1:3] for point in prof.report["devices"]["cuda:0"]["points"]]
    assert points == [[0, 0], [20 * UNIT, 10 * UNIT], [20 * UNIT, 0]]


# ---- pictures


def sample_report(allocator, monkeypatch):
    monkeypatch.setattr(profiler, "TRACES", True)
    return loop(allocator).report


@pytest.mark.parametrize("ending,span", [("png", None), ("svg", "logprob")])
def test_a_picture(allocator, monkeypatch, tmp_path, ending, span):
    pytest.importorskip("matplotlib")
    report, out = sample_report(allocator, monkeypatch), tmp_path / ("memory." + ending)
    (tmp_path / "memory.json").write_text(json.dumps(report))
    flp.memory.plot(tmp_path / "memory.json", out, span=span)
    if ending == "png":
        assert out.read_bytes().startswith(b"\x89PNG")
    else:
        assert xml.etree.ElementTree.parse(out).getroot().tag.endswith("svg")


def test_the_curve_without_fragmentation():
    device = {"points": [[0, 10, 10, 0], [1, 30, 10, 0], [2, 30, 25, 0], [3, 50, 45, 0]],
              "growths": [{"ms": 1, "fragmentation": 8}, {"ms": 3, "fragmentation": 3}]}
    assert plots.without_fragmentation(device) == [(0, 10), (1, 22), (2, 25), (3, 47)]


def test_pictures_that_cannot_be_drawn(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"path is memory.jpg \(accepted: \*.png, \*.svg\)"):
        flp.memory.plot({}, "memory.jpg")
    with pytest.raises(ValueError, match="report is without a device"):
        flp.memory.plot({"devices": {}}, "memory.png")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match="flp.memory.plot needs matplotlib, which is not installed"):
        flp.memory.plot({"devices": {"cpu": {}}}, tmp_path / "memory.png")
