"""Whole passes beside the GEMM baselines and other libraries, from benchmark rows."""
import textwrap

from . import drawing, lines, rows
from .text import escape, figure, places, ratio, size, table

AXIS = "time / time of the products alone (×, less is faster)"
ABOUT = ("A mark is the median of a row's times over that of the matrix products alone; left of the dashed line is "
         "faster than they are. A bar is the least to the most, an arrow a time beyond the axis. ")
COLUMNS = ("pass", "who", "what", "#products", "#ratio", "#ms", "#least", "#most", "#products' ms", "#of first",
           "#workspace", "#N", "#D", "#V", "dtype", "entropy", "gradients", "loss", "rows", "file", "not timed because")


def charts(records):
    """-> HTML; what flp alone was timed on is folded away where others are there too."""
    groups = rows.groups_of(records.rows)
    series = numbers(records.rows)
    beside = [group for group in groups if any(not rows.is_ours(row) for row in group)]
    alone = [group for group in groups if group not in beside]
    parts = [_figures(beside, series, "beside other libraries"), untimed(records.rows)] if beside else []
    if beside and alone:
        count = sum(map(len, alone))
        parts.append('<details class="more"><summary>Passes of flp alone (%d)</summary>\n%s</details>\n' % (
            count, _figures(alone, series, "of flp alone")))
    elif alone:
        parts += [_figures(alone, series, "of flp"), untimed(records.rows)]
    return "".join(parts) + _table(groups) if records.rows else ""


def numbers(some):
    """The number of the series of each name, flp's first."""
    names = dict.fromkeys(["flp", *(rows.name_of(row) for row in some if row.ms)])
    return {name: number for number, name in enumerate(names)}


def _figures(groups, series, whose):
    """A figure for each pass."""
    parts = []
    for which in dict.fromkeys(group[0].case for group in groups):
        chosen = [[row for row in group if row.ms] for group in groups if group[0].case == which]
        chosen = [group for group in chosen if group]
        if not chosen:
            continue
        common = rows.common_of([row for group in chosen for row in group])
        chosen.sort(key=lambda group: len(rows.unlike(group[0], common)))  # what is as in most rows comes first
        shown = [(rows.heading_of(group[0], common), _lines(group, series)) for group in chosen]
        title = "%s: time %s against the matrix products alone" % (which, whose)
        about = ABOUT + "%s, where a heading does not say otherwise." % " · ".join(
            word for word in common.values() if word not in rows.PLAIN)
        salt = "passes-%s-%s" % (which, whose)
        parts.append(figure("passes", title, about, drawing.both(lambda width, shown=shown: lines.draw(
            shown, AXIS, width), title, salt)))
    return "".join(parts)


def _lines(group, series):
    return [lines.line(label, row.ms, row.bare_ms, row.ms_low, row.ms_high, series[rows.name_of(row)],
                       "%s: %s ms (%s)" % (label, places(row.ms, 3), row.source.file),
                       size(row.extra_bytes) if row.extra_bytes else "")
            for row, label in zip(group, rows.labels_of(group))]


def untimed(some):
    """Who was not timed and why: names of one reason together, with the passes where others of theirs were timed."""
    timed = {rows.name_of(row) for row in some if row.ms}
    reasons = {}
    for row in some:
        if not row.ms:
            passes = reasons.setdefault(row.reason, {}).setdefault(rows.name_of(row), {})
            passes[row.case + (" with entropy" if row.entropy not in (None, "none") else "")] = None
    items = ["<li><b>%s</b>: %s</li>\n" % (escape("; ".join(
        name + (" (%s)" % ", ".join(passes) if name in timed else "") for name, passes in sorted(names.items()))),
        escape(textwrap.shorten(reason, 400))) for reason, names in reasons.items()]
    return '<div class="untimed"><p>Not timed:</p><ul>\n%s</ul></div>\n' % "".join(items) if items else ""


def _table(groups):
    cells = []
    for group in groups:
        for row, label in zip(group, rows.labels_of(group)):
            what = label.partition(" · ")[2]
            cells.append([row.case, rows.name_of(row), what, row.gemms, places(ratio(row.ms, row.bare_ms), 3),
                          places(row.ms, 3), places(row.ms_low, 3), places(row.ms_high, 3), places(row.bare_ms, 3),
                          places(ratio(row.ms, row.first_ms), 3), size(row.extra_bytes), row.N, row.D, row.V,
                          row.dtype or "", row.entropy or "", ", ".join(row.grads), row.loss or "", row.data,
                          row.source.file, row.reason or ""])
    return table("every row of the benchmarks", COLUMNS, cells)
