"""Divergences of two heads whose scores a kernel compares: chunks of rows, of which torch makes the products and
flp_diverge all that is of scores.

    x, y = raw scores of a chunk, float32, products of the operands as they are, summed in float32
    value, log-sum-exps, entropy, acceptance, agrees, dx = flp_diverge(x, y)           dx in the operands' dtype
    grad_hidden = dx·W, grad_weight += dxᵀ·h, grad_bias += Σ dx                         sums in float32

Four products where two heads are trained from each other, of which chunks hold both scores and their gradient: 10
bytes a score of 16-bit operands, 12 of float32. A row's bits depend on torch's products, which may choose another order
of sums for another number of rows. Rows are counted on the host, as in the torch form (_eager_divergence.py), which
takes what this does not: vocabularies over ranks, a teacher with more tokens, the CPU.
"""
import ctypes
import functools

import torch

from .. import errors
from .._eager import _eager_divergence, _eager_torch
from .._library import _c, _plans
from .._passes import _run
from .._tensors._address import address
from .._tensors._operands import OF_HEAD
from ._select import stride_of

VALUES = 6  # of a row, as flp_diverge_args has them
ENTROPY, ACCEPTANCE = 3, 4  # which of them
STATE = 64  # words that flp_diverge leaves of a row, the first the student's log-sum-exp in log2 units
VECTOR = 8  # columns that rows of a chunk are padded to
BLOCK_ELEMENTS = 16 << 20  # of a matrix that is widened at a time, where torch does not take it as it is
FP16_TOP = 16.0  # what the upstream gradient of a row becomes where dx is float16, which holds 6e-8 to 65504


def plan_of(problem, program, grads):
    """The plan of flp_diverge for this problem; None where torch operations take its place. grads: those of the call
    error: UnavailableError or BudgetError where they cannot, of a kind of a file"""
    student, is_file = problem.student, problem.of is None
    device = _run.device_of(student.hidden)
    if problem.group is not None or problem.whole is not None or device < 0 and not is_file:
        return None
    plan = _plans.get(_plans.Spec(device, dtype=_run.TO_C[student.hidden.dtype], vocab=len(student.weight),
                                  op=_c.OP_DIVERGE, loss=program.data))
    if plan.handle is None:
        if is_file:
            raise errors.UnavailableError("kind %s has no kernel: %s" % (program.name, plan.reason))
        return None
    fixed, of_row = _bytes_of(problem, grads)
    budget = _budget_of(plan, problem)
    if fixed + of_row <= budget:
        return plan
    if is_file:
        _eager_divergence.refuse_budget(budget, fixed + of_row, problem)
    _say_once("flp.divergence: the budget of %d bytes holds no row and its gradients, %d: chunked torch operations, "
              "which are far slower, take the place of kernels" % (budget, fixed + of_row))
    return None


@functools.lru_cache(maxsize=64)
def _say_once(text):
    _c.log(_c.LOG_WARNING, text)


