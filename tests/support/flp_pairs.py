"""Rows of CASES, and of SAME, of divergences of two heads over the whole vocabulary: a part of flp_cases.py."""
import dataclasses
import itertools

import torch

from flp_exact_divergences import DIVERGENCES
from flp_options import BF16, BIAS, BUFFER, FP16, HEADS, LEADS, TEMPERATURES, WHOLE, beside, case, edged

TEACHER_WHOLE = {"teacher_bias": "@teacher_bias", "teacher_temperature": 1.3, "teacher_softcap": 7.0,
                 "teacher_scale": 0.8}
BIASES = {**BIAS, "teacher_bias": "@teacher_bias"}
SELF = {"teacher_hidden": "@hidden", "teacher_weight": "@weight"}
TEACHER_TEMPERATURES = {"teacher_temperature": "@teacher_temperatures"}
PAIR_EDGES = ["nan row", "nan teacher row", "beyond", "teacher beyond", "none left", "teacher none left", "banned",
              "teacher banned"]
PAIR_HEADS = [
    *[options for options in HEADS if "budget" not in options], {"budget": 2**27},  # two heads are held whole
    *[{**WHOLE, **TEACHER_WHOLE, **dtype} for dtype in ({}, BF16, FP16)],
    {**TEMPERATURES, **TEACHER_TEMPERATURES}, {"temperature": 0.7, **TEACHER_TEMPERATURES, **BIASES},
    {**BF16, "teacher_dtype": torch.float32, **BIASES}, {"teacher_dtype": torch.float16, **BIASES},
    {"mask": "@numbers"}, {"lead": (3, 7), "mask": "@mask", **TEMPERATURES, **BIASES}, {**SELF, **BF16},
    {"frozen": ("hidden", "weight"), **BIAS}]
NUMBERS = [("jsd", {"mix": 0.2}), ("jsd", {"mix": 0.9}), ("skew_kl", {"skew": 0.4}), ("lk", {"decay": 1.5}),
           ("neg_log_acceptance", {"acceptance_min": 0.4})]
MORE = {**BIAS, "teacher_weight": "@more_weight", "teacher_bias": "@more_bias", "teacher_ids": "@teacher_ids"}
WITHOUT_REST = ("forward_kl", "lk")  # which are infinite of tokens that the student lacks
OF_PAYLOAD = {"kind": "forward_kl", "payload": "@payload", "frozen": ("weight", "bias"), **BIAS}
PAIRS = [
    *[row for kind in DIVERGENCES for row in edged("divergence", PAIR_EDGES, kind=kind, **BIASES)],
    *[case("divergence", edge, kind=kind, silent=("value",) * (kind in flat), **BIASES)  # no slope there but noise
      for edge, flat in (("disjoint", ("total_variation", "jsd")), ("few left", ("total_variation",)))
      for kind in DIVERGENCES],
    *[case("divergence", kind=kind, **options) for kind in DIVERGENCES
      for options in ({**WHOLE, **TEACHER_WHOLE}, {**BIASES, **BF16}, {**BIASES, **FP16}, {**SELF, **BIAS})],
    *[case("divergence", **options) for options in PAIR_HEADS],
    *[case("divergence", kind=kind, parameters=numbers, **BIASES) for kind, numbers in NUMBERS],
    *[case("divergence", "sharp", kind=kind, near=1e-4, **BIASES) for kind in DIVERGENCES],
    *[case("divergence", "teacher far up", kind=kind, near=2e-3, **BIASES) for kind in ("forward_kl", "reverse_kl")],
    *[case("divergence", frozen=frozen, **BIASES)
      for count in (1, 2, 3) for frozen in itertools.combinations(("hidden", "weight", "bias"), count)],
    *[case("divergence", "bad temperature", "bad teacher temperature", **options, **BIASES)
      for options in (TEMPERATURES, TEACHER_TEMPERATURES, {**TEMPERATURES, **TEACHER_TEMPERATURES})],
    case("divergence", "masked nan of both", mask="@mask", kind="jsd", **TEMPERATURES, **BIASES),
    case("divergence", "all masked", mask="@mask"), case("divergence", "all masked", mask="@mask", **BUFFER),
    *[case("divergence", lead=lead, few={(): 1, (0,): 0, (2, 0): 0}.get(lead), **TEMPERATURES, **BIASES)
      for lead in LEADS],
    case("divergence", few=0, **BUFFER), case("divergence", few=1, **BIASES),
    *[case(function, kind=kind, renormalise=renormalise, **MORE, **options)
      for function in ("divergence", "divergence_loss") for kind in DIVERGENCES for renormalise in (True, False)
      for options in ({}, {"temperature": 0.7, "teacher_softcap": 7.0, **BF16})
      if renormalise or kind not in WITHOUT_REST],
    *[case("divergence", edge, kind="jsd", **MORE, **TEMPERATURES)
      for edge in ("nan teacher row", "teacher beyond", "bad temperature", "int32 ids")],
    *edged("divergence", ["nan row", "beyond", "masked nan of both"], mask="@mask", **OF_PAYLOAD),
    *[case("divergence", **OF_PAYLOAD, **options)
      for options in ({**TEMPERATURES, "scale": 1.2}, BF16, FP16, {"lead": (3, 7)}, {"few": 0})],
    *edged("divergence_payload", ["nan teacher row", "teacher beyond", "teacher banned"], **BIASES),
    *[case("divergence_payload", **options) for options in (
        {"mask": "@mask", **TEMPERATURES, **BIASES}, {"softcap": 7.0, "scale": 0.8, "budget": 2**27, **BIASES},
        BF16, {**FP16, **BIASES}, {"lead": (3, 7), "teacher_dtype": torch.bfloat16}, {"few": 0})],
    case("divergence_payload", "bad temperature", **TEMPERATURES),
    *[row for kind in DIVERGENCES
      for row in edged("divergence_loss", ["nan row", "teacher beyond", "row of weight 0"], kind=kind,
                       row_weight="@row_weight", mask="@mask", **BIASES)],
    *[case("divergence_loss", **options) for options in PAIR_HEADS],
    *[case("divergence_loss", kind=kind, parameters=numbers, mask="@mask", **BIASES) for kind, numbers in NUMBERS],
    *[case("divergence_loss", edge, mask="@mask", row_weight=weight, **TEMPERATURES, **BIASES)
      for weight in (None, "@row_weight") for edge in ("masked nan of both", "all masked", "bad temperature")],
    case("divergence_loss", "weight 0", row_weight="@row_weight", **BIASES),
    *[case("divergence_loss", mask=mask, total=total) for mask in (None, "@mask") for total in ("@total", 17)],
    case("divergence_loss", grad_scale=0.25, mask="@mask", **BUFFER),
    case("divergence_loss", grad_scale=8.0, row_weight="@row_weight", **BUFFER, **BIASES, **BF16),
    case("divergence_loss", few=0, **BUFFER), case("divergence_loss", few=0), case("divergence_loss", few=1),
]
SCORE_EDGES = ["nan of scores", "score beyond", "teacher score beyond", "no score", "no teacher score",
               "banned scores", "banned teacher scores"]
