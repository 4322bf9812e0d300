"""Rows of CASES, and of SAME, of policy_loss with a reference: a part of flp_cases.py. "reference" has fields of a
flp.Reference by name."""
import itertools

import torch

from flp_exact_divergences import DIVERGENCES
from flp_options import BF16, BIAS, BUFFER, TEMPERATURES, WHOLE, beside, case
from flp_problem import FILE

HEAD = {"hidden": "@teacher_hidden", "weight": "@teacher_weight"}
OLD = {"old_logprob": "@old", "mask": "@mask", **BIAS}
BETA = {"ref_logprob": "@ref", "beta": 0.1, "entropy_weight": 0.02}
RULES = {"reinforce": {}, "ppo": {"clip": (0.1, 0.3)}, "grpo": {}, "dapo": {}, "dr_grpo": {"length": 8.0}, "cispo": {},
         "nll": {"advantage": None, "old_logprob": None},
         FILE: {"parameters": {"share": 0.5}, "vectors": {"worth": "@worth"}, "old_logprob": None}}
MORE = {"nll": {"entropy": True}, FILE: {"average": "sequences"}}  # in the place of BETA
NUMBERS = [("jsd", {"mix": 0.2}), ("skew_kl", {"skew": 0.4}), ("lk", {"decay": 1.5}),
           ("neg_log_acceptance", {"acceptance_min": 0.4})]
EDGES = ["nan row", "bad ids", "int32 ids", "far ids", "beyond", "teacher beyond", "nan teacher row", "none left",
         "teacher none left", "teacher banned", "all ignored", "all masked", "masked nan of both",
         "masked nan", "advantage 0", "far down"]


def row(*edges, rule="grpo", of=None, **given):
    """A row; of: fields of the reference beside its head, which a bias goes with."""
    bias = {"bias": "@teacher_bias"} if given.get("bias") else {}
    return case("policy_loss", *edges, rule=rule, reference={**HEAD, **bias, **(of or {})}, **given)


BESIDES = [
    *[row(rule=rule, of={"coefficient": 0.3}, **{**OLD, **dtype, **options, **more}) for dtype in ({}, BF16)
      for rule, options in RULES.items() for more in ({}, MORE.get(rule, BETA))],
    *[row(rule="ppo", of={"kind": kind, "coefficient": 2.5}, **{**OLD, **options})
      for kind in DIVERGENCES for options in (
          BETA, {**WHOLE, **BF16}, {**TEMPERATURES, "entropy": True, "advantage": "@advantages"})],
    *[row(rule="dapo", of={"kind": kind, "parameters": numbers}, **OLD) for kind, numbers in NUMBERS],
    *[row(edge, of={"kind": kind}, **OLD, **BETA) for edge in EDGES for kind in ("reverse_kl", "jsd")],
    *[row(of=of, **{**OLD, **options}) for options in ({}, WHOLE, {**TEMPERATURES, **BF16}) for of in (
        {"temperature": 1.3, "softcap": 7.0, "scale": 0.8}, {"temperature": "@teacher_temperatures"})],
    *[row("bad temperature", "bad teacher temperature", of={"temperature": of}, **OLD, **options)
      for options in ({}, TEMPERATURES) for of in (None, "@teacher_temperatures") if of or options],
    *[row(frozen=frozen, **OLD)
      for count in (1, 2, 3) for frozen in itertools.combinations(("hidden", "weight", "bias"), count)],
    *[row(rule=rule, grad_scale=scale, total=total, **{**OLD, **BETA, **BUFFER, **dtype})
      for rule, scale, total in (("grpo", 0.25, 17), ("dapo", 8.0, "@total")) for dtype in ({}, BF16)],
    *[row(few=few, lead=lead, **BIAS, **more) for few, lead in ((0, (0, 5)), (0, (3, 0)), (0, (0, 0)), (1, (1, 1)))
      for more in ({}, {**BUFFER, "grad_scale": 8.0})],
    *[row(teacher_dtype=dtype, **OLD) for dtype in (torch.bfloat16, torch.float16)],
    *[row("disjoint", of={"kind": kind}, **OLD) for kind in ("forward_kl", "skew_kl", "neg_log_acceptance", "lk")],
    row("banned", **OLD), row("ignored as 5", ignore_index=5, **OLD), row("sharp", of={"kind": "lk"}, near=1e-4, **OLD),
    row(advantage="@advantages", total="@total", budget=2**27),
    row(rule="nll", advantage=None, of={"hidden": "@hidden", "weight": "@weight"}),
]
SAME_BESIDES = [
    *[beside(row(rule=rule, of={"kind": kind}, **OLD, **dtype), budget=2**27)
      for rule, kind, dtype in (("ppo", "reverse_kl", {}), ("grpo", "jsd", BF16))],
    *[beside(row(of=of, **TEMPERATURES), entropy_weight=0.0) for of in ({}, {"temperature": "@temperatures"})],
]
