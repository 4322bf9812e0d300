"""Counts of the calls at an adapter's seams and of a model under a head: on which rung and in which mode each ran, or
why it stayed the host's.

Invariants: nothing waits, for a device or a lock; a call inside a graph of torch.compile is not counted.
"""
import collections
import functools
import weakref

from .._library import _c
from .._tensors._compile import is_tracing
from ._watch import watching

NOT_ASKED = "flp was asked for no log-probabilities"

_of_heads: "weakref.WeakValueDictionary[int, Calls]" = weakref.WeakValueDictionary()  # of those installed, by id


class Call:
    """A call at a seam. ran: (rung, mode) of its first forward pass, or None; contract: what gives flp.contract's words
    of it, or None; reason: why it is the host's, or None. Calls at other seams that it makes are part of it."""

    __slots__ = ("ran", "contract", "reason")

    def __init__(self):
        self.ran = self.contract = self.reason = None


class Calls:
    """The calls at one seam: by (rung, mode) those through flp, by reason those that stayed the host's own. Of a head:
    host is its name, seam the class of the model."""

    def __init__(self, host, seam):
        self.host, self.seam = host, seam
        self.flp, self.own = collections.Counter(), collections.Counter()

    def counting(self, made):
        """What Seam.make gave, with its calls counted."""
        if isinstance(made, staticmethod):
            return staticmethod(self.counting(made.__func__))

        @functools.wraps(made)
        def counted(*arguments, **keywords):
            if is_tracing():
                return made(*arguments, **keywords)
            outer, call = watching.call, Call()
            watching.call = call
            try:
                results = made(*arguments, **keywords)
            finally:
                watching.call = outer
                if outer is not None:
                    outer.ran, outer.reason = outer.ran or call.ran, outer.reason or call.reason
                    outer.contract = outer.contract or call.contract
            self._add(call)
            return results

        return counted

    def _add(self, call):
        if call.reason or call.ran is None:
            self.own[call.reason or NOT_ASKED] += 1
            return
        if not self.flp:
            words = "" if call.contract is None else "; contract: %s" % call.contract()
            _c.log(_c.LOG_INFO, "%s: %s runs on flp, rung %s, mode %s%s" % (self.host, self.seam, *call.ran, words))
        self.flp[call.ran] += 1

    def by_name(self):
        """{"flp": {"rung mode": calls}, "own": {reason: calls}}"""
        return {"flp": {" ".join(ran): count for ran, count in dict(self.flp).items()}, "own": dict(self.own)}


def install_head(name, model, options):
    """The Calls of a head that is put into a model, which the log says, until uninstall_head."""
    calls = Calls(name, type(model).__name__)
    _of_heads[id(calls)] = calls
    _c.log(_c.LOG_INFO, "%s: installed in %s, %s" % (name, calls.seam, options))
    return calls


def uninstall_head(calls):
    _of_heads.pop(id(calls), None)


def of_heads():
    """{host: {seam: by_name of its Calls}} of heads that are installed; those of one name and class of model add up."""
    found = {}
    for calls in filter(None, (alive() for alive in _of_heads.valuerefs())):
        total = found.setdefault(calls.host, {}).setdefault(calls.seam, Calls(calls.host, calls.seam))
        total.flp.update(dict(calls.flp))
        total.own.update(dict(calls.own))
    return {host: {seam: calls.by_name() for seam, calls in seams.items()} for host, seams in found.items()}


def left(reason):
    """Notes why the call at a seam that this thread is in stays the host's."""
    if not is_tracing() and watching.call is not None:
        watching.call.reason = watching.call.reason or reason
