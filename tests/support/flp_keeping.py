"""A stand-in for a rung that keeps something from forward to backward, which the eager rung does not: it grants the
memory, notes what a pass gets of it, and lets the pass recompute. noted_blocks tells whether the memory is
still there."""
import weakref

import pytest

from flp import _c, _plans, _run

BYTES = 1 << 20  # what the stand-in reports that it keeps
WORKSPACE = 1000  # what it wants beside


class Passes:
    """What each executed pass got: (pass, keeps, saved, saved_bytes, old_lse); and what was asked with which budget."""

    def __init__(self):
        self.seen, self.asked = [], []

    def forward(self):
        return [seen for seen in self.seen if seen[0] == _c.PASS_FORWARD]

    def backward(self):
        return [seen for seen in self.seen if seen[0] == _c.PASS_BACKWARD]


def has_directions(key):
    """As flp_planner_has_direction: a frozen head whose entropy has no gradient."""
    return key.grads == _c.GRAD_HIDDEN and key.entropy != _c.ENTROPY_BACKWARD


@pytest.fixture
def passes(monkeypatch):
    """A rung that keeps what fits the budget."""
    found, execute, layout = Passes(), _plans.Plan.execute, _plans.Plan.layout

    def saved_bytes(plan, n, budget):
        found.asked.append(("saved", budget))
        return BYTES if plan.key.keep and BYTES + WORKSPACE <= (budget or 1 << 30) else 0

    def note(plan, args):
        found.seen.append((getattr(args, "pass"), plan.key.keep, args.saved, args.saved_bytes, args.old_lse))
        args.saved = args.old_lse = None
        execute(plan, args)

    def layout_of(plan, which, n, budget):
        """What the pass recomputes in is taken beside the budget."""
        if which not in _run.SAVED_PASSES.values():
            return layout(plan, which, n, budget)
        found.asked.append((which, budget))
        mode = 7 if has_directions(plan.key) else 5 if which == _c.PASS_BACKWARD_SAVED else 1
        return _c.Layout(bytes=1 << 21, mode=mode, saved_bytes=BYTES)

    monkeypatch.setattr(_plans.Plan, "layout", layout_of)
    monkeypatch.setattr(_plans.Plan, "saved_bytes", saved_bytes)
    monkeypatch.setattr(_plans.Plan, "execute", note)
    return found


def noted_blocks(monkeypatch):
    """Weak references to what is kept, as it is allocated."""
    blocks, place = [], _run.workspace_on

    def noting(device, size):
        block, start = place(device, size)
        if size == BYTES:
            blocks.append(weakref.ref(block.untyped_storage() if hasattr(block, "untyped_storage") else block))
        return block, start

    monkeypatch.setattr(_run, "workspace_on", noting)
    return blocks
