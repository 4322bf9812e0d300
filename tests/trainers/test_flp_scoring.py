"""flp.score: the bits of padded and packed batches, what a gate keeps of them, and nothing read on the host."""
import pytest
import torch
from flp_reference import DEVICE, GRAD_TOLERANCE, relative
from torch.utils._python_dispatch import TorchDispatchMode

import flp

LENGTHS = [5, 0, 1, 7, 3, 2]
PROMPTS = [2, 0, 1, 0, 3, 1]    # leave 3, 0, 0, 6 (the first has nothing before it), 0 and 1 of them
DEPTH, VOCAB, JUNK = 16, 53, 2**31 - 7


class Ragged:
    """The same sequences packed and padded, with what no call may look at outside them."""

    def __init__(self, lengths=LENGTHS, bias=False):
        generator = torch.Generator().manual_seed(0)
        self.lengths = lengths
        self.weight = torch.randn(VOCAB, DEPTH, generator=generator).div(2).to(DEVICE)
        self.bias = torch.randn(VOCAB, generator=generator).to(DEVICE) if bias else None
        self.hidden = torch.randn(sum(lengths), DEPTH, generator=generator).to(DEVICE)
        self.tokens = torch.randint(VOCAB, (sum(lengths),), generator=generator).to(DEVICE)
        self.ends = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], device=DEVICE)

    def of(self, i, tensor):
        return tensor[self.ends[i]:self.ends[i + 1]]

    def padded(self, side="right", width=8):
        """-> hidden (B, T, D), tokens (B, T) and what exists (B, T)"""
        hidden = torch.full((len(self.lengths), width, DEPTH), float("nan"), dtype=self.hidden.dtype, device=DEVICE)
        tokens = torch.full((len(self.lengths), width), JUNK, dtype=self.tokens.dtype, device=DEVICE)
        exists = torch.zeros_like(tokens, dtype=torch.bool)
        for i, length in enumerate(self.lengths):
            places = slice(0, length) if side == "right" else slice(width - length, width)
            hidden[i, places], tokens[i, places] = self.of(i, self.hidden), self.of(i, self.tokens)
            exists[i, places] = True
        return hidden, tokens, exists


def on_device(numbers, dtype=torch.int64):
    return torch.tensor(numbers, dtype=dtype, device=DEVICE)


def packed_score(batch, hidden, weight, **options):
    return flp.score(hidden, weight, batch.tokens, cu_seqlens=batch.ends, **options)


@pytest.mark.parametrize("side, told", [("right", "lengths"), ("right", "attention_mask"), ("left", "attention_mask")])
def test_padded_sequences_give_the_bits_of_packed_ones(engine, side, told):
    batch = Ragged(bias=True)
    hidden, tokens, exists = batch.padded(side)
    said = {"lengths": on_device(LENGTHS, torch.int32), "attention_mask": exists.long()}[told]
    shared = dict(prompt_lengths=on_device(PROMPTS), entropy=True)
    leaves = [hidden.requires_grad_(), batch.weight.requires_grad_(), batch.hidden.requires_grad_()]
    padded = flp.score(hidden, batch.weight, tokens, bias=batch.bias, **{told: said}, **shared)
    packed = packed_score(batch, batch.hidden, batch.weight, bias=batch.bias, **shared)
    for name in ("logprob", "entropy", "mask"):
        assert torch.equal(getattr(padded, name)[exists], getattr(packed, name))
        assert not getattr(padded, name)[~exists].any()
    assert padded.counts.dtype is torch.int64 and packed.counts.tolist() == [3, 0, 0, 6, 0, 1]
    for name in ("sum", "mean", "counts"):
        assert torch.equal(getattr(padded, name), getattr(packed, name))
    grads = [torch.autograd.grad(scores.mean.sum() + scores.entropy.sum(), (own, leaves[1]))
             for scores, own in ((padded, leaves[0]), (packed, leaves[2]))]
    assert relative(grads[0][0][exists], grads[1][0]) < 1e-6 and not grads[0][0][~exists].any()
    assert relative(grads[0][1], grads[1][1]) < 1e-6


