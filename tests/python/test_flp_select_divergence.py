"""selective_divergence: rows in place and copied, kinds of files, what is kept, what is refused. Values and gradients
are cases of support/flp_cases.py; tests/golden/refused/python/select.txt has more that is refused."""
import math

import pytest
import torch

import flp
from flp_reference import DEVICE, relative
from test_flp_divergence_kinds import file, other  # noqa: F401

pytestmark = pytest.mark.usefixtures("engine")
KINDS = list(flp.losses.DIVERGENCES)


def problem(shape=(3, 6), vocab=1003, dtype=torch.float32, teacher_dtype=None):
    draw = torch.Generator().manual_seed(0)
    return [(2 * torch.randn(*shape, vocab, generator=draw)).to(each).to(DEVICE)
            for each in (dtype, teacher_dtype or dtype)]


def gradient(scores, teacher, **options):
    """What a call gives, and the gradient of rows that count differently."""
    leaf = scores.detach().requires_grad_()
    found = flp.selective_divergence(leaf, teacher, **options)
    (found.value * torch.linspace(1, 2, found.value.numel(), device=DEVICE).view(found.value.shape)).sum().backward()
    return found, leaf.grad


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_what_two_heads_give(kind):
    """Of heads that are the identity."""
    scores, teacher = problem((13,), vocab=48)
    head = torch.eye(48, device=DEVICE)
    found, made = gradient(scores, teacher, kind=kind, temperature=0.7)
    hidden = scores.clone().requires_grad_()
    wanted = flp.divergence(hidden, head, teacher, head, kind, temperature=0.7)
    (wanted.value * torch.linspace(1, 2, 13, device=DEVICE)).sum().backward()
    for got, want in zip(found, wanted):
        torch.testing.assert_close(got, want, atol=2e-6, rtol=2e-6)
    assert relative(made, hidden.grad) < 1e-5


@pytest.mark.parametrize("dtypes", [(torch.float32, torch.float32), (torch.bfloat16, torch.float32),
                                    (torch.float32, torch.float16)], ids=str)
def test_rows_that_stand_apart_or_overlap(dtypes):
    scores, teacher = problem(dtype=dtypes[0], teacher_dtype=dtypes[1])
    padded = torch.full((3, 6, 1101), math.nan, dtype=dtypes[0], device=DEVICE)
    padded[..., 3:1006] = scores
    for view, other_view in (
            (padded[..., 3:1006], teacher), (scores[:, :-1], teacher[:, 1:]), (scores[:, ::2], teacher[:, ::2]),
            (scores.transpose(0, 1), teacher.transpose(0, 1)), (scores[0], teacher[1]), (scores[1, 2], teacher[0, 0]),
            (scores[..., ::2], teacher[..., ::2]), (scores[..., 3:], teacher[..., 3:]),
            (scores[:, :1].expand(3, 6, 1003), teacher), (scores[0].t().contiguous().t(), teacher[0]),
            (scores[:0], teacher[:0])):
        got, made = gradient(view, other_view)
        want, wanted = gradient(view.contiguous(), other_view.contiguous())
        assert all(torch.equal(one, two) for one, two in zip(got, want)) and torch.equal(made, wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_budgets_change_no_bit(dtype, monkeypatch):
    scores, teacher = problem((11,), dtype=dtype, teacher_dtype=torch.float16)
    want, wanted = gradient(scores, teacher)
    for budget in ("1", "16K", "40K"):
        monkeypatch.setenv("FLP_BUDGET", budget)
        flp.clear_plans()
        got, made = gradient(scores, teacher)
        assert all(torch.equal(one, two) for one, two in zip(got, want)) and torch.equal(made, wanted)


def test_a_row_does_not_know_its_neighbours():
    scores, teacher = problem((40,))
    whole, order = flp.selective_divergence(scores, teacher), torch.randperm(40)
    for rows in (order, slice(7, 8)):
        for got, want in zip(flp.selective_divergence(scores[rows], teacher[rows]), whole):
            assert torch.equal(got, want[rows])


def test_infinite_scores_are_nan_and_not_counted():
    scores, teacher = problem((4,))
    scores[1, 5], teacher[2, 0] = math.inf, math.inf
    found, made = gradient(scores, teacher)
    assert found.value.isnan().tolist() == found.lse.isnan().tolist() == [False, True, True, False]
    assert made.isnan().all(1).tolist() == [False, True, True, False]
    assert not found.agrees[1:3].any()
    flp.check()


def test_nothing_of_vocab_size_is_kept():
    scores, teacher = problem(vocab=4096)
    leaf, kept = scores.clone().requires_grad_(), []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        found = flp.selective_divergence(leaf, teacher)
    assert {t.data_ptr() for t in kept if t.numel() > 1000} == {leaf.data_ptr(), teacher.data_ptr()}
    assert [values.requires_grad for values in found] == [True] + [False] * 5


def test_the_teacher_is_a_constant():
    scores, teacher = (each.requires_grad_() for each in problem())
    flp.selective_divergence(scores, teacher).value.sum().backward()
    assert teacher.grad is None and not flp.selective_divergence(scores.detach(), teacher).value.requires_grad


def test_there_is_one_derivative():
    scores, teacher = problem()
    leaf = scores.requires_grad_()
    made, = torch.autograd.grad(flp.selective_divergence(leaf, teacher).value.sum(), leaf, create_graph=True)
    with pytest.raises(RuntimeError, match="flp.selective_divergence has no second derivative"):
        made.sum().backward()


def test_a_kind_of_a_file(engine, file):  # noqa: F811
    scores, teacher = problem()
    if engine == "torch form":
        with pytest.raises(flp.errors.UnavailableError, match="kind mixed has no kernel"):
            flp.selective_divergence(scores, teacher, file)
        return
    found, made = gradient(scores, teacher, kind=file, parameters={"mix": 0.25})
    parts = [gradient(scores, teacher, kind=kind) for kind in ("forward_kl", "reverse_kl")]
    torch.testing.assert_close(found.value, 0.25 * parts[0][0].value + 0.75 * parts[1][0].value, atol=2e-6, rtol=2e-6)
    assert relative(made, 0.25 * parts[0][1].double() + 0.75 * parts[1][1].double()) < 1e-5


@pytest.mark.skipif(not hasattr(torch, "func"), reason="torch before 2.0 has no torch.func")
def test_transforms_of_torch_func_are_refused():
    scores, teacher = problem()
    with pytest.raises(flp.errors.UnsupportedError, match="flp.selective_divergence does not support the transforms"):
        torch.func.grad(lambda x: flp.selective_divergence(x, teacher).value.sum())(scores)
