"""One pass of one call: picks the plan, allocates outputs with the caller's allocator and workspace there or in the
arena of a phase, enqueues.

Invariants: operands arrive checked (_check.py) and two-dimensional; every pass runs on the caller's current stream, so
stream-ordered allocators may reuse the workspace as soon as the call returns; nothing here synchronises.
"""
import copy

import torch
from torch import Tensor

from .. import errors
from .._eager import _eager_lists, _eager_step, _eager_torch
from .._library import _c, _plans
from .._tensors import _check, _mixed, _top, _transforms
from .._tensors._address import address, dense
from .._tensors._compile import outside_graphs
from .._tensors._operands import (ADAPTER, GRADIENTS, OF_HEAD, Loss, Operands, Step,  # noqa: F401 - for callers
                                   targets_of)
from . import _memory, _watch

TO_C = {**_check.DTYPES, **_check.TARGET_DTYPES}
FROM_C = {value: dtype for dtype, value in _check.DTYPES.items()}
NO_SECOND_DERIVATIVE = _transforms.NO_SECOND_DERIVATIVE % "flp.linear_logprob"
# The private accessor spares a Stream object per call; torch without it takes the public one.
_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)


def device_of(tensor):
    """The device of a plan: CUDA ordinal, or host."""
    return tensor.device.index if tensor.is_cuda else _c.DEVICE_HOST


def stream_of(device):
    """The caller's current stream as an integer; None on the host and for the legacy default stream."""
    if device < 0:
        return None
    if _raw_stream is not None:
        return _raw_stream(device) or None
    return torch.cuda.current_stream(device).cuda_stream or None


def plan_for(ops, settings, grads, keep=False, program=None):
    """The plan of these operands with this needs-grad mask; keep: one whose forward pass may keep something for the
    backward pass; program: one whose step trains with this loss (_programs.Program)."""
    return _plan_of(key_of(ops, settings, grads, keep, program), ops)


def torch_plan(ops, settings):
    """The plan of two heads, of which ops are one: torch operations on every rung, as none has kernels of them."""
    return _plans.of_torch(key_of(ops, settings, 0)._replace(loss=b"two heads"), "no rung has kernels of two heads")


def forward_plan(ops, settings, grads, kept, top):
    """The plan of a forward pass. kept: Kept or None; top: _top.Outputs, which a scoring plan gives where nothing is
    kept, or None"""
    if kept is not None:
        return kept.plan
    if top is None:
        return plan_for(ops, settings, grads)
    return _plans.get(key_of(ops, settings, 0)._replace(**_best(settings)))


def _plan_of(key, ops):
    plan = _plans.get(key)
    if key.lora_rank and plan.handle is None:
        raise errors.UnsupportedError("lora is given, but rung eager has no adapter for tensors on %s: %s (accepted: a "
                                      "rung with kernels, tensors on the CPU, or the adapter merged into the weight)"
                                      % (ops.hidden.device, plan.reason or "FLP_FORCE=eager"))
    return plan


def key_of(ops, settings, grads, keep=False, program=None):
    """The _plans.Spec of plan_for."""
    fields = _mixed.spec_fields(ops, settings)
    element_bytes = min(ops.hidden.element_size(), ops.weight.element_size())
    places = [address(ops.hidden), ops.hidden_stride * ops.hidden.element_size(), address(ops.weight),
              ops.weight_stride * ops.weight.element_size()]
    if settings.wide_grads:
        fields.update({"grad_%s_dtype" % name: _wide(ops, settings, grads & GRADIENTS[name])
                       for name in OF_HEAD})
    accumulate = settings.accumulate if grads & _c.GRAD_WEIGHT else None
    if accumulate is not None:
        places += [address(accumulate), accumulate.stride(0) * 4]
        fields.update(grad_weight_dtype=_c.DTYPE_FP32, accumulate_grad_weight=1)
    if ops.lora_a is not None:
        places += [address(ops.lora_a), ops.lora_a_stride * element_bytes, address(ops.lora_b),
                   ops.lora_b_stride * element_bytes]
        fields["lora_rank"] = ops.lora_a.shape[0]
        fields["grad_lora_dtype"] = _wide(ops, settings, _c.GRAD_LORA_A)  # that of B too
    if grads and (keep or program is not None and settings.tail):
        fields.update(_how_it_keeps(settings))
    vocab, hidden = ops.weight.shape
    entropy = entropy_of(settings, grads) if program is None else step_entropy(settings, grads, program)
    return _plans.Spec(
        device_of(ops.hidden), settings.chunk_rows if grads else 0, fields.pop("dtype"), vocab, hidden,
        TO_C[ops.target.dtype], entropy, grads, has_bias=int(ops.bias is not None), softcap=settings.softcap,
        per_row_temperature=int(ops.temperature_rows is not None),
        alignment=_check.alignment_of(element_bytes, *places),
        listed=int(ops.is_listed), targets=ops.targets, loss=b"" if program is None else program.data, **fields)


