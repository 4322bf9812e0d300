"""Adapters: flp inside trainers and engines, each at one seam, put in by install() and taken out by uninstall().

Invariants: a host is touched only where an adapter names it and only after all its seams were recognised; what an
adapter replaced stands there again after uninstall(), object for object; what flp cannot take goes to the host's own
function.
"""
from __future__ import annotations

import importlib
from typing import Any, Literal, overload

from .. import errors
from .._passes import _counts
from .._tensors import _check
from . import _call, _seam, megatron

HOSTS = ("agilerl", "megatron", "miles", "miles-megatron", "nemo-rl", "openrlhf", "prime-rl", "sglang", "skyrl",
         "slime", "slime-megatron", "speculators", "torchtitan", "trl", "verl", "verl-megatron", "vllm")

_installed: dict[str, Any] = {}


def install(host: str, *, untested: bool = False) -> None:
    """Lets a trainer, or an engine, compute its log-probabilities through flp.

    host      one of HOSTS, such as "trl", "prime-rl" or "torchtitan"; flp/adapters/<host>.py lists the functions
    untested  True: accept source texts of seams that the adapter was not tested with, as long as their parameters have
              the same names; logged as a warning
    Any version of the host is accepted whose seams have the parameters and source texts that were tested. Imports the
    host's modules at the seams. Call it once in each process, before training starts; again, it does nothing. Arguments
    that flp cannot take (a sharded or quantised head, an output that it does not compute, ...) go to the host's own
    function, which flp's log reports once per reason; at level INFO it says that a seam runs on flp, at its first call
    that does. installed(counts=True) counts both.
    error:  ArgumentError for another name; HostError if the host is not there or is not what the adapter was written
            for: nothing has been replaced then
    thread: call it from one
    """
    adapter = _adapter(host)
    if host in _installed:
        return
    version = _seam.version_of(adapter)
    found = _seam.recognise(adapter, version, untested)
    _call.forget(host)
    calls = [_counts.Calls(host, "%s.%s" % (seam.module, seam.name)) for seam, _place in found]
    made = [each.counting(seam.make(place.value)) for each, (seam, place) in zip(calls, found)]
    registered = [adapter.register()] if adapter.register else []
    _installed[host] = (version, calls, registered + [_seam.Replacement(place, value)
                                                      for value, (_seam_of, place) in zip(made, found)])


def uninstall(host: str) -> None:
    """Puts back every attribute that install(host) replaced, in every module that holds it; nothing without an install.

    error: ArgumentError for an unknown name; HostError if someone else replaced an attribute meanwhile: that one stays
           as it is, all others are the host's own again
    """
    _adapter(host)
    *_others, replacements = _installed.pop(host, ((),))
    foreign = [place for replacement in replacements for place in replacement.undo()]
    if foreign:
        raise errors.HostError(
            "flp was uninstalled from %s, but someone else had replaced %s meanwhile; this was left in place and may "
            "still call flp. Undo that replacement too, and next time before flp.uninstall()"
            % (host, ", ".join(foreign)))


@overload
def installed(*, counts: Literal[False] = ...) -> dict[str, str | None]: ...


@overload
def installed(*, counts: Literal[True]) -> dict[str, dict[str, dict[str, dict[str, int]]]]: ...


def installed(*, counts: bool = False) -> Any:
    """{host: its version, or None where it has no package metadata} of what is installed now.

    counts  True: {host: {seam: {"flp": {"rung mode": calls}, "own": {reason: calls}}}} since install(host). A seam is
            the dotted name of the function that was replaced. "flp" are calls through flp, by rung and mode of their
            first forward pass ("select": of scores that exist already; "diverge": of two heads), such as
            {"jit direction": 12}; "own" are those that stayed the host's, and why. A call counts at each seam that it
            passes, once it has returned; inside a graph of torch.compile it does not count. Heads that are installed
            stand there too, as "logprob_head" or "CrossEntropyHead", with the class of the model in place of the seam
    error:  none
    thread: safe; of calls that end at the same time in several threads one may be missed
    """
    found = {host: {each.seam: each.by_name() for each in calls} if counts else version
             for host, (version, calls, _replacements) in list(_installed.items())}
    return {**found, **_counts.of_heads()} if counts else found


def _adapter(host):
    if host not in HOSTS:
        _check.refuse(errors.ArgumentError, "host", repr(host), ", ".join(HOSTS))
    return importlib.import_module("." + host.replace("-", "_"), __name__).HOST
