"""libflp_jax.so, which stands beside libflp, and its registration with XLA.

Invariants: libflp is opened first, so that libflp_jax, which needs it by its soname, gets the same one; both stay open
for the life of the process, since XLA keeps the handlers' addresses.
"""
import ctypes
import os
from ctypes import POINTER, c_int, c_int32, c_int64, c_size_t, c_uint64

from .. import errors
from .._library import _c

TARGET = "flp_linear_logprob"  # what programs of XLA call the handler
OLDEST = (0, 8, 3)  # before it, a jitted function could not be differentiated by one argument, then by another

try:
    import jax
except ModuleNotFoundError as error:
    if error.name != "jax":
        raise
    raise ImportError("flp.jax needs jax, which is not installed: pip install jax") from None

if jax.__version_info__ < OLDEST:
    raise ImportError("jax is version %s; flp.jax needs %d.%d.%d or newer: pip install --upgrade jax"
                      % ((jax.__version__,) + OLDEST))

import jax.ffi  # noqa: E402

_library = None


def library_path() -> str:
    """The libflp_jax.so of the libflp in use. error: LibraryError"""
    path = _c.beside_library("libflp_jax.so")
    if path is not None:
        return path
    folder = os.path.dirname(_c.library_file())
    raise errors.LibraryError("%s does not exist; flp.jax needs it beside libflp, where builds and installations "
                              "have it (FLP_LIBRARY names libflp)" % os.path.join(folder, "libflp_jax.so"))


def registered():
    """The library; the first call opens it and registers its handlers. error: LibraryError"""
    global _library
    if _library is None:
        _c.get()
        path = library_path()
        try:
            opened = ctypes.CDLL(path)
            workspace, count = opened.flp_jax_workspace, opened.flp_jax_plan_count
            handlers = {"cpu": {"execute": opened.flp_jax_host},
                        "CUDA": {"initialize": opened.flp_jax_cuda, "execute": opened.flp_jax_cuda}}
        except (OSError, AttributeError) as error:
            raise errors.LibraryError("libflp_jax could not be loaded from %s (%s)" % (path, error)) from error
        workspace.restype, count.restype = c_int, c_int
        workspace.argtypes = [POINTER(_c.Spec), c_int32, c_int, c_int64, c_int64, c_uint64, POINTER(c_size_t)]
        for platform, stages in handlers.items():
            capsules = {stage: jax.ffi.pycapsule(handler) for stage, handler in stages.items()}
            jax.ffi.register_ffi_target(TARGET, capsules, platform=platform)
        _library = opened
    return _library


def workspace_bytes(spec, device, which, n, list_count, budget):
    """Bytes of the workspace of one pass on a device; makes the plan. error: FlpError"""
    size = c_size_t()
    _c.check(_c.get(), registered().flp_jax_workspace(spec, device, which, n, list_count, budget, ctypes.byref(size)))
    return size.value


def plan_count():
    """How many plans the calls of this process have made."""
    return registered().flp_jax_plan_count()
