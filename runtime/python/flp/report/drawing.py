"""Drawings of the page as SVG, and what all charts share: colours, marks, axes, tips.

Every drawing is made twice, for a desktop and for a phone, and measured in CSS pixels. The same records and the same
matplotlib give the same bytes. Texts stay texts; colours change with the reader's theme (STYLE).
"""
import html
import io
import re
import warnings

WIDTHS = (880, 340)  # pixels: desktop, phone
INK, DIM, RULE, GRID, BAND, CARD = "#1a1d21", "#59616b", "#c9ced6", "#e2e5ea", "#eceff3", "#f7f8fa"
OTHERS = "#afb8c1"  # bars beside flp's
# Okabe and Ito's, distinguishable by the colour-blind; the first is flp's own.
COLOURS = ("#0072b2", "#b85c00", "#00805d", "#b5447f", "#7a6400", "#3a3f46", "#7b5bb5")
MARKS = ("o", "s", "^", "D", "v", "P", "X", "p")
DASHES = ("-", (0, (6, 3)), (0, (2, 3)), (0, (8, 3, 2, 3)))
ON_DARK = {INK: "#e8eaed", DIM: "#a5adb8", RULE: "#4a525c", GRID: "#30363d", BAND: "#262b31", CARD: "#1c2024",
           OTHERS: "#545d68",
           **dict(zip(COLOURS, ("#56b4e9", "#f0a33c", "#35c79b", "#ef95c3", "#e2d24a", "#cfd4da", "#b9a3ea")))}
FONTS = 'system-ui,-apple-system,"Segoe UI",Roboto,"Liberation Sans",Arial,sans-serif'
STYLE = ("svg text{font-family:%s!important;fill:%s;font-variant-numeric:tabular-nums}\n"
         "@media (prefers-color-scheme:dark){svg text{fill:%s}%s}\n" % (FONTS, INK, ON_DARK[INK], "".join(
             'svg [style*="%s: %s"]{%s:%s!important}' % (part, light, part, dark)
             for light, dark in ON_DARK.items() for part in ("fill", "stroke"))))
SETTINGS = {"svg.fonttype": "none", "text.parse_math": False, "font.family": "DejaVu Sans", "font.size": 12,
            "text.color": INK, "axes.edgecolor": RULE, "axes.labelcolor": DIM, "xtick.color": RULE,
            "ytick.color": RULE, "xtick.labelcolor": DIM, "ytick.labelcolor": DIM, "axes.grid": True,
            "grid.color": GRID, "axes.axisbelow": True, "axes.spines.top": False, "axes.spines.right": False,
            "axes.facecolor": "none", "figure.facecolor": "none", "savefig.facecolor": "none", "legend.frameon": False,
            "legend.handlelength": 2.4, "lines.linewidth": 2, "hatch.linewidth": 1}


def series(number):
    """Colour, mark and dash of a series; neighbours differ in all three, and none but 0 has flp's colour or mark."""
    if number == 0:
        return {"color": COLOURS[0], "marker": MARKS[0], "linestyle": DASHES[0]}
    return {"color": COLOURS[1 + (number - 1) % 6], "marker": MARKS[1 + (number - 1) % 7],
            "linestyle": DASHES[number % len(DASHES)]}


class Canvas:
    """A drawing of some pixels. Places count from its upper left corner."""

    def __init__(self, width, height):
        from matplotlib.figure import Figure
        self.width, self.height, self._tips = width, height, []
        self.figure = Figure(figsize=(width / 72, height / 72))

    def axes(self, left, top, right, bottom, **settings):
        """Axes between those distances from the edges."""
        axes = self.figure.add_axes([left / self.width, bottom / self.height, (self.width - left - right) / self.width,
                                     (self.height - top - bottom) / self.height])
        axes.set(**settings)
        return axes

    def sheet(self):
        """Axes that are the whole drawing, in pixels, for texts and grounds behind the others."""
        axes = self.axes(0, 0, 0, 0, xlim=(0, self.width), ylim=(self.height, 0))
        axes.axis("off")
        return axes

    def tip(self, artist, *texts):
        """What the marks of an artist say, in their order, under a pointer."""
        artist.set_gid("tips-%d" % len(self._tips))
        self._tips.append(texts)

    def svg(self, label, salt):
        """The text of an element. label: what stands for it where it cannot be seen; salt: no other drawing's"""
        import matplotlib
        out = io.StringIO()
        with warnings.catch_warnings(), matplotlib.rc_context({"svg.hashsalt": salt}):
            warnings.simplefilter("ignore")  # letters that the measuring font lacks are the reader's font's to draw
            self.figure.savefig(out, format="svg", metadata={"Date": None})
        text = out.getvalue()
        text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg"):], flags=re.S)
        text = re.sub(r' width="[\d.]+pt"| height="[\d.]+pt"', "", text, count=2)
        text = re.sub(r"<[^>]*>", lambda tag: re.sub(r"(\d\.\d)\d+", r"\1", tag.group()), text)
        for number, tips in enumerate(self._tips):
            text = _with_tips(text, "tips-%d" % number, tips)
        used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', text))
        text = re.sub(r' id="([^"]*)"', lambda found: found.group() if found.group(1) in used else "", text)
        return text.replace("<svg ", '<svg role="img" aria-label="%s" ' % html.escape(label), 1).strip()


def _with_tips(text, name, tips):
    """Marks are <use/> elements, in the group of that id."""
    start = text.index('id="%s"' % name)
    head, group, left = text[:start], text[start:], iter(tips)
    return head + re.sub(r"<use ([^>]*?)/>", lambda mark: "<use %s><title>%s</title></use>" % (
        mark.group(1), html.escape(next(left))), group, count=len(tips))


def both(draw, label, salt):
    """An element for desktops and one for phones. draw: makes a Canvas of a width"""
    import matplotlib
    with matplotlib.rc_context(SETTINGS):
        made = [draw(width) for width in WIDTHS]
        return "".join('<div class="%s">%s</div>\n' % (name, canvas.svg(label, "%s-%s" % (salt, name)))
                       for name, canvas in zip(("wide", "narrow"), made))


def plain_ticks(axis, form="%g"):
    """Ticks of a scale, few enough to be read, as plain numbers; a logarithmic one has 1, 2 and 5 of each decade."""
    from matplotlib import ticker
    if axis.get_scale() == "log":
        low, high = sorted(axis.get_view_interval())
        axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5) if high / low < 2000 else (1,), numticks=12))
        axis.set_minor_locator(ticker.NullLocator())
    axis.set_major_formatter(ticker.FuncFormatter(form if callable(form) else lambda value, _: form % value))
