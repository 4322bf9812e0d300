#!/usr/bin/env python3
"""Brings the peers of flp.bench to a machine without a network: packs their wheels here, unpacks them there.

    python3 tests/gpu/wheels.py pack PARTS [--python 3.12] [--have einops] [--part-mib 45]
    python3 tests/gpu/wheels.py unpack PARTS --into FOLDER
    . FOLDER/env.sh

pack    installs the pinned releases of --requirements (runtime/python/flp/bench/peers/requirements.txt), for the other
        machine's Python, into a folder, without what they depend on (torch, Triton, transformers and the like are there) and without
        what --have names; leaves out what no peer runs (NEEDLESS); and writes it as parts PARTS/part-N.txz of at most
        so many MiB, each a tar archive of its own, and PARTS/parts.json: their sizes, checksums and contents. Needs pip
        and its registry. A file that is too large for a part is cut into pieces.
unpack  checks the parts that are there against the list, unpacks them, puts cut files together once all their pieces
        are there, and writes FOLDER/env.sh, which puts FOLDER/site-packages and its .pth files' folders on PYTHONPATH
        (quack takes kernels' helpers for installed ones by that name). It may run once for each part, whenever one
        arrives; it names the parts that are missing. Needs Python alone.

Exit status: 0 done (unpack: with all parts), 1 a part is damaged or pip failed, 2 wrong usage, 3 parts are missing.
"""
import argparse
import fnmatch
import hashlib
import io
import json
import lzma
import re
import shlex
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

TREE = Path(__file__).resolve().parents[2]
REQUIREMENTS = TREE / "runtime/python/flp/bench/peers/requirements.txt"
LIST = "parts.json"
# Of the wheels, what no peer runs on Hopper: other GPUs' kernels, mixtures of experts, transports between hosts, what
# only a compiler or linker reads, and tests. Half of the bytes.
NEEDLESS = ("liger_cute_kernels/*moe*.cubin", "liger_cute_kernels/*sm100f.so", "liger_cute_kernels/*.cpp",
            "nvidia/nvshmem/lib/*device*", "nvidia/nvshmem/lib/*transport*", "nvidia/nvshmem/lib/*bootstrap_*mp*",
            "nvidia/nvshmem/lib/*bootstrap_*pmi*", "nvidia/nvshmem/lib/*bootstrap_shmem*", "*/include/*", "*.a",
            "bin/*", "*/tests/*", "*/test/*", "*/__pycache__/*", "cuda/*/*.pxd", "*.pyx")
