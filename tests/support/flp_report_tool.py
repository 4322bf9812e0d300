"""Draws pages of flp.report and looks into them."""
import contextlib
import importlib.util
import io
import re
import xml.etree.ElementTree
from types import SimpleNamespace

import pytest

needs_matplotlib = pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None,
                                      reason="matplotlib is not installed")


def report(*arguments):
    """Runs the command in this process -> (returncode, stdout, stderr)."""
    from flp.report.main import main
    out, err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as end:
            code = end.code
    out.flush()
    return SimpleNamespace(returncode=code, stdout=out.buffer.getvalue().decode(), stderr=err.getvalue())


def draw(tmp_path, *arguments):
    """Draws a page -> (its text, the tree of its elements)."""
    out = tmp_path / "report.html"
    done = report(*arguments, "--out", out)
    assert done.returncode == 0, done.stderr
    text = out.read_text(encoding="utf-8")
    return text, parse(text)


def parse(text):
    """The page is well-formed XML too; elements lose their namespace."""
    tree = xml.etree.ElementTree.fromstring(text.replace("<!DOCTYPE html>", "", 1))
    for element in tree.iter():
        element.tag = element.tag.rpartition("}")[2]
    return tree


def words(element):
    return " ".join("".join(element.itertext()).split())


def figures(tree, name):
    return [figure for figure in tree.iter("figure") if figure.get("class") == name]


def drawings(figure):
    """Those for a desktop and for a phone."""
    return [div.find("svg") for div in figure.iter("div") if div.get("class") in ("wide", "narrow")]


def texts(figure):
    """Of the drawing for a desktop: [(y, text)], from above."""
    def height(text):
        moved = re.match(r"translate\(\S+ ([\d.]+)\)", text.get("transform", ""))
        return float(moved.group(1) if moved else text.get("y"))
    return sorted(((height(text), words(text)) for text in drawings(figure)[0].iter("text")), key=lambda item: item[0])


def tips(figure):
    return [words(title) for title in drawings(figure)[0].iter("title")]


def table(place):
    """Rows of the first table below, by column name."""
    found = next(place.iter("table"))
    names = [words(cell) for cell in found.iter("th")]
    rows = [[words(cell) for cell in row.iter("td")] for row in found.iter("tr")]
    return [dict(zip(names, row)) for row in rows if row]
