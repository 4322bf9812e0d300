"""A call of a head: operands by name, settings, and which gradients are wanted. One place makes it, from the keywords
of any public function, and checks them; _autograd.py runs it.

Invariants: a failure names the field, its value and what is accepted; operands are two-dimensional and of one device,
and still those that autograd knows; nothing here reads a value from a device, so nothing synchronises.
"""
from typing import Any

import torch

from .._library import _c, _together
from .._library._numbers import mixed_of
from . import _buffers, _check, _lora, _mixed, _top, _transforms
from ._operands import GRADIENTS, Operands

NONE: Any = {}
PLAIN = "plain reverse mode, torch.autograd"
# Options without a rule for transforms of torch.func, in a function that has one, and how messages name them.
RULELESS = {"keep": "keep", "lora": "lora", "topk": "topk or rank", "rank": "topk or rank", "statistics": "statistics"}


class Call:
    """One call.

    operands  {name: tensor or None}, in the order of OPERANDS, flattened
    settings  _check.Settings
    grads     the needs-grad mask: bits _c.GRAD_*
    lead      shape of one value a row; shape: of target
    """

    __slots__ = ("operands", "settings", "grads", "lead", "shape")

    def __init__(self, function, hidden, weight, target, bias=None, *, instead=None, names=("weight", "bias"),
                 lead=None, several=True, grads=None, others=NONE, asked=NONE, temperature=1.0, rows=None, softcap=None,
                 scale=1.0, ignore_index=-100, budget=None, entropy=False, chunk_rows=None, save=False, old_lse=None,
                 keep=None, lora=None, tail=None, tail_report=None, grad_weight_accumulate=None, topk=0, rank=False,
                 statistics=False, mixed=False):
        """Options from temperature on are those of linear_logprob, as the caller gave them.

        function  the public function's name
        instead   what takes transforms of torch.func, which the function refuses; None: it has a rule for them
        names     what the function calls weight and bias
        lead      shape of target and temperature; None: hidden's without its last dimension
        several   whether target may have one dimension more, of K targets a row
        grads     the needs-grad mask; None: what requires a gradient now
        others    more tensors of the call, by field
        asked     more options, by keyword, which may not go with those here; their values are the function's to check
        mixed     False: the function takes none
        """
        found = _together.check({
            "target": _together.several(target, hidden), "lora": lora, "keep": keep, "save": save, "tail": tail,
            "old_lse": old_lse, "tail_report": tail_report, "topk": topk, "rank": rank,
            "statistics": statistics, "mixed": mixed, "chunk_rows": chunk_rows,
            "grad_weight_accumulate": grad_weight_accumulate, **asked})
        how = None if mixed is False else mixed_of(mixed)
        tensors = hidden, weight, bias, target, temperature, rows, old_lse
        if _transforms.in_force():
            _check_transforms(function, instead, found, (*tensors, *others.values(), getattr(lora, "a", None),
                                                         getattr(lora, "b", None)))
        lead, hidden, weight, bias, ids, scalar, temperature_rows, rows = _check.prepare(
            hidden, weight, target, bias, temperature, rows, lead, names, several and keep is None, how)
        settings = _check.Settings(scalar, softcap, scale, ignore_index, budget, entropy, chunk_rows)
        a = b = None
        if lora is not None:
            a, b, settings.lora_scale = _lora.checked(lora, hidden, weight, names[0])
        offsets, list_ids, ids = (None, None, ids) if keep is None else _check.lists_of(keep, ids)
        settings.mixed = _mixed.settled(how, hidden, weight, bias, found) if how else _c.MIXED_NONE
        settings.save = _check.save_of(save) if _together.allows(found, "save") else False
        settings.tail = _check.tail_of(tail)
        if old_lse is not None:
            settings.old_lse = _check.row_values_of("old_lse", old_lse, lead, hidden.device)
        if grad_weight_accumulate is not None or tail_report is not None:
            fields = "hidden", *names, "target", "temperature", "rows", "old_lse"
            _buffers.settle(settings, grad_weight_accumulate, tail_report, hidden, weight,
                            {**dict(zip(fields, tensors)), **others})
        if _top.is_asked(topk, rank, statistics):
            _top.settle(settings, topk, rank, statistics, weight.shape[0])
        self.operands = {"hidden": hidden, "weight": weight, "bias": bias, "target": ids,
                         "temperature_rows": temperature_rows, "rows": rows, "list_offsets": offsets,
                         "list_ids": list_ids, "lora_a": a, "lora_b": b}
        self.settings, self.lead, self.shape = settings, lead, target.shape
        self.grads = self._needed() if grads is None else grads

    def _needed(self):
        """The needs-grad mask of a call made now."""
        if not torch.is_grad_enabled():
            return 0
        tensors, mask = self.operands, 0
        for name, bit in GRADIENTS.items():
            if tensors[name] is not None and tensors[name].requires_grad:
                mask |= bit
        if self.settings.accumulate is not None and not mask & _c.GRAD_WEIGHT:
            _check.refuse(ValueError, _buffers.ACCUMULATOR, "given while weight does not require a gradient",
                          "a weight that requires a gradient, or None")
        return mask

    @property
    def is_plain(self):
        """Whether autograd's graph holds nothing but log-probabilities and entropies of a whole head."""
        return not (self.settings.gives_more or self.operands["list_offsets"] is not None or
                    self.operands["lora_a"] is not None)

    def detached(self, **others):
        """The operands, constants to autograd, with others in the place of some."""
        tensors = {**self.operands, **others}
        return Operands(*(None if tensor is None else tensor.detach() for tensor in tensors.values()))

    def shaped(self, results):
        """Results of rows as the caller has them: logprob, the entropy if asked for, best tokens and ranks, or what
        else stands behind, one a target; one result alone as it is."""
        if len(results) == 1:
            return _of_shape(results[0], self.shape)
        values, settings = 2 if self.settings.entropy else 1, self.settings
        shaped = tuple(_of_shape(result, self.lead if place == 1 and settings.entropy else self.shape)
                       for place, result in enumerate(results[:values if settings.gives_more else None]))
        return shaped + _top.packed(results[values:], settings, self.lead)


def _of_shape(values, shape):
    return values if values.shape == shape else values.reshape(shape)


def _check_transforms(function, instead, found, tensors):
    """Refuses tensors of a transform of torch.func where nothing has a rule for it."""
    if instead is None:
        names = [name for option, name in RULELESS.items() if option in found]
        if not names:
            return
        function, instead = "%s with %s" % (function, names[0]), PLAIN
    _transforms.check_plain(function, tensors, instead)
