"""Every public function of flp that computes, with every option and edge: one list of cases, which a runner puts
through a form of flp (libflp's CPU rung, the torch form, emulated kernels), each beside flp_exact.py in float64.

A case is a row of CASES: a function (flp_calls.py), options, what is spoiled (EDGES of flp_problem.py), a dtype. An
option "@name" is a tensor of the Problem. SAME has pairs of rows whose results have the same bits. missing() says which
functions and options stand in no row.
"""
import dataclasses
import functools
import inspect
import itertools

import torch

import flp
from flp_beside import BESIDES, SAME_BESIDES
from flp_calls import BY_SHARDS, FUNCTIONS, NEEDS, OF_HEADS, OF_SHARDS, OTHERS
from flp_exact_divergences import DIVERGENCES
from flp_options import (ADAPTED, BESIDE, BF16, BIAS, BUFFER, FEW_HEADS, FP16, HEADS, LEADS, MIXED, ROW_EDGES, TAIL,
                         TEMPERATURES, WHOLE, beside, case, edged)
from flp_pairs import OF_SCORES, PAIRS, SAME_PAIRS
from flp_problem import FILE, V, Problem


# ---- the list ----

LINEAR = [
    *[case("linear_logprob", entropy=True, frozen=frozen, **BIAS)
      for count in (1, 2) for frozen in itertools.combinations(("hidden", "weight", "bias"), count)],
    *[case("linear_logprob", entropy=True, silent=(name,), **BIAS) for name in ("logprob", "entropy")],
    *[case("linear_logprob", entropy=True, lead=lead, few={(): 1, (0,): 0, (2, 0): 0}.get(lead), **TEMPERATURES)
      for lead in LEADS],
    *[case("linear_logprob", rows=rows) for rows in ([], [5, 1, 5, 12], [0, -1, 21, 2**32, 4])],
    *[case("linear_logprob", temperature=torch.tensor(0.5, dtype=dtype)) for dtype in (torch.float32, torch.float64)],
    case("linear_logprob", "int32 ids", entropy=True), case("linear_logprob", "far ids", entropy=True, **BIAS),
    case("linear_logprob", "none left", entropy=True, **BIAS),
    *edged("linear_logprob", ROW_EDGES, **BIAS, entropy=True),
    *[case("linear_logprob", **options) for options in HEADS],
    case("linear_logprob", "bad temperature", **TEMPERATURES, entropy=True),
    case("linear_logprob", "ignored as 5", ignore_index=5, entropy=True),
    *[case("linear_logprob", entropy="detached", frozen=("weight",), **dtype) for dtype in ({}, BF16)],
    case("linear_logprob", save=False),
    case("linear_logprob", chunk_rows=5, entropy=True), case("linear_logprob", rows="@rows", entropy=True),
    case("linear_logprob", old_lse="@old_lse"), case("linear_logprob", few=0), case("linear_logprob", few=1, entropy=True),
    *edged("linear_logprob", ["nan row", "bad ids", "bad list"], keep="@keep", kept_mass=True, entropy=True),
    *[case("linear_logprob", keep="@keep", entropy=True, **options)
      for options in (WHOLE, {**BIAS, **TEMPERATURES}, {"rows": "@rows"}, BF16, FP16, {**WHOLE, **BF16}, BUFFER)],
    case("linear_logprob", keep="@keep", few=0),
    *[case("linear_logprob", edge, keep="@keep") for edge in ("int32 lists", "int32 ids")],
    case("linear_logprob", keep="@keep_all", entropy=True),
    case("linear_logprob", keep="@keep_all", kept_mass=True, near=1e-2),
    case("linear_logprob", **TAIL), case("linear_logprob", frozen=("weight",), **TAIL),
    case("linear_logprob", entropy=True, **TAIL, **BUFFER),
    *edged("linear_logprob", ROW_EDGES, **BIAS, topk=5, rank=True),
    *[case("linear_logprob", topk=20, rank=True, entropy=True, **options)
      for options in (WHOLE, {**BIAS, **TEMPERATURES}, BF16, FP16, {"rows": "@rows"})],
    case("linear_logprob", "int32 ids", topk=5), case("linear_logprob", rank=True),
    *edged("linear_logprob", ROW_EDGES, **BIAS, statistics=True), case("linear_logprob", statistics=True, few=0),
    *[case("linear_logprob", statistics=True, topk=3, rank=True, entropy=True, **options)
      for options in (WHOLE, {**BIAS, **TEMPERATURES}, BF16, FP16, {"rows": "@rows"}, {"keep": "@keep"},
                      {"lead": (3, 7), "lora": "@lora", "frozen": ("weight",)})],
    *[case("linear_logprob", statistics=True, target=target, **options) for target in ("@targets", "@many")
      for options in (WHOLE, BF16)],
    *edged("linear_logprob", ["nan row", "bad ids", "bad list"], statistics=True, keep="@keep", softcap=9.0),
    case("linear_logprob", mixed="round", **MIXED), case("linear_logprob", mixed="split", **MIXED),
    *edged("linear_logprob", ["nan row", "bad ids"], lora="@lora", reference=True, frozen=("weight",)),
    *[case("linear_logprob", lora="@lora", entropy=True, frozen=("weight",), **options)
      for options in (BIAS, WHOLE, {"rows": "@rows"}, {"lead": (3, 7)})],
    *[case("linear_logprob", *edges, lora="@lora", entropy=True, frozen=("weight",), **dtype)
      for edges, dtype in ((("rank 3",), {}), ((), BF16), (("rank 3", "float32 adapter"), BF16), ((), FP16))],
    *[row for beside in ({"keep": "@keep"}, {"keep": "@keep", **BF16}, TAIL, {**TAIL, **BF16})
      for row in edged("linear_logprob", ["nan row"], lora="@lora", entropy=True, frozen=("weight",), **beside)],
    *[case("linear_logprob", lora="@lora", frozen=("weight",), mixed=mixed, **MIXED) for mixed in ("round", "split")],
    *[case("linear_logprob", mixed=mixed, **beside, **operands) for mixed in ("round", "split")
      for operands in ({**MIXED, "entropy": True}, {**BF16, "hidden_dtype": torch.float32})
      for beside in ({"keep": "@keep"}, TAIL, {"topk": 5, "rank": True}, {"target": "@targets"})],
    case("policy_loss", rule="ppo", lora="@lora", keep="@keep", frozen=("weight",)),
    *[case("linear_logprob", lora="@lora", entropy=True, frozen=("weight", *frozen))
      for count in (1, 2, 3) for frozen in itertools.combinations(("hidden", "a", "b"), count)],
    *edged("linear_logprob", ["nan row", "bad ids", "banned"], **BIAS, target="@targets", entropy=True),
    *[case("linear_logprob", target=target, entropy=True, **options)
      for target in ("@targets", "@single", "@many") for options in (WHOLE, BF16, {"lead": (3, 7)})],
    case("linear_logprob", target="@targets", rows="@rows", chunk_rows=2, **BUFFER),
]
SMOOTHED = {"label_smoothing": 0.1, "z_loss": 1e-3}
LOSSES = [
    *edged("cross_entropy", [*ROW_EDGES, "weight 0", "weight 0 of a bad id"], **BIAS, row_weight="@row_weight"),
    *[case("cross_entropy", **options) for options in HEADS],
    *[case("cross_entropy", reduction=reduction, label_smoothing=smoothing, z_loss=1e-3, return_z_loss=True, **options)
      for reduction in ("mean", "sum", "none") for smoothing in (0.1, 1.0) for options in (BIAS, WHOLE)],
    *[case("cross_entropy", reduction=reduction, row_weight="@row_weight", z_loss=z_loss)
      for reduction in ("mean", "none", "sum") for z_loss in (0.0, 1e-2)],
    *[case("cross_entropy", reduction=reduction, label_smoothing=0.1, z_loss=1e-3, **BIAS, **dtype)
      for reduction in ("mean", "none") for dtype in (BF16, FP16)],
    *[case("cross_entropy", f"ignored as {index}", reduction=reduction, ignore_index=index, label_smoothing=0.1)
      for reduction in ("mean", "sum", "none") for index in (0, 5, -1)],
    case("cross_entropy", label_smoothing=0.1, z_loss=1e-3, total="@total", lead=(3, 7), **BIAS),
    case("cross_entropy", "all ignored", label_smoothing=0.1),
    case("cross_entropy", label_smoothing=0.9, z_loss=0.3, scale=0.3, **BF16),
    case("cross_entropy", label_smoothing=0.1, z_loss=1e-2, budget=2**25, **TEMPERATURES, **BF16),
    *[case("cross_entropy", "low", z_loss=z_loss, frozen=frozen, **BIAS, **BF16) for z_loss in (0.05, 0.5)
      for frozen in ((), ("weight",), ("bias",))],
    case("cross_entropy", row_weight="@row_weight", total="@total"),
    case("cross_entropy", total="@total"),
    case("cross_entropy", grad_scale=0.25, **BUFFER), case("cross_entropy", "nan row", z_loss=1e-3, **BUFFER),
    *[case("cross_entropy", reduction=reduction, statistics=True, return_z_loss=True, **options)
      for reduction in ("mean", "none") for options in (BIAS, {**SMOOTHED, **BF16}, {"keep": "@keep"})],
    *[case("cross_entropy", reduction=reduction, entropy=True, statistics=True, row_weight="@row_weight", **options)
      for reduction in ("mean", "none") for options in (BIAS, {**SMOOTHED, **BF16}, {"keep": "@keep"})],
    *edged("cross_entropy", ["nan row", "bad ids", "weight 0"], entropy=True, row_weight="@row_weight", **SMOOTHED),
    case("cross_entropy", few=0), case("cross_entropy", few=1), case("cross_entropy", few=0, **BUFFER),
    *[case("cross_entropy", reduction=reduction, row_weight="@row_weight", keep="@keep", **smoothed, **options)
      for reduction in ("sum", "none") for smoothed in ({}, SMOOTHED) for options in FEW_HEADS],
    *[case("cross_entropy", reduction=reduction, lora="@lora", **smoothed, **options)
      for reduction in ("mean", "none") for smoothed in ({}, SMOOTHED, {"z_loss": 1e-3}) for options in ADAPTED[:-1]],
    *[case("cross_entropy", mixed=mixed, **options) for mixed in ("round", "split")
      for options in (MIXED, {**SMOOTHED, **MIXED}, {"hidden_dtype": torch.float32, **SMOOTHED, **BIAS, **BF16})],
]
POLICY = {"old_logprob": "@old", "ref_logprob": "@ref", "beta": 0.1, **BIAS}
POLICY_EDGES = ["nan row", "bad ids", "beyond", "all ignored", "all masked", "masked nan", "far down", "advantage 0"]
RULES = ["reinforce", "ppo", "grpo", "dapo", "dr_grpo", "cispo", "gspo"]


