"""Plans: what one specialisation on one device runs, made once and kept, and the environment that a fall obeys.

Invariants: one plan a key, made under that key's own lock, so that two specialisations may compile at the same time
and 64 threads that want one compile it once; a Plan without a handle runs the torch form of the eager rung
(_eager_torch.py). The memory of a plan goes back to driver and host in destroy_unused, which runs when a plan is made
and in flp.clear_plans(): the garbage collector only notes the handle. A forked child forgets the plans of its parent;
libflp destroys those without a CUDA call (flp.h, "Fork").
"""
import collections
import ctypes
import functools
import os
import sys
import threading
from typing import Any

from .. import errors
from . import _c

# What a plan is made for, and its key: the fields of flp_spec, after the device, a CUDA ordinal or _c.DEVICE_HOST, and
# the rows of a chunk, 0 for the planner's choice. loss: bytes of a program, or none.
Spec = collections.namedtuple(  # type: ignore[misc]
    "Spec", ["device", "chunk_rows", *(name for name, _, _ in _c.SPEC_FIELDS), "loss"],
    defaults=[0, *(initial for _, _, initial in _c.SPEC_FIELDS), b""])

# Keeps the remembered workspace sizes of a plan bounded when every call has another number of rows.
SIZES_MAX = 1024


class Plan:
    """One plan of libflp, or (handle None) the torch form of the eager rung with the reason for it."""

    def __init__(self, key, handle, rung, reason=""):
        self.key = key
        self.handle = handle
        self.rung = rung
        self.reason = reason
        if handle is None:
            self.in_force = in_force(key.device)
        self.bad_rows = None  # the device error word of torch operations
        self._sizes = {}

    @functools.cached_property
    def in_force(self):
        """InForce when the torch form was taken, or of kernels when torch operations beside them first ask."""
        return in_force(self.key.device)

    def workspace_bytes(self, which, n, budget, count=None):
        """Exact workspace of one pass; count: ids that the rows' lists have in all, or None.
        error: BudgetError naming the smallest budget that would do"""
        return self._laid_out(which, n, budget, count)[0]

    def keeps_directions(self, n, budget):
        """Whether what a forward pass over n rows keeps is directions."""
        return self._laid_out(_c.PASS_FORWARD_SAVED, n, budget)[1] == _c.MODE_DIRECTION

    def keeps_for_good(self, n, budget):
        """Whether backward passes only read what a forward pass over n rows keeps: lists of columns, or directions."""
        return bool(self.key.tail) or self.keeps_directions(n, budget)

    def _laid_out(self, which, n, budget, count=None):
        """Workspace and mode of one pass."""
        def found():
            layout = self.layout(which, n, budget, count)
            return layout.bytes, layout.mode

        return _remembered(self._sizes, (which, n, budget, count), found)

    def layout(self, which, n, budget, count=None):
        """The flp_layout of one pass."""
        layout = _c.new_layout()
        if count is None:
            _c.call("flp_plan_layout", self.handle, which, n, budget, layout)
        else:
            _c.call("flp_plan_layout_listed", self.handle, which, n, count, budget, layout)
        return layout

    def saved_bytes(self, n, budget):
        """Bytes that a forward pass over n rows keeps within a budget, in save, direction or tail mode; 0: nothing."""
        return _remembered(self._sizes, ("saved", n, budget), lambda: 0 if self.handle is None else _saved(
            "flp_plan_saved", self.handle, n, budget))

    def sums_bytes(self):
        """Bytes of flp_args.sums."""
        return _remembered(self._sizes, ("sums",), lambda: _saved("flp_plan_sums", self.handle))

    def execute(self, args, function="flp_execute"):
        """Enqueues one pass, by a function of libflp: flp_execute, flp_step, flp_select, flp_scale or
        flp_diverge."""
        _c.call(function, self.handle, args)

    def describe(self):
        """One paragraph: what runs, and why the rungs above it do not."""
        if self.handle is None:
            return "eager: chunked torch operations on the tensor's own device, because %s" % self.reason
        buffer = ctypes.create_string_buffer(8192)
        _c.call("flp_plan_describe", self.handle, buffer, len(buffer))
        return buffer.value.decode(errors="replace")

    def reasons(self):
        """Why each rung above the one that runs was not taken: {name: sentence}."""
        library = _c.get()
        if self.handle is None:
            return {rung_name(rung): self.reason for rung in range(_c.RUNG_TUNED, _c.RUNG_EAGER)}
        pairs = ((rung_name(rung), library.flp_plan_get_reason(self.handle, rung).decode(errors="replace"))
                 for rung in range(_c.RUNG_TUNED, _c.RUNG_EAGER + 1))
        return {name: reason for name, reason in pairs if reason}

    def plan_id(self):
        """16 hexadecimal digits, equal on two ranks if they run the same kernels."""
        if self.handle is None:
            return "eager-torch"
        buffer = ctypes.create_string_buffer(17)
        _c.call("flp_plan_get_id", self.handle, buffer)
        return buffer.value.decode()

    def contract(self, settings):
        """What decides the bits of log-probabilities of calls with these _check.Settings, in words.
        error: UnsupportedError for torch operations, whose bits nobody promises"""
        if self.handle is None:
            raise errors.UnsupportedError("no contract holds on %s: chunked torch operations take the place of "
                                          "kernels, because %s" % (device_name(self.key.device), self.reason))
        buffer, args = ctypes.create_string_buffer(_c.CONTRACT_BYTES), _c.new_args()
        args.scale, args.temperature, args.lora_scale = settings.scale, settings.temperature, settings.lora_scale
        _c.call("flp_plan_contract", self.handle, args, buffer)
        return buffer.value.decode()

    def __del__(self):
        # Runs on any thread, maybe while a graph is captured: no CUDA call here, and no lock. At exit the process takes
        # its memory along.
        if self.handle is not None and not sys.is_finalizing():
            _unused.append((self.key.device, self.handle))


