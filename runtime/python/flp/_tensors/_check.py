"""The checks that stand before every tensor call, and the shapes, strides and alignments that libflp gets.

Invariants: a failure names the field, its value and what is accepted; nothing here reads a value from a device, so
nothing synchronises; what libflp itself checks (hidden and vocab sizes, budgets) is left to it, so that every surface
words it alike. Checks of numbers, which need no torch, stand in _numbers.py; callers find them here too.
"""
import numbers

import torch

from .._library import _c
from .._library._numbers import (DETACHED, INT32_MAX, LOG2E, VOCAB_MAX, budget_of,  # noqa: F401
                                 count_of, double_of, entropy_of, fits, float_of, integer_of, number_of, refuse,
                                 refuse_dtype, refuse_shape, refuse_type, renaming, scales_of, softcap_of, tail_of,
                                 usable_rows, within)
from ._compile import is_tracing

BOTH = "one dtype for both"
OFFER = BOTH + ', or mixed="round" or "split" with torch.float32 beside torch.bfloat16 or torch.float16'
DTYPES = {torch.bfloat16: _c.DTYPE_BF16, torch.float16: _c.DTYPE_FP16, torch.float32: _c.DTYPE_FP32}
TARGET_DTYPES = {torch.int32: _c.DTYPE_INT32, torch.int64: _c.DTYPE_INT64}
ACCEPTED_DTYPES = "torch.bfloat16, torch.float16, torch.float32"
ACCEPTED_TARGETS = "torch.int32, torch.int64"
TARGETS_MAX = 512  # targets of a row


class Settings:
    """The run-time values of one call, checked. offset, valid and total describe a vocab shard; zeros: the whole.
    wide_grads: bits _c.GRAD_* of the gradients that are float32 whatever the operands are. detached: the entropy has no
    gradient. save: may the forward pass keep something for the backward pass (None: within the budget); old_lse: (N)
    float32 that exponentials refer to, or None. tail: what a backward pass may leave out, 0.0: nothing; tail_report:
    (4) float32 that says what it left out, or None. topk: best tokens that a forward pass gives, 0: none; rank,
    statistics: whether it gives those. mixed: flp_mixed, how float32 operands meet those of 16 bits. lora_scale: of the
    adapter."""

    __slots__ = ("temperature", "softcap", "scale", "ignore_index", "budget", "entropy", "detached", "chunk_rows",
                 "accumulate", "offset", "valid", "total", "wide_grads", "save", "old_lse", "tail", "tail_report",
                 "topk", "rank", "statistics", "mixed", "lora_scale")

    def __init__(self, temperature, softcap, scale, ignore_index, budget, entropy, chunk_rows=None):
        self.temperature = temperature
        self.softcap = softcap_of(softcap)
        self.scale = number_of("scale", scale)
        self.ignore_index = integer_of("ignore_index", ignore_index)
        self.budget = budget_of(budget)
        self.entropy, self.detached = entropy_of(entropy)
        self.chunk_rows = count_of("chunk_rows", chunk_rows, "row")
        scales_of(self.temperature, self.softcap, self.scale)
        self.accumulate = None
        self.offset = self.valid = self.total = 0
        self.wide_grads = 0
        self.save, self.old_lse = False, None
        self.tail, self.tail_report = 0.0, None
        self.topk, self.rank, self.statistics = 0, False, False
        self.mixed, self.lora_scale = 0, 1.0

    @property
    def gives_more(self):
        """Whether a forward pass gives best tokens, ranks or statistics, too."""
        return bool(self.topk or self.rank or self.statistics)


def check_real(field, value):
    """Refuses what is neither None, a number nor a symbol of one: the check of numbers while a graph is made."""
    if value is not None and not isinstance(value, numbers.Real):
        refuse_type(field, value, "a finite number")


def check_integral(field, value):
    """check_real, of integers."""
    if value is not None and not isinstance(value, numbers.Integral):
        refuse_type(field, value, "an integer")


def usable(temperature_rows, softcap, scale):
    """Which temperatures of rows, float32, libflp takes: those that scales_of takes of a scalar."""
    unit = torch.full((), (softcap or scale) * LOG2E, dtype=torch.float32, device=temperature_rows.device)
    return usable_rows(temperature_rows, unit)


def float_tensor_of(field, value):
    tensor_of(field, value)
    if not value.is_floating_point():
        refuse(TypeError, field, value.dtype, "a floating-point dtype")


def same_device(field, value, other, tensor):
    """Both tensors on one device; other names the second."""
    if value.device != tensor.device:
        refuse(ValueError, field, "on %s" % value.device, "%s's device, %s" % (other, tensor.device))


