"""A stand-in for a rung that keeps something from forward to backward, which the eager rung does not: it grants the
memory, notes what a pass gets of it, and lets the pass recompute; where that is tail mode it writes REPORT.
noted_blocks tells whether the memory is still there."""
import ctypes
import weakref

import pytest

from flp._library import _c, _plans
from flp._passes import _memory, _run
from flp._tensors import _check
from flp.parallel import _call, _group

BYTES = 1 << 20  # what the stand-in reports that it keeps
WORKSPACE = 1000  # what it wants beside
REPORT = [0.5, 1000.0, 3.0, 40.0]  # of each backward pass
MODES = {"save": 5, "direction": 7, "tail": 9}


class Passes:
    """What each executed pass got: (pass, keeps, saved, saved_bytes, old_lse); the bound and the address for a report
    of each; and what was asked with which budget."""

    def __init__(self):
        self.seen, self.tails, self.asked = [], [], []

    def forward(self):
        return [seen for seen in self.seen if seen[0] == _c.PASS_FORWARD]

    def backward(self):
        return [seen for seen in self.seen if seen[0] == _c.PASS_BACKWARD]


def has_directions(key):
    """As flp_planner_has_direction: a frozen head whose entropy has no gradient."""
    return key.grads == _c.GRAD_HIDDEN and key.entropy != _c.ENTROPY_BACKWARD


def parallel_call(chunk=0, entropy=False, budget=None, empty=False, valid=331, **more):
    """flp.parallel's call of a group of one rank, which has all of the vocabulary or, empty, nothing but padding. more:
    save, tail, tail_report"""
    call = _call.Call()
    call.group, call.merge, call.chunk, call.reduce_dtype = _group.Group(None), "sum", chunk, None
    call.gather, call.empty = None, empty
    call.settings = _check.Settings(1.0, None, 1.0, -100, budget, entropy)
    call.settings.offset, call.settings.valid, call.settings.total = 0, 0 if empty else valid, valid
    call.settings.save = None
    for name, value in more.items():
        setattr(call.settings, name, value)
    return call


@pytest.fixture
def passes(monkeypatch):
    """A rung that keeps what fits the budget."""
    found, execute, layout, saved = Passes(), _plans.Plan.execute, _plans.Plan.layout, _plans._saved

    def most(function, of, n, budget):
        return BYTES if function == "flp_spec_saved" and of.tail else saved(function, of, n, budget)

    def saved_bytes(plan, n, budget):
        found.asked.append(("saved", budget))
        return BYTES if (plan.key.keep or plan.key.tail) and BYTES + WORKSPACE <= (budget or 1 << 30) else 0

    def note(plan, args, *function):
        found.seen.append((getattr(args, "pass"), plan.key.keep, args.saved, args.saved_bytes, args.old_lse))
        found.tails.append((plan.key.tail, args.tail_report))
        if args.saved and args.tail_report:
            ctypes.memmove(args.tail_report, (ctypes.c_float * 4)(*REPORT), 16)
        args.saved = args.old_lse = args.tail_report = None
        execute(plan, args, *function)

    def layout_of(plan, which, n, budget, count=None):
        """What the pass recomputes in is taken beside the budget."""
        if which not in _run.SAVED_PASSES.values():
            return layout(plan, which, n, budget, count)
        found.asked.append((which, budget))
        mode = "tail" if plan.key.tail else "direction" if has_directions(plan.key) else "save"
        forward_of_save = mode == "save" and which == _c.PASS_FORWARD_SAVED
        return _c.Layout(bytes=1 << 21, mode=1 if forward_of_save else MODES[mode], saved_bytes=BYTES)

    monkeypatch.setattr(_plans, "_saved", most)
    monkeypatch.setattr(_plans.Plan, "layout", layout_of)
    monkeypatch.setattr(_plans.Plan, "saved_bytes", saved_bytes)
    monkeypatch.setattr(_plans.Plan, "execute", note)
    return found


def noted_blocks(monkeypatch):
    """Weak references to what is kept, as it is allocated."""
    blocks, place = [], _memory.workspace_on

    def noting(device, size):
        block, start = place(device, size)
        if size == BYTES:
            blocks.append(weakref.ref(block.untyped_storage() if hasattr(block, "untyped_storage") else block))
        return block, start

    monkeypatch.setattr(_memory, "workspace_on", noting)
    return blocks
