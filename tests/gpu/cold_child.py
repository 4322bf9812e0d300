#!/usr/bin/env python3
"""One fresh process of cold_start.py: takes a job as JSON, waits for the start, prints what it measured as JSON.

    cold_child.py '{"kind": "flp", "vocab": V, "hidden": D, "n": N, "context": true, "ready": FD}'
    cold_child.py '{"kind": "peer", "peer": "cce", "grads": ["hidden"], "vocab": V, "hidden": D, "n": N, "ready": FD}'

Writes one byte to the descriptor FD when all is prepared that is not measured, then starts at the end of its standard
input. Operands are zeros for flp, whose logprobs are then -log(V), and random for peers. Nothing that a trainer would
have loaded is imported for flp: neither torch nor numpy.
"""
import ctypes
import json
import math
import os
import sys
import time
import types
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p
from pathlib import Path

BINDING = Path(__file__).resolve().parents[2] / "runtime" / "python"
NAN_BYTE = 0xFF  # four of them are an fp32 NaN: what no kernel wrote is seen
NO_ERROR = "rung tuned is not taken"  # all other messages of the library say that something went another way


def milliseconds():
    return time.perf_counter_ns() / 1e6


def wait_for_start(job):
    os.write(job["ready"], b".")
    sys.stdin.buffer.read()


class Cuda:
    """Device 0 and its primary context, through the driver API."""

    def __init__(self):
        self.library = ctypes.CDLL(os.environ.get("FLP_CUDA_LIBRARY") or "libcuda.so.1")
        device, context = c_int(), c_void_p()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", byref(context), device)
        self.call("cuCtxPushCurrent_v2", context)
        self.device = device

    def call(self, name, *arguments):
        result = getattr(self.library, name)(*arguments)
        if result != 0:
            raise RuntimeError("%s failed with %d" % (name, result))

    def take(self, size):
        """Device memory, not initialised."""
        address = c_uint64()
        self.call("cuMemAlloc_v2", byref(address), c_size_t(max(size, 256)))
        return address.value

    def filled(self, size, byte):
        address = self.take(size)
        self.call("cuMemsetD8Async", c_uint64(address), byte, c_size_t(size), None)
        return address

    def synchronize(self):
        self.call("cuStreamSynchronize", None)

    def floats(self, address, count):
        """Waits for the default stream."""
        values = (ctypes.c_float * count)()
        self.call("cuMemcpyDtoHAsync_v2", values, c_uint64(address), c_size_t(4 * count), None)
        self.synchronize()
        return values

    def describe(self):
        name, version = ctypes.create_string_buffer(128), c_int()
        self.call("cuDeviceGetName", name, 128, self.device)
        self.call("cuDriverGetVersion", byref(version))
        return {"gpu": name.value.decode(errors="replace"), "cuda_version": version.value}


# ---- flp ----

def open_binding():
    """flp._library._c without the package's start, which imports torch -> (the module, messages of the library)."""
    package = types.ModuleType("flp")
    package.__path__ = [str(BINDING / "flp")]
    sys.modules["flp"] = package
    from flp._library import _c
    messages = []
    _c.set_log(lambda level, text: messages.append(text))
    return _c, _c.get(), messages


def spec_of(c, job):
    spec = c.new_spec()
    spec.vocab, spec.hidden = job["vocab"], job["hidden"]
    return spec


def operands_of(cuda, job):
    """Addresses of hidden states, weight and targets, all zero: every logprob is then -log(V)."""
    sizes = {"hidden": job["n"] * job["hidden"] * 2, "weight": job["vocab"] * job["hidden"] * 2, "target": job["n"] * 8}
    operands = {name: cuda.filled(size, 0) for name, size in sizes.items()}
    cuda.synchronize()
    return operands


def make_plan(c, library, spec):
    plan = c_void_p()
    c.check(library, library.flp_plan_create(byref(spec), None, byref(plan)))
    return plan


