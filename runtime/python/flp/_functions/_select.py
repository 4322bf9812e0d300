"""selective_log_softmax: log-probabilities of a few targets a row, of scores that exist already.

Invariants: scores are read where they stand, through views of (rows, V), never copied as long as their last dimension is
dense; what is saved for the backward pass is the scores themselves and a few numbers a row.
"""
from __future__ import annotations

import functools
import math
from typing import Any, Literal, overload

import torch
from torch import Tensor

from .._eager import _select_torch
from .._library import _c, _plans
from .._passes import _run, _watch
from .._tensors import _check, _transforms
from .._tensors._address import address, check_writable, dense, settled
from .._tensors._compile import in_graph, numbers_of_graph, outside_graphs
from .._tensors._ops import ops

DTYPES = {**_check.DTYPES, torch.float64: _c.DTYPE_FP64}
NO_SECOND_DERIVATIVE = _transforms.NO_SECOND_DERIVATIVE % "flp.selective_log_softmax"
NEVER = -2**63  # an ignore_index that no target has


class Settings:
    """The values of a call: T, the target that is left out, whether entropy is wanted, flp_entropy of plans with
    gradients, where these go, and the dtype of the results."""

    __slots__ = ("temperature", "ignore_index", "entropy", "kind", "in_place", "out_dtype")

    def __init__(self, temperature, ignore_index, entropy, in_place, out_dtype):
        self.temperature = _check.double_of("temperature", temperature)
        _check.scales_of(self.temperature, 0, 1)
        self.ignore_index = NEVER if ignore_index is None else _check.integer_of("ignore_index", ignore_index)
        self.entropy, self.in_place, self.out_dtype = bool(entropy), bool(in_place), out_dtype
        self.kind = _c.ENTROPY_BACKWARD if entropy else _c.ENTROPY_NONE


def number_type(logits):
    return torch.float64 if logits.dtype is torch.float64 else torch.float32


def matrices(tensors):
    """Views (rows, ...) of tensors (..., V), (..., K), ...: one for all rows where the leading dimensions of all of them can
    be one, else those of each index of the first."""
    if all(tensor.dim() == 2 for tensor in tensors):
        return [tensors]
    try:
        return [tuple(tensor.view(math.prod(tensor.shape[:-1]), tensor.shape[-1]) for tensor in tensors)]
    except RuntimeError:
        return [views for parts in zip(*tensors) for views in matrices(parts)]


def stride_of(matrix):
    """Elements between rows; of a single row torch may report anything."""
    return matrix.stride(0) if matrix.shape[0] > 1 else matrix.shape[1]


def plan_for(scores, target, entropy, *others):
    """The plan of scores (N, V); others: matrices that stand beside them, such as their gradient."""
    places = [place for matrix in (scores, *others)
              for place in (address(matrix), stride_of(matrix) * matrix.element_size())]
    return _plans.get(_plans.Spec(
        _run.device_of(scores), dtype=DTYPES[scores.dtype], target_dtype=_run.TO_C[target.dtype], vocab=scores.shape[1],
        entropy=entropy, alignment=_check.alignment_of(scores.element_size(), *places), op=_c.OP_SELECT))


def execute(plan, which, scores, target, settings, fields):
    args = _c.new_select_args()
    setattr(args, "pass", which)
    args.n, args.k = target.shape
    args.scores, args.scores_stride = address(scores), stride_of(scores)
    args.target, args.temperature, args.ignore_index = address(target), settings.temperature, settings.ignore_index
    for name, value in fields.items():
        setattr(args, name, value)
    args.stream = _run.stream_of(plan.key.device)
    plan.execute(args, "flp_select")


@outside_graphs
def forward(scores, target, settings, kind=None):
    """scores (..., V), target (..., K) -> logprob (..., K), entropy (...) or None, stats (..., 3), all float32 or, of
    float64 scores, float64. kind: flp_entropy of the plan; None: that of settings"""
    scores, target = dense_scores(scores), dense("index", target)

    def numbers(*shape):
        return torch.empty(shape, dtype=number_type(scores), device=scores.device)
    lead = scores.shape[:-1]
    logprob, stats = numbers(*target.shape), numbers(*lead, 3)
    entropy = numbers(*lead, 1) if settings.entropy else None
    for views in matrices((scores, target, logprob, stats) + ((entropy,) if settings.entropy else ())):
        rows, ids, out, kept = views[:4]
        if not rows.shape[0]:
            continue
        plan = plan_for(rows, ids, settings.kind if kind is None else kind)
        _watch.tell(plan)
        where = views[4] if settings.entropy else None
        if plan.handle is None:
            _select_torch.forward(plan, rows, ids, settings, out, where, kept)
        else:
            execute(plan, _c.PASS_FORWARD, rows, ids, settings, {
                "logprob": address(out), "entropy": address(where), "stats": address(kept)})
    return logprob, entropy if entropy is None else entropy.squeeze(-1), stats


