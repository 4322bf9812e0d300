#!/usr/bin/env python3
"""Selective log-softmax on scores that exist, beside what trainers run: time, memory, exactness on this machine's GPU.

    FLP_LIBRARY=build/release/lib/libflp.so python3 tests/gpu/selective.py --json autotune/bench/selective.json
    ... --cpu --tiny        small, without a GPU: only correctness is judged
    ... --judge RECORD      measures nothing: the verdicts of a record anew, from its rows

The benchmark of the blog post on it: B=16, T=1024, V=32768 in float32 and in bfloat16, every way on the same tensors:

  flp             flp.selective_log_softmax; `in place`: the gradient takes the place of the scores
  naive           log_softmax, then gather
  looped          a sequence at a time: logsumexp in float32, log_softmax in 16 bits
  torch.compile   of the naive form, with dynamic shapes as the post has it, and with static ones
  quack           quack.cross_entropy, negated; `in place` likewise: CuTe kernels, where they can be imported
  read, copy      plain reductions and a copy of the same scores: the best is what this card reads at, `read_gbps`

Times are medians of bursts, interleaved in another random order each round; a `training` call is forward and the
gradient of the scores. `extra_bytes` is the peak of torch's allocator above what was there before the call, results
included. Errors are the greatest against float64 (gradients: relative to the greatest element). In place, calls after
the first start from gradients as scores: the same work on other values.

`verdicts` holds each claim, its value and limit; "met" is null where there is nothing to judge by. Gains over
torch.compile are judged by the post's form, with dynamic shapes. Over the static form, which in float32 reads at more
than 1 / 1.6 of what an H200 can, they are figures without a limit, beside the most that anyone could gain there:
read_gbps over its own rate. Exit status 0 if no claim fails, 1 if one does, 3 if there is no GPU or no
flp.selective_log_softmax.
"""
import argparse
import importlib
import json
import sys
from pathlib import Path

import torch

TREE = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TREE / "runtime" / "python"))
import flp  # noqa: E402
from flp.bench import clock, data, limits, memory, record, rounds, table  # noqa: E402

FULL, TINY = (16, 1024, 32768), (2, 8, 320)
INDICES = 4  # K of the case of several a row
LEAST_OF_READ_RATE, LEAST_FORWARD_GAIN, LEAST_TRAINING_GAIN = 0.85, 1.6, 1.8
MOST_EXTRA_BYTES = 10**6
MOST_ERROR = 2e-6  # nats, float32
IN_PLACE, QUACK, QUACK_IN_PLACE = "flp, in place", "quack", "quack, in place"
POSTS_FORM, STATIC_FORM = COMPILED = ("torch.compile, dynamic", "torch.compile, static")
# What is compared with quack: pass, our way, its way.
QUACK_FIGURES = (("forward", "flp", QUACK), ("training", "flp", QUACK), ("training", IN_PLACE, QUACK_IN_PLACE))
COLUMNS = ("dtype", "pass", "way", "ms", "least .. most", "GB/s", "extra", "error")


# ---- the ways: (scores (B, T, V), index (B, T) or (B, T, K)) -> log-probabilities of the index's shape ----

def naive(logits, index):
    logprobs = logits.log_softmax(-1)
    if index.dim() == logits.dim():
        return logprobs.gather(-1, index)
    return logprobs.gather(-1, index[..., None])[..., 0]


def looped(logits, index):
    if logits.dtype not in (torch.float32, torch.float64):
        return torch.stack([naive(scores, ids) for scores, ids in zip(logits, index)])
    total = torch.stack([scores.logsumexp(-1) for scores in logits])
    return logits.gather(-1, index[..., None])[..., 0] - total


def ours(logits, index):
    return flp.selective_log_softmax(logits, index)


def ours_in_place(logits, index):
    return flp.selective_log_softmax(logits, index, inplace_backward=True)


def ours_with_entropy(logits, index):
    return flp.selective_log_softmax(logits, index, entropy=True)


