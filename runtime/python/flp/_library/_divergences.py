"""What divergences of two heads are, whatever holds their arrays: kinds, parameters, and bytes of chunks of rows where
flp_diverge compares the scores."""
import collections
import math
from typing import Mapping

from .. import errors
from . import _c, _programs
from ._numbers import number_of, refuse, refuse_type

# Options of each built-in kind, with their defaults.
OPTIONS = {"forward_kl": {}, "reverse_kl": {}, "jsd": {"mix": 0.5}, "skew_kl": {"skew": 0.1}, "total_variation": {},
           "lk": {"decay": 3.0}, "neg_log_acceptance": {"acceptance_min": 1e-30}}
KINDS = ", ".join(OPTIONS) + ", or the path of a loss over targets, *" + _programs.FILE
WITHOUT_REST = "forward_kl", "lk"  # kinds that are infinite where p > 0 and q = 0
OTHERS = ("entropy", "acceptance", "agreement")  # metrics beside the divergence
OF_COLUMNS = {"target_logprob", "teacher_logprob", "weight"}  # what a loss over all columns may read
STATE, VALUES = 64, 6  # of a row, as flp_diverge_args has them
ACCEPTANCE = 4  # which of them
VECTOR = 8  # columns that rows of a chunk are padded to
PANELS = 256, 128  # rows that a forward pass takes together, on Hopper and elsewhere
# Rows: whose scores are held at a time, as more would not stay near the caches; with a gradient for each of these, at
# least: products that sum over more rows read and write what they add to less often
SCORES_MOST, GRADIENTS_EACH = 1024, 2
LEAST_BESIDE = 2 * PANELS[0]  # scores held where more of them would take memory from gradients
WAVE_ELEMENTS = 1 << 22  # of the gradient of hidden that products fill a Hopper GPU with once
FP16_TOP = 16.0  # what the upstream gradient of a row becomes where dx is float16, which holds 6e-8 to 65504

# A kind's program and {option: its default}.
Kind = collections.namedtuple("Kind", "program options")


def kind_of(kind, files=True):
    """The Kind of an argument. files: whether the path of a Lua file is one. error: those of _programs too"""
    if not isinstance(kind, str):
        refuse_type("kind", kind, KINDS)
    if not kind.endswith(_programs.FILE):
        if kind not in OPTIONS:
            refuse(ValueError, "kind", repr(kind), KINDS)
        return Kind(_programs.builtin(kind), OPTIONS[kind])
    if not files:
        refuse(ValueError, "kind", repr(kind), ", ".join(OPTIONS))
    program = _programs.of_file(kind)
    if program.name in OTHERS:
        refuse(ValueError, "kind", repr(kind), "a file of another name than the metrics %s" % ", ".join(OTHERS))
    if not program.inputs <= OF_COLUMNS or not program.inputs & {"target_logprob"}:
        refuse(ValueError, "kind", repr(kind), "a loss that reads %s alone" % ", ".join(sorted(OF_COLUMNS)))
    return Kind(program, {name: default for name, (default, _, _) in program.parameters.items()})


def given_of(kind, own, parameters):
    """{option: its number} of a call. own: the Kind of the argument kind"""
    if not isinstance(parameters, Mapping):
        refuse_type("parameters", parameters, "{name: number}")
    for name, value in parameters.items():
        field = "parameters[%r]" % name
        if name not in own.options:
            refuse(ValueError, field, value, ", ".join(own.options) or "none with %s" % kind)
        _, least, most = own.program.parameters[name]
        if not least <= number_of(field, value) <= most:
            refuse(ValueError, field, value, "%g to %g" % (least, most))
    return {**own.options, **parameters}


def numbers_of(program, given):
    """What flp_diverge_args.loss_parameters has of given options."""
    given = {"rest_weight": 0.0, **given}  # of built-in kinds: there is none
    return [given.get(name, default) for name, (default, _, _) in program.parameters.items()]


def bounds_of(kind):
    """What each of VALUES is never below, and never above: rounding may be."""
    least, most = [-math.inf] * VALUES, [math.inf] * VALUES
    most[ACCEPTANCE] = 1.0
    if kind in OPTIONS:
        least[0], most[0] = 0.0, 1.0 if kind == "total_variation" else math.inf
    return tuple(least), tuple(most)


def width_of(vocab):
    """Elements between rows of a chunk's scores."""
    return -(-vocab // VECTOR) * VECTOR


def bytes_of(vocab, hidden_bytes, element, grads, sums):
    """Bytes that a call takes beyond what it gives: at once, and for each row whose scores, and whose gradient of
    them, it holds. hidden_bytes: of a row of each head's hidden states, the student's first; element: bytes of one of
    these; grads: the mask; sums: bytes of sums of the weight's gradient"""
    width = width_of(vocab)
    of_scores = 8 * width + 256 + 8 * STATE + 2 * sum(hidden_bytes)
    return sums, of_scores, element * width + 3 * hidden_bytes[0] + 64 if grads else 0


def rows_of_chunk(budget, bytes_of_call, rows, at_once=False, wave=0):
    """-> how many of a call's rows have their scores held, and how many their gradient, for products with it. at_once:
    as many, as no sum is the better for more of them. Panels of a forward pass are whole, where there
    is room for one, and so are waves of rows of products, 0 for none"""
    fixed, of_scores, of_gradient = bytes_of_call
    each = 1 if at_once else GRADIENTS_EACH
    held = _whole((budget - fixed) // (of_scores + each * of_gradient)) or \
        _whole((budget - fixed) // (of_scores + of_gradient)) or 1
    held = min(rows, held, SCORES_MOST)
    more = max(held, min(rows, (budget - fixed - held * of_scores) // of_gradient)) if of_gradient else held
    waves = (budget - fixed - min(held, LEAST_BESIDE) * of_scores) // of_gradient // wave if wave and of_gradient else 0
    if more < rows and waves:
        waves = min(waves, -(-held // wave)) if at_once else waves
        room = _whole((budget - fixed - waves * wave * of_gradient) // of_scores)
        return min(SCORES_MOST, waves * wave, room), min(rows, waves * wave)
    if at_once or more == rows:
        return held, held if at_once else rows
    return held, more // held * held


def wave_of(depth, is_alone):
    """Rows of hidden states of a depth whose gradients are a wave of products. is_alone: beside none of the weight,
    where half tiles are a wave too"""
    return max(1, (WAVE_ELEMENTS >> is_alone) // depth // PANELS[0]) * PANELS[0]


def rows_beside(budget, bytes_of_call, rows):
    """-> how many of a call's rows have their scores held where the gradients of all of them are kept; 0: the budget
    has no room."""
    fixed, of_scores, of_gradient = bytes_of_call
    held = min(rows, _whole(max(0, budget - fixed - rows * of_gradient) // of_scores), SCORES_MOST)
    return held if held >= min(rows, PANELS[-1]) else 0


def _whole(rows):
    return next((rows // panel * panel for panel in PANELS if rows >= panel), rows)


def refuse_budget(budget, smallest, rows, vocab):
    raise errors.BudgetError("budget is %d bytes (accepted: at least %d for %d rows of a vocabulary of %d)" %
                             (budget, smallest, rows, vocab))
