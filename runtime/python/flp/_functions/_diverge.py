"""Divergences of two heads whose scores a kernel compares: chunks of rows, whose scores forward passes store and
flp_diverge compares; backward passes make the products with their gradient.

    x, y = raw scores of a chunk, float32, and their log-sum-exps                                   _head_scores.py
    value, log-sum-exps, entropy, acceptance, agrees, dx = flp_diverge(x, y)           dx in the operands' dtype
    grad_hidden = dx·W, grad_weight += dxᵀ·h, grad_bias += Σ dx                                  _head_gradients.py

Four products where two heads are trained from each other. Chunks hold both scores, 8 bytes, of some rows and their
gradient, 2 or 4, of more: products with the gradient are the faster, the more rows they sum. Values of a row depend on
the row alone, to the bit. Nothing waits for the device where all rows count; with a mask or temperatures of rows, and
in a backward pass, those that do are counted on the host, as in the torch form (_eager_divergence.py), which takes the
CPU. Ranks share a vocabulary (_diverge_shards.py); of a teacher with more tokens another forward pass sums all its
scores (_diverge_rest.py).
"""
import ctypes
import functools
import itertools
import math
from typing import Any, NamedTuple, Optional, Tuple

import torch

from .. import errors
from .._eager import _eager_divergence, _eager_torch
from .._library import _c, _divergences, _plans
from .._library._divergences import FP16_TOP, STATE, VALUES
from .._passes import _run
from .._tensors._address import address
from . import _diverge_rest, _diverge_shards
from .._tensors._operands import OF_PRODUCTS
from ._head_gradients import BLOCK_COLUMNS, HeadGradients, plan_of_gradients, sums_bytes
from ._head_scores import HeadScores, plan_of_scores
from ._select import stride_of

ENTROPY = 3  # which of a row's values
HIDDEN, SCORES = "hidden", "scores"  # whose gradient a forward pass keeps
FORWARD_BYTES = 8192  # of a forward pass that stores scores, beside 12 for 768 of a row's


class Choice(NamedTuple):
    """How a call runs. plan: of flp_diverge, None where torch operations take its place; kept: what a forward pass
    keeps for the gradients of a later call, as way_of has it; chunk: of ranks how many rows have their scores held, and
    how many their gradient, at most, on all of them"""

    plan: Any
    kept: Optional[str]
    chunk: Optional[Tuple[int, int]]


def choose(problem, program, all_grads, grads=0, keeps=0):
    """The Choice of a pass that makes the gradients grads, or keeps something for keeps, in a call of all_grads. Ranks
    tell each other once, and wait for the device.
    error: UnavailableError or BudgetError where kernels cannot, of a kind of a file"""
    is_file, device = problem.of is None, _run.device_of(problem.student.hidden)
    if device < 0 and not is_file:
        return Choice(None, way_of(None, problem, keeps), None)
    if problem.group is None:
        plan = _plan_of(problem, program, all_grads, is_file, _eager_divergence.bytes_of(problem))
        return Choice(plan, way_of(plan, problem, keeps), None)
    has_some = problem.student_settings.valid > 1  # and not padding alone
    own, rows = _diverge_shards.of_rank(problem), len(problem.student.hidden)
    plan = _plan_of(own, program, all_grads, is_file) if has_some else None
    kept, chunk, beside = way_of(plan, own, keeps), (0, 0), (0, 0)
    if plan is not None:
        chunk = _rows_of_chunk(plan, own, keeps if kept == HIDDEN else grads, rows)
        beside = _rows_of_chunk(plan, own, keeps, rows, keeps=True) if kept == SCORES else beside
    has_plans, has_room, *numbers = _diverge_shards.least(
        problem.group, problem.student.hidden.device, plan is not None, kept == SCORES, *chunk, *beside)
    kept = kept if has_room or kept == HIDDEN else None
    return Choice(plan if has_plans else None, kept, tuple(numbers[2:] if has_room else numbers[:2]))


