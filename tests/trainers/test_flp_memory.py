"""flp.memory: snapshots of torch, the profiler, pictures; its timelines are in test_flp_memory_timeline.py."""
import json
import pickle
import subprocess
import sys
import xml.etree.ElementTree

import pytest
import torch

import flp
from flp.memory import plots, profiler, snapshots, timeline
from flp_reference import problem

UNIT = timeline.GRAIN


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
    from flp._passes import _arena, _phase
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


@pytest.mark.long
def test_the_first_use_of_an_arena_is_a_growth():
    done = subprocess.run([sys.executable, "-c", FIRST_USE], capture_output=True, text=True)
    assert done.stdout == "{} 1\n", done.stderr


# ---- the profiler on a device, by stand-ins for torch's allocator


class Allocator:
    """What torch.cuda reports of one device, and a trace of it; blocks of 10 grains in segments of 20."""

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
        monkeypatch.setattr(profiler, "TRACES", True)
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


def test_a_trace_of_a_device(allocator):
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


def test_a_trace_that_lost_its_beginning_reports_it(allocator):
    with flp.memory.Profiler(max_entries=4) as prof:
        for _ in range(3):
            allocator.allocate()
        del allocator.trace[:-4]
    cuda = prof.report["devices"]["cuda:0"]
    assert cuda["truncated"] and cuda["drift"] == {"reserved": 20 * UNIT, "allocated": 0}
    assert cuda["points"][-1][1:3] == [40 * UNIT, 30 * UNIT]


def test_a_recording_under_way_is_left_on(allocator):
    allocator.record("all", context=None)
    allocator.allocate()
    allocator.clock[0] += 1
    with flp.memory.Profiler() as prof:
        allocator.allocate()
    assert allocator.enabled and len(prof.report["devices"]["cuda:0"]["points"]) == 2


def test_no_context_is_made_on_a_device_that_is_not_in_use(allocator, monkeypatch):
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


@pytest.mark.parametrize("ending,span", [("png", None), ("svg", "logprob")])
def test_a_picture(allocator, tmp_path, ending, span):
    pytest.importorskip("matplotlib")
    report, out = loop(allocator).report, tmp_path / ("memory." + ending)
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


def test_pictures_need_matplotlib(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"needs matplotlib, which is not installed: pip install matplotlib$"):
        flp.memory.plot({"devices": {"cpu": {}}}, tmp_path / "memory.png")
