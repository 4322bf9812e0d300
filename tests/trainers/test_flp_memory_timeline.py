"""flp.memory's timelines against brute force: a model that keeps an owner and a mark for every grain of memory."""
import random

import pytest

from flp.memory import timeline
from flp.memory.timeline import Event, Growth, Level, Point, Spans, Timeline

UNIT = timeline.GRAIN


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
    """Against a loop over every microsecond."""
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


def test_results_of_a_step_are_distinguished_from_what_it_needs():
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
