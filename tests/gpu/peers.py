#!/usr/bin/env python3
"""Measures the records of other libraries in one go: each in one run of flp.bench, guarded against its peers.

    FLP_LIBRARY=... python3 tests/gpu/peers.py --out records [--only peers_frozen,...] [--minutes 8] [-- OPTIONS]

The records are those of record.py's parts peers, peers_modes, peers_data and peers_diverge; OPTIONS of flp.bench come
after each one's own. All are made by one process, so that a peer is imported and compiled once; GEMM baselines, ours
and all peers of a record take turns in its rounds. That process says on a pipe who is about to run. One that dies or is
silent for --silence seconds is ended and started anew for the records that are missing, without the peer that it named:
the reason stands in the record, as for a peer that raises or takes longer than --peer-seconds. Compilation is no part
of any time.

After --minutes no record is begun, and one that is not done is given up. Exit status: 0 all records are written, 1 some
are not, 2 wrong usage.
"""
import argparse
import gc
import os
import select
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

TREE = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TREE / "runtime" / "python"), str(Path(__file__).parent)]
import parts  # noqa: E402

# Of most use first, should the time not suffice.
ORDER = ("peers_frozen", "peers_sft", "peers_steps_frozen", "peers_steps", "peers_training", "peers_saved", "peers_default",
         "peers_policy", "peers_text", "peers_base", "peers_random", "peers_diverge_trained", "peers_diverge_frozen",
         "peers_diverge_one_head", "peers_diverge_payload", "peers_diverge_random", "peers_diverge_policy",
         "peers_diverge_policy_default")
RECORDS = {name: words for part in parts.PEERS.values() for name, words in part.items()}
RESERVE = 60.0  # seconds of each later record; the first one has the rest, as everything is compiled in it
LOST = 9  # the exit status of a process whose CUDA context is lost
NOBODY = "flp"  # what a failure is ours, or no peer's


def say(text):
    print("peers.py: " + text, file=sys.stderr, flush=True)


# ---- the process that measures ----

def measure(options):
    """Makes the records; says on the pipe who is about to run and which record is done."""
    from flp.bench import limits, main as bench, options as parser, record, run, table

    def tell(kind, text):
        os.write(options.pipe, ("%s %s\n" % (kind, " ".join(text.split()))).encode())

    limits.watcher = lambda name: tell("about", name)
    known, end = {}, time.monotonic() + options.seconds
    skips = [word for text in options.skip for word in ("--skip", text)]
    for i, name in enumerate(options.only):
        seconds = max(RESERVE / 2, end - time.monotonic() - RESERVE * (len(options.only) - i - 1))
        words = [*parts.HEAD, *RECORDS[name], *options.rest, "--json", name + ".json"]
        chosen = parser.parse([*words, *skips, "--seconds", "%.0f" % seconds])
        chosen.peer_seconds = options.peer_seconds
        try:
            made = run.Run(chosen, " ".join([parser.PROGRAM, *map(shlex.quote, words)]), known).record()
        except limits.ContextLost as lost:
            tell("lost", "%s=broke the CUDA context: %s" % (lost.name, lost.reason))
            return LOST
        except limits.Unavailable as error:
            return bench.fail(1, "%s: %s" % (name, error))
        record.write(made, str(options.out / (name + ".json")))
        print("== %s\n%s" % (name, table.text_of(made)), flush=True)
        tell("done", name)
        give_back()
    return 0


def give_back():
    """The memory of a record, before the next one's."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


# ---- the process that watches ----

class Watch:
    """One process that measures: who it named last, what it has done, and why it ended."""

    def __init__(self, options, silence, end):
        receive, send = os.pipe()
        command = [sys.executable, __file__, "--pipe", str(send), *options]
        self.silence, self.end, self.named, self.done, self.reason = silence, end, None, [], None
        self.process = subprocess.Popen(command, pass_fds=(send,), start_new_session=True)
        os.close(send)
        with open(receive, "rb", buffering=0) as pipe:
            self.follow(pipe)
        self.status = self.process.wait()
        if self.reason is None and self.status:
            self.reason = "ended the process: " + (signal.Signals(-self.status).name if self.status < 0
                                                   else "status %d" % self.status)

    def follow(self, pipe):
        """Reads until the process ends, or ends it."""
        text = b""
        while True:
            left = self.end - time.monotonic()
            ready = select.select([pipe], [], [], max(0.0, min(self.silence, left)))[0]
            if not ready:
                self.reason = "the time of the run was over" if left <= self.silence else \
                    "gave no sign of life for %g s" % self.silence
                os.killpg(self.process.pid, signal.SIGKILL)
                return
            got = os.read(pipe.fileno(), 65536)
            if not got:
                return
            *lines, text = (text + got).split(b"\n")
            for line in lines:
                self.read(*line.decode(errors="replace").partition(" ")[::2])

    def read(self, kind, text):
        if kind == "done":
            self.done.append(text)
        elif kind == "lost":
            self.named, _, self.reason = text.partition("=")
        elif not text.startswith("bare "):
            self.named = text


def watched(options, end):
    """Starts the measuring process until all records are made or none can be -> names of those that are missing."""
    missing, skipped = list(options.only), dict(text.split("=", 1) for text in options.skip)
    while missing and time.monotonic() < end:
        words = ["--out", str(options.out), "--only", ",".join(missing), "--peer-seconds", str(options.peer_seconds),
                 "--minutes", str((end - time.monotonic()) / 60)]
        for name, reason in skipped.items():
            words += ["--skip", "%s=%s" % (name, reason)]
        watch = Watch([*words, "--", *options.rest], options.silence, end)
        missing = [name for name in missing if name not in watch.done]
        if watch.reason is None:
            break
        say("%s %s" % (watch.named, watch.reason))
        if watch.named in (None, NOBODY) or watch.named in skipped:
            break  # no peer's fault: it would come again
        skipped[watch.named] = watch.reason
    return missing


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="directory for the records")
    parser.add_argument("--only", default=",".join(ORDER), help="records, default all: %(default)s")
    parser.add_argument("--minutes", type=float, default=8.0, help="for everything; default %(default)s")
    parser.add_argument("--silence", type=float, default=100.0, metavar="S",
                        help="without a sign of life, after which a peer counts as hung; default %(default)s")
    parser.add_argument("--peer-seconds", type=float, default=75.0, metavar="S",
                        help="that a peer has in each record to compile and be checked; default %(default)s")
    parser.add_argument("--skip", action="append", default=[], metavar="NAME=REASON", help="a peer that is left out")
    parser.add_argument("--pipe", type=int, help=argparse.SUPPRESS)
    parser.add_argument("rest", nargs="*", metavar="OPTIONS", help="of flp.bench, behind --")
    options = parser.parse_args(arguments)
    options.only = options.only.split(",")
    unknown = [name for name in options.only if name not in RECORDS]
    if unknown:
        parser.error("argument --only: '%s' is not accepted; any of %s is" % (unknown[0], ", ".join(RECORDS)))
    options.seconds = 60 * options.minutes
    return options


def main(arguments):
    options = parse(arguments)
    if options.pipe is not None:
        return measure(options)
    options.out.mkdir(parents=True, exist_ok=True)
    missing = watched(options, time.monotonic() + options.seconds)
    for name in missing:
        say("%s: not written" % name)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
