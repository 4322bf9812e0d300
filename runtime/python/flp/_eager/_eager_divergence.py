"""Divergences of two heads as chunked torch operations on the tensors' own device.

Formulas, in nats and float64, of scores t over T that are made in float32, as in _eager_torch.py, of each head:
    log p = t − lse;  D = f(Σ_v r(log p_v, log q_v), ...), p the teacher's, q the student's
    dz_v = (G_v − q_v·Σ_u G_u / Σ_u q_u)·scale/T,  G_v = ∂D/∂log q_v
where a divergence gives f and r, and reads no sum inside of another. Σ q, which is 1 but for rounding, lets dz be 0
where G is a multiple of q.
Shapes: tiles of TILE_ROWS active rows, whose scores of both heads are held whole, by TILE_COLUMNS columns, of which
sums are made in order, so that a row's bits do not depend on N, on its position or on the budget. The gradient of the
weight goes column tile by column tile, over scores that are made again.
This form counts rows on the host: it synchronises and cannot be captured in a CUDA graph.
"""
import collections
import copy
import itertools
import math

import torch

from .._library import _c, _divergences
from .._tensors._operands import OF_HEAD
from . import _eager_torch
from ._eager_torch import LIMIT, LN2, LOWEST, TILE_ROWS

TILE_COLUMNS = {"cpu": 2048, "cuda": 16384}  # fewer, longer operations where each takes a launch
# Operands and Settings of both heads, of the same columns; whole: Operands of the teacher's head with all of its
# columns, where it has more, of which ids are the student's, or None both: what the student lacks is one more outcome,
# of q = 0; of: (log p, log q, p, q, total) of a tile of columns -> D, where total makes sums over all columns; group: a
# parallel Group whose ranks have the columns, or None; every: whether the host knows that all rows count, and none is
# bad
Problem = collections.namedtuple(
    "Problem", "student student_settings teacher teacher_settings whole ids of group every")
# Of a tile of rows: log-sum-exps of teacher and student, the divergence's sums, Σ q, Σ G / Σ q or None, its upstream
# gradients or None; what a loss beside it pulls, or None
Rows = collections.namedtuple("Rows", "lse sums q_sum pull upstream beside")
NOTHING = 0, 0  # columns


def bytes_of(problem):
    """What a call takes beyond what it gives."""
    student = problem.student
    vocab = problem.student_settings.valid or len(student.weight)
    depths = [ops.hidden.shape[1] for ops in (student, problem.teacher)]
    columns = TILE_COLUMNS[student.hidden.device.type]
    tiles = TILE_ROWS * (2 * 4 * vocab + 16 * 8 * columns)
    return tiles + 4 * sum(depths) * (2 * columns + 3 * TILE_ROWS) + 128 * len(student.hidden)


def _check_budget(plan, problem):
    """Refuses a budget that is less than that."""
    budget, needed = problem.student_settings.budget or plan.in_force.budgets[_c.PASS_STEP], bytes_of(problem)
    if needed > budget:
        _divergences.refuse_budget(budget, needed, len(problem.student.hidden),
                                   problem.student_settings.valid or len(problem.student.weight))


def run(plan, problem, upstream, grads, counts, beside=None):
    """-> value, lse, teacher_lse, entropy, acceptance, agrees (N) of every row, and the gradients of hidden, weight and
    bias, None where the mask grads has them not. upstream: (N) float32, of values; counts: whether values are wanted,
    and bad rows count: without, rows whose upstream is 0 are left out; beside: a Beside, or None"""
    _check_budget(plan, problem)
    with _eager_torch._plain_products(problem.student.hidden):
        heads, bad = heads_of(plan, problem, None if counts or beside else upstream, counts)
        if beside:
            beside.lose(bad)
        outputs, grad_hidden, tiles = blank(bad), lost(zeros(problem, "hidden", grads), bad, upstream), []
        for rows in heads[0].row_tiles():
            active, held = heads[0].active[slice(*rows)], [_held(scores, rows) for scores in heads[:2]]
            tile, found = _values(plan, problem, heads, rows, held, counts)
            for values, of_tile in zip(outputs, found):
                values[active] = of_tile.to(values.dtype)
            if beside:
                lse, entropy = tile.lse[1], found[3]
                x = held[0].gather(1, beside.target[active].unsqueeze(1))
                logprob = _nats(heads[0], rows, x)[:, 0] - lse
                tile = tile._replace(beside=beside.pulls(active, logprob, entropy))
            if grads:
                tile = tile._replace(pull=_pull(problem, heads, rows, held, tile), upstream=upstream[active].double())
            if grad_hidden is not None:
                grad_hidden[active] = _of_hidden(problem, heads, rows, held, tile).to(grad_hidden.dtype)
            tiles.append(tile)
        return outputs, (grad_hidden, *_of_columns(problem, heads, tiles, grads))


