#!/usr/bin/env python3
"""Every verb of flpgen with the k-th call of a kind failing once: it works as without the failure, or says what is
missing and exits with a status of its own; no signal, no hang, no wrong or partial file, no temporary that stays.

    tests/campaign/faults.py --seconds 600              random calls of every case
    tests/campaign/faults.py --case gen --all           every call of one case; of malloc a sample
    tests/campaign/faults.py --case gen --call malloc:17    one call, with what the command said

exit: 0 every try ended well; 1 otherwise; 2 wrong usage
"""
import argparse
import array
import concurrent.futures
import errno
import hashlib
import json
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

HERE = Path(__file__).resolve().parent
TREE = HERE.parents[1]
sys.path.insert(0, str(HERE.parent / "support"))

from preloaded import preloaded  # noqa: E402

BUILD = Path(os.environ.get("FLP_TEST_BUILD") or TREE / "build" / "release").resolve()
FLPGEN = BUILD / "bin" / "flpgen"
SHIM = BUILD / "tests" / "libfake_failures.so"
FAKE_CUDA = BUILD / "tests" / "libfake_cuda.so"
FAKE_BLAS = BUILD / "tests" / "libfake_blas.so"

HANG = 300  # seconds after which a command hangs, some hundred times what any of these takes
AT_ONCE = 2
STALE = 7 * 24 * 3600  # older than what `cache gc` calls stale

# The kinds of calls of tests/unit/fakes/fake_failures.c, and what a system says where such a call fails.
KINDS = {"malloc": errno.ENOMEM, "open": errno.EMFILE, "read": errno.EIO, "write": errno.ENOSPC, "fwrite": errno.ENOSPC,
         "fflush": errno.ENOSPC, "fsync": errno.EIO, "close": errno.EIO, "rename": errno.EACCES, "unlink": errno.EACCES,
         "mkdir": errno.EACCES, "stat": errno.EACCES, "mmap": errno.ENOMEM, "thread": errno.EAGAIN}

SPEC = ["--vocab", "1000", "--hidden", "64"]
SM80 = [*SPEC, "--arch", "sm_80"]
ON_GPU = {"FLP_CUDA_LIBRARY": str(FAKE_CUDA), "FAKE_CUDA": "capability=8.0"}
KEY = "0123456789abcdef" * 4

# Verbs that list what is there, whatever is wrong with it: what they print says so.
# LLVM, and the loader for a library's thread-local data, end the process where memory runs out; nothing can be done.
OF_OTHERS = re.compile("LLVM ERROR: out of memory|std::bad_alloc|cannot allocate memory for thread-local data: ABORT")
REPORTED = re.compile(r"bad|cannot|fail|memory|unusable|unreadable|not |no |unknown|-", re.I)


class Case:
    """A command; what must be there before it; whether it lists failures in its output; and whether the cache is what
    it is for: for the others the cache only saves time. rounds: it prints errors, which depend on who multiplies, and
    OpenBLAS needs memory to be loaded."""

    def __init__(self, *arguments, setup=(), lists=False, fills=False, rounds=False, **environment):
        self.arguments, self.setup, self.environment = arguments, setup, environment
        self.lists, self.fills, self.rounds = lists, fills, rounds


