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

    def add(self, part, columns, t):
        """Scores (rows of the part, columns) of a tile."""
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
            top.rank[active] = self._rank(ty)
        top.fill(active[without], math.nan)

    def target_of(self, zy, ty):
        """The targets' scores in log2 units; of another shard's, which is -inf in zy, what the call says."""
        if self.top.target_score is None:
            return ty
        return torch.where(zy == -math.inf, self.top.target_score[self.scores.active].double(), ty)

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
