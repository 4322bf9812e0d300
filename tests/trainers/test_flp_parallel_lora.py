"""flp.parallel with an adapter on the head, on processes of this machine (gloo): A on every rank, B sharded as the weight;
against the head on one process and float64."""
import pytest
import torch

import flp
import flp_parallel_cases as cases
from flp_reference import problem
from test_flp_parallel import EMPTY, EVEN, MADE, UNEVEN, check

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
NAMES = ("hidden", "weight", "bias", "a", "b")
TRAINED = ("hidden", "bias", "a", "b")


def whole(made, lora, options):
    """The same on one process."""
    hidden, weight, target, bias = problem(**made)
    a, b, scale = cases.adapter(made, **lora)
    for leaf in (hidden, bias, a, b):
        leaf.requires_grad_()
    logprob, entropy = flp.linear_logprob(hidden, weight, target, bias, entropy=True, lora=flp.Lora(a, b, scale),
                                          **options)
    g, e = cases.upstream(len(target))
    ((logprob * g).sum() + (entropy * e).sum()).backward()
    return logprob.detach(), entropy.detach(), [leaf.grad for leaf in (hidden, weight, bias, a, b)]


def named(result):
    return dict(zip(NAMES, result["grads"]))


def test_the_gradient_of_a_is_summed_where_that_of_hidden_is_not(ranks):
    one, other = map(named, ranks.run(2, cases.head, cuts=EVEN, made=MADE, lora={"rank": 8}, needs=TRAINED,
                                      options={"reduce_grad_hidden": False}))
    want = dict(zip(NAMES, whole(MADE, {"rank": 8}, {})[2]))
    assert torch.allclose(one["hidden"] + other["hidden"], want["hidden"], atol=1e-5)
    assert not torch.allclose(one["hidden"], want["hidden"], atol=1e-3)
    assert all(torch.allclose(grads["a"], want["a"], atol=1e-5) for grads in (one, other))


@pytest.mark.parametrize("needs", [("a",), ("b",), ("hidden", "a"), ()], ids=str)
def test_only_what_requires_a_gradient_gets_one(ranks, needs):
    got = ranks.run(2, cases.head, cuts=EVEN, made=MADE, lora={"rank": 8}, options={}, needs=needs)
    for result in got:
        assert {name for name, grad in named(result).items() if grad is not None} == set(needs)
    if "b" in needs or not needs:
        assert got[0]["backward"] == [], "nothing is sent"


@pytest.mark.parametrize("off", ["b", "scale"])
def test_an_adapter_that_does_nothing_leaves_every_bit(ranks, off):
    got = ranks.run(2, cases.head, cuts=EVEN, made=MADE, lora={"rank": 8, "off": off}, options={}, needs=TRAINED)
    want = ranks.run(2, cases.head, cuts=EVEN, made=MADE, options={}, needs=("hidden",))
    for mine, other in zip(got, want):
        assert torch.equal(mine["logprob"], other["logprob"]) and torch.equal(mine["entropy"], other["entropy"])
