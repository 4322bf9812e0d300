"""The torch form of a step: forward, the loss program of each row, backward.

Invariants: a program's values and derivatives are those of runtime/loss (eval.c, targets.c, partials.c), in float64
between float32 rows: a row of weight 0 has nothing, a bad one NaN, and what a program leaves out adds nothing, even where
its own derivative is infinite. Derivatives are made in reverse, so that sums over targets need nothing of their own.
"""
import collections
import functools
import math
import struct

import torch

from .. import errors
from .._library import _c
from . import _eager_lists, _eager_torch

# flp_loss_input: what a program reads of a row
LOGPROB, ENTROPY, OLD_LOGPROB, REF_LOGPROB, ADVANTAGE, WEIGHT, FIRST_VECTOR = range(7)
TARGET_LOGPROB, TEACHER_LOGPROB, LSE, MEAN_SCORE = range(_c.INPUTS_MAX, _c.INPUTS_MAX + 4)

# flp_loss_op
(CONSTANT, INPUT, PARAMETER, NEG, ABS, EXP, EXPM1, LOG, SQRT, DETACH, ADD, SUB, MUL, DIV, MIN, MAX, CLAMP, LT, LE, EQ, AND,
 OR, NOT, WHERE, SUM) = range(25)

VALUES = {
    NEG: torch.neg, ABS: torch.abs, EXP: torch.exp, EXPM1: torch.expm1, LOG: torch.log, SQRT: torch.sqrt,
    DETACH: lambda a: a, ADD: torch.add, SUB: torch.sub, MUL: torch.mul, DIV: torch.div, MIN: torch.minimum,
    MAX: torch.maximum, CLAMP: lambda a, low, high: torch.minimum(torch.maximum(a, low), high), LT: torch.lt,
    LE: torch.le, EQ: torch.eq, AND: torch.logical_and, OR: torch.logical_or, NOT: torch.logical_not, WHERE: torch.where}

# ∂y/∂operand of y = op(...), a function for each operand, ONE where it is 1, None where there is none; what is not here
# has none.
ONE = 1
PARTIALS = {
    NEG: (lambda y, a: -1.0,),
    ABS: (lambda y, a: (a > 0).double() - (a < 0).double(),),
    EXP: (lambda y, a: y,),
    EXPM1: (lambda y, a: y + 1,),
    LOG: (lambda y, a: 1 / a,),
    SQRT: (lambda y, a: 0.5 / y,),
    ADD: (ONE, ONE),
    SUB: (ONE, lambda y, a, b: -1.0),
    MUL: (lambda y, a, b: b, lambda y, a, b: a),
    DIV: (lambda y, a, b: 1 / b, lambda y, a, b: -y / b),
    MIN: (lambda y, a, b: _share(a > b, a == b), lambda y, a, b: _share(b > a, a == b)),
    MAX: (lambda y, a, b: _share(a < b, a == b), lambda y, a, b: _share(b < a, a == b)),
    CLAMP: (lambda y, a, low, high: ((a >= low) & (a <= high)).double(),
            lambda y, a, low, high: ((a < low) & (low < high)).double(),
            lambda y, a, low, high: ((a > high) | (high < low)).double()),
    WHERE: (None, lambda y, holds, a, b: holds.double(), lambda y, holds, a, b: (~holds).double())}
MASKS = (MIN, MAX, CLAMP, WHERE, SUM)  # a partial of 0 leaves the operand out, whose own derivatives may be infinite


def _share(loses, ties):
    """Of one of two operands; it has all where it neither loses nor ties, as a NaN."""
    return (1 - 0.5 * ties.double()).masked_fill(loses, 0)


# nodes: [(op, operands)], operands of an inner node nodes; loss and metrics are nodes; moves: of each node whether a
# derivative is asked for by what it reads
Program = collections.namedtuple("Program", "constants nodes loss metrics moves")
ASKED = LOGPROB, ENTROPY, TARGET_LOGPROB, LSE, MEAN_SCORE
HEAD = struct.Struct("<4sII%ds6I" % _c.TITLE_BYTES)  # runtime/loss/bytes.c


