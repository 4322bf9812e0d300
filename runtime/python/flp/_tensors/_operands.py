"""What one pass is given, beside its Settings: the operands of a head, and the loss of a step.

Invariant: tensors are settled in memory, so that their addresses are those of their values; they arrive checked.
"""
import ctypes

import torch

from .._library import _c
from . import _check
from ._address import address, dense, settled

# The tensors of one call, in the order in which functions of autograd take them.
OPERANDS = ("hidden", "weight", "bias", "target", "temperature_rows", "rows", "list_offsets", "list_ids", "lora_a",
            "lora_b")
# What may have a gradient, of every head and with an adapter.
OF_HEAD = {"hidden": _c.GRAD_HIDDEN, "weight": _c.GRAD_WEIGHT, "bias": _c.GRAD_BIAS}
GRADIENTS = {**OF_HEAD, "lora_a": _c.GRAD_LORA_A, "lora_b": _c.GRAD_LORA_B}
ADAPTER = (_c.GRAD_LORA_A, _c.GRAD_LORA_B)
OF_PRODUCTS = _c.GRAD_HIDDEN | _c.GRAD_WEIGHT  # gradients that are matrix products


def grads_of(names):
    """The needs-grad mask of names of OF_HEAD."""
    for name in names:
        if name not in OF_HEAD:
            _check.refuse(ValueError, "grads", repr(name), ", ".join(OF_HEAD))
    return sum(OF_HEAD[name] for name in set(names))


class Operands:
    """The tensors of one call, settled in memory: hidden (N,D), weight (V,D), bias (V) or None, target (N) or (N,K), K
    targets a row with logprobs and upstream gradients of that shape, temperature_rows (N) float32 or None, rows (row
    count) int32 or None, list_offsets (N+1) int64 and list_ids (count) of target's dtype or both None, lora_a (r,D) and
    lora_b (V,r) or both None.

    *_stride      elements between rows, as dense_rows leaves them
    is_lora_wide  whether the adapter's gradients are float32 beside operands of 16 bits: one of it was float32
    """

    __slots__ = (*OPERANDS, "hidden_stride", "weight_stride", "lora_a_stride", "lora_b_stride", "is_lora_wide")

    def __init__(self, hidden, weight, bias, target, temperature_rows=None, rows=None, list_offsets=None, list_ids=None,
                 lora_a=None, lora_b=None):
        self.hidden, self.hidden_stride = _check.dense_rows(settled("hidden", hidden))
        self.weight, self.weight_stride = _check.dense_rows(settled("weight", weight))
        self.bias = dense("bias", bias)
        self.target = dense("target", target)
        self.temperature_rows = dense("temperature", temperature_rows)
        self.rows = dense("rows", rows)
        self.list_offsets, self.list_ids = dense("keep[0]", list_offsets), dense("keep[1]", list_ids)
        self.lora_a = self.lora_b = None
        if lora_a is not None:
            dtype = _check.product_dtype(hidden, weight)
            self.is_lora_wide = dtype is not torch.float32 and torch.float32 in (lora_a.dtype, lora_b.dtype)
            self.lora_a, self.lora_a_stride = _check.dense_rows(settled("lora.a", lora_a.detach().to(dtype)))
            self.lora_b, self.lora_b_stride = _check.dense_rows(settled("lora.b", lora_b.detach().to(dtype)))

    @property
    def is_listed(self):
        return self.list_offsets is not None

    @property
    def targets(self):
        return targets_of(self.target)


def targets_of(target):
    """How many targets a row of (N) or (N,K) ids has: K, or 0 for one."""
    return target.shape[1] if target.dim() == 2 else 0


class Loss:
    """The loss of a step: a program, its parameters by name, and its rows (N) float32, None where it does without:
    old_logprob, ref_logprob, advantage, weight, and vectors by name; teacher_logprob (N,K) of a loss over targets."""

    __slots__ = ("program", "parameters", "old_logprob", "ref_logprob", "advantage", "weight", "vectors",
                 "teacher_logprob")

    def __init__(self, program, parameters, old_logprob, ref_logprob, advantage, weight, vectors, teacher_logprob=None):
        self.teacher_logprob = dense("teacher_logprob", teacher_logprob)
        self.program, self.parameters = program, parameters
        self.old_logprob, self.ref_logprob = dense("old_logprob", old_logprob), dense("ref_logprob", ref_logprob)
        self.advantage, self.weight = dense("advantage", advantage), dense("weight of a row", weight)
        self.vectors = {name: dense("vectors[%r]" % name, vectors[name]) for name in program.vectors}

    def tensors(self):
        """What of_tensors takes."""
        return (self.old_logprob, self.ref_logprob, self.advantage, self.weight, self.teacher_logprob,
                *self.vectors.values())

    @classmethod
    def of_tensors(cls, program, parameters, tensors):
        """The loss of the same program whose tensors these are."""
        old_logprob, ref_logprob, advantage, weight, teacher_logprob, *vectors = tensors
        return cls(program, parameters, old_logprob, ref_logprob, advantage, weight,
                   dict(zip(program.vectors, vectors)), teacher_logprob)

    def fields(self):
        """flp_args fields of what the loss reads."""
        values = [self.parameters.get(name, row[0]) for name, row in self.program.parameters.items()]
        vectors = [address(self.vectors[name]) for name in self.program.vectors]
        return {"teacher_logprob": self.teacher_logprob, "old_logprob": self.old_logprob,
                "ref_logprob": self.ref_logprob, "advantage": self.advantage, "row_weight": self.weight,
                "vectors": (ctypes.c_void_p * _c.VECTORS_MAX)(*vectors),
                "loss_parameters": (ctypes.c_double * max(len(values), 1))(*values)}


class Step:
    """What a step gave: loss (N), logprob of target's shape, entropy (N) or None, metrics (metrics of the program, N),
    top (_top.Outputs), gradients."""

    __slots__ = ("loss", "logprob", "entropy", "metrics", "top", "gradients")
