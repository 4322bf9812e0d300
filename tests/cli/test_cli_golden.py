"""flpgen: what each verb prints for people at 80 and at 160 columns, beside the files of tests/golden/cli.

FLP_GOLDEN_UPDATE=1 writes the files anew. What changes from run to run or from machine to machine is a # in them."""
import os
import re
from pathlib import Path

import pytest

from flpgen_stage_tool import CASES, run_case, stage  # noqa: F401
from flpgen_tool import needs_flpgen
from tree_version import VERSION

pytestmark = needs_flpgen

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "cli"
HASH = re.compile(r"(?<![0-9a-f])(?:[0-9a-f]{16}|[0-9a-f]{64})(?![0-9a-f])")
SIZE = re.compile(r"\d[\d.]*(?= ?[kM]?B\b)")
DATE = re.compile(r"\d{4}-\d\d-\d\d|\b\d\d:\d\d\b")
FIGURE = re.compile(r"-?\b\d[\d.]*(?:e[+-]\d+)?(?: [kMGT]?(?:B|FLOP)\b)?")
LINES = re.compile(r"^(?:time|peak memory|against fp64|logprob|entropy|loss  |ratio|kl|clip|plan: |bare |stored; ).*|^(?:device|rung|N|pass|kernel)  (?:.+\n)+",
                   flags=re.M)
LOOSE = ("run", "check", "bench", "tune")  # whose figures, in these lines and tables, are never the same twice


def blot(match):
    return re.sub(r"\w", "#", match.group())


def unwrap(text):
    """Paragraphs of `run` whose numbers decide where lines end."""
    return re.sub(r"\n {13}(?=\S)", " ", text)


def steady(verb, text, root):
    """The text without what changes, of the same layout."""
    text = text.replace(root, "/tmp/flp.######")
    text = HASH.sub(blot, text)
    if verb in ("gen", "pack", "cache", "doctor"):
        text = SIZE.sub(blot, text)
    if verb == "cache":
        text = by_entry(DATE.sub(blot, text))
    text = text.replace(f"flp {VERSION}", "flp #")
    text = re.sub(r"\d+ ms a small module", "# ms a small module", text)
    text = re.sub(r"CPU rung( +)ok( +).*", r"CPU rung\1ok\2#", text)
    text = re.sub(r"LLVM [\d.]+", "LLVM #", text)
    if verb == "gen":
        text = re.sub(r" +\d+ ms( +|$)", "  # ms  ", text, flags=re.M).replace("# ms  \n", "# ms\n")
        text = re.sub(r" +time +tile", "  time  tile", text)
    if verb == "doctor":
        text = re.sub(rf"^(flpgen +ok +){re.escape(VERSION)}$", r"\1#", text, flags=re.M)
        text = re.sub(r"^(generic +ok +)\d+", r"\1#", text, flags=re.M)
        text = re.sub(r"^part .*?\n\n", lambda part: re.sub(r"(?<=\S)  +", "  ", part.group()), text, flags=re.M | re.S)
    if verb in LOOSE:
        text = re.sub(r"(?:ping-pong|cooperative),\S+", "CUT", text)
        text = LINES.sub(lambda part: re.sub(r"(?<=\S)  +", "  ", FIGURE.sub("#", part.group())), unwrap(text))
    if verb == "check":  # which case is worst depends on the processor's products
        text = re.sub(r"(#  #  #  )\S+ (#x\S+)$", r"\1CASE \2", text, flags=re.M)
    return text


def by_entry(text):
    """Entries of the cache stand in the order of their hashes: in that of their texts instead."""
    head, *entries = re.split(r"\n(?=\S)", text.rstrip("\n"))
    return "\n".join([head, *sorted(entries[:-1]), entries[-1], ""])


def show(stage, verb, width):
    shown = []
    for words, settings in CASES[verb]:
        done = run_case(stage, words, settings, width)
        errors = "".join(f"! {line}\n" for line in done.err.splitlines())
        shown.append(f"$ flpgen {' '.join(words)}\n{steady(verb, done.out, str(stage.root))}"
                     f"{errors.replace(str(stage.root), '/tmp/flp.######')}[exit {done.code}]\n")
    return "\n".join(shown)


@pytest.mark.parametrize("width", [80, pytest.param(160, marks=pytest.mark.long)])
@pytest.mark.parametrize("verb", CASES)
def test_output(stage, verb, width):
    path = GOLDEN / f"{verb}.{width}.txt"
    shown = show(stage, verb, width)
    if os.environ.get("FLP_GOLDEN_UPDATE") == "1":
        path.parent.mkdir(exist_ok=True)
        path.write_text(shown, encoding="utf-8")
    assert path.exists(), "FLP_GOLDEN_UPDATE=1 makes it"
    assert shown == path.read_text(encoding="utf-8"), f"{path}: FLP_GOLDEN_UPDATE=1 writes it anew"


def test_every_file_is_of_a_verb():
    assert {path.name for path in GOLDEN.iterdir()} == {f"{verb}.{width}.txt" for verb in CASES for width in (80, 160)}
