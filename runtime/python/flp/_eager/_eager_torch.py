"""The eager rung for device tensors: the same passes as chunked torch operations on the tensor's own device.

Formulas, in log2 units as flp_args.stats has them, with x = h·Wᵀ + b, t = r·x (softcap: t = r·tanh(k·x)):
    m = max t;  s = Σ 2^(t−m);  q = Σ 2^(t−m)·(t−m);  logprob = ln2·((t_y − m) − log2 s);  H = ln2·(log2 s − q/s)
    w = t − m − log2 s;  p = 2^w;  dz = [p·(α + β·w) + g·δ_y + v/V] / T,  α = u − g − e·H,  β = −e·ln2
for upstream gradients g of logprob, e of the entropy, u of lse and v of the mean score.
Products are fp32; scores and sums fp64, because t near 1e4 in fp32 has lost three digits of t − m.
Shapes: tiles of TILE_ROWS active rows by TILE_COLUMNS vocab columns, always of this size (short ones are padded with
zero rows), so that a row's bits do not depend on N, on its position or on the budget. Tiles fold in column order.
This rung counts the active rows on the host, so it synchronises once a pass and cannot be captured in a CUDA graph.
"""
import contextlib
import math

import torch

from .. import errors
from .._library import _c
from .._tensors import _check, _mixed
from . import _eager_top

TILE_ROWS, TILE_COLUMNS = 256, 2048
LOG2E, LN2 = math.log2(math.e), math.log(2)
# Beyond this largest score in log2 units float32 tells no scores apart (FLP_SCORE_LIMIT): the row is NaN, and counted.
LIMIT = 2.0**30
LOWEST = -LIMIT  # the maximum of no columns: far above -inf, whose product with 0 is NaN


def _precision_setting():
    """The setting that keeps cuBLAS from rounding fp32 operands to TF32: attribute and value."""
    try:
        torch.backends.cuda.matmul.fp32_precision  # since torch 2.9
    except (AttributeError, AssertionError):  # before 2.0 an unknown attribute is an AssertionError
        return "allow_tf32", False
    return "fp32_precision", "ieee"


_PRECISION = _precision_setting()


@contextlib.contextmanager
def _plain_products(tensor):
    """fp32 products keep fp32 precision and dtype whatever autocast and TF32 settings are in force."""
    name, plain = _PRECISION
    before = getattr(torch.backends.cuda.matmul, name) if tensor.is_cuda else plain
    if before != plain:
        setattr(torch.backends.cuda.matmul, name, plain)
    try:
        with torch.autocast(tensor.device.type, enabled=False), torch.no_grad():
            yield
    finally:
        if before != plain:
            setattr(torch.backends.cuda.matmul, name, before)


