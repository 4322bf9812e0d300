"""selective_log_softmax: sizes of the vocabulary, rows in place, memory."""
import math

import pytest
import torch

import flp
import flp_exact
from binding_fixtures import torch_form
from flp._library import _plans
from flp_reference import DEVICE, relative

pytestmark = pytest.mark.usefixtures("engine")
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
ULP = {torch.float32: 2e-6, torch.float64: 1e-13, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-10}  # relative, plus 2e-6


def problem(shape=(3, 5), vocab=1003, targets=None, dtype=torch.float32, seed=0, target_dtype=torch.int64):
    generator = torch.Generator().manual_seed(seed)
    logits = (torch.randn(*shape, vocab, generator=generator, dtype=torch.float64) * 3).to(dtype)
    index = torch.randint(0, vocab, shape if targets is None else (*shape, targets), generator=generator)
    return logits.to(DEVICE), index.to(target_dtype).to(DEVICE)


def plain(logits, index):
    """In float64 -> logprob, entropy"""
    found = flp_exact.selective_log_softmax(logits.double().cpu(), index.cpu(), entropy=True)
    return found["logprob"].to(DEVICE), found["entropy"].to(DEVICE)


def with_entropy(logits, index, **keywords):
    return flp.selective_log_softmax(logits, index, entropy=True, **keywords)


def close(got, wanted, dtype, scale=1.0):
    bound = scale * (ULP[dtype] * wanted.abs() + (1e-14 if dtype is torch.float64 else 2e-6))
    assert ((got.double() - wanted).abs() <= bound).all(), (got.double() - wanted).abs().max()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("vocab,targets", [(2, None), (7, 2), (255, None), (2049, 3), (8192, 1), (20007, 4)])
