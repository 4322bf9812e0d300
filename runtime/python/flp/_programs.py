"""Loss programs: the bytes that flp_spec.loss takes, by name or from a Lua file, and what their head says.

Invariants: a program's bytes are the library's own, written by libflp (built-in ones) or libflpgen (files), and part of
a plan's key; libflpgen is opened for files alone, at first use. source: runtime/loss_bytes.c, the form of the bytes
"""
import collections
import ctypes
import functools
import os
import struct

from . import _c, errors

# parameters: {name: (default, low, high)}, vectors, metrics: in the program's order; inputs: the values of a row it reads.
Program = collections.namedtuple("Program", "name data parameters vectors metrics inputs")

HEAD = struct.Struct("<4sII64sIIIIII")
PARAMETER = struct.Struct("<32sddd")
VECTOR, METRIC = struct.Struct("<32s"), struct.Struct("<32sI")
FILE = ".lua"
CONSTANT_BYTES, NODE = 8, struct.Struct("<HHHH")
INPUT_OPERATION = 1
INPUTS = ("logprob", "entropy", "old_logprob", "ref_logprob", "advantage", "weight")


def named(rule, terms=()):
    """The program of a built-in loss or of a Lua file, with built-in terms added. error: as builtin and of_file"""
    return of_file(rule, "+".join(terms)) if rule.endswith(FILE) else builtin("+".join([rule, *terms]))


@functools.lru_cache(maxsize=None)
def builtin(name):
    """The built-in program of this name, or a sum of them ("grpo+k3+entropy"). error: ArgumentError"""
    library, size = _c.get(), ctypes.c_size_t()
    text = name.encode()
    _c.check(library, library.flp_loss_builtin_bytes(text, None, 0, ctypes.byref(size)))
    data = ctypes.create_string_buffer(size.value)
    _c.check(library, library.flp_loss_builtin_bytes(text, data, len(data), ctypes.byref(size)))
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
    """Where libflpgen is looked for, as libflp does: FLP_JIT_LIBRARY, beside libflp, the loader's path."""
    beside = os.path.join(os.path.dirname(os.path.realpath(_c.library_path())), "libflpgen.so")
    return os.environ.get("FLP_JIT_LIBRARY") or (beside if os.path.exists(beside) else "libflpgen.so")


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
    """What a program's bytes say about it."""
    _, _, _, name, parameters, vectors, constants, nodes, metrics, _ = HEAD.unpack_from(data)
    at = HEAD.size
    given, at = _fields(PARAMETER, data, at, parameters)
    named, at = _fields(VECTOR, data, at, vectors)
    listed, at = _fields(NODE, data, at + constants * CONSTANT_BYTES, nodes)
    reported, _ = _fields(METRIC, data, at, metrics)
    names = tuple(_text(row[0]) for row in named)
    inputs = frozenset((INPUTS + names)[node[1]] for node in listed if node[0] == INPUT_OPERATION)
    return Program(_text(name), data, {_text(row[0]): row[1:] for row in given}, names,
                   tuple(_text(row[0]) for row in reported), inputs)


def _fields(form, data, at, count):
    """So many records of one form, and where they end."""
    return [form.unpack_from(data, at + i * form.size) for i in range(count)], at + count * form.size


def _text(field):
    return field.split(b"\0", 1)[0].decode()
