"""linear_logprob over lists of columns, best tokens and several targets: lists in any order, behind others, with bounds
that are none; ties, places in flp.score; one of several targets has the bits of a plain one."""
import pytest
import torch

import flp
from flp_kept_sets import lists
from flp_reference import DEVICE, problem, reference, relative

pytestmark = pytest.mark.usefixtures("engine")

N, V, K = 13, 331, 20


# ---- kept sets ----

def test_order_and_repeats_change_nothing():
    hidden, weight, target, _ = problem(n=N, vocab=V)
    weight.requires_grad_()
    results = []
    for shuffle in (True, False):
        offsets, ids = lists(target, shuffle=shuffle)
        logprob = flp.linear_logprob(hidden, weight, target, keep=(offsets, ids))
        results.append((logprob.detach(), torch.autograd.grad(logprob.sum(), weight)[0]))
    assert all(torch.equal(one, other) for one, other in zip(*results))


@pytest.mark.parametrize("offsets", [[0, 4, 2, 6], [-1, 2, 4, 6], [0, 2, 4, 7]], ids=str)
def test_offsets_that_do_not_ascend_make_every_row_nan(offsets):
    hidden, weight, target, _ = problem(n=3, vocab=V)
    ids = torch.stack([target, target], 1).flatten()
    logprob = flp.linear_logprob(hidden, weight, target, keep=(torch.tensor(offsets, device=DEVICE), ids))
    assert torch.isnan(logprob).all()
    with pytest.raises(flp.DataError):
        flp.check()


def test_lists_may_begin_behind_others():
    """Rows of a batch share the ids of all: their offsets are a slice."""
    hidden, weight, target, _ = problem(n=N, vocab=V)
    offsets, ids = lists(target)
    whole = flp.linear_logprob(hidden, weight, target, keep=(offsets, ids))
    part = flp.linear_logprob(hidden[5:9], weight, target[5:9], keep=(offsets[5:10], ids))
    assert torch.equal(part, whole[5:9])


# ---- best tokens ----

def test_the_best_token_is_argmax_and_has_the_logprob_of_a_target():
    hidden, weight, target, _ = problem(n=N, vocab=V)
    _, top = flp.linear_logprob(hidden, weight, target, topk=3)
    assert torch.equal(top.ids[:, 0], (hidden @ weight.t()).argmax(1))
    for place in range(3):
        logprob, rank = flp.linear_logprob(hidden, weight, top.ids[:, place], rank=True)
        assert torch.equal(logprob, top.logprobs[:, place])
        assert (rank == place).all()


def test_of_equal_scores_the_lowest_id():
    hidden, weight = torch.ones(2, 8, device=DEVICE), torch.zeros(300, 8, device=DEVICE)
    weight[7::50] = 1
    _, top, rank = flp.linear_logprob(hidden, weight, torch.tensor([57, 299], device=DEVICE), topk=9, rank=True)
    assert top.ids.tolist() == [[7, 57, 107, 157, 207, 257, 0, 1, 2]] * 2 and rank.tolist() == [0, 6]


def test_all_tokens():
    hidden, weight, target, _ = problem(n=3, vocab=40)
    _, top = flp.linear_logprob(hidden, weight, target, topk=40)
    assert (top.ids.sort(1).values == torch.arange(40, device=DEVICE)).all() and (top.rest == 0).all()


def test_score_moves_the_best_tokens_to_their_places():
    hidden, weight, _, _ = problem(n=10, vocab=V)
    tokens = torch.randint(V, (2, 5), device=DEVICE)
    scores = flp.score(hidden.view(2, 5, -1), weight, tokens, topk=3, rank=True, lengths=torch.tensor([5, 3], device=DEVICE))
    _, top, rank = flp.linear_logprob(hidden.view(2, 5, -1)[:, :-1], weight, tokens[:, 1:], topk=3, rank=True)
    for row, column in scores.mask.nonzero().tolist():
        assert torch.equal(scores.top.ids[row, column], top.ids[row, column - 1])
        assert torch.equal(scores.top.logprobs[row, column], top.logprobs[row, column - 1])
        assert scores.top.rest[row, column] == top.rest[row, column - 1]
        assert scores.rank[row, column] == rank[row, column - 1]
    assert (scores.top.ids[~scores.mask] == -1).all() and (scores.rank[~scores.mask] == -1).all()
    kept = scores.keep(sequences=torch.tensor([True, False], device=DEVICE))
    assert (kept.top.ids[1] == -1).all() and torch.equal(kept.top.ids[0], scores.top.ids[0])
    packed = flp.score(hidden, weight, tokens.flatten(), cu_seqlens=torch.tensor([0, 5, 8], device=DEVICE), topk=3)
    assert torch.equal(packed.top.ids[1:5], scores.top.ids[0, 1:]) and packed.rank is None
    wrong = flp.score(hidden, weight, tokens.flatten(), cu_seqlens=torch.tensor([1, 5, 8], device=DEVICE), topk=3)
    assert (wrong.top.ids == -1).all() and flp.score(hidden.view(2, 5, -1), weight, tokens).top is None


# ---- several targets ----

def several(count):
    """hidden (2,7,64) and weight, and so many targets of each row, none of the first; numbers for them."""
    hidden, weight, _, bias = problem(n=14, vocab=57, bias=True)  # on the CPU, whatever the tests run on
    generator = torch.Generator().manual_seed(0)
    target = torch.randint(57, (2, 7, count), generator=generator)
    target[0, 0] = -100
    leaves = [leaf.cpu().requires_grad_() for leaf in (hidden.view(2, 7, -1), weight, bias)]
    return leaves, target, torch.randn(2, 7, count, generator=generator)


def test_one_target_has_the_bits_of_a_plain_one():
    leaves, target, upstream = several(1)
    hidden, weight, bias = leaves
    flat = flp.linear_logprob(hidden, weight, target[..., 0], bias)
    one = flp.linear_logprob(hidden, weight, target, bias)
    assert one.shape == (2, 7, 1) and torch.equal(one[..., 0], flat)
    for a, b in zip(torch.autograd.grad(one, leaves, upstream), torch.autograd.grad(flat, leaves, upstream[..., 0])):
        assert torch.equal(a, b)


@pytest.mark.skipif(not hasattr(torch, "func"), reason="this torch has no torch.func")
def test_torch_func_takes_several_targets():
    (hidden, weight, _), target, upstream = several(5)
    grad = torch.func.grad(lambda h: (flp.linear_logprob(h, weight.detach(), target) * upstream).sum())(hidden.detach())
    want = torch.autograd.grad(reference(hidden, weight, target)[0], hidden, upstream.double())[0]
    assert relative(grad, want) < 5e-6


def test_a_step_over_several_targets_is_explained():
    (hidden, weight, _), target, _ = several(5)
    info = flp.explain(hidden, weight, target, loss="forward_kl")
    assert info.rung == "eager" and info.step["products"] == 4
