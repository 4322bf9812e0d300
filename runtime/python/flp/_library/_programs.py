"""Loss programs: the bytes that flp_spec.loss takes, by name or from a Lua file, and their descriptions.

Invariants: a program's bytes are the library's own, written by libflp (built-in ones) or libflpgen (files), read by
libflp alone, and part of a plan's key; libflpgen is opened for files alone, at first use.
"""
import collections
import ctypes
import functools
import os

from .. import errors
from . import _c

# parameters: {name: (default, low, high)}, vectors, metrics: in the program's order; inputs: the values of a row it reads.
Program = collections.namedtuple("Program", "name data parameters vectors metrics inputs")

FILE = ".lua"


def named(rule, terms=()):
    """The program of a built-in loss or of a Lua file, with built-in terms added. error: as builtin and of_file"""
    return of_file(rule, "+".join(terms)) if rule.endswith(FILE) else builtin("+".join([rule, *terms]))


@functools.lru_cache(maxsize=None)
def builtin(name):
    """The built-in program of this name, or a sum of them ("grpo+k3+entropy"). error: ArgumentError"""
    size = ctypes.c_size_t()
    if "\0" in name:
        raise errors.ArgumentError("loss: expected a name without a byte 0, got %r" % name)
    text = name.encode()
    _c.call("flp_loss_builtin_bytes", text, None, 0, ctypes.byref(size))
    data = ctypes.create_string_buffer(size.value)
    _c.call("flp_loss_builtin_bytes", text, data, len(data), ctypes.byref(size))
    return read(data.raw)


def of_file(path, terms=""):
    """The program of a Lua file, read anew at each call, with built-in terms added. error: FileError, CompileError,
    ArgumentError; LibraryError where libflpgen is not there"""
    try:
        with open(path, "rb") as file:
            text = file.read()
    except OSError as error:
        raise errors.FileError("loss: %s cannot be read: %s" % (path, error.strerror)) from error
    return _traced(path, text, terms)


@functools.lru_cache(maxsize=64)
def _traced(path, text, terms):
    generator = _generator()
    data, size = ctypes.create_string_buffer(_c.LOSS_BYTES_MAX), ctypes.c_size_t()
    detail = ctypes.create_string_buffer(1024)
    status = generator.flpgen_loss_bytes(path.encode(), text, len(text), terms.encode(), data, len(data),
                                         ctypes.byref(size), detail, len(detail))
    if status != errors.OK:
        errors.raise_status(status, detail.value.decode(errors="replace"))
    return read(data.raw[:size.value])


def generator_path():
    """Where libflpgen is looked for, as libflp does: FLP_JIT_LIBRARY, with libflp, the loader's path."""
    return os.environ.get("FLP_JIT_LIBRARY") or _c.beside_library("libflpgen.so") or "libflpgen.so"


@functools.lru_cache(maxsize=None)
def _opened(path):
    library = ctypes.CDLL(path)
    function = library.flpgen_loss_bytes
    size = ctypes.POINTER(ctypes.c_size_t)
    function.restype = ctypes.c_int
    function.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_void_p,
                         ctypes.c_size_t, size, ctypes.c_void_p, ctypes.c_size_t]
    return library


def _generator():
    path = generator_path()
    try:
        return _opened(path)
    except (OSError, AttributeError) as error:
        raise errors.LibraryError("a loss from a Lua file needs libflpgen, which could not be loaded from %s (%s); set "
                                  "FLP_JIT_LIBRARY to its path, or take a built-in loss" % (path, error)) from error


def read(data):
    """The description in a program's bytes. error: CorruptError"""
    stated = _c.new_loss_description()
    _c.call("flp_loss_describe", data, len(data), stated)
    parameters = {row.name.decode(): (row.fallback, row.low, row.high)
                  for row in stated.parameters[:stated.parameter_count]}
    return Program(stated.name.decode(), data, parameters, _names(stated.vectors, stated.vector_count),
                   _names(stated.metrics, stated.metric_count), frozenset(_names(stated.inputs, stated.input_count)))


def _names(rows, count):
    return tuple(row.value.decode() for row in rows[:count])
