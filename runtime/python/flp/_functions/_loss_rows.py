"""The loss of rows whose log-probabilities exist already: flp_step of a plan of FLP_OP_LOSS, in one launch."""
import functools

import torch

from .._eager import _beside
from .._library import _c, _plans
from .._passes import _run


def evaluate_of(program, device):
    """What a _beside.Beside takes: by a kernel, or by torch operations in its place."""
    if device < 0:
        return _beside.evaluate
    entropy = _c.ENTROPY_FORWARD if "entropy" in program.inputs else _c.ENTROPY_NONE
    plan = _plans.get(_plans.Spec(device, dtype=_c.DTYPE_FP32, vocab=2, entropy=entropy, op=_c.OP_LOSS,
                                  loss=program.data))
    return _beside.evaluate if plan.handle is None else functools.partial(_evaluate, plan)


def _evaluate(plan, loss, out, wants_gradients):
    upstream = [torch.empty_like(out.logprob) if wants_gradients else None for _ in range(2)]
    args = _c.new_args()
    setattr(args, "pass", _c.PASS_STEP)
    args.n = len(out.logprob)
    _run.fill(args, plan, {**loss.fields(), "logprob": out.logprob, "entropy": out.entropy, "loss": out.loss,
                           "metrics": out.metrics, "grad_logprob": upstream[0], "grad_entropy": upstream[1]})
    plan.execute(args, "flp_step")
    return upstream