# Larger files are compressed alone, so that parts can be filled.
LARGE = 4 << 20
# Machine code packs better with its jumps made absolute.
FILTERS = [{"id": lzma.FILTER_X86},
           {"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "dict_size": 192 << 20}]
PIECE = ".piece-%02d-of-%02d"
PIECE_NAME = re.compile(r"(.+)\.piece-(\d\d)-of-(\d\d)$")


def fail(status, text):
    print("wheels.py: " + text, file=sys.stderr)
    return status


def sha256_of(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


# ---- pack ----

def pins(text, left_out):
    """name==version of each line that is not left out."""
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    return [line for line in lines if line and line.partition("==")[0] not in left_out]


def pip_command(wanted, python, glibc, folder):
    """What installs the pins for another Python, whose version pip compares with its own; it takes a platform by its exact
    number of glibc only."""
    platforms = ["manylinux_2_%d_x86_64" % minor for minor in range(glibc, 4, -1)] + ["manylinux2014_x86_64"]
    return [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--only-binary=:all:",
            "--ignore-requires-python", "--implementation=cp", "--python-version=" + python, "--target", str(folder),
            *("--platform=" + platform for platform in platforms), *wanted]


def is_needless(name):
    return any(fnmatch.fnmatch(name, pattern) for pattern in NEEDLESS)


def archive(members):
    """One .txz of (name, bytes, mode)."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, data, mode in members:
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), mode
            tar.addfile(entry, io.BytesIO(data))
    return lzma.compress(raw.getvalue(), filters=FILTERS)


def pieces_of(name, data, mode, most):
    """The archives of one large file, each of at most so many bytes."""
    whole = archive([(name, data, mode)])
    count = -(-len(whole) // most)
    while count > 1:
        size = -(-len(data) // count)
        cut = [(name + PIECE % (i + 1, count), data[i * size:(i + 1) * size], mode) for i in range(count)]
        archives = [(piece[0], archive([piece])) for piece in cut]
        if all(len(packed) <= most for _, packed in archives):
            return archives
        count += 1
    return [(name, whole)]


def units_of(folder, most):
    """(what it holds, bytes): all small files together, and each large one; and the names that are left out."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    names = {path: path.relative_to(folder).as_posix() for path in paths}
    kept = [path for path in paths if not is_needless(names[path])]
    members = [(names[path], path.read_bytes(), 0o755 if path.stat().st_mode & 0o100 else 0o644) for path in kept]
    small = [member for member in members if len(member[1]) <= LARGE]
    units = [("%d small files" % len(small), archive(small))] if small else []
    for member in members:
        if len(member[1]) > LARGE:
            print("wheels.py: packing " + member[0], file=sys.stderr, flush=True)
            units += pieces_of(*member, most)
    return units, sorted(names[path] for path in paths if path not in kept)


def filled(units, most):
    """Parts of at most so many bytes: the largest unit first, into the first part with room; the least part first."""
    parts = []
    for unit in sorted(units, key=lambda unit: -len(unit[1])):
        room = [part for part in parts if sum(len(data) for _, data in part) + len(unit[1]) <= most]
        if room:
            room[0].append(unit)
        else:
            parts.append([unit])
    return sorted(parts, key=lambda part: sum(len(data) for _, data in part))


def pack(options):
    wanted = pins("\n".join(file.read_text() for file in options.requirements), set(options.have.split(",")))
    options.parts.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        done = subprocess.run(pip_command(wanted, options.python, options.glibc, work))
        if done.returncode:
            return fail(1, "pip failed with status %d" % done.returncode)
        units, left_out = units_of(Path(work), options.part_mib << 20)
    listed = []
    for number, part in enumerate(filled(units, options.part_mib << 20), 1):
        path = options.parts / ("part-%d.txz" % number)
        path.write_bytes(b"".join(data for _, data in part))
        listed.append({"file": path.name, "bytes": path.stat().st_size, "sha256": sha256_of(path),
                       "holds": [holds for holds, _ in part]})
        print("%s  %.1f MiB  %s" % (path.name, path.stat().st_size / 2**20, ", ".join(listed[-1]["holds"])))
    content = {"python": options.python, "requirements": wanted, "left_out": left_out, "parts": listed}
    (options.parts / LIST).write_text(json.dumps(content, indent=1) + "\n")
    return 0


# ---- unpack ----

def extract(path, folder):
    with lzma.open(path) as stream, tarfile.open(fileobj=stream, mode="r|", ignore_zeros=True) as tar:
        for entry in tar:
            tar.extract(entry, folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))


def join_pieces(folder):
    """Puts files together whose pieces are all there."""
    found = {}
    for path in folder.rglob("*.piece-*"):
        match = PIECE_NAME.match(str(path))
        found.setdefault((match[1], int(match[3])), []).append(path)
    for (name, count), paths in found.items():
        if len(paths) < count:
            continue
        with open(name, "wb") as file:
            for path in sorted(paths):
                file.write(path.read_bytes())
                path.unlink()


def write_environment(folder):
    """env.sh: what a site folder of this content adds to sys.path, as PYTHONPATH."""
    code = "import site, sys; site.addsitedir(sys.argv[1]); print('\\n'.join(sys.path))"
    shown = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True)
    inside = [line for line in shown.stdout.splitlines() if Path(line) == folder or folder in Path(line).parents]
    text = "# Sourced: the peers of flp.bench come before what is installed.\n" \
           "export PYTHONPATH=%s${PYTHONPATH:+:$PYTHONPATH}\n"
    paths = ":".join(shlex.quote(path) for path in dict.fromkeys([str(folder), *inside]))
    (folder.parent / "env.sh").write_text(text % paths)


def unpack(options):
    parts = json.loads((options.parts / LIST).read_text())["parts"]
    folder = options.into.resolve() / "site-packages"
    marks = options.into.resolve() / "parts"
    for needed in (folder, marks):
        needed.mkdir(parents=True, exist_ok=True)
    for part in parts:
        path, mark = options.parts / part["file"], marks / part["sha256"]
        if mark.exists() or not path.exists():
            continue
        if sha256_of(path) != part["sha256"]:
            return fail(1, "%s: its checksum is not that of %s" % (path, LIST))
        extract(path, folder)
        mark.touch()
    join_pieces(folder)
    write_environment(folder)
    missing = [part["file"] for part in parts if not (marks / part["sha256"]).exists()]
    print("wheels.py: %d of %d parts in %s%s" % (len(parts) - len(missing), len(parts), folder,
                                               "; missing: " + ", ".join(missing) if missing else ""))
    return 3 if missing else 0


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="wheels.py", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("pack")
    verb.add_argument("parts", type=Path, metavar="PARTS")
    verb.add_argument("--python", default="3.12", help="of the other machine; default 3.12")
    verb.add_argument("--glibc", type=int, default=39, metavar="N", help="2.N of the other machine; default 39")
    verb.add_argument("--have", default="", metavar="LIST", help="names that the other machine has")
    verb.add_argument("--part-mib", type=int, default=45, metavar="N", help="most MiB of a part; default 45")
    verb.add_argument("--requirements", type=Path, nargs="+", default=[REQUIREMENTS], metavar="FILE")
    verb.set_defaults(run=pack)
    verb = verbs.add_parser("unpack")
    verb.add_argument("parts", type=Path, metavar="PARTS")
    verb.add_argument("--into", type=Path, required=True, metavar="FOLDER")
    verb.set_defaults(run=unpack)
    options = parser.parse_args(arguments)
    return options.run(options)


if __name__ == "__main__":
    sys.exit(main())