@outside_graphs
def backward(scores, target, logprob, stats, grad_logprob, grad_entropy, settings):
    """-> the gradient of scores, in their own memory if settings.in_place."""
    if settings.in_place:
        check_writable("logits", scores)
    scores, target = dense_scores(scores), dense("index", target)
    grad_logprob, grad_entropy = dense("grad_logprob", grad_logprob), dense("grad_entropy", grad_entropy)
    out = scores if settings.in_place else torch.empty(scores.shape, dtype=scores.dtype, device=scores.device)
    given = [grad for grad in (grad_logprob, grad_entropy) if grad is not None]
    for views in matrices((scores, out, target, logprob, stats, *given)):
        rows, into, ids, logprobs, kept = views[:5]
        if not rows.shape[0]:
            continue
        upstream = list(views[5:])
        grads = [upstream.pop(0) if grad is not None else None for grad in (grad_logprob, grad_entropy)]
        plan = plan_for(rows, ids, settings.kind, into)
        if plan.handle is None:
            _select_torch.backward(rows, ids, settings, logprobs, kept, grads, into)
        else:
            execute(plan, _c.PASS_BACKWARD, rows, ids, settings, {
                "logprob": address(logprobs), "stats": address(kept), "grad_logprob": address(grads[0]),
                "grad_entropy": address(grads[1]), "grad_scores": address(into),
                "grad_scores_stride": stride_of(into)})
    if settings.in_place:
        scores[..., :0].zero_()  # marks for autograd that what it saved is gone
    return out


def rounded(logprob, entropy, settings):
    """-> what the call returns: one tensor or two, in the dtype that it asks for"""
    logprob = logprob.to(settings.out_dtype)
    return (logprob, entropy.to(settings.out_dtype)) if settings.entropy else logprob


class SelectiveLogSoftmax(torch.autograd.Function):
    """Forward and backward of checked scores (..., V) and targets (..., K)."""

    @staticmethod
    def forward(ctx, scores, target, settings):
        logprob, entropy, stats = forward(scores, target, settings)
        ctx.save_for_backward(scores, target, logprob, stats)
        ctx.settings = settings
        ctx.set_materialize_grads(False)
        return rounded(logprob, entropy, settings)

    @staticmethod
    @outside_graphs
    def backward(ctx, grad_logprob, grad_entropy=None):
        if grad_logprob is None and grad_entropy is None:
            return None, None, None
        return _transforms.LastDerivative.apply(NO_SECOND_DERIVATIVE, functools.partial(_gradient, ctx.settings),
                                                *ctx.saved_tensors, grad_logprob, grad_entropy), None, None


def _gradient(settings, scores, target, logprob, stats, grad_logprob, grad_entropy):
    if grad_entropy is not None:
        grad_entropy = grad_entropy.unsqueeze(-1)
    grads = [grad if grad is None else grad.to(logprob.dtype) for grad in (grad_logprob, grad_entropy)]
    return backward(scores.detach(), target, logprob, stats, *grads, settings)


def tensor_of(field, value, dtypes):
    _check.tensor_of(field, value)
    if value.dtype not in dtypes:
        _check.refuse(TypeError, field, value.dtype, ", ".join(str(dtype) for dtype in dtypes))


def has_dense_rows(logits):
    """Whether each row's scores lie side by side, and rows apart."""
    apart = all(stride >= logits.shape[-1] for size, stride in zip(logits.shape[:-1], logits.stride()) if size > 1)
    return logits.stride(-1) == 1 and apart


def dense_scores(scores):
    """The scores, each row's side by side; copied only if they are not."""
    scores = settled("logits", scores)
    return scores if has_dense_rows(scores) else scores.contiguous()


def targets_of(logits, index):
    """Checks both -> index (..., K)."""
    tensor_of("logits", logits, DTYPES)
    tensor_of("index", index, _check.TARGET_DTYPES)
    if logits.dim() < 1 or logits.shape[-1] < 2:
        _check.refuse_shape("logits", logits, "(..., V) with V at least 2")
    lead = tuple(logits.shape[:-1])
    has_several = index.dim() == logits.dim() and tuple(index.shape[:-1]) == lead and index.shape[-1] > 0
    if tuple(index.shape) != lead and not has_several:
        _check.refuse_shape("index", index,
                            "%s, or that and K targets a row, for logits of shape %s" % (lead, tuple(logits.shape)))
    _check.devices(logits, "logits", index=index)
    return index.unsqueeze(-1) if index.dim() < logits.dim() else index


@overload
def selective_log_softmax(logits: Tensor, index: Tensor, *, temperature: float = ..., entropy: Literal[False] = ...,
                          ignore_index: int | None = ..., inplace_backward: bool = ...,
                          out_dtype: torch.dtype | None = ...) -> Tensor: ...


@overload
def selective_log_softmax(logits: Tensor, index: Tensor, *, temperature: float = ..., entropy: Literal[True],
                          ignore_index: int | None = ..., inplace_backward: bool = ...,
                          out_dtype: torch.dtype | None = ...) -> tuple[Tensor, Tensor]: ...


@overload
def selective_log_softmax(logits: Tensor, index: Tensor, *, temperature: float = ..., entropy: bool = ...,
                          ignore_index: int | None = ..., inplace_backward: bool = ...,
                          out_dtype: torch.dtype | None = ...) -> Tensor | tuple[Tensor, Tensor]: ...