PACK = ("pack", "build", *SM80, "-o", "a.flpp")
CASES = {
    "gen": Case("gen", *SM80, "--out", "k"),
    "gen_cache": Case("gen", *SM80, "--install-cache", fills=True),
    "run": Case("run", "-i", "in.safetensors", "-o", "out.safetensors", setup=["input"]),
    "run_cuda": Case("run", "--demo", *SPEC, "--rows", "12", **ON_GPU),
    "check": Case("check", "--rung", "eager", *SPEC, "--rows", "5", "--json=record.json", rounds=True),
    "explain": Case("explain", *SPEC, "--rows", "100", lists=True),
    "explain_cuda": Case("explain", *SPEC, "--rows", "100", lists=True, **ON_GPU),
    "doctor": Case("doctor", lists=True),
    "doctor_cuda": Case("doctor", "--json", lists=True, **ON_GPU),
    "cache_ls": Case("cache", "ls", setup=["cache"], lists=True),
    "cache_verify": Case("cache", "verify", "--json", setup=["cache"]),
    "cache_gc": Case("cache", "gc", "--keep", "1K", setup=["cache"]),
    "pack_build": Case(*PACK),
    "pack_sign": Case(*PACK, "--sign", "key.hex", setup=["key"]),
    "pack_inspect": Case("pack", "inspect", "a.flpp", setup=["pack"]),
    "pack_verify": Case("pack", "verify", "a.flpp", setup=["pack"]),
    "pack_install": Case("pack", "install", "a.flpp", setup=["pack"], fills=True),
    "sign": Case("sign", "--key", "key.hex", "--comment", "flp", "--public", "p.pub", "key.hex", setup=["key"]),
    "verify": Case("verify", "--trust", "p.pub", "key.hex", "--json", setup=["signature"]),
    "loss_list": Case("loss", "list"),
    "loss_show": Case("loss", "show", "grpo+k3", "--bytes", "l.bin"),
    "loss_check": Case("loss", "check", "./loss.lua", setup=["loss"]),
    "tune": Case("tune", "--dry-run", *SPEC, lists=True),
    # NVIDIA's own library ends the process where one of its allocations fails.
    "tune_refused": Case("tune", *SPEC, **ON_GPU, FLP_CUBLASLT_LIBRARY="none.so"),
    "prove_refused": Case("prove", "--arch", "sm_90a", **ON_GPU),
    "bench": Case("bench", *SPEC, "--rows", "64", "--json=bench.json"),
}


def clean_environment(folder):
    """Of the caller's nothing but where programs are; all that is written lies in the folder. OpenBLAS is a stand-in,
    which starts threads as it does: the libraries it needs end the process where one of their allocations fails."""
    return {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "HOME": str(folder), "TMPDIR": str(folder / "tmp"),
            "FLP_CACHE_DIR": str(folder / "cache"), "OPENBLAS_NUM_THREADS": "2", "FLP_BLAS_LIBRARY": str(FAKE_BLAS)}


class Tensors:
    """What a file of fp32 tensors says. Without memory for OpenBLAS another product rounds in another way."""

    def __init__(self, content):
        start = 8 + struct.unpack("<Q", content[:8])[0]
        self.header, self.numbers = content[:start], array.array("f", content[start:])

    def __eq__(self, other):
        return (isinstance(other, Tensors) and self.header == other.header and len(self.numbers) == len(other.numbers)
                and all(abs(x - y) <= 1e-5 * max(1, abs(x)) for x, y in zip(self.numbers, other.numbers)))


def content_of(path, place):
    """What a file says: tensors, or a hash of the rest, without dates and the folder's name."""
    content = path.read_bytes()
    if path.name == "out.safetensors":
        return Tensors(content)
    if path.name == "record.json":  # of check, see Case
        content = re.sub(rb"(?<=:)-?\d[\d.e+-]*(?=[,}])", b"#", content)
    content = re.sub(rb"\d{4}-\d\d-\d\dT[\d:]+Z", b"DATE", content.replace(place.encode(), b"@"))
    return hashlib.sha256(content).hexdigest()


class Ended:
    """How a command ended and what it left: {name: hash of what the file says}."""

    def __init__(self, code, out, err, folder):
        place = str(folder)
        self.code, self.out, self.err = code, out.replace(place, "@"), err.replace(place, "@")
        self.files = {}
        for path in sorted(folder.rglob("*")):
            if path.is_file() and not path.is_symlink():
                self.files[str(path.relative_to(folder))] = content_of(path, place)


def run(arguments, folder, environment=None):
    command = [str(FLPGEN), *arguments]
    try:
        done = subprocess.run(command, cwd=folder, env={**clean_environment(folder), **(environment or {})}, text=True,
                              stdin=subprocess.DEVNULL, capture_output=True, timeout=HANG, errors="replace")
    except subprocess.TimeoutExpired:
        return Ended("hang", "", "", folder)
    return Ended(done.returncode, done.stdout, done.stderr, folder)


# ---- what is there before ----