def _plan_of(problem, program, grads, is_file, of_torch=0):
    """The plan of whole heads, or None. of_torch: bytes that torch operations take, 0 where these refuse a budget"""
    student = problem.student
    plan = _plans.get(_plans.Spec(_run.device_of(student.hidden), dtype=_run.TO_C[student.hidden.dtype],
                                  vocab=len(student.weight), op=_c.OP_DIVERGE, loss=program.data))
    heads = (student, problem.student_settings), (problem.teacher, problem.teacher_settings)
    more = [] if problem.whole is None else _diverge_rest.plans_of(plan, problem)
    if grads & OF_PRODUCTS:
        more.append(plan_of_gradients(*heads[0], grads))
    for each in itertools.chain([plan], itertools.starmap(plan_of_scores, heads), more):
        if each.handle is None and is_file:
            raise errors.UnavailableError("kind %s has no kernel: %s" % (program.name, each.reason))
        if each.handle is None:
            return None
    least = sum(_bytes_of(problem, grads))
    budget = _budget_of(plan, problem)
    if least <= budget:
        return plan
    if is_file or of_torch > budget:
        _divergences.refuse_budget(budget, least, len(problem.student.hidden), len(problem.student.weight))
    _say_once("flp.divergence: the budget of %d bytes holds no row and its gradients, %d: chunked torch operations, "
              "which are far slower, take the place of kernels" % (budget, least))
    return None


@functools.lru_cache(maxsize=64)
def _say_once(text):
    _c.log(_c.LOG_WARNING, text)


def run(choice, problem, program, given, upstream, grads, counts, beside=None):
    """As _eager_divergence.run. program, given: of the kind, and {name: number} of its parameters. A Choice that keeps
    SCORES gives all gradients of scores, of upstream: gradients_of_kept makes those of operands of them"""
    plan, keeps = choice.plan, choice.kept == SCORES
    with _eager_torch._plain_products(problem.student.hidden):
        active, bad = _rows_of(plan, problem, None if beside else upstream, counts)
        if beside and bad is not None:
            beside.lose(bad)
        shard, problem = problem, problem if problem.group is None else _diverge_shards.of_rank(problem)
        call = _Call(choice, problem, active, program, given, grads, counts, beside, shard)
        head = call.heads[0]
        pulls, factor = (None, None) if upstream is None else _pulls_of(head, upstream)
        times = None if factor is None else 1 / factor
        gradients = None if keeps else HeadGradients(problem.student, problem.student_settings, grads, times)
        for rows in call.chunks():
            part = slice(*rows)
            dx, idle = call.diverge(rows, None if pulls is None else pulls[part])
            if dx is None or keeps:
                continue
            hidden = head.hidden(part).masked_fill(idle.unsqueeze(1), 0)  # 0 · NaN is NaN
            made = gradients.add(dx, hidden, part, rows[1] == call.count)
            if made is not None:
                call.grad_hidden[head.place(part)] = made.to(call.grad_hidden.dtype)
        outputs, grad_hidden = call.placed(bad, upstream)
        if keeps:
            return outputs, (call.dx[:call.count], times, ~call.values[:, 0].isfinite(), active, bad)
        return outputs, (grad_hidden, *_of_shard(gradients, shard))


def _of_shard(gradients, shard):
    """The gradients of weight and bias, as their operands are."""
    operands = shard.student.weight, shard.student.bias
    return (_diverge_shards.padded(total, operand) for total, operand in zip(gradients.totals(), operands))


def way_of(plan, problem, grads):
    """What a forward pass keeps for these gradients: HIDDEN, of a frozen head the gradient of hidden for upstream
    gradients of 1, (N,D) float32; SCORES, that of all scores, where there is room; or None. plan: None for torch
    operations"""
    rows = len(problem.student.hidden)
    if not rows or not grads:
        return None
    if grads == _c.GRAD_HIDDEN:
        return HIDDEN
    if plan is None:
        return None
    has_room = _divergences.rows_beside(_budget_of(plan, problem), _bytes_of(problem, grads), rows)
    return SCORES if has_room else None


def gradients_of_kept(problem, kept, upstream, grads):
    """The gradients of hidden, weight and bias from what run gave with keeps; None where that may have no number for a
    row without a gradient. upstream: (N) float32, of values. Waits for the device"""
    dx, times, is_lost, active, bad = kept
    shard, problem = problem, problem if problem.group is None else _diverge_shards.of_rank(problem)
    head = HeadScores(problem.student, problem.student_settings, active)
    pulls = head.among(upstream)
    if (is_lost & (pulls == 0)).any():
        return None
    times = pulls if times is None else pulls * times
    gradients = HeadGradients(problem.student, problem.student_settings, grads, times)
    grad_hidden = _eager_divergence.zeros(problem, "hidden", grads)
    if len(dx):
        made = gradients.add(dx, head.hidden(slice(None)), slice(None), True)
        if made is not None:
            grad_hidden[head.place(slice(None))] = made.to(grad_hidden.dtype)
    if bad is not None:
        grad_hidden = _eager_divergence.lost(grad_hidden, bad, upstream)
    return grad_hidden, *_of_shard(gradients, shard)


