"""flp for JAX: linear_logprob and others through XLA's FFI, on XLA's stream and memory.

    import flp.jax
    logprob = flp.jax.linear_logprob(hidden, head, tokens)      # (..., D), (V, D), (...) -> (...)

Needs jax 0.8.3 or newer, with CUDA or without, and no torch. Importing registers the handlers of libflp_jax.so with
XLA, so a process that only runs exported programs needs no more than the import.
"""
from ._library import registered

registered()

from ._call import TARGET  # noqa: E402
from ._divergence import Divergence, divergence  # noqa: E402
from ._logprob import Lora, Statistics, Top, linear_logprob  # noqa: E402
from ._losses import cross_entropy, policy_loss  # noqa: E402

__all__ = ["Divergence", "Lora", "Statistics", "TARGET", "Top", "cross_entropy", "divergence", "linear_logprob",
           "policy_loss"]
