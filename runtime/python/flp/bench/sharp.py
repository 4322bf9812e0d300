"""Rows as sharp as a trained model's: the very operands that `flpgen bench --data` measures on, made by that command.

Random operands give nearly uniform softmax rows, which no trained model has; what lives on sharp rows must be measured
on sharp ones. gen/cli/bench makes them, from a seed; here they are read from the file that --write-rows leaves.

Invariant: nothing of how rows are made is known here.
"""
import json
import math
import mmap
import os
import struct
import subprocess
import tempfile

import torch

from .._library import _c
from . import limits

RANDOM = "random"
KINDS = (RANDOM, "policy", "text", "base")
# Fractions of the rows below the entropies that are recorded, as `flpgen bench` has them.
FRACTIONS = (0.1, 0.5, 0.8, 0.9, 0.95, 0.99)
DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "I64": torch.int64}


def command_path():
    """As command of _c. error: Unavailable"""
    found = _c.command()
    if not found:
        raise limits.Unavailable("--data needs the command flpgen, which makes the rows; it is neither beside libflp "
                                 "nor on PATH")
    return found


def command_of(options, n, path):
    """The command that writes the operands of n rows to a file."""
    words = [command_path(), "bench", "--vocab", options.vocab, "--hidden", options.hidden, "--rows", n, "--dtype",
             options.dtype, "--data", options.data, "--seed", options.seed, "--write-rows", path, "--quiet"]
    words += ["--bias"] * options.bias
    words += ["--softcap", repr(options.softcap)] if options.softcap is not None else []
    words += ["--device", options.device[5:]] if options.device.startswith("cuda:") else []
    return [str(word) for word in words]


def read(path):
    """The tensors of a safetensors file by name, in memory that the file lends until they are gone."""
    with open(path, "rb") as file:
        memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    length, = struct.unpack("<Q", memory[:8])
    tensors = {}
    for name, entry in json.loads(memory[8:8 + length]).items():
        flat = torch.frombuffer(memory, dtype=DTYPES[entry["dtype"]], count=math.prod(entry["shape"]),
                                offset=8 + length + entry["data_offsets"][0])
        tensors[name] = flat.view(entry["shape"])
    return tensors


def make(options, n, device):
    """hidden (n,D), weight (V,D), target (n) int64 and, with a bias, bias (V) on the device, by name.
    error: Unavailable with the command's own reason"""
    with tempfile.TemporaryDirectory(prefix="flp-bench-") as folder:
        path = os.path.join(folder, "rows.safetensors")
        done = subprocess.run(command_of(options, n, path), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                              text=True, errors="replace", check=False)
        if done.returncode:
            lines = done.stderr.strip().splitlines() or ["exit status %d" % done.returncode]
            raise limits.Unavailable("--data %s: the rows could not be made: %s" % (options.data, lines[-1]))
        return {name: tensor.to(device) for name, tensor in read(path).items()}


def quantiles(entropy):
    """Entropies in nats by fraction of the rows."""
    values = entropy.double().quantile(torch.tensor(FRACTIONS, dtype=torch.float64, device=entropy.device)).tolist()
    return {"%g" % fraction: value for fraction, value in zip(FRACTIONS, values)}
