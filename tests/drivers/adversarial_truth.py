"""The operation in float64 beside bounds of what a rung may err by.

Bounds. Products accumulate in fp32, which may truncate: a raw score errs by (D + 8)·2^-23·Σ|h·w|, times scale/T in t;
what scales it and what is stored in fp32 errs relative to |t|. With d the worst of a row, a logprob errs by 2·d, a
probability by the factor e^(2·d), and a gradient by what its terms do, each of which is rounded to the operands' dtype.
Rows are classed as flp.h has them: left out (0), bad (NaN, counted, nothing to other gradients), beyond 2^30 octaves
(NaN, counted), not a number (NaN), near the limit or an overflow (not looked at), or a value.
"""
import numpy

LOG2E = 1.4426950408889634
LIMIT = 2.0**30
LEFT_OUT, BAD, BEYOND, NAN, UNKNOWN, VALUE = range(6)
STEP = {"bf16": 2.0**-8, "fp16": 2.0**-11, "fp32": 2.0**-21}
LEAST = {"bf16": 1e-37, "fp16": 2.0**-24, "fp32": 1e-37}
ROOM = {"bf16": 1e37, "fp16": 6e4, "fp32": 1e37}  # below what overflows


class Truth:
    """Scores, rows and their classes of a case; columns count over all shards."""

    def __init__(self, case, is_kernel=False):
        self.case, self.is_kernel = case, is_kernel
        with numpy.errstate(all="ignore"):
            self.score()
            self.classify()
            self.reduce()

    def score(self):
        case, total = self.case, self.case.total
        weight, bias = case.weight[:total], case.bias[:total]
        x = case.hidden @ weight.T + bias
        size = numpy.abs(case.hidden) @ numpy.abs(weight.T) + numpy.abs(bias)
        cap, scale = case.shape.softcap, case.scale
        self.temperature = case.temperature.astype(numpy.float64)[:, None]
        raw_error = abs(scale) * size * (case.shape.depth + 8) * 2.0**-23
        z, slope, bend_error = scale * x, numpy.full_like(x, scale), numpy.zeros_like(x)
        if cap:
            bent = numpy.tanh(z / cap)
            slope = scale * (1 - bent) * (1 + bent)
            bend_error = abs(scale) * numpy.minimum(2.0**-19 + 4 * raw_error / cap, 1)
            raw_error = numpy.minimum(raw_error, 2 * cap) + cap * 2.0**-20
            z = cap * bent
        self.t, self.slope = z / self.temperature, slope / self.temperature
        self.bend_error = bend_error / self.temperature
        self.d = raw_error / self.temperature + numpy.abs(self.t) * 2.0**-21

    def classify(self):
        case, n = self.case, self.case.n
        top = self.t.max(1, initial=-numpy.inf, where=~numpy.isnan(self.t)) * LOG2E
        finite = numpy.where(numpy.isfinite(self.t), self.t, 0)
        unit = (case.shape.softcap or case.scale) * LOG2E / self.temperature[:, 0]
        self.kind = numpy.full(n, VALUE)
        self.kind[numpy.isnan(self.t).any(1) | (top == numpy.inf)] = NAN
        within = (self.kind == VALUE)
        self.kind[within & ((top > LIMIT) | (top <= -LIMIT))] = BEYOND
        error = numpy.where(numpy.isfinite(self.d), self.d, 0).max(1)
        near = numpy.abs(numpy.abs(top) / LIMIT - 1) < 1e-2 + error / LIMIT
        # a NaN beside scores beyond the limit is counted by none or all; what overflows in fp32 is not told
        loose = (numpy.abs(finite).max(1) > 1e36) | ((numpy.abs(top) > 0.5 * LIMIT) & (self.kind == NAN))
        self.kind[near | loose] = UNKNOWN
        if self.is_kernel and case.shape.dtype == "fp32":  # three bf16 terms a number: those of an infinity are NaN
            self.kind[numpy.isinf(case.hidden).any(1)] = UNKNOWN
        bad = (case.target < 0) | (case.target >= case.total) | ~(case.temperature > 0) | numpy.isinf(case.temperature)
        self.kind[bad | ~numpy.isfinite(unit.astype(numpy.float32))] = BAD
        self.kind[(case.target == case.ignore) | ~self.listed()] = LEFT_OUT

    def listed(self):
        case = self.case
        if case.rows is None:
            return numpy.ones(case.n, bool)
        out = numpy.zeros(case.n, bool)
        out[case.rows[(case.rows >= 0) & (case.rows < case.n)]] = True
        return out

    def bad_ids(self):
        rows = self.case.rows
        return 0 if rows is None else int(((rows < 0) | (rows >= self.case.n)).sum())

    def counted(self, live=None):
        """(least, most) that flp_plan_check reports. live: rows with upstream gradients, for the backward pass, which
        knows scores by forward's stats alone."""
        bad = (self.kind == BAD) & (True if live is None else live)
        counts = (self.kind == BEYOND).sum(), numpy.isin(self.kind, (BEYOND, UNKNOWN)).sum()
        beyond = counts if live is None else (0, 0)
        return tuple(int(bad.sum() + count + self.bad_ids()) for count in beyond)

    def reduce(self):
        case, n = self.case, self.case.n
        t = numpy.where((self.kind == VALUE)[:, None], self.t, 0)
        top = t.max(1, keepdims=True)
        self.lse = (top + numpy.log(numpy.exp(t - top).sum(1, keepdims=True)))
        self.w = t - self.lse
        self.p = numpy.exp(self.w)
        self.entropy = -(self.p * numpy.where(self.p > 0, self.w, 0)).sum(1)
        inside = numpy.clip(case.target, 0, case.total - 1)
        self.logprob = self.w[numpy.arange(n), inside]
        finite = numpy.where(numpy.isfinite(self.t), self.d, 0)
        # scores of no probability may err as they like, if that does not bring them up
        reach = self.w + 2 * numpy.where(numpy.isfinite(self.d), self.d, 0) > -110
        reach[numpy.arange(n), inside] = True
        size = numpy.where(numpy.isfinite(self.logprob), numpy.abs(self.logprob), 0)
        self.error = numpy.where(reach, finite, 0).max(1) * 2 + 2.0**-20 * (2 + size)
        self.entropy_error = self.error * (3 + numpy.log(case.total)) + 2.0**-18

    def score_gradients(self, g, e, kept):
        """dx of Σ g·logprob + e·entropy and its bound, of live rows; others 0."""
        bend = self.bend_error
        if kept and self.case.shape.softcap:
            # tanh from the logarithm of an exponential in bf16, off by up to r = 2^-9·T/cap; within 2·r of 1 it counts
            # as 1 (kept.lua), so a slope of up to 2·3·r is taken for 0
            bend = bend + abs(self.case.scale) * 3 * 2.0**-8 / self.case.shape.softcap
        one = numpy.zeros_like(self.p)
        one[numpy.arange(len(one)), numpy.clip(self.case.target, 0, self.case.total - 1)] = 1
        g, e, h = g[:, None], e[:, None], self.entropy[:, None]
        w = numpy.where(self.p > 0, self.w, 0)
        at_target = numpy.where(one > 0, -g * numpy.expm1(self.w), 0)
        dt = numpy.where(one > 0, at_target, -g * self.p) - e * self.p * (w + h)
        error = numpy.minimum(self.error, 300)[:, None]
        high = numpy.minimum(numpy.minimum(self.p * numpy.exp(2 * error), 1) + 1e-37, 1)
        swing = high - self.p * numpy.exp(-2 * error)
        reach = numpy.abs(w) + h + 2 * error + self.entropy_error[:, None]
        bound = numpy.abs(g) * (swing + one * 2.0**-22)
        bound += numpy.abs(e) * (swing * reach + high * 3 * self.entropy_error[:, None])
        bound += numpy.abs(dt) * 2.0**-18
        dx = dt * self.slope
        return dx, bound * numpy.abs(self.slope) + (numpy.abs(dt) + bound) * bend

    def gradients(self, g, e, live, first, count, kept):
        """{name: (value, bound)} of the columns first to first + count; rows that are not live give nothing. None where
        dz overflows the operands' dtype. kept: stream mode, which rounds exponentials, what is made of them and rows."""
        roundings = 3 if kept else 1
        case, dtype = self.case, self.case.shape.dtype
        with numpy.errstate(all="ignore"):
            live = live & (self.kind == VALUE)
            g, e = (numpy.where(live, x, 0).astype(float) for x in (g, e))
            dx, bound = self.score_gradients(g, e, kept)
            dx, bound = (numpy.where(live[:, None], x, 0)[:, first:first + count] for x in (dx, bound))
            bound = bound + roundings * STEP[dtype] * (numpy.abs(dx) + bound) + LEAST[dtype] * live[:, None]
            if not (numpy.abs(dx) + bound < ROOM[dtype]).all():
                return None
            hidden, weight = numpy.where(live[:, None], case.hidden, 0), case.weight[first:first + count]
            terms = (numpy.abs(dx) + bound) * 2.0**-23 * (count + case.n + 8)
            spread = bound + terms
            return {"hidden": (dx @ weight, spread @ numpy.abs(weight)),
                    "weight": (dx.T @ hidden, spread.T @ numpy.abs(hidden)),
                    "bias": (dx.sum(0), spread.sum(0))}
