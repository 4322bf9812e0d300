"""One pass of one call: picks the plan, allocates outputs with the caller's allocator and workspace there or in the
arena of a phase, enqueues.

Invariants: operands arrive checked (_check.py) and two-dimensional; every pass runs on the caller's current stream, so
stream-ordered allocators may reuse the workspace as soon as the call returns; nothing here synchronises.
"""
import contextlib
import copy
import ctypes

import torch

from . import _c, _check, _eager_lists, _eager_step, _eager_torch, _mixed, _phase, _plans, errors
from ._address import address, dense, settled
from ._compile import outside_graphs

TO_C = {**_check.DTYPES, **_check.TARGET_DTYPES}
FROM_C = {value: dtype for dtype, value in _check.DTYPES.items()}
GRAD_FIELDS = (_c.GRAD_HIDDEN, _c.GRAD_WEIGHT, _c.GRAD_BIAS)
NO_SECOND_DERIVATIVE = "flp.linear_logprob has no second derivative (accepted: one backward pass over it)"
# The private accessor spares a Stream object per call; torch without it takes the public one.
_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)


class Operands:
    """The tensors of one call: hidden (N,D), weight (V,D), bias (V) or None, target (N) or (N,K), K targets a row with
    logprobs and upstream gradients of that shape, temperature_rows (N) float32 or None, rows (row count) int32 or None, list_offsets (N+1) int64 and list_ids (count) of target's dtype or both None;
    settled in memory, with row strides filled in by dense_rows."""

    __slots__ = ("hidden", "hidden_stride", "weight", "weight_stride", "bias", "target", "temperature_rows", "rows",
                 "list_offsets", "list_ids")

    def __init__(self, hidden, weight, bias, target, temperature_rows=None, rows=None, list_offsets=None, list_ids=None):
        self.hidden, self.hidden_stride = _check.dense_rows(settled("hidden", hidden))
        self.weight, self.weight_stride = _check.dense_rows(settled("weight", weight))
        self.bias = dense("bias", bias)
        self.target = dense("target", target)
        self.temperature_rows = dense("temperature", temperature_rows)
        self.rows = dense("rows", rows)
        self.list_offsets, self.list_ids = dense("keep[0]", list_offsets), dense("keep[1]", list_ids)

    @property
    def is_listed(self):
        return self.list_offsets is not None

    @property
    def targets(self):
        return targets_of(self.target)


def targets_of(target):
    """How many targets a row of (N) or (N,K) ids has: K, or 0 for one."""
    return target.shape[1] if target.dim() == 2 else 0


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
    return _plans.get(key_of(ops, settings, grads, keep, program))


def forward_plan(ops, settings, grads, kept, top):
    """The plan of a forward pass. kept: Kept or None; top: _top.Outputs, which a scoring plan gives, or None"""
    if top is None:
        return plan_for(ops, settings, grads) if kept is None else kept.plan
    return _plans.get(key_of(ops, settings, 0)._replace(topk=settings.topk, rank=int(settings.rank)))


def key_of(ops, settings, grads, keep=False, program=None):
    """The _plans.Spec of plan_for."""
    dtypes = _mixed.spec_fields(ops, settings)
    element_bytes = min(ops.hidden.element_size(), ops.weight.element_size())
    places = [address(ops.hidden), ops.hidden_stride * ops.hidden.element_size(), address(ops.weight),
              ops.weight_stride * ops.weight.element_size()]
    accumulate = settings.accumulate if grads & _c.GRAD_WEIGHT else None
    if accumulate is not None:
        places += [address(accumulate), accumulate.stride(0) * 4]
    entropy = entropy_of(settings, grads)
    if program is not None:
        entropy = step_entropy(settings, grads, program)
    keeps = {}
    if grads and (keep or program is not None and settings.tail):
        keeps = _how_it_keeps(settings)
    vocab, hidden = ops.weight.shape
    wide = [_c.DTYPE_FP32 if grads & bit and settings.wide_grads & bit and element_bytes < 4 else 0
            for bit in GRAD_FIELDS]
    return _plans.Spec(
        device_of(ops.hidden), settings.chunk_rows if grads else 0, dtypes.pop("dtype"), vocab, hidden,
        TO_C[ops.target.dtype], entropy, grads, has_bias=int(ops.bias is not None), softcap=settings.softcap,
        per_row_temperature=int(ops.temperature_rows is not None), grad_hidden_dtype=wide[0],
        grad_weight_dtype=wide[1] if accumulate is None else _c.DTYPE_FP32,
        accumulate_grad_weight=int(accumulate is not None), alignment=_check.alignment_of(element_bytes, *places),
        grad_bias_dtype=wide[2], listed=int(ops.is_listed), targets=ops.targets, loss=b"" if program is None else program.data, **keeps,
        **dtypes)


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
            memory = memory_on(memory.device, memory.numel()).copy_(memory)
        return cls(memory, settings)

    def fields(self):
        """flp_args fields of either pass."""
        return {"saved": address(self.memory), "saved_bytes": self.memory.numel()}


