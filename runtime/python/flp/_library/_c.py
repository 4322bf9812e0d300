"""libflp through ctypes: the structs, enums and functions of runtime/flp.h, and the search for the library.

Invariants: the structs mirror flp.h field by field (tests/python/test_flp_layout.py compares every offset with a
compiled probe), and have __slots__, so that a name that is no field raises AttributeError; the library is opened once, at first use, never at import; ctypes.CDLL releases the GIL in each call.
"""
from __future__ import annotations

import ctypes
import functools
import logging
import os
import platform
import re
import shutil
import threading
from typing import Any, Callable
from ctypes import (CFUNCTYPE, POINTER, Structure, c_char, c_char_p, c_double, c_float, c_int, c_int32, c_int64,
                    c_size_t, c_uint32, c_uint64, c_void_p)

from .. import errors
from .._version import __version__
from . import _fields

VERSION = tuple(int(part) for part in __version__.split(".")[:2])  # major, minor of the flp.h that this file mirrors

DTYPE_BF16, DTYPE_FP16, DTYPE_FP32, DTYPE_INT32, DTYPE_INT64, DTYPE_FP64 = 1, 2, 3, 4, 5, 6
OP_HEAD, OP_SELECT, OP_SCALE, OP_DIVERGE, OP_LOSS = 0, 1, 2, 3, 4
MIXED_NONE, MIXED_ROUND, MIXED_SPLIT = 0, 1, 2
ENTROPY_NONE, ENTROPY_FORWARD, ENTROPY_BACKWARD = 0, 1, 2
GRAD_HIDDEN, GRAD_WEIGHT, GRAD_BIAS, GRAD_LORA_A, GRAD_LORA_B = 1, 2, 4, 8, 16
RUNG_AUTO, RUNG_TUNED, RUNG_HEURISTIC, RUNG_JIT, RUNG_GENERIC, RUNG_EAGER = range(6)
DEVICE_HOST = -1
PASS_FORWARD, PASS_COMBINE, PASS_BACKWARD, PASS_STEP, PASS_BACKWARD_SAVED, PASS_FORWARD_SAVED = 1, 2, 3, 4, 5, 6
PASS_BACKWARD_GIVEN, SUMS_CONTINUE, SUMS_LEAVE = 7, 1, 2
MODE_DIRECTION = 7
LOSS_BYTES_MAX = 4096  # loss.h: capacity that always suffices for a loss program
VECTORS_MAX, INPUTS_MAX = 8, 14
WORKSPACE_ALIGNMENT = 256
CONTRACT_BYTES = 384
LOG_ERROR, LOG_WARNING, LOG_INFO = 0, 1, 2


# Fields of flp_spec but its loss, as _plans.Spec has them: name, type and value of FLP_SPEC_INIT.
SPEC_FIELDS = tuple(row for row in _fields.SPEC if not row[0].startswith("loss"))


def _struct(name, about, fields, head=(("struct_bytes", c_uint32),)):
    """A struct of flp.h: its fields behind those of head."""
    return type(name, (Structure,), {"__doc__": "%s: %s." % (name, about), "__slots__": (),
                                     "_fields_": [*head, *fields]})


Spec = _struct("flp_spec", "what kernels are specialised for", [(name, kind) for name, kind, _ in _fields.SPEC])
Options = _struct("flp_options", "how a plan is to run", [
    ("device", c_int32), ("rung", c_int), ("strict", c_int32), ("host_fallback", c_int32), ("budget_bytes", c_uint64),
    ("chunk_rows", c_int64), ("chunk_vocab", c_int64), ("threads", c_int32), ("mode", c_int), ("tune", c_char_p),
    ("cache_dir", c_char_p), ("cache_path", c_char_p), ("arch", c_char_p)])
Layout = _struct("flp_layout", "what one pass does and takes", [
    ("mode", c_int), ("chunk_rows", c_int64), ("chunk_vocab", c_int64), ("chunks", c_int64), ("products", c_int32),
    ("launches", c_int32), ("bytes", c_uint64), ("smallest_bytes", c_uint64), ("flops", c_double),
    ("saved_bytes", c_uint64)])
Args = _struct("flp_args", "pointers and run-time values of one call", [(name, kind) for name, kind, _ in _fields.ARGS])

NAME_BYTES, TITLE_BYTES = 32, 64
LossParameter = _struct("flp_loss_parameter", "a number that the caller may set for a step", [
    ("name", c_char * NAME_BYTES), ("fallback", c_double), ("low", c_double), ("high", c_double)], head=())
