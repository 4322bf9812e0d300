"""Time of whole training passes against how sharp the softmax rows are, one line a library or mode.

Times are in products of hidden and the whole weight, measured in the same record. A shape is drawn if some record has
sharp rows of it, with everyone who was timed on some of them: a row that was asked for more or less than a plain pass
(kept sets, an adapter, several targets) is someone else.
"""
import math

from . import drawing, rows
from .text import figure, number, places, table

KINDS = ("policy", "text", "base", "random")  # from sharp to flat
TITLE = "Time against sharpness of the rows: %s, %s"
ABOUT = ("%s. Times are medians, in products of hidden and the whole weight by the fastest algorithm in the same "
         "record. Who computes every element takes the same on any rows.")
COLUMNS = ("rows", "#median entropy", "who", "mode", "#ms", "#product ms", "#products", "file")


def who_of(row):
    """Modes that keep something between the passes are contenders of their own; recompute mode is flp."""
    name = rows.name_of(row)
    return ", ".join([name, *([row.mode] if name == "flp" and row.mode in rows.KEPT else []), *rows.special_of(row)])


def products_of(row):
    return row.ms / row.product_ms


def is_drawable(row):
    return (row.case in ("forward+backward", "step") and row.grads and row.ms and row.product_ms and
            row.data in KINDS and not row.lora_rank)


def shapes_of(some):
    """[[row]] of one pass and shape, of which some rows are sharp; only those of who was timed on sharp ones."""
    shapes = {}
    for row in filter(is_drawable, some):
        key = (row.case, row.D, row.V, row.N, -row.active, row.dtype or "", row.grads, row.loss or "",
               row.entropy or "")
        shapes.setdefault(key, []).append(row)
    chosen = []
    for key in sorted(shapes):
        sharp = {who_of(row) for row in shapes[key] if row.data != "random"}
        chosen += [[row for row in shapes[key] if who_of(row) in sharp]] if sharp else []
    return chosen


def charts(records):
    parts = []
    for shape in shapes_of(records.rows):
        shape.sort(key=lambda row: (KINDS.index(row.data), products_of(row)))
        words = {name: word for name, word in rows.words_of(shape[0]).items() if name not in ("data", "gpu")}
        title = TITLE % (shape[0].case, words.pop("grads"))
        cells = [[row.data, number(row.median_entropy, 3), who_of(row), row.mode or "", places(row.ms, 3),
                  places(row.product_ms, 3), places(products_of(row), 3), row.source.file] for row in shape]
        about = ABOUT % " · ".join(word for word in words.values() if word not in rows.PLAIN)
        parts.append(figure("sharpness", title, about, drawing.both(lambda width, shape=shape: draw(
            shape, width), title, title + about), table("times in products", COLUMNS, cells)))
    return "".join(parts)


def draw(shape, width):
    names = list(dict.fromkeys(["flp"] * any(who_of(row) == "flp" for row in shape) + sorted(map(who_of, shape))))
    kinds = [kind for kind in KINDS if any(row.data == kind for row in shape)]
    columns = 1 if width < 500 else 4
    top = 20 + 20 * math.ceil((len(names) + 1) / columns)
    canvas = drawing.Canvas(width, 400 + top)
    most = max(map(products_of, shape))
    axes = canvas.axes(50, top, 12, 62, xlim=(-0.5, len(kinds) - 0.5), xticks=range(len(kinds)),
                       yscale="log" if most > 6 else "linear", ylim=(0.9, most * 1.1), ylabel="time in products (×)")
    axes.set_xticklabels(["%s\n%s" % (kind, _nats(shape, kind)) for kind in kinds])
    axes.set_xlabel("rows, from sharp to flat (median entropy)")
    axes.grid(False, axis="x")
    drawing.plain_ticks(axes.yaxis)
    axes.axhline(1, color=drawing.INK, linewidth=1.3, dashes=(4, 3), label="one product of hidden and weight")
    for i, name in enumerate(names):
        _draw_name(canvas, axes, [row for row in shape if who_of(row) == name], kinds, name,
                   drawing.series(i + ("flp" not in names)), (i - 0.5 * (len(names) - 1)) * min(0.06, 0.7 / len(names)))
    canvas.figure.legend(loc="upper left", ncol=columns, fontsize=11, borderaxespad=0.3)
    return canvas


def _nats(shape, kind):
    known = [row.median_entropy for row in shape if row.data == kind and row.median_entropy is not None]
    return "%.2g nats" % known[0] if known else ""


def _draw_name(canvas, axes, mine, kinds, name, look, aside):
    """Marks of all its times; the line joins the fastest of each kind."""
    fastest = {row.data: row for row in reversed(mine)}
    ends = [fastest[kind] for kind in kinds if kind in fastest]
    axes.plot([kinds.index(row.data) + aside for row in ends], [products_of(row) for row in ends], label=name,
              markersize=6, **look)
    marks, = axes.plot([kinds.index(row.data) + aside for row in mine], [products_of(row) for row in mine],
                       **{**look, "linestyle": "none"}, markersize=6)
    canvas.tip(marks, *("%s, %s rows: %s products, %s ms (%s)" % (
        name, row.data, places(products_of(row), 2), number(row.ms, 5), row.source.file) for row in mine))
