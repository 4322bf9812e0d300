"""Times as multiples of a reference: a mark with its spread on a line, lines in groups."""
import textwrap
from types import SimpleNamespace

from . import drawing
from .text import places

ROW, HEAD, TOP, FOOT, LINE = 22, 28, 26, 46, 15  # pixels
FAR = 3.5  # the slowest would squash the rest: what is slower ends in an arrow
LETTER, BOLD = 6.6, 7.4  # pixels that one takes
COLUMNS = (148, 74, 4)  # of numbers on a desktop, from the right: ratio, milliseconds, memory


def line(who, ms, base, low, high, mark, tip, more=""):
    """What stands in a line. base: milliseconds of the reference, None: not timed; mark: number of the series"""
    ratio = ms / base if base else None
    return SimpleNamespace(who=who, ms=ms, ratio=ratio, low=low / base if low and base else ratio,
                           high=high / base if high and base else ratio, mark=mark, tip=tip, more=more)


def ends_of(lines):
    """Where the axis ends: nine of ten lines lie between with their bars, and 1."""
    timed = [one for one in lines if one.ratio]
    out = len(timed) // 10
    low = min([1, *sorted(one.low for one in timed)[out:]])
    high = min(max([1, *sorted(one.high for one in timed)[:len(timed) - out]]), FAR)
    margin = max(0.02, (high - low) * 0.06)
    return max(low - margin, 0.9 * low), high + margin


class Layout:
    """Places: on a desktop names, plot and values stand side by side; on a phone the plot is below both."""

    def __init__(self, width):
        self.is_narrow = width < 500
        self.left, self.right = (12, 12) if self.is_narrow else (330, 220)
        self.letters = int((width - 126 if self.is_narrow else self.left - 24) / LETTER)
        self.head_letters = int((width - 12) / BOLD)

    def rows(self, groups):
        """[(y, heading, line)] with None for what a place has not, and the height of all."""
        y, found = TOP, []
        for heading, lines in groups:
            head = textwrap.wrap(heading, self.head_letters) or [""]
            found.append((y, head, None))
            y += HEAD + LINE * (len(head) - 1)
            for one in lines:
                one.words = textwrap.wrap(one.who, self.letters)
                found.append((y, None, one))
                y += ROW + LINE * (len(one.words) - 1) + 12 * self.is_narrow
            y += 6
        return found, y + FOOT


def draw(groups, axis, width):
    """groups: [(heading, [line])] -> Canvas"""
    layout = Layout(width)
    rows, height = layout.rows(groups)
    canvas = drawing.Canvas(width, height)
    sheet = canvas.sheet()
    low, high = ends_of([one for _, lines in groups for one in lines])
    plot = canvas.axes(layout.left, TOP, layout.right, FOOT, ylim=(height - FOOT, TOP), xlim=(low, high), yticks=[],
                       xscale="log" if high / low > 6 else "linear")
    sheet.set_zorder(plot.get_zorder() + 1)  # no line runs through a heading
    plot.set_xlabel(axis)
    drawing.plain_ticks(plot.xaxis)
    plot.tick_params(top=True, labeltop=True, length=0)
    plot.spines["left"].set_visible(False)
    has_more = any(one.more for _, lines in groups for one in lines)
    for column, name in zip(COLUMNS, ("ratio", "ms", "memory" * has_more)) if not layout.is_narrow else ():
        sheet.text(width - column, TOP - 8, name, ha="right", color=drawing.DIM)
    for y, head, one in rows:
        if head:
            sheet.axhspan(y + 3, y + HEAD - 3 + LINE * (len(head) - 1), color=drawing.BAND, linewidth=0)
            sheet.text(6, y + 18, "\n".join(head), va="baseline" if len(head) == 1 else "center", weight="bold")
        else:
            _draw_words(sheet, layout, width, y, one)
            more = LINE * len(one.words) if layout.is_narrow else LINE * (len(one.words) - 1) / 2
            ends = (y + 4 + more, y + 18 + more) if layout.is_narrow else (y, y + ROW + 2 * more)
            plot.plot([1, 1], ends, color=drawing.INK, linewidth=1.3, dashes=(4, 3))  # through no text
            _draw_mark(canvas, plot, y + 11 + more, one)
    return canvas


def _draw_words(sheet, layout, width, y, one):
    for i, words in enumerate(one.words):
        sheet.text(12, y + 15 + LINE * i, words)
    ms = places(one.ms, 3 if one.ms < 10 else 2 if one.ms < 100 else 1)
    ratio = "%.*f×" % (3 if one.ratio < 2 else 2, one.ratio) if one.ratio else ""
    if layout.is_narrow:
        sheet.text(width - 4, y + 15, "%s · %s ms" % (ratio, ms) if ratio else ms + " ms", ha="right")
        return
    for text, column in zip((ratio, ms, one.more), COLUMNS):
        sheet.text(width - column, y + 15, text, ha="right")


def _draw_mark(canvas, plot, y, one):
    if not one.ratio:
        return
    low, high = plot.get_xlim()
    look = drawing.series(one.mark)
    at = min(max(one.ratio, low), high)
    plot.plot([1, at], [y, y], color=look["color"], alpha=0.45, linewidth=1.5)
    if at == one.ratio:
        plot.plot([max(one.low, low), min(one.high, high)], [y, y], "|-", color=look["color"],
                  markersize=7)
    mark, = plot.plot([at], [y], color=look["color"], clip_on=False, markersize=7, linestyle="none",
                      marker=look["marker"] if at == one.ratio else ">" if at == high else "<")
    canvas.tip(mark, one.tip)
