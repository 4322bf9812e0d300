"""linear_logprob(keep=...): lists in any order, behind others, with bounds that are none; what is refused."""
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


REFUSED = [
    ({"keep": torch.zeros(3)}, TypeError, "keep is of type Tensor"),
    ({"keep": (torch.zeros(4), torch.zeros(3, dtype=torch.int64))}, TypeError, r"keep\[0\] \(offsets\) is of dtype"),
    ({"keep": (torch.zeros(3, dtype=torch.int64), torch.zeros(3, dtype=torch.int64))}, ValueError, r"\(4,\), one more"),
    ({"keep": (torch.zeros(4, dtype=torch.int64), torch.zeros(3, 1, dtype=torch.int64))}, ValueError, "one dimension"),
    ({"keep": (torch.zeros(4, dtype=torch.int64), [1, 2])}, TypeError, r"keep\[1\] \(token_ids\) is of type list"),
    ({"keep": None, "kept_mass": True}, ValueError, "kept_mass is True"),
]


@pytest.mark.parametrize("given, error, words", REFUSED, ids=[words for _, _, words in REFUSED])
def test_what_is_refused(given, error, words):
    hidden, weight, target, _ = problem(n=3, vocab=V)
    given = {"keep": (torch.arange(4), target.cpu()), **given}
    if isinstance(given["keep"], tuple):
        given["keep"] = tuple(part.to(DEVICE) if isinstance(part, torch.Tensor) else part for part in given["keep"])
    with pytest.raises(error, match=words):
        flp.linear_logprob(hidden, weight, target, **given)
