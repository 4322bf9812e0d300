"""What the lists of cases are made of: a row, rows that differ in an edge, and options that several lists have."""
import dataclasses

import torch

from flp_problem import Case

ROW_EDGES = ["nan row", "bad ids", "banned", "few left", "beyond", "all ignored"]
FIELDS = {field.name for field in dataclasses.fields(Case)} - {"function", "options", "edges"}


def case(function, *edges, **given):
    """One row; given: fields of Case, all else are options of the function."""
    return Case(function, {name: value for name, value in given.items() if name not in FIELDS}, edges,
                **{name: value for name, value in given.items() if name in FIELDS})


def edged(function, edges, **given):
    """A row for each edge, and one without."""
    return [case(function, **given), *(case(function, edge, **given) for edge in edges)]


def beside(row, **more):
    """A pair of rows, the second one with more options."""
    return row, dataclasses.replace(row, options={**row.options, **more})


BIAS, TEMPERATURES = {"bias": "@bias"}, {"temperature": "@temperatures"}
BF16, FP16 = {"dtype": torch.bfloat16}, {"dtype": torch.float16}
TAIL = {"tail": 2.0**-9, "tail_report": "@report", "near": 1e-2}
BUFFER = {"grad_weight_accumulate": "@buffer"}
MIXED = {"dtype": torch.bfloat16, "weight_dtype": torch.float32}
WHOLE = {**BIAS, "temperature": 0.7, "softcap": 9.0, "scale": 1.2}
HEADS = [  # options that every function over a head takes
    {**WHOLE}, {**BIAS, **BF16}, FP16, {**WHOLE, **BF16}, {**WHOLE, **FP16}, TEMPERATURES, {"budget": 2**25}, BUFFER,
    {**BUFFER, **BF16}, {**BUFFER, **FP16}]
LEADS = [(3, 7), (3, 1, 7), (0,), (2, 0), ()]
FEW_HEADS = [{**WHOLE, **BF16}, FP16, TEMPERATURES]
BESIDE = [{"topk": 3}, {"rank": True, **BF16}, {"topk": 3, "rank": True, "entropy": True}]
ADAPTED = [{"frozen": ("weight", *frozen), **more} for frozen, more in (
    ((), {}), ((), BF16), ((), FP16), (("hidden",), {"softcap": 6.0, "scale": 0.8}), (("a", "b"), TEMPERATURES),
    (("a",), {"topk": 3, "rank": True}))]
