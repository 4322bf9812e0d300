"""flp.parallel with operands of two dtypes on processes of this machine (gloo): rounded ones have the bits of a call with
the rounded operand, split ones are near float64."""
import pytest
import torch

import flp_parallel_cases as cases
from flp_reference import problem
from test_flp_parallel import EMPTY, EVEN, MADE

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


def dtypes(narrow, wide):
    """{operand: dtypes it is rounded to} of operands of which `wide` are float32; and of all rounded"""
    names = ("hidden", "weight", "bias")
    return [{name: ((FP32,) if name in wide else (narrow,)) for name in names}, {name: (narrow,) for name in names}]


@pytest.mark.first(6)
@pytest.mark.parametrize("engine", ["libflp", "torch form"])
@pytest.mark.parametrize("sequence", [False, True, 2])
@pytest.mark.parametrize("cuts, narrow, wide", [
    (EVEN, BF16, ("weight",)), (EVEN, FP16, ("weight", "bias")), (EVEN, BF16, ("hidden",)),
    (EMPTY, BF16, ("weight", "bias"))], ids=str)
def test_rounded_shards_have_the_bits_of_shards_rounded_before(ranks, engine, sequence, cuts, narrow, wide):
    narrow = FP16 if sequence else narrow  # gloo gathers no bfloat16
    given, before = dtypes(narrow, wide)
    how = {"cuts": cuts, "made": MADE, "sequence": sequence, "engine": engine}
    got = ranks.run(len(cuts), cases.head, options={"temperature": 0.8, "mixed": "round"}, dtypes=given, **how)
    want = ranks.run(len(cuts), cases.head, options={"temperature": 0.8}, dtypes=before, **how)
    for mine, other in zip(got, want):
        assert torch.equal(mine["logprob"], other["logprob"]) and torch.equal(mine["entropy"], other["entropy"])
        for name, gradient, rounded in zip(given, mine["grads"], other["grads"]):
            assert gradient.dtype is given[name][0] and torch.equal(gradient.to(narrow), rounded), name
        assert mine["forward"] == other["forward"] or "hidden" in wide, "hidden states of 16 bits are sent as they are"


@pytest.mark.parametrize("engine", ["libflp", "torch form"])
def test_split_shards_are_near_float64(ranks, engine):
    hidden, weight, target, _ = problem(n=12)
    hidden = hidden.to(BF16)
    exact = (hidden.double() @ weight.double().t()).log_softmax(1).gather(1, target[:, None])[:, 0].detach()
    given = {"hidden": (BF16,), "weight": (FP32,), "bias": ()}
    errors = {mixed: max((result["logprob"].double() - exact).abs().max() for result in ranks.run(
        2, cases.head, cuts=EVEN, made={"n": 12}, options={"mixed": mixed}, dtypes=given, engine=engine))
        for mixed in ("split", "round")}
    assert errors["split"] < 1e-4 and errors["split"] < errors["round"] / 20, errors


def test_gradients_that_are_added_up(ranks):
    given, before = dtypes(BF16, ("weight",))
    how = {"cuts": EVEN, "made": MADE, "accumulate": True}
    got = ranks.run(2, cases.head, options={"mixed": "round"}, dtypes=given, **how)
    want = ranks.run(2, cases.head, options={}, dtypes=before, **how)
    assert all(torch.equal(mine["buffer"], other["buffer"]) for mine, other in zip(got, want))