LossDescription = _struct("flp_loss_description", "the description of a loss program", [
    ("parameter_count", c_int32), ("vector_count", c_int32), ("input_count", c_int32), ("metric_count", c_int32),
    ("name", c_char * TITLE_BYTES), ("parameters", LossParameter * 8), ("vectors", c_char * NAME_BYTES * VECTORS_MAX),
    ("inputs", c_char * NAME_BYTES * INPUTS_MAX), ("metrics", c_char * NAME_BYTES * 8)])
SelectArgs = _struct("flp_select_args", "pointers and run-time values of one call over scores that exist", [
    ("pass", c_int), ("n", c_int64), ("k", c_int64), ("scores", c_void_p), ("scores_stride", c_int64),
    ("target", c_void_p), ("temperature", c_double), ("ignore_index", c_int64), ("logprob", c_void_p),
    ("entropy", c_void_p), ("stats", c_void_p), ("grad_logprob", c_void_p), ("grad_entropy", c_void_p),
    ("grad_scores", c_void_p), ("grad_scores_stride", c_int64), ("stream", c_void_p)])
ScaleArgs = _struct("flp_scale_args", "pointers and sizes of one matrix that is multiplied by a factor", [
    ("reserved", c_uint32), ("n", c_int64), ("values", c_void_p), ("values_stride", c_int64), ("factor", c_void_p),
    ("stream", c_void_p)])
DivergeArgs = _struct("flp_diverge_args", "pointers and sizes of two matrices of scores and what is made of them", [
    ("is_shard", c_uint32), ("n", c_int64), ("scores", c_void_p), ("scores_stride", c_int64), ("teacher", c_void_p),
    ("teacher_stride", c_int64), ("scale", c_float), ("teacher_scale", c_float), ("scale_rows", c_void_p),
    ("teacher_scale_rows", c_void_p), ("loss_parameters", c_void_p), ("upstream", c_void_p), ("values", c_void_p),
    ("grad_scores", c_void_p), ("grad_scores_stride", c_int64), ("stream", c_void_p), ("target", c_void_p),
    ("grad_logprob", c_void_p), ("grad_entropy", c_void_p), ("state", c_void_p), ("resumes", c_uint32),
    ("partial", c_void_p), ("teacher_partial", c_void_p)])
ArenaStats = _struct("flp_arena_stats", "bytes that an arena holds and lends", [
    ("reserved_bytes", c_uint64), ("allocated_bytes", c_uint64), ("fragmentation_bytes", c_uint64),
    ("peak_reserved_bytes", c_uint64), ("peak_allocated_bytes", c_uint64), ("peak_fragmentation_bytes", c_uint64),
    ("driver_allocations", c_uint64), ("phases", c_uint64)])

LogFunction = CFUNCTYPE(None, c_int, c_char_p, c_void_p)

PROTOTYPES = {
    "flp_status_name": (c_char_p, [c_int]),
    "flp_error_detail": (c_char_p, []),
    "flp_version": (c_char_p, []),
    "flp_sources_id": (c_char_p, []),
    "flp_plan_create": (c_int, [POINTER(Spec), POINTER(Options), POINTER(c_void_p)]),
    "flp_plan_destroy": (None, [c_void_p]),
    "flp_plan_describe": (c_int, [c_void_p, c_char_p, c_size_t]),
    "flp_plan_get_rung": (c_int, [c_void_p]),
    "flp_plan_get_reason": (c_char_p, [c_void_p, c_int]),
    "flp_rung_name": (c_char_p, [c_int]),
    "flp_mode_name": (c_char_p, [c_int]),
    "flp_plan_contract": (c_int, [c_void_p, POINTER(Args), POINTER(c_char)]),
    "flp_plan_get_id": (c_int, [c_void_p, POINTER(c_char)]),
    "flp_plan_layout": (c_int, [c_void_p, c_int, c_int64, c_uint64, POINTER(Layout)]),
    "flp_plan_layout_listed": (c_int, [c_void_p, c_int, c_int64, c_int64, c_uint64, POINTER(Layout)]),
    "flp_plan_saved": (c_int, [c_void_p, c_int64, c_uint64, POINTER(c_size_t)]),
    "flp_plan_sums": (c_int, [c_void_p, POINTER(c_size_t)]),
    "flp_spec_saved": (c_int, [POINTER(Spec), c_int64, c_uint64, POINTER(c_size_t)]),
    "flp_execute": (c_int, [c_void_p, POINTER(Args)]),
    "flp_step": (c_int, [c_void_p, POINTER(Args)]),
    "flp_loss_builtin_bytes": (c_int, [c_char_p, c_void_p, c_size_t, POINTER(c_size_t)]),
    "flp_loss_describe": (c_int, [c_void_p, c_size_t, POINTER(LossDescription)]),
    "flp_select": (c_int, [c_void_p, POINTER(SelectArgs)]),
    "flp_scale": (c_int, [c_void_p, POINTER(ScaleArgs)]),
    "flp_diverge": (c_int, [c_void_p, POINTER(DivergeArgs)]),
    "flp_plan_check": (c_int, [c_void_p, c_void_p]),
    "flp_arena_create": (c_int, [c_int, POINTER(c_void_p)]),
    "flp_arena_take": (c_int, [c_void_p, c_size_t, c_void_p, POINTER(c_void_p)]),
    "flp_arena_give_back": (c_int, [c_void_p, c_void_p, c_void_p]),
    "flp_arena_end_phase": (c_int, [c_void_p, c_void_p]),
    "flp_arena_get_stats": (c_int, [c_void_p, POINTER(ArenaStats)]),
    "flp_options_in_force": (c_int, [POINTER(Options), c_int, POINTER(c_int), POINTER(c_int32), POINTER(c_uint64)]),
    "flp_bytes_parse": (c_int, [c_char_p, c_char_p, c_uint64, POINTER(c_uint64)]),
    "flp_log_set": (None, [LogFunction, c_void_p]),
}