def _rows_of(plan, problem, upstream, counts):
    """The rows that a divergence is made of, and a mask of bad ones, or None both where all are and none is, which the
    host knows. upstream: (N), which leaves out rows of 0 where no values are wanted, or None"""
    if problem.every and (counts or upstream is None):
        return None, None
    left, bad = _eager_divergence.rows_left(plan, problem, None if counts else upstream, counts)
    active = torch.nonzero(~left).flatten()
    return (None, None) if len(active) == len(bad) else (active, bad)


# ---- flp_diverge ----

def parameters_of(program, given):
    """loss_parameters of a call: numbers of given, {name: number}, else the program's defaults."""
    numbers = _divergences.numbers_of(program, given)
    return (ctypes.c_double * max(1, len(numbers)))(*numbers)


def args_of(plan, parameters, scores, strides, units, values=None, upstream=None, dx=None):
    """Of one pass over scores of student and teacher, (n, V) float32 each, times their units (n) -> into values
    (n, VALUES) and dx (n, V), or None. strides: elements between rows of scores, teacher and dx"""
    args = _c.new_diverge_args()
    args.n = len(units[0])
    args.scores, args.teacher = (address(each) for each in scores)
    args.scores_stride, args.teacher_stride, args.grad_scores_stride = strides
    args.scale_rows, args.teacher_scale_rows = (address(unit) for unit in units)
    args.loss_parameters, args.values = ctypes.addressof(parameters), address(values)
    args.upstream, args.grad_scores = address(upstream), address(dx)
    args.stream = _run.stream_of(plan.key.device)
    return args


def execute(plan, *given, **more):
    """Runs such a pass."""
    plan.execute(args_of(plan, *given, **more), "flp_diverge")


def columns_of(values, program, of):
    """Of values (..., VALUES) each, within its bounds: rounding may have put it outside. of: None of a file's kind"""
    bounds = _divergences.bounds_of(None if of is None else program.name)
    columns = [column.clone(memory_format=torch.contiguous_format) if math.isinf(low) and math.isinf(high) else
               column.clamp(low, high) for column, low, high in zip(values.unbind(-1), *bounds)]
    return [*columns[:-1], columns[-1] != 0]


def _pulls_of(head, upstream):
    """What flp_diverge multiplies gradients of active rows by, for it to be those of raw scores; and the powers of two
    that this has, for dx to be within float16, which gradients are divided by, or None."""
    pulls = head.among(upstream) * (1.0 if head.cap_in is None else head.cap_in)
    if head.ops.hidden.dtype is not torch.float16 or not head.count:
        return pulls, None
    size = (pulls.double() * head.unit.double()).abs()
    has_none = ~torch.isfinite(size) | (size == 0)  # and sets no other row's
    size = torch.where(has_none, size.masked_fill(has_none, float("inf")).min(), size)
    factor = torch.exp2(torch.floor(torch.log2(FP16_TOP / size)).clamp(-100, 100)).float()
    return pulls * factor, factor


# ---- chunks of rows ----

def _budget_of(plan, problem):
    return problem.student_settings.budget or plan.in_force.budgets[_c.PASS_STEP]


def _bytes_of(problem, grads):
    """Bytes that a call takes beyond what it gives: at once, and for each row of a chunk."""
    student, settings = problem.student, problem.student_settings
    element = student.hidden.element_size()
    hidden_bytes = [ops.hidden.shape[1] * ops.hidden.element_size() for ops in (student, problem.teacher)]
    fixed, of_scores, of_gradient = _divergences.bytes_of(len(student.weight), hidden_bytes, element, grads,
                                                          sums_bytes(student, settings, grads))
    summed = sum(len(ops.weight) for ops in (student, problem.whole) if ops is not None)
    return fixed + FORWARD_BYTES, of_scores + summed // 64, of_gradient


def _rows_of_chunk(plan, problem, grads, count, keeps=False):
    """-> how many of count active rows have their scores held, and how many their gradient."""
    of_call = _budget_of(plan, problem), _bytes_of(problem, grads), count
    if keeps:
        return _divergences.rows_beside(*of_call), count
    is_alone = not grads & _c.GRAD_WEIGHT
    wave = _divergences.wave_of(problem.student.hidden.shape[1], is_alone)
    return _divergences.rows_of_chunk(*of_call, at_once=is_alone, wave=wave)


