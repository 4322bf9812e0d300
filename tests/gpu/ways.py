"""What scripts share that measure a step which is made in several ways of the same tensors, or judge rows by limits."""
import argparse
import contextlib
import sys

import torch

from flp.bench import record
from flp.bench.step import measured

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
CHECKED_ROWS = 64


def logprob_of(made):
    """Log-probabilities come first, whatever else there is."""
    return made if torch.is_tensor(made) else logprob_of(made[0])


class Step:
    """The tensors of one size, and ways to make log-probabilities of them. A script's own has besides:

    hidden, weight    the operands
    upstream          the gradient of log-probabilities
    ways()            -> {name: call}; a call gives log-probabilities, or a tuple of them and more
    checked(logprob)  -> some of log-probabilities, with the hidden states and the tokens that they are of
    """

    columns = {}  # of its rows, beside those of all
    around = {}   # {name: what surrounds the calls of a way}

    def forward(self, call):
        with torch.no_grad():
            return call()

    def training(self, call):
        """-> what the call gives, and the gradients of both operands"""
        made = call()
        logprob = logprob_of(made)
        return made, torch.autograd.grad(logprob, (self.hidden, self.weight), self.upstream.to(logprob.dtype))

    def error_of(self, result):
        """Of some log-probabilities, against float64."""
        logprob, hidden, ids = self.checked(logprob_of(result).detach())
        logits = hidden.detach().double() @ self.weight.detach().double().t()
        want = torch.log_softmax(logits, -1).gather(-1, ids.unsqueeze(-1)).squeeze(-1)
        return float((logprob.double() - want).abs().max())

    def rows(self, rounds, burst_ms):
        """Yields a row for each pass and way."""
        device = self.hidden.device
        for which, run in (("forward", self.forward), ("training", self.training)):
            for name, call in self.ways().items():
                with self.around.get(name, contextlib.nullcontext()):
                    row = measured(lambda: run(call), self.error_of, device, rounds, burst_ms)
                if device.type == "cuda":
                    torch.cuda.empty_cache()
                yield {"peer": name, "pass": which, **self.columns, **row}


def line_of(row, columns):
    what = "".join("%-6s " % row[name] for name in columns) + "%-9s %-24s" % (row["pass"], row["peer"])
    if row["ms"] is None:
        return "%s %s" % (what, row["reason"])
    peak = "-" if row["peak_bytes"] is None else "%.3f GB" % (row["peak_bytes"] / 1e9)
    return "%s %10.2f ms %12s  error %.1e" % (what, row["ms"], peak, row["error"])


def parser(doc, sizes):
    """The options of a script. sizes: {name: (default, help or None)}"""
    options = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, (value, said) in sizes.items():
        options.add_argument("--" + name, type=type(value), default=value, help=said)
    options.add_argument("--dtype", choices=DTYPES, default="bf16")
    options.add_argument("--burst-ms", type=float, default=500)
    options.add_argument("--device", default="cuda", help="cpu: times alone, for small sizes")
    options.add_argument("--json", required=True, help="file for the record, - for the output")
    return options


def run(script, arguments, options, steps, kept, tolerances, rounds):
    """Measures steps and writes the record -> exit status

    options     as parsed, of which `kept` are fields of the record
    tolerances  {way: nats}; a way that errs by more, or cannot be run, has failed
    """
    said = [word for word in arguments if word not in ("--json", options.json)]
    made = {**record.head(" ".join(["tests/gpu/" + script, *said]), torch.device(options.device)),
            **{name: getattr(options, name) for name in kept}, "torch": torch.__version__, "tolerances": tolerances}
    rows, failed = [], 0
    for step in steps:
        for row in step.rows(rounds, options.burst_ms):
            rows.append(row)
            print(line_of(row, step.columns), file=sys.stderr, flush=True)
            failed += row["peer"] in tolerances and not row.get("error", 1) <= tolerances[row["peer"]]
            record.write({**made, "failed": failed, "rows": rows}, options.json)  # all so far
    return 1 if failed else 0


def judge(script, doc, sizes, rows_of, line_of):
    """Writes a record of rows, each with `failed`, what breaks its limit -> exit status. sizes: on a GPU, with --cpu"""
    options = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--json", help="file for the record; - for standard output")
    options.add_argument("--cpu", action="store_true", help="without a GPU")
    given = options.parse_args()
    if not given.cpu and not torch.cuda.is_available():
        print(script + ": no GPU is here; --cpu tries it without", file=sys.stderr)
        return 3
    device, size = torch.device("cpu" if given.cpu else "cuda"), sizes[given.cpu]
    rows = rows_of(size, device)
    for row in rows:
        print(line_of(row), *row["failed"] or ["passed"], file=sys.stderr)
    failed = sum(bool(row["failed"]) for row in rows)
    if given.json:
        record.write({**record.head("tests/gpu/" + script + " --cpu" * given.cpu, device), "torch": torch.__version__,
                      "sizes": size, "rows": rows, "failed": failed}, given.json)
    return 1 if failed else 0
