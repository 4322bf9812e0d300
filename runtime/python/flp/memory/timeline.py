"""From a stream of allocator events to reserved, allocated and fragmentation over time, and who left what idle.

Invariants: no torch here; times are integers of microseconds that never fall; a growth is recorded before its own bytes
count, so its fragmentation is what was reserved and idle when the driver was asked; a range belongs to the block that
the driver was asked for, whoever uses it later.
"""
import bisect
import collections

# An entry of torch's device_traces. The actions in SEGMENTS and BLOCKS move bytes; all others are ignored.
Event = collections.namedtuple("Event", "time_us action address bytes")
# The totals of a source that does not show its blocks; grown: whether it got more from the driver since its last level,
# and its own fragmentation then.
Level = collections.namedtuple("Level", "time_us source reserved allocated grown fragmentation")
Point = collections.namedtuple("Point", "time_us reserved allocated arena")
# bytes: of a level, less what its source returned meanwhile. idle_by_path: reserved and unallocated bytes by the path
# in force when they were got from the driver, as far as blocks are known; handed_on_by_path: the part of them that was
# got for blocks which that path handed on (see handed_on).
Growth = collections.namedtuple("Growth", "time_us source bytes fragmentation path idle_by_path handed_on_by_path")
Owner = collections.namedtuple("Owner", "path handed_on")

GROWS, SHRINKS = ("segment_alloc", "segment_map"), ("segment_free", "segment_unmap")
# memory_allocated() falls with free_requested, when a tensor dies, not when other streams are done with it.
TAKES, FREES = "alloc", "free_requested"
GRAIN = 512  # torch's allocator rounds every request up to it
ARENA = "arena"


