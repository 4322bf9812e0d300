"""The time of every timed candidate by the value of each tunable.

Clocks move between bursts, so candidates are compared by their ratio to what was timed beside them, the untuned
default; records without ratios are compared by time, over that of the best.
"""
import re
from types import SimpleNamespace

from . import drawing
from .text import aside, figure, number, places, table
from .tuning import best_of, record_of, shape_of

ROW, HEAD, TOP, FOOT = 24, 28, 8, 48  # pixels
FAR, ALL_UNTIL = 1.2, 1.3  # the plot ends at FAR bests where anything is above ALL_UNTIL: it would squash the rest
DOTS_MAX, TABLE_MAX = 1500, 400
CHOSEN, TIMED = drawing.COLOURS[1], drawing.COLOURS[0]
COLUMNS = ("tiling", "#chunk rows", "#chunk vocab", "#ratio", "#ms", "#least ms", "#most ms", "#rounds", "#SM MHz",
           "#predicted ms", "#error", "status")
ABOUT = ("%d candidates, each once under every tunable; the whole %s is timed. Orange is the chosen one, and the "
         "ground its bursts from least to most; hollow dots were left early; a thick line is the fastest of a value of "
         "those timed longest, with its bursts, and its figures stand at the right%s.%s")
DEFAULT = "template's default"


def tunables_of(one):
    """{name: (order, words)} of a candidate; the default is what is left to the template or planner."""
    parts = [part for part in (one.tune or "").split(";") if ":" not in part or part.startswith(one.kind + ":")]
    items = parts[0].rpartition(":")[2].split(",") if parts else []
    named = dict(item.split("=", 1) for item in items if re.fullmatch(r"(stages|cluster|raster)=\d{1,9}", item))
    tile = next((item for item in items if re.fullmatch(r"\d{1,9}x\d{1,9}", item)), None)
    schedule = next((item for item in items if item in ("ping-pong", "cooperative")), None)
    values = {"schedule": (("ping-pong", "cooperative").index(schedule) + 1, schedule) if schedule else None,
              "tile (rows × columns)": (tuple(map(int, tile.split("x"))), tile.replace("x", "×")) if tile else None}
    for name, field in (("stages", "stages"), ("cluster (CTAs)", "cluster"), ("raster (row panels)", "raster")):
        values[name] = (int(named[field]), named[field]) if field in named else None
    for name, value in (("chunk of rows", one.chunk_rows), ("chunk of vocab (columns)", one.chunk_vocab)):
        values[name] = (value, str(value)) if value else None
    return {name: value or ((0, 0) if name.startswith("tile") else 0, DEFAULT) for name, value in values.items()}


def collect(records, index, kind, best):
    """One landscape: dots (the fastest first), sections [(tunable, [(words, its dots, their best)])], edges."""
    timed = records.timed(index, kind)
    has_ratios = all(one.ratio for one in timed)
    dots = sorted((SimpleNamespace(one=one, ratio=one.ratio if has_ratios else one.ms / best.ms, place=i,
                                   values=tunables_of(one)) for i, one in enumerate(timed)),
                  key=lambda dot: (dot.ratio, dot.place))
    chosen = next(dot for dot in dots if dot.one is best)
    shown = dots[:DOTS_MAX]
    base = records.baseline_ms(index, kind)
    base = chosen.ratio * base / best.ms if base else None
    slowest = shown[-1].ratio
    high = max(FAR * chosen.ratio if slowest > ALL_UNTIL * chosen.ratio else slowest, base or 0)
    return SimpleNamespace(dots=dots, shown=shown, chosen=chosen, base=base, has_ratios=has_ratios, high=high,
                           low=min(dots[0].ratio, base or dots[0].ratio), sections=sections_of(shown),
                           rounds=max(dot.one.rounds or 0 for dot in shown))


def sections_of(dots):
    """A tunable that every candidate leaves alone is not shown."""
    sections = []
    for name in dots[0].values:
        values = {}
        for dot in dots:
            values.setdefault(dot.values[name], []).append(dot)
        if list(map(lambda value: value[1], values)) != [DEFAULT]:
            sections.append((name, [(words, some, max(some, key=lambda dot: (dot.one.rounds or 0, -dot.ratio)))
                                    for (_, words), some in sorted(values.items())]))
    return sections


def charts(records, most):
    """At most so many; those behind the first head's are folded away."""
    found, parts, folded = best_of(records), [], []
    for index, kind, best in found[:most]:
        (parts if index == found[0][0] else folded).append(_figure(records, index, kind, best))
    if folded:
        parts.append('<details class="more"><summary>Landscapes of other searches (%d)</summary>\n%s</details>\n' % (
            len(folded), "".join(folded)))
    if len(found) > most:
        parts.append(aside("%d of %d landscapes are drawn; --landscapes sets how many." % (most, len(found))))
    return "".join(parts)


