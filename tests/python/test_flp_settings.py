"""FLP_FORCE, FLP_STRICT and FLP_BUDGET: read by libflp alone, and in force on every rung."""
import pytest
import torch

import flp
from flp._library import _c, _plans
from flp.heads import _chunks

from binding_fixtures import torch_form
from flp_reference import problem

VOCAB = 331
NAMES = ("FLP_FORCE", "FLP_STRICT", "FLP_BUDGET")


@pytest.fixture(autouse=True)
def no_settings(monkeypatch):
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


def operands():
    return [tensor.cpu() for tensor in problem(n=5, vocab=VOCAB)[:3]]


def on_libflp(monkeypatch):
    return flp.linear_logprob


def on_the_torch_form(monkeypatch):
    monkeypatch.setattr(_plans, "_create", torch_form)
    return flp.linear_logprob


def in_chunks(monkeypatch):
    return _chunks.linear_logprob


rungs = pytest.mark.parametrize("rung", [on_libflp, on_the_torch_form, in_chunks])


@rungs
def test_the_budget_of_the_environment_bounds_every_rung(monkeypatch, rung):
    call, (hidden, weight, target) = rung(monkeypatch), operands()
    monkeypatch.setenv("FLP_BUDGET", "1K")
    with pytest.raises(flp.BudgetError, match="1024"):
        call(hidden, weight, target)
    assert call(hidden, weight, target, budget=64 << 20).isfinite().all(), "that of the call comes first"
    monkeypatch.setenv("FLP_BUDGET", "0.5G")
    flp.clear_plans()
    assert call(hidden, weight, target).isfinite().all()
    with pytest.raises(flp.BudgetError, match="1024"):
        call(hidden, weight, target, budget=1024)


def test_the_backward_pass_of_the_torch_form_has_that_budget_too(monkeypatch):
    call, (hidden, weight, target) = on_the_torch_form(monkeypatch), operands()
    hidden.requires_grad_()
    monkeypatch.setenv("FLP_BUDGET", "24M")  # forward takes less, backward no more
    assert flp.explain(hidden, weight, target).backward["bytes"] <= 24 << 20
    call(hidden, weight, target).sum().backward()
    flp.clear_plans()
    forward_bytes = flp.explain(hidden, weight, target).forward["bytes"]
    monkeypatch.setenv("FLP_BUDGET", str(forward_bytes))
    flp.clear_plans()
    with pytest.raises(flp.BudgetError, match="budget is %d bytes" % forward_bytes):
        call(hidden, weight, target).sum().backward()


@rungs
@pytest.mark.parametrize("strict, bad", [("1", True), ("0", False), ("", False)])
def test_strict_refuses_bad_rows_on_every_rung(monkeypatch, rung, strict, bad):
    call, (hidden, weight, target) = rung(monkeypatch), operands()
    target[1], target[3] = VOCAB, -100
    monkeypatch.setenv("FLP_STRICT", strict)
    if bad:
        with pytest.raises(flp.DataError, match="^1 row "):
            call(hidden, weight, target)
        target[1] = 0
    assert call(hidden, weight, target).isfinite().tolist() == [True, bad, True, True, True]


def test_strict_refuses_bad_temperatures_in_chunks(monkeypatch):
    hidden, weight, target = operands()
    target[0] = -100
    monkeypatch.setenv("FLP_STRICT", "1")
    with pytest.raises(flp.DataError, match="^2 rows "):
        _chunks.linear_logprob(hidden, weight, target, temperature=torch.tensor([0.0, 1.0, -1.0, float("inf"), 2.0]))


def test_strict_refuses_bad_targets_of_scores(monkeypatch):
    monkeypatch.setenv("FLP_STRICT", "1")
    for create in (_plans._create, torch_form):
        monkeypatch.setattr(_plans, "_create", create)
        flp.clear_plans()
        with pytest.raises(flp.DataError, match="^1 row "):
            flp.selective_log_softmax(torch.zeros(3, 7), torch.tensor([0, 7, 1]))


@pytest.mark.parametrize("name, value", [("FLP_FORCE", "fastest"), ("FLP_FORCE", "auto"), ("FLP_STRICT", "yes"),
                                         ("FLP_BUDGET", "1GB"), ("FLP_BUDGET", "0")])
def test_a_value_that_is_not_accepted_is_the_same_sentence_on_every_rung(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    sentences = set()
    for rung in (on_libflp, on_the_torch_form, in_chunks):
        with monkeypatch.context() as patch, pytest.raises(flp.ArgumentError) as caught:
            rung(patch)(*operands(), budget=1 << 30)
        sentences.add(str(caught.value))
    assert len(sentences) == 1 and sentences.pop().startswith('%s is "%s" (accepted: ' % (name, value))


def test_libflp_reports_what_is_in_force(monkeypatch):
    assert _plans.in_force(0) == (_c.RUNG_AUTO, False, {_c.PASS_FORWARD: 256 << 20, _c.PASS_COMBINE: 256 << 20,
                                                        _c.PASS_BACKWARD: 1 << 30, _c.PASS_STEP: 1 << 30})
    for name, value in zip(NAMES, ("jit", "1", "1.5M")):
        monkeypatch.setenv(name, value)
    asked = _plans.in_force(0)
    assert (asked.rung, asked.strict, set(asked.budgets.values())) == (_c.RUNG_JIT, True, {3 << 19})


def test_host_memory_has_one_rung_whatever_is_pinned(monkeypatch):
    """A batch that was left on the CPU runs there: runtime/README.md, Settings."""
    monkeypatch.setenv("FLP_FORCE", "jit")
    monkeypatch.setenv("FLP_STRICT", "1")
    flp.clear_plans()
    operands = torch.ones(2, 8), torch.ones(4, 8), torch.zeros(2, dtype=torch.int64)
    assert flp.explain(*operands).rung == "eager" and torch.isfinite(flp.linear_logprob(*operands)).all()


def test_bad_rows_on_the_cpu_are_logged_once_until_a_check(monkeypatch, caplog):
    operands = torch.ones(3, 8), torch.ones(6, 8), torch.tensor([0, 99, -1])
    for logged in (1, 2):
        for _ in range(2):
            flp.linear_logprob(*operands)
        assert len(caplog.records) == logged and "bad rows: 2 rows or row ids were bad" in caplog.text
        with pytest.raises(flp.DataError, match="^4 rows or row ids"):
            flp.check()
    monkeypatch.setenv("FLP_STRICT", "1")
    flp.clear_plans()
    with pytest.raises(flp.DataError, match="^2 rows or row ids"):
        flp.linear_logprob(*operands)


def test_check_says_once_what_bad_rows_are():
    hidden, target = torch.ones(3, 8), torch.full((3,), 99)
    for vocab in (4, 5):
        flp.linear_logprob(hidden, torch.ones(vocab, 8), target)
    with pytest.raises(flp.DataError) as refused:
        flp.check()
    assert str(refused.value).startswith("6 rows or row ids held bad values (") and str(refused.value).count("row ids") == 2
    flp.check()