def keep(ops, settings, grads):
    """Memory for what the forward pass of these operands keeps -> Kept, or None for recompute mode. error: as
    keeping_plan"""
    if ops.is_listed:
        return None
    plan, size = keeping_plan(ops, settings, grads)
    if not size:
        return None
    lasts = plan.keeps_for_good(ops.hidden.shape[0], keep_budget(settings))
    return Kept(memory_on(ops.hidden.device, size), settings, plan, lasts)


def keeping_plan(ops, settings, grads):
    """The plan of a training call and the bytes that its forward pass keeps for save, direction or tail mode; 0:
    recompute mode.

    error: UnsupportedError if settings.save is True and no rung keeps any
    """
    return plan_that_keeps(key_of(ops, settings, grads), settings, ops.hidden.shape[0])


def mode_of(ops, settings, grads):
    """The mode of a call in a word: score, recompute, save, direction or tail."""
    plan, size = keeping_plan(ops, settings, grads)
    if not size:
        return "recompute" if grads else "score"
    if plan.key.tail:
        return "tail"
    return "direction" if plan.keeps_directions(ops.hidden.shape[0], keep_budget(settings)) else "save"


def plan_that_keeps(key, settings, n):
    """keeping_plan of a key and n rows."""
    wanted = key.grads and n and not key.targets and (settings.tail or settings.save or settings.save is None and not settings.chunk_rows)
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
    """Fields of a Spec whose forward pass may keep something: lists of columns, or exponentials and directions."""
    return {"tail": settings.tail} if settings.tail else {"keep": 1}


def settings_that_keep(ops, settings, pieces, grads):
    """Settings under which forward passes over pieces of a call's rows, {rows: how many such}, keep what lasts, all
    together within the budget -> {rows: Settings}; {} where that does not fit, or nothing keeps any.

    ops  Operands of one piece
    """
    if ops.targets or not settings.tail and (settings.save is False or ops.hidden.dtype is not torch.bfloat16):
        return {}
    key = key_of(ops, settings, grads, keep=True)
    budget = keep_budget(settings) or _plans.in_force().budgets[_c.PASS_BACKWARD]
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
    return Kept(memory_on(ops.hidden.device, size), settings, plan)


def keep_budget(settings):
    """The budget of what is kept and of the workspace of either pass."""
    return UNBOUNDED if settings.save else settings.budget