def blank(bad):
    """What run gives of each row, where no row is active."""
    outputs = [torch.zeros(len(bad), device=bad.device) for _ in range(5)] + [torch.zeros_like(bad)]
    for values in outputs[:5]:
        values[bad] = math.nan
    return outputs


def lost(grad_hidden, bad, upstream):
    """The gradient of hidden, or None, with NaN in bad rows that have an upstream gradient."""
    if grad_hidden is not None:
        grad_hidden[bad & (upstream != 0)] = math.nan
    return grad_hidden


def _pairs_of(problem):
    return (problem.student, problem.student_settings), (problem.teacher, problem.teacher_settings)


def rows_left(plan, problem, upstream, counts):
    """Masks of rows that no divergence is made of, those that are ignored and bad ones or, given upstream, without a
    gradient; and of bad ones."""
    target, own = problem.student.target, problem.student_settings
    left = target == own.ignore_index
    bad = torch.zeros_like(left)
    for ops, settings in _pairs_of(problem):
        bad |= _eager_torch.sort_rows(len(target), target, ops.temperature_rows, None, settings, len(ops.weight))[1]
    if counts:
        _eager_torch.count_bad(plan, bad.sum())
    left |= bad
    return left if upstream is None else left | (upstream == 0), bad


def heads_of(plan, problem, upstream, counts):
    """_Scores of student and teacher, and of the teacher's whole head where that is more, of the same active rows; and
    a mask of bad ones."""
    heads, (left, bad), target = [], rows_left(plan, problem, upstream, counts), problem.student.target
    pairs = _pairs_of(problem)
    for ops, settings in pairs if problem.whole is None else (*pairs, (problem.whole, problem.teacher_settings)):
        ops = copy.copy(ops)
        ops.target = target.masked_fill(left, settings.ignore_index)
        scores = _eager_torch._Scores(plan, ops, settings, counts=False)
        scores.tile_columns = TILE_COLUMNS[target.device.type]
        if problem.group is not None:
            scores.columns = settings.valid  # which may be none of this rank's
        heads.append(scores)
    return heads, bad


def payload(plan, ops, settings, weight, bias):
    """-> Σ p·w (N,D), H and Σ p·b (N) float32 of a teacher's active rows and another head (w, b), NaN in others; the
    last None where bias is"""
    problem = Problem(ops, settings, ops, settings, None, None, None, None, False)
    _check_budget(plan, problem)
    with _eager_torch._plain_products(ops.hidden):
        heads, bad = heads_of(plan, problem, None, True)
        mean, entropy, of_bias = (torch.full(shape, math.nan, device=bad.device)
                                  for shape in ((len(bad), weight.shape[1]), (len(bad),), (len(bad),)))
        for rows in heads[0].row_tiles():
            active, held = heads[0].active[slice(*rows)], _held(heads[0], rows)
            for values in (mean, entropy, of_bias):
                values[active] = 0
            lse, = _alive(plan, [_lse(None, heads[0], rows, held)], True)
            for columns in heads[0].column_tiles():
                log_p, = _logs(heads[:1], rows, [held], [lse], columns)
                p = log_p.exp()
                part = p.float()
                mean[active] += part @ weight[slice(*columns)].float()
                entropy[active] -= (p * log_p.masked_fill(p == 0, 0)).sum(1).float()
                if bias is not None:
                    of_bias[active] += part @ bias[slice(*columns)].float()
        return mean, entropy, None if bias is None else of_bias


# ---- scores ----

def _raw(scores, rows, columns):
    """Raw scores of some columns of a tile of rows, float32."""
    return scores.raw(scores.hidden(rows), scores.weight(columns), columns)[:rows[1] - rows[0]]


def _held(scores, rows):
    """Those of all columns."""
    held = torch.empty((rows[1] - rows[0], scores.columns), dtype=torch.float32, device=scores.active.device)
    for columns in scores.column_tiles():
        held[:, slice(*columns)] = _raw(scores, rows, columns)
    return held