def _wide(ops, settings, bit):
    """The dtype of a gradient, _c.DTYPE_FP32 or 0 for that of its operand. bit: its _c.GRAD_*, or 0"""
    is_wide = settings.wide_grads & bit or bit in ADAPTER and (ops.is_lora_wide or settings.wide_grads & sum(ADAPTER))
    return _c.DTYPE_FP32 if is_wide and min(ops.hidden.element_size(), ops.weight.element_size()) < 4 else 0


def entropy_of(settings, grads):
    """What a call with this needs-grad mask needs of the entropy."""
    if not settings.entropy:
        return _c.ENTROPY_NONE
    return _c.ENTROPY_BACKWARD if grads and not settings.detached else _c.ENTROPY_FORWARD


def step_entropy(settings, grads, program):
    """What a step needs of the entropy: its gradient if the loss reads it, its value if that is asked for."""
    if grads and "entropy" in program.inputs:
        return _c.ENTROPY_BACKWARD
    return _c.ENTROPY_FORWARD if settings.entropy or "entropy" in program.inputs else _c.ENTROPY_NONE


# ---- save, direction and tail modes: what goes from forward to backward ----

UNBOUNDED = 2**64 - 1
SAVED_PASSES = {_c.PASS_FORWARD: _c.PASS_FORWARD_SAVED, _c.PASS_BACKWARD: _c.PASS_BACKWARD_SAVED}


class Kept:
    """What a forward pass keeps for its backward pass.

    memory    (bytes) uint8 of the caller's allocator, aligned for libflp
    settings  Settings of both passes: their budget is what the workspace is taken within
    plan      that fills it; None in backward
    lasts     whether backward passes only read it (directions, lists of columns), so that any number of them may; else
              the first one uses it up (exponentials)
    """

    __slots__ = ("memory", "settings", "plan", "lasts")

    def __init__(self, memory, settings, plan=None, lasts=True):
        self.memory, self.settings, self.plan, self.lasts = memory, settings, plan, lasts

    @classmethod
    def again(cls, memory, settings):
        """What lasts, as autograd gives it back, whose hooks may have moved it."""
        if address(memory) % _c.WORKSPACE_ALIGNMENT:
            memory = _memory.memory_on(memory.device, memory.numel()).copy_(memory)
        return cls(memory, settings)

    def fields(self):
        """flp_args fields of either pass."""
        return {"saved": self.memory, "saved_bytes": self.memory.numel()}


def keep(ops, settings, grads):
    """Memory for what the forward pass of these operands keeps -> Kept, or None for recompute mode. error: as
    keeping_plan"""
    plan, size = keeping_plan(ops, settings, grads)
    if not size:
        return None
    lasts = plan.keeps_for_good(ops.hidden.shape[0], keep_budget(settings))
    memory = _memory.to_keep(ops.hidden.device, size, settings)
    return None if memory is None else Kept(memory, settings, plan, lasts)


def keeping_plan(ops, settings, grads):
    """The plan of a training call and the bytes that its forward pass keeps for save, direction or tail mode; 0:
    recompute mode.

    error: UnsupportedError if settings.save is True and no rung keeps any
    """
    return plan_that_keeps(key_of(ops, settings, grads), settings, ops.hidden.shape[0])


def mode_of(ops, settings, grads):
    """The mode of a call in a word, of _watch.mode_in."""
    plan, size = keeping_plan(ops, settings, grads)
    return _watch.mode_in(plan, grads, size, ops.hidden.shape[0], keep_budget(settings))


def plan_that_keeps(key, settings, n):
    """keeping_plan of a key and n rows."""
    wanted = key.grads and n and not key.listed and (
        settings.tail or settings.save or settings.save is None and not settings.chunk_rows)
    if wanted and (settings.tail or key.dtype == _c.DTYPE_BF16):
        keeping = key._replace(**_how_it_keeps(settings))
        size = _plans.saved_bytes(keeping, n, keep_budget(settings))
        if size:
            return _plans.get(keeping), size
    if wanted and settings.save:
        raise errors.UnsupportedError("save is True, but nothing here keeps exponentials or directions of %s operands "
                                      "(accepted: torch.bfloat16 on a rung with kernels for it; save=None takes them "
                                      "where they are; flp.plan_info names the rung)" % FROM_C[key.dtype])
    return _plans.get(key), 0