_unused: Any = collections.deque()  # (device, handle) of plans that nothing refers to; destroy_unused destroys them


def destroy_unused():
    """Destroys the plans that nothing refers to any more, behind the work of their devices, for which it waits.

    What cannot be waited for, such as a device while a stream is captured, is left for the next time. thread: safe
    """
    done, left = {}, []
    try:
        while _unused:
            left.append(_unused.popleft())
            device, handle = left[-1]
            if device not in done:
                done[device] = _wait_for(device)
            if done[device]:
                left.pop()
                _c.get().flp_plan_destroy(handle)
    except IndexError:  # another thread took the last one
        pass
    finally:
        _unused.extend(left)


def _wait_for(device):
    """Waits for all work of a device -> whether it is done. Never while a stream is captured: CUDA refuses that, and
    the capture is lost."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if device < 0 or cuda is None or not cuda.is_initialized():  # nothing was started; or this is a forked child
        return True
    try:
        with cuda.device(device):
            capturing = cuda.is_current_stream_capturing()
        if not capturing and not cuda.is_current_stream_capturing():
            cuda.synchronize(device)
            return True
    except Exception as error:
        _c.log(_c.LOG_WARNING, "plans of cuda:%d are not destroyed yet, for waiting failed: %s" % (device, error))
    return False


def _remembered(sizes, wanted, find):
    """What find gives, from now on in sizes."""
    found = sizes.get(wanted)
    if found is None:
        if len(sizes) >= SIZES_MAX:
            sizes.clear()
        found = sizes[wanted] = find()
    return found


def _saved(function, of, *numbers):
    found = ctypes.c_size_t()
    _c.call(function, of, *numbers, ctypes.byref(found))
    return found.value


class _Slot:
    """Where the plan of one key is or will be; sizes: what could be kept at most, before there is a plan."""

    __slots__ = ("lock", "plan", "sizes")

    def __init__(self):
        self.lock = threading.Lock()
        self.plan = None
        self.sizes = {}


_slots = {}


def _slot_of(key):
    slot = _slots.get(key)
    return _slots.setdefault(key, _Slot()) if slot is None else slot


def saved_bytes(key, n, budget):
    """Plan.saved_bytes of this key; where nothing could be kept, no plan is made, nor its kernels."""
    slot = _slot_of(key)
    if slot.plan is None:
        most = _remembered(slot.sizes, (n, budget), lambda: _saved(
            "flp_spec_saved", _flp_spec(key), n, budget or in_force(key.device).budgets[_c.PASS_BACKWARD]))
        if not most:
            return 0
    return get(key).saved_bytes(n, budget)


def get(key):
    """The plan of a key; makes it at the first call. thread: safe; may compile for seconds"""
    slot = _slot_of(key)
    if slot.plan is None:
        with slot.lock:
            if slot.plan is None:
                slot.plan = _create(key)
    return slot.plan


def of_torch(key, reason):
    """The plan of what runs as torch operations whatever kernels there are. key: one that no other plan has
    error: UnavailableError with the reason where the environment forbids that"""
    slot = _slot_of(key)
    if slot.plan is None:
        plan = Plan(key, None, _c.RUNG_EAGER, reason)
        if key.device >= 0 and not _may_fall_back(plan):
            errors.raise_status(errors.UNAVAILABLE, reason)
        slot.plan = plan
    return slot.plan


def clear():
    """Forgets every plan, so that the next call reads the environment again, and destroys those that nothing uses."""
    _slots.clear()
    destroy_unused()


def existing(device=None):
    """The plans that have been made, of one device or of all."""
    made = [slot.plan for slot in list(_slots.values()) if slot.plan is not None]
    return [plan for plan in made if device is None or plan.key.device == device]


def device_name(device):
    return "cpu" if device < 0 else "cuda:%d" % device


def rung_name(rung):
    return _c.get().flp_rung_name(rung).decode()


def mode_name(mode):
    return _c.get().flp_mode_name(mode).decode()


# What FLP_FORCE, FLP_STRICT and FLP_BUDGET ask for: the pinned rung or _c.RUNG_AUTO, whether a fall and bad values are
# errors, bytes of workspace by pass.
InForce = collections.namedtuple("InForce", "rung strict budgets")


def in_force(device=_c.DEVICE_HOST):
    """InForce of what is made now for a CUDA device, or _c.DEVICE_HOST, as libflp reads the environment.
    error: ArgumentError naming a setting"""
    rung, strict, budget = ctypes.c_int(), ctypes.c_int32(), ctypes.c_uint64()
    options, budgets = _c.new_options(), {}
    options.device = device
    for which in (_c.PASS_FORWARD, _c.PASS_COMBINE, _c.PASS_BACKWARD, _c.PASS_STEP):
        _c.call("flp_options_in_force", options, which, ctypes.byref(rung), ctypes.byref(strict), ctypes.byref(budget))
        budgets[which] = budget.value
    return InForce(rung.value, bool(strict.value), budgets)


def _flp_spec(key):
    """The flp_spec of a Spec. It points at the loss, so the Spec must outlive it."""
    spec = _c.Spec(ctypes.sizeof(_c.Spec), **{name: getattr(key, name) for name, _, _ in _c.SPEC_FIELDS})
    if key.loss:
        spec.loss, spec.loss_bytes = ctypes.cast(key.loss, ctypes.c_void_p), len(key.loss)
    return spec


def _create(key):
    destroy_unused()
    library = _c.get()
    options = _c.new_options()
    options.device, options.chunk_rows = key.device, key.chunk_rows
    handle = ctypes.c_void_p()
    status = library.flp_plan_create(_flp_spec(key), options, ctypes.byref(handle))
    if status == errors.OK:
        rung = library.flp_plan_get_rung(handle)
        if key.device < 0 or rung != _c.RUNG_EAGER:
            return Plan(key, handle, rung)
        # A host plan must never see device pointers.
        library.flp_plan_destroy(handle)
        return Plan(key, None, _c.RUNG_EAGER, "FLP_FORCE=eager")
    detail = library.flp_error_detail().decode(errors="replace")
    if status == errors.UNAVAILABLE and key.device >= 0:
        fallen = Plan(key, None, _c.RUNG_EAGER, detail)
        if _may_fall_back(fallen):
            _log_fallback(fallen)
            return fallen
    errors.raise_status(status, detail)


def _may_fall_back(plan):
    """Whether device tensors may run the torch form: never from another pinned rung, nor in strict mode unpinned.

    A product with a factor may always: a backward pass whose kernels are there must not end for want of it.
    """
    asked = plan.in_force
    return (plan.key.op == _c.OP_SCALE or asked.rung == _c.RUNG_EAGER or
            (asked.rung == _c.RUNG_AUTO and not asked.strict))


_said = set()


def _log_fallback(plan):
    """Warns once a reason."""
    if plan.reason not in _said:
        _said.add(plan.reason)
        scales = plan.key.op == _c.OP_SCALE
        level = _c.LOG_INFO if scales or plan.in_force.rung == _c.RUNG_EAGER else _c.LOG_WARNING
        what = "torch multiplies gradients by their upstream gradient" if scales else \
            "device tensors run as chunked torch operations"
        _c.log(level, "%s (eager rung): %s" % (what, plan.reason))


def _after_fork_in_child():
    """Forgets the parent's plans and replaces locks that another thread may have held."""
    global _slots
    _slots = {}
    _c._library_lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
