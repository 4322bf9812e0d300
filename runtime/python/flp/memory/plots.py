"""plot: a report as a picture, as figure 1 of the RLHF memory study (arXiv:2410.15651) has it."""
from __future__ import annotations

import json
import os
from typing import Any

from .. import _matplotlib
from .._tensors import _check
from .timeline import idle_at

FORMATS = (".png", ".svg")
PHASE_COLOURS = ("#dbe9f6", "#fde5cf", "#e0f0dd", "#eadff0", "#f4e3e3")
GB = 1e9


def plot(report: dict[str, Any] | str | os.PathLike[str], path: str | os.PathLike[str],
         span: str | None = None) -> None:
    """Draws a report of Profiler or read_snapshot: the memory of each device over time.

    report  the dict, or the path of the JSON file that Profiler.save wrote
    path    file to write, *.png or *.svg
    span    name of a phase or step, "logprob" say, whose part of the fragmentation is drawn beside all of it: dots for
            memory that it needed itself, rings for memory of what it handed on, as gradients are; None: of none
    In GB over ms. Lines: reserved, allocated, flp's arena, reserved without fragmentation; dots: fragmentation at
    device allocations. A red cross marks the peak of reserved memory, an orange one the peak without fragmentation; phases are
    shaded.
    error:  ImportError without matplotlib; ValueError naming path or report; OSError
    """
    if os.path.splitext(os.fspath(path))[1] not in FORMATS:
        _check.refuse(ValueError, "path", path, "*.png, *.svg")
    recorded: Any = report
    if not isinstance(report, dict):
        with open(report, encoding="utf-8") as file:
            recorded = json.load(file)
    if not recorded.get("devices"):
        _check.refuse(ValueError, "report", "without a device", "one in which a device or an arena was used")
    _matplotlib.need("flp.memory.plot")
    from matplotlib import pyplot
    figure, axes = pyplot.subplots(len(recorded["devices"]), 1, squeeze=False, sharex=True,
                                   figsize=(11, 3.6 * len(recorded["devices"])))
    for axis, (name, device) in zip(axes[:, 0], recorded["devices"].items()):
        _draw(axis, device)
        if span is not None:
            _draw_part(axis, device["growths"], span)
        _shade(axis, recorded["spans"], device["points"][-1][0])
        for ms, mark in recorded["marks"]:
            axis.axvline(ms, color="grey", linewidth=0.6)
            axis.annotate(mark, (ms, 1), xycoords=("data", "axes fraction"), fontsize=6, rotation=90, va="top")
        axis.set(title=name, ylabel="GB")
        axis.legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize=7)
    axes[-1, 0].set_xlabel("ms")
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def without_fragmentation(device):
    """[(ms, bytes)]: reserved less the fragmentation of the last growth, capped by what is idle."""
    growths, fragmentation, result = list(device["growths"])[::-1], 0, []
    for ms, reserved, allocated, _ in device["points"]:
        while growths and growths[-1]["ms"] <= ms:
            fragmentation = growths.pop()["fragmentation"]
        result.append((ms, reserved - min(fragmentation, reserved - allocated)))
    return result


def _draw(axis, device):
    times, reserved, allocated, arena = zip(*device["points"])
    series = {"reserved": reserved, "allocated": allocated}
    if any(arena):
        series["of it flp's arena"] = arena
    for label, values in series.items():
        axis.step(times, [value / GB for value in values], where="post", label=label, linewidth=1)
    without = without_fragmentation(device)
    axis.step(times, [value / GB for _, value in without], where="post", label="reserved without fragmentation",
              linewidth=1, color="goldenrod", linestyle=":")
    growths = device["growths"]
    axis.plot([growth["ms"] for growth in growths], [growth["fragmentation"] / GB for growth in growths], ".",
              color="black", markersize=3, label="fragmentation at device allocations")
    for curve, colour in ((zip(times, reserved), "red"), (without, "orange")):
        ms, value = max(curve, key=lambda point: point[1])
        axis.plot([ms], [value / GB], "x", color=colour)
    axis.set_ylim(bottom=0)


def _draw_part(axis, growths, span):
    """What the growths met idle in memory that was got in a span of this name."""
    parts = [idle_at(growth["idle_by_path"], growth["handed_on_by_path"], lambda path: span in path.split("/"))
             for growth in growths]
    for values, fill, label in zip(zip(*parts), ("crimson", "none"), ("of it %s's own", "handed on by %s")):
        axis.plot([growth["ms"] for growth in growths], [value / GB for value in values], "o", markersize=4,
                  color="crimson", markerfacecolor=fill, label=label % span)


def _shade(axis, spans, end):
    """Shades the outermost span at every time, one colour a name."""
    colours = {}
    for (ms, path), (until, _) in zip(spans, spans[1:] + [[end, ""]]):
        name = path.split("/")[0]
        if name:
            new = name not in colours
            colour = colours.setdefault(name, PHASE_COLOURS[len(colours) % len(PHASE_COLOURS)])
            axis.axvspan(ms, until, color=colour, linewidth=0, label=name if new else None)
