"""Adapters: flp inside trainers that exist, each at one seam, put in by install() and taken out by uninstall().

Invariants: a host is touched only where an adapter names it and only after all its seams were recognised; what an
adapter replaced stands there again after uninstall(), object for object; what flp cannot take goes to the host's own
function.
"""
from __future__ import annotations

import importlib
from typing import Any

from .. import errors
from .._library import _c
from .._tensors import _check
from . import _call, _seam, megatron

HOSTS = ("agilerl", "megatron", "miles", "miles-megatron", "nemo-rl", "openrlhf", "prime-rl", "skyrl", "slime",
         "slime-megatron", "torchtitan", "trl", "verl", "verl-megatron")

_installed: dict[str, Any] = {}


def install(host: str, *, untested: bool = False) -> None:
    """Lets a trainer compute its log-probabilities through flp.

    host      one of HOSTS, such as "trl", "prime-rl" or "torchtitan"; flp/adapters/<host>.py lists the functions
    untested  True: accept a version and a source text that the adapter was not tested with, as long as the seams'
              parameters have the same names; logged as a warning
    Imports the host's modules at the seams. Call it once in each process, before training starts; again, it does
    nothing. Arguments that flp cannot take (a sharded or quantised head, an output that it does not compute, ...) go to
    the host's own function, which flp's log reports once per reason.
    error:  ArgumentError for another name; HostError if the host is not there or is not what the adapter was written
            for: nothing has been replaced then
    thread: call it from one
    """
    adapter = _adapter(host)
    if host in _installed:
        return
    version = _seam.version_of(adapter)
    found = _seam.recognise(adapter, version, untested)
    if untested:
        _c.log(_c.LOG_WARNING, "%s %s: installed at its seams without the test of its version and source text"
               % (host, version))
    _call.forget(host)
    _installed[host] = (version, [_seam.Replacement(place, seam.make(place.value)) for seam, place in found])


def uninstall(host: str) -> None:
    """Puts back every attribute that install(host) replaced, in every module that holds it; nothing without an install.

    error: ArgumentError for an unknown name; HostError if someone else replaced an attribute meanwhile: that one stays
           as it is, all others are the host's own again
    """
    _adapter(host)
    _version, replacements = _installed.pop(host, (None, ()))
    foreign = [place for replacement in replacements for place in replacement.undo()]
    if foreign:
        raise errors.HostError(
            "flp was uninstalled from %s, but someone else had replaced %s meanwhile; this was left in place and may "
            "still call flp. Undo that replacement too, and next time before flp.uninstall()"
            % (host, ", ".join(foreign)))


def installed() -> dict[str, str | None]:
    """{host: its version, or None where it has no package metadata} of what is installed now."""
    return {host: version for host, (version, _) in _installed.items()}


def _adapter(host):
    if host not in HOSTS:
        _check.refuse(errors.ArgumentError, "host", repr(host), ", ".join(HOSTS))
    return importlib.import_module("." + host.replace("-", "_"), __name__).HOST
