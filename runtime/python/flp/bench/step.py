"""Peak memory and time of one step of a trainer, beside the error of what it gives."""
import statistics

from . import clock, memory


class Measured:
    """A step, run once warm and once for its memory; then in bursts, as often as it is timed.

    run       of no arguments -> the step's result
    error_of  of that result -> a number
    burst_ms  of a burst at least
    """

    def __init__(self, run, error_of, device, burst_ms):
        self.run, self.burst_ms, self.times, self.found = run, burst_ms, [], {}
        self.clock = clock.CudaClock() if device.type == "cuda" else clock.HostClock()
        with self:
            self.found["error"] = error_of(run())
            result, self.found["peak_bytes"] = memory.peak_of(run, device)
            self.found["result_bytes"] = memory.bytes_of(result)
            del result
            self.repeats = clock.calibrate(self.clock, run, burst_ms)

    def time(self, bursts=1):
        """Behind a call that warms it, unless its memory ran out."""
        with self:
            if self.fits:
                self.run()
            for _ in range(bursts if self.fits else 0):
                self.times.append(clock.sample(self.clock, self.run, self.repeats, self.burst_ms)[0])

    @property
    def fits(self):
        return "reason" not in self.found

    def row(self):
        """{"error", "peak_bytes", "result_bytes", "ms"}: the median of the bursts; of a step whose memory ran out what it
        had until then, ms None and the reason."""
        return {**self.found, "ms": statistics.median(self.times) if self.fits else None}

    def __enter__(self):
        return self

    def __exit__(self, _, error, trace):
        if not isinstance(error, RuntimeError) or "out of memory" not in str(error):
            return False
        self.found["reason"] = "out of memory"
        return True


def measured(run, error_of, device, rounds, burst_ms):
    """The row of a step that is timed in so many bursts."""
    step = Measured(run, error_of, device, burst_ms)
    step.time(rounds)
    return step.row()
