"""The table of what is not covered cannot rot: tests/coverage.py finds what no longer fits."""
import importlib.util
import sys
from pathlib import Path

import pytest

TREE = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def coverage():
    spec = importlib.util.spec_from_file_location("coverage_tool", TREE / "tests/coverage.py")
    tool = importlib.util.module_from_spec(spec)
    sys.modules["coverage_tool"] = tool
    spec.loader.exec_module(tool)
    return tool


@pytest.fixture
def half(coverage, tmp_path, monkeypatch):
    """A file whose lines 2, 3 and 5 did not run, and whose condition of line 1 never held."""
    (tmp_path / "half.c").write_text("if (a) {\n  first();\n  second();\n}\nthird();\n")
    monkeypatch.setattr(coverage, "TREE", tmp_path)
    lines = {1: 4, 2: 0, 3: 0, 4: 4, 5: 0}
    return {"half.c": coverage.File("half.c", lines, {(1, (1, 5, 1, 6)): [0, 4]})}


FITS = [("why", "half.c", "if (a) {", 3), ("why", "half.c", "third();", 5)]  # the first stands for 2 and 3 too


def test_a_table_that_fits(coverage, half):
    assert half["half.c"].missed[1] == ["`a` never true"]
    assert coverage.judge_table(half, FITS) == []
    assert coverage.counts(half.values()) == (5, 2, 2, 1)


@pytest.mark.parametrize("left_out, line", [(0, 1), (1, 5)])
def test_a_line_without_a_reason(coverage, half, left_out, line):
    wrong = coverage.judge_table(half, [entry for i, entry in enumerate(FITS) if i != left_out])
    assert wrong and all("neither covered nor in tests/coverage.txt" in sentence for sentence in wrong)
    assert wrong[0].startswith(f"half.c:{line}: ")


def test_an_entry_that_no_longer_fits(coverage, half):
    (wrong,) = coverage.judge_table(half, [*FITS, ("why", "half.c", "gone();", 9)])
    assert wrong == "coverage.txt:9: half.c has no such line: gone();"
    (wrong,) = coverage.judge_table(half, [*FITS, ("why", "half.c", "}", 9)])
    assert wrong == "coverage.txt:9: half.c:4 is covered now: }"
    (wrong,) = coverage.judge_table(half, [*FITS, ("why", "other.c", "x", 9)])
    assert wrong == "coverage.txt:9: other.c has no such line: x"
    assert coverage.judge_table(half, [*FITS, ("Sometimes: a race", "half.c", "}", 9)]) == []


@pytest.mark.long  # as the command: whoever edits a line of the table meets it there
def test_the_table_of_the_tree_names_lines_that_stand(coverage):
    entries = coverage.read_table()
    assert len(entries) > 50 and all(reason for reason, _, _, _ in entries)
    gone = [f"{name}: {text}" for _, name, text, _ in entries
            if text not in {row.strip() for row in (TREE / name).read_text().splitlines()}]
    assert gone == []