def _nats(scores, rows, x):
    """t of raw scores."""
    return scores.log2_units(x, scores.row_scale[slice(*rows)].unsqueeze(1)) * LN2


def _lse(group, scores, rows, held=None):
    """-> log-sum-exp of a tile of rows, their largest score, and its column."""
    m = torch.full((rows[1] - rows[0],), -math.inf, dtype=torch.float64, device=scores.active.device)
    s, best = torch.zeros_like(m), torch.zeros_like(m, dtype=torch.int64)
    for columns in scores.column_tiles():
        t = _nats(scores, rows, _raw(scores, rows, columns) if held is None else held[:, slice(*columns)])
        top, at = t.max(1)
        best = torch.where(top > m, at + columns[0], best)
        before, m = m.clamp(min=LOWEST), torch.where(top > m, top, m)  # a NaN stays in the sum alone
        now = m.clamp(min=LOWEST)
        s = s * torch.exp(before - now) + torch.exp(t - now.unsqueeze(1)).sum(1)
    if group is not None:
        own, best = m, best + scores.settings.offset
        group.maximum(m := own.clone())
        group.total(s := s * torch.exp(own.clamp(min=LOWEST) - m.clamp(min=LOWEST)))
        group.maximum(first := -best.masked_fill(own != m, 1 << 62))
        best = -first
    return m.clamp(min=LOWEST) + torch.log(s), m, best


def _logs(heads, rows, held, lse, columns):
    """log p and log q of some columns."""
    return [_nats(scores, rows, x[:, slice(*columns)]) - own.unsqueeze(1)
            for scores, x, own in zip(heads[:2][::-1], held[::-1], lse)]


# ---- values ----

def _noting(sums):
    """A total that adds a tile of columns to sums, in the order in which a divergence asks for them."""
    place = itertools.count()

    def total(each):
        at = next(place)
        if at == len(sums):
            sums.append(each.new_zeros(len(each)))
        sums[at] = sums[at] + each.sum(-1)
        return sums[at]
    return total


def _knowing(sums):
    """A total that gives sums that are known, with the derivatives of those of the tile."""
    known = iter(sums)

    def total(each):
        own = each.sum(-1)
        return next(known) + (own - own.detach() if own.requires_grad else 0)
    return total


def _values(plan, problem, heads, rows, held, counts):
    """-> Rows of a tile, and what run gives of each of its rows."""
    whole = held[1] if problem.whole is None else None
    ends = [_lse(problem.group, scores, rows, x) for scores, x in ((heads[-1], whole), (heads[0], held[0]))]
    lse = _alive(plan, ends, counts)
    entropy, acceptance, p_sum, q_sum = (torch.zeros_like(lse[0]) for _ in range(4))
    sums = []
    for columns in heads[0].column_tiles() or [NOTHING]:
        log_p, log_q = _logs(heads, rows, held, lse, columns)
        p, q = log_p.exp(), log_q.exp()
        problem.of(log_p, log_q, p, q, _noting(sums))
        entropy -= (q * log_q.masked_fill(q == 0, 0)).sum(1)
        acceptance += torch.minimum(p, q).sum(1)
        p_sum += p.sum(1)
        q_sum += q.sum(1)
    entropy, acceptance, q_sum, *sums = _over_ranks(problem, entropy, acceptance, q_sum, *sums)
    if problem.whole is not None:
        p = (1 - p_sum).clamp(min=0).unsqueeze(1)
        log_p, log_q, q = p.log(), torch.full_like(p, -math.inf), torch.zeros_like(p)
        problem.of(log_p, log_q, p, q, _noting(sums))
    value = problem.of(log_p, log_q, p, q, _knowing(sums))
    same = ends[0][2] == (ends[1][2] if problem.ids is None else problem.ids[ends[1][2]])
    found = value.clamp(min=0), lse[1], lse[0], entropy, acceptance.clamp(max=1), same & ~torch.isnan(lse[0] + lse[1])
    return Rows(lse, sums, q_sum, None, None, None), found


def _over_ranks(problem, *sums):
    """Sums over this rank's columns -> over all."""
    if problem.group is None:
        return list(sums)
    problem.group.total(whole := torch.stack(sums))
    return list(whole.unbind())


