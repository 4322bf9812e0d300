"""Peak memory and time of one step of a trainer, beside the error of what it gives."""
import statistics

from . import clock, memory


def measured(run, error_of, device, rounds, burst_ms):
    """Runs a step once warm, once for its memory, then in bursts -> {"error", "peak_bytes", "result_bytes", "ms"}; of one
    that runs out of memory what it had until then, ms None and the reason.

    run       of no arguments -> the step's result
    error_of  of that result -> a number
    rounds    bursts of burst_ms each, whose median ms is
    """
    row = {}
    try:
        row["error"] = error_of(run())
        result, row["peak_bytes"] = memory.peak_of(run, device)
        row["result_bytes"], result = memory.bytes_of(result), None
        ticks = clock.CudaClock() if device.type == "cuda" else clock.HostClock()
        repeats = clock.calibrate(ticks, run, burst_ms)
        row["ms"] = statistics.median(clock.sample(ticks, run, repeats, burst_ms)[0] for _ in range(rounds))
    except RuntimeError as error:
        if "out of memory" not in str(error):
            raise
        row.update(ms=None, reason="out of memory")
    return row
