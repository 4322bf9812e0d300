"""flp.phase: where workspace comes from, what is released, nesting, failures, threads; arenas on a stand-in."""
import contextlib
import logging
import os
import subprocess
import sys
import threading
import types

import pytest
import torch

import documents
import flp
from flp._library import _c
from flp._passes import _arena, _memory, _phase
from flp._tensors import _check
from flp_reference import DEVICE, problem

FAKE = os.environ.get("FLP_TEST_FAKE_CUDA", "")


def arena_of_device():
    return _arena.of(_check.ordinal_of(DEVICE))


def stats():
    """The statistics of the arena of the device that calls run on."""
    return flp.memory.arena_stats(DEVICE)


def train(n=64):
    hidden, weight, target, _ = problem(n=n)
    hidden.requires_grad_(), weight.requires_grad_()
    logprob, entropy = flp.linear_logprob(hidden, weight, target, entropy=True)
    (logprob.sum() + 0.1 * entropy.sum()).backward()
    return logprob.detach(), entropy.detach(), hidden.grad, weight.grad


@pytest.fixture
def borrowed(monkeypatch):
    """(address, size) of everything that calls borrow from arenas."""
    seen, lend = [], _arena.Arena.lend

    @contextlib.contextmanager
    def watched(arena, size, stream):
        with lend(arena, size, stream) as address:
            seen.append((address, size))
            yield address

    monkeypatch.setattr(_arena.Arena, "lend", watched)
    return seen


@pytest.fixture
def gpu(monkeypatch):
    """A machine with one: calls of empty_cache, and captures, whose current stream is captured while there are any."""
    seen = types.SimpleNamespace(emptied=[], captures=[])
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: bool(seen.captures))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: seen.emptied.append(_phase._stack[:]))
    return seen


# ---- where workspace comes from


def test_bits_are_the_same_from_every_source(borrowed):
    plain = train()
    assert borrowed == []
    with flp.phase("training", "torch"):
        cached = train()
    assert borrowed == []
    with flp.phase("training"):
        arena = train()
    assert len(borrowed) == 2 and all(size > 0 for _, size in borrowed)
    for results in (cached, arena):
        assert all(torch.equal(got, want) for got, want in zip(results, plain))


def test_outputs_are_never_of_the_arena(borrowed):
    with flp.phase("training"):
        results = train()
        assert stats()["reserved_bytes"] > 0
    for tensor in results:
        end = tensor.data_ptr() + tensor.numel() * tensor.element_size()
        assert all(end <= address or address + size <= tensor.data_ptr() for address, size in borrowed)
    before = [tensor.clone() for tensor in results]
    train(), train(200)
    assert all(torch.equal(a, b) for a, b in zip(results, before))


def test_one_block_serves_every_call_and_goes_at_the_end():
    before = stats()
    with flp.phase("inference"):
        for n in (200, 13, 64, 200):
            with torch.no_grad():
                flp.linear_logprob(*problem(n=n)[:3])
        during = stats()
        assert during["driver_allocations"] == before["driver_allocations"] + 1
        assert during["reserved_bytes"] > during["allocated_bytes"] == 0
    after = stats()
    assert after["reserved_bytes"] == 0 and after["phases"] == before["phases"] + 1


def test_a_phase_without_calls_touches_no_arena():
    before = stats()
    with flp.phase("inference"):
        pass
    assert stats() == before


def test_shards_and_combine_borrow_too(borrowed):
    hidden, weight, target, _ = problem(n=40)
    want = flp.linear_logprob(hidden, weight, target)
    with flp.phase("inference"):
        parts = torch.stack([
            flp.linear_logprob_partial(hidden, weight[:200], target, vocab_offset=0, vocab_total=331),
            flp.linear_logprob_partial(hidden, weight[200:], target, vocab_offset=200, vocab_total=331)])
        logprob = flp.combine_partials(parts, target, vocab_total=331)[0]
    assert len(borrowed) >= 2
    assert torch.allclose(logprob, want, atol=1e-5)


def test_no_workspace_for_calls_of_no_rows(borrowed):
    hidden, weight, target, _ = problem(n=0)
    with flp.phase("inference"):
        assert flp.linear_logprob(hidden, weight, target).shape == (0,)
    assert all(size > 0 for _, size in borrowed)


# ---- nesting and ends


def test_the_innermost_phase_decides(borrowed):
    counts = []

    def call():
        train()
        counts.append(len(borrowed))

    with flp.phase("outer", "torch"):
        call()
        with flp.phase("inherits"):
            call()
        with flp.phase("inner", "arena"):
            call()
            with flp.phase("inherits"):
                call()
            assert stats()["reserved_bytes"] == 0
            call()
        call()
    assert counts == [0, 0, 2, 4, 6, 6] and _phase._stack == []


