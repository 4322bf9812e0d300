"""Fixtures of the binding's tests: a clean plan cache, process groups, the log, and both engines that a tensor may
meet; and of tests of kernels a folder."""
import sys

import pytest


@pytest.fixture(autouse=True)
def fresh_plans():
    """Plans read the environment when they are made, so none may outlive a test."""
    forget_plans()
    yield
    forget_plans()


def forget_plans():
    """Where flp is imported: tests of the command do without it, and so without torch."""
    if "flp" in sys.modules:
        sys.modules["flp"].clear_plans()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """For what is compiled, and a cache."""
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture(scope="module")
def one_rank():
    """A process group of this process alone."""
    import torch

    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """Four processes of one group."""
    from flp_ranks import Ranks

    started = Ranks(4, tmp_path_factory.mktemp("ranks") / "store")
    yield started
    started.close()


@pytest.fixture
def logged():
    """What flp logs: (level, text)."""
    import flp

    messages = []
    flp.set_log(lambda level, text: messages.append((level, text)))
    yield messages
    flp.set_log(None)


def torch_form(key):
    from flp._library import _c, _plans

    return _plans.Plan(key, None, _c.RUNG_EAGER, "the test asked for it")


@pytest.fixture(params=["libflp", "torch form"])
def engine(request, monkeypatch):
    """libflp, and the torch form of the eager rung that device tensors fall back to."""
    from flp._library import _plans

    if request.param == "torch form":
        monkeypatch.setattr(_plans, "_create", torch_form)
    return request.param
