"""Which options of a head go without which: one table, which every function that takes them asks.

Invariant: a pair of options that is refused for being a pair is refused here, by the name of the second; what depends
on dtypes, on a rung or on a value is refused where that is known.
"""
from . import _fields
from ._numbers import refuse

SLICES = "slices"  # mixed, where the weight goes into the product slice by slice
# What options that only Python has add to _fields.APART.
OWN = {
    "lora": ("kept_mass", "grad_weight_accumulate", "sequence_parallel", "gather"),
    "keep": ("old_lse", "tail_report", "chunk_rows"),
    "target": ("old_lse",),
    SLICES: ("chunk_rows", "save"),
    "eager": ("tail", "tail_report", "mixed", "lora"),
}
WITH_ONE_HEAD = "save", "old_lse", "tail", "tail_report", "keep", "lora", "topk", "rank", "mixed"
ROWS = (*_fields.APART, ("eager", (), "whose gradients are torch's own"),
        ("reference", WITH_ONE_HEAD, "whose step makes the scores of two heads"))
WITHOUT = {}  # option: {what a call with it goes without: why}
for _option, _others, _why in ROWS:
    _without = WITHOUT.setdefault(_option, dict.fromkeys(OWN.get(_option, ()), _why))
    _without.update(dict.fromkeys(_others, _why))
NAMES = {"target": "several targets a row", SLICES: "mixed"}
ACCEPTED = {"save": "None or False", "tail": "None or 0", "topk": "0", "rank": "False", "kept_mass": "False",
            "sequence_parallel": "False", "target": "one target a row"}


def check(given):
    """Refuses what does not go together of the options of a call, each of which may be as if it were not given -> those
    that are given, with their values."""
    found = given_of(given)
    for option, other in apart(found):
        refuse(ValueError, "mixed" if other == SLICES else other, _shown(other, found[other]),
               "%s with %s, %s" % (ACCEPTED.get(other, "None"), NAMES.get(option, option), WITHOUT[option][other]))
    return found


def given_of(options):
    """Those that are given, with their values."""
    return {option: value for option, value in options.items()
            if value is not None and value is not False and is_given(value)}  # most are neither


def apart(found):
    """The pairs of these options that do not go together, [(option, what it goes without)]"""
    if len(found) < 2:
        return []
    return [(option, other) for option, others in WITHOUT.items() if option in found
            for other in others if other in found]


def allows(found, other):
    """Whether another option goes with these."""
    return not any(other in WITHOUT.get(option, ()) for option in found)


def several(target, hidden):
    """A target of more ids a row than one, for check; else None. Arrays of anything."""
    is_several = getattr(target, "ndim", 0) == getattr(hidden, "ndim", 0) > 0
    return target if is_several and target.shape[-1] != 1 else None


def is_given(value):
    """Whether an option's value is another than that of one that is not given."""
    return not (value is None or isinstance(value, (int, float)) and value == 0)


def _shown(option, value):
    if hasattr(value, "shape"):
        return "of shape %s" % (tuple(value.shape),) if option == "target" else "a tensor"
    return repr(value) if isinstance(value, (int, float, str)) else "given"
