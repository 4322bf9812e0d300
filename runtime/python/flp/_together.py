"""Which options of a head go without which: one table, which every function that takes them asks.

Invariant: a pair of options that is refused for being a pair is refused here, by the name of the second; what depends on
dtypes, on a rung or on a value is refused where that is known.
"""
from torch import Tensor

from ._numbers import refuse

SLICES = "slices"  # mixed, where the weight goes into the product slice by slice
RECOMPUTES = ("save", "old_lse", "tail", "tail_report")
# option: how messages name it, and what a call with it goes without; target: several ids a row
WITHOUT = {
    "lora": ("lora", ("keep", "kept_mass", "save", "tail", "tail_report", "topk", "rank", "grad_weight_accumulate", "mixed",
                      "target", "sequence_parallel", "gather")),
    "keep": ("keep, whose columns are few already", (*RECOMPUTES, "chunk_rows", "topk", "rank", "loss", "target")),
    "target": ("several targets a row, whose backward pass recomputes", (*RECOMPUTES, "topk", "rank")),
    "topk": ("topk or rank, whose forward pass keeps nothing", ("save", "tail")),
    "rank": ("topk or rank, whose forward pass keeps nothing", ("save", "tail")),
    SLICES: ("mixed, which takes the weight in slices", ("keep", "target", "chunk_rows", "save", "tail", "topk", "rank")),
    "eager": ("eager, whose gradients are torch's own", ("tail", "tail_report", "mixed", "lora")),
}
ACCEPTED = {"save": "None or False", "tail": "None or 0", "topk": "0", "rank": "False", "kept_mass": "False",
            "sequence_parallel": "False", "target": "one target a row"}


def check(**given):
    """Refuses what does not go together of the options of a call, each of which may be as if it were not given."""
    for option, other in apart(given):
        refuse(ValueError, other, _shown(other, given[other]),
               "%s with %s" % (ACCEPTED.get(other, "None"), WITHOUT[option][0]))


def apart(given):
    """The pairs of given options that do not go together, [(option, what it goes without)]"""
    return [(option, other) for option, (_, others) in WITHOUT.items() if _is_given(given.get(option))
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
