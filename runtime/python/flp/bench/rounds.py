"""Rounds: bursts of all subjects, interleaved in another random order each round.

Invariants: a subject that raises leaves the rounds with its reason and the others go on; rounds end early, after
ROUNDS_LEAST whole ones, when the time for them is over.
"""
import random
import statistics
import time

from . import clock as clocks
from . import limits

ROUNDS_LEAST = 3


class Subject:
    """Something that is timed: a call, and what came of it."""

    def __init__(self, name, call):
        self.name, self.call = name, call
        self.repeats = 1
        self.samples = []  # milliseconds of one call, one of each round
        self.reason = None  # why there are no samples

    def fail(self, error, clock):
        """Takes the subject out. error: ContextLost if the device no longer answers"""
        self.reason = limits.reason_of(error)
        self.samples = []
        try:
            clock.synchronize()
        except Exception as lost:
            raise limits.ContextLost(self.name, self.reason) from lost

    def summary(self):
        """(median, least, most) in milliseconds, or None."""
        if not self.samples:
            return None
        return statistics.median(self.samples), min(self.samples), max(self.samples)


def measure(subjects, clock, rounds, burst_ms, seed, deadline=None):
    """Fills the samples of all subjects -> rounds done."""
    def alive():
        return [subject for subject in subjects if subject.reason is None]

    def attempt(subject, step):
        limits.announce(subject.name)
        try:
            step(subject)
        except Exception as error:
            subject.fail(error, clock)

    def calibrate(subject):
        subject.repeats = clocks.calibrate(clock, subject.call, burst_ms)

    def take(subject):
        call_ms, subject.repeats = clocks.sample(clock, subject.call, subject.repeats, burst_ms)
        subject.samples.append(call_ms)

    for subject in alive():
        attempt(subject, calibrate)
    order = random.Random(seed)
    done = 0
    while done < rounds and (done < ROUNDS_LEAST or deadline is None or time.monotonic() < deadline):
        chosen = alive()
        order.shuffle(chosen)
        for subject in chosen:
            attempt(subject, take)
        done += 1
    return done
