"""Hostile scores through flp_select, beside float64: rows of NaN, infinities and equal numbers, scores up to the limit
of 2^30 octaves and beyond, repeated and bad targets, upstream gradients of 0."""
import ctypes

import numpy

from adversarial_case import narrowed, pick, widened
from adversarial_truth import LEAST, LIMIT, LOG2E, ROOM, STEP

DTYPES = {"bf16": 1, "fp16": 2, "fp32": 3, "fp64": 6}
HEADS = (("bf16", 1000), ("fp64", 130), ("fp16", 33), ("fp32", 257))
UNIT = {"fp64": 2.0**-46}  # of fp32 and narrower: 2^-20


def draw_scores(random, n, vocab, dtype):
    z = random.standard_normal((n, vocab)) * pick(random, 1e-3, 1, 10, 1e3)
    for row in range(n):
        kind = pick(random, "plain", "plain", "plain", "equal", "some -inf", "sharp", "large", "nan", "inf", "-inf")
        at = random.integers(vocab)
        if kind == "equal":
            z[row] = z[row, 0]
        elif kind == "some -inf":
            z[row, random.random(vocab) < 0.5] = -numpy.inf
        elif kind == "sharp":
            z[row, at] = 1e3
        elif kind == "large" and dtype != "fp16":
            z[row] *= pick(random, 1e4, 1e9)
        elif kind in ("nan", "inf"):
            z[row, at] = float(kind)
        elif kind == "-inf":
            z[row] = -numpy.inf
    return z if dtype == "fp64" else narrowed(z, dtype)[1]