def _how_it_keeps(settings):
    """Fields of a Spec whose forward pass may keep something: lists of columns, or exponentials and directions, beside
    the best columns."""
    how = {"tail": settings.tail} if settings.tail else {"keep": 1}
    return {**how, **_best(settings)}


def _best(settings):
    """Fields of a Spec whose forward pass gives the best columns."""
    return {"topk": settings.topk, "rank": int(settings.rank), "statistics": int(settings.statistics)}


def settings_that_keep(ops, settings, pieces, grads):
    """Settings under which forward passes over pieces of a call's rows, {rows: how many such}, keep what lasts, all
    together within the budget -> {rows: Settings}; {} where that does not fit, or nothing keeps any.

    ops  Operands of one piece
    """
    if ops.targets or not settings.tail and (settings.save is False or ops.hidden.dtype is not torch.bfloat16):
        return {}
    key = key_of(ops, settings, grads, keep=True)
    budget = keep_budget(settings) or _plans.in_force(key.device).budgets[_c.PASS_BACKWARD]
    n = sum(rows * count for rows, count in pieces.items())
    if not key.tail and (grads != _c.GRAD_HIDDEN or key.entropy == _c.ENTROPY_BACKWARD):
        return {}  # exponentials
    if not _plans.saved_bytes(key, n, budget):
        return {}
    plan, found = _plans.get(key), {}
    sizes = {rows: plan.saved_bytes(rows, budget) for rows in pieces}
    total = sum(sizes[rows] * count for rows, count in pieces.items())
    for rows, size in sizes.items():
        own = found[rows] = copy.copy(settings)
        own.budget = budget - (total - size)
        if own.budget < size or not plan.saved_bytes(rows, keep_budget(own)):
            return {}
        if not plan.keeps_for_good(rows, keep_budget(own)):
            return {}
    return found


def keep_piece(ops, settings, grads):
    """Memory for what a piece keeps, with its Settings of settings_that_keep -> Kept"""
    plan = plan_for(ops, settings, grads, keep=True)
    size = plan.saved_bytes(ops.hidden.shape[0], keep_budget(settings))
    return Kept(_memory.memory_on(ops.hidden.device, size), settings, plan)


def keep_budget(settings):
    """The budget of what is kept and of the workspace of either pass."""
    return UNBOUNDED if settings.save else settings.budget


def enqueue(plan, which, n, device, settings, fields):
    """Fills flp_args with what every pass has and the pass's own fields, tensors by address, and executes it."""
    if fields.get("grad_raw_scores") is not None:
        size = plan.workspace_bytes(_c.PASS_BACKWARD_GIVEN, n, settings.budget)
    elif fields.get("saved") is not None:
        size = plan.workspace_bytes(SAVED_PASSES[which], n, keep_budget(settings))
    else:
        size = plan.workspace_bytes(which, n, settings.budget, fields.get("list_count"))
    args = _c.new_args()
    setattr(args, "pass", which)
    args.n = n
    args.temperature, args.scale = settings.temperature, settings.scale
    args.ignore_index = settings.ignore_index
    args.vocab_offset, args.vocab_valid, args.vocab_total = settings.offset, settings.valid, settings.total
    fill(args, plan, fields)
    with _memory.workspace(size, device, plan.key.device, args.stream) as start:
        args.workspace, args.workspace_bytes = start, size
        plan.execute(args, "flp_step" if which == _c.PASS_STEP else "flp_execute")


def fill(args, plan, fields):
    """Fields of a struct, tensors by address, and the stream."""
    for name, value in fields.items():
        if value is not None:
            setattr(args, name, address(value) if isinstance(value, Tensor) else value)
    args.stream = stream_of(plan.key.device)


def row_fields(target, temperature_rows, rows):
    """flp_args fields of what every pass reads of rows."""
    fields = {"target": target, "temperature_rows": temperature_rows}
    if rows is not None:
        # An empty list still selects: its pointer, any that is aligned, must not read as "all rows".
        fields.update(rows=address(rows) or _c.WORKSPACE_ALIGNMENT, row_count=rows.numel())
    return fields


