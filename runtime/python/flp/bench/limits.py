"""Bounds and failures: how long a peer may take, and one sentence for whatever it raised."""
import contextlib
import signal
import threading
import time


# A call that takes longer is not timed: its bursts would take the time of everyone's.
CALL_MS_MOST = 3000


# Called with the name of whoever is about to run, for a program that watches over this process (tests/gpu/peers.py).
watcher = None


def announce(name):
    """Before everything that a peer could hang or crash in."""
    if watcher is not None:
        watcher(name)


class OutOfTime(BaseException):
    """A peer took longer than it may. Not an Exception, so that no peer's own handler swallows it."""


class ContextLost(Exception):
    """A peer left the CUDA context unusable; nothing more can be measured in this process."""

    def __init__(self, name, reason):
        super().__init__("%s left the CUDA context unusable: %s" % (name, reason))
        self.name, self.reason = name, reason


class TooSlow(Exception):
    """One call alone would take the time of many bursts."""


class Unavailable(Exception):
    """Nothing can be measured: no library, or no memory for the data."""


@contextlib.contextmanager
def time_limit(seconds):
    """Raises OutOfTime in the block after so many seconds, at the next Python instruction of the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def expire(_signal, _frame):
        raise OutOfTime()

    before = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-3))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def check_pace(call_ms):
    """error: TooSlow"""
    if call_ms > CALL_MS_MOST:
        raise TooSlow("one call takes %.1f s; up to %.1f s are timed" % (1e-3 * call_ms, 1e-3 * CALL_MS_MOST))


class Allowance:
    """Seconds that a peer has left for all its preparations."""

    def __init__(self, seconds):
        self.seconds = self.left = seconds

    @contextlib.contextmanager
    def spend(self):
        """Runs the block within what is left."""
        start = time.monotonic()
        try:
            with time_limit(self.left):
                yield
        finally:
            self.left -= time.monotonic() - start


def reason_of(error, limit=None):
    """One line for a record or a table: kind and first line of an exception."""
    if isinstance(error, OutOfTime):
        return "took longer than the %g s that a peer has to get ready (--peer-seconds)" % limit
    lines = str(error).strip().splitlines()
    text = "%s: %s" % (type(error).__name__, lines[0].strip()) if lines else type(error).__name__
    return text if len(text) <= 300 else text[:297] + "..."