def ruled(function, *edges, rules=RULES, **given):
    """A row for each rule."""
    lengths = {"dr_grpo": {"length": 8.0}}
    return [case(function, *edges, rule=rule, **lengths.get(rule, {}), **given) for rule in rules]


POLICIES = [
    *edged("policy_loss", POLICY_EDGES, rule="grpo", mask="@mask", entropy_weight=0.01, **POLICY),
    *[row for dtype in ({}, BF16, FP16)
      for row in ruled("policy_loss", mask="@mask", temperature=0.8, entropy_weight=0.02, **POLICY, **dtype)],
    *ruled("policy_loss", advantage="@advantages"),
    *[row for lead in ((0, 5), (3, 0), (0, 0))
      for row in ruled("policy_loss", few=0, lead=lead, entropy_weight=0.01, rules=RULES + ["nll"], **POLICY)],
    *ruled("policy_loss", grad_scale=8.0, total="@total", mask="@mask", **BUFFER, **POLICY),
    case("policy_loss", rule="ppo", entropy_weight=0.01, total="@total", **BUFFER, **POLICY),
    case("policy_loss", rule="dapo", frozen=("weight", "bias"), **POLICY),
    case("policy_loss", rule="nll", advantage=None, mask="@mask", entropy=True),
    *[case("policy_loss", rule="ppo", **options) for options in HEADS],
    *[case("policy_loss", rule="grpo", kl_kind=kind, entropy=True, **POLICY) for kind in ("k1", "k2")],
    case("policy_loss", rule="ppo", clip=(0.1, 0.3), total="@total", old_lse="@old_lse", save=False, **POLICY),
    case("policy_loss", rule="dapo", grad_scale=0.25, **BUFFER, **POLICY), case("policy_loss", rule="grpo", few=0, **POLICY),
    case("policy_loss", "ignored as 5", rule="ppo", ignore_index=5, **POLICY),
    case("policy_loss", rule="ppo", **TAIL, **POLICY),
    *[case("policy_loss", rule=FILE, average=average, length=8.0 if average == "length" else None, parameters={"share": 0.5},
           vectors={"worth": "@worth"}) for average in ("tokens", "sequences", "length")],
    *[case("policy_loss", rule="ppo", mixed="round", old_logprob="@old", **beside, **MIXED)
      for beside in ({}, {"keep": "@keep"}, TAIL, {**TAIL, "topk": 3, "rank": True})],
    *edged("policy_loss", ["nan row", "bad list", "all masked", "masked nan"], rule="grpo", mask="@mask", keep="@keep",
           entropy_weight=0.01, **POLICY),
    *[row for options in (*FEW_HEADS, {**BUFFER, **BF16}, *BESIDE)
      for row in ruled("policy_loss", rules=["ppo", "gspo"], keep="@keep", **options)],
    *edged("policy_loss", ["nan row", "bad ids"], rule="grpo", mask="@mask", topk=5, rank=True, entropy=True, **POLICY),
    *[row for options in (*FEW_HEADS, {**BUFFER, **BF16}, *BESIDE, {**TAIL, "topk": 3})
      for row in ruled("policy_loss", rules=["cispo", "gspo"], **{"topk": 9, **options})],
    *[row for options in ADAPTED
      for row in ruled("policy_loss", rules=["grpo", "gspo"], mask="@mask", entropy_weight=0.01, lora="@lora",
                       old_logprob="@old", **options)],
]
REFERENCE = {"ref_logprob": "@ref_sequences"}
PLAIN = {"old_logprob": "@old", "ref_logprob": "@ref", "beta": 0.1, "mask": "@mask"}
FORMULAS = [
    *ruled("losses.policy_loss", **PLAIN),
    *[row for edge in ("masked nan", "far", "far down", "far reference", "advantage 0", "all masked", "masked sequence",
                       "nan advantage masked") for row in ruled("losses.policy_loss", edge, **PLAIN)],
    *[row for clip in ((0.1, 0.05), (0.5, 3.0)) for row in ruled("losses.policy_loss", clip=clip, **PLAIN)],
    *ruled("losses.policy_loss", advantage="@advantages", mask="@mask"),
    *[row for total in (None, "@total", 17)
      for row in ruled("losses.policy_loss", "masked sequence", entropy="@entropies", entropy_weight=0.01, total=total,
                       **PLAIN)],
    case("losses.policy_loss", rule="ppo", entropy="@entropies", entropy_weight=0.01, clip=(0.1, 0.3), total="@total",
         kl_kind="k2", **PLAIN),
    *[case("losses.preference_loss", *edges, rule=rule, **options) for edges in ((), ("nan",))
      for rule, options in (
          *((rule, {**REFERENCE, **more}) for rule in ("dpo", "ipo")
            for more in ({}, {"beta": 0.5, "nll_weight": 0.3})),
          *((rule, {"beta": 0.7, "margin": 0.4, "label_smoothing": 0.1, "total": 9, **more})
            for rule, more in (("dpo", REFERENCE), ("simpo", {}), ("cpo", {}))),
          ("simpo", {}), ("cpo", {}), ("orpo", {}), ("orpo", {"beta": 1.0, "nll_weight": 0.0, "total": "@total"}),
          ("kto", {**REFERENCE, "chosen": "@liked"}),
          ("kto", {**REFERENCE, "chosen": "@liked", "kl": 0.4, "desirable_weight": 1.3, "undesirable_weight": 0.6}))],
    *[case("losses.kl", kind=kind) for kind in ("k1", "k2", "k3")],
    *[row for kind in DIVERGENCES
      for row in edged("losses.divergence", ["no share", "nan teacher"], kind=kind)],
    *[case("losses.divergence", kind=kind, rest_min=1e-4, rest_weight=0.5, counted=None, **options)
      for kind, options in (("jsd", {"mix": 0.3}), ("skew_kl", {"skew": 0.4}), ("lk", {"decay": 1.5}),
                            ("neg_log_acceptance", {"acceptance_min": 0.2}))],
]
DISTILL_EDGES = ["nan row", "bad ids", "all ignored", "weight 0", "weight 0 of a bad id", "no share", "nan teacher"]
DISTILLED = [
    *[row for loss in DIVERGENCES
      for row in edged("distill_loss", DISTILL_EDGES, loss=loss, row_weight="@row_weight", **BIAS)],
    *[case("distill_loss", **options) for options in HEADS],
    *[case("distill_loss", loss=loss, temperature=0.7, softcap=8.0, **BIAS)
      for loss in DIVERGENCES],
    case("distill_loss", loss="jsd", row_weight="@row_weight", mask="@mask", entropy=True,
         parameters={"rest_weight": 0.25, "mix": 0.2}),
    *[case("distill_loss", loss=loss, target="@whole", teacher_logprob="@whole_teacher", **BIAS)
      for loss in DIVERGENCES],
    case("distill_loss", target="@single", teacher_logprob="@single_teacher", **BF16),
    case("distill_loss", mask="@mask", total="@total", entropy=True, lead=(3, 7)),
    case("distill_loss", grad_scale=0.25, **BUFFER),
    case("distill_loss", parameters={"rest_weight": 0.5}, vectors={}), case("distill_loss", "ignored as 5", ignore_index=5),
    case("distill_loss", few=0), case("distill_loss", loss="reverse_kl+entropy", parameters={"entropy_weight": 0.1}),
    *[case("distill_loss", topk=5, mask="@mask", **options) for options in FEW_HEADS],
    *[case("distill_loss", mixed=mixed, topk=5, **MIXED) for mixed in ("round", "split")],
    *[case("distill_loss", lora="@lora", entropy=True, **options) for options in ADAPTED[:-1]],
]
SELECTED = [
    *edged("selective_log_softmax", ["nan score", "bad ids", "all ignored"], ignore_index=-100, entropy=True),
    case("selective_log_softmax", temperature=0.7, inplace_backward=True, ignore_index=-100),
    case("selective_log_softmax", index="@targets", ignore_index=-100, out_dtype=torch.float32),
    *[case("selective_log_softmax", index=index, ignore_index=-100, entropy=True, temperature=temperature, dtype=dtype,
           inplace_backward=inplace)
      for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16)
      for index, temperature in (("@target", 1.3), ("@single", 0.7), ("@targets", 1.0), ("@many", 1.0))
      for inplace in (False, True)],
    *[case("selective_log_softmax", out_dtype=torch.float32, ignore_index=-100, entropy=True, **dtype)
      for dtype in (BF16, FP16)],
    case("selective_log_softmax", "nan score", index="@targets", ignore_index=-100, entropy=True, lead=(3, 7)),
]
SCORED = [
    *edged("score", ["nan row", "bad ids", "banned"], **BIAS, prompt_lengths="@prompts", lengths="@lengths", entropy=True),
    case("score", cu_seqlens="@cu_seqlens", prompt_lengths="@packed_prompts", mask="@mask", **WHOLE),
    *[case("score", cu_seqlens="@cu_seqlens", prompt_lengths="@packed_prompts", entropy=True, temperature=0.8, **BIAS,
           **dtype)
      for dtype in (BF16, FP16)],
    case("score", "int32 ids", cu_seqlens="@cu_seqlens", prompt_lengths="@packed_prompts"),
    case("score", attention_mask="@exists", temperature="@temperatures"), case("score", shifted=True, mask="@mask"),
    case("score", topk=5, rank=True, save=False, budget=2**25), case("score", statistics=True),
    *edged("score", ["nan row", "bad ids"], statistics=True, cu_seqlens="@cu_seqlens"), case("score", **TAIL, **BUFFER),
    case("score", "ignored as 5", ignore_index=5),
    *edged("sequence_logprob", ["masked nan", "all masked"], mask="@mask"),
    *edged("sequence_logprob", ["masked nan", "empty sequence", "int32 ids"], cu_seqlens="@cu_seqlens", mask="@mask"),
    case("sequence_logprob", cu_seqlens="@cu_seqlens"), case("sequence_logprob", "nan", mask="@mask"),
    case("delight"), *edged("gate", ["nan worth", "all masked"], fraction=0.4, mask="@mask"), case("gate", price=0.2),
    case("gate", price=0.2, temperature=1e-9, seed=7),
]


