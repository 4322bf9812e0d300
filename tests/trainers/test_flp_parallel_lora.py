"""flp.parallel with an adapter on the head, on processes of this machine (gloo): A on every rank, B sharded as the weight;
against the head on one process and float64."""
import pytest
import torch

import flp
import flp_parallel_cases as cases
from test_flp_parallel import EMPTY, EVEN, UNEVEN

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
NAMES = ("hidden", "a", "b", "bias")


def whole(made, rank, kind, adapter, options, needs=NAMES):
    """The same on one process."""
    tensors, weight, target = cases.adapted(made, rank, kind, adapter)
    for name in needs:
        tensors[name].requires_grad_()
    logprob, entropy = flp.linear_logprob(tensors["hidden"], weight, target, tensors["bias"], entropy=True,
                                          lora=flp.Lora(tensors["a"], tensors["b"], 1.5), **options)
    g, e = cases.upstream(len(target))
    ((logprob * g).sum() + (entropy * e).sum()).backward()
    return logprob.detach(), entropy.detach(), {name: tensors[name].grad for name in NAMES}


def check(results, cuts, want, bound):
    logprob, entropy, grads = want
    near = 1e-5 if bound < 1e-4 else 4e-3
    for rank, result in enumerate(results):
        assert torch.allclose(result["logprob"], logprob, atol=near) and torch.allclose(result["entropy"], entropy, atol=near)
        first, (rows, real) = sum(cut[1] for cut in cuts[:rank]), cuts[rank]
        for name, got in result["grads"].items():
            part, mine = grads[name], got
            assert (got is None) == (part is None), name
            if name in ("b", "bias") and got is not None:
                assert got.shape[0] == rows and not got[real:].any()
                part, mine = part[first:first + real], got[:real]
            if got is not None:
                assert got.dtype is part.dtype
                difference = (mine.double() - part.double()).norm()
                assert difference <= bound * max(part.double().norm(), 1e-30), (name, rank)
    assert all(torch.equal(results[0]["grads"]["a"], result["grads"]["a"]) for result in results[1:])


@pytest.mark.parametrize("merge", ["sum", "gather"])
@pytest.mark.parametrize("cuts, rank, kind, adapter, bound", [
    (EVEN, 8, FP32, None, 1e-5), (EVEN, 3, FP32, None, 1e-5), (UNEVEN, 16, FP32, None, 1e-5),
    (EMPTY, 8, FP32, None, 1e-5), ([(330, 330), (1, 1)], 8, FP32, None, 1e-5), (EVEN, 8, BF16, None, 2e-2), (EVEN, 8, BF16, FP32, 2e-2)], ids=str)
def test_shards_give_what_one_process_gives(ranks, merge, cuts, rank, kind, adapter, bound):
    made, options = {"n": 12, "bias": True}, {"temperature": 0.8, "softcap": 20.0}
    got = ranks.run(len(cuts), cases.lora_head, cuts=cuts, made=made, rank_of=rank, kind=kind, adapter=adapter,
                    options={"merge": merge, **options})
    check(got, cuts, whole(made, rank, kind, adapter, options), bound)


def test_the_gradient_of_a_is_summed_where_that_of_hidden_is_not(ranks):
    made = {"n": 12, "bias": True}
    got = ranks.run(2, cases.lora_head, cuts=EVEN, made=made, rank_of=8, options={"reduce_grad_hidden": False})
    _, _, grads = whole(made, 8, FP32, None, {})
    assert torch.allclose(got[0]["grads"]["hidden"] + got[1]["grads"]["hidden"], grads["hidden"], atol=1e-5)
    assert not torch.allclose(got[0]["grads"]["hidden"], grads["hidden"], atol=1e-3)
    assert all(torch.allclose(result["grads"]["a"], grads["a"], atol=1e-5) for result in got)


@pytest.mark.parametrize("needs", [("a",), ("b",), ("hidden", "a"), ()], ids=str)
def test_only_what_requires_a_gradient_gets_one(ranks, needs):
    got = ranks.run(2, cases.lora_head, cuts=EVEN, made={"n": 12, "bias": True}, rank_of=8, options={}, needs=needs)
    for result in got:
        assert {name for name, grad in result["grads"].items() if grad is not None} == set(needs)
    if "b" in needs or not needs:
        assert got[0]["backward"] == [], "nothing is sent"


@pytest.mark.parametrize("off", ["b", "scale"])
def test_an_adapter_that_does_nothing_leaves_every_bit(ranks, off):
    made = {"n": 12, "bias": True}
    got = ranks.run(2, cases.lora_head, cuts=EVEN, made=made, rank_of=8, options={}, off=off)
    want = ranks.run(2, cases.head, cuts=EVEN, made=made, options={}, needs=("hidden",))
    for mine, other in zip(got, want):
        assert torch.equal(mine["logprob"], other["logprob"]) and torch.equal(mine["entropy"], other["entropy"])
