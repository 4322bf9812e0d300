"""Divergences of two heads whose scores a kernel compares: chunks of rows, of which torch makes the products and
flp_diverge all that is of scores.

    x, y = raw scores of a chunk, float32, products of the operands as they are, summed in float32
    value, log-sum-exps, entropy, acceptance, agrees, dx = flp_diverge(x, y)           dx in the operands' dtype
    grad_hidden = dx·W, grad_weight += dxᵀ·h, grad_bias += Σ dx                         sums in float32

Four products where two heads are trained from each other, of which chunks hold both scores and their gradient: 10 bytes
a score of 16-bit operands, 12 of float32. A row's bits depend on torch's products, which may choose another order of
sums for another number of rows. Rows are counted on the host, as in the torch form (_eager_divergence.py), which takes
what this does not: vocabularies over ranks, a teacher with more tokens, the CPU.
"""
import ctypes

import torch

from .. import errors
from .._eager import _eager_divergence, _eager_torch
from .._library import _c, _plans
from .._passes import _run
from .._tensors._address import address
from .._tensors._operands import OF_HEAD
from ._select import stride_of

VALUES = 6  # of a row, as flp_diverge_args has them
VECTOR = 8  # columns that rows of a chunk are padded to
BLOCK_ELEMENTS = 16 << 20  # of a weight that is widened at a time, where torch does not take it as it is
FP16_TOP = 64.0  # what the largest upstream gradient becomes where dx is float16, whose least number is 6e-8


def plan_of(problem, program):
    """The plan of flp_diverge for this problem; None where torch operations take its place.
    error: UnavailableError where they cannot, of a kind of a file without kernels"""
    student, is_file = problem.student, problem.of is None
    device = _run.device_of(student.hidden)
    if problem.group is not None or problem.whole is not None or device < 0 and not is_file:
        return None
    plan = _plans.get(_plans.Spec(device, dtype=_run.TO_C[student.hidden.dtype], vocab=len(student.weight),
                                  op=_c.OP_DIVERGE, loss=program.data))
    if plan.handle is None and is_file:
        raise errors.UnavailableError("kind %s has no kernel: %s" % (program.name, plan.reason))
    return None if plan.handle is None else plan


def run(plan, problem, program, given, upstream, grads, counts):
    """As _eager_divergence.run. program, given: of the kind, and {name: number} of its parameters"""
    with _eager_torch._plain_products(problem.student.hidden):
        heads, bad = _eager_divergence.heads_of(plan, problem, None if counts else upstream, counts)
        call = _Call(plan, heads, program, given, grads)
        outputs, grad_hidden = _eager_divergence.blank(problem, bad, upstream, grads)
        factor = _factor_of(problem, upstream)
        weight, bias = (_Sum(problem, name, grads, factor) for name in ("weight", "bias"))
        for rows in call.chunks(problem, weight.held_bytes()):
            active = heads[0].active[slice(*rows)]
            pulls = None if upstream is None else upstream[active] * factor
            values, dx = call.diverge(rows, pulls)
            if problem.of is not None:  # built-in kinds are never below 0 but for rounding
                values[:, 0].clamp_(min=0)
            for into, column in zip(outputs, values.unbind(1)):
                into[active] = column.to(into.dtype)
            if dx is None:
                continue
            if grad_hidden is not None:
                made = product(dx, heads[0].ops.weight, call.made[:len(dx)])
                grad_hidden[active] = (made if factor is ONE else made / factor).to(grad_hidden.dtype)
            hidden = heads[0].ops.hidden[active].masked_fill_((pulls == 0).unsqueeze(1), 0)  # 0 · NaN is NaN
            weight.add(lambda out: product(dx.t(), hidden, out, adds=True))
            bias.add(lambda out: out.add_(dx.sum(0, dtype=torch.float32)))
        return outputs, (grad_hidden, weight.total(), bias.total())


# ---- products ----