def workspace_on(device, size):
    """A block of at least size bytes and its first address that is a multiple of 256."""
    if size == 0:
        return None, None
    block = torch.empty(size, dtype=torch.uint8, device=device)
    start = address(block)
    if start % _c.WORKSPACE_ALIGNMENT:
        block = torch.empty(size + _c.WORKSPACE_ALIGNMENT, dtype=torch.uint8, device=device)
        start = -(-address(block) // _c.WORKSPACE_ALIGNMENT) * _c.WORKSPACE_ALIGNMENT
    return block, start


def memory_on(device, size):
    """size > 0 bytes whose first address is a multiple of 256."""
    block, start = workspace_on(device, size)
    offset = start - address(block)
    return block[offset:offset + size]


@contextlib.contextmanager
def workspace(size, device, ordinal, stream):
    """The address of size bytes (None for 0) for the work that the body queues on the stream.

    Of an arena inside a phase that wants it, else of torch's allocator; both order reuse after the work on the stream.
    """
    arena = _phase.arena_for(ordinal) if size else None
    if arena is None:
        block, start = workspace_on(device, size)
        yield start
        del block
    else:
        with arena.lend(size, stream) as start:
            yield start
    _phase.notify("call", ordinal)


def enqueue(plan, which, n, target, temperature_rows, rows, settings, device, fields):
    """Fills flp_args with what every pass has and the pass's own fields, and executes it."""
    if fields.get("saved"):
        size = plan.workspace_bytes(SAVED_PASSES[which], n, keep_budget(settings))
    elif "list_count" in fields:
        size = plan.listed_bytes(which, n, fields["list_count"], settings.budget)
    else:
        size = plan.workspace_bytes(which, n, settings.budget)
    args = _c.new_args()
    setattr(args, "pass", which)
    args.n = n
    args.target = address(target)
    args.temperature_rows = address(temperature_rows)
    args.temperature, args.scale = settings.temperature, settings.scale
    args.ignore_index = settings.ignore_index
    if rows is not None:
        # An empty list still selects: its pointer must not read as "all rows".
        args.rows, args.row_count = address(rows) or args_placeholder(), rows.numel()
    args.vocab_offset, args.vocab_valid, args.vocab_total = settings.offset, settings.valid, settings.total
    for name, value in fields.items():
        setattr(args, name, value)
    args.stream = stream_of(plan.key.device)
    with workspace(size, device, plan.key.device, args.stream) as start:
        args.workspace, args.workspace_bytes = start, size
        (plan.step if which == _c.PASS_STEP else plan.execute)(args)


def args_placeholder():
    """A non-null, aligned address for an array of no elements."""
    return _c.WORKSPACE_ALIGNMENT


def operand_fields(ops):
    """flp_args fields of the operands of forward and backward."""
    fields = {"hidden": address(ops.hidden), "hidden_stride": ops.hidden_stride, "weight": address(ops.weight),
              "weight_stride": ops.weight_stride, "bias": address(ops.bias)}
    if ops.is_listed:
        fields.update(list_offsets=address(ops.list_offsets), list_ids=address(ops.list_ids),
                      list_count=ops.list_ids.numel())
    return fields


def torch_form(ops):
    """The module of torch operations that stands in for libflp."""
    return _eager_lists if ops.is_listed else _eager_torch


@outside_graphs
def forward(ops, settings, grads, keep_stats, kept=None, top=None):
    """Runs the forward pass -> logprob of target's shape, entropy (N) or None, stats (N,4) or None; fills kept and top."""
    plan = forward_plan(ops, settings, grads, kept, top)
    n, device = ops.hidden.shape[0], ops.hidden.device
    logprob = torch.empty(ops.target.shape, dtype=torch.float32, device=device)
    entropy = torch.empty(n, dtype=torch.float32, device=device) if settings.entropy else None
    stats = torch.empty((n, 4), dtype=torch.float32, device=device) if keep_stats else None
    if plan.handle is None:
        ops = _mixed.made(ops, settings)
        if top is None:
            torch_form(ops).forward(plan, ops, settings, logprob, entropy, stats)
        else:
            _eager_torch.forward(plan, ops, settings, logprob, entropy, stats, top)
        return logprob, entropy, stats
    fields = operand_fields(ops)
    fields.update(logprob=address(logprob), entropy=address(entropy), stats=address(stats))
    if top is not None:
        fields.update(top.fields())
    old_lse = dense("old_lse", settings.old_lse)
    if kept is not None:
        fields.update(kept.fields(), old_lse=address(old_lse))
    enqueue(plan, _c.PASS_FORWARD, n, ops.target, ops.temperature_rows, ops.rows, settings, device, fields)
    return logprob, entropy, stats


@outside_graphs
def partial(ops, settings, kept=None, top=None):
    """Runs the forward pass of one vocab shard -> partial (N,4), or (N,4+K): its row and the scores of K targets; fills
    kept, which lasts, and top."""
    plan = forward_plan(ops, settings, 0, kept, top)
    n, device = ops.hidden.shape[0], ops.hidden.device
    out = torch.empty((n, 4), dtype=torch.float32, device=device)
    scores = torch.empty(ops.target.shape, dtype=torch.float32, device=device) if ops.targets else None
    if plan.handle is None:
        ops = _mixed.made(ops, settings)
        if top is not None:
            _eager_torch.partial(plan, ops, settings, out, top=top)
        elif scores is None:
            torch_form(ops).partial(plan, ops, settings, out)
        else:
            _eager_torch.partial(plan, ops, settings, out, targets=scores)
        return out if scores is None else torch.cat([out, scores], 1)
    fields = operand_fields(ops)
    fields.update(partial=address(out), partial_targets=address(scores))
    if top is not None:
        fields.update(top.fields())
    if kept is not None:
        fields.update(kept.fields())
    enqueue(plan, _c.PASS_FORWARD, n, ops.target, ops.temperature_rows, ops.rows, settings, device, fields)
    return out if scores is None else torch.cat([out, scores], 1)


@outside_graphs
def combine(plan, partials, target, temperature_rows, rows, settings):
    """Merges partials (R,N,4) or (R,N,4+K) of all shards -> logprob of target's shape, entropy (N) or None, stats
    (N,4)."""
    n, device = target.shape[0], target.device
    scores = dense("partials", partials[..., 4:]) if targets_of(target) else None
    partials, target = dense("partials", partials[..., :4]), dense("target", target)
    temperature_rows, rows = dense("temperature", temperature_rows), dense("rows", rows)
    logprob = torch.empty(target.shape, dtype=torch.float32, device=device)
    entropy = torch.empty(n, dtype=torch.float32, device=device) if settings.entropy else None
    stats = torch.empty((n, 4), dtype=torch.float32, device=device)
    if plan.handle is None:
        _eager_torch.combine(plan, partials, target, temperature_rows, rows, settings, logprob, entropy, stats, scores)
        return logprob, entropy, stats
    fields = {"partial": address(partials), "partial_targets": address(scores), "shard_count": partials.shape[0], "logprob": address(logprob),
              "entropy": address(entropy), "stats": address(stats)}
    enqueue(plan, _c.PASS_COMBINE, n, target, temperature_rows, rows, settings, device, fields)
    return logprob, entropy, stats


@outside_graphs
def backward(ops, settings, grads, stats, grad_logprob, grad_entropy, kept=None):
    """Runs the backward pass -> grad_hidden, grad_weight, grad_bias; None for what grads does not ask for, and for the
    weight when settings.accumulate takes its gradient. kept is used up, unless it lasts."""
    plan = plan_for(ops, settings, grads, keep=kept is not None)
    stats = dense("stats", stats)
    upstream = [None if grad is None else dense(field, grad.to(torch.float32))
                for field, grad in (("grad_logprob", grad_logprob), ("grad_entropy", grad_entropy))]
    made = _new_gradients(ops, settings, grads)
    if plan.handle is None:
        torch_form(ops).backward(plan, _mixed.made(ops, settings), settings, stats, upstream, *made)
        _report_fields(plan, settings)
    else:
        fields = operand_fields(ops)
        fields.update(_gradient_fields(made), stats=address(stats), grad_logprob=address(upstream[0]),
                      grad_entropy=address(upstream[1]), **_report_fields(plan, settings))
        if kept is not None:
            fields.update(kept.fields())
        enqueue(plan, _c.PASS_BACKWARD, ops.hidden.shape[0], ops.target, ops.temperature_rows, ops.rows, settings,
                ops.hidden.device, fields)
    return _handed_out(made, settings)


def _new_gradients(ops, settings, grads):
    """Memory of grad_hidden, grad_weight (settings.accumulate where that is given) and grad_bias, as grads asks."""
    def new(operand, bit):
        if not grads & bit:
            return None
        dtype = torch.float32 if settings.wide_grads & bit else operand.dtype
        return torch.empty(operand.shape, dtype=dtype, device=operand.device)

    grad_weight = settings.accumulate if grads & _c.GRAD_WEIGHT else None
    return (new(ops.hidden, _c.GRAD_HIDDEN), new(ops.weight, _c.GRAD_WEIGHT) if grad_weight is None else grad_weight,
            new(ops.bias, _c.GRAD_BIAS))


def _gradient_fields(made):
    grad_hidden, grad_weight, grad_bias = made
    return {"grad_hidden": address(grad_hidden), "grad_weight": address(grad_weight), "grad_bias": address(grad_bias),
            "grad_weight_stride": 0 if grad_weight is None else grad_weight.stride(0)}


def _report_fields(plan, settings):
    """flp_args field of the report of a pass; that of an exact one is zeros, which are written here."""
    report = settings.tail_report
    if report is None:
        return {}
    if plan.handle is not None and plan.key.tail:
        return {"tail_report": address(report)}
    report.zero_()
    return {}


def _handed_out(made, settings):
    """What a backward pass returns: the caller's own buffer is not among it."""
    return made[0], None if settings.accumulate is not None else made[1], made[2]


class Loss:
    """The loss of a step: a program, its parameters by name, and its rows (N) float32, None where it does without:
    old_logprob, ref_logprob, advantage, weight, and vectors by name; teacher_logprob (N,K) of a loss over targets."""

    __slots__ = ("program", "parameters", "old_logprob", "ref_logprob", "advantage", "weight", "vectors",
                 "teacher_logprob")

    def __init__(self, program, parameters, old_logprob, ref_logprob, advantage, weight, vectors, teacher_logprob=None):
        self.teacher_logprob = dense("teacher_logprob", teacher_logprob)
        self.program, self.parameters = program, parameters
        self.old_logprob, self.ref_logprob = dense("old_logprob", old_logprob), dense("ref_logprob", ref_logprob)
        self.advantage, self.weight = dense("advantage", advantage), dense("weight of a row", weight)
        self.vectors = {name: dense("vectors[%r]" % name, vectors[name]) for name in program.vectors}

    def tensors(self):
        """What of_tensors takes."""
        return (self.old_logprob, self.ref_logprob, self.advantage, self.weight, self.teacher_logprob,
                *self.vectors.values())

    @classmethod
    def of_tensors(cls, program, parameters, tensors):
        """The loss of the same program whose tensors these are."""
        old_logprob, ref_logprob, advantage, weight, teacher_logprob, *vectors = tensors
        return cls(program, parameters, old_logprob, ref_logprob, advantage, weight, dict(zip(program.vectors, vectors)),
                   teacher_logprob)

    def fields(self):
        """flp_args fields of what the loss reads."""
        values = [self.parameters.get(name, row[0]) for name, row in self.program.parameters.items()]
        vectors = [address(self.vectors[name]) for name in self.program.vectors]
        return {"teacher_logprob": address(self.teacher_logprob), "old_logprob": address(self.old_logprob), "ref_logprob": address(self.ref_logprob),
                "advantage": address(self.advantage), "row_weight": address(self.weight),
                "vectors": (ctypes.c_void_p * _c.VECTORS_MAX)(*vectors),
                "loss_parameters": (ctypes.c_double * max(len(values), 1))(*values)}


class Step:
    """What a step gave: loss (N), logprob of target's shape, entropy (N) or None, metrics (metrics of the program, N), gradients."""

    __slots__ = ("loss", "logprob", "entropy", "metrics", "gradients")


def settings_of_step(ops, settings, grads):
    """The Settings of a step. Its gradients wait for an upstream factor, unless the caller's buffer had to know it:
    fp16, which loses what is above 65504 or below 6e-8 before that factor comes, waits as float32."""
    own = copy.copy(settings)
    if _mixed.product_dtype(ops.hidden, ops.weight) is torch.float16 and settings.accumulate is None:
        own.wide_grads = grads
    return own


@outside_graphs
def step(ops, settings, grads, loss):
    """Runs forward, loss and backward in one -> Step."""
    plan = plan_for(ops, settings, grads, program=loss.program)
    n, device = ops.hidden.shape[0], ops.hidden.device
    made, out = _new_gradients(ops, settings, grads), Step()
    out.loss = torch.empty(n, dtype=torch.float32, device=device)
    out.logprob = torch.empty(ops.target.shape, dtype=torch.float32, device=device)
    out.entropy = torch.empty_like(out.loss) if plan.key.entropy else None
    out.metrics = torch.empty((len(loss.program.metrics), n), dtype=torch.float32, device=device)
    report = _report_fields(plan, settings) if grads else {}
    out.gradients = _handed_out(made, settings)
    if plan.handle is None:
        _eager_step.run(plan, _mixed.made(ops, settings), settings, loss, out, made)
        return out
    fields = operand_fields(ops)
    fields.update(_gradient_fields(made), **loss.fields(), **report)
    old_lse = dense("old_lse", settings.old_lse)
    fields.update(loss=address(out.loss), logprob=address(out.logprob), entropy=address(out.entropy),
                  metrics=address(out.metrics) or None, old_lse=address(old_lse))
    enqueue(plan, _c.PASS_STEP, n, ops.target, ops.temperature_rows, ops.rows, settings, device, fields)
    return out
