"""A vocabulary sharded over ranks: partials, their merge and the backward pass, against the whole head."""
import pytest
import torch

import flp
from flp_reference import DEVICE, doubles, problem, reference, relative

pytestmark = pytest.mark.usefixtures("engine")
CUTS = [(0, 120, 120), (120, 130, 128), (248, 83, 83)]  # offset, rows of the shard, of which real


def shards(weight, bias):
    """Weight and bias of each rank; rows past the real ones are poison."""
    for offset, size, valid in CUTS:
        part = torch.full((size, weight.shape[1]), float("nan"), device=DEVICE)
        part[:valid] = weight[offset:offset + valid]
        part_bias = torch.full((size,), float("nan"), device=DEVICE)
        part_bias[:valid] = bias[offset:offset + valid]
        yield part, part_bias, {"vocab_offset": offset, "vocab_valid": valid, "vocab_total": 331}


@pytest.mark.parametrize("options", [{}, {"temperature": 0.6}, {"softcap": 3.0, "scale": 1.2}, {"temperature": "rows"}],
                         ids=str)
def test_ranks_make_the_whole_head(options):
    hidden, weight, target, bias = problem(bias=True)
    target[2] = -100
    if options.get("temperature") == "rows":
        options = {"temperature": torch.linspace(0.5, 2.0, 13, device=DEVICE)}
    wide = doubles(hidden, weight, bias)
    want = reference(wide[0], wide[1], target, wide[2], **options)
    g, e = torch.linspace(-1, 1, 13, device=DEVICE), torch.linspace(0, 1, 13, device=DEVICE)
    ((want[0] * g).sum() + (want[1] * e).sum()).backward()

    partials = [flp.linear_logprob_partial(hidden, part, target, part_bias, entropy=True, **place, **options)
                for part, part_bias, place in shards(weight, bias)]
    assert torch.isinf(torch.stack(partials)[:, 0, 3]).sum() == 2
    logprob, entropy, stats = flp.combine_partials(partials, target, vocab_total=331, entropy=True, **options)
    assert torch.allclose(logprob.double(), want[0], atol=2e-5)
    assert torch.allclose(entropy.double(), want[1], atol=2e-5)

    grad_hidden = torch.zeros(13, 64, dtype=torch.float64, device=DEVICE)
    for part, part_bias, place in shards(weight, bias):
        offset, valid = place["vocab_offset"], place["vocab_valid"]
        dh, dw, db = flp.linear_logprob_backward(hidden, part, target, stats, g, e, part_bias, **place, **options)
        grad_hidden += dh
        assert relative(dw[:valid], wide[1].grad[offset:offset + valid]) < 1e-5
        assert relative(db[:valid], wide[2].grad[offset:offset + valid]) < 1e-5
        assert not dw[valid:].any() and not db[valid:].any()
    assert relative(grad_hidden, wide[0].grad) < 1e-5


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


def test_needs_chooses_what_is_computed():
    hidden, weight, target, _ = problem()
    part = flp.linear_logprob_partial(hidden, weight, target, vocab_offset=0, vocab_total=331)
    _, entropy, stats = flp.combine_partials([part], target, vocab_total=331)
    assert entropy is None
    g = torch.ones(13, device=DEVICE)
    assert [x is None for x in flp.linear_logprob_backward(hidden, weight, target, stats, g)] == [False, False, True]
    assert [x is None for x in flp.linear_logprob_backward(hidden, weight, target, stats, g, needs=["hidden"])] \
        == [False, True, True]
    with pytest.raises(ValueError, match=r"^needs is 'logits' \(accepted: hidden, weight, bias\)$"):
        flp.linear_logprob_backward(hidden, weight, target, stats, g, needs=["logits"])
    with pytest.raises(ValueError, match=r"^needs is \('bias',\) \(accepted: at least one of hidden, weight, bias "
                                         r"\(with a bias\)\)$"):
        flp.linear_logprob_backward(hidden, weight, target, stats, g, needs=("bias",))


def test_bad_targets_are_bad_on_every_rank():
    hidden, weight, target, bias = problem(bias=True)
    target[5] = 331
    partials = [flp.linear_logprob_partial(hidden, part, target, part_bias, **place)
                for part, part_bias, place in shards(weight, bias)]
    assert all(partial[5, 0].isnan() for partial in partials)
    logprob, _, _ = flp.combine_partials(partials, target, vocab_total=331)
    assert logprob.isnan().nonzero().tolist() == [[5]]


def test_shapes_are_checked():
    hidden, weight, target, _ = problem()
    with pytest.raises(ValueError, match=r"^partials is of dtype torch\.float32 and shape \(2, 12, 4\) \(accepted: "
                                         r"torch\.float32 \(R, 13, 4\)\)$"):
        flp.combine_partials(torch.zeros(2, 12, 4, device=DEVICE), target, vocab_total=331)
    with pytest.raises(ValueError, match=r"^stats is of dtype torch\.float32 and shape \(13, 3\) \(accepted: "
                                         r"torch\.float32 \(13, 4\)\)$"):
        flp.linear_logprob_backward(hidden, weight, target, torch.zeros(13, 3, device=DEVICE), torch.ones(13))