class _Scores:
    """Tiles of scores of one problem, and what turns products into log2 units. active, bad: of _classify; total: ids of
    the vocabulary"""

    def __init__(self, plan, ops, settings, upstream=(), counts=True):
        n, self.depth = ops.hidden.shape
        self.ops, self.settings = ops, settings
        self.columns, self.tile_columns = settings.valid or ops.weight.shape[0], TILE_COLUMNS
        self.total = settings.total or settings.offset + self.columns
        self.active, self.bad = _classify(plan, n, ops.target, ops.temperature_rows, ops.rows, settings, self.total,
                                          upstream, counts)
        active = self.active
        unit = (settings.softcap if settings.softcap else settings.scale) * LOG2E
        temperature = settings.temperature if ops.temperature_rows is None else ops.temperature_rows[active]
        self.inverse = torch.ones(active.numel(), dtype=torch.float64, device=active.device) / temperature
        self.row_scale = self.inverse * unit
        self.cap_in = settings.scale / settings.softcap if settings.softcap else None
        ids = by_row(ops.target.long()[active])
        self.ignored = ids == settings.ignore_index
        self.local = (ids - settings.offset).masked_fill(self.ignored, -1)  # (active, K)
        self.block = torch.zeros((TILE_ROWS, self.depth), dtype=torch.float32, device=active.device)

    def row_tiles(self, begin=0, end=None):
        end = self.active.numel() if end is None else end
        return [(first, min(first + TILE_ROWS, end)) for first in range(begin, end, TILE_ROWS)]

    def column_tiles(self):
        return [(first, min(first + self.tile_columns, self.columns))
                for first in range(0, self.columns, self.tile_columns)]

    def weight(self, columns):
        return self.rows_of_weight(slice(*columns))

    def rows_of_weight(self, columns):
        """Those of a slice or of ids, in float32, as products take them."""
        return _mixed.tile(self.ops, self.settings, self.ops.weight[columns])

    def hidden(self, rows):
        """The tile's hidden rows in fp32, padded with zero rows."""
        count = rows[1] - rows[0]
        self.block[:count] = self.ops.hidden[self.active[rows[0]:rows[1]]]
        self.block[count:] = 0
        return self.block

    def raw(self, hidden, weight, columns):
        """x of one tile, padding rows included."""
        x = hidden @ weight.t()
        if self.ops.bias is not None:
            x += self.ops.bias[columns[0]:columns[1]].float()
        return x

    def log2_units(self, x, row_scale):
        """t of raw scores (their last axis the columns, or one score a row) in float64."""
        x = x.double()
        if self.cap_in is not None:
            x = torch.tanh(x * self.cap_in)
        return x * row_scale

    def at_target(self, rows, columns):
        """Which of the rows' targets are in these columns, and their columns, clamped, as an index; (rows, K) both."""
        column = self.local[rows[0]:rows[1]] - columns[0]
        inside = (column >= 0) & (column < columns[1] - columns[0])
        return inside, column.clamp(0, columns[1] - columns[0] - 1)


def by_row(values):
    """(N,K) of (N), where K is 1, or of (N,K)."""
    return values if values.dim() == 2 else values.unsqueeze(1)


def _classify(plan, n, target, temperature_rows, rows, settings, total, upstream=(), counts=True):
    """Sorts rows into active ids, and a mask of bad ones; counts bad rows and bad row ids in the error word, unless an
    earlier pass of the same call has."""
    left_out, bad, bad_ids = sort_rows(n, target, temperature_rows, rows, settings, total, upstream)
    if counts:
        count_bad(plan, bad.sum() + bad_ids)
    return torch.nonzero(~left_out & ~bad).flatten(), bad


def sort_rows(n, target, temperature_rows, rows, settings, total, upstream=()):
    """-> masks of rows that are left out and, of the others, of bad ones; how many ids of rows are bad."""
    ignored = by_row(target == settings.ignore_index)
    left_out = ignored.all(1)
    bad_ids = 0
    if rows is not None:
        known = (rows >= 0) & (rows < n)
        bad_ids = (~known).sum()
        listed = torch.zeros(n, dtype=torch.bool, device=target.device)
        listed[rows[known].long()] = True
        left_out = left_out | ~listed
    given = [grad for grad in upstream if grad is not None]
    if given:
        asked = [by_row(grad != 0) for grad in given]
        left_out = left_out | ~torch.stack([(of & ~ignored if of.shape == ignored.shape else of).any(1)
                                            for of in asked]).any(0)
    bad = (by_row((target < 0) | (target >= total)) & ~ignored).any(1)
    if temperature_rows is not None:
        bad = bad | ~_check.usable(temperature_rows, settings.softcap, settings.scale)
    return left_out, bad & ~left_out, bad_ids


def count_bad(plan, bad):
    """Adds to the error word; strict: raises if it is not 0."""
    if plan.bad_rows is None:
        with torch.inference_mode(False):  # later calls add to it
            plan.bad_rows = torch.zeros((), dtype=torch.int64, device=bad.device)
    plan.bad_rows += bad
    if plan.in_force.strict:
        check(plan)


