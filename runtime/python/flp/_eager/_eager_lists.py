"""The eager rung for device tensors of listed columns: linear_logprob(keep=...), as torch operations over the entries of
all lists, sorted by row and column. Formulas and units are those of _eager_torch.py; sums go over a row's own columns.

Entries pass in pieces of PIECE_BYTES of gathered rows; sums over an entry's row or column are segment sums of torch,
which are deterministic. Counts are read on the host, so this rung synchronises and cannot be captured in a CUDA graph.
"""
import math

import torch

from .. import errors
from .._library import _c
from . import _eager_top, _eager_torch

PIECE_BYTES = 32 << 20  # of one operand's gathered rows, in float32
LN2 = _eager_torch.LN2


class _Entries:
    """The columns of this shard that active rows list, each once: row (entries) among the active ones, column
    (entries), in ascending order; bad (active): rows whose list is."""

    def __init__(self, scores):
        ops, settings, active = scores.ops, scores.settings, scores.active
        n, valid = ops.hidden.shape[0], scores.columns
        offsets, ids = ops.list_offsets, ops.list_ids.long()
        ends_well = (offsets[:-1] >= 0) & (offsets[1:] >= offsets[:-1]) & (offsets[1:] <= ids.numel())
        self.bad = torch.full_like(active, not bool(ends_well.all()), dtype=torch.bool)
        self.row = self.column = active.new_empty(0)
        place = torch.full((n,), -1, dtype=torch.int64, device=active.device)
        place[active] = torch.arange(active.numel(), device=active.device)
        target = ops.target.long()[active] - settings.offset
        if not bool(self.bad.any()) and n:
            row = place.repeat_interleave(offsets[1:] - offsets[:-1])
            ids = ids[int(offsets[0]):int(offsets[-1])]
            wrong = (ids < 0) | (ids >= scores.total)
            self.bad[row[(row >= 0) & wrong]] = True
            mine = (row >= 0) & ~wrong & (ids >= settings.offset) & (ids < settings.offset + valid)
            keys = (row[mine] * valid + (ids[mine] - settings.offset)).unique()
            own = (target >= 0) & (target < valid)
            wanted = torch.arange(active.numel(), device=active.device) * valid + target
            self.bad |= own & ~torch.isin(wanted, keys)
            keys = keys[~self.bad[keys // valid]]
            self.row, self.column = keys // valid, keys % valid
        self.is_target = self.column == target[self.row]
        self.lengths = torch.bincount(self.row, minlength=active.numel())

    def pieces(self, depth):
        """Slices of entries whose gathered rows fit."""
        step = max(1, PIECE_BYTES // (4 * depth))
        return [slice(begin, begin + step) for begin in range(0, self.row.numel(), step)]

    def row_sums(self, values):
        """(entries) float64 -> (active), 0 for a row without entries."""
        return torch.segment_reduce(values, "sum", lengths=self.lengths, unsafe=True, initial=0) if values.numel() \
            else torch.zeros(self.lengths.numel(), dtype=values.dtype, device=values.device)


def workspace_bytes(plan, which, n, count, budget):
    """Bytes that a pass takes over n rows that list count ids; budget: 0 for that of the plan.

    error: BudgetError naming the smallest that would do
    """
    smallest, budget = 4 * PIECE_BYTES + 64 * (n + count), budget or plan.in_force.budgets[which]
    if smallest > budget:
        raise errors.BudgetError("budget is %d bytes (accepted: at least %d for %d rows that list %d ids)"
                                 % (budget, smallest, n, count))
    return smallest


def _scores_of(scores, entries):
    """Raw scores (entries) float64."""
    ops = scores.ops
    x = torch.empty(entries.row.numel(), dtype=torch.float64, device=entries.row.device)
    for piece in entries.pieces(ops.hidden.shape[1]):
        hidden = ops.hidden[scores.active[entries.row[piece]]].float()
        x[piece] = (hidden * scores.rows_of_weight(entries.column[piece])).sum(1, dtype=torch.float64)
    if ops.bias is not None:
        x += ops.bias[entries.column].double()
    return x.float()


class _Call:
    """What both passes begin with: their budget is checked, rows whose list is bad are counted."""

    def __init__(self, plan, which, ops, settings, upstream=(), counts=True):
        workspace_bytes(plan, which, ops.hidden.shape[0], ops.list_ids.numel(), settings.budget)
        self.scores = _eager_torch._Scores(plan, ops, settings, upstream, counts)
        self.active, self.bad = self.scores.active, self.scores.bad
        self.entries = _Entries(self.scores)
        self.x = _scores_of(self.scores, self.entries)
        self.t = self.scores.log2_units(self.x, self.scores.row_scale[self.entries.row]).clamp_min(_eager_torch.LOWEST)
        if counts:
            _eager_torch.count_bad(plan, self.entries.bad.sum())

    def unmasked(self):
        """Scores (entries) float64 in log2 units, -inf of a masked column."""
        return self.t.masked_fill(self.t <= _eager_torch.LOWEST, -math.inf)

    def fold(self):
        """m, s, q (active) float64 and the target's raw score (active) float32; NaN in a row whose list is bad."""
        entries, count = self.entries, self.active.numel()
        m = torch.full((count,), -math.inf, dtype=torch.float64, device=self.t.device)
        if entries.row.numel():
            m = torch.segment_reduce(self.t, "max", lengths=entries.lengths, unsafe=True, initial=-math.inf)
        u = self.t - m[entries.row]
        e = torch.exp2(u)
        s, q = entries.row_sums(e), entries.row_sums(e * u)
        zy = torch.full((count,), -math.inf, dtype=torch.float32, device=self.t.device)
        zy[entries.row[entries.is_target]] = self.x[entries.is_target]
        for part in (m, s, q):
            part[entries.bad] = math.nan
        return m.clamp_min(_eager_torch.LOWEST), s, q, zy


def _write_best(call, top, sums, zy, without):
    if top is not None:
        best = _eager_top.Best(call.scores, top)
        best.add_lists(call.entries, call.unmasked())
        ty = best.target_of(zy, call.scores.log2_units(zy, call.scores.row_scale))
        best.write(call.bad, _eager_torch._settle(*sums), ty, without)


def forward(plan, ops, settings, logprob, entropy, stats, top=None, mean=None):
    """Fills logprob (N), entropy (N) or None, stats (N,4) or None, and top, _top.Outputs or None -> ids of the active
    rows, and a mask of bad ones. mean: as in _eager_torch, of the columns that a row lists"""
    with _eager_torch._plain_products(ops.hidden):
        call = _Call(plan, _c.PASS_FORWARD, ops, settings)
        m, s, q, zy = call.fold()
        ty = call.scores.log2_units(zy, call.scores.row_scale)
        record = _eager_torch._finish(plan, m, s, q, ty)
        _eager_torch._write(call.active, call.bad, record, logprob, entropy, stats)
        _write_best(call, top, (m, s, q), zy, record[:, 0].isnan() | record[:, 1].isnan())
        if mean is not None:
            total = LN2 * call.entries.row_sums(call.unmasked()) / call.entries.lengths
            mean.zero_()
            mean[call.active] = total.masked_fill(record[:, 0].isnan(), math.nan).float()
        call.bad[call.active[call.entries.bad]] = True
        return call.active, call.bad


def partial(plan, ops, settings, out, top=None):
    """Fills out (N,4) of one vocab shard, and top, _top.Outputs or None."""
    with _eager_torch._plain_products(ops.hidden):
        call = _Call(plan, _c.PASS_FORWARD, ops, settings)
        m, s, q, zy = call.fold()
        _write_best(call, top, (m, s, q), zy, s.isnan() | ~(m <= _eager_torch.LIMIT))
        out[:] = torch.tensor([_eager_torch.LOWEST, 0.0, 0.0, -math.inf], device=out.device)
        out[call.bad] = torch.tensor([math.nan, 0.0, 0.0, -math.inf], device=out.device)
        out[call.active] = torch.stack([part.float() for part in _eager_torch._settle(m, s, q)] + [zy], 1)


def _dz_of(call, upstream):
    """The gradient of each entry's raw score (entries) float32; 0 in a row whose stats hold NaN."""
    row = call.entries.row
    w = (call.t - upstream.m[row]) - upstream.log2_s[row]
    dz = torch.exp2(w) * (upstream.alpha[row] + upstream.beta[row] * w)
    wy = w * LN2
    at_target = -upstream.g[row] * torch.expm1(wy) \
        - torch.exp(wy) * (upstream.e[row] * (wy + upstream.entropy[row]) - upstream.lse[row])
    dz = torch.where(call.entries.is_target, at_target, dz)
    if upstream.each is not None:
        dz = dz + upstream.each[row]
    dz = _eager_torch._through(call.scores, dz, call.x, lambda values: values[row])
    lost = (upstream.m + upstream.log2_s + upstream.entropy).isnan() | call.entries.bad
    return dz.masked_fill(lost[row], 0), lost


def _add_sums(out, keys, dz, rows):
    """Adds to the rows of out the sums of dz·rows over entries with the same key, which stand together."""
    found, counts = keys.unique_consecutive(return_counts=True)
    sums = torch.segment_reduce(dz.unsqueeze(1) * rows, "sum", lengths=counts, axis=0, unsafe=True)
    out[found] += sums.to(out.dtype)


def backward(plan, ops, settings, stats, upstream_grads, grad_hidden, grad_weight, grad_bias, counts=True):
    """Fills the gradients that are not None; grad_weight is added to when settings.accumulate is it."""
    with _eager_torch._plain_products(ops.hidden):
        call = _Call(plan, _c.PASS_BACKWARD, ops, settings, upstream_grads, counts)
        entries, active = call.entries, call.active
        dz, lost = _dz_of(call, _eager_torch._Upstream(call.scores, stats, call.entries.lengths, *upstream_grads))
        pieces = entries.pieces(ops.hidden.shape[1])
        if grad_hidden is not None:
            grad_hidden.zero_()
            sums = torch.zeros((active.numel(), ops.hidden.shape[1]), dtype=torch.float32, device=active.device)
            for piece in pieces:
                _add_sums(sums, entries.row[piece], dz[piece], call.scores.rows_of_weight(entries.column[piece]))
            sums[lost] = math.nan
            grad_hidden[active] = sums.to(grad_hidden.dtype)
            grad_hidden[call.bad] = math.nan
        _weight_gradients(call, dz, pieces, settings, grad_weight, grad_bias)


def _weight_gradients(call, dz, pieces, settings, grad_weight, grad_bias):
    """By columns, rows ascending: the entries in another order."""
    entries, ops = call.entries, call.scores.ops
    order = torch.sort(entries.column, stable=True).indices
    column, row, dz = entries.column[order], call.active[entries.row[order]], dz[order]
    found, places = column.unique_consecutive(return_inverse=True)
    if grad_bias is not None:
        grad_bias.zero_()
        if found.numel():
            grad_bias[found] = torch.segment_reduce(dz, "sum", lengths=torch.bincount(places), unsafe=True) \
                .to(grad_bias.dtype)
    if grad_weight is None:
        return
    if settings.accumulate is None:
        grad_weight.zero_()
    sums = torch.zeros((found.numel(), ops.hidden.shape[1]), dtype=torch.float32, device=dz.device)
    used = dz != 0  # a row without a gradient may hold anything
    for piece in pieces:
        hidden = ops.hidden[row[piece]].float().masked_fill(~used[piece].unsqueeze(1), 0)
        _add_sums(sums, places[piece], dz[piece], hidden)
    grad_weight[found] += sums.to(grad_weight.dtype)