def like(field, value, other, tensor):
    """A tensor of the other's shape on its device; other names it."""
    tensor_of(field, value)
    same_device(field, value, other, tensor)
    if value.shape != tensor.shape:
        refuse_shape(field, value, "%s's, %s" % (other, tuple(tensor.shape)))


def tensor_of(field, value):
    if not isinstance(value, torch.Tensor):
        refuse_type(field, value, "a torch.Tensor")
    if value.layout is not torch.strided:
        refuse(TypeError, field, "of layout %s" % value.layout, "torch.strided")
    if value.is_nested:
        refuse(TypeError, field, "a nested tensor", "one of rows of equal length; flp.score takes packed sequences")
    if hasattr(value, "to_local"):
        refuse_type(field, value, "a plain torch.Tensor, e.g. the result of to_local()")


def follow_autocast(hidden, weight, bias):
    """The floating operands as torch.nn.functional.linear would take them under the autocast in force."""
    dtype = autocast_dtype(hidden.device.type)
    if dtype is None:
        return hidden, weight, bias
    return tuple(tensor.to(dtype) if isinstance(tensor, torch.Tensor) and tensor.dtype in DTYPES else tensor
                 for tensor in (hidden, weight, bias))


def autocast_dtype(device_type):
    """The autocast dtype in force for a device type, or None."""
    if hasattr(torch, "get_autocast_dtype"):
        known = device_type in ("cpu", "cuda")
        return torch.get_autocast_dtype(device_type) if known and torch.is_autocast_enabled(device_type) else None
    if device_type == "cuda":
        return torch.get_autocast_gpu_dtype() if torch.is_autocast_enabled() else None
    return torch.get_autocast_cpu_dtype() if torch.is_autocast_cpu_enabled() else None


def operands(hidden, weight, bias, names=("weight", "bias"), mixed=None):
    """Checks types, dtypes and shapes of the floating operands; names: those of weight and bias in the call; mixed:
    flp_mixed of a call that takes operands of two dtypes."""
    head, offset = names
    if hidden.dtype not in DTYPES:
        refuse_dtype("hidden", hidden, ACCEPTED_DTYPES)
    agree(head, weight, hidden, mixed)
    if hidden.dim() < 1:
        refuse(ValueError, "hidden", "of shape ()", "(..., D)")
    if weight.dim() != 2 or weight.shape[1] != hidden.shape[-1]:
        refuse_shape(head, weight, "(V, %d), as hidden ends in %d" % (hidden.shape[-1], hidden.shape[-1]))
    if bias is None:
        return
    if not mixed or bias.dtype is not weight.dtype:
        agree(offset, bias, hidden, mixed)
    if tuple(bias.shape) != (weight.shape[0],):
        refuse_shape(offset, bias, "(%d,), as %s has %d rows" % (weight.shape[0], head, weight.shape[0]))


def agree(field, tensor, hidden, mixed):
    """Refuses an operand that does not go with hidden. mixed: flp_mixed, or None where a call takes none"""
    if tensor.dtype is hidden.dtype:
        return
    pair = {tensor.dtype, hidden.dtype}
    if not mixed or torch.float32 not in pair or not pair <= set(DTYPES):
        refuse(TypeError, field, "of dtype %s while hidden is of dtype %s" % (tensor.dtype, hidden.dtype),
               BOTH if mixed is None else OFFER)


def target_of(target, lead, several=False):
    """The targets as one contiguous row of ids (N); several: those of one more dimension, K > 1, as (N, K)."""
    tensor_of("target", target)
    if target.dtype not in TARGET_DTYPES:
        refuse_dtype("target", target, ACCEPTED_TARGETS)
    if several and target.dim() == len(lead) + 1 and target.shape[:-1] == lead:
        if not 1 <= target.shape[-1] <= TARGETS_MAX:
            refuse(ValueError, "target", "of shape %s, with K = %d" % (tuple(target.shape), target.shape[-1]),
                   "K from 1 to %d targets a row" % TARGETS_MAX)
        return target.reshape(-1, target.shape[-1]) if target.shape[-1] > 1 else target.reshape(-1)
    if target.shape != lead:
        more = ", or %s with K targets a row" % str((*lead, "K")).replace("'", "") if several else ""
        refuse_shape("target", target, "%s, as hidden without its last dimension%s" % (tuple(lead), more))
    return target.reshape(-1)


