"""For who wants to know on which rung and in which mode the calls of a thread run."""
import functools
import threading

from .._library import _c, _plans


class _Watching(threading.local):
    """call: None, or an object whose ran, if None, becomes the words (rung, mode) of the next forward pass, and whose
    contract a function that gives Plan.contract of it."""

    call = None


watching = _Watching()


def tell(plan, grads=0, kept=None, n=0, budget=None, settings=None):
    """Tells who watches this thread of a forward pass or a step over n rows, of a head with these Settings; the rest as
    mode_in."""
    if watching.call is not None and watching.call.ran is None:
        if settings is not None and plan.handle is not None:
            watching.call.contract = functools.partial(plan.contract, settings)
        told(_plans.rung_name(plan.rung), mode_in(plan, grads, kept, n, budget))


def told(rung, mode):
    """The same, in words."""
    if watching.call is not None:
        watching.call.ran = watching.call.ran or (rung, mode)


def mode_in(plan, grads, kept, n, budget):
    """A call's mode in a word: score, recompute, save, direction, tail, stream of a step; select of scores that exist.

    grads   the call's needs-grad mask
    kept    true if the plan's forward pass over n rows keeps something, within budget
    """
    if plan.key.op == _c.OP_SELECT:
        return "select"
    if plan.key.loss and grads and plan.handle is not None and not plan.key.listed:
        return _plans.mode_name(plan.layout(_c.PASS_STEP, n, budget).mode).partition("-")[0]
    if not kept:
        return "recompute" if grads else "score"
    if plan.key.tail:
        return "tail"
    return "direction" if plan.keeps_directions(n, budget) else "save"