OF_SHARDS_ROWS = {"weight", "bias", "teacher_weight", "teacher_bias"}


def sharded(row):
    """A row as one of flp.parallel; None where that has no such function, or it does not take the row's options."""
    function = getattr(flp.parallel, row.function, None)
    options = {name + "_shard" if name in OF_SHARDS_ROWS else name: value for name, value in row.options.items()}
    if not function or not options.keys() <= inspect.signature(function).parameters.keys():
        return None
    return dataclasses.replace(row, function="parallel." + row.function, options=options)


# One process: what takes more of them has its default here; tests/trainers/test_flp_parallel.py divides these rows.
PARALLEL = {"bias_shard": "@bias", "group": None, "vocab_offset": 0, "vocab_valid": V, "vocab_total": V}
SHARDED = [
    *edged("parallel.linear_logprob", ["nan row", "bad ids", "beyond"], entropy=True, **PARALLEL),
    case("parallel.linear_logprob", temperature=0.7, softcap=9.0, scale=1.2, merge="gather", budget=2**25, save=False, **PARALLEL),
    case("parallel.linear_logprob", rows="@rows", reduce_grad_hidden=True, reduce_dtype=torch.float32, **PARALLEL),
    case("parallel.linear_logprob", **TAIL, sequence_parallel=False, gather=None, **BUFFER),
    case("parallel.linear_logprob", keep="@keep"), case("parallel.linear_logprob", topk=5, rank=True, statistics=True),
    case("parallel.linear_logprob", "ignored as 5", ignore_index=5),
    case("parallel.linear_logprob", mixed="round", **MIXED), case("parallel.linear_logprob", lora="@lora", frozen=("weight",)),
    *edged("shards", ["nan row", "bad ids", "beyond"], entropy=True),
    case("shards", **TEMPERATURES), case("shards", target="@targets", entropy=True),
    case("shards", keep="@keep", entropy=True),
    case("shards", temperature=0.7, softcap=9.0, scale=1.2, budget=2**25), case("shards", rows="@rows", needs=NEEDS),
    case("shards", keep="@keep"), case("shards", **TAIL), case("shards", **BUFFER),
    case("shards", "ignored as 5", ignore_index=5),
    *[row for row in map(sharded, LOSSES) if row],
    *[row for row in map(sharded, PAIRS[::7]) if row],
    case("parallel.divergence", reduce_grad_hidden=True, reduce_dtype=torch.float32, sequence_parallel=False,
         teacher_bias_shard="@teacher_bias", mask="@mask", budget=2**27, **PARALLEL, **BUFFER),
    case("parallel.cross_entropy", merge="gather", reduce_grad_hidden=True, reduce_dtype=torch.float32, save=False,
         sequence_parallel=False, gather=None, **SMOOTHED, **PARALLEL),
]
MODELS = [
    case("logprob_head", entropy=True, budget=2**25, chunk_rows=5), case("logprob_head", temperature="@temperature"),
    case("logprob_head", temperature="@temperature", eager=True),
    case("logprob_head", **TAIL, mixed=None),
    case("logprob_head", eager=True, reduce_fp32=True, verify=False, ignore_index=-100),
    case("CrossEntropyHead", label_smoothing=0.1, z_loss=1e-3, budget=2**25), case("CrossEntropyHead", verify=False, ignore_index=-100),
]
# Pairs of rows with the same bits, where nothing is left out: a row, and one with more options or other edges.
EXACT_TAIL = {"tail": 2.0**-9, "tail_report": "@report"}
SAME = [
    *[beside(case("linear_logprob", **options, **dtype), **tail)
      for tail in ({"tail": 0}, EXACT_TAIL) for dtype in ({}, BF16, FP16)
      for options in ({"entropy": True}, {"entropy": "detached", "temperature": 0.7, "scale": -1.5},
                      {"softcap": 5.0, "entropy": True, **BIAS}, {**BIAS, **TEMPERATURES},
                      {"rows": [0, 4, 5, 12], "entropy": True}, {"chunk_rows": 4}, {"old_lse": "@old_lse"})],
    *[beside(case("linear_logprob", target="@targets", entropy=True, **dtype), **EXACT_TAIL) for dtype in ({}, BF16)],
    *[beside(case("shards", entropy=True, **dtype), **EXACT_TAIL) for dtype in ({}, BF16)],
    *[beside(case("policy_loss", rule=rule, entropy_weight=0.01, **BF16), **EXACT_TAIL)
      for rule in ("grpo", "gspo", "nll")],
    *[beside(case("linear_logprob", entropy=True, **BIAS, **options), **more)
      for options in ({}, BF16, {**TEMPERATURES, **FP16})
      for more in ({"topk": 4, "rank": True}, {"topk": 4}, {"rank": True})],
    *[beside(case("linear_logprob", target=target, silent=("entropy",), **BIAS), entropy=True)
      for target in ("@target", "@single", "@targets")],
    beside(case("linear_logprob", "one kept", keep="@keep", frozen=("hidden", "weight")), entropy=True),
    *SAME_PAIRS, *SAME_BESIDES,
    *[(one, dataclasses.replace(one, edges=("masked nan",)))
      for function in ("policy_loss", "losses.policy_loss") for one in ruled(function, "masked", **PLAIN)],
]
SHARE = 0.3  # of what kernels are allowed: what runs on the CPU neither rounds dz nor multiplies in parts
CASES = [*LINEAR, *LOSSES, *POLICIES, *BESIDES, *FORMULAS, *DISTILLED, *PAIRS, *OF_SCORES, *SELECTED, *SCORED, *SHARDED,
         *MODELS]


