"""Best tokens and ranks as chunked torch operations: what _eager_torch.py's forward sweep meets, tile by tile.

Tiles come in the order of their columns, and sorts are stable, so that of equal scores the lowest id stands first.
"""
import math

import torch

LN2 = math.log(2)


class Best:
    """The best K scores so far of each active row, in log2 units, and their columns. top: _top.Outputs to be filled"""

    def __init__(self, scores, top):
        self.scores, self.top = scores, top
        self.k = 0 if top.ids is None else top.ids.shape[1]
        shape = (scores.active.numel(), self.k)
        self.t = torch.full(shape, -math.inf, dtype=torch.float64, device=scores.active.device)
        self.column = torch.full(shape, -1, dtype=torch.int64, device=scores.active.device)
        self.lists = None
        self.m, self.r, self.z = (torch.full(shape[:1], start, dtype=torch.float64, device=scores.active.device)
                                  for start in (-math.inf, 0.0, 0.0))  # of statistics: max t, Σ 4^(t−m), Σ t
        self.lengths = scores.columns

    def add(self, part, columns, t):
        """Scores (rows of the part, columns) of a tile."""
        if self.top.statistics is not None:
            before, m = self.m[part], torch.maximum(self.m[part], t.amax(1) if len(t) else self.m[part])
            at = m.masked_fill(m == -math.inf, 0)
            self.r[part] = self.r[part] * torch.exp2(2 * (before - at)) + torch.exp2(2 * (t - at[:, None])).sum(1)
            self.m[part], self.z[part] = m, self.z[part] + t.sum(1)
        if not self.k:
            return
        ids = torch.arange(columns[0], columns[1], device=t.device).expand(t.shape)
        ids = ids.masked_fill(t == -math.inf, -1)
        best, order = torch.cat([self.t[part], t], 1).sort(dim=1, descending=True, stable=True)
        self.t[part] = best[:, :self.k]
        self.column[part] = torch.cat([self.column[part], ids], 1).gather(1, order[:, :self.k])

    def add_lists(self, entries, t):
        """Scores (entries) of the columns that rows list, by row and then column; all that there are."""
        self.lists = entries, t
        if self.top.statistics is not None and entries.row.numel():
            self.m = torch.segment_reduce(t, "max", lengths=entries.lengths, unsafe=True, initial=-math.inf)
            self.r, self.z = entries.row_sums(torch.exp2(2 * (t - self.m[entries.row]))), entries.row_sums(t)
            self.lengths = entries.lengths
        if not self.k:
            return
        order = t.sort(descending=True, stable=True).indices
        order = order[entries.row[order].sort(stable=True).indices]
        row = entries.row[order]
        place = torch.arange(row.numel(), device=row.device) - (entries.lengths.cumsum(0) - entries.lengths)[row]
        kept = (place < self.k) & (t[order] > -math.inf)
        at = row[kept], place[kept]
        self.t[at], self.column[at] = t[order][kept], entries.column[order][kept]

    def write(self, bad, sums, ty, without):
        """Fills the outputs. sums: m, s, q of the active rows; ty: their targets' scores in log2 units, without: where
        they are no numbers"""
        active, top = self.scores.active, self.top
        top.fill(slice(None), 0.0)
        top.fill(bad, math.nan)
        if self.k:
            ids = torch.where(self.column < 0, self.column, self.column + self.scores.settings.offset)
            top.ids[active] = ids.to(top.ids.dtype)
            top.logprobs[active] = self._logprobs(sums).float()
        if top.rest is not None:
            top.rest[active] = self._rest(sums).float()
        if top.rank is not None:
            top.rank[active] = self._rank(ty if ty.dim() == 1 else ty[:, 0])
        if top.statistics is not None:
            top.statistics[active] = self._statistics(sums, ty if ty.dim() == 1 else ty.amax(1))
        top.fill(active[without], math.nan)

    def _statistics(self, sums, ty):
        """Of whole rows the four, of a shard's what they are made of. ty: the highest of the targets"""
        m, is_best = sums[0], (ty >= self.m).double()
        squares = self.r * torch.exp2(2 * torch.where(self.r == 0, torch.zeros_like(m), self.m - m))
        columns = torch.as_tensor(self.lengths, device=m.device).double().expand_as(m)
        if self.top.is_part:
            return torch.stack([self.z, squares, columns, is_best], 1).float()
        log_s = torch.log2(sums[1])
        values = LN2 * (m + log_s), LN2 * self.z / columns, LN2 * (torch.log2(squares) - 2 * log_s), is_best
        return torch.stack(values, 1).float()

    def target_of(self, zy, ty):
        """The targets' scores in log2 units; of another shard's, which is -inf in zy, what the call says."""
        if self.top.target_score is None:
            return ty
        others = self.top.target_score[self.scores.active].double()
        return torch.where(zy == -math.inf, others.reshape(-1, *zy.shape[1:]), ty)

    def _logprobs(self, sums):
        m, s = sums[0].unsqueeze(1), sums[1].unsqueeze(1)
        if self.top.is_part:
            return LN2 * self.t
        return (LN2 * ((self.t - m) - torch.log2(s))).clamp_max(0)

    def _rest(self, sums):
        m, s = sums[0].unsqueeze(1), sums[1]
        left = ((s - torch.exp2(self.t - m).sum(1)) / s).clamp(0, 1)
        none = (self.column[:, -1] < 0) | (self.k >= self.scores.columns)
        return left.masked_fill(none, 0)

    def _rank(self, ty):
        """How many columns are above the target, in float32: a second sweep, as the first one did not know its score."""
        ty = ty.float()
        if self.lists is not None:
            entries, t = self.lists
            return entries.row_sums((t.float() > ty[entries.row]).double()).int()
        scores, rank = self.scores, torch.zeros(ty.shape, dtype=torch.int32, device=ty.device)
        for columns in scores.column_tiles():
            weight = scores.weight(columns)
            for rows in scores.row_tiles():
                part = slice(*rows)
                x = scores.raw(scores.hidden(rows), weight, columns)[:rows[1] - rows[0]]
                t = scores.log2_units(x, scores.row_scale[part].unsqueeze(1))
                rank[part] += (t.float() > ty[part].unsqueeze(1)).sum(1, dtype=torch.int32)
        return rank