def _figure(records, index, kind, best):
    seen = collect(records, index, kind, best)
    if not seen.sections:  # every candidate leaves every tunable alone
        return ""
    title = "Time of every candidate by tunable: " + " · ".join(filter(None, [
        kind, shape_of(records.specs[index]), record_of(records, index)]))
    slow = "; +n counts candidates slower than the plot shows" if seen.dots[-1].ratio > seen.high else ""
    about = ABOUT % (len(seen.dots), records.pass_of(index, kind), slow,
                     " The dashed line is the matrix products alone." if seen.base else "")
    notes = [aside("Only the %d fastest candidates are drawn." % DOTS_MAX)] * (len(seen.dots) > DOTS_MAX)
    cells = [[dot.one.tune or "own", dot.one.chunk_rows or "", dot.one.chunk_vocab or "", places(dot.ratio, 4),
              places(dot.one.ms, 3), places(dot.one.ms_low, 3), places(dot.one.ms_high, 3), dot.one.rounds,
              number(dot.one.clock_mhz, 4), places(dot.one.predicted_ms, 3), number(dot.one.error, 3),
              "chosen" if dot is seen.chosen else "left early" if is_early(seen, dot) else "timed"]
             for dot in seen.dots[:TABLE_MAX]]
    return figure("landscape", title, about, drawing.both(lambda width: draw(
        seen, width), title, "landscape-%d-%s" % (index, kind)), *notes,
        table("timed candidates, the fastest first" if len(seen.dots) <= TABLE_MAX else "the fastest candidates",
              COLUMNS, cells))


def is_early(seen, dot):
    return (dot.one.rounds or 0) < seen.rounds and dot is not seen.chosen


def spread_of(dot):
    """The ratios of the least and the most of a candidate's bursts; None where it has no spread."""
    if not dot.one.ms_low or not dot.one.ms_high or dot.one.ms_high <= dot.one.ms_low:
        return None
    return dot.ratio * dot.one.ms_low / dot.one.ms, dot.ratio * dot.one.ms_high / dot.one.ms


# ---- drawing

def draw(seen, width):
    is_narrow = width < 500
    left, right = (96, 92) if is_narrow else (150, 180)
    height = TOP + FOOT + sum(HEAD + ROW * len(values) for _, values in seen.sections)
    canvas = drawing.Canvas(width, height)
    sheet, bottom, margin = canvas.sheet(), height - FOOT, 0.02 * (seen.high - seen.low or 1)
    axes = canvas.axes(left, TOP, right, FOOT, ylim=(bottom, TOP), xlim=(seen.low - margin, seen.high + margin),
                       yticks=[], xlabel="time / time of the %s (×, less is faster)" % (
                           "default" if seen.has_ratios else "chosen"))
    drawing.plain_ticks(axes.xaxis)
    axes.locator_params(axis="x", nbins=4 if is_narrow else 9)
    axes.spines["left"].set_visible(False)
    if spread_of(seen.chosen):
        axes.axvspan(*spread_of(seen.chosen), color=CHOSEN, alpha=0.14, linewidth=0)
    if seen.base:
        axes.axvline(seen.base, color=drawing.INK, linewidth=1.3, dashes=(4, 3))
    y = TOP
    for name, values in seen.sections:
        axes.axhspan(y + 3, y + HEAD - 5, color=drawing.BAND, linewidth=0, zorder=5)
        sheet.axhspan(y + 3, y + HEAD - 5, color=drawing.BAND, linewidth=0)
        _draw_head(sheet, name, values, y + 17, width)
        y += HEAD
        for value in values:
            _draw_row(canvas, sheet, axes, seen, value, y + ROW / 2, (left, right))
            y += ROW
    return canvas


def _draw_head(sheet, name, values, y, width):
    """The name of a tunable, and what its worst value costs with all others at their best."""
    ratios = [best.ratio for _, _, best in values]
    worst = "worst value: +%.1f %%" % (100 * (max(ratios) / min(ratios) - 1)) if len(ratios) > 1 else "one value tried"
    sheet.set_zorder(3)
    sheet.text(4, y, name, weight="bold")
    sheet.text(width - 4, y, worst, ha="right", color=drawing.DIM)


def _draw_row(canvas, sheet, axes, seen, value, y, sides):
    words, dots, best = value
    left, right = sides
    sheet.text(left - 8, y + 4, words if words != DEFAULT or left > 100 else "default", ha="right")
    for early in (True, False):
        some = [dot for dot in dots
                if dot.ratio <= seen.high and is_early(seen, dot) == early and dot is not seen.chosen]
        if some:
            marks = axes.scatter([dot.ratio for dot in some], [y + jitter(dot) for dot in some], s=18, alpha=0.6,
                                 edgecolors=TIMED, linewidths=0.8, facecolors="none" if early else TIMED, zorder=3)
            canvas.tip(marks, *(tip_of(dot) for dot in some))
    if best.ratio <= seen.high:
        if spread_of(best):
            axes.plot([max(spread_of(best)[0], seen.low), min(spread_of(best)[1], seen.high)], [y, y],
                      color=drawing.INK, linewidth=1, zorder=4)
        axes.plot([best.ratio] * 2, [y - 9, y + 9], color=drawing.INK, linewidth=2.4, zorder=4)
    if seen.chosen in dots:
        mark, = axes.plot([seen.chosen.ratio], [y], "D", color=CHOSEN, markersize=8, zorder=6)
        canvas.tip(mark, tip_of(seen.chosen))
    slower = sum(dot.ratio > seen.high for dot in dots)
    if slower:
        sheet.text(canvas.width - right + 6, y + 4, "+%d" % slower, color=drawing.DIM)
    ms = " · %s ms" % places(best.one.ms, 3 if best.one.ms < 10 else 2) if left > 100 else ""
    sheet.text(canvas.width - 4, y + 4, "%.3f×%s" % (best.ratio, ms), ha="right",
               weight="bold" if seen.chosen in dots else "normal")


def jitter(dot):
    """Pixels up or down, the same for a candidate in every row."""
    return ((dot.place * 2654435761 % 2**32 >> 24) % 15 - 7) * 0.9


def tip_of(dot):
    ms = number(dot.one.ms, 5)
    return "%s: %.3f×, %s ms, %d rounds" % (dot.one.tune or "own", dot.ratio, ms, dot.one.rounds or 0)