# ---- what stands in no row ----

def public():
    """{name: function} of all that flp's documents name."""
    named_ones = {name: getattr(flp, name) for name in flp.__all__}
    named_ones.update({f"losses.{name}": getattr(flp.losses, name) for name in flp.losses.__all__})
    named_ones.update({f"parallel.{name}": getattr(flp.parallel, name) for name in flp.parallel.__all__})
    return named_ones


def missing():
    """Functions in no row, and options of a function that no row of it gives."""
    given = {name: set(FUNCTIONS[name][2]) for name in FUNCTIONS}
    for row in CASES:
        given[row.function] |= set(row.options)
    for name in OF_SHARDS:
        given[name] = given["shards"] | BY_SHARDS
    found = []
    for name, function in public().items():
        if name in OTHERS:
            continue
        if name not in given:
            found.append(name)
            continue
        found += [f"{name}: {option}" for option in inspect.signature(function).parameters if option not in given[name]]
    return found


# ---- one row, compared ----

def computed(row, wide):
    """({output: tensor}, {leaf or buffer: gradient}, rows that the forward pass counted, or None) of a row."""
    problem = Problem(row, wide)
    call, exact, operands = FUNCTIONS[row.function]
    given = problem.given({**operands, **row.options})
    found = dict((exact if wide else call)(**given))
    count = found.pop("bad", None)
    count = count if wide else counted()
    total = 0
    for name in sorted(found):
        if found[name].requires_grad and name not in row.silent:
            total = total + (found[name] * upstream_of(row, name, found[name])).sum()
    if isinstance(total, torch.Tensor):
        total.backward()
        counted()
    gradients = {name: leaf.grad for name, leaf in problem.leaves.items()}
    if "tail_report" in row.options and not wide:
        gradients["report"] = problem.report
    if "grad_weight_accumulate" in row.options:
        added = gradients.pop("weight")
        gradients["buffer"] = problem.buffer
        if wide:
            gradients["buffer"] = problem.buffer + (0 if added is None else added)
        else:
            assert added is None, "weight.grad was set beside the buffer"
    return found, gradients, count