def quack_way(in_place):
    """A way of quack's; where it cannot be imported, one that raises why."""
    function = reason = None
    try:
        function = importlib.import_module("quack.cross_entropy").cross_entropy
    except Exception as error:
        reason = "cannot be imported: " + limits.reason_of(error)

    def way(logits, index):
        if function is None:
            raise ImportError(reason)
        rows = logits.view(-1, logits.shape[-1])
        return -function(rows, index.view(-1), reduction="none", inplace_backward=in_place).view(index.shape)

    return way


def ways():
    """-> {name: way}; torch.compile where torch has it"""
    found = {"flp": ours, "naive": naive, "looped": looped, QUACK: quack_way(False)}
    if hasattr(torch, "compile"):
        torch._dynamo.reset()
        found.update(zip(COMPILED, (torch.compile(naive, dynamic=True), torch.compile(naive, dynamic=False))))
    return found


# ---- the truth, a sequence at a time ----

def exact(logits, index, upstream):
    """-> log-probabilities, entropies and the gradient of scores for upstream, all float64; index (B, T, K)"""
    parts = []
    for scores, ids, weights in zip(logits.detach(), index, upstream):
        logprobs = scores.double().log_softmax(-1)
        probabilities = logprobs.exp()
        gradient = -weights.double().sum(-1, keepdim=True) * probabilities
        gradient.scatter_add_(-1, ids, weights.double())
        parts.append((logprobs.gather(-1, ids), -(probabilities * logprobs).sum(-1), gradient))
    return [torch.stack(values) for values in zip(*parts)]


class Case:
    """The tensors of one dtype. scratch is for whoever overwrites the scores; copies into it are timed, too."""

    def __init__(self, sizes, dtype, device, seed):
        generator = torch.Generator(device=device).manual_seed(seed)
        self.dtype, self.device = dtype, device
        self.logits = data.normal(sizes, 1.0, dtype, device, generator).requires_grad_()
        self.scratch = self.logits.detach().clone().requires_grad_()
        self.index = torch.randint(sizes[-1], (*sizes[:2], INDICES), device=device, generator=generator)
        self.first = self.index[..., 0].contiguous()
        drawn = torch.randn(self.index.shape, device=device, generator=generator)
        self.upstream = drawn.bfloat16().float()  # exact in every dtype that results may have
        self.first_upstream = self.upstream[..., 0].contiguous()
        self.bytes = self.logits.numel() * self.logits.element_size()

    def restored(self):
        """The scratch with the scores in it."""
        with torch.no_grad():
            self.scratch.copy_(self.logits)
        return self.scratch


# ---- correctness ----

def trained(way, logits, index, upstream):
    """-> log-probabilities, and the gradient of logits for upstream"""
    logprob = way(logits, index)
    return logprob.detach(), torch.autograd.grad(logprob, logits, upstream.to(logprob.dtype))[0]


def greatest(values):
    return values.double().abs().max().item()


def bits_of(case, got, known):
    """Counts 16-bit results that differ from the naive form's, whose sums are float32, and those that also differ from
    the 16-bit number nearest to the float64 value or to one MOST_ERROR beside it, as float32 sums are no closer."""
    expected = naive(case.logits.detach(), case.first)
    got, known = got.to(case.dtype), known[..., 0]
    near = torch.stack([(known + shift).to(case.dtype) for shift in (-MOST_ERROR, 0.0, MOST_ERROR)])
    different = got != expected
    return {"different_bits": different.sum().item(), "wrong_bits": (different & (near != got).all(0)).sum().item()}


def errors_of(case, known):
    """-> {way: {"error", "grad_error"}} for one index a row; known: of exact for all INDICES"""
    gradient = exact(case.logits, case.first[..., None], case.first_upstream[..., None])[2]
    scale = greatest(gradient)
    found = {}
    for name, way, logits in (("naive", naive, case.logits), ("flp", ours, case.logits),
                              (IN_PLACE, ours_in_place, case.restored())):
        logprob, got = trained(way, logits, case.first, case.first_upstream)
        found[name] = {"error": greatest(logprob - known[0][..., 0]), "grad_error": greatest(got - gradient) / scale,
                       "from_naive": greatest(logprob - naive(case.logits.detach(), case.first))}
        if case.dtype != torch.float32:
            found[name].update(bits_of(case, logprob, known[0]))
    return found