def prepare(hidden, weight, target, bias, temperature, rows, lead=None, names=("weight", "bias"), several=False,
            mixed=None):
    """Checks and flattens the tensors -> lead shape, hidden, weight, bias, target, T, temperature_rows, rows.

    lead     shape of target and temperature; None: hidden's without its last dimension
    names    what the call names weight and bias
    several  whether target may have one dimension more, of K targets a row; flattened (N, K) then, (N) for K = 1
    mixed    flp_mixed, or None of a call that takes operands of one dtype alone
    """
    tensor_of("hidden", hidden)
    tensor_of(names[0], weight)
    if bias is not None:
        tensor_of(names[1], bias)
    if not mixed:
        hidden, weight, bias = follow_autocast(hidden, weight, bias)
    operands(hidden, weight, bias, names, mixed)
    lead = hidden.shape[:-1] if lead is None else lead
    flat_target = target_of(target, lead, several)
    devices(hidden, **{names[0]: weight, "target": target, names[1]: bias})
    scalar, temperature_rows = temperature_of(temperature, lead, hidden.device)
    flat_hidden = hidden if hidden.dim() == 2 else hidden.reshape(hidden.shape[:-1].numel(), hidden.shape[-1])
    return (lead, flat_hidden, weight, bias, flat_target, scalar, temperature_rows,
            rows_of(rows, hidden.device))


def ordinal_of(device):
    """The CUDA ordinal of a device, or _c.DEVICE_HOST."""
    device = torch.device(device)
    if device.type == "cpu":
        return _c.DEVICE_HOST
    if device.type != "cuda":
        refuse(ValueError, "device", device, "a cpu or cuda device")
    return torch.cuda.current_device() if device.index is None else device.index


def devices(first, name="hidden", **others):
    """Every operand on one CPU or CUDA device; name is the first one's."""
    device = first.device
    if device.type not in ("cpu", "cuda"):
        refuse(ValueError, name, "on device %s" % device, "a cpu or cuda device")
    for field, tensor in others.items():
        if tensor is not None and tensor.device != device:
            refuse(ValueError, field, "on device %s while %s is on %s" % (tensor.device, name, device),
                   "one device for all")


def temperature_of(temperature, lead, device, of="target", leaves="hidden, weight and bias"):
    """(scalar, None), or (1.0, float32 row of one temperature a row). of: what names the rows; leaves: what has
    gradients"""
    if not isinstance(temperature, torch.Tensor):
        if not isinstance(temperature, numbers.Real):
            refuse_type("temperature", temperature, "a number, or a tensor of one a row")
        return temperature if is_tracing() else float_of(temperature), None
    if temperature.requires_grad and torch.is_grad_enabled():
        refuse(ValueError, "temperature", "a tensor that requires a gradient",
               "a tensor without, as gradients reach %s only" % leaves)
    if temperature.dtype.is_complex or temperature.dtype is torch.bool:
        refuse_dtype("temperature", temperature, "a real dtype")
    if temperature.dim() == 0 and temperature.device.type == "cpu":
        if not is_tracing():
            return float(temperature), None
        temperature = temperature.to(device)
    if temperature.dim() != 0 and temperature.shape != lead:
        refuse_shape("temperature", temperature, "(), or %s, as %s" % (tuple(lead), of))
    if temperature.device != device:
        refuse(ValueError, "temperature", "on device %s while hidden is on %s" % (temperature.device, device),
               "one device for all")
    # A scalar on the device stays there: reading it would synchronise.
    return 1.0, temperature.detach().to(torch.float32).expand(lead).reshape(-1)


def _ids_of(rows):
    """A sequence of numbers as a tensor, int64 if they are integers or there are none."""
    try:
        ids = torch.as_tensor(rows, device="cpu")
    except (TypeError, ValueError, RuntimeError):
        refuse_type("rows", rows, "integers of 64 bits, or a tensor of them")
    is_integer = not (ids.is_floating_point() or ids.is_complex() or ids.dtype is torch.bool)
    return ids.long() if is_integer or not ids.numel() else ids


def rows_of(rows, device):
    """The row list as int32 ids on the device; ids that int32 cannot hold stay out of range."""
    if rows is None:
        return None
    if not isinstance(rows, torch.Tensor):
        rows = _ids_of(rows)
    if rows.dtype not in TARGET_DTYPES:
        refuse_dtype("rows", rows, ACCEPTED_TARGETS)
    if rows.dim() != 1:
        refuse_shape("rows", rows, "(row count,)")
    if rows.dtype is torch.int64:
        rows = rows.clamp(-1, INT32_MAX).to(torch.int32)
    return rows.to(device)


