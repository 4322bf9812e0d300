"""The record: the head that `flpgen bench --json` writes too, then what is particular to this comparison, then rows.

Only head needs torch.
"""
import ctypes
import datetime
import json
import os
import sys

import flp

MEMORY = "extra_bytes: peak of torch's allocator above what was there before the call, result_bytes included"


def driver_text():
    """ "580.159.04 (CUDA 13.0)": the kernel module's version where the system shows it. There is a GPU."""
    number = ctypes.c_int()
    ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(number))
    number = number.value
    cuda = "CUDA %d.%d" % (number // 1000, number % 1000 // 10)
    try:
        with open("/sys/module/nvidia/version", encoding="ascii") as file:
            return "%s (%s)" % (file.read().strip(), cuda)
    except OSError:
        return cuda


def head(command, device):
    """head_on of a torch device."""
    import torch

    return head_on(torch.cuda.get_device_name(device) if device.type == "cuda" else None, command)


def head_on(gpu, command):
    """{"gpu", "driver", "sources_hash", "command", "date"}. gpu: its name, or None"""
    return {"gpu": gpu or "none", "driver": driver_text() if gpu else "none", "sources_hash": flp.sources_id(),
            "command": command, "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")}


def rounded(value):
    """Six digits of every float; not a number becomes null, as JSON has none."""
    if isinstance(value, float):
        return float("%.6g" % value) if value == value and abs(value) != float("inf") else None
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, (list, tuple)) else value


def text_of(record):
    """Ends with the rows, one a line, so that a diff can be read."""
    record = rounded(record)
    rows = [json.dumps(row, separators=(",", ":"), ensure_ascii=False) for row in record["rows"]]
    others = {key: value for key, value in record.items() if key != "rows"}
    top = json.dumps(others, indent=1, ensure_ascii=False)[:-2]
    return "%s,\n \"rows\": [\n  %s\n ]\n}\n" % (top, ",\n  ".join(rows))


def probe(path):
    """Checks before the work whether a record can be written; leaves what is there as it is. error: OSError"""
    if path is None or path == "-":
        return
    is_new = not os.path.lexists(path)
    if not os.path.exists(path) or os.path.isfile(path) or os.path.isdir(path):  # a pipe's reader would see its end
        open(path, "a", encoding="utf-8").close()
    if is_new:
        os.remove(path)


def write(record, path):
    """error: OSError"""
    if path == "-":
        sys.stdout.write(text_of(record))
        sys.stdout.flush()
        return
    with open(path, "w", encoding="utf-8") as file:
        file.write(text_of(record))