def first_logprobs(c, library, cuda, plan, job, operands):
    """As a trainer without an allocator would: workspace and output are made here too, the output poisoned."""
    layout = c.new_layout()
    c.check(library, library.flp_plan_layout(plan, c.PASS_FORWARD, job["n"], 0, byref(layout)))
    args = c.new_args()
    args.n, args.workspace_bytes = job["n"], layout.bytes
    for name, address in operands.items():
        setattr(args, name, address)
    args.logprob, args.workspace = cuda.filled(4 * job["n"], NAN_BYTE), cuda.take(layout.bytes)
    c.check(library, library.flp_execute(plan, byref(args)))
    return cuda.floats(args.logprob, job["n"])


def is_generator_there():
    try:
        ctypes.CDLL("libflpgen.so")
    except OSError:
        return False
    return True


def error_of(values, vocab):
    right = -math.log(vocab)
    wrong = [value for value in values if not abs(value - right) < 1e-3]
    if not wrong:
        return []
    return ["%d of %d logprobs are wrong: %r, %.6f is right" % (len(wrong), len(values), wrong[0], right)]


def measure_flp(job):
    c, library, messages = open_binding()
    spec, result, cuda = spec_of(c, job), {}, None
    if job["context"]:
        before = milliseconds()
        cuda = Cuda()
        result["context_ms"] = milliseconds() - before
        operands = operands_of(cuda, job)
    wait_for_start(job)
    start = milliseconds()
    plan = make_plan(c, library, spec)
    result["plan_ms"] = milliseconds() - start
    if cuda is None:  # operands cannot be before the context is: their time does not count
        cuda = Cuda()
        operands = operands_of(cuda, job)
    start = milliseconds()
    values = first_logprobs(c, library, cuda, plan, job, operands)
    result["ms"] = result["plan_ms"] + milliseconds() - start
    text = ctypes.create_string_buffer(4096)
    c.check(library, library.flp_plan_describe(plan, text, len(text)))
    errors = [text for text in messages if not text.startswith(NO_ERROR)] + error_of(values, job["vocab"])
    if is_generator_there():
        errors.append("libflpgen.so can be loaded: it must not be there")
    library.flp_plan_destroy(plan)
    return {**result, **cuda.describe(), "describe": text.value.decode(), "errors": errors}


# ---- other libraries ----

def measure_peer(job):
    """Its import and torch's own context are not measured; cuBLAS's first call is."""
    sys.path.insert(0, str(BINDING))
    try:
        import torch
    except ModuleNotFoundError as error:
        return {"reason": str(error)}
    from flp.bench import peers
    from flp.bench.cases import Case
    case = Case(n=job["n"], hidden=job["hidden"], vocab=job["vocab"], grads=tuple(job["grads"]))
    peer = next(peer for peer in peers.PEERS if peer.name == job["peer"])()
    device = torch.device(job.get("device", "cuda"))
    why_not = peer.supports(case, device)
    try:
        version = None if why_not else peer.load()
    except Exception as error:  # whatever importing raises is a reason in the record
        why_not = "%s: %s" % (type(error).__name__, error)
    if why_not:
        return {"reason": why_not}
    hidden = torch.randn(case.n, case.hidden, device=device, dtype=torch.bfloat16)
    weight = torch.randn(case.vocab, case.hidden, device=device, dtype=torch.bfloat16).mul_(case.hidden ** -0.5)
    target = torch.randint(case.vocab, (case.n,), device=device)
    hidden.requires_grad_("hidden" in case.grads)
    weight.requires_grad_("weight" in case.grads)
    grad = torch.ones(case.n, device=device)
    target.sum().item()
    wait_for_start(job)
    start = milliseconds()
    with torch.set_grad_enabled(bool(case.grads)):
        logprob = peer.run(hidden, weight, None, target, case).logprob
        value = logprob[0].item()
        result = {"ms": milliseconds() - start, "version": version, "title": peer.title, "errors": []}
        if case.grads:
            logprob.backward(grad.to(logprob.dtype))
            value += sum(leaf.grad[0, 0].item() for leaf in (hidden, weight) if leaf.requires_grad)
            result["forward_ms"], result["ms"] = result["ms"], milliseconds() - start
    if not math.isfinite(value):
        result["errors"].append("the first value is %r" % value)
    return result


def main():
    job = json.loads(sys.argv[1])
    try:
        result = measure_flp(job) if job["kind"] == "flp" else measure_peer(job)
    except Exception as error:  # goes into the record
        result = {"errors": ["%s: %s" % (type(error).__name__, str(error)[:500])]}
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
