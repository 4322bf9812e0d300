"""The order of a run: load everyone, then for each number of rows make data, check everyone once, and time all.

Invariants: whatever a peer raises becomes the reason in its row; ours runs through the same steps as a peer; a peer's
first calls, where it compiles, are bounded by its allowance, and its errors and memory are taken before the rounds.
"""
import contextlib
import gc
import sys
import time

import torch

from . import baseline, cases, clock, data, limits, memory, ours, pairs, peers, record, reference, rounds, sharp

# Least share of a run's seconds for the rounds of one number of rows; preparation ends before.
ROUNDS_SHARE = 0.3
# Fields of a row that only a measured one fills.
FIGURES = ("ms", "ms_low", "ms_high", "bare_ms", "ratio", "first_ms", "first_ratio", "tflops", "extra_bytes",
           "result_bytes", "logprob_error","entropy_error", "loss_error", "grad_hidden_error", "grad_weight_error")


class Contender:
    """A peer, or ours, in this run: its adapter, version, allowance, and why it is out."""

    def __init__(self, peer, seconds):
        self.peer = peer
        self.allowance = limits.Allowance(seconds)
        self.version = self.reason = None

    def attempt(self, step, clock_used=None):
        """Runs a step within the allowance -> its result, or None with the reason set. error: ContextLost"""
        limits.announce(self.peer.name)
        try:
            with self.allowance.spend():
                return step(), None
        except (Exception, limits.OutOfTime) as error:
            reason = limits.reason_of(error, self.allowance.seconds)
        if clock_used is not None:
            try:
                clock_used.synchronize()
            except Exception as lost:
                raise limits.ContextLost(self.peer.name, reason) from lost
        return None, reason

    def load(self, skip):
        self.reason = skip.get(self.peer.name)
        if self.reason is None:
            self.version, self.reason = self.attempt(self.peer.load)

    def state(self):
        peer = self.peer
        return {"peer": peer.name, "title": peer.title, "version": self.version, "note": peer.note,
                "reason": self.reason, "install": peer.install}