def lists_of(keep, target):
    """The columns that count in each row: offsets (N+1) int64 and ids (count), and the targets (N) of the ids' dtype.

    keep    (offsets, token_ids) as a sampler gives them
    target  (N) flattened
    """
    if not isinstance(keep, (tuple, list)) or len(keep) != 2:
        refuse_type("keep", keep, "a pair of tensors, (offsets, token_ids)")
    for field, tensor in zip(("keep[0] (offsets)", "keep[1] (token_ids)"), keep):
        tensor_of(field, tensor)
        if tensor.dtype not in TARGET_DTYPES:
            refuse_dtype(field, tensor, ACCEPTED_TARGETS)
        if tensor.dim() != 1:
            refuse_shape(field, tensor, "one dimension")
        devices(target, "target", **{field: tensor})
    offsets, ids = keep
    if offsets.numel() != target.numel() + 1:
        refuse_shape("keep[0] (offsets)", offsets, "(%d,), one more than there are targets" % (target.numel() + 1))
    if ids.numel() > INT32_MAX:
        refuse_shape("keep[1] (token_ids)", ids, "at most 2^31 - 1 ids in all")
    if ids.dtype is not target.dtype:
        # the wider of the two: an id that int32 cannot hold must not become another
        ids, target = ids.long(), target.long()
    return offsets.long(), ids, target


def lists_of_rows(offsets, ids, rows):
    """The lists of some rows (their ids, ascending or not) as lists of their own; nothing is read on the host."""
    count, n = ids.numel(), offsets.numel() - 1
    lengths = (offsets[1:] - offsets[:-1])[rows]
    begins = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    place = torch.full((n,), -1, dtype=torch.int64, device=ids.device)
    place[rows] = torch.arange(rows.numel(), device=ids.device)
    entry = torch.arange(count, device=ids.device)
    row = torch.searchsorted(offsets, entry, right=True) - 1
    inside = (row >= 0) & (row < n)
    row = row.clamp(0, max(n - 1, 0))
    chosen = inside & (place[row] >= 0)
    to = torch.where(chosen, begins[place[row].clamp(min=0)] + entry - offsets[row], count)
    own = ids.new_zeros(count + 1)
    own[to.clamp(0, count)] = ids  # offsets that do not ascend are the kernels' to find
    return begins, own[:count]


def save_of(value):
    """Whether a forward pass may keep something for the backward pass: None, True or False."""
    if value is not None and not isinstance(value, bool):
        refuse_type("save", value, "None, True or False")
    return value


def counted_of(mask, counted):
    """Those of the rows counted, bool (...), that a mask leaves, or None."""
    if mask is None:
        return counted
    tensor_of("mask", mask)
    same_device("mask", mask, "hidden", counted)
    if mask.shape != counted.shape:
        refuse_shape("mask", mask, "%s, one a row" % (tuple(counted.shape),))
    return counted & (mask != 0)


def leave_out(mask, every, *calls):
    """Gives calls as targets every, 0 a row, that are ignored where a mask, or None, leaves a row out -> the rows that
    count, bool (...)"""
    counted = counted_of(mask, every == 0)
    for call in calls:
        call.operands["target"] = every.masked_fill(~counted, call.settings.ignore_index).reshape(-1)
    return counted


def row_values_of(field, value, lead, device, of="target", targets=()):
    """Numbers of one a row as float32 (N), or of targets=(K,) a row (N,K), constants to autograd; None stays. of: what
    names the rows"""
    if value is None:
        return None
    float_tensor_of(field, value)
    if value.shape != (*lead, *targets):
        refuse_shape(field, value, "%s, as %s" % ((*lead, *targets), of))
    if value.device != device:
        refuse(ValueError, field, "on device %s while hidden is on %s" % (value.device, device), "one device for all")
    return value.detach().to(torch.float32).reshape(-1, *targets)


def product_dtype(hidden, weight):
    """That of the products: of two the one of 16 bits."""
    return weight.dtype if hidden.dtype is torch.float32 else hidden.dtype


def dense_rows(matrix):
    """The matrix and its row stride; copied only when its rows overlap or their elements are not adjacent."""
    depth = matrix.shape[1]
    if matrix.stride(1) == 1:
        stride = matrix.stride(0)
        if stride >= depth:
            return matrix, stride
        if matrix.shape[0] <= 1:
            return matrix, depth
    return matrix.contiguous(), depth


def alignment_of(element_bytes, *places):
    """The largest power of two up to 16 that divides every base address and row stride (bytes) in places."""
    bits = 16
    for place in places:
        bits |= place
    return max(bits & -bits, element_bytes)  # a lesser one libflp refuses, and names the operand