def operand_fields(ops, settings):
    """flp_args fields of the operands of forward, backward and step."""
    fields = row_fields(ops.target, ops.temperature_rows, ops.rows)
    fields.update(hidden=ops.hidden, hidden_stride=ops.hidden_stride, weight=ops.weight,
                  weight_stride=ops.weight_stride, bias=ops.bias)
    if ops.is_listed:
        fields.update(list_offsets=ops.list_offsets, list_ids=ops.list_ids, list_count=ops.list_ids.numel())
    if ops.lora_a is not None:
        fields.update(lora_a=ops.lora_a, lora_a_stride=ops.lora_a_stride, lora_b=ops.lora_b,
                      lora_b_stride=ops.lora_b_stride, lora_scale=settings.lora_scale)
    return fields


def torch_form(ops):
    """The module of torch operations that stands in for libflp."""
    return _eager_lists if ops.is_listed else _eager_torch


def _results(target, settings, keep_stats=True):
    """Memory for what rows get: logprob of target's shape, entropy (N) or None, stats (N,4) or None"""
    n, device = target.shape[0], target.device
    return (torch.empty(target.shape, dtype=torch.float32, device=device),
            torch.empty(n, dtype=torch.float32, device=device) if settings.entropy else None,
            torch.empty((n, 4), dtype=torch.float32, device=device) if keep_stats else None)


@outside_graphs
def forward(ops, settings, grads, keep_stats, kept=None, top=None):
    """Runs the forward pass -> logprob of target's shape, entropy (N) or None, stats (N,4) or None; fills kept and
    top."""
    plan = forward_plan(ops, settings, grads, kept, top)
    _watch.tell(plan, grads, kept, ops.hidden.shape[0], keep_budget(settings), settings)
    logprob, entropy, stats = results = _results(ops.target, settings, keep_stats)
    if plan.handle is None:
        torch_form(ops).forward(plan, _mixed.made(ops, settings), settings, *results, top)
        return results
    fields = operand_fields(ops, settings)
    fields.update(logprob=logprob, entropy=entropy, stats=stats)
    if top is not None:
        fields.update(top.fields())
    if kept is not None:
        fields.update(kept.fields(), old_lse=dense("old_lse", settings.old_lse))
    enqueue(plan, _c.PASS_FORWARD, ops.hidden.shape[0], ops.hidden.device, settings, fields)
    return results


@outside_graphs
def partial(ops, settings, kept=None, top=None, grads=0):
    """Runs the forward pass of one vocab shard -> partial (N,4), or (N,4+K): its row and the scores of K targets; fills
    kept, which lasts, and top. grads: the call's, for who watches"""
    plan = forward_plan(ops, settings, 0, kept, top)
    n, device = ops.hidden.shape[0], ops.hidden.device
    _watch.tell(plan, grads, kept, n, keep_budget(settings), settings)
    out = torch.empty((n, 4), dtype=torch.float32, device=device)
    scores = torch.empty(ops.target.shape, dtype=torch.float32, device=device) if ops.targets else None
    if plan.handle is None:
        more = {name: value for name, value in (("targets", scores), ("top", top)) if value is not None}
        torch_form(ops).partial(plan, _mixed.made(ops, settings), settings, out, **more)
    else:
        fields = operand_fields(ops, settings)
        fields.update(partial=out, partial_targets=scores)
        for more in (top, kept):
            if more is not None:
                fields.update(more.fields())
        enqueue(plan, _c.PASS_FORWARD, n, device, settings, fields)
    return out if scores is None else torch.cat([out, scores], 1)


@outside_graphs
def combine(plan, partials, target, temperature_rows, rows, settings):
    """Merges partials (R,N,4) or (R,N,4+K) of all shards -> logprob of target's shape, entropy (N) or None, stats
    (N,4)."""
    scores = dense("partials", partials[..., 4:]) if targets_of(target) else None
    partials, target = dense("partials", partials[..., :4]), dense("target", target)
    temperature_rows, rows = dense("temperature", temperature_rows), dense("rows", rows)
    logprob, entropy, stats = results = _results(target, settings)
    if plan.handle is None:
        _eager_torch.combine(plan, partials, target, temperature_rows, rows, settings, *results, scores)
        return results
    fields = row_fields(target, temperature_rows, rows)
    fields.update(partial=partials, partial_targets=scores, shard_count=partials.shape[0], logprob=logprob,
                  entropy=entropy, stats=stats)
    enqueue(plan, _c.PASS_COMBINE, target.shape[0], target.device, settings, fields)
    return results


