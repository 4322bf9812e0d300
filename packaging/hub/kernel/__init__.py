"""flp from the kernels hub: log-probabilities of a language-model head, and of scores that exist already.

    linear_logprob           from hidden states and head: the (N, V) scores never exist; differentiable
    selective_log_softmax    log-probabilities of a few targets a row, from scores that exist; differentiable
    policy_loss              loss, metrics and gradients of a policy update (grpo, ppo, ...) in one call
    layers                   LinearLogprob and SelectiveLogSoftmax, for kernels.kernelize
    check                    rows that were NaN since the last call
    plan_info                what a call runs, its memory, and why faster kernels do not run
    set_log, errors          the library's messages; the exceptions

The docstring of each function has shapes, arguments and errors; where one says flp, this module is meant.
"""
from . import errors, layers
from ._functions import _select_op  # _select_op registers an operator
from ._functions._info import check, plan_info
from ._functions._logprob import linear_logprob
from ._functions._policy import policy_loss
from ._functions._select import selective_log_softmax
from ._library._c import set_log

# The interface that the version in metadata.json stands for.
__all__ = ["linear_logprob", "selective_log_softmax", "policy_loss", "layers",
           "check", "plan_info", "set_log", "errors"]