def test_values(dtype, vocab, targets):
    logits, index = problem(vocab=vocab, targets=targets, dtype=dtype)
    logprob, entropy = flp.selective_log_softmax(logits, index, entropy=True)
    wanted, wanted_entropy = plain(logits, index)
    assert logprob.dtype is entropy.dtype is dtype and logprob.shape == index.shape and entropy.shape == logits.shape[:-1]
    close(logprob, wanted, dtype)
    close(entropy, wanted_entropy, dtype, 4)
    assert torch.equal(flp.selective_log_softmax(logits, index), logprob)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_results_are_rounded_once(dtype):
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    logits, index = problem(dtype=dtype)
    logprob, entropy = with_entropy(logits, index, out_dtype=wide)
    wanted, wanted_entropy = plain(logits, index)
    assert logprob.dtype is entropy.dtype is wide
    close(logprob, wanted, wide)
    close(entropy, wanted_entropy, wide, 4)
    rounded = flp.selective_log_softmax(logits, index, out_dtype=dtype)
    assert rounded.dtype is dtype and torch.equal(rounded, logprob.to(dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_scores_shifted_far(dtype):
    shift = 1e4 if dtype in (torch.float32, torch.float64) else 64.0
    logits, index = problem(dtype=dtype)
    shifted = logits + shift
    close(flp.selective_log_softmax(shifted, index), plain(shifted, index)[0], dtype, 2)


def test_the_torch_form_takes_over_between_the_passes(monkeypatch):
    """Gradients may lie otherwise than the scores, which is another plan, for which there may be no kernel."""
    logits, index = problem(shape=(4,), vocab=300, targets=2)
    found = []
    for other in (None, torch_form):
        leaf = logits.clone().requires_grad_()
        logprob, entropy = with_entropy(leaf, index, temperature=0.7)
        if other:
            flp.clear_plans()
            monkeypatch.setattr(_plans, "_create", other)
        (logprob.sum() + 0.3 * entropy.sum()).backward()
        found.append(leaf.grad)
    assert relative(found[1], found[0]) <= 2e-6


def test_rows_beyond_the_limit_are_counted_as_kernels_count_them():
    """2^30 in units of ln 2; a NaN among the scores changes it for low rows alone."""
    logits, index = problem((7,))
    flp.check()
    logits[0, 5] = logits[1, 5] = 1e10      # counted,
    logits[1, 900] = math.nan               # NaN behind it or before
    logits[2, 3], logits[2, 5] = math.nan, 1e10
    logits[3, 4] = math.nan                 # a NaN alone is not
    logits[4] = -1e10                       # counted
    logits[5], logits[5, 8] = -1e10, math.nan
    logits[6, 5], logits[6, 6] = 1e10, math.inf
    assert flp.selective_log_softmax(logits, index).isnan().all()
    with pytest.raises(flp.DataError, match=r"\b4 "):
        flp.check()
    assert flp.selective_log_softmax(logits.double(), index)[[0, 4]].isfinite().all()
    flp.check()


def test_bad_targets_are_nan_and_counted():
    logits, index = problem(shape=(4,), vocab=50, targets=2)
    index[1, 0], index[2, 1] = 50, -1
    leaf = logits.clone().requires_grad_()
    logprob = flp.selective_log_softmax(leaf, index)
    assert logprob.isnan().tolist() == [[False, False], [True, False], [False, True], [False, False]]
    with pytest.raises(flp.DataError, match="2 "):
        flp.check()
    weights = torch.ones_like(logprob)
    weights[2, 1] = 0  # left out by the caller: no harm
    (logprob.nan_to_num() * 0 + torch.where(weights == 0, torch.zeros_like(logprob), logprob)).sum().backward()
    assert leaf.grad[1].isnan().all() and leaf.grad[[0, 2, 3]].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_rows_that_stand_apart_are_read_in_place(dtype):
    logits, index = problem(shape=(3, 6), vocab=1003, dtype=dtype)
    padded = torch.full((3, 6, 1100), math.nan, dtype=dtype, device=DEVICE)
    padded[..., 3:1006] = logits
    for view, ids in ((padded[..., 3:1006], index), (logits[:, :-1], index[:, 1:]), (logits[:, ::2], index[:, ::2]),
                      (logits.transpose(0, 1), index.t()), (logits[0], index[0]), (logits[1, 2], index[1, 2]),
                      (logits[:, :1].expand(3, 6, 1003), index), (logits[:0], index[:0])):
        assert torch.equal(flp.selective_log_softmax(view, ids),
                           flp.selective_log_softmax(view.contiguous(), ids.contiguous()))
    leaf = padded.clone().requires_grad_()
    flp.selective_log_softmax((leaf * 1)[..., 3:1006], index, inplace_backward=True).float().sum().backward()
    alone = logits.clone().requires_grad_()
    flp.selective_log_softmax(alone, index).float().sum().backward()
    assert torch.equal(leaf.grad[..., 3:1006], alone.grad)


def test_int32_targets_and_one_of_a_row():
    logits, index = problem()
    assert torch.equal(flp.selective_log_softmax(logits, index.int()), flp.selective_log_softmax(logits, index))
    assert torch.equal(flp.selective_log_softmax(logits, index.unsqueeze(-1)).squeeze(-1),
                       flp.selective_log_softmax(logits, index))


def test_a_row_does_not_know_its_neighbours():
    logits, index = problem(shape=(40,), vocab=5000)
    whole = with_entropy(logits, index)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    for got, wanted in zip(with_entropy(logits[order], index[order]), whole):
        assert torch.equal(got, wanted[order])
    assert torch.equal(with_entropy(logits[7:8], index[7:8])[0], whole[0][7:8])


def test_the_gradient_takes_the_place_of_the_scores():
    logits, index = problem(vocab=4096)
    leaf = logits.clone().requires_grad_()
    scores = leaf * 1
    kept = []
    scores.register_hook(lambda grad: kept.append(grad.data_ptr()))
    flp.selective_log_softmax(scores, index, inplace_backward=True).sum().backward()
    assert kept == [scores.data_ptr()]


def test_scores_that_another_saved_are_missed():
    logits, index = problem()
    leaf = logits.clone().requires_grad_()
    scores = leaf * 1
    loss = flp.selective_log_softmax(scores, index, inplace_backward=True).sum()
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="inplace"):
        loss.backward()


def test_nothing_of_vocab_size_is_kept():
    logits, index = problem(vocab=4096)
    leaf = logits.clone().requires_grad_()
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        flp.selective_log_softmax(leaf, index, entropy=True)
    assert [t.data_ptr() for t in kept if t.numel() > 1000] == [leaf.data_ptr()]
