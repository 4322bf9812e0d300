"""Seams: what an adapter replaces in a host, how it knows that this is what was tested, how everything is put back."""
import dataclasses
import functools
import hashlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import re
import sys
import types
import typing

from .. import errors

ABSENT = object()


@dataclasses.dataclass(frozen=True)
class Seam:
    """One replaced attribute. name and described are dotted names within the module."""

    module: str
    name: str
    parameters: typing.Tuple[str, ...]  # the names, in order
    source: str  # the first 16 digits of the SHA-256 of its source text, or of several; none: any
    make: typing.Callable[..., typing.Any]  # the host's value -> what stands there instead
    described: str = ""  # whose parameters and source these are, if not the attribute's own
    needs: str = ""  # a package that the module needs; where it is not installed the host runs without the module

    def __str__(self):
        return "%s.%s" % (self.module, self.described or self.name)


@dataclasses.dataclass(frozen=True)
class Host:
    """A trainer: the distribution it comes as, the versions that were tested (first, first beyond), and its seams."""

    name: str
    versions: typing.Tuple[str, str]
    seams: typing.Tuple[Seam, ...]
    origin: str  # what to install to get what was tested
    package: str = ""  # the distribution, if it is called otherwise


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
    try:
        return importlib.metadata.version(host.package or host.name)
    except importlib.metadata.PackageNotFoundError:
        return None


def recognise(host, version, untested):
    """Checks version and seams -> [(seam, place)]. error: HostError"""
    if not untested and version is not None:
        first, beyond = host.versions
        if not _release(first) <= _release(version) < _release(beyond):
            _refuse(host, version, "flp's adapter was tested with versions from %s up to, not including, %s"
                    % (first, beyond))
    found = [(seam, *_find(host, version, seam)) for seam in host.seams
             if not seam.needs or importlib.util.find_spec(seam.needs)]
    for seam, _place, function in found:
        _compare(host, version, seam, function, untested)
    return [(seam, place) for seam, place, _function in found]


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
        source = hashlib.sha256(inspect.getsource(function).encode()).hexdigest()[:16]
    except (OSError, TypeError, ValueError) as error:
        _refuse(host, version, "%s has no source text to recognise it by (%s): it was replaced already, or compiled"
                % (seam, error), error)
    if parameters != seam.parameters:
        _refuse(host, version, "%s takes (%s); the adapter was written for (%s)"
                % (seam, ", ".join(parameters), ", ".join(seam.parameters)))
    if seam.source and source not in seam.source.split() and not untested:
        _refuse(host, version, "the source text of %s has hash %s; the adapter was tested with %s, so it was changed "
                "or replaced already" % (seam, source, " and ".join(seam.source.split())))


def _refuse(host, version, what, cause=None):
    raise errors.HostError(
        "%s (version %s): %s. Nothing was replaced. Install %s, or use an flp whose adapter knows this version; "
        "flp.install(%r, untested=True) accepts another version and text where the parameters are the same"
        % (host.name, version or "unknown", what, host.origin, host.name)) from cause


def _release(version):
    """(1, 16, 0) of "1.16.0.dev1"."""
    return tuple(int(part) for part in re.match(r"\d+(?:\.\d+)*", version).group().split("."))
