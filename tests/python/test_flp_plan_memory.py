"""When plans go: never from the garbage collector, and never while a stream is captured."""
import contextlib
import gc
import logging
import threading

import pytest
import torch

import flp
from flp._library import _c, _plans


class Library:
    """Stands in for libflp where plans are destroyed: notes what happened, in order."""

    def __init__(self, events):
        self.events = events

    def flp_plan_destroy(self, handle):
        self.events.append(("destroy", handle))


class Cuda:
    """Stands in for torch.cuda."""

    def __init__(self, events):
        self.events, self.capturing, self.fails = events, False, False

    def is_initialized(self):
        return True

    def is_current_stream_capturing(self):
        return self.capturing

    @contextlib.contextmanager
    def device(self, _ordinal):
        yield

    def synchronize(self, device):
        self.events.append(("synchronize", device))
        if self.fails:
            raise RuntimeError("an illegal memory access was encountered")


@pytest.fixture
def events(monkeypatch):
    seen = []
    monkeypatch.setattr(_plans, "_unused", type(_plans._unused)())
    monkeypatch.setattr(_c, "_library", Library(seen))
    return seen


@pytest.fixture
def cuda(events, monkeypatch):
    stand_in = Cuda(events)
    monkeypatch.setattr(torch, "cuda", stand_in)
    return stand_in


def plan(handle, device=0):
    key = _plans.Spec(device, vocab=1000, hidden=64)
    return _plans.Plan(key, handle, _c.RUNG_JIT)


def test_the_garbage_collector_calls_nothing(events, cuda):
    made = plan(11)
    made.itself = made  # only the collector finds it
    del made
    collector = threading.Thread(target=gc.collect)
    collector.start()
    collector.join()
    assert events == []
    _plans.destroy_unused()
    assert events == [("synchronize", 0), ("destroy", 11)]
    _plans.destroy_unused()
    assert len(events) == 2, "each once"


def test_a_capture_puts_it_off(events, cuda):
    cuda.capturing = True
    plan(11), plan(12, _c.DEVICE_HOST)
    flp.clear_plans()
    assert events == [("destroy", 12)], "host plans have nothing to do with captures"
    cuda.capturing = False
    flp.clear_plans()
    assert events[1:] == [("synchronize", 0), ("destroy", 11)]


def test_a_failure_to_wait_loses_nothing(events, cuda, caplog):
    plan(11), plan(12), plan(21, 1)
    cuda.fails = True
    with caplog.at_level(logging.WARNING, logger="flp"):
        flp.clear_plans()
    assert sorted(events) == [("synchronize", 0), ("synchronize", 1)]
    assert "plans of cuda:0 are not destroyed yet" in caplog.text and "illegal memory access" in caplog.text
    cuda.fails = False
    flp.clear_plans()
    assert sorted(handle for kind, handle in events if kind == "destroy") == [11, 12, 21]


def test_an_interruption_loses_nothing(events, cuda, monkeypatch):
    plan(11), plan(12)

    def interrupted(device):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(cuda, "synchronize", interrupted)
        flp.clear_plans()
    flp.clear_plans()
    assert sorted(handle for kind, handle in events if kind == "destroy") == [11, 12]


def test_making_a_plan_destroys_those_of_no_use():
    hidden, weight, target = torch.ones(3, 8), torch.eye(8), torch.tensor([0, 1, 2])
    flp.linear_logprob(hidden, weight, target)
    _plans._slots.clear()  # as if the last graph that used it had gone
    assert len(_plans._unused) == 1
    flp.linear_logprob(hidden, weight, target)
    assert not _plans._unused
