"""Runs the flpgen command, and reads and writes safetensors files with nothing but numpy."""
import functools
import json
import os
import struct
import subprocess

import numpy
import pytest

FLPGEN = os.environ.get("FLPGEN") or os.environ.get("FLP_TEST_FLPGEN") or ""
FAKE = os.environ.get("FLP_TEST_FAKE_CUDA", "")

HANG = 1800  # seconds after which a command hangs, far above what any takes on a busy machine

needs_flpgen = pytest.mark.skipif(not os.path.exists(FLPGEN), reason="the flpgen command was not built")
needs_fake = pytest.mark.skipif(not os.path.exists(FAKE), reason="the stand-in for libcuda was not built")

DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "U8": "u1", "I8": "i1",
          "F8_E4M3": "u1", "F8_E5M2": "u1"}


class Outcome:
    """What a command printed and how it ended."""

    def __init__(self, done):
        self.code, self.out, self.err = done.returncode, done.stdout, done.stderr

    def json(self):
        return json.loads(self.out)


def flpgen(*arguments, cache=None, timeout=HANG, program=FLPGEN, cwd=None, **environment):
    """Runs the command with a cache of its own and no settings but those given; output of any width, unless COLUMNS is."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("FLP_") and name != "COLUMNS"}
    env.update({"LC_ALL": "C.UTF-8", "FLP_CACHE_DIR": str(cache) if cache else "/dev/null/flp"}, **environment)
    done = subprocess.run([program, *map(str, arguments)], env=env, capture_output=True, text=True, timeout=timeout,
                          cwd=cwd)
    assert done.returncode >= 0, f"killed by signal {-done.returncode}: {arguments}\n{done.stderr}"
    return Outcome(done)


def succeed(*arguments, **settings):
    """The outcome of a command that must not fail."""
    done = flpgen(*arguments, **settings)
    assert done.code == 0, done.err
    return done


@functools.cache
def document_of(*arguments):
    """What a command without a GPU gives as JSON, run once for all tests: for reading."""
    return succeed(*arguments, "--json", FLP_CUDA_LIBRARY="/nonexistent/libcuda.so.1").json()


def generated(*arguments):
    """The document of `flpgen gen`."""
    return document_of("gen", *arguments)


def findings(record):
    """Of what `flpgen check` recorded: an object for each rung and output of each row."""
    return [{**row, **row["outputs"].get(output, {"worst_share": 0}), "rung": rung, "output": output,
             "note": row.get("notes", {}).get(output, "")}
            for row in record["rows"] for rung in row["rungs"] for output in (*row["outputs"], *row["exact"])]


def to_bf16(values):
    """fp32 values as bf16 bits, rounded to nearest even."""
    bits = numpy.asarray(values, dtype="<f4").view("<u4").astype(numpy.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def from_bf16(bits):
    return (bits.astype("<u4") << 16).view("<f4")


def write_safetensors(path, pad=0, **tensors):
    """tensors: name=(dtype name, array). pad: blanks that put the data at any alignment."""
    header, data, offset = {}, b"", 0
    for name, (dtype, array) in tensors.items():
        raw = numpy.ascontiguousarray(array, dtype=DTYPES[dtype]).tobytes()
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [offset, offset + len(raw)]}
        offset += len(raw)
        data += raw
    text = json.dumps(header).encode() + b" " * pad
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def read_safetensors(path):
    """name -> array, bf16 widened to fp32."""
    raw = path.read_bytes()
    length = struct.unpack("<Q", raw[:8])[0]
    header, data = json.loads(raw[8:8 + length]), raw[8 + length:]
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        array = numpy.frombuffer(data[begin:end], dtype=DTYPES[entry["dtype"]]).reshape(entry["shape"])
        tensors[name] = from_bf16(array) if entry["dtype"] == "BF16" else array
    return tensors