LOGGING_LEVELS = {LOG_ERROR: logging.ERROR, LOG_WARNING: logging.WARNING, LOG_INFO: logging.INFO}


# FLP_SPEC_INIT.
new_spec = functools.partial(Spec, ctypes.sizeof(Spec), **{name: initial for name, _, initial in _fields.SPEC})
# FLP_OPTIONS_INIT and so on, of structs whose other fields begin with zeros.
new_options, new_layout, new_loss_description, new_arena_stats, new_scale_args = (
    functools.partial(struct, ctypes.sizeof(struct))
    for struct in (Options, Layout, LossDescription, ArenaStats, ScaleArgs))


def _copied(struct, **fields):
    """Gives a struct of these values, made once: a copy takes a third of the time, and every call takes one."""
    return functools.partial(struct.from_buffer_copy, bytes(struct(struct_bytes=ctypes.sizeof(struct), **fields)))


# FLP_ARGS_INIT, FLP_DIVERGE_ARGS_INIT and FLP_SELECT_ARGS_INIT.
new_diverge_args = _copied(DivergeArgs, scale=1.0, teacher_scale=1.0)
new_args = _copied(Args, **{name: initial for name, _, initial in _fields.ARGS if initial})
new_select_args = _copied(SelectArgs, **{"pass": PASS_FORWARD}, k=1, temperature=1.0, ignore_index=-2**63)

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SYSTEM_LIBRARY = "libflp.so.%d" % VERSION[0]  # where the loader looks, as Debian's libflp0 has it


def _is_loadable(name: str) -> bool:
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def library_path() -> str:
    """What will be opened: FLP_LIBRARY, else the copy that the wheel carries, else the name of the system's library.

    error: LibraryError if there is none of them
    """
    named = os.environ.get("FLP_LIBRARY")
    if named:
        return named
    carried = os.path.join(PACKAGE, "lib", "libflp.so.0")
    if os.path.exists(carried):
        return carried
    if _is_loadable(SYSTEM_LIBRARY):
        return SYSTEM_LIBRARY
    raise errors.LibraryError("this package carries no library: %s does not exist, FLP_LIBRARY is not set and the loader "
                              "finds no %s; install the wheel of flp, or set FLP_LIBRARY to the path of libflp.so"
                              % (carried, SYSTEM_LIBRARY))


def library_file() -> str:
    """The path of the library that library_path() names, which may be a name for the loader. error: as library_path"""
    path = library_path()
    if os.sep not in path and _is_loadable(path):
        with open("/proc/self/maps", encoding="utf-8") as lines:
            files = [line.split(None, 5)[5].strip() for line in lines if os.sep in line]
        path = next((file for file in files if os.path.basename(file).startswith(path)), path)
    return os.path.realpath(path)


def beside_library(name: str) -> str | None:
    """The path of a library that stands with libflp: beside it, or in a folder flp there, as Debian has it; None: there is
    none. As libflp looks for libflpgen. error: as library_path"""
    folder = os.path.dirname(library_file())
    places = (os.path.join(folder, name), os.path.join(folder, "flp", name))
    return next((path for path in places if os.path.exists(path)), None)