def layouts_of(plan, problem, grads, kept):
    """Forward, backward and step of a call with these gradients over all rows, as PlanInfo has them. plan: None for
    torch operations; kept: what forward keeps, as way_of has it"""
    forward, step = _layout_of(plan, problem, 0), _layout_of(plan, problem, grads) if grads else {}
    if kept == HIDDEN:
        backward = {"mode": step["mode"], "products": 0, "bytes": 0}
        return {**step, "saved_bytes": 4 * problem.student.hidden.numel()}, backward, step
    if kept != SCORES:
        return forward, step, step
    ops, (fixed, of_scores, of_gradient) = problem.student, _bytes_of(problem, grads)
    rows = len(ops.hidden)
    held, _ = _rows_of_chunk(plan, problem, grads, rows, keeps=True)
    saved = rows * _divergences.width_of(len(ops.weight)) * ops.hidden.element_size()
    forward.update(chunk_rows=held, gradient_rows=rows, chunks=-(-rows // held), bytes=held * of_scores,
                   saved_bytes=saved)
    backward = {"mode": "diverge", "products": _products_of(grads), "bytes": fixed + rows * of_gradient - saved}
    return forward, backward, step


def _products_of(grads):
    return bin(grads & OF_PRODUCTS).count("1")


def _layout_of(plan, problem, grads):
    products = 2 + (problem.whole is not None) + _products_of(grads)
    if plan is None:  # which make scores again for the gradient of the weight
        return {"mode": "torch", "products": products + 2 * bool(grads & _c.GRAD_WEIGHT),
                "bytes": _eager_divergence.bytes_of(problem)}
    count, (fixed, of_scores, of_gradient) = len(problem.student.hidden), _bytes_of(problem, grads)
    held, rows = _rows_of_chunk(plan, problem, grads, count)
    return {"mode": "diverge", "products": products, "chunk_rows": held, "gradient_rows": rows if grads else 0,
            "chunks": -(-count // held) if held else 0, "bytes": fixed + held * of_scores + rows * of_gradient}


class _Call:
    """Chunks of one call: their memory, and what flp_diverge makes of each."""

    def __init__(self, choice, problem, active, program, given, grads, counts, beside, shard):
        """shard: the problem as it was given, of whose columns each rank of its group has some, or problem itself"""
        plan, keeps = choice.plan, choice.kept == SCORES
        self.plan, self.problem, self.grads, self.beside = plan, problem, grads, beside
        self.heads = [HeadScores(problem.student, problem.student_settings, active),
                      HeadScores(problem.teacher, problem.teacher_settings, active)]
        self.others = None  # what else of the vocabulary adds to the sums of a row
        if shard.group is not None:
            self.others = _diverge_shards.Ranks(shard.group, shard.student_settings.offset)
        elif problem.whole is not None:
            self.others = _diverge_rest.Rest(plan, problem, self.heads[1], counts)
        self.program, self.parameters = program, parameters_of(program, given)
        student, self.count = problem.student, self.heads[0].count
        width = _divergences.width_of(len(student.weight))
        chunk = choice.chunk or _rows_of_chunk(plan, problem, grads, self.count, keeps)
        self.held, self.rows = (min(rows, self.count) for rows in chunk)
        make = student.hidden.new_empty
        self.x, self.y = (make((self.held, width), dtype=torch.float32) for _ in range(2))
        self.dx = make((self.rows, width)) if grads else None
        if grads:
            self.dx[:, len(student.weight):] = 0
        self.values = make((self.count, VALUES), dtype=torch.float32) if counts or beside else None
        self.counts, self.grad_hidden = counts, None
        self.ends = []  # of chunks: flp_args.partial of each head, of all its shards
        if grads & _c.GRAD_HIDDEN and not keeps:
            self.grad_hidden = _eager_divergence.zeros(problem, "hidden", grads)

    def chunks(self):
        """Ranges of active rows."""
        return _ranges(0, self.count, self.rows)

    def placed(self, bad, upstream):
        """What _eager_divergence.run gives of every row, and the gradient of hidden."""
        if self.ends and self.counts:
            _diverge_shards.count_beyond(self.plan, [torch.cat(ends) for ends in zip(*self.ends)])
        values = columns_of(self.values, self.program, self.problem.of) if self.counts else [None] * VALUES
        if bad is None:
            return values, self.grad_hidden
        outputs = _eager_divergence.blank(bad)
        for into, of_active in zip(outputs, values if self.counts else ()):
            into[self.heads[0].active] = of_active
        return outputs, _eager_divergence.lost(self.grad_hidden, bad, upstream)

    def diverge(self, rows, pulls):
        """-> dx (n, V) of some active rows, None without gradients, and those that have none, bool (n). Fills values"""
        idle = None if pulls is None else pulls == 0
        for first, last in _ranges(*rows, self.held):
            part = slice(first - rows[0], last - rows[0])
            found = self._diverge(slice(first, last), last - first, None if pulls is None else pulls[part],
                                  self.dx[part] if self.grads else None)
            if found is not None:
                idle[part] &= found
        return self.dx[:rows[1] - rows[0]] if self.grads else None, idle

    def _diverge(self, part, n, pulls, dx):
        """Of rows whose scores are held -> those that a loss beside the divergence pulls nowhere, or None."""
        vocab, idle = self.plan.key.vocab, None
        sums = [head.scores_into(part, scores[:n]) for head, scores in zip(self.heads, (self.x, self.y))]
        args = args_of(self.plan, self.parameters, (self.x, self.y), (stride_of(self.x),) * 3,
                       [head.unit[part] for head in self.heads], None if self.values is None else self.values[part])
        if self.others is not None:
            self._merge(args, n, part, sums)
        elif all(each is not None for each in sums):
            args.partial, args.teacher_partial = map(address, sums)
        if self.beside:
            idle = self._first(args, part, n)
        if dx is not None:
            args.upstream, args.grad_scores = address(pulls), address(dx)
        if dx is not None or not self.beside:
            self.plan.execute(args, "flp_diverge")
        if dx is not None and self.heads[0].cap_in is not None:
            _bend(self.x[:n, :vocab], dx[:, :vocab])
        return idle

    def _merge(self, args, n, part, sums):
        """Makes the sums of the whole vocabulary, from which args goes on. sums: of forward passes, or None each"""
        scores, units = [each[:n] for each in (self.x, self.y)], [head.unit[part] for head in self.heads]
        ends = [_diverge_shards.ends_of(each[:, :self.plan.key.vocab], unit) if own is None else own[:, :2]
                for each, unit, own in zip(scores, units, sums)]
        partials = self.others.partials(ends, part)
        self.ends.append(partials)
        self.state = self.of_shard(self.plan, scores, units, partials)
        self.others.total(self.state, scores, [head.wide_unit[part] for head in self.heads], self.of_shard)
        args.state, args.is_shard, args.resumes = address(self.state), 1, 1

    def of_shard(self, plan, scores, units, partials):
        """state (n, STATE) of some columns of a vocabulary whose log-sum-exps are those of partials."""
        state = torch.empty((len(scores[0]), STATE), dtype=torch.float64, device=self.x.device)
        args = args_of(plan, self.parameters, scores, (stride_of(scores[0]),) * 3, units)
        args.partial, args.teacher_partial = map(address, partials)
        args.state, args.is_shard = address(state), 1
        plan.execute(args, "flp_diverge")
        return state

    def _first(self, args, part, n):
        """The call before that of the gradient, whose args then have what the loss beside the divergence pulls -> the
        rows that it pulls nowhere, or None."""
        head = self.heads[0]
        self.state = torch.empty((n, STATE), dtype=torch.float64, device=self.x.device)
        args.state = address(self.state)
        self.plan.execute(args, "flp_diverge")
        rows = head.place(part)
        self.target = self.beside.target[rows]
        score = self.x[:n].gather(1, self.target.unsqueeze(1))[:, 0] * head.wide_unit[part]
        pulls = self.beside.pulls(rows, torch.sub(score, self.state[:, 0], alpha=_eager_torch.LN2),
                                  self.values[part, ENTROPY])
        if pulls is None:
            return None
        self.pulls = [pulls.of_logprob, pulls.of_entropy]
        if head.cap_in is not None:
            self.pulls = [each * head.cap_in for each in self.pulls]
        args.values, args.resumes, args.target = None, 1, address(self.target)
        args.grad_logprob, args.grad_entropy = map(address, self.pulls)
        return pulls.idle()


def _ranges(first, last, step):
    return [(at, min(at + step, last)) for at in range(first, last, step or 1)]


def _bend(tanh, dx):
    """Multiplies dx, of tanh, by its slope 1 - tanh², in place, some columns at a time."""
    for first in range(0, tanh.shape[1], BLOCK_COLUMNS):
        part = slice(first, first + BLOCK_COLUMNS)
        dx[:, part] = (dx[:, part].float() * (1 - tanh[:, part] ** 2)).to(dx.dtype)