def _alive(plan, ends, counts):
    """Log-sum-exps of what _lse gave of teacher and student, NaN in rows that either has no number for, which count."""
    dead = torch.stack([(m > LIMIT * LN2) | (lse == -math.inf) for lse, m, _ in ends])
    if counts:
        finite = torch.stack([m < math.inf for _, m, _ in ends])
        _eager_torch.count_bad(plan, (dead & finite).any(0).sum())
    return [end[0].masked_fill(dead.any(0), math.nan) for end in ends]


# ---- gradients ----

def zeros(problem, name, grads):
    """Memory for the gradient of a student's operand; None where the mask grads has it not."""
    operand, bit = getattr(problem.student, name), OF_HEAD[name]
    wide = problem.student_settings.wide_grads & bit
    return torch.zeros_like(operand, dtype=torch.float32 if wide else operand.dtype) if grads & bit else None


def _as_it_is(tensor):
    return tensor


def slope_of(of, log_p, log_q, total):
    """G and q of some columns."""
    log_q.requires_grad_()
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(_as_it_is, _as_it_is):  # not the caller's
        q = log_q.exp()
        value = of(log_p, log_q, log_p.exp(), q, total)
        return torch.autograd.grad(value.sum(), log_q)[0], q.detach()


def _slope(problem, tile, log_p, log_q):
    return slope_of(problem.of, log_p, log_q, _knowing(tile.sums))


def _pull(problem, heads, rows, held, tile):
    """Σ G / Σ q over all columns."""
    own = sum(_slope(problem, tile, *_logs(heads, rows, held, tile.lse, columns))[0].sum(1)
              for columns in heads[0].column_tiles() or [NOTHING])
    return _over_ranks(problem, own)[0] / tile.q_sum


def _dz(problem, heads, rows, x, tile, columns):
    """The gradient of raw scores, float32. x: those of these columns of both heads"""
    logs = _logs(heads, rows, x, tile.lse, (0, x[0].shape[1]))
    slope, q = _slope(problem, tile, *logs)
    dz = (slope - q * tile.pull.unsqueeze(1)) * tile.upstream.unsqueeze(1)
    dz.masked_fill_((tile.upstream == 0).unsqueeze(1), 0)
    if tile.beside is not None:
        dz += tile.beside.dz(logs[1].detach(), q, columns[0])
    return _eager_torch._through(heads[0], dz, x[0], lambda values: values[slice(*rows)].unsqueeze(1))


def _is_idle(tile):
    """Rows without a gradient."""
    is_idle = tile.upstream == 0
    return is_idle if tile.beside is None else is_idle & tile.beside.idle()


def _of_hidden(problem, heads, rows, held, tile):
    acc = torch.zeros((rows[1] - rows[0], heads[0].depth), dtype=torch.float32, device=held[0].device)
    for columns in heads[0].column_tiles():
        x = [values[:, slice(*columns)] for values in held]
        acc += _dz(problem, heads, rows, x, tile, columns) @ heads[0].weight(columns)
    return acc


def _of_columns(problem, heads, tiles, grads):
    """The gradients of weight and bias, each None unless it is wanted; that of the weight is added to the caller's
    buffer, if there is one."""
    into = problem.student_settings.accumulate
    wants_weight, wants_bias = grads & _c.GRAD_WEIGHT, grads & _c.GRAD_BIAS
    grad_weight = zeros(problem, "weight", grads) if into is None else into
    grad_bias = zeros(problem, "bias", grads)
    for columns in heads[0].column_tiles() if wants_weight or wants_bias else ():
        weight = torch.zeros_like(heads[0].weight(columns))
        bias = torch.zeros(len(weight), dtype=torch.float32, device=weight.device)
        for rows, tile in zip(heads[0].row_tiles(), tiles):
            dz = _dz(problem, heads, rows, [_raw(scores, rows, columns) for scores in heads[:2]], tile, columns)
            hidden = heads[0].hidden(rows)[:len(dz)]  # 0 · NaN is NaN
            weight += dz.t() @ hidden.masked_fill_(_is_idle(tile).unsqueeze(1), 0)
            bias += dz.sum(0)
        if wants_weight:
            grad_weight[slice(*columns)] += weight.to(grad_weight.dtype)
        if wants_bias:
            grad_bias[slice(*columns)] = bias.to(grad_bias.dtype)
    return None if into is not None or not wants_weight else grad_weight, grad_bias