def test_targets_that_are_shifted_already_give_the_same(engine):
    batch = Ragged(lengths=[8, 8, 8])
    hidden, tokens, _ = batch.padded()
    temperature = torch.linspace(0.5, 2, 24, device=DEVICE).view(3, 8)
    inside = flp.score(hidden, batch.weight, tokens, temperature=temperature, prompt_lengths=on_device([3, 1, 0]))
    outside = flp.score(hidden[:, :-1], batch.weight, tokens[:, 1:], temperature=temperature[:, 1:], shifted=True,
                        prompt_lengths=on_device([2, 0, 0]))
    plain = flp.linear_logprob(hidden[:, :-1], batch.weight, tokens[:, 1:], temperature=temperature[:, 1:])
    assert torch.equal(inside.logprob[:, 1:], outside.logprob) and torch.equal(inside.sum, outside.sum)
    assert torch.equal(outside.logprob[1:], plain[1:]) and torch.equal(outside.logprob[0, 2:], plain[0, 2:])
    assert outside.counts.tolist() == inside.counts.tolist() == [5, 7, 7]


def test_masks_ignored_tokens_and_padding_behind_the_last_sequence_are_not_scored(engine):
    batch = Ragged(lengths=[4, 5])
    mask = on_device([0, 1, 1, 0, 1, 1, 1, 1, 0])
    batch.tokens[6] = -100
    want = [False, True, True, False, False, True, False, True, False]
    assert packed_score(batch, batch.hidden, batch.weight, mask=mask).mask.tolist() == want
    batch.ends = on_device([1, 4, 6])
    scores = packed_score(batch, batch.hidden, batch.weight)
    assert scores.mask.tolist() == [False, False, True, True, False, True, False, False, False]
    assert scores.counts.tolist() == [2, 1]


@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (2, 1)])
def test_batches_without_a_token_to_score(engine, shape):
    weight = torch.randn(VOCAB, DEPTH, device=DEVICE, requires_grad=True)
    hidden = torch.randn(*shape, DEPTH, device=DEVICE, requires_grad=True)
    scores = flp.score(hidden, weight, torch.zeros(shape, dtype=torch.int64, device=DEVICE), entropy=True)
    assert scores.logprob.shape == scores.entropy.shape == shape and scores.sum.tolist() == [0.0] * shape[0]
    assert scores.mean.tolist() == [0.0] * shape[0] and scores.counts.tolist() == [0] * shape[0]
    (scores.sum.sum() + scores.mean.sum()).backward()
    assert not weight.grad.any() and not hidden.grad.any()


@pytest.mark.parametrize("ends, n", [([0], 0), ([0], 3), ([0, 0, 0], 0), ([0, 1, 2, 3], 3), ([0, 0, 3, 3], 3)])
def test_packed_batches_of_next_to_nothing(engine, ends, n):
    weight = torch.randn(VOCAB, DEPTH, device=DEVICE, requires_grad=True)
    scores = flp.score(torch.randn(n, DEPTH, device=DEVICE), weight, torch.zeros(n, dtype=torch.int64, device=DEVICE),
                       cu_seqlens=on_device(ends), prompt_lengths=on_device([0] * (len(ends) - 1)))
    counts = [max(0, b - a - 1) for a, b in zip(ends, ends[1:])]
    assert scores.counts.tolist() == counts and scores.mask.sum() == sum(counts)
    chosen = scores.keep(sequences=torch.ones(len(counts), dtype=torch.bool, device=DEVICE))
    chosen.sum.sum().backward()
    assert weight.grad.any() == (sum(counts) > 0)


