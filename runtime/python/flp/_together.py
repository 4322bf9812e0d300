"""Which options of a head go without which: one table, which every function that takes them asks.

Invariant: a pair of options that is refused for being a pair is refused here, by the name of the second; what depends on
dtypes, on a rung or on a value is refused where that is known.
"""
from torch import Tensor

from . import _fields
from ._numbers import refuse

SLICES = "slices"  # mixed, where the weight goes into the product slice by slice
# What options that only Python has add to _fields.APART.
OWN = {
    "lora": ("kept_mass", "tail_report", "grad_weight_accumulate", "sequence_parallel", "gather"),
    "keep": ("old_lse", "tail_report", "chunk_rows"),
    "target": ("old_lse", "tail_report"),
    SLICES: ("chunk_rows", "save"),
    "eager": ("tail", "tail_report", "mixed", "lora"),
}
ROWS = (*_fields.APART, ("eager", (), "whose gradients are torch's own"))
WHY = {option: why for option, _, why in ROWS}
# option: what a call with it goes without
WITHOUT = {option: others + OWN.get(option, ()) for option, others, _ in ROWS}
NAMES = {"target": "several targets a row", SLICES: "mixed"}
ACCEPTED = {"save": "None or False", "tail": "None or 0", "topk": "0", "rank": "False", "kept_mass": "False",
            "sequence_parallel": "False", "target": "one target a row"}


def check(**given):
    """Refuses what does not go together of the options of a call, each of which may be as if it were not given."""
    for option, other in apart(given):
        refuse(ValueError, other, _shown(other, given[other]),
               "%s with %s, %s" % (ACCEPTED.get(other, "None"), NAMES.get(option, option), WHY[option]))


def apart(given):
    """The pairs of given options that do not go together, [(option, what it goes without)]"""
    return [(option, other) for option, others in WITHOUT.items() if _is_given(given.get(option))
            for other in others if _is_given(given.get(other))]


def several(target, hidden):
    """A target of more ids a row than one, for check; else None."""
    is_several = isinstance(target, Tensor) and isinstance(hidden, Tensor) and target.dim() == hidden.dim() > 0
    return target if is_several and target.shape[-1] != 1 else None


def _is_given(value):
    return value is not None and value is not False and not (isinstance(value, (int, float)) and value == 0)


def _shown(option, value):
    if isinstance(value, Tensor):
        return "of shape %s" % (tuple(value.shape),) if option == "target" else "a tensor"
    return repr(value) if isinstance(value, (int, float, str)) else "given"