def put_input(folder):
    """40 rows of a head of 300 x 64, with nothing but what Python has."""
    draw, header, data = random.Random(1), {}, b""
    tensors = {"hidden": ("F32", [40, 64], array.array("f", (draw.gauss(0, 1) for _ in range(40 * 64)))),
               "weight": ("F32", [300, 64], array.array("f", (draw.gauss(0, 1) for _ in range(300 * 64)))),
               "target": ("I64", [40], array.array("q", (draw.randrange(300) for _ in range(40))))}
    for name, (dtype, shape, values) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(values.tobytes())]}
        data += values.tobytes()
    text = json.dumps(header).encode()
    (folder / "in.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)


def put_pack(folder):
    assert run(PACK, folder).code == 0


def put_cache(folder):
    assert run(["gen", *SM80, "--install-cache"], folder).code == 0


def put_key(folder):
    (folder / "key.hex").write_text(KEY)
    (folder / "key.hex").chmod(0o600)


def put_signature(folder):
    put_key(folder)
    assert run(["sign", "--key", "key.hex", "--public", "p.pub", "key.hex"], folder).code == 0


def put_loss(folder):
    (folder / "loss.lua").write_text("return function(row, p)\n  return row.logprob * row.weight\nend\n")


PUT = {"input": put_input, "pack": put_pack, "cache": put_cache, "key": put_key, "signature": put_signature,
       "loss": put_loss}


# ---- one case ----

def blank_numbers(text):
    """Times and rates differ from run to run, in their units and in the blanks around them too."""
    return re.sub(r"[\d.]+(e[-+]\d+)?( [kMGTnum]?(s|FLOP(/s)?)\b)?", "#", re.sub(r"\s+", " ", text))


class Bench:
    """A case with the folder that its command starts from, how it ends without a failure, and its counts of calls."""

    def __init__(self, name, root):
        self.name, self.case, self.root = name, CASES[name], root / name
        self.template = self.root / "template"
        (self.template / "tmp").mkdir(parents=True)
        for part in self.case.setup:
            PUT[part](self.template)
        first = self.run_clean("000001", FAKE_FAILURES_COUNTS=str(self.root / "counts"))
        second = self.run_clean("000002")
        assert first.code == second.code and first.code in range(0, 6), (name, first.code, first.err)
        assert first.code == 0 or first.err, name
        self.clean, self.compared = first, None
        for compared in (blank_numbers,) if self.case.rounds else (str, blank_numbers):
            if compared(first.out) == compared(second.out):
                self.compared = compared
                break
        self.steady = {file for file, content in first.files.items() if second.files.get(file) == content}
        self.before = Ended(0, "", "", self.template).files
        self.counts = {kind: int(count) for kind, count in
                       (line.split() for line in (self.root / "counts").read_text().splitlines()) if kind in KINDS}

    def run_clean(self, number, **environment):
        return self.start(number, **preloaded(SHIM), **environment)

    def start(self, number, **environment):
        folder = self.root / number
        shutil.copytree(self.template, folder, symlinks=True)
        return run(self.case.arguments, folder, {**self.case.environment, **environment})

    def fail(self, kind, call):
        """Runs with that call failing -> (how it ended, what is wrong with that or "")."""
        folder = self.root / f"{kind[:3]}{call:09d}-{random.randrange(1 << 30):08x}"
        environment = {**preloaded(SHIM), "FAKE_FAILURES": f"{kind}:{call}:{KINDS[kind]}"}
        ended = self.start(folder.name, **environment)
        wrong = self.judge(ended, kind) or self.judge_temporaries(ended, folder, kind)
        shutil.rmtree(folder)
        return ended, wrong

    def is_of_others(self, ended):
        """Whether LLVM, the loader or, mutely, the stand-in for libcuda has ended the process."""
        stand_in = "FAKE_CUDA" in self.case.environment and ended.code == -signal.SIGABRT and not ended.err
        return stand_in or OF_OTHERS.search(ended.err)

    def judge(self, ended, kind):
        if kind == "malloc" and self.is_of_others(ended):
            return ""
        if ended.code == "hang":
            return "hangs"
        if ended.code < 0:
            return f"killed by signal {-ended.code}"
        if ended.code > 5:
            return f"exit status {ended.code}"
        for file, content in ended.files.items():
            whole = (self.clean.files.get(file), self.before.get(file))
            if file in self.steady and content not in whole:
                return f"{file} is not whole"
        if ended.code:
            return "" if ended.err.strip() else "refused without a message"
        if ended.err != self.clean.err and ended.err.strip():
            return ""  # it went on without, and said so
        if self.compared and self.compared(ended.out) != self.compared(self.clean.out):
            said = REPORTED if self.case.lists else re.compile("out of memory")
            return "" if said.search(ended.out) else "prints something else without a word"
        missing = {file for file in self.clean.files.keys() - ended.files.keys()
                   if self.case.fills or not file.startswith("cache/")}
        return f"{sorted(missing)[0]} is missing without a word" if missing else ""

    def judge_temporaries(self, ended, folder, kind):
        known = self.clean.files.keys() | self.before.keys()
        left = [file for file in ended.files if file not in known]
        if not left:
            return ""
        if all(file.startswith("cache/") for file in left):
            for file in left:
                os.utime(folder / file, (time.time() - STALE,) * 2)
            after = run(["cache", "gc"], folder)
            left = [file for file in left if file in after.files and Path(file).name.startswith(".")]
        if left and kind == "unlink":
            return ""  # the call that failed was to remove it
        return f"leaves {left[0]}" if left else ""


# ---- campaigns ----

def calls_of(bench, most, draw):
    """(kind, call) of every kind: all where there are few, else a sample with the first."""
    chosen = []
    for kind, count in bench.counts.items():
        calls = range(1, count + 1)
        chosen += [(kind, call) for call in (calls if count <= most else sorted(draw.sample(calls, most)))]
    return chosen


class Tally:
    """Counts outcomes and keeps what went wrong."""

    def __init__(self):
        self.tries, self.wrong = Counter(), []

    def add(self, bench, kind, call, ended, wrong):
        if wrong:
            outcome = "wrong"
        elif bench.is_of_others(ended):
            outcome = "ended by LLVM, the loader or a stand-in"
        elif ended.code == bench.clean.code and ended.err == bench.clean.err:
            outcome = "as without"
        else:
            outcome = "refused" if ended.code else "went on and said so"
        self.tries[outcome] += 1
        if wrong:
            self.wrong.append(f"{bench.name} {kind}:{call} {wrong}: {ended.err.strip()[-200:]}")

    def text(self):
        return f"{sum(self.tries.values())} tries: " + ", ".join(f"{count} {what}" for what, count in
                                                                 sorted(self.tries.items()))


def try_calls(bench, calls, tally):
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        for (kind, call), (ended, wrong) in zip(calls, pool.map(lambda c: bench.fail(*c), calls)):
            tally.add(bench, kind, call, ended, wrong)
    return tally


def try_for(seconds, benches, seed):
    """Random calls until the time is over: a kind first, so that malloc is not all there is."""
    draw, tally, end = random.Random(seed), Tally(), time.monotonic() + seconds
    while time.monotonic() < end:
        bench = draw.choice(benches)
        kinds = [kind for kind, count in bench.counts.items() if count]
        calls = [(kind, draw.randint(1, bench.counts[kind])) for kind in (draw.choice(kinds) for _ in range(8))]
        try_calls(bench, calls, tally)
    return tally


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", action="append", choices=sorted(CASES), help="default all; may be repeated")
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--seconds", type=int)
    how.add_argument("--all", action="store_true")
    how.add_argument("--call", metavar="KIND:K")
    parser.add_argument("--most", type=int, default=200, help="of a kind with --all, default 200")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="flp-faults-") as root:
        benches = [Bench(name, Path(root)) for name in arguments.case or CASES]
        if arguments.call:
            kind, call = arguments.call.split(":")
            ended, wrong = benches[0].fail(kind, int(call))
            print(f"exit {ended.code}\n{ended.out}{ended.err}{wrong or 'as it should be'}")
            return 1 if wrong else 0
        if arguments.seconds:
            print(f"seed {arguments.seed}", flush=True)
            tally = try_for(arguments.seconds, benches, arguments.seed)
        else:
            tally = Tally()
            for bench in benches:
                try_calls(bench, calls_of(bench, arguments.most, random.Random(arguments.seed)), tally)
                print(f"{bench.name}: {tally.text()}", flush=True)
    for line in tally.wrong:
        print(f"WRONG {line}")
    print(f"faults: {tally.text()}")
    return 1 if tally.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