def upstream_of(row, name, output):
    """The gradient that an output gets: the same, whatever else there is."""
    if output.numel() == 1:
        return torch.full_like(output, row.options.get("grad_scale", 1.0), dtype=torch.float32)
    return torch.randn(output.shape, generator=torch.Generator().manual_seed(len(name))).to(output.device)


def unlike(row, other):
    """Names of a row's results that another one has not to the bit, in a dtype or a shape of its own."""
    def same(want, got):
        if want is None or got is None:
            return want is got
        want, got = (want if want.dim() == got.dim() else want[..., None].expand_as(got)), got.to(want.dtype)
        return torch.equal(want.nan_to_num(0.5), got.nan_to_num(0.5))

    pairs = zip(computed(row, wide=False)[:2], computed(other, wide=False)[:2])
    return [name for wanted, found in pairs for name, want in wanted.items() if not same(want, found[name])]


def counted():
    try:
        flp.check()
    except flp.errors.DataError as error:
        return int(str(error).split()[0])
    return 0


def differences(row, share=1.0, form=functools.partial(computed, wide=False)):
    """What a row's results differ in from float64; empty if they agree. share: of what kernels are allowed; form: what
    computes the row, as computed does, but for a count of None where it counts no bad rows"""
    found, gradients, count = form(row)
    wanted, exact, bad = computed(row, wide=True)
    wrong = [] if None in (bad, count) or bad == count else [f"{count} rows are counted, {bad} are bad"]
    if found.keys() != wanted.keys():
        return [f"outputs are {sorted(found)}, not {sorted(wanted)}"]
    for name in found:
        wrong += differs(name, found[name], wanted[name], row.allowed(False, share))
        wrong += kind_differs(name, found[name], wanted[name], row)
    for name in exact:
        wrong += differs("the gradient of " + name, gradients[name], exact[name], row.allowed(True, share))
        wrong += some_where_none(name, gradients[name], exact[name])
    return wrong