def errors_of_more(case, known):
    """-> of several indices a row, with the gradient, and of entropy"""
    logprob, got = trained(ours, case.logits, case.index, case.upstream)
    with torch.no_grad():
        _, entropy = ours_with_entropy(case.logits, case.first)
    several = {"error": greatest(logprob - known[0]), "grad_error": greatest(got - known[2]) / greatest(known[2])}
    return {"several": several, "entropy": {"error": greatest(entropy - known[1])}}


# ---- measurement ----

def readers(case):
    """-> {name: (call, bytes it moves)}: ways to read all the scores"""
    scores, scratch = case.logits.detach(), case.scratch.detach()
    found = {"sum": lambda: scores.sum(), "sum of rows": lambda: scores.sum(-1),
             "greatest of rows": lambda: scores.amax(-1), "sum as float32": lambda: scores.view(torch.float32).sum(-1),
             "norm": lambda: torch.linalg.vector_norm(scores)}
    if hasattr(torch, "compile"):
        summed = torch.compile(lambda values: values.sum(-1), dynamic=False)
        found["sum of rows, compiled"] = lambda: summed(scores)
    moved = {"read, " + name: (call, case.bytes) for name, call in found.items()}
    return {**moved, "copy": (lambda: scratch.copy_(scores), 2 * case.bytes)}


def forward_call(way, case):
    def call():
        with torch.no_grad():
            return way(case.logits, case.first)
    return call


def training_call(way, case, logits):
    def call():
        return trained(way, logits, case.first, case.first_upstream)
    return call


def calls_of(case):
    """-> {(pass, name): (call, bytes it moves or None)}"""
    found = ways()
    calls = {("forward", name): (forward_call(way, case), case.bytes) for name, way in found.items()}
    calls["forward", "flp, with entropy"] = forward_call(ours_with_entropy, case), case.bytes
    calls.update({("training", name): (training_call(way, case, case.logits), None) for name, way in found.items()})
    calls["training", IN_PLACE] = training_call(ours_in_place, case, case.scratch), None
    calls["training", QUACK_IN_PLACE] = training_call(quack_way(True), case, case.scratch), None
    calls.update({("read", name): what for name, what in readers(case).items()})
    return calls


def prepared(call, device):
    """The first call, where things compile, then the peak of one -> extra bytes, reason"""
    try:
        call()
        return memory.peak_of(call, device)[1], None
    except Exception as error:
        return None, limits.reason_of(error)


def rows_of(case, options, timer):
    """-> one row a call"""
    calls = calls_of(case)
    subjects, extras = {}, {}
    for key, (call, _) in calls.items():
        subjects[key] = rounds.Subject(key[1], call)
        extras[key], subjects[key].reason = prepared(call, case.device)
    rounds.measure(subjects.values(), timer, options.rounds, options.burst_ms, options.seed)
    rows = []
    for key, (_, moved) in calls.items():
        row = {"dtype": str(case.dtype).split(".")[-1], "pass": key[0], "way": key[1], "ms": None}
        summary = subjects[key].summary()
        if summary is None:
            row["reason"] = subjects[key].reason
        else:
            row.update(zip(("ms", "ms_low", "ms_high"), summary), extra_bytes=extras[key])
            row["gbps"] = moved and 1e-6 * moved / row["ms"]
        rows.append(row)
    return rows


# ---- verdicts ----

def verdict(dtype, what, value, limit, least):
    """One claim: value at least (or at most) limit; None: nothing to judge by."""
    met = None if value is None else value >= limit if least else value <= limit
    return {"dtype": dtype, "what": what, "value": value, "least" if least else "most": limit, "met": met}