OF_SCORES = [  # of those over two heads, what scores that exist have
    *[row for kind in DIVERGENCES for row in edged("selective_divergence", SCORE_EDGES, kind=kind)],
    *[case("selective_divergence", edge, kind=kind, silent=("value",) * (kind in flat))  # |NaN| has a slope in torch
      for edge, flat in (("disjoint scores", ("total_variation", "jsd")), ("few scores", ("total_variation",)),
                         ("nan teacher score", ("total_variation",)))
      for kind in DIVERGENCES],
    *[case("selective_divergence", kind=kind, **options) for kind in DIVERGENCES
      for options in ({"temperature": 0.7, "teacher_temperature": 1.3}, BF16, FP16)],
    *[case("selective_divergence", kind=kind, teacher_scores="@logits", near=1e-3,
           silent=("value",) * (kind not in ("forward_kl", "reverse_kl", "total_variation"))) for kind in DIVERGENCES],
    *[case("selective_divergence", **options) for options in (
        TEMPERATURES, {**TEMPERATURES, **TEACHER_TEMPERATURES, **BF16}, {"temperature": 0.7, **TEACHER_TEMPERATURES},
        {**BF16, "teacher_dtype": torch.float32}, {"teacher_dtype": torch.float16}, {"mask": "@numbers"},
        {"lead": (3, 7), "mask": "@mask", **TEMPERATURES}, {"frozen": ("logits",)}, {"few": 0, **FP16}, {"few": 1})],
    *[case("selective_divergence", kind=kind, parameters=numbers) for kind, numbers in NUMBERS],
    *[case("selective_divergence", "sharp scores", kind=kind, near=1e-4) for kind in DIVERGENCES],
    *[case("selective_divergence", "bad temperature", "bad teacher temperature", **options)
      for options in (TEMPERATURES, TEACHER_TEMPERATURES, {**TEMPERATURES, **TEACHER_TEMPERATURES})],
    case("selective_divergence", "masked nan of both", mask="@mask", kind="jsd", **TEMPERATURES),
    case("selective_divergence", "all masked", mask="@mask"),
    *[case("selective_divergence", lead=lead, few={(): 1, (0,): 0, (2, 0): 0}.get(lead), **TEMPERATURES)
      for lead in LEADS],
]
SAME_PAIRS = [
    *[beside(case("selective_divergence", kind=kind, **dtype), **more)
      for kind, dtype in (("reverse_kl", {}), ("jsd", BF16), ("lk", FP16))
      for more in ({"mask": "@ones"}, {"teacher_temperature": 1.0})],
    *[beside(case(function, kind=kind, **BIASES, **dtype), **more) for function in ("divergence", "divergence_loss")
      for kind, dtype in (("reverse_kl", {}), ("jsd", BF16), ("lk", FP16))
      for more in ({"budget": 2**27}, {"mask": "@ones"}, {"teacher_temperature": 1.0})],
    *[(one, dataclasses.replace(one, edges=("masked nan of both",))) for function in ("divergence", "divergence_loss")
      for one in (case(function, "masked", mask="@mask", **TEMPERATURES, **BIASES),)],
]
