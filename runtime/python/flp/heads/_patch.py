"""Another forward for one module, until it is taken away: what flp.logprob_head puts over a model and over its head.

The module gets a subclass of its own class, of the same name, and one attribute that says which module was meant.
Invariants: a copy of the module is plain, whichever way it is made. copy, pickle and torch.save give the module's own
class, so that a file needs no flp to load; a replica whose attributes were copied one by one finds that it is not the
module that was meant. A forward that stood in the module's own attributes (accelerate's, say) is called, copied and put
back; one that was put there since, and calls the one here (accelerate's of mixed precision), stays. What others took hold of (model.forward, a class made over this one) is the module's own forward afterwards.
"""
import copyreg
import functools
import types
import weakref

from .. import errors
from .._tensors import _check

SITE = "_flp_site"


class Patched:
    """Stands before the module's own class; keeps what that does to subclasses (__init_subclass__) from this one."""

    def __init_subclass__(cls, **_keywords):
        pass


class Site:
    """Which module was meant, what stood in its attributes as forward, and what is called instead, the last of them.

    Void in every other module that it got into.
    """

    def __init__(self, module):
        self.module, self.handlers = weakref.ref(module), []
        self.stood, self.other = vars(module).get("forward"), replaced_forward(module)

    def __reduce__(self):
        return type(None), ()


def put(module, handler):
    """Has handler(module, below, ...) called in place of module's forward, which is below(...).

    error: UnsupportedError if the class of the module cannot be replaced, RuntimeError if its forward was replaced
    since another handler was put there; the module is as it was then
    """
    site = _site_of(module)
    if site is None:
        site = Site(module)
        _give_class(module)
        vars(module).pop("forward", None)
        vars(module)[SITE] = site
    else:
        check_in_force(module)
        _give_class(module)
    site.handlers.append(handler)


def take(module, handler):
    """Ends a put; with the last one module is what it was. A class that was made over the one here stays."""
    site = _site_of(module)
    site.handlers.remove(handler)
    if site.handlers:
        return
    if not _is_wrapped(module):
        for name in (SITE, "forward"):
            vars(module).pop(name, None)
        if site.stood is not None:
            vars(module)["forward"] = site.stood
    below = vars(type(module)).get("_flp_over")
    if below is not None:
        module.__class__ = below


def check_in_force(module):
    """error: RuntimeError if another forward hides the handlers of a module"""
    if replaced_forward(module) is not None and not _is_wrapped(module):
        raise RuntimeError("forward of %s was replaced after logprob_head was installed (accepted: the one it "
                           "installed, put back first)" % type(module).__name__)


def replaced_forward(module):
    """The forward that stands in a module's attributes, or None: none does, or its class's own."""
    found = vars(module).get("forward")
    function = _below(getattr(found, "__func__", None))
    return None if function is own_forward(module) and found.__self__ is module else found


def _is_wrapped(module):
    """Whether the forward in a module's attributes is over the one here, by __wrapped__: handlers are in force below it."""
    if replaced_forward(module) is None:
        return False
    function = getattr(vars(module)["forward"], "__func__", None)
    here = _class_over(vars(type(module)).get("_flp_over", type(module))).forward
    while function is not None and function is not here:
        function = getattr(function, "__wrapped__", None)
    return function is here


def own_forward(module):
    """The forward of the module's class, or of the one below the class that put gave it."""
    return _below(type(module).forward)


def _below(forward):
    return getattr(forward, "_flp_below", forward)


def _give_class(module):
    """A class that looks for handlers, unless that of the module does already. error: UnsupportedError"""
    if isinstance(module, Patched):
        return
    try:
        module.__class__ = _class_over(type(module))
    except TypeError as error:
        _check.refuse(errors.UnsupportedError, "model", "one with a %s whose class cannot be replaced (%s)"
                      % (type(module).__name__, error), "classes that a subclass can stand for")


def _site_of(module):
    """The Site that was made for this very module, or None."""
    site = vars(module).get(SITE)
    return site if site is not None and site.module() is module else None


@functools.lru_cache(maxsize=None)
def _class_over(base):
    """A subclass that looks for handlers at each call. One a class, so that torch.compile's graphs serve again."""

    @functools.wraps(base.forward)
    def forward(self, *arguments, **keywords):
        site, below = getattr(self, SITE, None), functools.partial(base.forward, self)
        if site is None or site.module() is not self:
            return below(*arguments, **keywords)
        below = below if site.other is None else site.other
        return site.handlers[-1](self, below, *arguments, **keywords) if site.handlers else below(*arguments, **keywords)

    def __reduce_ex__(self, protocol):
        made = super(patched, self).__reduce_ex__(protocol)
        if isinstance(made, str):
            return made
        function, arguments, *more = made
        if more and isinstance(more[0], dict):
            more[0] = _without_site(self, more[0])
        if function is copyreg.__newobj__:  # which pickle accepts for the object's class alone
            function = base.__new__
        return (function, tuple(base if value is patched else value for value in arguments), *more)

    forward._flp_below = base.forward
    named = {name: getattr(base, name) for name in ("__module__", "__qualname__", "__doc__")}
    patched = types.new_class(base.__name__, (Patched, base), {}, lambda body: body.update(
        named, forward=forward, __reduce_ex__=__reduce_ex__, _flp_over=base))
    return patched


def _without_site(module, state):
    """What a copy of the module gets of its attributes."""
    state = {name: value for name, value in state.items() if name != SITE}
    site = _site_of(module)
    if site is not None and site.stood is not None:
        state["forward"] = site.stood
    return state