@functools.lru_cache(maxsize=64)
def program_of(data):
    """The program in bytes that libflp has read before. error: UnsupportedError of another format"""
    _, version, _, _, parameters, vectors, constants, nodes, metrics, loss = HEAD.unpack_from(data)
    if not 1 <= version <= 3:
        raise errors.UnsupportedError("loss: its bytes are of version %d (accepted: 1 to 3)" % version)
    at = HEAD.size + parameters * (_c.NAME_BYTES + 24) + vectors * _c.NAME_BYTES
    numbers = struct.unpack_from("<%dd" % constants, data, at)
    words = list(struct.iter_unpack("<4H", data[at + 8 * constants:at + 8 * (constants + nodes)]))
    named = struct.iter_unpack("<%dsI" % _c.NAME_BYTES, data[at + 8 * (constants + nodes):])
    nodes = [(op, operands[:arity(op)]) for op, *operands in words]
    moves = []
    for op, operands in nodes:
        is_inner = op not in (CONSTANT, INPUT, PARAMETER, DETACH)
        moves.append(is_inner and any(moves[each] for each in operands) or op == INPUT and operands[0] in ASKED)
    return Program(numbers, nodes, loss, [node for _, node in named], moves)


def arity(op):
    """How many of the operands are nodes."""
    return 1 if op < ADD or op in (NOT, SUM) else 3 if op in (CLAMP, WHERE) else 2


def values_of(program, inputs, parameters, counted):
    """The value of each node: (N,1) float64 of a row, (N,K) of its targets; conditions bool. counted: (N,K) bool, the
    targets that are not ignored"""
    values = []
    for op, operands in program.nodes:
        if op in (CONSTANT, PARAMETER):
            number = (program.constants if op == CONSTANT else parameters)[operands[0]]
            value = torch.full((1, 1), number, dtype=torch.float64, device=counted.device)
        elif op == INPUT:
            value = inputs[operands[0]]
        elif op == SUM:
            value = values[operands[0]].masked_fill(~counted, 0).sum(1, keepdim=True)
        else:
            value = VALUES[op](*(values[operand] for operand in operands))
        values.append(value)
    return values


def derivatives_of(program, values, counted):
    """The derivatives of the loss by those of its inputs that are asked for, {flp_loss_input: (N,1) or (N,K)
    float64}"""
    partials_of = {**PARTIALS, SUM: (lambda y, a: counted.double(),)}
    found = {}
    upstream = {program.loss: (torch.ones_like(values[program.loss]), None)}  # of nodes, and where it counts; None: all
    for at in range(program.loss, -1, -1):
        if at not in upstream:
            continue
        (op, operands), (own, is_reached) = program.nodes[at], upstream[at]
        if op == INPUT:
            found[operands[0]] = own
        for operand, partial_of in zip(operands, partials_of.get(op, ())):
            if partial_of is None or not program.moves[operand]:
                continue
            added, reaches = own, is_reached
            if partial_of is not ONE:
                partial = partial_of(values[at], *(values[each] for each in operands))
                added = own * partial
            if op in MASKS:
                reaches = _both(torch.logical_and, reaches, partial != 0)
            if reaches is not None:
                reaches = reaches.expand_as(added)
                added = torch.where(reaches, added, 0)
            if values[operand].shape[1] < added.shape[1]:
                added = added.sum(1, keepdim=True)
                reaches = reaches if reaches is None else reaches.any(1, keepdim=True)
            if operand in upstream:
                others, where = upstream[operand]
                added, reaches = added + others, None if reaches is None or where is None else reaches | where
            upstream[operand] = added, reaches
    return found


def _both(of, one, other):
    return other if one is None else of(one, other)


