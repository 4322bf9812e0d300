#!/usr/bin/env python3
"""A vocab-parallel head on the GPUs of this machine against one GPU: numbers, traffic and times.

    NCCL_NVLS_ENABLE=0 python3 tests/gpu/tensor_parallel.py --ranks 2 --json tests/gpu/evidence/tensor_parallel_2.json
    python3 tests/gpu/tensor_parallel.py --backend gloo --device cpu --tiny

Every rank makes the whole head and batch of one seed, keeps its shard, and runs each case with flp.parallel; before
that, alone, the whole head with flp.linear_logprob, and the float64 reference of flp.bench for a sample of rows and
columns. Cases: shards of equal size, of sizes R+1 : R : ... : 2, and padded ones; both merges; hidden whole, and
sequence-parallel; some of them with a frozen head too, whose entropy has no gradient (kept_bytes: what a rank's forward
pass keeps, directions where their mode is taken).

The bounds are those of gen/cli/check/compare.c. logprob: 4 ulp of max(|t_y - m|, |logprob|, 1), ulp(max |t|) and twice
the worst error of a score in a product that accumulates in fp32, be it in fp32 units or tensor cores; entropy: likewise, with the errors of scores times
max(1, Σ p·|log p + H|); gradients: relative L2 at most 1.5 times that of dz and result rounded to the dtype, plus 2^-12
(bf16). An error is given as its share of the bound, ours and one GPU's. forward_bytes and backward_bytes are what a
rank gives to collectives. ms: the slowest rank, a median of bursts, scoring alone (forward) and both passes (training).
A case also fails if a second run has other bits, or ranks have different results. Exit status 1 if a case failed.
"""
import argparse
import datetime
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing

sys.path.insert(0, str(Path(__file__).resolve().parent))

import flp  # noqa: E402
from flp.bench import clock, data, record, reference  # noqa: E402
from traffic import traffic  # noqa: E402

LOG_ULP, TINY = 23, {"rows": 24, "vocab": 331, "hidden": 64, "dtype": "fp16", "burst_ms": 1.0, "chunk": 5}
FLOOR = {"bf16": 2**-12, "fp16": 2**-15, "fp32": 2**-20}
FACTOR = {"bf16": 1.5, "fp16": 1.5, "fp32": 2}
BURSTS = 5
OUTPUTS = ("logprob", "entropy", "grad_hidden", "grad_weight")
FROZEN_OUTPUTS = OUTPUTS[:3]