@outside_graphs
def backward(ops, settings, grads, stats, grad_logprob, grad_entropy, kept=None):
    """Runs the backward pass -> the gradients of hidden, weight and bias, and with an adapter of lora_a and lora_b;
    None for what grads does not ask for, and for the weight when settings.accumulate takes its gradient. kept is used
    up, unless it lasts."""
    plan = plan_for(ops, settings, grads, keep=kept is not None)
    stats = dense("stats", stats)
    upstream = [None if grad is None else dense(field, grad.to(torch.float32))
                for field, grad in (("grad_logprob", grad_logprob), ("grad_entropy", grad_entropy))]
    made = _new_gradients(ops, settings, grads)
    report = _report_fields(plan, settings)
    if plan.handle is None:
        torch_form(ops).backward(plan, _mixed.made(ops, settings), settings, stats, upstream, *_of_head(made))
    else:
        fields = operand_fields(ops, settings)
        fields.update(_gradient_fields(made), stats=stats, grad_logprob=upstream[0], grad_entropy=upstream[1], **report)
        if kept is not None:
            fields.update(kept.fields())
        enqueue(plan, _c.PASS_BACKWARD, ops.hidden.shape[0], ops.hidden.device, settings, fields)
    return _handed_out(made, ops, settings)


def _new_gradients(ops, settings, grads):
    """Memory of the gradients that grads asks for, by operand; that of the weight is settings.accumulate, if given."""
    made = {}
    for name, bit in GRADIENTS.items():
        if grads & bit:
            operand = getattr(ops, name)
            is_wide = settings.wide_grads & bit or bit in ADAPTER and _wide(ops, settings, bit)
            made[name] = settings.accumulate if name == "weight" and settings.accumulate is not None else torch.empty(
                operand.shape, dtype=torch.float32 if is_wide else operand.dtype, device=operand.device)
    return made


def _gradient_fields(made):
    fields = {"grad_" + name: gradient for name, gradient in made.items()}
    if "weight" in made:
        fields["grad_weight_stride"] = made["weight"].stride(0)
    return fields


def _of_head(made):
    return made.get("hidden"), made.get("weight"), made.get("bias")


def _report_fields(plan, settings):
    """flp_args field of the report of a pass; that of an exact one is zeros, which are written here."""
    report = settings.tail_report
    if report is None:
        return {}
    if plan.handle is not None and plan.key.tail:
        return {"tail_report": report}
    report.zero_()
    return {}


def _handed_out(made, ops, settings):
    """What a backward pass returns: the caller's own buffer is not among it."""
    hidden, weight, bias = _of_head(made)
    results = hidden, None if settings.accumulate is not None else weight, bias
    return results if ops.lora_a is None else (*results, made.get("lora_a"), made.get("lora_b"))


def settings_of_step(ops, settings, grads):
    """The Settings of a step. Its gradients wait for an upstream factor, unless the caller's buffer had to know it:
    fp16, which loses what is above 65504 or below 6e-8 before that factor comes, waits as float32."""
    own = copy.copy(settings)
    if _check.product_dtype(ops.hidden, ops.weight) is torch.float16 and settings.accumulate is None:
        own.wide_grads = grads
    return own


@outside_graphs
def step(ops, settings, grads, loss):
    """Runs forward, loss and backward in one -> Step."""
    plan = _plan_of(key_of(ops, settings, grads, program=loss.program)._replace(**_best(settings)), ops)
    n, device = ops.hidden.shape[0], ops.hidden.device
    _watch.tell(plan, grads, None, n, settings.budget, settings)
    made, out = _new_gradients(ops, settings, grads), Step()
    out.top = _top.Outputs(ops.target, settings)
    out.loss = torch.empty(n, dtype=torch.float32, device=device)
    out.logprob = torch.empty(ops.target.shape, dtype=torch.float32, device=device)
    out.entropy = torch.empty_like(out.loss) if plan.key.entropy else None
    out.metrics = torch.empty((len(loss.program.metrics), n), dtype=torch.float32, device=device)
    report = _report_fields(plan, settings) if grads else {}
    out.gradients = _handed_out(made, ops, settings)
    if plan.handle is None:
        _eager_step.run(plan, _mixed.made(ops, settings), settings, loss, out, _of_head(made))
        return out
    fields = operand_fields(ops, settings)
    fields.update(_gradient_fields(made), **loss.fields(), **report, **out.top.fields(), loss=out.loss,
                  logprob=out.logprob, entropy=out.entropy, metrics=out.metrics,
                  old_lse=dense("old_lse", settings.old_lse))
    enqueue(plan, _c.PASS_STEP, n, device, settings, fields)
    return out
