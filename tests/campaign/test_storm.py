"""Processes that are killed on one cache: forty here, seven hundred in the long form. storm.py has what must hold."""
import pytest

from faults import FLPGEN
from storm import storm

pytestmark = pytest.mark.skipif(not FLPGEN.exists(), reason="the flpgen command was not built")


def blow(folder, processes):
    it, line = storm(folder / "storm", processes, 1 << 30, 1)
    print(line)
    assert it.count == processes and it.outcomes["killed"] >= processes // 8 and it.wrong == []


def test_forty_processes(tmp_path):
    blow(tmp_path, 40)


@pytest.mark.long
def test_seven_hundred_processes(tmp_path):
    blow(tmp_path, 700)