class Entry:
    """One contender in one case: the call that is timed, and what was found out about it beforehand."""

    def __init__(self, contender, case, tensors, batch=None):
        self.contender, self.case, self.batch = contender, case, batch
        self.subject = rounds.Subject(contender.peer.name, self.training if case.grads else self.scoring)
        self.found = {}
        self.hidden = tensors.hidden.detach().requires_grad_("hidden" in case.grads)
        self.weight = tensors.weight.detach().requires_grad_("weight" in case.grads)
        self.operands = (self.hidden, self.weight, *tensors.others(case, self.weight))
        self.inputs = [leaf for leaf in (self.hidden, self.weight) if leaf.requires_grad]
        if case.grads:
            self.upstream = batch.upstream if batch else tensors.upstream(case, contender.peer.any_upstream)

    def scoring(self):
        with torch.no_grad():
            return self.contender.peer.run(*self.operands, self.case), ()

    def step(self):
        """A step by a loss; where a buffer takes the weight's gradient, that is what it has gathered."""
        peer, case = self.contender.peer, self.case
        buffer = peer.buffer(self.weight, case)
        inputs = self.inputs if buffer is None else self.inputs[:-1]
        result = peer.step(*self.operands, self.batch, case)
        grads = torch.autograd.grad(result.loss, inputs) if inputs else ()
        return result, grads if buffer is None else (*grads, buffer)

    def training(self):
        if self.batch:
            return self.step()
        result = self.contender.peer.run(*self.operands, self.case)
        if result.loss is not None:
            return result, torch.autograd.grad(result.loss, self.inputs)
        pairs = [(output, grad.to(output.dtype)) for output, grad in zip(result, self.upstream) if grad is not None]
        outputs, grads = zip(*pairs)
        return result, torch.autograd.grad(outputs, self.inputs, grads)

    def prepare(self, exact, clock_used, device):
        """The first calls: compiles, checks, takes the memory. error: TooSlow, and whatever the peer raises"""
        with in_this_thread():
            self.subject.call()
        clock_used.synchronize()
        gathered = self.contender.peer.buffer(self.weight, self.case)
        if gathered is not None:
            gathered.zero_()
        (result, grads), peak = memory.peak_of(self.subject.call, device)
        self.found = {"extra_bytes": peak, "result_bytes": memory.bytes_of((result, grads))}
        of_batch = self.batch and self.case.op == cases.HEAD
        self.found.update(self.loss_errors(result, exact) if of_batch else errors_of(result, exact))
        self.found.update(self.gradient_errors(grads, exact))
        self.found.update(self.contender.peer.details(*self.operands, self.case))
        if self.case.op == cases.DIVERGE:
            self.found.update(divergence=exact.mean)
        limits.check_pace(clock_used.burst(self.subject.call, 1))

    def loss_errors(self, result, exact):
        expected = self.batch.exact_loss(exact)
        return {"loss_error": None if expected is None else abs(result.loss.item() - expected)}

    def gradient_errors(self, grads, exact):
        found = {}
        for leaf, grad in zip(self.case.grads, grads):
            key = (self.contender.peer.any_upstream, self.case.entropy == "backward", self.case.loss)
            expected = exact.gradient(leaf, key, self.upstream)
            at = exact.rows if leaf == "hidden" else exact.columns
            found["grad_%s_error" % leaf] = None if expected is None else reference.relative_error(grad[at], expected)
        return found

    def row(self, baselines, done, rows):
        """The record of this entry. baselines: (the fastest, the first), each milliseconds or None; rows: what they are
        of"""
        case, peer = self.case, self.contender.peer
        row = {"case": case.name, "peer": peer.name, "N": case.n, "D": case.hidden, "V": case.vocab,
               "dtype": case.dtype, "entropy": case.entropy, "grads": list(case.grads), "gemms": case.gemms, **rows}
        if case.loss:
            row.update(loss=case.loss, accumulate=case.accumulate)
        if case.loss == cases.CROSS_ENTROPY:
            row.update(label_smoothing=cases.SMOOTHING, z_loss=cases.Z_LOSS)
        if case.policy:
            row.update(policy=case.policy)
        if case.op == cases.DIVERGE:
            row.update(op=case.op, teacher_D=case.teacher, one_head=case.one_head, payload=case.payload,
                       divergence=None, divergence_error=None)
        row.update(dict.fromkeys(FIGURES), bare_ms=baselines[0], first_ms=baselines[1])
        summary = self.subject.summary()
        if summary is None:
            row["reason"] = self.subject.reason or "not measured"
            return row
        row.update(self.found)
        row.update(zip(("ms", "ms_low", "ms_high"), summary), rounds=done, tflops=1e-9 * case.flops / summary[0],
                   upstream=None if not case.grads else "loss" if case.loss else "rows" if peer.any_upstream else "mean")
        row["ratio"], row["first_ratio"] = (None if ms is None else row["ms"] / ms for ms in baselines)
        return row


def in_this_thread():
    """Backward passes in the calling thread, where a time limit can end them."""
    choose = getattr(torch.autograd, "set_multithreading_enabled", None)  # absent before torch 2.0
    return contextlib.nullcontext() if choose is None else choose(False)


def errors_of(result, exact):
    """Largest errors over the sampled rows."""
    found = {}
    if result.logprob is not None:
        found["logprob_error"] = reference.largest_error(result.logprob[exact.rows], exact.logprob)
    if result.entropy is not None:
        found["entropy_error"] = reference.largest_error(result.entropy[exact.rows], exact.entropy)
    if result.loss is not None and exact.mean_loss is not None:
        found["loss_error"] = abs(result.loss.item() - exact.mean_loss)
    if result.divergence is not None:
        found["divergence_error"] = reference.largest_error(result.divergence[exact.rows], exact.divergence)
    return found