def test_what_a_gate_keeps_is_trained_and_nothing_else(engine):
    batch = Ragged(lengths=[6, 9, 4, 8])
    hidden, weight = batch.hidden.requires_grad_(), batch.weight.requires_grad_()
    scores = packed_score(batch, hidden, weight, entropy=True)
    advantage = torch.tensor([0.5, -1.0, 2.0, 1.0], device=DEVICE)
    kept = flp.gate(flp.delight(scores.mean, advantage), fraction=0.3)
    assert kept.sum() == 2 and not kept[1]
    chosen = scores.keep(sequences=kept)
    loss = -(advantage * chosen.sum).sum() / chosen.counts.sum() - 0.1 * chosen.entropy.sum()
    grads = torch.autograd.grad(loss, (hidden, weight), retain_graph=True)
    used = scores.mask & scores.per_token(kept)
    each = scores.per_token(advantage) * scores.logprob
    want = torch.autograd.grad(-each[used].sum() / used.sum() - 0.1 * scores.entropy[used].sum(), (hidden, weight))
    assert all(relative(a, b) < 2 * GRAD_TOLERANCE[torch.float32] for a, b in zip(grads, want))
    assert torch.equal(grads[0].abs().sum(1) > 0, torch.roll(used, -1))
    padded, tokens, exists = batch.padded(width=9)
    alike = flp.score(padded, weight, tokens, attention_mask=exists).keep(sequences=kept)
    assert torch.equal(alike.logprob[exists], chosen.logprob) and torch.equal(alike.sum, chosen.sum)


def test_tokens_can_be_kept_one_by_one(engine):
    batch = Ragged()
    hidden, weight = batch.hidden.requires_grad_(), batch.weight.requires_grad_()
    scores = packed_score(batch, hidden, weight)
    kept = flp.gate(flp.delight(scores.logprob, torch.ones_like(scores.logprob)), fraction=0.3, mask=scores.mask)
    assert kept.sum() == 4 and int(scores.counts.sum()) == 13
    chosen = scores.keep(tokens=kept, sequences=on_device([1, 1, 1, 0, 1, 1]))
    assert torch.equal(chosen.mask, kept & (scores.per_token(on_device([1, 1, 1, 0, 1, 1])) == 1))
    chosen.sum.sum().backward()
    assert torch.equal(hidden.grad.abs().sum(1) > 0, torch.roll(chosen.mask, -1))


def test_what_is_not_kept_has_a_gradient_of_zero_whatever_it_holds(engine):
    """A NaN row, a token outside the vocabulary, a weight of infinite advantage: none of them reaches a gradient."""
    nan, inf = float("nan"), float("inf")
    batch = Ragged(lengths=[4, 4, 4, 4])
    hidden, weight = batch.hidden.clone(), batch.weight.requires_grad_()
    hidden[1], batch.tokens[6] = nan, VOCAB + 3
    hidden.requires_grad_()
    scores = packed_score(batch, hidden, weight, entropy=True)
    assert torch.isnan(scores.mean).tolist() == [True, True, False, False]
    for advantage in ([1.0, 1.0, 1.0, nan], [1.0, 1.0, 2.0, inf]):
        advantage = torch.tensor(advantage, device=DEVICE)
        kept = flp.gate(flp.delight(scores.mean, torch.nan_to_num(advantage, posinf=0.0)), fraction=0.3)
        assert kept.tolist() == [False, False, True, False]
        chosen = scores.keep(sequences=kept)
        mask = chosen.mask[None]
        loss, metrics = flp.losses.policy_loss("reinforce", chosen.logprob[None], chosen.per_token(advantage)[None],
                                               mask=mask)
        direct = -(advantage * chosen.sum).sum() + (chosen.entropy * chosen.per_token(advantage)).sum()
        got = [torch.autograd.grad(value, (hidden, weight), retain_graph=True) for value in (loss, direct)]
        assert torch.isfinite(loss) and torch.isfinite(metrics["ratio"])
        for grads in got:
            assert torch.isfinite(grads[1]).all() and grads[1].any()
            assert torch.equal(grads[0].abs().sum(1) > 0, torch.roll(chosen.mask, -1))
            rest = grads[0][~torch.roll(chosen.mask, -1)]
            assert torch.equal(rest, torch.zeros_like(rest))