def rounded(size):
    """The least that torch's allocator takes for a request of size bytes."""
    return max(GRAIN, -(-size // GRAIN) * GRAIN)


class Spans:
    """Which phases and steps were in force when, as one path: "inference/logprob"; "" outside of all."""

    def __init__(self):
        self.times, self.paths, self.names = [], [], []

    def enter(self, name, time_us):
        self.names.append(name)
        self._change(time_us)

    def leave(self, name, time_us):
        """Ends the innermost span of this name, which need not be the innermost of all."""
        del self.names[len(self.names) - 1 - self.names[::-1].index(name)]
        self._change(time_us)

    def _change(self, time_us):
        self.times.append(time_us)
        self.paths.append("/".join(self.names))

    def at(self, time_us):
        """The path in force at a time; at the very time of a change still the old one."""
        place = bisect.bisect_left(self.times, time_us)
        return self.paths[place - 1] if place else ""


class Pool:
    """Ranges of addresses that an allocator holds, each with its Owner, and the blocks taken in them."""

    def __init__(self):
        self.ranges, self.blocks = {}, {}  # start -> (end, owner); start -> bytes
        self.reserved = self.allocated = self.unmatched = 0

    def add(self, start, size, owner=Owner("", False)):
        self.ranges[start] = (start + size, owner)
        self.reserved += size

    def remove(self, start, size):
        """Takes [start, start + size) out of every range that it touches."""
        end = start + size
        touched = [start] if self.ranges.get(start, (0, None))[0] == end else [
            first for first, (last, _) in self.ranges.items() if first < end and start < last]
        for first in touched:
            last, owner = self.ranges.pop(first)
            self.reserved -= last - first
            if first < start:
                self.add(first, start - first, owner)
            if end < last:
                self.add(end, last - end, owner)

    def take(self, start, size):
        if start in self.blocks:
            self.unmatched += 1
            self.free(start)
        self.blocks[start] = size
        self.allocated += size

    def free(self, start):
        size = self.blocks.pop(start, None)
        if size is None:
            self.unmatched += 1
        else:
            self.allocated -= size

    def idle_by_owner(self):
        """Bytes of the ranges that no block covers, summed by owner."""
        idle = collections.Counter()
        starts = sorted(self.ranges)
        for start in starts:
            end, owner = self.ranges[start]
            idle[owner] += end - start
        for block, size in self.blocks.items():
            place = max(bisect.bisect_right(starts, block) - 1, 0)
            while place < len(starts) and starts[place] < block + size:
                end, owner = self.ranges[starts[place]]
                idle[owner] -= max(0, min(end, block + size) - max(starts[place], block))
                place += 1
        return {owner: size for owner, size in idle.items() if size}


def rewind(pool, events):
    """Takes a pool from its state after the events back to the one before them."""
    for event in reversed(events):
        if event.action in GROWS:
            pool.remove(event.address, event.bytes)
        elif event.action in SHRINKS:
            pool.add(event.address, event.bytes)
        elif event.action == TAKES:
            pool.free(event.address)
        elif event.action == FREES:
            pool.take(event.address, rounded(event.bytes))


def handed_on(events, path_at):
    """The places, among the events, of growths for blocks that a span handed on: a span that is in force when the block
    is taken, while none of its name is when the block is freed, or when the events end.

    What a step needs itself, scores that its backward pass reads later too, it frees in a step of the same name; what
    outlives it, as the gradient of a weight until the optimiser sets it to None, is its result.
    """
    places, waiting, blocks = set(), [], {}
    for place, event in enumerate(events):
        if isinstance(event, Level):
            continue
        if event.action in GROWS:
            waiting.append(place)
        elif event.action == TAKES and waiting:
            name = path_at(event.time_us).rpartition("/")[2]
            if name:
                places.update(waiting)
                blocks[event.address] = (name, waiting)
            waiting = []
        elif event.action == FREES and event.address in blocks:
            name, growths = blocks.pop(event.address)
            if name in path_at(event.time_us).split("/"):
                places.difference_update(growths)
    return places


class Timeline:
    """Points after every event, and growths before them, of a device. pool: the state before, which is moved along."""

    def __init__(self, pool=None, start_us=0, path_at=lambda time_us: ""):
        self.pool = Pool() if pool is None else pool
        self.path_at = path_at
        self.levels = {}  # source -> its last Level, and the path of its last growth
        self.records = []
        self._point(start_us)

    @property
    def points(self):
        return [record for record in self.records if isinstance(record, Point)]

    @property
    def growths(self):
        return [record for record in self.records if isinstance(record, Growth)]

    def run(self, events):
        """Adds a list of Events and Levels in order of time -> self"""
        results = handed_on(events, self.path_at)
        for place, event in enumerate(events):
            if isinstance(event, Level):
                self._level(event)
            else:
                self._event(event, place in results)
        return self

    def _event(self, event, is_handed_on):
        if event.action in GROWS:
            self._grow(event.time_us, "torch", event.bytes, self.pool.reserved - self.pool.allocated)
            self.pool.add(event.address, event.bytes, Owner(self.path_at(event.time_us), is_handed_on))
        elif event.action in SHRINKS:
            self.pool.remove(event.address, event.bytes)
        elif event.action == TAKES:
            self.pool.take(event.address, rounded(event.bytes))
        elif event.action == FREES:
            self.pool.free(event.address)
        else:
            return
        self._point(event.time_us)

    def _level(self, level):
        before, path = self.levels.get(level.source, (None, ""))
        if level.grown:
            self._grow(level.time_us, level.source, level.reserved - (before.reserved if before else 0),
                       level.fragmentation)
            path = self.path_at(level.time_us)
        self.levels[level.source] = (level, path)
        if (before[2:4] if before else (0, 0)) != level[2:4]:
            self._point(level.time_us)

    def _grow(self, time_us, source, size, own):
        """A growth of a source whose own fragmentation is known; what the others hold idle is no use to it either."""
        idle, results = collections.Counter(), {}
        for owner, unused in self.pool.idle_by_owner().items():
            idle[owner.path] += unused
            if owner.handed_on:
                results[owner.path] = unused
        others = self.pool.reserved - self.pool.allocated if source != "torch" else 0
        for name, (level, path) in self.levels.items():
            unused = level.reserved - level.allocated if name != source else own
            others += unused if name != source else 0
            if name == ARENA:  # whose block has one owner; what a polled total consists of is not known
                idle[path] += unused
        self.records.append(Growth(time_us, source, size, own + others, self.path_at(time_us), dict(+idle),
                                   results))

    def _point(self, time_us):
        levels = [level for level, _ in self.levels.values()]
        arena = sum(level.reserved for level in levels if level.source == ARENA)
        self.records.append(Point(time_us, self.pool.reserved + sum(level.reserved for level in levels),
                                  self.pool.allocated + sum(level.allocated for level in levels), arena))


def _prefixes(path):
    """ "a/b" -> "", "a", "a/b" """
    words = path.split("/") if path else []
    return ["/".join(words[:count]) for count in range(len(words) + 1)]


def peaks(timeline, spans):
    """{path: peaks in bytes, and growths} of every path that was in force and every beginning of one; "": of all.

    without_fragmentation: of reserved less the fragmentation of the last growth, capped by what is idle (the study's
    figure 1)
    """
    result = collections.defaultdict(lambda: dict.fromkeys(
        ("reserved", "allocated", "arena", "fragmentation", "without_fragmentation", "growths"), 0))

    def raise_to(path, **values):
        for prefix in _prefixes(path):
            for name, value in values.items():
                result[prefix][name] = max(result[prefix][name], value)

    changes = list(zip(spans.times, spans.paths))[::-1]
    path, last, fragmentation = "", None, 0
    for record in timeline.records + [None]:
        while changes and (record is None or changes[-1][0] < record.time_us):
            path = changes.pop()[1]
            raise_to(path, **_levels(last, fragmentation))  # what a span finds is part of its peaks
        if isinstance(record, Growth):
            fragmentation = record.fragmentation
            raise_to(path, fragmentation=fragmentation)
            for prefix in _prefixes(path):
                result[prefix]["growths"] += 1
        elif record is not None:
            last = record
            raise_to(path, **_levels(last, fragmentation))
    return {path: dict(values) for path, values in sorted(result.items())}


def _levels(point, fragmentation):
    if point is None:
        return {}
    return {"reserved": point.reserved, "allocated": point.allocated, "arena": point.arena,
            "without_fragmentation": point.reserved - min(fragmentation, point.reserved - point.allocated)}


def idle_at(idle_by_path, handed_on_by_path, chosen):
    """Bytes that lay idle at a growth in memory that was got under paths for which chosen(path) is true -> for blocks
    that the paths needed themselves, for those that they handed on"""
    idle, results = (sum(size for path, size in sizes.items() if chosen(path))
                     for sizes in (idle_by_path, handed_on_by_path))
    return idle - results, results


def idle_of(growths, chosen):
    """The most of each of idle_at's two at any growth; 0, 0 if there is none."""
    pairs = [idle_at(growth.idle_by_path, growth.handed_on_by_path, chosen) for growth in growths]
    return tuple(map(max, zip(*pairs))) or (0, 0)


def thinned(points, limit):
    """At most limit points: of each of limit / 2 stretches those with the most reserved and the most allocated."""
    if len(points) <= limit:
        return list(points)
    stretch = -(-2 * len(points) // limit)
    kept = []
    for first in range(0, len(points), stretch):
        part = points[first:first + stretch]
        most = {max(range(len(part)), key=lambda i: part[i][field]) for field in (1, 2)}
        kept += [part[i] for i in sorted(most)]
    return kept