def shards_of(kind, vocab, ranks):
    """[(rows, of which real)] of every rank."""
    if kind == "padded":
        rows = -(-(vocab // ranks + 64) // 64) * 64
        return [(rows, max(0, min(rows, vocab - rank * rows))) for rank in range(ranks)]
    shares = [1] * ranks if kind == "equal" else [ranks + 1 - rank for rank in range(ranks)]
    ends = [vocab * sum(shares[:rank + 1]) // sum(shares) for rank in range(ranks)]
    return [(end - begin, end - begin) for begin, end in zip([0, *ends], ends)]


def ulp(value):
    """Spacing of fp32 at each |value|, a float64 tensor."""
    return torch.exp2(torch.floor(torch.log2(value.abs().clamp_min(2.0**-126))) - LOG_ULP)


def products(hidden, weight):
    """hidden (n,D) · weight (v,D)ᵀ in float32, summed by fp32 units and, of 16 bits on a GPU, by its tensor cores."""
    yield hidden.float() @ weight.float().t()
    if hidden.is_cuda and hidden.dtype != torch.float32:
        yield torch.mm(hidden, weight.t(), out_dtype=torch.float32)


class Rounded(reference.Reference):
    """The reference's gradients as a pipeline of the dtype makes them: dz and results rounded, sums exact."""

    def _grad_scores(self, *arguments):
        return super()._grad_scores(*arguments).to(self.data.hidden.dtype).double()

    def gradient(self, *arguments):
        return super().gradient(*arguments).to(self.data.hidden.dtype).double()


def kept_by(node):
    """Bytes that a call's forward pass keeps for its backward pass; node: of the graph, the call's or a view of it"""
    while not hasattr(node, "saved_tensors"):
        ((node, _),) = node.next_functions
    return sum(tensor.nelement() for tensor in node.saved_tensors if tensor is not None and tensor.dtype is torch.uint8)


class Truth:
    """What results of the sampled rows and columns are held against."""

    def __init__(self, batch, dtype):
        self.batch, self.dtype = batch, dtype
        self.exact = reference.Reference(batch, None, seed=0)
        rounded = Rounded(batch, None, seed=0)
        both = reference.Upstream(batch.grad_logprob, batch.grad_entropy)
        of_logprob = both._replace(entropy=None)
        self.grads = {name: (self.exact.gradient(of, name, upstream), rounded.gradient(of, name, upstream))
                      for name, of, upstream in (("hidden", "hidden", both), ("weight", "weight", both),
                                                 ("frozen", "hidden", of_logprob))}
        self.bounds = self._row_bounds()

    def _row_bounds(self):
        """Bounds of logprob and entropy of the sampled rows."""
        rows, exact = self.exact.rows, self.exact
        hidden = self.batch.hidden[rows]
        top = torch.full((rows.numel(),), -float("inf"), dtype=torch.float64, device=rows.device)
        largest, error, spread = torch.zeros_like(top), torch.zeros_like(top), torch.zeros_like(top)
        for chunk in exact._chunks(rows.numel()):
            scores, _ = exact._scores(hidden.double(), chunk)
            for single in products(hidden, self.batch.weight[chunk]):
                error = torch.maximum(error, (single - scores).abs().amax(1))
            top, largest = torch.maximum(top, scores.amax(1)), torch.maximum(largest, scores.abs().amax(1))
            logp = scores - exact.lse[:, None]
            spread += (logp.exp() * (logp + exact.entropy[:, None]).abs()).sum(1)
        scores_err = ulp(largest) + 2 * error
        distance = torch.maximum((exact.logprob + exact.lse - top).abs(), exact.logprob.abs())
        size = torch.maximum(exact.entropy, exact.lse - top)
        return {"logprob": 4 * ulp(distance.clamp_min(1)) + scores_err,
                "entropy": 4 * ulp(size.clamp_min(1)) + spread.clamp_min(1) * scores_err}

    def rows_of_bound(self, name, values):
        """The largest error of logprob or entropy, as a share of its bound."""
        exact = getattr(self.exact, name)
        return ((values[self.exact.rows].double() - exact).abs() / self.bounds[name]).max().item()

    def gradient_of_bound(self, name, got, at):
        """The relative L2 error of a gradient at some of the sampled rows or columns, as a share of its bound."""
        exact, rounded = (grad[at] for grad in self.grads[name])
        norm = exact.norm().clamp_min(1e-300)
        bound = FACTOR[self.dtype] * (rounded - exact).norm() / norm + FLOOR[self.dtype]
        return ((got.double() - exact).norm() / norm / bound).item()


class Bench:
    """One rank's half of the measurement."""

    def __init__(self, rank, options):
        self.rank, self.options = rank, options
        self.device = torch.device(options.device, rank) if options.device == "cuda" else torch.device("cpu")
        self.batch = data.Data(options, data.Head(options, self.device), options.rows, self.device)
        self.clock = clock.CudaClock() if options.device == "cuda" else clock.HostClock()
        self.truth = Truth(self.batch, options.dtype)
        self.alone, self.alone_ms = {}, {}
        for frozen in (False, True):
            given = self.whole_head(frozen), self.batch.hidden, self.batch.weight, frozen
            self.alone[frozen], self.alone_ms[frozen] = self.results(*given), self.times(*given)

    def whole_head(self, frozen):
        return lambda hidden, weight: flp.linear_logprob(hidden, weight, self.batch.target,
                                                         entropy="detached" if frozen else True)

    def leaves(self, hidden, weight, frozen):
        return hidden.detach().clone().requires_grad_(), weight.detach().clone().requires_grad_(not frozen)

    def differentiate(self, results, frozen):
        """The backward pass, of the log-probabilities and, unless the head is frozen, the entropies."""
        upstream = [self.batch.grad_logprob, self.batch.grad_entropy]
        torch.autograd.backward(list(results)[:2 - frozen], upstream[:2 - frozen])

    def results(self, call, hidden, weight, frozen):
        """One forward and backward pass -> logprob, entropy, dh, dW or None, what each pass sent, bytes kept"""
        hidden, weight = self.leaves(hidden, weight, frozen)
        with traffic() as forward:
            logprob, entropy = call(hidden, weight)
        kept = kept_by(logprob.grad_fn)
        with traffic() as backward:
            self.differentiate((logprob, entropy), frozen)
        return logprob.detach(), entropy.detach(), hidden.grad, weight.grad, forward, backward, kept

    def times(self, call, hidden, weight, frozen):
        """ms of scoring, of both passes, and the peak of both in bytes above what was there."""
        hidden, weight = self.leaves(hidden, weight, frozen)

        def score():
            with torch.no_grad():
                call(hidden, weight)

        def train():
            hidden.grad = weight.grad = None
            self.differentiate(call(hidden, weight), frozen)

        return [self.median(score), self.median(train), self.peak(train)]

    def median(self, call):
        call()
        # The number of repeats must be the same on every rank.
        repeats = clock.repeats_for(self.clock.burst(call, 1), self.options.burst_ms)
        repeats = max(self.gathered(repeats))
        bursts = []
        for _ in range(BURSTS):
            dist.barrier()
            bursts.append(self.clock.burst(call, repeats) / repeats)
        return statistics.median(bursts)

    def peak(self, call):
        if self.device.type != "cuda":
            return None
        call()
        held = torch.cuda.memory_allocated(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        call()
        return torch.cuda.max_memory_allocated(self.device) - held

    def gathered(self, value):
        """The values of all ranks."""
        values = [None] * self.options.ranks
        dist.all_gather_object(values, value)
        return values

    def case(self, kind, merge, sequence, frozen):
        """Runs one case -> its row of the record, the same on every rank"""
        shards, n = shards_of(kind, self.options.vocab, self.options.ranks), self.options.rows
        rows, real = shards[self.rank]
        first = sum(shard[1] for shard in shards[:self.rank])
        weight = self.batch.weight.new_zeros(rows, self.options.hidden)
        weight[:real] = self.batch.weight[first:first + real]
        own = slice(self.rank * n // self.options.ranks, (self.rank + 1) * n // self.options.ranks)
        hidden = self.batch.hidden[own] if sequence else self.batch.hidden
        place = {"vocab_offset": first, "vocab_valid": real, "vocab_total": self.options.vocab}

        def call(hidden, weight):
            return flp.parallel.linear_logprob(
                hidden, weight, self.batch.target, entropy="detached" if frozen else True, merge=merge, **place,
                sequence_parallel=self.options.chunk if sequence else False)

        results = self.results(call, hidden, weight, frozen)
        again = self.results(call, hidden, weight, frozen)
        shares = self.shares(results, own if sequence else slice(0, n), slice(first, first + real), frozen)
        same_bits = all(torch.equal(left, right) for left, right in zip(results[:4 - frozen], again[:4 - frozen]))
        sums = results[0].double().sum().item(), results[1].double().sum().item()
        reports = self.gathered([shares, same_bits, sums, self.times(call, hidden, weight, frozen)])
        return self.row((kind, merge, sequence, frozen), results, reports)

    def shares(self, results, own_rows, own_columns, frozen):
        """Errors as shares of their bounds: of this rank's results, and of one GPU's at the same places."""
        logprob, entropy, dh, dw = results[:4]
        rows, columns = self.truth.exact.rows, self.truth.exact.columns
        at_rows = (rows >= own_rows.start) & (rows < own_rows.stop)
        at_columns = (columns >= own_columns.start) & (columns < own_columns.stop)
        row, column = rows[at_rows] - own_rows.start, columns[at_columns] - own_columns.start
        alone, which = self.alone[frozen], "frozen" if frozen else "hidden"
        out = {}
        for name, values, single in (("logprob", logprob, alone[0]), ("entropy", entropy, alone[1])):
            out[name] = [self.truth.rows_of_bound(name, values), self.truth.rows_of_bound(name, single)]
        out["grad_hidden"] = [self.truth.gradient_of_bound(which, dh[row], at_rows),
                              self.truth.gradient_of_bound(which, alone[2][rows[at_rows]], at_rows)]
        if not frozen:
            out["grad_weight"] = [self.truth.gradient_of_bound("weight", dw[column], at_columns),
                                  self.truth.gradient_of_bound("weight", alone[3][columns[at_columns]], at_columns)]
        out["logprob_beside_one_gpu"] = (logprob - alone[0]).abs().max().item()
        return out

    def row(self, case, results, reports):
        shares, same_bits, sums, times = zip(*reports)
        kind, merge, sequence, frozen = case
        outputs = FROZEN_OUTPUTS if frozen else OUTPUTS
        # The maximum of a tensor keeps a NaN.
        worst = {name: torch.tensor([share[name] for share in shares]).amax(0).tolist() for name in outputs}
        out = {"case": kind, "merge": merge, "sequence_parallel": sequence, "ranks": self.options.ranks,
               "frozen": frozen, "kept_bytes": results[6], "kept_bytes_one_gpu": self.alone[frozen][6]}
        out.update({name + "_error_of_bound": worst[name][0] for name in outputs})
        out.update({name + "_error_of_bound_one_gpu": worst[name][1] for name in outputs})
        out["logprob_largest_difference_from_one_gpu"] = max(share["logprob_beside_one_gpu"] for share in shares)
        out["same_bits_again"], out["same_on_every_rank"] = all(same_bits), len(set(sums)) == 1
        for name, sent in (("forward", results[4]), ("backward", results[5])):
            out[name + "_bytes"] = sum(torch.Size(shape).numel() * torch.finfo(dtype).bits // 8
                                       for _, _, shape, dtype in sent)
            out[name + "_collectives"] = ["%s%s %s" % (what, " " + op if op else "", list(shape))
                                          for what, op, shape, _ in sent[:4]]
        for index, name in enumerate(("forward_ms", "training_ms", "peak_bytes")):
            out[name] = None if times[0][index] is None else max(time[index] for time in times)
            out[name + "_one_gpu"] = self.alone_ms[frozen][index]
        out["failed"] = not (all(worst[name][0] <= 1 for name in outputs) and all(same_bits) and len(set(sums)) == 1)
        return out


def work(rank, options, store, out):
    """A rank: all cases; rank 0 writes the rows to a file."""
    if options.device == "cuda":
        torch.cuda.set_device(rank)
    else:
        torch.set_num_threads(1)
    dist.init_process_group(options.backend, init_method="file://" + store, rank=rank, world_size=options.ranks,
                            timeout=datetime.timedelta(minutes=5))
    bench, rows = Bench(rank, options), []
    for case in options.cases:
        start = time.time()
        rows.append(bench.case(*case))
        if rank == 0:
            show(rows[-1], time.time() - start)
    if rank == 0:
        torch.save({"rows": rows, "head": record.head("", bench.device)}, out)
    dist.destroy_process_group()


def show(row, seconds):
    errors = ["%s %.2f" % (short, row[name + "_error_of_bound"])
              for name, short in zip(OUTPUTS, ("logprob", "entropy", "dh", "dW")) if name + "_error_of_bound" in row]
    print("%-7s %-6s %s%s  %s  %s of the bound; %.3f, %.3f ms, %d bytes kept (%.0f s)" % (
        row["case"], row["merge"], "sequence" if row["sequence_parallel"] else "whole   ",
        " frozen" if row["frozen"] else "       ", "FAILED" if row["failed"] else "ok", "  ".join(errors),
        row["forward_ms"], row["training_ms"], row["kept_bytes"], seconds), flush=True)


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--backend", default="nccl")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--dtype", default="bf16", choices=sorted(FLOOR))
    parser.add_argument("--rows", type=int, default=8192)
    parser.add_argument("--vocab", type=int, default=151936)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--chunk", type=int, default=1024, help="rows of a rank in a sequence-parallel chunk")
    parser.add_argument("--burst-ms", type=float, default=300.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tiny", action="store_true", help="a small problem in fp16, which any gloo sends")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args(arguments)
    if options.tiny:
        vars(options).update(TINY)
    options.bias = False
    options.data, options.op = "random", "head"
    if options.ranks < 2 or options.rows % options.ranks:
        parser.error("--ranks: %d: at least 2, and a divisor of the %d rows" % (options.ranks, options.rows))
    if 2.0 * options.rows * options.vocab * options.hidden > reference.AFFORDABLE_FLOPS:
        parser.error("--rows, --vocab, --hidden: too large for a float64 reference of the weight's gradient")
    options.cases = [(kind, merge, sequence, False) for kind in ("equal", "uneven", "padded")
                     for merge, sequence in (("sum", False), ("gather", False), ("sum", True))]
    options.cases += [("equal", "sum", False, True), ("uneven", "gather", False, True), ("padded", "sum", True, True)]
    return options


def main(arguments=None):
    options = parse(arguments)
    words = ["tests/gpu/tensor_parallel.py", *(sys.argv[1:] if arguments is None else arguments)]
    if options.json:
        words = [word for word in words if word not in ("--json", options.json)]
    with tempfile.TemporaryDirectory() as folder:
        out = str(Path(folder) / "rows")
        torch.multiprocessing.start_processes(work, (options, str(Path(folder) / "store"), out), options.ranks,
                                              start_method="forkserver")
        done = torch.load(out)
    failed = sum(row["failed"] for row in done["rows"])
    sizes = {name: getattr(options, name) for name in ("ranks", "dtype", "vocab", "hidden", "chunk")}
    if options.json:
        record.write({**done["head"], "command": " ".join(words), "torch": torch.__version__, "n": options.rows,
                      **sizes, "failed": failed, "rows": done["rows"]}, options.json)
    print("%d cases, %d failed" % (len(done["rows"]), failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