class NothingRead(TorchDispatchMode):
    """Refuses what makes a device wait for the host: values as numbers, shapes that depend on values, comparisons."""

    REFUSED = ("_local_scalar_dense", "item", "nonzero", "is_nonzero", "equal", "masked_select", "unique")

    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        name = function.__name__.split(".")[0]
        masks = [index for index in arguments[1] if index is not None and index.dtype is torch.bool] if name in (
            "index", "index_put", "index_put_") else []
        assert name not in self.REFUSED and not masks, "%s reads values on the host" % name
        self.seen.add(name)
        return function(*arguments, **(keywords or {}))


def test_the_watch_catches_what_reads():
    flags = torch.tensor([True, False])
    for reads in (lambda: flags.sum().item(), lambda: bool(flags[0]), lambda: flags.nonzero(), lambda: flags[flags],
                  lambda: torch.equal(flags, flags)):
        with pytest.raises(AssertionError, match="reads values on the host"), NothingRead():
            reads()


@pytest.mark.parametrize("rule", [{"fraction": 0.2}, {"price": 1.0}, {"price": 1.0, "temperature": 0.5, "seed": 3}])
@pytest.mark.parametrize("form", ["packed", "lengths", "attention_mask"])
def test_nothing_is_read_on_the_host_from_scoring_to_backward(rule, form):
    batch = Ragged(bias=True)
    hidden, tokens, exists = batch.padded()
    where = {"packed": {"cu_seqlens": batch.ends}, "lengths": {"lengths": on_device(LENGTHS)},
             "attention_mask": {"attention_mask": exists}}[form]
    hidden, tokens = (batch.hidden, batch.tokens) if form == "packed" else (hidden, tokens)
    hidden.requires_grad_()
    weight, bias = batch.weight.requires_grad_(), batch.bias.requires_grad_()
    advantage, prompts = torch.ones(len(LENGTHS), device=DEVICE), on_device(PROMPTS)
    with NothingRead() as watch:
        scores = flp.score(hidden, weight, tokens, bias=bias, prompt_lengths=prompts, entropy=True, mask=tokens >= 0,
                           **where)
        kept = flp.gate(flp.delight(scores.mean, advantage), mask=scores.counts > 0, **rule)
        best = flp.gate(flp.delight(scores.logprob, scores.per_token(advantage)), mask=scores.mask, **rule)
        chosen = scores.keep(sequences=kept, tokens=best)
        flat = [value.reshape(1, -1) for value in (chosen.logprob, chosen.per_token(advantage), chosen.mask)]
        loss, _ = flp.losses.policy_loss("reinforce", flat[0], flat[1], mask=flat[2])
        (loss - 0.01 * chosen.entropy.sum()).backward()
    assert {"cumsum" if form == "attention_mask" else "arange", "roll", "masked_fill"} <= watch.seen
    assert torch.isfinite(weight.grad).all()


def test_a_seed_may_be_on_the_device():
    worth = torch.linspace(-2, 2, 500, device=DEVICE)
    for seed in (0, -5, 2**63 - 1):
        choice = flp.gate(worth, price=0.0, temperature=1.0, seed=on_device(seed))
        assert torch.equal(choice, flp.gate(worth, price=0.0, temperature=1.0, seed=seed))


@pytest.mark.parametrize("ends", [[0, 3, 2, 6], [0, -3, 6], [3, 3, 6], [0, 3, 7]])
def test_bounds_that_are_none_give_nan(ends):
    case = Ragged(lengths=[3, 0, 3])
    scores = flp.score(case.hidden, case.weight, case.tokens, cu_seqlens=on_device(ends), entropy=True)
    assert scores.mask.any() and torch.isnan(scores.logprob[scores.mask]).all()
    assert torch.isnan(scores.entropy[scores.mask]).all()
    assert torch.isnan(scores.sum).all() and torch.isnan(scores.mean).all()
    for values in flp.sequence_logprob(torch.zeros(6, device=DEVICE), cu_seqlens=on_device(ends)):
        assert torch.isnan(values).all()
