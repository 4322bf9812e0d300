"""Both passes of one call: the rows of each chunk, what the ranks exchange, and the autograd function around them.

Invariants: a row's forward costs one merge, whatever the chunks; hidden states of other ranks are there for at most two
chunks at a time, and are never saved; nothing waits for a device on the host. The forward pass may keep what lasts of
each chunk, this rank's part of it: directions of a frozen head, or lists of columns (tail); ranks need not agree on
that.
"""
import contextlib
import copy
import functools
import math

import torch

from .._functions import _shards
from .._library import _c
from .._passes import _autograd, _run
from .._tensors import _check, _top
from .._tensors._compile import outside_graphs
from .._tensors._operands import GRADIENTS, OPERANDS, Operands
from . import _merge, _scores, _weights

# Rows of a gathered chunk, of all ranks together: enough for the kernels' full rate.
CHUNK_ROWS = 4096
# Tensors that a call saves for its backward pass, before what its chunks keep: operands and stats.
SAVED = len(OPERANDS) + 1


class Call:
    """What a call is besides its tensors.

    chunk         rows of a rank that are gathered at a time; 0: hidden has all rows on every rank
    reduce_dtype  what grad_hidden is summed over the ranks in; None: it is not summed
    gather        gives a context manager in which weight and bias have their values; None: they always have
    empty         whether this rank's shard is nothing but padding
    scores        values of all scores that stand behind logprob: 1 for lse, 2 for lse and their mean
    """

    __slots__ = ("settings", "group", "merge", "chunk", "reduce_dtype", "gather", "empty", "scores")

    def __init__(self):
        self.scores = 0

    def partial(self, ops, grads, top=None):
        """The statistics of all rows on this rank's shard -> (N,4), or (N,4+K) of K targets a row, and what each chunk
        keeps, [_run.Kept], or []; fills top, _top.Outputs of all rows or None"""
        n = ops.target.shape[0]
        if not self.chunk:
            partial, kept = self._partial(ops, self._settings_that_keep(ops, n, grads), grads, top)
            return partial, [kept] if kept else []
        out = torch.empty((n, 4 + ops.targets), dtype=torch.float32, device=ops.hidden.device)
        of_chunks, settings = [], None
        for part, piece in self.pieces(ops):
            if settings is None:
                settings = self._settings_that_keep(piece, n, grads)
            own = None if top is None else _top.Outputs(piece.target, self.settings, top.is_part)
            partial, kept = self._partial(piece, settings, grads, own)
            self._put(partial, out, part)
            if top is not None:
                for values, whole in zip(own.tensors(), top.tensors()):
                    self._put(values, whole, part)
            of_chunks += [kept] if kept else []
            del piece  # before the next but one is gathered
        return out, of_chunks

    def _put(self, values, whole, part):
        """Those of a chunk's rows among those of all: the reverse of _cut."""
        more = whole.shape[1:]
        whole.view(self.group.size, -1, *more)[:, part] = values.view(self.group.size, -1, *more)

    def top(self, ops):
        """Memory for the best tokens and ranks of all rows on this rank's shard; None where none are asked for."""
        settings = self.settings
        if not settings.gives_more:
            return None
        is_whole = settings.offset == 0 and settings.total == settings.valid
        return _top.Outputs(ops.target, settings, not is_whole)

    def best(self, top, partial, logprob, stats):
        """Of all ranks what is asked for of the best tokens -> ids (N,K), logprobs (N,K), rest (N), rank (N), and
        statistics (N,4). partial: of this rank"""
        if not top.is_part and self.group.size == 1:
            return top.tensors()
        rank = () if top.rank is None else (_top.above(self.group.gather(top.rank), logprob),)
        if top.statistics is not None:
            own = torch.cat([top.statistics, partial[:, :1]], 1)
            rank += (_top.statistics_merged(self.group.gather(own), stats),)
        if top.ids is None:
            return rank
        t = top.logprobs if top.is_part else _top.scores(top.logprobs, stats)  # other ranks have padding alone
        best = _top.merged([self.group.gather(values) for values in (top.ids, t)], logprob, stats, self.settings.topk)
        return (*best, *rank)

    def known(self, target):
        """The targets, those that are no ids ignored: the pass itself finds and counts them."""
        return target.masked_fill((target < 0) | (target >= self.settings.total), self.settings.ignore_index)

    def _target_score(self, ops):
        """(N) the targets' scores in log2 units, whatever rank has them: the maxima of lists of the target alone."""
        settings, target, n = copy.copy(self.settings), ops.target, ops.target.shape[0]
        settings.topk, settings.rank, settings.statistics, settings.tail, settings.entropy = 0, False, False, 0.0, False
        score = _merge.nothing(n, 0, target.device)[:, 0].contiguous()
        if not self.empty:
            alone = {"target": self.known(target), "list_ids": target,
                     "list_offsets": torch.arange(n + 1, device=target.device)}
            score = _run.partial(Operands(**{name: alone.get(name, getattr(ops, name)) for name in OPERANDS}),
                                 settings)[:, 0].contiguous()
        self.group.maximum(score)
        return score

    def _settings_that_keep(self, first, n, grads):
        """first: the first of the chunks of n rows -> {rows: Settings} of those that keep; {}: all recompute"""
        rows = first.target.shape[0]
        if self.empty or not rows or first.is_listed or not grads:
            return {}
        counts = {rows: n // rows, n % rows: 1}
        return _run.settings_that_keep(first, self.settings, {rows: count for rows, count in counts.items() if rows},
                                       grads)

    def _partial(self, ops, settings, grads, top=None):
        """The statistics of one chunk, and its Kept or None; fills top."""
        rows = ops.target.shape[0]
        if top is not None and top.rank is not None and (top.is_part or self.group.size > 1):
            top.target_score = self._target_score(ops)
        if self.empty:
            if top is not None:
                top.fill(slice(None), -math.inf)
                for values in (top.rank, top.statistics):
                    if values is not None:
                        values.zero_()
            return _merge.nothing(rows, ops.targets, ops.target.device), None
        kept = _run.keep_piece(ops, settings[rows], grads) if settings else None
        return _run.partial(ops, settings.get(rows, self.settings), kept, top, grads), kept

    def merged(self, partial, target):
        """The partials of all ranks -> (R,N,4) or (1,N,4), with the scores of K targets behind them"""
        settings = self.settings
        valid = 0 if self.empty else settings.valid
        owned = (target >= settings.offset) & (target < settings.offset + valid)
        return _merge.merged(self.merge, self.group, partial, owned, settings.entropy)

    def combine(self, partials, target, ops):
        """What the merged partials say -> logprob (N), entropy (N) or None, stats (N,4)"""
        settings = self.settings
        if self.empty:
            settings = copy.copy(settings)
            settings.offset = settings.valid = 0
            plan = _shards._combine_plan(partials, target, None, ops.temperature_rows, settings)
        else:
            plan = _run.plan_for(ops, settings, 0)
        return _run.combine(plan, partials, target, ops.temperature_rows, ops.rows, settings)

    def pieces(self, ops, *others):
        """Yields (this rank's rows, Operands of those rows of every rank, others likewise); the next chunk of hidden
        states is on its way while one is used."""
        if not self.chunk:
            yield (slice(None), ops, *others)
            return
        n = ops.hidden.shape[0]
        parts = [slice(begin, min(begin + self.chunk, n)) for begin in range(0, n, self.chunk)] or [slice(0, 0)]
        waiting = self.group.gather_later(ops.hidden[parts[0]])
        for part, following in zip(parts, [*parts[1:], None]):
            hidden = waiting().flatten(0, 1)
            if following is not None:
                waiting = self.group.gather_later(ops.hidden[following])
            target, temperature_rows, *cut = [self._cut(rows, part)
                                              for rows in (ops.target, ops.temperature_rows, *others)]
            lists = self._lists_of(ops, part)
            yield (part, Operands(hidden, ops.weight, ops.bias, target, temperature_rows, None, *lists), *cut)

    def _lists_of(self, ops, part):
        """The lists of the part of every rank's rows."""
        if not ops.is_listed:
            return None, None
        rows = torch.arange(ops.target.shape[0], device=ops.target.device)
        return _check.lists_of_rows(ops.list_offsets, ops.list_ids, self._cut(rows, part))

    def _cut(self, rows, part):
        """The part of every rank's rows: (R·n, ...) -> (R·c, ...)"""
        if rows is None:
            return None
        return rows.reshape(self.group.size, -1, *rows.shape[1:])[:, part].flatten(0, 1)

    def backward(self, ops, grads, stats, upstream, kept):
        """-> gradients as _run.backward gives them; None for what grads does not ask for. kept: of each chunk, or []"""
        pieces = self.pieces(ops, stats, *upstream)
        if 0 < self.chunk < ops.hidden.shape[0]:
            return self._summed(ops, grads, pieces, iter(kept))
        ((_, piece, *cut),) = pieces
        return self._backward(piece, self.settings, grads, next(iter(kept), None), *cut)

    def _summed(self, ops, grads, pieces, kept):
        """The gradients of several chunks; those of weight and bias are added up in float32."""
        settings = copy.copy(self.settings)
        settings.wide_grads |= _c.GRAD_BIAS
        grad_hidden = torch.empty_like(ops.hidden) if grads & _c.GRAD_HIDDEN else None
        report = settings.tail_report
        if report is not None:
            settings.tail_report = torch.empty_like(report.zero_())
        sum_weight = sum_bias = None
        if grads & _c.GRAD_WEIGHT and settings.accumulate is None:
            sum_weight = settings.accumulate = ops.weight.new_zeros(ops.weight.shape, dtype=torch.float32)
        for part, piece, *cut in pieces:
            dh, _, db, *_ = self._backward(piece, settings, grads, next(kept, None), *cut)
            if dh is not None:
                grad_hidden[part] = dh
            if db is not None:
                sum_bias = db if sum_bias is None else sum_bias + db
            if report is not None:
                report += settings.tail_report
            del piece, dh  # before the next but one is gathered
        return grad_hidden, *(None if total is None else total.to(operand.dtype)
                              for total, operand in ((sum_weight, ops.weight), (sum_bias, ops.bias)))

    def _backward(self, ops, settings, grads, kept, stats, *upstream):
        """The gradients of one chunk, those of hidden and of the adapter's A summed over the ranks."""
        if self.empty:
            made = [torch.zeros_like(getattr(ops, name)) if grads & bit else None for name, bit in GRADIENTS.items()]
            if settings.accumulate is not None:
                made[1] = None
            if settings.tail_report is not None:
                settings.tail_report.zero_()
        else:
            if kept is not None:
                settings = copy.copy(settings)
                settings.budget = kept.settings.budget  # that of the forward pass
            backward = _scores.backward if self.scores else _run.backward
            made = backward(ops, settings, grads, stats, *upstream, kept=kept)
        dh, grad_weight, grad_bias, *adapter = made
        if adapter and adapter[0] is not None:
            adapter[0] = adapter[0].float()
            self.group.total(adapter[0])
        return (dh if dh is None else self.reduced(dh).to(ops.hidden.dtype), grad_weight, grad_bias, *adapter)

    def reduced(self, grad_hidden):
        """The gradient of this rank's rows, of what its columns make of all rows."""
        if self.reduce_dtype is None:
            return grad_hidden
        grad_hidden = grad_hidden.to(self.reduce_dtype)
        if self.chunk:
            return self.group.scatter_total(grad_hidden)
        self.group.total(grad_hidden)
        return grad_hidden


class ParallelLogprob(torch.autograd.Function):
    """Forward and backward of OPERANDS as a call has them."""

    @staticmethod
    def forward(ctx, *arguments):
        *operands, call, ctx.grads = arguments
        results, stats, work, kept = scored(call, Operands(*operands), ctx.grads)
        hidden, weight, bias, _, temperature_rows, _, _, _, *adapter = operands
        ctx.save_for_backward(hidden, weight, bias, work.target, temperature_rows, work.rows, work.list_offsets,
                              work.list_ids, *adapter, stats, *(each.memory for each in kept))
        ctx.call, ctx.kept_settings = call, [each.settings for each in kept]
        ctx.set_materialize_grads(False)
        if call.scores:
            ctx.mark_non_differentiable(*results[1 + call.scores:])
        else:
            _autograd.mark_constants(ctx, results, call.settings)
        return results if len(results) > 1 else results[0]

    @staticmethod
    @outside_graphs
    def backward(ctx, grad_logprob, *others):
        grads, results = _autograd.used_grads(ctx), (None,) * 3
        others = others[:ctx.call.scores or ctx.call.settings.entropy] or (None,)
        if grads and any(grad is not None for grad in (grad_logprob, *others)):
            with contextlib.ExitStack() as stack:
                if ctx.call.gather is not None:
                    stack.enter_context(ctx.call.gather())
                saved, memories = ctx.saved_tensors[:SAVED], ctx.saved_tensors[SAVED:]
                _weights.check_present("weight_shard", saved[1])
                kept = [] if grads != ctx.grads else \
                    [_run.Kept.again(*each) for each in zip(memories, ctx.kept_settings)]
                results = _autograd.last_derivative(functools.partial(gradients, ctx.call, grads, kept), *saved,
                                                    grad_logprob, *others)
                if grads & ~_c.GRAD_HIDDEN:
                    # Autograd adds a gradient to a parameter of the same shape: closed when the whole pass has ended.
                    torch.autograd.Variable._execution_engine.queue_callback(stack.pop_all().close)
        return _autograd.of_arguments(results)


def gradients(call, grads, kept, *tensors):
    """call.backward of the tensors that were saved, with their upstream gradients; the adapter's in its dtypes."""
    operands, (stats, *upstream) = tensors[:len(OPERANDS)], tensors[len(OPERANDS):]
    made = call.backward(Operands(*operands), grads, stats, upstream, kept)
    return (*made[:3], *_autograd.of_dtypes(made[3:], operands[-2:]))


def scored(call, ops, grads):
    """-> logprob (N), the entropy (N) if asked for and the best tokens, ids (N,K), logprobs (N,K), rest (N), or what
    call.scores says, as one tuple; stats (N,4) or (N,8), the Operands that the backward pass has, what is kept"""
    work, top = ops, call.top(ops)
    if call.chunk and ops.rows is not None:
        work = copy.copy(ops)
        work.target, work.rows = listed_only(ops.target, ops.rows, call.settings.ignore_index), None
    partial, kept = call.partial(work, grads, top)
    logprob, entropy, stats = call.combine(call.merged(partial, ops.target), ops.target, ops)
    more = () if top is None else call.best(top, partial, logprob, stats)
    if call.scores:
        values, stats = _scores.values(call, work, stats)
        return (logprob, *values, *more), stats, work, kept
    return (logprob, *(() if entropy is None else (entropy,)), *more), stats, work, kept


def listed_only(target, rows, ignore_index):
    """The targets, with ignore_index where a row is not in the list: ids of a chunk differ from those of the call."""
    n = target.shape[0]
    listed = torch.zeros(n + 1, dtype=torch.bool, device=target.device)
    listed.index_fill_(0, rows.long().masked_fill((rows < 0) | (rows >= n), n), True)
    return target.masked_fill(~(listed[:n] if target.dim() == 1 else listed[:n, None]), ignore_index)
