"""flp: fused log-probabilities of a language-model head for torch, through libflp.

    logprob = flp.linear_logprob(hidden, lm_head.weight, target)      # (..., D), (V, D), (...) -> (...)

The (N, V) scores never exist in memory, forward or backward. set_log, version and the exceptions work without torch;
everything that takes tensors needs it.
"""
from . import _plans, errors
from ._c import library_path, set_log, sources_id, version
from .errors import (ArgumentError, BudgetError, CompileError, CorruptError, DataError, DriverError, FileError,
                     FlpError, HostError, HostMemoryError, InternalError, LibraryError, UnavailableError,
                     UnsupportedError, WorkspaceError)

__version__ = "0.1.0"

_TENSOR_NAMES = ("linear_logprob", "linear_logprob_partial", "combine_partials", "linear_logprob_backward", "explain",
                 "plan_info", "check", "PlanInfo",
                 "selective_log_softmax",
                 "losses", "policy_loss",
                 "score", "Scores", "sequence_logprob", "delight", "gate",
                 "logprob_head",
                 "memory", "phase",
                 "parallel",
                 "adapters", "install", "installed", "uninstall")

try:
    from . import _ops, adapters, losses, memory, parallel
    from ._gate import delight, gate, sequence_logprob
    from ._info import PlanInfo, check, explain, plan_info
    from ._logprob import linear_logprob
    from ._phase import phase
    from ._policy import policy_loss
    from ._scoring import Scores, score
    from ._select import selective_log_softmax
    from ._shards import combine_partials, linear_logprob_backward, linear_logprob_partial
    from .adapters import install, installed, uninstall
    from .heads import logprob_head
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise

    def __getattr__(name):
        if name in _TENSOR_NAMES:
            raise ImportError("flp.%s needs torch, which is not installed" % name)
        raise AttributeError("module 'flp' has no attribute %r" % name)


def clear_plans():
    """Forgets every plan, so that later calls read the environment (FLP_FORCE, FLP_STRICT, ...) again.

    Here, and when a new plan is made, kernels and memory of plans that nothing uses any more go back to driver and
    host; that waits for their devices, and is put off while a stream is captured in a CUDA graph. A plan whose autograd
    graph is alive is used; of a CUDA graph nothing here knows, so keep plans as long as one that holds their calls is
    replayed.
    """
    _plans.clear()


__all__ = sorted(_TENSOR_NAMES + ("set_log", "sources_id", "version", "library_path", "clear_plans", "errors", "FlpError",
                                  "ArgumentError", "BudgetError", "CompileError", "CorruptError", "DataError",
                                  "DriverError", "FileError", "HostError", "HostMemoryError", "InternalError",
                                  "LibraryError", "UnavailableError", "UnsupportedError", "WorkspaceError"))