class Run:
    """One run of the command. known: contenders by class that earlier runs of this process have loaded and compiled"""

    def __init__(self, options, command, known=None):
        self.options, self.command, self.known = options, command, {} if known is None else known
        self.device = torch.device(options.device)
        if self.device.type == "cuda":
            self.device = torch.device("cuda", self.device.index or 0)
            torch.cuda.set_device(self.device)
        self.clock = clock.CudaClock() if self.device.type == "cuda" else clock.HostClock()
        self.begun = time.monotonic()
        self.rows, self.baseline = [], []

    def say(self, text):
        if not self.options.quiet:
            print("flp.bench: %4.0f s: %s" % (time.monotonic() - self.begun, text), file=sys.stderr, flush=True)

    def contenders(self):
        """Ours first, then the peers asked for."""
        own = (ours.FlpDivergence,) if self.options.op == cases.DIVERGE else \
            (ours.Flp,) if self.options.tail is None else (ours.Flp, ours.FlpTail)
        chosen = [*own, *(peer for peer in peers.of(self.options.op) if peer.name in self.options.peers)]
        for peer in chosen:
            if peer not in self.known:
                contender = self.known[peer] = Contender(peer(), self.options.peer_seconds)
                contender.load(self.options.skip)
                self.say("%s: %s" % (peer.name, contender.version or contender.reason))
            self.known[peer].allowance = limits.Allowance(self.options.peer_seconds)
        loaded = [self.known[peer] for peer in chosen]
        if loaded[0].reason:
            raise limits.Unavailable("flp cannot run: " + loaded[0].reason)
        return loaded

    def prepared(self, contender, case, tensors, exact, batch, deadline):
        """An entry that is ready for the rounds, or has its reason."""
        entry = Entry(contender, case, tensors, batch)
        reason = contender.reason or contender.peer.supports(case, self.device)
        if reason is None and contender.allowance.left <= 0:
            reason = limits.reason_of(limits.OutOfTime(), contender.allowance.seconds)
        if reason is None and time.monotonic() > deadline:
            reason = "the time of this run was over before its turn (--seconds)"
        if reason is None:
            self.say("%s, %s, %s%s" % (contender.peer.name, case.name, case.loss or "entropy " + case.entropy,
                                       "".join(", " + grad for grad in case.grads)))
            _, reason = contender.attempt(lambda: entry.prepare(exact, self.clock, self.device), self.clock)
            if reason is not None and self.device.type == "cuda":
                torch.cuda.empty_cache()
        entry.subject.reason = reason
        return entry

    def products(self, tensors, wanted):
        """The GEMM baselines that the cases need, or None."""
        if not self.options.baseline:
            return None
        names = [name for name in (*cases.PRODUCTS, cases.TEACHER_SCORES)
                 if any(name in case.products for case in wanted)]
        products = baseline.Baselines(tensors, names, self.device)
        products.choose(self.clock, self.options.seed)
        return products

    def measure_rows(self, head, n, loaded, deadline):
        """All cases of one number of rows."""
        tensors = data.Data(self.options, head, n, self.device)
        exact = pairs.Reference(tensors, self.options.seed) if tensors.teacher else \
            reference.Reference(tensors, self.options.softcap, self.options.seed)
        wanted = cases.cases_of(self.options, n)
        end_of_preparing = deadline - ROUNDS_SHARE * (deadline - time.monotonic())
        batches = {case.loss: tensors.batch(case, exact) for case in wanted if case.reads_batch}
        entries = [self.prepared(contender, case, tensors, exact.of(case, batches.get(case.loss)),
                                 batches.get(case.loss), end_of_preparing) for contender in loaded for case in wanted]
        products = self.products(tensors, wanted)
        subjects = [entry.subject for entry in entries] + (list(products.subjects.values()) if products else [])
        self.say("N=%d: %d rounds of %d subjects" % (n, self.options.rounds,
                                                    sum(subject.reason is None for subject in subjects)))
        done = rounds.measure(subjects, self.clock, self.options.rounds, self.options.burst_ms, self.options.seed,
                              deadline)
        entropy = exact.entropy if exact.entropy_all is None else exact.entropy_all
        rows = {"data": self.options.data, "entropies": sharp.quantiles(entropy)}
        self.rows += [entry.row(products.both_ms(entry.case) if products else (None, None), done, rows)
                      for entry in entries]
        self.baseline += products.rows() if products else []

    def record(self):
        """Runs everything -> the record. error: ContextLost, Unavailable"""
        loaded = self.contenders()
        counts = self.options.rows
        try:
            head = data.Head(self.options, self.device)
            for i, n in enumerate(counts):
                now = time.monotonic()
                deadline = now + (self.begun + self.options.seconds - now) / (len(counts) - i)
                self.measure_rows(head, n, loaded, deadline)
                gc.collect()  # entries and their calls hold each other, and the tensors of this n
        except torch.cuda.OutOfMemoryError as error:
            raise limits.Unavailable("no memory for the data: " + limits.reason_of(error)) from error
        result = record.head(self.command, self.device)
        result.update(torch=torch.__version__, burst_ms=self.options.burst_ms, rounds=self.options.rounds,
                      seed=self.options.seed, memory=record.MEMORY, bare=self.baseline,
                      peers=[contender.state() for contender in loaded], rows=self.rows)
        return result
