"""The table of adapters in runtime/python/README.md says what the adapters, their tests and the record on a GPU say."""
import json

import pytest
from documents import TREE

from flp import adapters

DOCUMENT = TREE / "runtime" / "python" / "README.md"
RECORD = TREE / "tests" / "gpu" / "evidence" / "hosts.json"
HEAD, PLACES = "| trainer | tested with |", "| trainer | place |"
SOURCES = {"hidden states", "scores"}


def rows(head=HEAD):
    """[cells] of a table, each row's trainer filled in."""
    lines = DOCUMENT.read_text().splitlines()
    first = next(place for place, line in enumerate(lines) if line.startswith(head)) + 2
    found = []
    for line in lines[first:]:
        if not line.startswith("|"):
            return found
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0]:
            name = cells[0].strip("`")
        found.append([name, *cells[1:]])


def test_every_adapter_has_its_rows_in_order():
    names = [name for name, version, *_ in rows() if version]
    assert names == list(adapters.HOSTS) and {name for name, *_ in rows()} == set(names)
    assert all(what and given in SOURCES for _, _, what, given, _, _ in rows())


@pytest.mark.parametrize("name,versions", [row[:2] for row in rows() if row[1]])
def test_versions_are_those_of_the_adapter(name, versions):
    """What stands there is part of what the refusal of a changed seam tells to install."""
    host = adapters._adapter(name)
    words = host.origin.replace(",", " ").replace("==", " ").split()
    for version in versions.split(", "):
        assert any(word.startswith(version) for word in words), host.origin
    assert name == host.name


@pytest.mark.parametrize("name,compared", [(row[0], row[4]) for row in rows() if row[1]])
def test_what_is_compared_has_a_test(name, compared):
    files = (TREE / "tests" / "hosts").glob("test_*.py")
    assert compared == ("yes" if any('"%s"' % name in file.read_text() for file in files) else "–")


def test_the_record_of_a_gpu():
    """A trainer has the GPU's name where its tests passed there, and none failed."""
    written = json.loads(RECORD.read_text()) if RECORD.exists() else {"gpu": "none", "rows": []}
    passed = {row["trainer"] for row in written["rows"] if row["passed"] and not row["failed"]}
    gpu = written["gpu"].replace("NVIDIA ", "")
    said = [(name, cuda) for name, version, *_, cuda in rows() if version]
    for name, cuda in said + [(name.rpartition(" ")[0], cuda) for name, *_, cuda in rows(PLACES)]:
        assert cuda == (gpu if name in passed else "–"), name
