"""linear_logprob(topk=..., rank=...): ties, tokens of no probability, places in flp.score."""
import pytest
import torch

import flp
from flp_reference import DEVICE, problem

pytestmark = pytest.mark.usefixtures("engine")

N, V, K = 13, 331, 20


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
