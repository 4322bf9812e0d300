"""A vocabulary sharded over ranks: partials, their merge and the backward pass, against the whole head."""
import pytest
import torch

import flp
from flp_reference import DEVICE, problem

pytestmark = pytest.mark.usefixtures("engine")


@pytest.mark.parametrize("several", [False, True])
def test_a_shard_with_padding_lends_its_plan(several):
    """Its rows may be more than the vocabulary has: one rank, whose vocabulary is padded to a multiple."""
    hidden, weight, target, _ = problem()
    target = torch.stack([target, target % 7], 1) if several else target
    padded = torch.cat([weight, torch.full((21, 64), float("nan"), device=DEVICE)])
    part = flp.linear_logprob_partial(hidden, padded, target, vocab_offset=0, vocab_valid=331, vocab_total=331, entropy=True)
    want = flp.linear_logprob(hidden, weight, target, entropy=True)
    for lent in (None, padded, weight[:200]):
        logprob, entropy, _ = flp.combine_partials([part], target, vocab_total=331, weight_shard=lent, entropy=True)
        assert torch.allclose(logprob, want[0], atol=1e-6) and torch.allclose(entropy, want[1], atol=1e-5)


def test_one_shard_is_the_whole_head():
    hidden, weight, target, _ = problem()
    part = flp.linear_logprob_partial(hidden, weight, target, vocab_offset=0, vocab_total=331, entropy=True)
    logprob, entropy, stats = flp.combine_partials(part.unsqueeze(0), target.reshape(13, 1), vocab_total=331,
                                                   entropy=True, weight_shard=weight)
    assert logprob.shape == entropy.shape == (13, 1) and stats.shape == (13, 4)
    whole = flp.linear_logprob(hidden, weight, target, entropy=True)
    assert torch.allclose(logprob[:, 0], whole[0], atol=1e-6) and torch.allclose(entropy[:, 0], whole[1], atol=1e-5)
    assert torch.equal(stats[:, 2], logprob[:, 0])


def test_a_partial_has_the_target_or_no_score():
    """Of the shard that has it, minus infinity elsewhere, and NaN of a bad one on every rank."""
    hidden, weight, target, _ = problem()
    target[5] = 331
    parts = [flp.linear_logprob_partial(hidden, weight[own], target, vocab_offset=own.start, vocab_total=331)
             for own in (slice(0, 120), slice(120, 248), slice(248, 331))]
    assert (torch.isinf(torch.stack(parts)[:, :, 3]).sum(0) == 2)[target != 331].all()
    assert all(part[5, 0].isnan() for part in parts)


def test_needs_chooses_what_is_computed():
    hidden, weight, target, _ = problem()
    part = flp.linear_logprob_partial(hidden, weight, target, vocab_offset=0, vocab_total=331)
    _, entropy, stats = flp.combine_partials([part], target, vocab_total=331)
    assert entropy is None
    g = torch.ones(13, device=DEVICE)
    assert [x is None for x in flp.linear_logprob_backward(hidden, weight, target, stats, g)] == [False, False, True]
    assert [x is None for x in flp.linear_logprob_backward(hidden, weight, target, stats, g, needs=["hidden"])] \
        == [False, True, True]