class Select:
    """One problem, its truth and its calls."""

    def __init__(self, library, random, number, failed):
        self.l, self.c, self.failed, self.values = library, library.c, failed, 0
        self.dtype, self.vocab = HEADS[number % len(HEADS)]
        self.n, self.k = int(random.integers(1, 9)), int(random.integers(1, 5))
        self.z = draw_scores(random, self.n, self.vocab, self.dtype)
        self.temperature = float(pick(random, 1, 0.7, 1e-3, 1e-6, 1e6))
        self.ignore = int(pick(random, -100, 0, self.vocab - 1))
        self.target = random.integers(0, self.vocab, (self.n, self.k))
        special = numpy.array([self.ignore, -1, self.vocab, -2**63, 2**63 - 1])
        replaced = random.random((self.n, self.k)) < 0.2
        self.target[replaced] = special[random.integers(0, len(special), replaced.sum())]
        self.g, self.e = random.standard_normal((self.n, self.k)), random.standard_normal(self.n)
        self.g[random.random((self.n, self.k)) < 0.3] = 0
        self.e[random.random(self.n) < 0.3] = 0
        self.pad = int(pick(random, 0, 8))
        self.kind = numpy.float64 if self.dtype == "fp64" else numpy.float32
        self.g, self.e = self.kind(self.g), self.kind(self.e)
        with numpy.errstate(all="ignore"):
            self.truth()

    def truth(self):
        wide = self.dtype == "fp64"
        t = self.z / self.temperature
        nan = numpy.isnan(t).any(1) | (t == numpy.inf).any(1)
        top = numpy.where(nan, 0, t.max(1))
        self.wanted = (self.target != self.ignore).any(1)
        outside = (numpy.abs(top) * LOG2E > LIMIT) if not wide else numpy.isinf(top)
        self.near = ~nan & (not wide) & (numpy.abs(numpy.abs(top) * LOG2E / LIMIT - 1) < 1e-3)
        self.dead = nan | outside
        most = numpy.abs(numpy.where(numpy.isfinite(t), t, 0)).max(1) * LOG2E
        self.loose = self.near | (nan & (most > 0.5 * LIMIT))  # with a NaN beside them, counted or not
        self.beyond = outside & ~nan & self.wanted & (not wide)
        t = numpy.where(self.dead[:, None], 0, t)
        top = t.max(1, keepdims=True)
        self.w = t - top - numpy.log(numpy.exp(t - top).sum(1, keepdims=True))
        self.p = numpy.exp(self.w)
        self.entropy = -(self.p * numpy.where(self.p > 0, self.w, 0)).sum(1)
        unit = UNIT.get(self.dtype, 2.0**-20)
        size = numpy.where(self.w > -110, numpy.abs(t), 0).max(1)
        self.error = unit * (4 + 2 * size)
        self.bad = (self.target != self.ignore) & ((self.target < 0) | (self.target >= self.vocab))
        inside = numpy.clip(self.target, 0, self.vocab - 1)
        self.logprob = numpy.take_along_axis(self.w, inside, 1)
        self.logprob = numpy.where(self.dead[:, None] | self.bad, numpy.nan, self.logprob)
        self.logprob = numpy.where(self.target == self.ignore, 0, self.logprob)
        self.entropy = numpy.where(self.wanted, numpy.where(self.dead, numpy.nan, self.entropy), 0)

    def plan(self):
        key = ("select", self.dtype, self.vocab)
        if key not in self.l.plans:
            c, spec, options, plan = self.c, self.c.new_spec(), self.c.new_options(), ctypes.c_void_p()
            spec.op, spec.dtype, spec.vocab, spec.entropy = c.OP_SELECT, DTYPES[self.dtype], self.vocab, 2
            spec.alignment = 8 if self.dtype == "fp64" else 4 if self.dtype == "fp32" else 2
            options.device, options.rung = (c.DEVICE_HOST, 0) if self.l.rung == "eager" else (0, c.RUNG_JIT)
            self.l.check(self.l.lib.flp_plan_create(spec, options, plan))
            self.l.plans[key] = plan
        return self.l.plans[key]

    def run(self):
        args, l = self.c.SelectArgs(), self.l
        args.struct_bytes, args.n, args.k = ctypes.sizeof(args), self.n, self.k
        stored = self.z if self.dtype == "fp64" else narrowed(self.z, self.dtype)[0]
        scores, target = l.matrix(stored, self.pad), l.copied(self.target, numpy.int64)
        widths = {"logprob": self.k, "entropy": 1, "stats": 3}
        out = {name: l.array(self.n * width, self.kind) for name, width in widths.items()}
        args.scores, args.scores_stride, args.target = scores.ctypes.data, self.vocab + self.pad, target.ctypes.data
        args.temperature, args.ignore_index = self.temperature, self.ignore
        for name, array in out.items():
            setattr(args, name, array.ctypes.data)
        setattr(args, "pass", self.c.PASS_FORWARD)
        l.check(l.lib.flp_select(self.plan(), args))
        least = int(self.bad.sum() + (self.beyond & ~self.near).sum())
        self.count(least, least + int((self.loose & self.wanted).sum()))
        known = ~self.near
        logprob, room = out["logprob"].reshape(self.n, self.k), self.error * (3 + numpy.log(self.vocab))
        self.compare("logprob", logprob[known], self.logprob[known], self.error[known, None], 1)
        self.compare("entropy", out["entropy"][known], self.entropy[known], room[known], 1)
        self.backward(args, stored)

    def backward(self, args, stored):
        l = self.l
        grads = l.array(self.n * (self.vocab + self.pad), stored.dtype)
        held = l.copied(self.g, self.kind), l.copied(self.e, self.kind)
        setattr(args, "pass", self.c.PASS_BACKWARD)
        args.entropy, args.grad_logprob, args.grad_entropy = None, held[0].ctypes.data, held[1].ctypes.data
        args.grad_scores, args.grad_scores_stride = grads.ctypes.data, self.vocab + self.pad
        l.check(l.lib.flp_select(self.plan(), args))
        self.count(0, int(self.bad.sum()))
        grads = grads.reshape(self.n, -1)
        if not (grads[:, self.vocab:].view(numpy.uint8) == 0xFF).all():
            raise self.failed("grad_scores: what stands between rows was written")
        got = grads[:, :self.vocab] if self.dtype == "fp64" else widened(grads[:, :self.vocab], self.dtype)
        with numpy.errstate(all="ignore"):
            want, bound = self.gradients()
            size = numpy.abs(numpy.nan_to_num(want)) + numpy.nan_to_num(bound)
            known = ~self.near & (size < ROOM.get(self.dtype, 1e300)).all(1)
        self.compare("grad_scores", got[known], want[known], bound[known], 0)

    def gradients(self):
        """NaN where a gradient is asked of a row or a target that has no number."""
        g = numpy.where(self.target == self.ignore, 0, self.g.astype(float))
        e = numpy.where(self.wanted, self.e.astype(float), 0)[:, None]
        asked = (g != 0).any(1) | (e[:, 0] != 0)
        lost = ((g != 0) & numpy.isnan(self.logprob)).any(1) | (asked & self.dead)
        here, size = numpy.zeros_like(self.p), numpy.zeros_like(self.p)
        for row, i in zip(*numpy.nonzero(~self.bad & (g != 0))):
            here[row, self.target[row, i]] += g[row, i]
            size[row, self.target[row, i]] += abs(g[row, i])
        h, w = numpy.nan_to_num(self.entropy)[:, None], numpy.where(self.p > 0, self.w, 0)
        want = (here - g.sum(1, keepdims=True) * self.p - e * self.p * (w + h)) / self.temperature
        error = numpy.minimum(self.error, 300)[:, None]
        swing = numpy.minimum(self.p * numpy.exp(2 * error), 1) - self.p * numpy.exp(-2 * error) + 1e-37
        high = numpy.minimum(self.p * numpy.exp(2 * error), 1)
        unit = UNIT.get(self.dtype, 2.0**-20)
        bound = (size + numpy.abs(g).sum(1, keepdims=True)) * (swing + unit * (self.p + (size > 0)))
        reach = numpy.abs(w) + h + 2 * error + 1
        bound += numpy.abs(e) * (swing * reach + high * error * (4 + numpy.log(self.vocab)))
        bound = bound / self.temperature
        bound += STEP.get(self.dtype, 2.0**-46) * (numpy.abs(want) + bound) + LEAST.get(self.dtype, 1e-300) * 2
        want = numpy.where(asked[:, None], want, 0)
        return numpy.where(lost[:, None], numpy.nan, want), numpy.where(asked[:, None], bound, 0)

    def count(self, least, most):
        status, detail = self.l.lib.flp_plan_check(self.plan(), None), self.l.lib.flp_error_detail().decode()
        count = int(detail.split()[0]) if status == 11 else 0
        if status not in (0, 11) or not least <= count <= most:
            raise self.failed(f"flp_select counts {count} bad rows, not {least} to {most}: {detail}")

    def compare(self, what, got, want, allowed, relative):
        got, allowed = got.astype(float), numpy.broadcast_to(allowed, got.shape)
        self.values += got.size
        with numpy.errstate(invalid="ignore"):
            room = allowed * numpy.maximum(1, numpy.abs(want)) if relative else allowed
            wrong = ~((got == want) | (numpy.abs(got - want) <= room) | (numpy.isnan(got) & numpy.isnan(want)))
        if wrong.any():
            at = tuple(int(i[0]) for i in numpy.nonzero(wrong))
            raise self.failed(f"flp_select of {self.dtype}, V {self.vocab}, T {self.temperature}: {what}{list(at)} is "
                              f"{got[at]:.9g}, in float64 {want[at]:.9g}, allowed {allowed[at]:.3g}")