def selective_log_softmax(logits: Tensor, index: Tensor, *, temperature: float = 1.0, entropy: bool = False,
                          ignore_index: int | None = None, inplace_backward: bool = False,
                          out_dtype: torch.dtype | None = None) -> Tensor | tuple[Tensor, Tensor]:
    """Computes log_softmax(logits / temperature) at a few targets of each row, reading the scores once.

    logprob_j = t_{index_j} − log Σ_v exp t_v,  t = logits / temperature;   entropy = −Σ_v p_v log p_v

    logits       (..., V) bfloat16, float16, float32 or float64; cpu or cuda; rows may stand apart (logits[:, :-1])
    index        (...) or (..., K) int32 or int64: one target a row, or K of them, which may repeat
    temperature  a number above 0
    entropy      True: return (logprob, entropy); both are differentiable
    ignore_index a target that gives 0 and no gradient, or None; rows of nothing else are not read
    inplace_backward
                 True: the backward pass writes the gradient over the logits, so that nothing of their size is made.
                 They must not be used after it; autograd refuses if something else saved them. In a graph of
                 torch.compile the gradient has memory of its own
    out_dtype    dtype of the results: that of logits, which None is too, or that of the sums, float32 (float64 of
                 float64), which leaves 16-bit scores' results as they are

    Returns logprob of index's shape and, with entropy, entropy (...), in nats; sums are formed in float32 (float64 for
    float64) and rounded once, to out_dtype. Nothing of size V is kept for the backward pass but the logits themselves. A
    target outside [0, V) gives NaN and is counted: flp.check() reports it; so does a row that holds a NaN or no score
    above −inf. Asynchronous on the caller's current stream; no double backward.
    error:  ValueError or TypeError naming the field, its value and what is accepted; flp.FlpError and its classes
    thread: safe
    source: https://www.tylerromero.com/posts/2025-02-selective-log-softmax/
    """
    target = targets_of(logits, index)
    out_dtype = logits.dtype if out_dtype is None else out_dtype
    if out_dtype not in (logits.dtype, number_type(logits)):
        _check.refuse(ValueError, "out_dtype", out_dtype,
                      "None" + "".join(", %s" % dtype for dtype in dict.fromkeys((logits.dtype, number_type(logits)))))
    scores = logits
    if scores.dim() == 1:
        scores, target = scores.unsqueeze(0), target.unsqueeze(0)
    compute: Any = traced if in_graph() else dispatch
    results = compute(scores, target, temperature, ignore_index, entropy, inplace_backward, out_dtype)
    logprob = (results[0] if entropy else results).reshape(index.shape)
    return (logprob, results[1].reshape(logits.shape[:-1])) if entropy else logprob


def traced(scores, target, temperature, ignore_index, entropy, _in_place, out_dtype):
    """dispatch as an operator in a graph (_select_op.py): numbers may be symbols, which it checks when it runs."""
    _check.check_real("temperature", temperature)
    _check.check_integral("ignore_index", ignore_index)
    numbers = numbers_of_graph(temperature)
    logprob, entropies, _ = ops.selective_log_softmax(scores, target, temperature if numbers is None else 1.0,
                                                      ignore_index, bool(entropy), numbers)
    return (logprob.to(out_dtype), entropies.to(out_dtype)) if entropy else logprob.to(out_dtype)


@outside_graphs
def dispatch(scores, target, *options):
    """options: those of Settings -> what the call returns, of scores (N, V) or more dimensions"""
    settings = Settings(*options)
    if _transforms.in_force():
        results = _transformed(scores, target, settings)
        if results is not None:
            return rounded(*results, settings)
    if settings.in_place:
        check_writable("logits", scores)
    scores = scores if has_dense_rows(scores) else scores.contiguous()
    if torch.is_grad_enabled() and scores.requires_grad:
        return SelectiveLogSoftmax.apply(scores, target, settings)
    kind = _c.ENTROPY_FORWARD if settings.entropy else _c.ENTROPY_NONE
    logprob, entropy, _ = forward(scores.detach(), target, settings, kind)
    return rounded(logprob, entropy, settings)


def _transformed(scores, target, settings):
    """logprob and entropy under torch.func; None where none of its transforms is in force. error: UnsupportedError"""
    name = "flp.selective_log_softmax"
    if settings.in_place and _transforms.is_active():
        _transforms.refuse(name, "inplace_backward under torch.func", "False there")

    def passed(scores, target):
        logprob, entropy, stats = forward(scores, target, settings)
        return logprob, logprob.new_empty(0) if entropy is None else entropy, stats

    def gradients(scores, target, logprob, _entropy, stats, grad_logprob, grad_entropy):
        grad_entropy = grad_entropy.unsqueeze(-1) if settings.entropy and grad_entropy is not None else None
        return (backward(scores, target, logprob, stats, grad_logprob, grad_entropy, settings),)

    rule = _transforms.Rule(name, NO_SECOND_DERIVATIVE, passed, lambda _needed: gradients)
    return _transforms.run(rule, scores, target)