def prefix() -> str:
    """The folder of the installed tree: bin/flpgen, lib/libflp.so, lib/cmake, include/flp.h, share/flp.

    Of a wheel that is the package's own folder; else the folder above the lib that holds the library of FLP_LIBRARY or of
    the system. error: LibraryError if there is none
    """
    library = library_file()
    folder = os.path.dirname(library)
    while os.path.basename(folder) not in ("lib", "lib64", ""):
        folder = os.path.dirname(folder)
    if not os.path.basename(folder):
        raise errors.LibraryError("FLP_LIBRARY is %s, which stands in no installed tree; accepted: PREFIX/lib/libflp.so"
                                  % os.environ.get("FLP_LIBRARY", library))
    return os.path.dirname(folder)


def command() -> str | None:
    """The path of the command flpgen: of the same build as libflp, else the one on PATH; None without either."""
    try:
        beside = os.path.join(prefix(), "bin", "flpgen")
        if os.access(beside, os.X_OK):
            return beside
    except errors.LibraryError:
        pass
    return shutil.which("flpgen")


def _hint(error):
    """What may help where the loader refused a library."""
    wanted = re.search(r"version `(GLIBC_[0-9.]+)' not found", str(error))
    if wanted:
        return ("this system's C library is %s, and that libflp was built for a newer one; the wheel of flp runs on "
                "glibc 2.28 and newer" % " ".join(platform.libc_ver()).strip())
    return "set FLP_LIBRARY to the path of libflp.so"


def open_library():
    """Opens libflp, declares its functions and checks its version."""
    path = library_path()
    try:
        library = ctypes.CDLL(path)
        for name, (result, arguments) in PROTOTYPES.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise errors.LibraryError("libflp could not be loaded from %s (%s); %s"
                                  % (path, error, _hint(error))) from error
    version = library.flp_version().decode()
    if tuple(int(part) for part in version.split(".")[:2]) != VERSION:
        raise errors.LibraryError("libflp at %s is version %s; this package needs %d.%d; set FLP_LIBRARY to the path "
                                  "of a matching libflp.so" % ((path, version) + VERSION))
    return library


_library = None
_library_lock = threading.Lock()
_log_callback = None  # keeps the C callable alive
_log_user = None


def get():
    """The loaded library; opens it at the first call. thread: safe"""
    global _library, _log_callback
    if _library is None:
        with _library_lock:
            if _library is None:
                opened = open_library()
                _log_callback = LogFunction(_log_message)
                opened.flp_log_set(_log_callback, None)
                _library = opened
    return _library


def _log_message(level, message, _user):
    """Receives one message of the library; an exception of the user's callable must not cross into C."""
    text = message.decode(errors="replace")
    try:
        if _log_user is not None:
            _log_user(LOGGING_LEVELS.get(level, logging.ERROR), text)
        else:
            logging.getLogger("flp").log(LOGGING_LEVELS.get(level, logging.ERROR), "%s", text)
    except Exception:
        logging.getLogger("flp").exception("the callable given to flp.set_log failed on: %s", text)


def set_log(function: Callable[[int, str], Any] | None = None) -> None:
    """Sends the library's messages to function(level, message), or back to the logger "flp" for None.

    level is a number of the module logging (logging.WARNING, ...). thread: any. error: TypeError
    """
    global _log_user
    if function is not None and not callable(function):
        raise TypeError("function is %r; accepted: a callable of (level, message), or None" % (function,))
    _log_user = function


def log(level, message):
    """Sends a message of the Python side where the library's messages go."""
    _log_message(level, message.encode(), None)


def check(library, status):
    """Raises the exception of a status that is not OK, with the library's detail."""
    if status != errors.OK:
        errors.raise_status(status, library.flp_error_detail().decode(errors="replace"))


def call(name, *arguments):
    """Calls a function of the library that gives a status. error: the exception of one that is not OK"""
    library = get()
    status = getattr(library, name)(*arguments)
    if status:
        check(library, status)


def version() -> str:
    """Version of the loaded libflp, e.g. "0.1.0". error: LibraryError"""
    return get().flp_version().decode()


def sources_id() -> str:
    """64 hexadecimal digits: hash of the templates and generator of the loaded libflp, for records of measurements.

    error: LibraryError
    """
    return get().flp_sources_id().decode()
