"""Imports one module out of a package whose own start would import half a training framework.

Invariant: what is imported is the library's installed file; only the __init__ files of its parent packages are left
out, by empty packages with the same path. A package that is imported already is left as it is.
"""
import importlib
import importlib.util
import sys
import types


def folders_of(name):
    """Where the files of a package lie, without running it."""
    parent, _, child = name.rpartition(".")
    if not parent:
        spec = importlib.util.find_spec(name)
        if spec is None or not spec.submodule_search_locations:
            raise ModuleNotFoundError("No module named %r" % name, name=name)
        return list(spec.submodule_search_locations)
    return [folder + "/" + child for folder in sys.modules[parent].__path__]


def add_package(name):
    """Puts an empty package in the place of one that is not imported yet."""
    if name in sys.modules:
        return
    package = types.ModuleType(name)
    package.__path__ = folders_of(name)
    sys.modules[name] = package
    parent, _, child = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], child, package)


def stand_in(name, **values):
    """Puts a module of these values in the place of one that is not imported yet."""
    module = types.ModuleType(name)
    vars(module).update(values)
    sys.modules.setdefault(name, module)


def import_kernel(name, packages):
    """Imports module name; packages, parents first, are not started."""
    if name in sys.modules:
        return sys.modules[name]
    for package in packages:
        add_package(package)
    return importlib.import_module(name)
