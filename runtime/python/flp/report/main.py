"""The command line: options in, a page out, exit statuses of flpgen."""
import argparse
import json
import os
import sys

from .. import _matplotlib
from . import memory, page, picture, records

PROGRAM = "python -m flp.report"
EXIT_OK, EXIT_UNAVAILABLE, EXIT_IO = 0, 3, 4
DESCRIPTION = """Draws one HTML page, complete in itself, from the records of `flpgen tune` (SQLite, or JSON exported)
and of `flpgen bench --json` or `python -m flp.bench --json`: passes and best kernels against the matrix products alone
and other libraries, time against the sharpness of the rows where some were made with --data, the landscape of each
tunable, rejected candidates, a roofline, memory against rows. No GPU is needed."""
EPILOG = """examples:
  {program} ~/.cache/flp/tune.sqlite bench.json
  {program} autotune/bench/bench_*.json --out report.html
  {program} peers_training.json peers_saved.json --picture peers.svg
  {program} --memory="--vocab 151936 --hidden 4096 --grad hidden,weight" --out plan.html

The same files give the same page, to the byte, with the same matplotlib. Exit status: 0 success, 2 bad usage, 3
matplotlib or the command flpgen is missing, 4 a file is unreadable, unwritable or no record."""


def count(text):
    if not text.isdecimal() or int(text) > 10000:
        raise argparse.ArgumentTypeError("'%s' is not accepted; an integer from 0 to 10000 is" % text)
    return int(text)


def options_of(arguments):
    parser = argparse.ArgumentParser(prog=PROGRAM, description=DESCRIPTION, epilog=EPILOG.format(program=PROGRAM),
                                     formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("files", nargs="*", metavar="FILE", help="records, JSON or SQLite")
    parser.add_argument("--out", default="report.html", metavar="FILE",
                        help="the page; default report.html, replaced if it is there; - for standard output")
    parser.add_argument("--note", metavar="TEXT", help="a sentence at the top of the page")
    parser.add_argument("--landscapes", type=count, default=40, metavar="N",
                        help="landscapes of tunables drawn at most, default 40")
    parser.add_argument("--memory", metavar="OPTIONS",
                        help="options of `flpgen explain` that name the head of the chart of memory; default: the "
                             "first head of the records")
    parser.add_argument("--picture", metavar="FILE",
                        help="write no page, but an SVG of time and memory of forward and backward, flp beside others")
    parser.add_argument("--json", action="store_true", help="print one JSON document that lists what was drawn")
    chosen = parser.parse_args(arguments)
    if not chosen.files and not chosen.memory:
        parser.error("expected records to draw, or --memory for the chart of memory, got none")
    if chosen.picture is not None:
        chosen.out = chosen.picture
    if chosen.json and chosen.out == "-":
        parser.error("--json and --out=- are not accepted together; both write to standard output")
    return chosen


def write(text, path):
    """error: OSError"""
    if path == "-":
        sys.stdout.buffer.write(text.encode())
        sys.stdout.flush()
        return
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        file.write(text)


def fail(status, text):
    print("flp.report: " + text, file=sys.stderr)
    return status


def main(arguments=None):
    """Returns the exit status."""
    chosen, read = options_of(arguments), records.Records()
    try:
        _matplotlib.need("flp.report")
        for path in chosen.files:
            read.read(path)
        text = picture.text_of(read) if chosen.picture else page.text_of(read, chosen)
        write(text, chosen.out)
    except ImportError as error:
        return fail(EXIT_UNAVAILABLE, str(error))
    except memory.Failed as error:
        return fail(error.status, "--memory: %s" % error)
    except records.Wrong as error:
        return fail(EXIT_IO, str(error))
    except OSError as error:
        return fail(EXIT_IO, "%s: %s" % (error.filename or chosen.out, error.strerror))
    drawn = {"out": os.fspath(chosen.out), "bytes": len(text.encode()), "files": len(read.sources),
             "specs": len(read.specs), "candidates": len(read.candidates), "bench_rows": len(read.rows)}
    if chosen.json:
        print(json.dumps(drawn))
    elif chosen.out != "-":
        print("{out}: tuned shapes: {specs}; candidates: {candidates}; benchmark rows: {bench_rows}".format(**drawn))
    return EXIT_OK
