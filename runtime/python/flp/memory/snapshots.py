"""Snapshots of torch's allocator (torch.cuda.memory._snapshot) as events and pools. No torch here."""
import pickle

from .timeline import Event, Pool


class _PlainUnpickler(pickle.Unpickler):
    """Builds numbers, strings and containers only: a snapshot needs no more, and a file may come from anywhere."""

    def find_class(self, module, name):
        raise pickle.UnpicklingError("%s.%s is no part of a memory snapshot" % (module, name))


def load(path):
    """The snapshot that torch.cuda.memory._dump_snapshot wrote. error: OSError; ValueError if it is none"""
    try:
        with open(path, "rb") as file:
            snapshot = _PlainUnpickler(file).load()
    except (pickle.UnpicklingError, EOFError, AttributeError, LookupError, ImportError, ValueError) as error:
        raise ValueError("%s is no memory snapshot: %s (accepted: a file of torch.cuda.memory._dump_snapshot)"
                         % (path, error)) from error
    if not isinstance(snapshot, dict) or not {"segments", "device_traces"} <= set(snapshot):
        raise ValueError("%s is no memory snapshot: it has no segments and device_traces (accepted: a file of "
                         "torch.cuda.memory._dump_snapshot)" % path)
    return snapshot


def events_of(snapshot, device, since_us=0):
    """The trace of one device as Events; entries of torch before 2.1 have no time and get their place."""
    traces = snapshot["device_traces"]
    entries = traces[device] if device < len(traces) else []
    return [event for event in (
        Event(entry.get("time_us", place), entry["action"], entry.get("addr", 0), entry.get("size", 0))
        for place, entry in enumerate(entries)) if event.time_us >= since_us]


def pool_of(snapshot, device):
    """What the allocator of one device held when the snapshot was made."""
    pool = Pool()
    for segment in snapshot["segments"]:
        if segment["device"] != device:
            continue
        pool.add(segment["address"], segment["total_size"])
        address = segment["address"]
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                pool.take(address, block["size"])
            address += block["size"]
    return pool
