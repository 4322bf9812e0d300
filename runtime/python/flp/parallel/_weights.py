"""Which rows of the vocabulary a rank has: from a DTensor, from the caller, or from one gather of the ranks' sizes.

Invariants: a weight whose values are elsewhere (FSDP outside its unsharded window, ZeRO-3 outside its gather) is
refused with what to do; sizes travel once for each weight and group, so that later calls send nothing but rows.
"""
import collections
import contextlib
import weakref

import torch
import torch.distributed as dist
import torch.nn.functional as F

from .._tensors import _check
from .._tensors._address import is_freed

# offset, valid and total as linear_logprob_partial has them. valid 0: the rank has nothing but padding.
Place = collections.namedtuple("Place", "offset valid total")
# A tensor of this rank, its Place where a DTensor gave it, and whether every rank has the whole of it.
Local = collections.namedtuple("Local", "tensor place replicated")

FSDP_WINDOW = "a parameter of FSDP in its module's forward(), or between module.unshard() and module.reshard()"

REFUSED = -2  # in the place of a rank's rows

_known = {}


def local_of(field, tensor, group):
    """What this rank has of a weight or bias -> Local. error: ValueError saying how to make the values present"""
    if hasattr(tensor, "placements") and hasattr(tensor, "device_mesh"):
        return _of_dtensor(field, tensor, group)
    _check.tensor_of(field, tensor)
    check_present(field, tensor)
    return Local(tensor, None, False)


def check_present(field, tensor):
    """Refuses a tensor whose values are on other ranks at the moment."""
    status = getattr(tensor, "ds_status", None)
    if hasattr(tensor, "ds_id") and getattr(status, "name", status) != "AVAILABLE":
        _check.refuse(ValueError, field, "a ZeRO-3 parameter that is partitioned",
                      "a gathered one: pass gather=deepspeed.zero.GatheredParameters, entered around both passes")
    if is_freed(tensor):
        _check.refuse(ValueError, field, "a tensor whose storage was freed",
                      "one with its values: " + FSDP_WINDOW)


def _of_dtensor(field, tensor, group):
    mesh, placements = tensor.device_mesh, tensor.placements
    ranks = dist.get_process_group_ranks(group.handle)
    across = [dist.get_process_group_ranks(mesh.get_group(i)) == ranks for i in range(mesh.ndim)]
    split = [i for i, placement in enumerate(placements) if not placement.is_replicate()]
    if not split:
        return Local(tensor.to_local(), None, any(across))
    (dimension, *more) = split
    plain = type(placements[dimension]).__name__ == "Shard" and placements[dimension].is_shard(0)
    if more or not plain or not across[dimension]:
        _check.refuse(ValueError, field, "a DTensor of placements %s over %s" % (tuple(placements), mesh),
                      "Shard(0) over the mesh of group, or Replicate; " + FSDP_WINDOW)
    total = tensor.shape[0]
    step = -(-total // group.size)
    offset = min(group.rank * step, total)
    return Local(tensor.to_local(), Place(offset, min(step, total - offset), total), False)


def place_of(weight, rows, given, group):
    """The Place of a shard of so many rows; weight is the caller's own object, which the sizes are remembered by.

    given   Place of what the caller gave, None for the rest
    """
    place = given
    if given.offset is None or given.total is None:
        place = _gathered(weight, rows, given, group)
    if place.valid is None:
        place = place._replace(valid=max(0, min(rows, place.total - place.offset)))
    if place.valid > rows:
        _check.refuse(ValueError, "vocab_valid", place.valid, "at most %d, the rows of the shard" % rows)
    if place.offset + place.valid > place.total:
        _check.refuse(ValueError, "vocab_total", place.total,
                      "at least vocab_offset and the real rows, %d" % (place.offset + place.valid))
    return place


@contextlib.contextmanager
def told_if_refused(weight, given, group, device):
    """What this rank refuses in the body it tells the ranks that wait for its sizes, which then refuse the call too."""
    try:
        yield
    except Exception:
        needs_sizes = not hasattr(weight, "placements") and (given.offset is None or given.total is None)
        if needs_sizes and not any(known[:2] == (id(weight), group.handle) for known in _known):
            group.lists([REFUSED, -1, -1], device)
        raise


class Padded(torch.autograd.Function):
    """A shard of one row, or its bias, as one of two rows, as libflp takes them.

    into  a buffer that the gradient is added to in the place of the shard's own, or None
    """

    @staticmethod
    def forward(ctx, one, into):
        ctx.into = into
        return F.pad(one, (*[0] * (2 * one.dim() - 1), 1))

    @staticmethod
    def backward(ctx, grad):
        if ctx.into is None:
            return grad[:1], None
        ctx.into += grad[:1]
        return None, None


def of_two_rows(call):
    """Gives a shard of one row a row of padding, its place stays that of one row. call: a flp._tensors._call.Call"""
    into, call.settings.accumulate = call.settings.accumulate, None
    for name in ("weight", "bias", "lora_b"):
        if call.operands[name] is not None:
            call.operands[name] = Padded.apply(call.operands[name], into if name == "weight" else None)


def _gathered(weight, rows, given, group):
    key = (id(weight), group.handle, rows, given)
    if key not in _known:
        _known[key] = _from_sizes(rows, given, group, weight.device)
        weakref.finalize(weight, _known.pop, key, None)
    return _known[key]


def _from_sizes(rows, given, group, device):
    """The Place, by what all ranks have: rows, real ones or -1, offset or -1."""
    told = [-1 if value is None else _check.integer_of(field, value)
            for field, value in (("vocab_valid", given.valid), ("vocab_offset", given.offset))]
    sizes = group.lists([rows, *told], device)
    for rank, (own, valid, _) in enumerate(sizes):
        if own == REFUSED:
            _check.refuse(ValueError, "weight_shard", "part of a call that rank %d of the group refuses" % rank,
                          "a call that every rank takes; that one says why it does not")
        if valid > own:
            _check.refuse(ValueError, "vocab_valid", "%d on rank %d of the group" % (valid, rank),
                          "at most the %d rows of its shard" % own)
    # Ranks that give no padding have none, or, where the total is given, all of it at the end.
    real = [own if valid < 0 else valid for own, valid, _ in sizes]
    before = sum(real[:group.rank])
    counted = all(valid < 0 for _, valid, _ in sizes) and given.total is not None
    if given.total is not None and not (given.total <= sum(real) if counted else given.total == sum(real)):
        _check.refuse(ValueError, "vocab_total", given.total,
                      "%s %d, the rows of all ranks" % ("at most" if counted else "exactly", sum(real)))
    offset = before if given.offset is None else given.offset
    total = sum(real) if given.total is None else given.total
    if counted:
        return Place(min(offset, total), None, total)
    return Place(offset, real[group.rank], total)
