"""Fixtures of the parity tests: the device, one process group of one rank, and a log of what flp left to the host."""
import os
import sys
from pathlib import Path

import pytest

TREE = Path(__file__).resolve().parents[2]
for path in (TREE / "runtime" / "python", TREE / "tests" / "support"):
    sys.path.insert(0, str(path))

import flp  # noqa: E402
from flp.bench import record  # noqa: E402

outcomes = {}


def pytest_addoption(parser):
    parser.addoption("--device", default="cpu", help="where the tensors lie: cpu or cuda")
    parser.addoption("--record", metavar="FILE", help="write here how many tests compared each trainer, and where")


def pytest_configure(config):
    os.environ["FLP_TEST_DEVICE"] = config.getoption("--device")
    config.addinivalue_line("markers", "two_ranks: runs in two processes, on two GPUs where --device is cuda and has them")


def pytest_runtest_logreport(report):
    if report.when == "call" or report.failed:
        outcomes[report.nodeid] = report.outcome


def pytest_sessionfinish(session):
    path = session.config.getoption("--record")
    if not path:
        return
    import parity
    import torch

    device, chosen = session.config.getoption("--device"), session.config.getoption("markexpr")
    head = record.head("python -m pytest tests/hosts %s--device %s" % ("-m %s " % chosen if chosen else "", device),
                       torch.device(device))
    rows = [{"trainer": host, **{outcome: sum(outcomes.get(test) == outcome for test in tests)
                                 for outcome in ("passed", "failed")}}
            for host, tests in sorted(parity.tests_of.items())]
    Path(path).write_text(record.text_of({**head, "torch": torch.__version__, "gpus": torch.cuda.device_count(),
                                            "rows": rows}), encoding="utf-8")


@pytest.fixture
def device(request):
    return request.config.getoption("--device")


@pytest.fixture(autouse=True)
def left_to_host():
    """What flp logged; a test that is not about fallbacks must find nothing there."""
    from parity import is_left_to_host

    messages = []
    flp.set_log(lambda level, text: messages.append(text) if is_left_to_host(text) else None)
    yield messages
    flp.set_log(None)
    assert not messages, messages


@pytest.fixture
def eager():
    """Parts of a host are compiled."""
    import torch

    torch.compiler.set_stance("force_eager")
    yield
    torch.compiler.set_stance("default")


@pytest.fixture(scope="session")
def one_rank(request, tmp_path_factory):
    """A process group of this process alone."""
    import torch.distributed as dist

    from parity import backend_of

    store = tmp_path_factory.mktemp("group") / "store"
    dist.init_process_group(backend_of(request.config.getoption("--device")), rank=0, world_size=1,
                            init_method="file://%s" % store)
    yield dist.group.WORLD
    dist.destroy_process_group()
