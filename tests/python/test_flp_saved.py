"""Save mode in linear_logprob: when exponentials are saved, that they reach both passes, are used once and then freed.
The eager rung keeps none, so a stand-in grants the memory, notes what a pass gets of it, and lets the pass
recompute."""
import gc
import weakref

import pytest
import torch

import flp
from flp import _c, _plans, _run

N, D, V = 6, 16, 40
BYTES = 1 << 20  # what the stand-in reports that it keeps


class Passes:
    """What each executed pass got: (pass, keeps, saved, saved_bytes, old_lse); and what of save mode was asked with
    which budget."""

    def __init__(self):
        self.seen, self.asked = [], []

    def forward(self):
        return [seen for seen in self.seen if seen[0] == _c.PASS_FORWARD]

    def backward(self):
        return [seen for seen in self.seen if seen[0] == _c.PASS_BACKWARD]


@pytest.fixture
def passes(monkeypatch):
    """A rung that keeps what fits the budget."""
    found, execute = Passes(), _plans.Plan.execute

    def saved_bytes(plan, n, budget):
        found.asked.append(("saved", budget))
        return BYTES if plan.key.keep and BYTES + 1000 <= (budget or 1 << 30) else 0

    def note(plan, args):
        found.seen.append((getattr(args, "pass"), plan.key.keep, args.saved, args.saved_bytes, args.old_lse))
        args.saved = args.old_lse = None
        execute(plan, args)

    layout = _plans.Plan.layout

    def layout_of(plan, which, n, budget):
        """What the pass recomputes in is taken beside the budget."""
        if which not in _run.SAVED_PASSES.values():
            return layout(plan, which, n, budget)
        found.asked.append((which, budget))
        return _c.Layout(bytes=1 << 21, mode=5, saved_bytes=BYTES)

    monkeypatch.setattr(_plans.Plan, "layout", layout_of)
    monkeypatch.setattr(_plans.Plan, "saved_bytes", saved_bytes)
    monkeypatch.setattr(_plans.Plan, "execute", note)
    return found


def operands(dtype=torch.bfloat16):
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(N, D, generator=generator).to(dtype).requires_grad_()
    weight = torch.randn(V, D, generator=generator).to(dtype).requires_grad_()
    return hidden, weight, torch.randint(V, (N,), generator=generator)


def test_forward_keeps_and_the_first_backward_uses_it_up(passes):
    hidden, weight, target = operands()
    logprob = flp.linear_logprob(hidden, weight, target)
    (_, keeps, saved, size, _), = passes.forward()
    assert keeps == 1 and saved and saved % 256 == 0 and size == BYTES
    logprob.sum().backward(retain_graph=True)
    first = hidden.grad.clone()
    logprob.sum().backward()
    assert [seen[1:4] for seen in passes.backward()] == [(1, saved, BYTES), (0, None, 0)]
    assert torch.equal(hidden.grad, 2 * first)


def test_the_memory_goes_with_the_backward_pass(passes, monkeypatch):
    blocks, place = [], _run.workspace_on

    def noting(device, size):
        block, start = place(device, size)
        if size == BYTES:
            blocks.append(weakref.ref(block))
        return block, start

    monkeypatch.setattr(_run, "workspace_on", noting)
    hidden, weight, target = operands()
    logprob = flp.linear_logprob(hidden, weight, target)
    gc.collect()
    assert len(blocks) == 1 and blocks[0]() is not None
    logprob.sum().backward(retain_graph=True)
    assert blocks[0]() is None
    other = flp.linear_logprob(hidden, weight, target)
    del other
    gc.collect()
    assert len(blocks) == 2 and blocks[1]() is None


@pytest.mark.parametrize("options, keeps", [
    ({}, True), ({"budget": BYTES + 1000}, True), ({"budget": BYTES + 999}, False), ({"save": False}, False),
    ({"save": True, "budget": BYTES - 1}, True), ({"chunk_rows": 2}, False), ({"chunk_rows": 2, "save": True}, True)], ids=str)
