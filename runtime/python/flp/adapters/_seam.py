"""Seams: what an adapter replaces in a host, how it knows that this is what was tested, how everything is put back."""
import dataclasses
import functools
import hashlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import sys
import textwrap
import types
import typing

from .. import errors
from .._library import _c

ABSENT = object()


@dataclasses.dataclass(frozen=True)
class Seam:
    """One replaced attribute. name and described are dotted names within the module."""

    module: str
    name: str
    parameters: typing.Tuple[str, ...]  # the names, in order
    source: str  # the first 16 digits of the SHA-256 of its source text, or of several; none: any
    make: typing.Optional[typing.Callable[..., typing.Any]]  # the host's value -> what stands there; None: it stays
    described: str = ""  # whose parameters and source these are, if not the attribute's own
    needs: str = ""  # a package that the module needs; where it is not installed the host runs without the module

    def __str__(self):
        return "%s.%s" % (self.module, self.described or self.name)


@dataclasses.dataclass(frozen=True)
class Host:
    """A trainer or an engine: the distribution it comes as, and its seams. Its version decides nothing."""

    name: str
    seams: typing.Tuple[Seam, ...]
    origin: str  # what to install to get what was tested
    package: str = ""  # the distribution, if it is called otherwise; or several, of which one is there
    # puts in, before the seams, what is no attribute -> an object whose undo() is that of Replacement. error: HostError
    register: typing.Optional[typing.Callable[..., typing.Any]] = None


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a value stands: vars(owner)[name] was raw, getattr(owner, name) was value."""

    owner: object
    name: str
    raw: object
    value: object

    def __str__(self):
        return "%s.%s" % (getattr(self.owner, "__qualname__", self.owner.__name__), self.name)

    def now(self):
        return vars(self.owner).get(self.name, ABSENT)

    def put(self, value):
        if value is ABSENT:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, value)


class Replacement:
    """A new value in one place and, for a module's attribute, in every module that had imported it by name."""

    def __init__(self, place, value):
        self.value = value
        self.own = place.value
        self.places = [place]
        if isinstance(place.owner, types.ModuleType):
            self.places += [other for other in holders(place.value)
                            if (other.owner, other.name) != (place.owner, place.name)]
        for place in self.places:
            place.put(value)

    def undo(self):
        """Puts back what stood there, also where the new value was imported since -> places replaced by others."""
        foreign = []
        for place in self.places:
            if place.now() is self.value:
                place.put(place.raw)
            elif place.now() is not place.raw:
                foreign.append(str(place))
        for place in holders(self.value):
            place.put(self.own)
        return foreign


def holders(value):
    """The module attributes that are this very object."""
    modules = [module for module in list(sys.modules.values()) if isinstance(module, types.ModuleType)]
    return [Place(module, name, held, held) for module in modules for name, held in list(vars(module).items())
            if held is value]


def version_of(host):
    """The installed version, or None for a tree without package metadata."""
    for name in (host.package or host.name).split():
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            pass
    return None


def recognise(host, version, untested):
    """Checks the seams -> [(seam, place)]; untested: another source text is a warning. error: HostError"""
    found = [(seam, *_find(host, version, seam)) for seam in host.seams
             if not seam.needs or importlib.util.find_spec(seam.needs)]
    for seam, _place, function in found:
        _compare(host, version, seam, function, untested)
    return [(seam, place) for seam, place, _function in found if seam.make]


def _find(host, version, seam):
    """(place, the function whose parameters and source text identify it)"""
    try:
        module = importlib.import_module(seam.module)
        *path, name = seam.name.split(".")
        owner = functools.reduce(getattr, path, module)
        place = Place(owner, name, vars(owner).get(name, ABSENT), getattr(owner, name))
        return place, functools.reduce(getattr, seam.described.split("."), module) if seam.described else place.value
    except ImportError as error:
        _refuse(host, version, "%s could not be imported (%s)" % (seam.module, error), error)
    except AttributeError as error:
        _refuse(host, version, "%s is not there (%s)" % (seam, error), error)


def _compare(host, version, seam, function, untested):
    try:
        parameters = tuple(inspect.signature(function).parameters)
        text = inspect.getsource(function)
    except (OSError, TypeError, ValueError) as error:
        _refuse(host, version, "%s has no source text to recognise it by (%s): it was replaced already, or compiled"
                % (seam, error), error)
    if parameters != seam.parameters:
        _refuse(host, version, "the parameters of %s are (%s) (accepted: (%s))"
                % (seam, ", ".join(parameters), ", ".join(seam.parameters)))
    changed = _change_of(seam, function, text) if seam.source else None
    if changed and not untested:
        _refuse(host, version, changed + ", so it was changed or replaced already")
    if changed:
        _c.log(_c.LOG_WARNING, "%s: %s; untested=True takes it" % (_named(host, version), changed))


def _change_of(seam, function, text):
    """What differs from what was tested, or None. text: the function's source"""
    source = hashlib.sha256(text.encode()).hexdigest()[:16]
    if source not in seam.source.split():
        return "the source text of %s has hash %s (accepted: %s)" % (seam, source, " or ".join(seam.source.split()))
    for line in textwrap.dedent(text).splitlines():
        if line.startswith("@"):
            function = getattr(function, "__wrapped__", function)
    if hasattr(function, "__wrapped__"):  # by functools.wraps, whose source text is the inner function's
        return "%s is wrapped in a function that its source text does not name" % seam
    return None


def _refuse(host, version, what, cause=None):
    raise errors.HostError(
        "%s: %s. Nothing was replaced. Install what was tested, %s, or any version whose seams are equal to its, or "
        "use an flp whose adapter knows this one; flp.install(%r, untested=True) accepts another source text where the "
        "parameters are the same" % (_named(host, version), what, host.origin, host.name)) from cause


def _named(host, version):
    return "%s (version %s)" % (host.name, version or "unknown")