def run(plan, problem, program, given, upstream, grads, counts, beside=None):
    """As _eager_divergence.run. program, given: of the kind, and {name: number} of its parameters"""
    with _eager_torch._plain_products(problem.student.hidden):
        heads, bad = _eager_divergence.heads_of(plan, problem, None if counts or beside else upstream, counts)
        if beside:
            beside.lose(bad)
        outputs, grad_hidden = _eager_divergence.blank(problem, bad, upstream, grads)
        if not len(heads[0].active):
            return outputs, (grad_hidden, *(_Sum(problem, name, grads, None).total() for name in ("weight", "bias")))
        call = _Call(plan, problem, heads, program, given, grads, beside)
        pulls, factor = (None, None) if upstream is None else _pulls_of(heads[0], upstream)
        least = None if factor is None else factor.min()
        weight, bias = (_Sum(problem, name, grads, least) for name in ("weight", "bias"))
        for rows in call.chunks():
            active, part = heads[0].active[slice(*rows)], slice(*rows)
            values, dx, idle = call.diverge(rows, None if pulls is None else pulls[part], counts)
            if counts:
                values[:, ACCEPTANCE].clamp_(max=1)
                if problem.of is not None:  # built-in kinds, which keep to their bounds but for rounding
                    values[:, 0].clamp_(min=0, max=1 if program.name == "total_variation" else None)
                for into, column in zip(outputs, values.unbind(1)):
                    into[active] = column.to(into.dtype)
            if dx is None:
                continue
            share = None if factor is None else least / factor[part]
            if grad_hidden is not None:
                made = product(dx, heads[0].ops.weight, call.made[:len(dx)])
                made = made if factor is None else made / factor[part].unsqueeze(1)
                grad_hidden[active] = made.to(grad_hidden.dtype)
            hidden = heads[0].ops.hidden[active].masked_fill_(idle.unsqueeze(1), 0)  # 0 · NaN is NaN
            if share is not None:
                hidden.mul_(share.unsqueeze(1).to(hidden.dtype))
            weight.add(lambda out, part: product(dx[:, part].t(), hidden, out, adds=True))
            bias.add(lambda out, part: out.add_(dx[:, part].sum(0, dtype=torch.float32) if share is None else
                                                product(dx[:, part].t(), share.unsqueeze(1).to(dx.dtype),
                                                        out.new_empty((len(out), 1)))[:, 0]))
        return outputs, (grad_hidden, weight.total(), bias.total())


def _pulls_of(head, upstream):
    """What flp_diverge multiplies gradients of active rows by, for it to be those of raw scores; and the powers of two
    that this has, for dx to be within float16, which gradients are divided by, or None."""
    pulls = upstream[head.active] * (1.0 if head.cap_in is None else head.cap_in)
    if head.ops.hidden.dtype is not torch.float16:
        return pulls, None
    size = (pulls.double() * head.row_scale / _eager_torch.LOG2E).abs()
    has_none = ~torch.isfinite(size) | (size == 0)  # and sets no other row's
    size = torch.where(has_none, size.masked_fill(has_none, float("inf")).min(), size)
    factor = torch.exp2(torch.floor(torch.log2(FP16_TOP / size)).clamp(-100, 100)).float()
    return pulls * factor, factor


# ---- products ----

def product(a, b, out, adds=False):
    """a·b in float32, of operands as they are, into out; added to what is there, if adds."""
    if a.dtype is not torch.float32 and _takes_halves(a.device):
        return torch.addmm(out, a, b, out_dtype=torch.float32, beta=float(adds), out=out)
    if not adds:
        out.zero_()
    if a.numel() > b.numel():
        b = b.float()
        for part in _parts(a.shape[0], a.shape[1]):
            out[part].addmm_(a[part].float(), b)
    else:
        a = a.float()
        for part in _parts(b.shape[1], b.shape[0]):
            out[:, part].addmm_(a, b[:, part].float())
    return out


