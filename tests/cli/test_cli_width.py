"""flpgen: no line for people is wider than the terminal, and nothing that a wide terminal shows is lost on a narrow one."""
import fcntl
import os
import re
import struct
import subprocess
import termios

import pytest

from flpgen_stage_tool import CASES, OTHERS, run_case, stage  # noqa: F401
from flpgen_tool import FLPGEN, flpgen, needs_flpgen

pytestmark = needs_flpgen

ALL = {" ".join(words): (words, settings) for words, settings in [case for verb in CASES.values() for case in verb] + OTHERS}
WIDTHS = [80, *[pytest.param(width, marks=pytest.mark.long) for width in (60, 100, 160)]]
NUMBER = re.compile(r"(?<![\w.])[+-]?\d+(?:\.\d+)?(?:e[+-]\d+)?(?![\w.])")


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("case", ALL)
def test_no_line_is_wider(stage, case, width):
    done = run_case(stage, *ALL[case], width)
    wide = [line for line in done.out.splitlines() if len(line) > width]
    assert not wide, done.out
    blank_ends = [line for line in done.out.splitlines() if line != line.rstrip()]
    assert not blank_ends


STEADY = [case for case in ALL if case.split()[0] in ("explain", "loss", "pack")]


@pytest.mark.parametrize("width", WIDTHS[:3])
@pytest.mark.parametrize("case", STEADY)
def test_every_number_stays_whole(stage, case, width):
    """Headers are repeated, words and columns move; the numbers are those of a line of any width."""
    def numbers(width):
        return sorted(NUMBER.findall(run_case(stage, *ALL[case], width).out))

    assert numbers(width) == numbers(None)


def on_terminal(columns, *words, **environment):
    """What the command prints on a terminal of so many columns."""
    ours, its = os.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    env = {name: value for name, value in os.environ.items() if name != "COLUMNS" and not name.startswith("FLP_")}
    child = subprocess.Popen([FLPGEN, *words], stdout=its, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL,
                             env={**env, **environment})
    os.close(its)
    text = b""
    try:
        while part := os.read(ours, 65536):
            text += part
    except OSError:  # the other end is closed
        pass
    os.close(ours)
    assert child.wait(timeout=600) == 0
    return text.decode().replace("\r\n", "\n")


def longest(text):
    return max(map(len, text.splitlines()))


def test_a_terminal_counts_before_columns_and_columns_before_nothing():
    listing = ["loss", "list"]
    assert 90 < longest(on_terminal(120, *listing)) <= 120
    assert on_terminal(70, *listing, COLUMNS="150") == on_terminal(70, *listing) == flpgen(*listing, COLUMNS="70").out
    assert on_terminal(0, *listing, COLUMNS="90") == flpgen(*listing, COLUMNS="90").out, "one that does not know its size"


@pytest.mark.parametrize("columns", ["", "0", "-80", "many", "80x", "99999999999"])
def test_without_a_width_a_row_is_one_line(columns):
    rows = flpgen("loss", "list").out.splitlines()
    assert rows[0].split() == ["loss", "formula", "parameters", "source"] and max(map(len, rows)) > 180
    assert all(not row.startswith(" ") for row in rows)
    assert flpgen("loss", "list", COLUMNS=columns).out.splitlines() == rows


def test_a_tiny_terminal_ends_too():
    for columns in ("1", "7", "20", "33"):
        done = flpgen("loss", "list", COLUMNS=columns)
        assert done.code == 0 and longest(done.out) <= max(20, int(columns))
