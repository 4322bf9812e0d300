"""flp.backend.token_logprobs: what each kind of call gives is what the function has that it stands for."""
import pytest
import torch
import torch.distributed as dist

import flp
from flp_reference import problem

MASK = torch.arange(13) % 3 > 0


def test_hidden_states():
    hidden, weight, ids, bias = (tensor.cpu() for tensor in problem(bias=True))
    given = {"bias": bias, "temperature": 0.7, "entropy": True, "statistics": True}
    got = flp.backend.token_logprobs(ids, hidden=hidden, weight=weight, mask=MASK, softcap=9.0, **given)
    want = flp.linear_logprob(hidden, weight, ids.masked_fill(~MASK, -100), softcap=9.0, **given)
    assert torch.equal(got.logprob, want[0]) and torch.equal(got.entropy, want[1])
    assert all(map(torch.equal, got.statistics, want[2])) and not got.logprob[~MASK].any()
    alone = flp.backend.token_logprobs(ids, hidden=hidden, weight=weight)
    assert torch.equal(alone.logprob, flp.linear_logprob(hidden, weight, ids)) and alone[1:] == (None, None)


def test_scores():
    hidden, weight, ids, _ = (None if tensor is None else tensor.cpu() for tensor in problem())
    scores = hidden @ weight.t()
    got = flp.backend.token_logprobs(ids, scores=scores, mask=MASK.long(), temperature=0.7, entropy=True)
    want = flp.selective_log_softmax(scores, ids.masked_fill(~MASK, -100), temperature=0.7, entropy=True,
                                     ignore_index=-100)
    assert torch.equal(got.logprob, want[0]) and torch.equal(got.entropy, want[1]) and got.statistics is None


def test_a_group(tmp_path):
    hidden, weight, ids, _ = (None if tensor is None else tensor.cpu() for tensor in problem())
    ids = ids % 300
    dist.init_process_group("gloo", rank=0, world_size=1, init_method=f"file://{tmp_path}/store")
    try:
        got = flp.backend.token_logprobs(ids, hidden=hidden, weight=weight, group=dist.group.WORLD, entropy=True,
                                         statistics=True, vocab_total=300)
        want = flp.parallel.linear_logprob(hidden, weight, ids, entropy=True, statistics=True, vocab_total=300)
    finally:
        dist.destroy_process_group()
    assert torch.equal(got.logprob, want[0]) and torch.equal(got.entropy, want[1])
    assert all(map(torch.equal, got.statistics, want[2]))


@pytest.mark.parametrize("given, said", [
    ({}, "scores is None .accepted: hidden and weight, or scores in their place"),
    ({"hidden": 0}, "scores is None .accepted: hidden and weight"),
    ({"hidden": 0, "weight": 0, "scores": 0}, "scores is given .accepted: hidden and weight, or"),
    ({"scores": 0, "bias": 0}, "bias is given .accepted: None with scores"),
    ({"scores": 0, "statistics": True}, "statistics is given .accepted: None with scores"),
    ({"scores": 0, "mask": torch.ones(3)}, r"mask.*\(3,\).*\(13,\), that of ids"),
], ids=str)
def test_refusals(given, said):
    hidden, weight, ids, bias = (tensor.cpu() for tensor in problem(bias=True))
    own = {"hidden": hidden, "weight": weight, "bias": bias, "scores": hidden @ weight.t()}
    with pytest.raises((ValueError, TypeError), match=said):
        flp.backend.token_logprobs(ids, **{name: own.get(name, value) for name, value in given.items()})