def figure(dtype, what, value):
    """What is reported beside the claims, without a limit."""
    return {"dtype": dtype, "what": what, "value": value, "met": None}


def speed_verdicts(dtype, rows, read_gbps):
    """Judges a GPU's rows of one dtype. A failed row of ours meets no claim; without torch.compile there is no
    judgement."""
    by_key = {(row["pass"], row["way"]): row for row in rows}
    forward = by_key["forward", "flp"]
    rate = 0.0 if forward["ms"] is None else forward["gbps"] / read_gbps
    found = [verdict(dtype, "forward, share of the read rate", rate, LEAST_OF_READ_RATE, True)]
    for name, kind, row, least in (("forward", "forward", forward, LEAST_FORWARD_GAIN),
                                   ("in place", "training", by_key["training", IN_PLACE], LEAST_TRAINING_GAIN)):
        gains = {}
        for form in COMPILED:
            other = by_key.get((kind, form), {"ms": None})["ms"]
            gains[form] = 0.0 if row["ms"] is None else other and other / row["ms"]
        extra = row.get("extra_bytes", float("inf"))
        found += [verdict(dtype, "%s, times faster than %s" % (name, POSTS_FORM), gains[POSTS_FORM], least, True),
                  figure(dtype, "%s, times faster than %s" % (name, STATIC_FORM), gains[STATIC_FORM])]
        if kind == "forward":
            rival = by_key.get((kind, STATIC_FORM), {"ms": None})
            found.append(figure(dtype, "forward, the most that the read rate allows over %s" % STATIC_FORM,
                                rival["ms"] and read_gbps / rival["gbps"]))
        found.append(verdict(dtype, "%s, extra bytes" % name, extra, MOST_EXTRA_BYTES, False))
    return found + [quack_figure(dtype, by_key, *key) for key in QUACK_FIGURES if (key[0], key[2]) in by_key]


def quack_figure(dtype, by_key, kind, way, rival):
    """How much longer quack takes for the same; nothing where one of them has no time."""
    ours_ms, its_ms = (by_key.get((kind, name), {"ms": None})["ms"] for name in (way, rival))
    return figure(dtype, "%s of %s, times faster than %s" % (kind, way, rival), ours_ms and its_ms and its_ms / ours_ms)


def error_verdicts(dtype, rows, more):
    """float32: MOST_ERROR, from the naive form and from float64. 16 bits: equal. Gradients: as the naive form's."""
    name, found = str(dtype).split(".")[-1], []
    errors = {row["way"]: row for row in rows if row["pass"] == "training"}
    rounding = torch.finfo(dtype).eps
    for way in ("flp", IN_PLACE):
        if dtype == torch.float32:
            found += [verdict(name, "%s, error" % way, errors[way]["error"], MOST_ERROR, False),
                      verdict(name, "%s, from the naive form" % way, errors[way]["from_naive"], MOST_ERROR, False)]
        else:
            found.append(verdict(name, "%s, wrong bits" % way, errors[way]["wrong_bits"], 0, False))
        most = 2 * errors["naive"]["grad_error"] + rounding
        found.append(verdict(name, "%s, gradient" % way, errors[way]["grad_error"], most, False))
    # Log-probabilities and entropies are below 16 nats: 16-bit results may be rounded by eps · 16.
    most = MOST_ERROR if dtype == torch.float32 else 16 * rounding
    several = more["several"]
    return found + [verdict(name, "%d a row, error" % INDICES, several["error"], most, False),
                    verdict(name, "%d a row, gradient" % INDICES, several["grad_error"], MOST_ERROR + 2 * rounding,
                            False),
                    verdict(name, "entropy, error", more["entropy"]["error"], max(most, 1e-5), False)]


def judged(dtypes, rows, on_gpu):
    """-> all verdicts, from what a record keeps of each dtype and its rows"""
    verdicts = []
    for more in dtypes:
        own = [row for row in rows if row["dtype"] == more["dtype"]]
        verdicts += error_verdicts(getattr(torch, more["dtype"]), own, more)
        if on_gpu:
            verdicts += speed_verdicts(more["dtype"], own, more["read_gbps"])
    return verdicts


