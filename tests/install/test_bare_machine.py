"""Both commands of the README on a bare Debian 12: with the packages that setup.sh names, and no other, in a clone at any
place."""
import os

import pytest

from bare_machine import BareMachine, reason_for_none

TREE = os.environ["FLP_TEST_TREE"]
PLACES = ["/flp", "/home/a folder with spaces/" + "and-a-long-name/" * 6 + "flpgen"]


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    reason = reason_for_none()
    if reason:
        pytest.skip(reason)
    return BareMachine(tmp_path_factory.mktemp("bare") / "bookworm")


@pytest.mark.long
@pytest.mark.parametrize("place", PLACES, ids=["short", "long"])
def test_both_commands_pass(machine, tmp_path, place):
    """The packages of `run` are all that is there when it runs for the first time."""
    machine.clone(TREE, place)
    for command in ("run", "test"):
        log = tmp_path / command
        code = machine.run(place, "./setup.sh", command, log=log)
        assert code == 0, log.read_text(errors="replace")[-8000:]
