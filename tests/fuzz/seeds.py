#!/usr/bin/env python3
"""Writes the seeds of the harnesses: FOLDER/NAME/..., the files of seeds/NAME and those that are made here.

usage: seeds.py FOLDER [--flpgen=COMMAND]

Kernels, packs and losses need the command; without it those harnesses get a file that is refused.
"""
import argparse
import base64
import json
import os
import re
import shutil
import sqlite3
import subprocess
import struct
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
TREE = HERE.parents[1]
sys.path.insert(0, str(HERE.parent / "support"))

import report_sample  # noqa: E402

SPEC = ["--vocab", "1000", "--hidden", "64", "--arch", "sm_80"]
LOSSES = ["nll", "k2+entropy", "cispo+k3+entropy"]


def run(command, *arguments):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FLP_")}
    subprocess.run([command, *map(str, arguments)], check=True, stdout=subprocess.DEVNULL,
                   env={**environment, "FLP_CACHE_DIR": "/dev/null/flp"})


def safetensors(path, tensors):
    """tensors: {name: (dtype, shape, bytes)}"""
    header, data = {}, b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def make_safetensors(folder):
    safetensors(folder / "none", {})
    safetensors(folder / "scalar", {"x": ("F32", [], bytes(4))})
    safetensors(folder / "head", {"hidden": ("BF16", [2, 8], bytes(32)), "weight": ("BF16", [3, 8], bytes(48)),
                                  "target": ("I64", [2], bytes(16))})
    safetensors(folder / "empty", {"a": ("U8", [0, 5], b""), "b": ("F8_E4M3", [1, 1, 1, 1, 1, 1, 1, 3], bytes(3))})
    header = b'{"__metadata__":{"k":"v"},"a":{"dtype":"F16","shape":[3],"data_offsets":[0,6]}}'
    (folder / "header").write_bytes(header + b"\0\6")


def make_sqlite(folder):
    """Tables with the columns that the reader wants, in small pages."""
    db = sqlite3.connect(str(folder / "rows"))
    db.execute("PRAGMA page_size = 512")
    db.executescript(report_sample.SCHEMA)
    run_id = report_sample.insert(db, "run", started="2026-01-01", gpu="GPU", sources="sources", driver=13000,
                                  multiprocessors=132, flp_version="0", effort="quick", seed=1, budget_s=1.5)
    spec = report_sample.insert(db, "spec", run=run_id, text="V 1000 D 64 bf16", vocab=1000, hidden=64, dtype="bf16",
                                entropy="none", grads="hidden,weight", rows=1024, finished="2026-01-01", plan="p" * 16)
    for status, tune in (("chosen", "64x64"), ("timed", "128x64,stages=2"), ("illegal", "ping-pong,128x64")):
        for kind in ("forward", "dz", "products", "layout"):
            report_sample.insert(db, "candidate", spec=spec, kind=kind, tune=tune, status=status, ms=1.5, ms_low=1,
                                 ms_high=2, rounds=3, predicted_ms=1.2, chunk_rows=64, chunk_vocab=128, ratio=1.0,
                                 reason="too large", is_default=0)
    report_sample.insert(db, "bare", spec=spec, product="scores", rows=1024, ms=1, ms_low=0.9, ms_high=1.1)
    db.commit()
    db.execute("VACUUM")
    db.close()
    report_sample.create(folder / "empty").close()
    other = sqlite3.connect(str(folder / "other"))
    other.executescript("CREATE TABLE t(x); CREATE VIEW run AS SELECT * FROM t;")
    other.close()


def make_keys(folder):
    """Keys in PEM; what precedes the 32 bytes is RFC 8410's."""
    for kind, prefix in (("PRIVATE", "302e020100300506032b657004220420"), ("PUBLIC", "302a300506032b6570032100")):
        text = base64.b64encode(bytes.fromhex(prefix) + bytes(range(32))).decode()
        (folder / kind.lower()).write_text(f"-----BEGIN {kind} KEY-----\n{text}\n-----END {kind} KEY-----\n")


def make_kernels(out, flpgen):
    cache = out / "made"
    run(flpgen, "pack", "build", *SPEC, "--out", out / "pack" / "made")
    run(flpgen, "pack", "install", out / "pack" / "made", "--dir", cache)
    for path in sorted(cache.glob("*.flpk")):
        path.replace(out / "container" / path.name[:8])
    shutil.rmtree(cache)
    for loss in LOSSES:
        run(flpgen, "loss", "show", loss, "--bytes", out / "loss" / loss)
    make_descriptors(out)


def make_descriptors(out):
    """A pack's index holds them: an entry is {key bytes, descriptor bytes, images; key; descriptor; images}."""
    data = (out / "pack" / "made").read_bytes()
    manifest, _, entries, blobs = struct.unpack_from("<4I", data, 12)
    at = 40 + manifest + 40 * blobs
    for number in range(entries):
        key, descriptor, images = struct.unpack_from("<3I", data, at)
        at += 12 + key
        (out / "desc" / str(number)).write_bytes(data[at:at + descriptor])
        at += descriptor + 16 * images


def refused(pattern):
    """The files that tests of the language have, as lines behind | below a command."""
    for path in sorted(TREE.glob(f"tests/golden/language/{pattern}")):
        for lines in re.findall(r"^> (?:body|template|loss)\b.*\n((?:\|.*\n)+)", path.read_text(), re.M):
            yield re.sub(r"^\| ?", "", lines, flags=re.M)


def make_lua(out):
    """lint: templates and losses, also those that are refused; losslua: losses."""
    def texts(folder):
        return [path.read_text() for path in sorted(TREE.glob(f"templates/{folder}/*.lua"))]

    losses = [*texts("losses"), *refused("loss_*.txt")]
    for name, made in (("losslua", losses), ("lint", [*losses, *texts("common"), *refused("[!l]*.txt")])):
        for number, text in enumerate(made):
            (out / name / f"{number}.lua").write_text(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--flpgen")
    arguments = parser.parse_args()
    out = arguments.folder
    shutil.rmtree(out, ignore_errors=True)
    for harness in sorted(HERE.glob("fuzz_*.c")):
        name = harness.stem.removeprefix("fuzz_")
        (out / name).mkdir(parents=True)
        (out / name / "nothing").write_bytes(b"\0")
        if (HERE / "seeds" / name).is_dir():
            shutil.copytree(HERE / "seeds" / name, out / name, dirs_exist_ok=True)
    make_safetensors(out / "safetensors")
    make_sqlite(out / "records")
    make_keys(out / "keys")
    make_lua(out)
    if arguments.flpgen:
        make_kernels(out, arguments.flpgen)


if __name__ == "__main__":
    main()