@pytest.mark.parametrize("workspace,empty_cache,times", [
    (None, None, 0), ("arena", None, 0), ("torch", None, 1), ("arena", True, 1), ("torch", False, 0)])
def test_empty_cache_at_the_end_and_only_there(gpu, workspace, empty_cache, times):
    with flp.phase("inference", workspace, empty_cache=empty_cache):
        assert gpu.emptied == []
    assert gpu.emptied == [[]] * times


def test_an_exception_ends_the_phase_and_is_the_callers(borrowed):
    reserved = []
    with pytest.raises(flp.BudgetError):
        with flp.phase("inference"):
            train()
            reserved.append(stats()["reserved_bytes"])
            hidden, weight, target, _ = problem(n=64)
            flp.linear_logprob(hidden, weight, target, budget=1)
    assert reserved[0] > 0 and stats()["reserved_bytes"] == 0 and _phase._stack == []


def test_a_call_that_fails_gives_its_workspace_back(monkeypatch):
    def fails(plan, args, *function):
        assert args.workspace % 256 == 0 and stats()["allocated_bytes"] >= args.workspace_bytes > 0
        raise flp.DriverError("a launch failed")

    from flp._library import _plans
    monkeypatch.setattr(_plans.Plan, "execute", fails)
    with flp.phase("inference"):
        with pytest.raises(flp.DriverError, match="a launch failed"):
            train()
        assert stats()["allocated_bytes"] == 0


def test_a_failing_end_is_raised_or_reported_beside_what_failed_before(monkeypatch, caplog):
    def fails(arena):
        raise flp.DriverError("the driver is gone")

    monkeypatch.setattr(_arena.Arena, "end_phase", fails)
    with pytest.raises(flp.DriverError, match="the driver is gone"):
        with flp.phase("inference"):
            train()
    assert _phase._stack == []
    with caplog.at_level(logging.ERROR, "flp"), pytest.raises(KeyError, match="first"):
        with flp.phase("inference"):
            train()
            raise KeyError("first")
    assert "the end of phase 'inference' failed too: the driver is gone" in caplog.text and _phase._stack == []
    monkeypatch.undo()
    arena_of_device().end_phase()


def test_a_decorator():
    @flp.phase("inference")
    def call():
        train()
        return _phase._stack[0].name

    assert [call(), call()] == ["inference", "inference"] and stats()["reserved_bytes"] == 0


# ---- threads


def test_phases_hold_for_all_threads_and_end_in_any_order(borrowed):
    inside, done = threading.Event(), threading.Event()

    def other():
        with flp.phase("other", "torch"):
            inside.set()
            done.wait(10)

    thread = threading.Thread(target=other)
    with flp.phase("inference"):
        thread.start()
        inside.wait(10)
        train()
        assert borrowed == []
    assert [entered.name for entered in _phase._stack] == ["other"]
    done.set()
    thread.join()
    assert _phase._stack == []


def test_calls_of_many_threads_borrow_apart():
    want = train(100)
    failures = []

    def work():
        for _ in range(5):
            if not all(torch.equal(a, b) for a, b in zip(train(100), want)):
                failures.append("other bits")

    threads = [threading.Thread(target=work) for _ in range(4)]
    with flp.phase("training"):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failures == [] and stats()["reserved_bytes"] == 0


def test_an_end_while_a_call_borrows_is_refused_and_made_good_later():
    arena = arena_of_device()
    with pytest.raises(flp.ArgumentError, match="1024 bytes are still taken"):
        with flp.phase("inference"):
            train()
            lent = arena.lend(1000, None)
            lent.__enter__()
    lent.__exit__(None, None, None)
    assert stats()["reserved_bytes"] > 0
    with flp.phase("inference"):
        train()
    assert stats()["reserved_bytes"] == 0


