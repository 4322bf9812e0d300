"""The command's entry: options in, a table and a record out, exit statuses of flpgen."""
import os
import shlex
import sys

import torch

from . import cases, limits, options, record, run, table

EXIT_OK, EXIT_UNAVAILABLE, EXIT_IO = 0, 3, 4


def fail(status, text):
    print("flp.bench: " + text, file=sys.stderr)
    return status


def again_without(lost, arguments):
    """Starts the command anew: a broken CUDA context does not mend within its process."""
    print("flp.bench: %s; starting again without it" % lost, file=sys.stderr, flush=True)
    reason = "broke the CUDA context: " + lost.reason
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "flp.bench", *arguments, "--skip", "%s=%s" % (lost.name, reason)])


def main(arguments=None):
    """Returns the exit status."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    chosen = options.parse(arguments)
    if chosen.device != "cpu" and not torch.cuda.is_available():
        return fail(EXIT_UNAVAILABLE, "--device: '%s' is not available, torch finds no CUDA device; --device cpu runs "
                                      "without one" % chosen.device)
    try:
        record.probe(chosen.json)
    except OSError as error:
        return fail(EXIT_IO, "%s: cannot write: %s" % (chosen.json, error.strerror))
    command = " ".join([options.PROGRAM, *map(shlex.quote, arguments)])
    try:
        result = run.Run(chosen, command).record()
    except limits.ContextLost as lost:
        if lost.name in (*chosen.peers, cases.TAIL):
            again_without(lost, arguments)
        return fail(EXIT_UNAVAILABLE, str(lost))
    except limits.Unavailable as error:
        return fail(EXIT_UNAVAILABLE, str(error))
    if chosen.json != "-":
        print(table.text_of(result), end="")
    if chosen.json:
        try:
            record.write(result, chosen.json)
        except OSError as error:
            return fail(EXIT_IO, "%s: the record cannot be written: %s" % (chosen.json, error.strerror))
    return EXIT_OK