def check(plan):
    """Raises DataError with the count of bad rows and row ids since the last check; synchronises."""
    if plan.bad_rows is None:
        return
    count = int(plan.bad_rows)
    plan.bad_rows.zero_()
    refuse_bad(count)


def refuse_bad(count):
    """Raises DataError if a number of bad rows and row ids is not 0."""
    if count:
        raise errors.DataError("%d %s bad values (accepted: target ids inside the vocabulary, row ids inside N, "
                               "temperatures finite and > 0, largest scores within 7.4e8)" %
                               (count, "row or row id held" if count == 1 else "rows or row ids held"))


def _smallest_bytes(which, n, depth):
    """Bytes without which a pass cannot do: one weight tile, a hidden tile and its gather, one score tile in float32 and
    up to five in float64; backward one more of each gradient."""
    tiles = 4 * (TILE_COLUMNS * depth + 2 * TILE_ROWS * depth) + (4 + 5 * 8) * TILE_ROWS * TILE_COLUMNS
    more = 4 * TILE_COLUMNS * depth + 4 * TILE_ROWS * depth if which == _c.PASS_BACKWARD else 0
    return tiles + 64 * n + more


def workspace_bytes(plan, which, n, depth, budget):
    """Bytes that a pass takes; budget: 0 for that of the plan. error: BudgetError naming the smallest that would do"""
    smallest, budget = _smallest_bytes(which, n, depth), budget or plan.in_force.budgets[which]
    if smallest > budget:
        raise errors.BudgetError("budget is %d bytes (accepted: at least %d for %d rows of depth %d)"
                                 % (budget, smallest, n, depth))
    if which != _c.PASS_BACKWARD:
        return smallest
    extra = min((budget - smallest) // (4 * TILE_ROWS * depth), max(0, -(-n // TILE_ROWS) - 1))
    return smallest + extra * 4 * TILE_ROWS * depth


def _fold(scores, best=None, total=None):
    """The forward sweep -> m, s, q (active) float64 and the targets' raw scores (active, K) float32. best: _eager_top.Best,
    which sees every tile, or None; total: (active) float64 that all scores in log2 units are added to, or None"""
    count, device = scores.active.numel(), scores.active.device
    m = torch.full((count,), -math.inf, dtype=torch.float64, device=device)
    s = torch.zeros_like(m)
    q = torch.zeros_like(m)
    zy = torch.full(scores.local.shape, -math.inf, dtype=torch.float32, device=device)
    for columns in scores.column_tiles():
        weight = scores.weight(columns)
        for rows in scores.row_tiles():
            part = slice(*rows)
            x = scores.raw(scores.hidden(rows), weight, columns)[:rows[1] - rows[0]]
            inside, column = scores.at_target(rows, columns)
            zy[part] = torch.where(inside, x.gather(1, column), zy[part])
            t = scores.log2_units(x, scores.row_scale[part].unsqueeze(1))
            if best is not None:
                best.add(part, columns, t)
            if total is not None:
                total[part] += t.sum(1)
            t = t.clamp_min(LOWEST)
            top = t.max(1, keepdim=True).values
            t -= top
            e = torch.exp2(t)
            m[part], s[part], q[part] = _merge((m[part], s[part], q[part]),
                                               (top.squeeze(1), e.sum(1), (e * t).sum(1)))
    return m, s, q, zy


def _merge(left, right):
    """Two (m, s, q) as one; the shift inside q keeps Σ 2^(t−m)·(t−m) free of cancellation."""
    m = torch.maximum(left[0], right[0])
    s, q = torch.zeros_like(m), torch.zeros_like(m)
    for part_m, part_s, part_q in (left, right):
        shift = torch.where(part_s == 0, torch.zeros_like(m), part_m - m)
        factor = torch.exp2(shift)
        s = s + part_s * factor
        q = q + (part_q + shift * part_s) * factor
    return m, s, q


def _settle(m, s, q):
    """The same sums about the maximum as fp32 holds it, which is how it is stored."""
    stored = m.float().double()
    shift = m - stored
    factor = torch.exp2(shift)
    return stored, s * factor, (q + shift * s) * factor


def _finish_rows(plan, m, s, q, ty, ignored):
    """-> stats (active, 4), and logprobs (active, K) of several targets, 0 where one is ignored, else None. ty, the
    targets' scores in log2 units, ignored: (active, K)"""
    record = _finish(plan, m, s, q, ty[:, 0])
    if ty.shape[1] == 1:
        return record, None
    lost = record[:, 0].isnan()
    m, s, _ = _settle(m, s, q)
    logprobs = (LN2 * ((ty - m.unsqueeze(1)) - torch.log2(s).unsqueeze(1))).clamp_max(0).float()
    logprobs = logprobs.masked_fill(lost.unsqueeze(1), math.nan).masked_fill(ignored, 0)
    record[:, 2] = torch.where(lost, record[:, 0], torch.zeros_like(record[:, 0]))
    return record, logprobs


def is_beyond(m, is_nan):
    """Whether a row's largest score m is beyond the limit, or not above the lowest in a row without a NaN."""
    return (m > LIMIT) | (m <= LOWEST) & ~is_nan


def _finish(plan, m, s, q, ty):
    """m, s, q and the target's score in log2 units -> stats (active, 4) float32."""
    m, s, q = _settle(m, s, q)
    beyond = is_beyond(m, s.isnan())
    count_bad(plan, (beyond & (m < math.inf)).sum())
    log2_s = torch.log2(s)
    logprob = (LN2 * ((ty - m) - log2_s)).clamp_max(0)
    entropy = (LN2 * (log2_s - q / s)).clamp_min(0)
    stats = torch.stack([m, log2_s, logprob, entropy], 1)
    return torch.where(beyond.unsqueeze(1), torch.full_like(stats, math.nan), stats).float()


def _write(active, bad, record, logprob, entropy, stats, logprobs=None):
    """Scatters the active rows' record, and logprobs of several targets; inactive rows get 0, bad ones NaN."""
    for out, values in ((logprob, record[:, 2] if logprobs is None else logprobs), (entropy, record[:, 3]), (stats, record)):
        if out is not None:
            out.zero_()
            out[bad] = math.nan
            out[active] = values


def forward(plan, ops, settings, logprob, entropy, stats, top=None, mean=None):
    """Fills logprob (N), entropy (N) or None, stats (N,4) or None, top, _top.Outputs or None, and mean (N) or None, the
    mean score in nats -> ids of the active rows, and a mask of bad ones."""
    workspace_bytes(plan, _c.PASS_FORWARD, *ops.hidden.shape, settings.budget)
    with _plain_products(ops.hidden):
        scores = _Scores(plan, ops, settings)
        active, bad = scores.active, scores.bad
        best = None if top is None else _eager_top.Best(scores, top)
        total = None if mean is None else torch.zeros(active.numel(), dtype=torch.float64, device=active.device)
        m, s, q, zy = _fold(scores, best, total)
        ty = scores.log2_units(zy, scores.row_scale.unsqueeze(1))
        record, logprobs = _finish_rows(plan, m, s, q, ty, scores.ignored)
        _write(active, bad, record, logprob, entropy, stats, logprobs)
        if best is not None:
            best.write(bad, _settle(m, s, q), ty, record[:, 0].isnan() | record[:, 1].isnan())
        if mean is not None:
            mean.zero_()
            mean[active] = (LN2 / scores.columns * total).masked_fill(record[:, 0].isnan(), math.nan).float()
        return active, bad


def partial(plan, ops, settings, out, targets=None, top=None):
    """Fills out (N,4) of one vocab shard: m, s, q in log2 units, raw target score (−inf on another shard). targets: (N,K)
    of several targets their scores, which out then has −inf for; top: _top.Outputs, which it fills"""
    workspace_bytes(plan, _c.PASS_FORWARD, *ops.hidden.shape, settings.budget)
    with _plain_products(ops.hidden):
        scores = _Scores(plan, ops, settings)
        active, bad = scores.active, scores.bad
        best = None if top is None else _eager_top.Best(scores, top)
        m, s, q, zy = _fold(scores, best)
        if best is not None:
            ty = best.target_of(zy, scores.log2_units(zy, scores.row_scale[:, None]))
            best.write(bad, _settle(m, s, q), ty, s.isnan() | ~(m <= LIMIT))
        out[:] = torch.tensor([LOWEST, 0.0, 0.0, -math.inf], device=out.device)
        out[bad] = torch.tensor([math.nan, 0.0, 0.0, -math.inf], device=out.device)
        score = zy[:, 0]
        if targets is not None:
            targets.fill_(-math.inf)
            targets[active], score = zy, torch.full_like(score, -math.inf)
        out[active] = torch.stack([part.float() for part in _settle(m, s, q)] + [score], 1)


def combine(plan, partials, target, temperature_rows, rows, settings, logprob, entropy, stats, targets=None):
    """Merges partials (R,N,4) in rank order, with targets (R,N,K) of several targets, and fills logprob, entropy (N) or
    None, stats (N,4)."""
    n = target.shape[0]
    with torch.no_grad():
        active, bad = _classify(plan, n, target, temperature_rows, rows, settings, settings.total)
        parts = [shard[active] for shard in partials]
        folded = tuple(parts[0][:, i].double() for i in range(3))
        for shard in parts[1:]:
            folded = _merge(folded, tuple(shard[:, i].double() for i in range(3)))
        given = [shard[:, 3:] for shard in parts] if targets is None else [shard[active] for shard in targets]
        zy = torch.stack(given).max(0).values
        temperature = settings.temperature if temperature_rows is None else temperature_rows[active, None].double()
        zy = zy.double()
        if settings.softcap:
            ty = torch.tanh(zy * (settings.scale / settings.softcap)) * (settings.softcap * LOG2E / temperature)
        else:
            ty = zy * (settings.scale * LOG2E / temperature)
        ignored = (target[active] == settings.ignore_index).reshape(zy.shape)
        record, logprobs = _finish_rows(plan, *folded, ty, ignored)
        _write(active, bad, record, logprob, entropy, stats, logprobs)


class _Upstream:
    """Per active row: what turns scores into dz. columns: how many the mean score is of"""

    def __init__(self, scores, stats, columns, grad_logprob, grad_entropy, grad_lse=None, grad_mean=None):
        record = stats[scores.active].double()

        def active(grad):
            return torch.zeros_like(record[:, 0]) if grad is None else grad[scores.active].double()

        self.own = None  # (active, K) of several targets: what each adds at its column
        g, e, self.lse, self.each = active(grad_logprob), active(grad_entropy), active(grad_lse), None
        if grad_mean is not None:
            self.each = active(grad_mean) / columns
        if g.dim() == 2:
            self.own = g.masked_fill(scores.ignored, 0)
            g = self.own.sum(1)
        self.m, self.log2_s, self.entropy = record[:, 0], record[:, 1], record[:, 3]
        self.g, self.e = g, e
        self.alpha, self.beta = self.lse - g - e * self.entropy, -e * LN2


def _dz(scores, upstream, x, rows, columns):
    """The gradient of one tile's raw scores x, in float32."""
    part = slice(*rows)

    def column_of(row_values):
        return row_values[part].unsqueeze(1)

    t = scores.log2_units(x, column_of(scores.row_scale)).clamp_min(LOWEST)
    w = (t - column_of(upstream.m)) - column_of(upstream.log2_s)
    dz = torch.exp2(w) * (column_of(upstream.alpha) + column_of(upstream.beta) * w)
    inside, column = scores.at_target(rows, columns)
    if scores.local.shape[1] > 1:
        if upstream.own is not None:  # as index_put_ adds them, in one order
            row = torch.arange(column.shape[0], device=column.device).unsqueeze(1).expand_as(column)
            dz.index_put_((row, column), upstream.own[part].masked_fill(~inside, 0), accumulate=True)
        return _through(scores, dz, x, column_of)
    wy = w.gather(1, column) * LN2
    at_target = -column_of(upstream.g) * torch.expm1(wy) \
        - torch.exp(wy) * (column_of(upstream.e) * (wy + column_of(upstream.entropy)) - column_of(upstream.lse))
    dz.scatter_(1, column, torch.where(inside, at_target, dz.gather(1, column)))
    if upstream.each is not None:
        dz += column_of(upstream.each)
    return _through(scores, dz, x, column_of)


def _through(scores, dz, x, column_of):
    """From the gradient of scores over T to that of raw scores."""
    dz *= column_of(scores.inverse) * scores.settings.scale
    if scores.cap_in is not None:
        dz *= 1 - torch.tanh(x.double() * scores.cap_in).square()
    return dz.float()


def _sweep(scores, upstream, begin, end, acc_hidden, grad_weight, grad_bias):
    """Visits every tile of rows [begin, end): adds dz·W to acc_hidden, writes dzᵀ·h and column sums; each may be
    None."""
    for columns in scores.column_tiles():
        weight = scores.weight(columns)
        width = columns[1] - columns[0]
        acc_weight = torch.zeros_like(weight) if grad_weight is not None else None
        acc_bias = torch.zeros(width, dtype=torch.float32, device=weight.device)
        for rows in scores.row_tiles(begin, end):
            hidden = scores.hidden(rows)
            x = scores.raw(hidden, weight, columns)
            count = rows[1] - rows[0]
            dz = _dz(scores, upstream, x[:count], rows, columns)
            if acc_hidden is not None:
                acc_hidden[rows[0] - begin:rows[1] - begin] += dz @ weight
            if acc_weight is not None:
                acc_weight += dz.t() @ hidden[:count]
            acc_bias += dz.sum(0)
        if acc_weight is not None:
            grad_weight[columns[0]:columns[1]] += acc_weight.to(grad_weight.dtype)
        if grad_bias is not None:
            grad_bias[columns[0]:columns[1]] = acc_bias.to(grad_bias.dtype)


def backward(plan, ops, settings, stats, upstream_grads, grad_hidden, grad_weight, grad_bias, counts=True):
    """Fills the gradients that are not None; grad_weight is added to when settings.accumulate is it. upstream_grads: of
    logprob and entropy, and of a step of lse and the mean score; counts: see _classify"""
    n, depth = ops.hidden.shape
    size = workspace_bytes(plan, _c.PASS_BACKWARD, n, depth, settings.budget)
    smallest = _smallest_bytes(_c.PASS_BACKWARD, n, depth)
    with _plain_products(ops.hidden):
        scores = _Scores(plan, ops, settings, upstream_grads, counts)
        active = scores.active
        upstream = _Upstream(scores, stats, scores.columns, *upstream_grads)
        if grad_weight is not None and settings.accumulate is None:
            grad_weight.zero_()
        if grad_bias is not None:
            grad_bias.zero_()
        rows_at_once = TILE_ROWS * (1 + max(0, size - smallest) // (4 * TILE_ROWS * depth))
        blocks = [(first, min(first + rows_at_once, active.numel()))
                  for first in range(0, active.numel(), rows_at_once)]
        if grad_hidden is None:
            _sweep(scores, upstream, 0, active.numel(), None, grad_weight, grad_bias)
            return
        grad_hidden.zero_()
        grad_hidden[scores.bad] = math.nan
        alone = len(blocks) <= 1
        for begin, end in blocks:
            acc = torch.zeros((end - begin, depth), dtype=torch.float32, device=active.device)
            _sweep(scores, upstream, begin, end, acc, grad_weight if alone else None, grad_bias if alone else None)
            grad_hidden[active[begin:end]] = acc.to(grad_hidden.dtype)
        if not alone and (grad_weight is not None or grad_bias is not None):
            _sweep(scores, upstream, 0, active.numel(), None, grad_weight, grad_bias)