def product(a, b, out, adds=False):
    """a·b in float32, of operands as they are, into out; added to what is there, if adds."""
    if a.dtype is not torch.float32 and _takes_halves(a.device):
        return torch.addmm(out, a, b, out_dtype=torch.float32, beta=float(adds), out=out)
    a = a.float()
    step = max(1, BLOCK_ELEMENTS // max(1, b.shape[0]))
    for first in range(0, b.shape[1], step):
        made = a @ b[:, first:first + step].float()
        out[:, first:first + step] = out[:, first:first + step] + made if adds else made
    return out


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


class _Sum:
    """A gradient that chunks of rows add to, in float32: into the caller's buffer, if it is that of the weight and there
    is one; else into its own."""

    def __init__(self, problem, name, grads, factor):
        operand, settings = getattr(problem.student, name), problem.student_settings
        self.into = settings.accumulate if name == "weight" else None
        self.factor, self.sum = factor, None
        self.dtype = torch.float32 if settings.wide_grads & OF_HEAD[name] else getattr(operand, "dtype", None)
        if grads & OF_HEAD[name]:
            is_into = self.into is not None and factor is ONE
            self.sum = self.into if is_into else torch.zeros_like(operand, dtype=torch.float32)

    def held_bytes(self):
        """Of its own, beyond what the call gives."""
        is_given = self.sum is None or self.sum is self.into or self.into is None and self.dtype is torch.float32
        return 0 if is_given else self.sum.numel() * 4

    def add(self, to):
        if self.sum is not None:
            to(self.sum)

    def total(self):
        if self.sum is None:
            return None
        if self.factor is not ONE:
            self.sum.div_(self.factor)
        if self.into is not None:
            if self.sum is not self.into:
                self.into.add_(self.sum)
            return None
        return self.sum.to(self.dtype)


ONE = 1.0


def _factor_of(problem, upstream):
    """What upstream gradients are multiplied by before dx is rounded, and gradients divided by: a power of two, or ONE."""
    if upstream is None or problem.student.hidden.dtype is not torch.float16:
        return ONE
    top = upstream.abs().masked_fill(~torch.isfinite(upstream), 0).max() if len(upstream) else upstream.new_zeros(())
    return torch.exp2(torch.floor(torch.log2(FP16_TOP / top.clamp(min=2.0 ** -100))))


# ---- chunks of rows ----

class _Call:
    """Chunks of one call: their memory, and what flp_diverge makes of each."""

    def __init__(self, plan, heads, program, given, grads):
        self.plan, self.heads, self.grads = plan, heads, grads
        given = {"rest_weight": 0.0, **given}  # of built-in kinds: there is none
        numbers = [given.get(name, default) for name, (default, _, _) in program.parameters.items()]
        self.parameters = (ctypes.c_double * max(1, len(numbers)))(*numbers)

    def chunks(self, problem, fixed):
        """Ranges of active rows, with memory for the largest: what the budget has room for beside `fixed` bytes."""
        student, settings = problem.student, problem.student_settings
        count, vocab = len(self.heads[0].active), len(student.weight)
        budget = settings.budget or self.plan.in_force.budgets[_c.PASS_STEP]
        width = -(-vocab // VECTOR) * VECTOR
        of_row = width * (8 + (student.hidden.element_size() if self.grads else 0)) + 128
        of_row += 8 * (student.hidden.shape[1] + problem.teacher.hidden.shape[1])
        rows = max(1, min(count, (budget - fixed) // of_row))
        if fixed + of_row > budget:
            _eager_divergence.refuse_budget(budget, fixed + of_row, problem)
        make = student.hidden.new_empty
        self.x, self.y = (make((rows, width), dtype=torch.float32) for _ in range(2))
        self.dx = make((rows, width)) if self.grads else None
        self.made = make((rows, student.hidden.shape[1]), dtype=torch.float32) if self.grads & _c.GRAD_HIDDEN else None
        return [(first, min(first + rows, count)) for first in range(0, count, rows)]

    def diverge(self, rows, pulls):
        """-> values (n, VALUES) of some active rows, and dx (n, V), None without gradients"""
        n, vocab = rows[1] - rows[0], self.plan.key.vocab
        for head, scores in zip(self.heads, (self.x, self.y)):
            _scores_into(head, rows, scores[:n, :vocab])
        values = torch.empty((n, VALUES), dtype=torch.float32, device=self.x.device)
        units = [_unit_of(head, rows) for head in self.heads]
        args = _c.new_diverge_args()
        args.n, args.scores, args.teacher = n, address(self.x), address(self.y)
        args.scores_stride = args.teacher_stride = args.grad_scores_stride = stride_of(self.x)
        args.scale_rows, args.teacher_scale_rows = (address(unit) for unit in units)
        args.loss_parameters = ctypes.addressof(self.parameters)
        args.values, args.stream = address(values), _run.stream_of(self.plan.key.device)
        dx = self.dx[:n, :vocab] if self.grads else None
        if dx is not None:
            args.upstream, args.grad_scores = address(pulls), address(dx)
        self.plan.execute(args, "flp_diverge")
        if dx is not None and self.heads[0].cap_in is not None:
            _bend(self.heads[0], self.x[:n, :vocab], dx)
        return values, dx


def _unit_of(head, rows):
    """What raw scores, or with a softcap their tanh, are multiplied by, (n) float32."""
    return (head.row_scale[slice(*rows)] / _eager_torch.LOG2E).float()


def _bend(head, tanh, dx):
    """Multiplies dx, of tanh, by ∂tanh/∂x, in place, a tile of columns at a time."""
    for first in range(0, tanh.shape[1], head.tile_columns):
        part = slice(first, first + head.tile_columns)
        dx[:, part] = (dx[:, part].float() * (head.cap_in * (1 - tanh[:, part] ** 2))).to(dx.dtype)


def _scores_into(head, rows, out):
    """Raw scores of some active rows, of a softcap their tanh: _unit_of makes scores over T of these."""
    product(head.ops.hidden[head.active[slice(*rows)]], head.ops.weight.t(), out)
    if head.ops.bias is not None:
        out.add_(head.ops.bias.float())
    if head.cap_in is not None:
        out.mul_(head.cap_in).tanh_()
