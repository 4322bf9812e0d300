"""Clocks: how long a burst of calls takes on the device or on the host.

Invariant: a burst is at least as long as asked, so that clocks and power are those of steady work.
"""
import time

import torch

# A burst that came out short is made longer and taken again, so often at most.
TRIES = 4
REPEATS_MAX = 100000


class HostClock:
    """Wall time, for the CPU."""

    def burst(self, call, repeats):
        """Milliseconds of so many calls."""
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        return 1e3 * (time.perf_counter() - start)

    def synchronize(self):
        pass


class CudaClock:
    """Time between two events on the current stream."""

    def __init__(self):
        self.start = torch.cuda.Event(enable_timing=True)
        self.stop = torch.cuda.Event(enable_timing=True)

    def burst(self, call, repeats):
        self.start.record()
        for _ in range(repeats):
            call()
        self.stop.record()
        self.stop.synchronize()
        return self.start.elapsed_time(self.stop)

    def synchronize(self):
        torch.cuda.synchronize()


def repeats_for(call_ms, burst_ms):
    """Calls that fill a burst, with a tenth to spare."""
    if call_ms <= 0:
        return REPEATS_MAX
    return max(1, min(REPEATS_MAX, int(1.1 * burst_ms / call_ms) + 1))


def calibrate(clock, call, burst_ms):
    """Sizes the bursts of a warm call: one call to guess from, a quarter of a burst to know."""
    trial = repeats_for(clock.burst(call, 1), 0.25 * burst_ms)
    return repeats_for(clock.burst(call, trial) / trial, burst_ms)


def sample(clock, call, repeats, burst_ms):
    """One burst of at least burst_ms -> milliseconds of one call, calls of the next burst."""
    for _ in range(TRIES):
        ms = clock.burst(call, repeats)
        call_ms = ms / repeats
        if ms >= burst_ms or repeats >= REPEATS_MAX:
            break
        repeats = repeats_for(call_ms, burst_ms)
    return call_ms, repeats
