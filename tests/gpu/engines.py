#!/usr/bin/env python3
"""Log-probabilities as a rollout engine reports them, beside vLLM's own functions on this machine's GPU.

    FLP_LIBRARY=build/release/lib/libflp.so python3 tests/gpu/engines.py --json tests/gpu/evidence/engines.json
    ... --cpu       without a GPU, at small sizes: torch stands in for vLLM's kernels

On PYTHONPATH is vLLM, or of its wheel the file vllm/v1/worker/gpu/sample/logprob.py alone. Prompts of policy rows are
scored: the token's log-probability, its rank, the best K tokens.

  vllm    bf16 scores of 1024 rows at a time, then compute_topk_scores, as its PromptLogprobsWorker does
  flp     one flp.linear_logprob, as flp.adapters.vllm calls it

Times are medians of interleaved bursts, `peak_bytes` what torch's allocator held above what was there before, results
included; `error` is the greatest against float64, in nats, of some rows. `different_bits`: log-probabilities and ranks
of decode steps of 1, 7, 64 and 256 rows that are not those of the one call. `failed` counts the rows that break a
limit. Exit status 0 if none does, 1 if one does, 3 without a GPU.
"""
import collections
import hashlib
import importlib
import inspect
import sys
import types
from pathlib import Path

import torch

TREE = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TREE / "runtime" / "python"), str(Path(__file__).resolve().parent)]
import flp  # noqa: E402
import ways  # noqa: E402
from flp.bench import clock, memory, rounds, sharp  # noqa: E402

FULL, TINY = (8192, 151936, 4096), (300, 1024, 64)  # rows, V, D
CHUNK_ROWS = 1024  # vLLM's CHUNK_SIZE
STEPS = (1, 7, 64, 256)
MODULE = "vllm.v1.worker.gpu.sample.logprob"
NEEDED = {"vllm.sampling_params": ("MAX_LOGPROB_TOKEN_IDS", "SamplingParams"), "vllm.triton_utils": (),
          "vllm.v1.outputs": (), "vllm.v1.worker.gpu.buffer_utils": ("StagedWriteTensor", "UvaBackedTensor")}
Tensors = collections.namedtuple("LogprobsTensors", "logprob_token_ids logprobs selected_token_ranks "
                                 "cu_num_generated_tokens cu_num_generated_tokens_tensor")
LIMITS = {"of_vllm_ms": 0.9, "of_vllm_peak": 0.6, "error": 2e-4, "different_bits": 0}


def vllm_function():
    """compute_topk_scores, of a vLLM that is installed, or of its file alone."""
    for name, needed in NEEDED.items():
        try:
            importlib.import_module(name)
        except ImportError:
            sys.modules[name] = module = types.ModuleType(name)
            vars(module).update(dict.fromkeys(needed, object), LogprobsTensors=Tensors)
            if name == "vllm.triton_utils":
                module.triton, module.tl = importlib.import_module("triton"), importlib.import_module("triton.language")
    return importlib.import_module(MODULE).compute_topk_scores


def in_torch(logits, k, target):
    """What that gives, where its kernels cannot run."""
    logprobs = logits.float().log_softmax(-1)
    ids = torch.cat([target[:, None], logits.topk(k).indices], 1)
    ranks = (logits >= logits.gather(1, target[:, None])).sum(1)
    return Tensors(ids, logprobs.gather(1, ids), ranks, None, None)


class Operands:
    """hidden (N, D), weight (V, D) and target (N), as sharp as a policy's."""

    def __init__(self, sizes, device):
        n, vocab, depth = sizes
        options = types.SimpleNamespace(vocab=vocab, hidden=depth, dtype="bf16", data="policy", seed=1, bias=False,
                                        softcap=None, device=str(device))
        made = sharp.make(options, n, device)
        self.hidden, self.weight, self.target = made["hidden"], made["weight"], made["target"]

    def theirs(self, reduce, k):
        found = [reduce(torch.nn.functional.linear(hidden, self.weight), k, target) for hidden, target in
                 zip(self.hidden.split(CHUNK_ROWS), self.target.split(CHUNK_ROWS))]
        return [torch.cat(values) for values in zip(*(each[:3] for each in found))]

    def ours(self, k, rows=slice(None)):
        logprob, *top, rank = flp.linear_logprob(self.hidden[rows], self.weight, self.target[rows], topk=k, rank=True)
        return [None, torch.cat([logprob[:, None], *(each.logprobs for each in top)], 1), rank.long() + 1]

    def error_of(self, logprobs):
        """Of the tokens of some rows."""
        rows = torch.linspace(0, len(self.target) - 1, ways.CHECKED_ROWS, device=self.target.device).long()
        scores = self.hidden[rows].double() @ self.weight.double().t()
        want = scores.log_softmax(1).gather(1, self.target[rows, None])
        return (logprobs[rows, :1].double() - want).abs().max().item()


def judged(row):
    return {**row, "failed": [name for name, limit in LIMITS.items() if name in row and not row[name] <= limit]}


def compared(operands, reduce, k, device):
    """-> a row: times, peaks and errors of both"""
    calls = {"vllm": lambda: operands.theirs(reduce, k), "flp": lambda: operands.ours(k)}
    subjects, row = [rounds.Subject(name, call) for name, call in calls.items()], {"case": "prompts", "k": k}
    for name, call in calls.items():
        call()
        made, peak = memory.peak_of(call, device)
        row.update({name + "_error": operands.error_of(made[1]), name + "_peak_bytes": peak})
        row[name + "_ranks"] = int(made[2].sum())
    rounds.measure(subjects, clock.CudaClock() if device.type == "cuda" else clock.HostClock(), 9, 75.0, 1)
    for subject in subjects:
        row[subject.name + "_ms"], row[subject.name + "_ms_low"], row[subject.name + "_ms_high"] = subject.summary()
    row["error"] = row["flp_error"]
    if device.type == "cuda":
        row.update({"of_vllm_" + what: row["flp_" + name] / row["vllm_" + name]
                    for what, name in (("ms", "ms"), ("peak", "peak_bytes"))})
    return judged(row)


def bits(operands):
    """-> a row: decode steps beside one call"""
    whole, different = operands.ours(20), 0
    for n in STEPS:
        for first in (0, len(operands.target) - n):
            part = operands.ours(20, slice(first, first + n))
            different += sum((one != all_[first:first + n]).sum().item() for one, all_ in zip(part[1:], whole[1:]))
    return judged({"case": "steps of %s rows" % ", ".join(map(str, STEPS)), "different_bits": different,
                   "contract": flp.contract(operands.weight)})


def rows_of(sizes, device):
    operands = Operands(sizes, device)
    reduce = vllm_function() if device.type == "cuda" else in_torch
    source = hashlib.sha256(inspect.getsource(reduce).encode()).hexdigest()[:16]
    rows = [{**compared(operands, reduce, k, device), "vllm_source": source} for k in (0, 20)]
    flp.check()
    return [*rows, bits(operands)]


def line_of(row):
    if "k" not in row:
        return "%(case)s: %(different_bits)d different bits; %(contract)s:" % row
    return ("K %(k)d: vLLM %(vllm_ms).2f ms, %(vllm_peak_bytes)s bytes, error %(vllm_error).1e; flp %(flp_ms).2f, "
            "%(flp_peak_bytes)s, %(flp_error).1e:" % row)


if __name__ == "__main__":
    sys.exit(ways.judge("engines.py", __doc__, (FULL, TINY), rows_of, line_of))