# ---- the run ----

def measure_dtype(dtype, options, device, timer):
    """-> rows; the read rate in GB/s with its way, and the errors that belong to no row"""
    case = Case(TINY if options.tiny else FULL, dtype, device, options.seed)
    known = exact(case.logits, case.index, case.upstream)
    errors, more = errors_of(case, known), errors_of_more(case, known)
    del known
    rows = rows_of(case, options, timer)
    for row in rows:
        row.update(errors.get(row["way"], {}) if row["pass"] == "training" else {})
    best = max((row for row in rows if row["pass"] == "read" and row["ms"]), key=lambda row: row["gbps"])
    return rows, {"dtype": rows[0]["dtype"], "way": best["way"], "read_gbps": best["gbps"], **more}


def cells(row):
    if row["ms"] is None:
        return (row["dtype"], row["pass"], row["way"], "-", row["reason"][:60], "-", "-", "-")
    spread = "%.4f .. %.4f" % (row["ms_low"], row["ms_high"])
    return (row["dtype"], row["pass"], row["way"], "%.4f" % row["ms"], spread,
            table.number_text("%.0f", row["gbps"]), table.bytes_text(row["extra_bytes"]),
            table.number_text("%.1e", row.get("error")))


def show(rows, verdicts):
    print("\n".join(table.lines_of([COLUMNS, *map(cells, rows)])))
    for found in verdicts:
        word = {True: "met", False: "NOT MET", None: "not judged"}[found["met"]]
        bound = "".join(" (%s %g)" % (kind, found[kind]) for kind in ("least", "most") if kind in found)
        value = table.number_text("%.4g", found["value"])
        print("%s, %s: %s%s: %s" % (found["dtype"], found["what"], value, bound, word))


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="file for the record; - for standard output")
    parser.add_argument("--judge", metavar="RECORD", help="judge this record again; --json names the new one")
    parser.add_argument("--cpu", action="store_true", help="without a GPU: times say nothing")
    parser.add_argument("--tiny", action="store_true", help="B, T, V = %d, %d, %d" % TINY)
    parser.add_argument("--rounds", type=int, default=9, help="bursts of each call, default %(default)s")
    parser.add_argument("--burst-ms", type=float, default=75.0, help="least length of a burst, default %(default)s")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args(arguments)


def measured(options):
    """-> the record without its verdicts"""
    device = torch.device("cpu" if options.cpu else "cuda")
    timer = clock.HostClock() if options.cpu else clock.CudaClock()
    parts = [measure_dtype(dtype, options, device, timer) for dtype in (torch.float32, torch.bfloat16)]
    command = " ".join(["tests/gpu/selective.py", *(["--cpu"] * options.cpu), *(["--tiny"] * options.tiny)])
    batch, length, vocab = TINY if options.tiny else FULL
    return {**record.head(command, device), "torch": torch.__version__, "batch": batch, "length": length,
            "vocab": vocab, "memory": record.MEMORY, "dtypes": [part[1] for part in parts],
            "rows": [row for part in parts for row in part[0]]}


def refusal(options):
    """Why nothing can be measured here, or None."""
    if not hasattr(flp, "selective_log_softmax"):
        return "this flp has no selective_log_softmax: nothing is measured"
    if not options.cpu and not torch.cuda.is_available():
        return "no GPU is here; --cpu --tiny tries it without"
    return None


def main(arguments):
    options = parse(arguments)
    if options.judge:
        found = json.loads(Path(options.judge).read_text())
    else:
        reason = refusal(options)
        if reason:
            print("selective.py: " + reason, file=sys.stderr)
            return 3
        found = measured(options)
    found["verdicts"] = judged(found["dtypes"], found["rows"], found["gpu"] != "none")
    found["failed"] = sum(one["met"] is False for one in found["verdicts"])
    show(found["rows"], found["verdicts"])
    if options.json:
        record.write(found, options.json)
    return 1 if found["failed"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
