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

# ∂y/∂operand of y = op(...), an operand each; what is not here has none.
PARTIALS = {
    NEG: lambda y, a: (-torch.ones_like(a),),
    ABS: lambda y, a: ((a > 0).double() - (a < 0).double(),),
    EXP: lambda y, a: (y,),
    EXPM1: lambda y, a: (y + 1,),
    LOG: lambda y, a: (1 / a,),
    SQRT: lambda y, a: (0.5 / y,),
    ADD: lambda y, a, b: (torch.ones_like(y), torch.ones_like(y)),
    SUB: lambda y, a, b: (torch.ones_like(y), -torch.ones_like(y)),
    MUL: lambda y, a, b: (b, a),
    DIV: lambda y, a, b: (1 / b, -y / b),
    MIN: lambda y, a, b: (_share(a > b, a == b), _share(b > a, a == b)),
    MAX: lambda y, a, b: (_share(a < b, a == b), _share(b < a, a == b)),
    CLAMP: lambda y, a, low, high: (((a >= low) & (a <= high)).double(), ((a < low) & (low < high)).double(),
                                    ((a > high) | (high < low)).double()),
    WHERE: lambda y, holds, a, b: (holds.double(), (~holds).double())}  # of its last two
MASKS = (MIN, MAX, CLAMP, WHERE, SUM)  # a partial of 0 leaves the operand out, whose own derivatives may be infinite


def _share(loses, ties):
    """Of one of two operands; it has all where it neither loses nor ties, as a NaN."""
    return (1 - 0.5 * ties.double()).masked_fill(loses, 0)


# nodes: [(op, operands)]; loss and metrics are nodes.
Program = collections.namedtuple("Program", "constants nodes loss metrics")
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
    return Program(numbers, [(word[0], word[1:]) for word in words], loss, [node for _, node in named])


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
            value = VALUES[op](*(values[operand] for operand in operands[:arity(op)]))
        values.append(value)
    return values


def derivatives_of(program, values, counted):
    """The derivatives of the loss by its inputs, {flp_loss_input: (N,1) or (N,K) float64}"""
    whole = torch.ones_like(values[program.loss])
    found, upstream = {}, {program.loss: (whole, whole != 0)}
    for at in range(program.loss, -1, -1):
        if at not in upstream:
            continue
        (op, operands), (own, is_reached) = program.nodes[at], upstream[at]
        if op == INPUT:
            found[operands[0]] = own
        partials = (counted.double(),) if op == SUM else \
            PARTIALS[op](values[at], *(values[operand] for operand in operands[:arity(op)])) if op in PARTIALS else ()
        for operand, partial in zip(operands[1:] if op == WHERE else operands, partials):
            reaches = is_reached & (partial != 0) if op in MASKS else is_reached
            added = (own * partial).masked_fill(~reaches, 0)
            reaches = reaches.expand_as(added)
            if values[operand].shape[1] == 1:
                added, reaches = added.sum(1, keepdim=True), reaches.any(1, keepdim=True)
            others = upstream.get(operand)
            upstream[operand] = (added, reaches) if others is None else (added + others[0], reaches | others[1])
    return found


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
    may have a loss; that are NaN"""
    program = program_of(loss.program.data)
    values = values_of(program, _inputs_of(loss, out, stats, mean), parameters_of(loss), counted)
    if loss.weight is not None:
        has_loss &= loss.weight != 0

    def rows_of(value, like=out.loss):
        value = value.masked_fill(~has_loss[:, None], 0).masked_fill(bad[:, None], math.nan)
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
