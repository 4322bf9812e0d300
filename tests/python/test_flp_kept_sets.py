"""linear_logprob(keep=...): lists in any order, behind others, with bounds that are none."""
import pytest
import torch

import flp
from flp_kept_sets import lists
from flp_reference import DEVICE, problem

pytestmark = pytest.mark.usefixtures("engine")

N, V = 13, 331


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