def kind_differs(name, got, want, row):
    """A dtype, a gradient or a sign that an output has not."""
    wrong, got = [], got.cpu()
    dtype = row.dtype if row.function == "selective_log_softmax" else torch.float32
    if got.is_floating_point() and got.dtype is not row.options.get("out_dtype", dtype):
        wrong.append(f"{name} is of {got.dtype}")
    kinds = {"rank": torch.int32, "top.ids": torch.int32 if "int32 ids" in row.edges else torch.int64,
             "agrees": torch.bool}
    if got.dtype is not kinds.get(name, got.dtype):
        wrong.append(f"{name} is of {got.dtype}")
    if name == "logprob" and (got[want == 0].abs() > 1e-15).any():
        wrong.append(f"{name} is not 0 where nothing else can be")
    if got.requires_grad != want.requires_grad and got.numel():
        wrong.append(f"{name} has {'a' if got.requires_grad else 'no'} gradient")
    if name in ("logprob", "reference", "kept_mass") and row.function in OF_HEADS and (got > 0).any():
        wrong.append(f"{name} is above 0")
    return wrong


def some_where_none(name, got, want):
    """Gradients that are no zeros where nothing has a part."""
    if got is None or want is None or "buffer" in name:
        return []
    return [f"the gradient of {name} is not 0 of all that has no part"] if got.cpu()[want == 0].any() else []


def differs(name, got, want, allowed):
    if got is None or want is None:
        some = got if want is None else want
        return [] if some is None or bool((some == 0).all()) else [f"{name}: {'none' if got is None else 'one'} is there"]
    got, want = got.detach().cpu().double(), want.detach().to(got.dtype).double()  # beyond a dtype there is infinity
    if got.shape != want.shape:
        return [f"{name} has the shape {tuple(got.shape)}, not {tuple(want.shape)}"]
    if got.numel() == 0:
        return []
    same = (got == want) | (got.isnan() & want.isnan()) | (got.isnan() & want.isinf())  # infinities that meet
    size = want[want.isfinite()].abs().max().item() if want.isfinite().any() else 0
    apart = ~same & ~((got - want).abs() <= allowed * max(size, 1e-3) * torch.ones_like(want))
    if not apart.any():
        return []
    at = apart.nonzero()[0].tolist()
    return [f"{name}{at} is {got[tuple(at)]:g}, not {want[tuple(at)]:g}; {int(apart.sum())} of {got.numel()}, allowed "
            f"{allowed * size:g}"]