def test_a_forked_child_leaves_the_parents_arena_alone():
    with flp.phase("inference"):
        train()
        before = stats()
        child = os.fork()
        if child == 0:
            os._exit(0 if _arena.existing() == [] else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert stats() == before


# ---- capture


def test_captured_calls_take_from_the_graphs_pool(gpu, monkeypatch):
    class Device:
        def __init__(self, ordinal):
            assert ordinal == 3

        def __enter__(self):
            captured.append("looked")

        def __exit__(self, *_):
            pass

    captured = []
    monkeypatch.setattr(torch.cuda, "device", Device)
    monkeypatch.setattr(_arena, "of", lambda ordinal: "arena of %d" % ordinal)
    entered = _phase.Phase("inference", "arena", False)
    monkeypatch.setattr(_phase, "_stack", [entered])
    assert _phase.arena_for(3) == "arena of 3"
    gpu.captures.append(1)
    assert _phase.arena_for(3) is None and captured == ["looked"] * 2
    assert _phase.arena_for(_c.DEVICE_HOST) == "arena of -1"
    assert entered.arenas == {"arena of 3", "arena of -1"} and gpu.emptied == []


def test_phases_neither_begin_nor_end_in_a_capture(gpu):
    says = "phase 'inference' %s while the current stream is captured in a CUDA graph"
    with pytest.raises(flp.UnsupportedError, match=says % "ends"):
        with flp.phase("inference", "torch"):
            gpu.captures.append(1)
    assert _phase._stack == []
    with pytest.raises(flp.UnsupportedError, match=says % "begins"):
        with flp.phase("inference"):
            pytest.fail("it began")
    assert _phase._stack == gpu.emptied == []


# ---- streams


class Stream:
    def __init__(self, number, waited):
        self.cuda_stream, self.waited = number, waited

    def wait_stream(self, other):
        self.waited.append((self.cuda_stream, other))


@pytest.mark.parametrize("streams,current,last,waits", [
    ({7}, 5, 7, []), ({None}, 5, None, []), (set(), 5, None, []), ({7, 5}, 5, 5, [(5, ("external", 7, 2))]),
    ({7, None}, 5, 5, [(5, ("external", 7, 2)), (5, ("default", 2))]), ({7, None}, 0, None, [(0, ("external", 7, 2))])])
def test_blocks_go_back_behind_the_work_of_all_streams(monkeypatch, streams, current, last, waits):
    waited = []
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream(current, waited))
    monkeypatch.setattr(torch.cuda, "default_stream", lambda device: ("default", device))
    monkeypatch.setattr(torch.cuda, "ExternalStream", lambda stream, device: ("external", stream, device))
    assert _arena._last_of(2, streams) == last
    assert sorted(waited, key=str) == sorted(waits, key=str)


ON_A_DEVICE = """
import ctypes, os
from flp import errors
from flp._passes import _arena
fake = ctypes.CDLL(os.environ["FLP_CUDA_LIBRARY"])
calls = lambda name: fake.fake_cuda_calls(name.encode())
arena = _arena.of(0)
assert _arena.of(0) is arena
addresses = []
for stream, size in ((0x1000, 1000), (0x1000, 5 << 20), (0x1000, 300)):
    with arena.lend(size, stream) as address:
        assert address % 256 == 0 and arena.stats()["allocated_bytes"] >= size
assert calls("cuMemAllocAsync") == 2 and calls("cuMemFreeAsync") == 1, "a greater block takes the place of the first"
stats = arena.stats()
assert stats["reserved_bytes"] == 6 << 20 and stats["allocated_bytes"] == 0 and stats["driver_allocations"] == 2
arena.end_phase()
assert arena.stats()["reserved_bytes"] == 0 and arena.stats()["phases"] == 1
assert calls("cuMemFreeAsync") == 2 and calls("cuStreamSynchronize") == calls("cuCtxSynchronize") == 0
fake.fake_cuda_script(b"fail:cuMemAllocAsync=2")
try:
    arena.lend(1, None).__enter__()
except errors.DriverError as error:
    assert "cuMemAllocAsync (arena) failed: CUDA_ERROR_OUT_OF_MEMORY" in str(error)
else:
    raise SystemExit("no error")
print("right")
"""


@pytest.mark.skipif(not os.path.exists(FAKE), reason="the stand-in for libcuda was not built")
def test_the_arena_of_a_device():
    done = subprocess.run([sys.executable, "-c", ON_A_DEVICE], capture_output=True, text=True,
                          env={**os.environ, "FLP_CUDA_LIBRARY": FAKE})
    assert done.stdout == "right\n", done.stderr


# ---- arguments


def test_enqueue_asks_for_its_own_device(monkeypatch):
    asked = []
    monkeypatch.setattr(_phase, "arena_for", lambda ordinal: asked.append(ordinal))
    with _memory.workspace(64, torch.device("cpu"), 5, None) as start:
        assert start % 256 == 0 and asked == [5]


def test_the_snippet_of_the_manual(tmp_path, monkeypatch):
    snippet = documents.python_block("flp.memory.Profiler")
    hidden, weight, tokens, _ = problem()
    names = {"flp": flp, "hidden": hidden.requires_grad_(), "weight": weight, "tokens": tokens}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(flp.memory, "plot", lambda report, picture: made.append((report, picture)))
    made = []
    exec(snippet, names)
    assert made == [("memory.json", "memory.png")] and (tmp_path / "memory.json").exists()
    (device,) = names["profiler"].report["devices"].values()
    peaks = device["peaks"]
    assert peaks["inference"]["arena"] > 0 == peaks["training"]["arena"] and hidden.grad.abs().sum() > 0
