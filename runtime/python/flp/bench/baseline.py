"""The GEMM baselines of a case: torch.matmul on the same operands, by each of torch's cuBLAS backends, and the fastest
of the algorithms that cuBLASLt's heuristics name first.

A case's yardstick is the fastest of all these, and beside it the first: torch.matmul, by cuBLASLt where there is a
choice, which takes the very first algorithm.

Invariants: the backend is set for one call and put back, so peers run torch as they would elsewhere; where the scores
do not fit beside everything else, a product is timed on the first columns of the vocab and its time scaled to all.
"""
import functools

import torch

from . import cases, cublaslt, limits
from .rounds import Subject, measure

BACKENDS = ("cublas", "cublaslt")
FIRST = BACKENDS[1]
BEST_OF = "cublaslt, best of %d"
# Choosing an algorithm: bursts of each, and their least length.
CHOICE_ROUNDS, CHOICE_MS = 3, 20.0
# Share of the free memory for the scores: peers that hold scores themselves need the rest.
SCORES_SHARE = 0.25
COLUMN_STEP = 1024


def backends_of(device):
    """Names that torch.backends.cuda.preferred_blas_library takes; ("default",) where there is no choice."""
    if device.type == "cuda" and hasattr(torch.backends.cuda, "preferred_blas_library"):
        return BACKENDS
    return ("default",)


def under(backend, product):
    """The product as a call under one backend."""
    if backend == "default":
        return product

    def call():
        choose = torch.backends.cuda.preferred_blas_library
        before = choose()
        choose(backend)
        try:
            return product()
        finally:
            choose(before)

    return call


def columns_that_fit(n, vocab, element_bytes, device):
    """V, or the largest multiple of 1024 columns whose scores take a share of the free memory; at least 1024."""
    if device.type != "cuda":
        return vocab
    free, _ = torch.cuda.mem_get_info(device)
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    columns = int(SCORES_SHARE * (free + cached)) // (n * element_bytes)
    return vocab if columns >= vocab else min(vocab, max(COLUMN_STEP, columns // COLUMN_STEP * COLUMN_STEP))


def fastest(calls, clock, seed):
    """The call whose bursts, in another random order each round, have the least median. error: Failed if none runs"""
    subjects = [Subject("bare, " + BEST_OF % len(calls), call) for call in calls]
    measure(subjects, clock, CHOICE_ROUNDS, CHOICE_MS, seed)
    timed = [subject for subject in subjects if subject.samples]
    if not timed:
        raise cublaslt.Failed(", ".join(subject.reason for subject in subjects) or "no algorithm runs")
    return min(timed, key=Subject.summary).call


class Baselines:
    """The products that some cases of one number of rows need, as subjects of the rounds."""

    def __init__(self, data, names, device):
        self.n, self.vocab = data.hidden.shape[0], data.weight.shape[0]
        self.depth = data.hidden.shape[1]
        self.columns = columns_that_fit(self.n, self.vocab, data.hidden.element_size(), device)
        weight = data.weight[:self.columns]
        scores = torch.empty(self.n, self.columns, dtype=data.hidden.dtype, device=device)
        outputs = {"grad_hidden": data.hidden, "grad_weight": weight}
        made = {name: torch.empty_like(outputs[name]) for name in names if name in outputs}
        self.depth_of = {cases.TEACHER_SCORES: data.teacher.hidden.shape[1]} if cases.TEACHER_SCORES in names else {}
        self.operands = {"scores": (data.hidden, weight.t(), scores),
                         "grad_hidden": (scores, weight, made.get("grad_hidden")),
                         "grad_weight": (scores.t(), data.hidden, made.get("grad_weight"))}
        if self.depth_of:
            self.operands[cases.TEACHER_SCORES] = (data.teacher.hidden, data.teacher.weight[:self.columns].t(), scores)
        products = {name: functools.partial(torch.matmul, left, right, out=out)
                    for name, (left, right, out) in self.operands.items()}
        products["scores"]()  # the gradients' operand must not be what the memory held
        self.names, self.device = names, device
        self.subjects = {(name, backend): Subject("bare %s, %s" % (name, backend), under(backend, products[name]))
                         for name in names for backend in backends_of(device)}

    def choose(self, clock, seed):
        """Adds the fastest of cuBLASLt's first algorithms; without the library, a subject that has its reason."""
        for name in self.names if self.device.type == "cuda" else ():
            key, call, reason = (name, BEST_OF % cublaslt.ALGORITHMS_MOST), None, None
            try:
                calls = cublaslt.Product(cublaslt.Library(), *self.operands[name]).calls()
                key = (name, BEST_OF % len(calls))
                call = fastest(calls, clock, seed)
            except (OSError, ValueError, AttributeError, cublaslt.Failed) as error:
                reason = limits.reason_of(error)
            self.subjects[key] = Subject("bare %s, %s" % key, call)
            self.subjects[key].reason = reason

    def best_ms(self, name):
        """Median of the fastest way over all columns, or None."""
        return next((row["ms"] for row in self.rows() if row["product"] == name and row["best"]), None)

    def first_ms(self, name):
        """Median of torch.matmul, by cuBLASLt where there is a choice, or None."""
        rows = {row["backend"]: row["ms"] for row in self.rows() if row["product"] == name}
        return rows.get(FIRST, rows.get("default"))

    def case_ms(self, case, of_product=None):
        """The products of a case together, or None if one of them has no figure; the fastest, or what is asked for."""
        times = [((of_product or self.best_ms)(name), count) for name, count in case.products.items()]
        return None if any(ms is None for ms, _ in times) else sum(ms * count for ms, count in times)

    def both_ms(self, case):
        """(the fastest, the first) of a case."""
        return self.case_ms(case), self.case_ms(case, self.first_ms)

    def rows(self):
        """One record a product and backend."""
        scale = self.vocab / self.columns
        out = []
        for (name, backend), subject in self.subjects.items():
            row = {"product": name, "backend": backend, "N": self.n, "measured_vocab": self.columns, "ms": None}
            summary = subject.summary()
            if summary is None:
                row["reason"] = subject.reason or "not measured"
            else:
                row.update(zip(("ms", "ms_low", "ms_high"), (scale * ms for ms in summary)))
                row["tflops"] = 2e-9 * self.n * self.depth_of.get(name, self.depth) * self.vocab / row["ms"]
            out.append(row)
        for row in out:
            others = [other["ms"] for other in out if other["product"] == row["product"] and other["ms"] is not None]
            row["best"] = row["ms"] is not None and row["ms"] == min(others)
        return out