def run(plan, ops, settings, loss, out, made):
    """Fills the rows of out, a _run.Step, and the gradients made: of hidden, weight and bias, each may be None."""
    form = _eager_lists if ops.is_listed else _eager_torch
    stats = torch.empty((ops.hidden.shape[0], 4), dtype=torch.float32, device=ops.hidden.device)
    mean = torch.empty_like(stats[:, 0]) if "mean_score" in loss.program.inputs else None
    active, bad = form.forward(plan, ops, settings, out.logprob, out.entropy, stats, out.top, mean)
    counted = _eager_torch.by_row(ops.target != settings.ignore_index)
    has_loss = torch.zeros_like(bad)
    has_loss[active] = True
    wants_gradients = any(gradient is not None for gradient in made)
    upstream = evaluate(loss, out, stats, mean, counted, has_loss, bad, wants_gradients)
    if wants_gradients:
        form.backward(plan, ops, settings, stats, upstream, *made, counts=False)


def evaluate(loss, out, stats, mean, counted, has_loss, bad, wants_gradients):
    """Fills loss and metrics of out, whose logprob and entropy the program reads -> the upstream gradients that follow
    of logprob, entropy, lse and the mean of scores, None where it reads them not. has_loss, bad: (N) bool, rows that
    may have a loss; that are NaN; None: all, and none"""
    program = program_of(loss.program.data)
    values = values_of(program, _inputs_of(loss, out, stats, mean), parameters_of(loss), counted)
    if loss.weight is not None:
        has_loss = _both(torch.logical_and, has_loss, loss.weight != 0)

    def rows_of(value, like=out.loss):
        if has_loss is not None:
            value = torch.where(has_loss[:, None], value, 0)
        if bad is not None:
            value = value.masked_fill(bad[:, None], math.nan)
        return value.expand(_eager_torch.by_row(like).shape).reshape(like.shape).float()

    out.loss.copy_(rows_of(values[program.loss]))
    for row, node in zip(out.metrics, program.metrics):
        row.copy_(rows_of(values[node]))
    if not wants_gradients:
        return None
    found = derivatives_of(program, values, counted)
    of_logprob = found.get(LOGPROB, found.get(TARGET_LOGPROB, torch.zeros_like(values[program.loss])))
    return [rows_of(of_logprob, out.logprob),
            *(rows_of(found[by]) if by in found else None for by in (ENTROPY, LSE, MEAN_SCORE))]


def parameters_of(loss):
    """In the program's order. error: ArgumentError naming one outside its bounds, as libflp words it"""
    values = []
    for name, (fallback, low, high) in loss.program.parameters.items():
        value = loss.parameters.get(name, fallback)
        if not (math.isfinite(value) and low <= value <= high):
            raise errors.ArgumentError("args.loss_parameters: %s of loss %s is %g; a finite number from %g to %g is "
                                       "accepted" % (name, loss.program.name, value, low, high))
        values.append(value)
    return values


def _inputs_of(loss, out, stats, mean):
    """What the program may read, {flp_loss_input: (N,1) or (N,K) float64}"""
    lse = _eager_torch.LN2 * (stats[:, 0].double() + stats[:, 1].double())
    old = out.logprob if loss.old_logprob is None else loss.old_logprob
    weight = torch.ones_like(lse) if loss.weight is None else loss.weight
    given = {LOGPROB: out.logprob, ENTROPY: out.entropy, OLD_LOGPROB: old, REF_LOGPROB: loss.ref_logprob,
             ADVANTAGE: loss.advantage, WEIGHT: weight, TARGET_LOGPROB: out.logprob,
             TEACHER_LOGPROB: loss.teacher_logprob, LSE: lse.float(), MEAN_SCORE: mean,
             **{FIRST_VECTOR + place: values for place, values in enumerate(loss.vectors.values())}}
    return {name: _eager_torch.by_row(values).double() for name, values in given.items() if values is not None}
