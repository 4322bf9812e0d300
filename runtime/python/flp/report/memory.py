"""Workspace against the number of rows, of every mode and of the naive form, as `flpgen explain` has it for an assumed
H200."""
import json
import math
import os
import shlex
import subprocess

from .._library import _c
from . import drawing
from .text import aside, figure, size, table

ROWS = [2**power for power in range(8, 18)]
CARD_BYTES = 141e9  # of an H200
TITLE = "Memory beyond inputs and outputs against the number of rows"
ABOUT = ("V %d · D %d · %s, by the planner on an assumed H200 within the default budgets (dotted lines). Modes of flp "
         "stay level where they split the work into chunks; the naive form holds fp32 scores. Hollow marks are beyond "
         "the budget, the least that would do; the dashed line is the memory of the card, 141 GB.")


class Failed(Exception):
    """What flpgen says, and its exit status; 3 where it is not here."""

    def __init__(self, text, status=3):
        super().__init__(text)
        self.status = status


def head_of(records):
    """Options that name the first head of the records, None without one."""
    heads = [(spec.vocab, spec.hidden, spec.dtype) for spec in records.specs]
    heads += [(row.V, row.D, row.dtype) for row in records.rows]
    head = next((head for head in heads if None not in head), None)
    return head and "--vocab %d --hidden %d --dtype %s" % (*head[:2], shlex.quote(head[2]))


def explained(options):
    """The document of `flpgen explain`. error: Failed with the command's own sentence, or without the command"""
    command, words = _c.command(), shlex.split(options)
    if not command:
        raise Failed("the chart of memory needs the command flpgen, which is neither beside libflp nor on PATH")
    words += [] if any(word.split("=")[0] == "--grad" for word in words) else ["--grad", "hidden,weight"]
    words = [command, "explain", *words, "--rows", ",".join(map(str, ROWS)), "--json"]
    done = subprocess.run(words, capture_output=True, text=True, check=False,
                          env={**os.environ, "FLP_CUDA_LIBRARY": os.devnull})
    document = json.loads(done.stdout or "{}")
    if done.returncode:
        raise Failed(document.get("error", {}).get("message") or done.stderr.strip(), done.returncode)
    return document


def chart(records, options):
    """options: of --memory, or None: the first head of the records. error: with options as explained, else a note"""
    chosen = options or head_of(records)
    if not chosen:
        return ""
    try:
        document = explained(chosen)
    except Failed as error:
        if options:
            raise
        return aside("Memory against rows is not drawn: %s." % error)
    names = [way["name"] for way in document["rows"][0]["ways"]]
    cells = [[row["rows"], *(size(way["workspace_bytes"]) + " (beyond)" * (not way["fits"]) for way in row["ways"])]
             for row in document["rows"]]
    about = ABOUT % tuple(document["spec"][name] for name in ("vocab", "hidden", "dtype"))
    return figure("memory", TITLE, about, drawing.both(lambda width: draw(document, names, width), TITLE, "memory"),
                  table("workspace", ("#N", *("#" + name for name in names)), cells))


def draw(document, names, width):
    columns = 1 if width < 500 else 3
    top = 12 + 20 * math.ceil(len(names) / columns)
    canvas = drawing.Canvas(width, 370 + top)
    axes = canvas.axes(88, top, 16, 50, xscale="log", yscale="log", xlim=(ROWS[0] / 1.2, ROWS[-1] * 1.2),
                       xlabel="rows N (tokens, 1k = 1024)", ylabel="workspace (bytes)")
    for number, name in enumerate(names):
        ways = [row["ways"][number] for row in document["rows"]]
        # Scoring, which every head has, gets flp's own mark, and the naive form, which stands before it, the next.
        _draw_way(canvas, axes, ways, name, drawing.series(1 - number if number < 2 else number))
    for budget in document["budget_bytes"].values():
        axes.axhline(budget, color=drawing.DIM, linewidth=1.3, linestyle=":")
    axes.axhline(CARD_BYTES, color=drawing.INK, linewidth=1.3, dashes=(4, 3))
    drawing.plain_ticks(axes.yaxis, lambda value, _: size(value))
    axes.set_xticks(ROWS[::2 if width < 500 else 1])
    axes.set_xticklabels(["%dk" % (n // 1024) if n >= 1024 else "%d" % n for n in ROWS][::2 if width < 500 else 1])
    axes.minorticks_off()
    canvas.figure.legend(loc="upper left", ncol=columns, fontsize=11, borderaxespad=0.3)
    return canvas


def _draw_way(canvas, axes, ways, name, look):
    axes.plot(ROWS, [way["workspace_bytes"] for way in ways], label=name, markersize=5.5, **look)
    for rows, way in zip(ROWS, ways):
        mark, = axes.plot([rows], [way["workspace_bytes"]], **{**look, "linestyle": "none"}, markersize=6,
                          markerfacecolor=look["color"] if way["fits"] else drawing.CARD)
        canvas.tip(mark, "%s, N %d: %s%s" % (name, rows, size(way["workspace_bytes"]), "" if way["fits"] else
                                             ", beyond the budget"))
