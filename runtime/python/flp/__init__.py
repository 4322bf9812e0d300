"""flp: fused log-probabilities of a language-model head for torch, through libflp.

    logprob = flp.linear_logprob(hidden, lm_head.weight, target)      # (..., D), (V, D), (...) -> (...)

The (N, V) scores never exist in memory, forward or backward. What people look for:

    linear_logprob           log-probabilities, and entropies, from hidden states and head; differentiable
    policy_loss              loss, metrics and gradients of a policy update (grpo, ppo, ...) in one call
    cross_entropy            that of supervised fine-tuning, with label smoothing and z-loss
    CrossEntropyHead         a transformers model, or a trainer's, whose loss is that, without scores
    distill_loss             the same of distillation from a teacher's top-k log-probabilities
    divergence_loss          of a teacher's head over the whole vocabulary, from hidden states of both; divergence is
                             the same a token
    losses.policy_loss       the same losses over log-probabilities that you have
    logprob_head             a transformers model whose forward returns log-probabilities, not scores
    selective_log_softmax    log-probabilities from scores that exist already; selective_divergence compares two rows of
                             such
    score, gate              batches of unequal sequences; which of them to train on
    parallel.linear_logprob  a head whose vocabulary is divided over the ranks of a process group
    install, uninstall       adapters for trainers: flp.adapters.HOSTS
    backend.token_logprobs   what a trainer's own switch calls
    contract                 what decides the bits of a call: words for trainer and rollout engine to compare
    explain, explain_divergence, plan_info
                             what a call runs, its memory, and why faster kernels do not run
    memory, phase            where workspace comes from; a profile of memory over time
    set_log, errors          the library's messages; the exceptions, all of them flp.errors.FlpError

help(flp.linear_logprob) and so on have shapes, arguments and errors. Exceptions may also be written flp.BudgetError.
flpgen, the command, is also python -m flp; prefix() is the folder that C and CMake build against. These, set_log,
version and errors work without torch; everything that takes tensors needs it. flp.jax.linear_logprob takes arrays of
JAX, and needs jax alone.
"""
from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from . import errors
from ._library import _plans
from ._library._c import library_path, prefix, set_log, sources_id, version
from ._version import __version__
from .errors import (ArgumentError, BudgetError, CompileError, ContractError, CorruptError, DataError, DriverError,
                     FileError, FlpError, HostError, HostMemoryError, InternalError, LibraryError, UnavailableError,
                     UnsupportedError, WorkspaceError)

# The exceptions are in errors; flp.BudgetError and the others stay, but help(flp) is about functions. Names are written
# out for type checkers.
__all__ = ["Divergence", "Lora", "Payload", "PlanInfo", "Reference", "Scores", "Statistics", "Top", "adapters",
           "backend", "check", "clear_plans", "combine_partials", "contract", "cross_entropy", "CrossEntropyHead",
           "delight", "distill_loss", "divergence", "divergence_loss", "divergence_payload", "errors", "explain",
           "explain_divergence", "gate", "install", "installed", "library_path", "linear_logprob",
           "linear_logprob_backward", "linear_logprob_partial", "logprob_head", "losses", "memory", "parallel", "phase",
           "plan_info", "policy_loss", "prefix", "score", "selective_divergence", "selective_log_softmax",
           "sequence_logprob", "set_log", "sources_id", "uninstall", "version"]
if TYPE_CHECKING:
    __all__ += ["ArgumentError", "BudgetError", "CompileError", "ContractError", "CorruptError", "DataError",
                "DriverError", "FileError", "FlpError", "HostError", "HostMemoryError", "InternalError", "LibraryError",
                "UnavailableError", "UnsupportedError", "WorkspaceError", "__version__"]
_WITHOUT_TORCH = ("clear_plans", "errors", "library_path", "prefix", "set_log", "sources_id", "version")

try:
    from . import adapters, backend, losses, memory, parallel
    from ._functions import _select_divergence_op, _select_op  # they register operators
    from ._functions._contract import contract
    from ._functions._cross_entropy import cross_entropy
    from ._functions._distill import distill_loss
    from ._functions._divergence import divergence, divergence_loss, explain_divergence
    from ._functions._gate import delight, gate, sequence_logprob
    from ._functions._info import PlanInfo, check, explain, plan_info
    from ._functions._kinds import Divergence
    from ._functions._logprob import linear_logprob
    from ._functions._payload import Payload, divergence_payload
    from ._functions._policy import policy_loss
    from ._functions._reference import Reference
    from ._functions._scoring import Scores, score
    from ._functions._select import selective_log_softmax
    from ._functions._select_divergence import selective_divergence
    from ._functions._shards import combine_partials, linear_logprob_backward, linear_logprob_partial
    from ._passes._phase import phase
    from ._tensors._lora import Lora
    from ._tensors._top import Statistics, Top
    from .adapters import install, installed, uninstall
    from .heads import CrossEntropyHead, logprob_head
    _HAS_TORCH = True
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    _HAS_TORCH = False


def _missing(name: str) -> Any:
    if name == "jax":  # not before it is asked for: the package must not need jax
        return importlib.import_module(".jax", __name__)
    if not _HAS_TORCH and name in __all__ and name not in _WITHOUT_TORCH:
        raise ImportError("flp.%s needs torch, which is not installed: pip install torch" % name)
    raise AttributeError("module 'flp' has no attribute %r" % name)


globals()["__getattr__"] = _missing  # by its name a type checker would take it that flp has every attribute


def clear_plans() -> None:
    """Forgets every plan, so that later calls read the environment (FLP_FORCE, FLP_STRICT, ...) again.

    Here, and when a new plan is made, kernels and memory of plans that nothing uses any more go back to driver and
    host; that waits for their devices, and is put off while a stream is captured in a CUDA graph. A plan whose autograd
    graph is alive is used; of a CUDA graph nothing here knows, so keep plans as long as one that holds their calls is
    replayed.
    """
    _plans.clear()