def test_when_it_keeps(passes, options, keeps):
    hidden, weight, target = operands()
    flp.linear_logprob(hidden, weight, target, **options)
    assert [bool(seen[2]) for seen in passes.forward()] == [keeps]


@pytest.mark.parametrize("options, budget", [({}, 0), ({"budget": 4 * BYTES}, 4 * BYTES), ({"save": True}, 2**64 - 1),
                                             ({"save": True, "budget": 8}, 2**64 - 1)], ids=str)
def test_one_budget_is_passed_on_to_all_that_is_asked(passes, options, budget):
    hidden, weight, target = operands()
    flp.linear_logprob(hidden, weight, target, **options).sum().backward()
    assert passes.asked == [("saved", budget), (_c.PASS_FORWARD_SAVED, budget), (_c.PASS_BACKWARD_SAVED, budget)]


def test_true_needs_a_rung_that_keeps():
    hidden, weight, target = operands()
    with pytest.raises(flp.UnsupportedError, match="save is True, but nothing here saves exponentials of torch.bfloat16"):
        flp.linear_logprob(hidden, weight, target, save=True)
    with torch.no_grad():
        flp.linear_logprob(hidden, weight, target, save=True)   # scoring keeps nothing


@pytest.mark.parametrize("environment, keeps", [("", True), ("2M", True), ("1000", False), ("many", None)])
def test_the_budget_of_the_environment_counts(passes, monkeypatch, environment, keeps):
    monkeypatch.setenv("FLP_BUDGET", environment)
    hidden, weight, target = operands()
    if keeps is None:
        with pytest.raises(flp.ArgumentError, match="FLP_BUDGET"):
            flp.linear_logprob(hidden, weight, target)
        return
    assert _run.keeping_plan(_run.Operands(hidden, weight, None, target), settings_of(), _c.GRAD_HIDDEN)[1] == \
        (BYTES if keeps else 0)
    # 6 rows of 64 columns, and 256 bytes of references: no plan that keeps is made for a budget below that.
    assert [plan.key.keep for plan in _plans.existing()] == [int(keeps)]


def settings_of():
    settings = flp._check.Settings(1.0, None, 1.0, -100, None, False)
    settings.save = None
    return settings


def test_what_it_does_not_keep_for(passes):
    hidden, weight, target = operands(torch.float32)
    flp.linear_logprob(hidden, weight, target)
    hidden, weight, target = operands()
    flp.linear_logprob(hidden[:0], weight, target[:0])
    with torch.no_grad():
        flp.linear_logprob(hidden, weight, target)
    assert [seen[1:3] for seen in passes.forward()] == [(0, None)] * 3


def test_other_gradients_than_were_planned_recompute(passes):
    if _run_knows_nodes() is None:
        pytest.skip("this torch does not report which gradients a backward pass is for")
    hidden, weight, target = operands()
    logprob = flp.linear_logprob(hidden * 1, weight, target)
    torch.autograd.grad(logprob.sum(), weight)
    assert [seen[1:3] for seen in passes.backward()] == [(0, None)]


def _run_knows_nodes():
    from flp import _logprob
    return _logprob._will_run


def test_an_old_reference_is_handed_on(passes):
    hidden, weight, target = operands()
    lse = torch.logsumexp(hidden.detach().double() @ weight.detach().double().t(), -1)
    logprob = flp.linear_logprob(hidden.view(2, 3, D), weight, target.view(2, 3), old_lse=lse.view(2, 3))
    assert passes.forward()[0][4] and logprob.shape == (2, 3)
    with pytest.raises(ValueError, match="old_lse is of shape"):
        flp.linear_logprob(hidden, weight, target, old_lse=lse.view(2, 3))


def test_it_is_explained(passes):
    hidden, weight, target = operands()
    info = flp.explain(hidden, weight, target)
    assert info.backward["mode"] == "save" and info.backward["saved_bytes"] == BYTES
    assert flp.explain(hidden, weight, target, save=False).backward["mode"] != "save"