def _parts(count, depth):
    step = max(1, BLOCK_ELEMENTS // max(1, depth))
    return [slice(first, first + step) for first in range(0, count, step)]


_halves = {}  # by device


def _takes_halves(device):
    """Whether torch multiplies 16-bit matrices into float32: from release 2.8 on, on a GPU."""
    if device not in _halves:
        one = torch.ones((8, 8), dtype=torch.bfloat16, device=device)
        try:
            torch.addmm(one.float(), one, one, out_dtype=torch.float32)
            _halves[device] = True
        except (TypeError, RuntimeError, NotImplementedError):
            _halves[device] = False
    return _halves[device]


def _rows_within(rows):
    """Of a sum of so many rows those that lie in a gradient of 16 bits; whole vectors of a chunk's columns."""
    return rows // (2 * VECTOR) * VECTOR


class _Sum:
    """A gradient that chunks of rows add to, in float32: into the caller's buffer, if it is that of the weight and
    there is one. Else into memory of its own; where the gradient has 16 bits, half of the sum lies in what becomes the
    gradient. factor: what it is divided by in the end, or None"""

    def __init__(self, problem, name, grads, factor):
        operand, settings = getattr(problem.student, name), problem.student_settings
        self.into = settings.accumulate if name == "weight" else None
        self.factor, self.parts, self.out = factor, [], None
        if not grads & OF_HEAD[name]:
            return
        if self.into is not None and factor is None:
            self.parts = [self.into]
        elif self.into is not None or operand.dtype is torch.float32 or settings.wide_grads & OF_HEAD[name]:
            self.parts = [torch.zeros_like(operand, dtype=torch.float32)]
        else:
            self.out = torch.zeros(operand.shape, dtype=operand.dtype, device=operand.device)
            half, width = _rows_within(len(operand)), operand.shape[1:]
            first = self.out.view(-1)[:2 * half * width.numel()].view(torch.float32).view(half, *width)
            self.parts = [part for part in (first, first.new_zeros((len(operand) - half, *width))) if len(part)]

    def add(self, to):
        """to: a function of rows of the sum and the slice that they are"""
        first = 0
        for part in self.parts:
            to(part, slice(first, first + len(part)))
            first += len(part)

    def total(self):
        if not self.parts or self.parts[0] is self.into:
            return None
        for part in self.parts if self.factor is not None else ():
            part.div_(self.factor)
        if self.into is not None:
            self.into.add_(self.parts[0])
        if self.out is None:
            return None if self.into is not None else self.parts[0]
        first = 0
        for part in self.parts:  # in ascending order a row lands on such as have been read
            for block in part.split(max(1, BLOCK_ELEMENTS // max(1, part[:1].numel()))):
                self.out[first:first + len(block)] = block.to(self.out.dtype)
                first += len(block)
        return self.out


# ---- chunks of rows ----

def _budget_of(plan, problem):
    return problem.student_settings.budget or plan.in_force.budgets[_c.PASS_STEP]


def _bytes_of(problem, grads):
    """Bytes that a call takes beyond what it gives: at once, and for each row of a chunk."""
    student, settings = problem.student, problem.student_settings
    width = -(-len(student.weight) // VECTOR) * VECTOR
    of_row = width * (8 + (student.hidden.element_size() if grads else 0)) + 8 * STATE + 256
    of_row += 8 * (student.hidden.shape[1] + problem.teacher.hidden.shape[1])
    rows, is_wide = len(student.weight), settings.wide_grads & _c.GRAD_WEIGHT
    if settings.accumulate is not None:
        rows *= student.weight.dtype is torch.float16
    else:
        rows = 0 if is_wide or student.weight.dtype is torch.float32 else rows - _rows_within(rows)
    return 4 * rows * student.weight.shape[1] if grads & _c.GRAD_WEIGHT else 0, of_row


class _Call:
    """Chunks of one call: their memory, and what flp_diverge makes of each."""

    def __init__(self, plan, problem, heads, program, given, grads, beside):
        self.plan, self.heads, self.grads, self.beside = plan, heads, grads, beside
        given = {"rest_weight": 0.0, **given}  # of built-in kinds: there is none
        numbers = [given.get(name, default) for name, (default, _, _) in program.parameters.items()]
        self.parameters = (ctypes.c_double * max(1, len(numbers)))(*numbers)
        fixed, of_row = _bytes_of(problem, grads)
        student = problem.student
        width = -(-len(student.weight) // VECTOR) * VECTOR
        self.rows = max(1, min(len(heads[0].active), (_budget_of(plan, problem) - fixed) // of_row))
        make = student.hidden.new_empty
        self.x, self.y = (make((self.rows, width), dtype=torch.float32) for _ in range(2))
        self.dx = make((self.rows, width)) if grads else None
        is_made = grads & _c.GRAD_HIDDEN
        self.made = make((self.rows, student.hidden.shape[1]), dtype=torch.float32) if is_made else None

    def chunks(self):
        """Ranges of active rows."""
        count = len(self.heads[0].active)
        return [(first, min(first + self.rows, count)) for first in range(0, count, self.rows)]

    def diverge(self, rows, pulls, counts):
        """-> values (n, VALUES) of some active rows, None unless counts, dx (n, V), None without gradients, and the
        rows that have none, bool (n)"""
        n, vocab = rows[1] - rows[0], self.plan.key.vocab
        for head, scores in zip(self.heads, (self.x, self.y)):
            _scores_into(head, rows, scores[:n, :vocab])
        values = torch.empty((n, VALUES), dtype=torch.float32, device=self.x.device) if counts or self.beside else None
        units = [_unit_of(head, rows) for head in self.heads]
        args, dx = self._args_of(n, units, values), self.dx[:n, :vocab] if self.grads else None
        idle = None if pulls is None else pulls == 0
        if self.beside:
            idle = self._first(args, rows, values, units[0], idle)
        if dx is not None:
            args.upstream, args.grad_scores = address(pulls), address(dx)
        if dx is not None or not self.beside:
            self.plan.execute(args, "flp_diverge")
        if dx is not None and self.heads[0].cap_in is not None:
            _bend(self.heads[0], self.x[:n, :vocab], dx)
        return values, dx, idle

    def _args_of(self, n, units, values):
        args = _c.new_diverge_args()
        args.n, args.scores, args.teacher = n, address(self.x), address(self.y)
        args.scores_stride = args.teacher_stride = args.grad_scores_stride = stride_of(self.x)
        args.scale_rows, args.teacher_scale_rows = (address(unit) for unit in units)
        args.loss_parameters, args.values = ctypes.addressof(self.parameters), address(values)
        args.stream = _run.stream_of(self.plan.key.device)
        return args

    def _first(self, args, rows, values, unit, idle):
        """The call before that of the gradient, whose args then have what the loss beside the divergence pulls -> the
        rows that have no gradient."""
        head, n = self.heads[0], len(values)
        active = head.active[slice(*rows)]
        self.state = torch.empty((n, STATE), dtype=torch.float64, device=values.device)
        args.state = address(self.state)
        self.plan.execute(args, "flp_diverge")
        target = self.beside.target[active]
        lse = self.state[:, 0] * _eager_torch.LN2
        score = self.x[:n].gather(1, target.unsqueeze(1))[:, 0].double() * unit.double()
        pulls = self.beside.pulls(active, score - lse, values[:, ENTROPY].double(), lse)
        if pulls is None:
            return idle
        factor = 1.0 if head.cap_in is None else head.cap_in
        self.pulls = [each * factor for each in (pulls.of_logprob, pulls.of_entropy)]
        self.target = target
        args.values, args.resumes, args.target = None, 1, address(target)
        args.grad_logprob, args.grad_entropy = map(address, self.pulls)
        return idle & pulls.idle()


def _unit_of(head, rows):
    """What raw scores, or with a softcap their tanh, are multiplied by, (n) float32."""
    return (head.row_scale[slice(*rows)] / _eager_torch.LOG2E).float()


def _bend(head, tanh, dx):
    """Multiplies dx, of tanh, by its slope 1 - tanh², in place, a tile of columns at a time."""
    for first in range(0, tanh.shape[1], head.tile_columns):
        part = slice(first, first + head.tile_columns)
        dx[:, part] = (dx[:, part].float() * (1 - tanh[:, part] ** 2)).to(dx.dtype)


def _scores_into(head, rows, out):
    """Raw scores of some active rows, of a softcap their tanh: _unit_of makes scores over T of these."""
    product(head.ops.hidden[head.active[slice(*rows)]], head.ops.weight.t(), out)
    if head.ops.bias is not None:
        out.add_(head.ops.bias.float())
    if head.cap_in is not None:
        out.mul_(head.cap_in).tanh_()
