"""A picture of its own: time and memory of forward and backward, flp beside other libraries, as README shows it."""
import re

from . import drawing, rows
from .records import refuse
from .text import places

# Those of a whole, exact pass.
NAMES = {"torch-16bit": "torch, scores in bf16", "torch-fp32": "torch, scores in fp32", "cce": "CCE, exact",
         "liger-mean": "Liger, of the mean alone", "liger": "Liger", "torch-compile": "torch.compile, chunked",
         "agilerl": "AgileRL", "verl": "verl", "liger-scaled": "Liger, CuTe", "lck": "liger-cute-kernels",
         "unsloth": "unsloth", "trl": "TRL"}
WIDTH, LEFT, GAP, NUMBER, ROW, TOP, FOOT = 880, 200, 26, 52, 28, 118, 40  # pixels; a number stands behind its bar
HALO = ("text{paint-order:stroke;stroke:#fff;stroke-width:4px}\n"
        "@media (prefers-color-scheme:dark){text{stroke:#0d1117}}\n")
TITLE = "Forward and backward of a language-model head"
FIELDS = "rows of forward+backward with both gradients and no entropy"


def bars_of(records):
    """[(name, row)] of one shape on one GPU, the fastest first; of who is there twice the first. error: Wrong"""
    found = {}
    for row in records.rows:
        ours = rows.name_of(row) == "flp" and "flp, " + (row.mode or "").partition("-")[0]
        name = ours or NAMES.get(row.peer)
        if name and row.ms and row.extra_bytes and row.bare_ms and (
                row.case, row.grads, row.entropy) == ("forward+backward", ("hidden", "weight"), "none"):
            found.setdefault(name, row)
    shapes = {(row.N, row.D, row.V, row.dtype, row.gpu) for row in found.values()}
    if len(shapes) != 1 or not any(map(rows.is_ours, found.values())):
        refuse("--picture: " + FIELDS, "of %d shapes and GPUs" % len(shapes),
               "those of flp and others, one shape, one GPU")
    return sorted(found.items(), key=lambda bar: bar[1].ms)


def text_of(records):
    """-> SVG with colours for light and dark. error: Wrong"""
    import matplotlib
    bars = bars_of(records)
    label = TITLE + ": time and memory of flp beside other libraries"
    with matplotlib.rc_context(drawing.SETTINGS):
        text = draw(bars).svg(label, "picture")
    style = "<style>%s%s</style>" % (HALO, re.sub(r"\bsvg ", "", drawing.STYLE))
    return text.replace(">", ">\n" + style, 1) + "\n"


def draw(bars):
    first = bars[0][1]
    canvas = drawing.Canvas(WIDTH, TOP + ROW * len(bars) + FOOT)
    sheet = canvas.sheet()
    sheet.text(8, 26, TITLE, size=17, weight="bold")
    sheet.text(8, 46, "N = %d tokens, V = %d, D = %d, %s, one %s" % (first.N, first.V, first.D, first.dtype, first.gpu),
               color=drawing.DIM)
    for i, (name, row) in enumerate(bars):
        sheet.text(LEFT - 12, TOP + ROW * i + 17, name, ha="right", size=14,
                   weight="bold" if rows.is_ours(row) else "normal")
    rounded = [row.logprob_error for name, row in bars if name == NAMES["torch-16bit"] and row.logprob_error]
    note = "GEMM baseline: the matrix products alone, by the fastest of eight cuBLASLt algorithms."
    note += " Scores in bf16 round the logprob by up to %.2g nats." % rounded[0] if rounded else ""
    sheet.text(8, canvas.height - 14, note, color=drawing.DIM)
    ours = [row for _, row in bars if rows.is_ours(row)]
    bases = sorted({row.gemms: row.bare_ms for row in ours}.items())
    limits = [(ms, ("GEMM baseline of %d" if i == 0 else "of %d products") % gemms, "right" if i == 0 else "left")
              for i, (gemms, ms) in enumerate(bases)]
    panel = (WIDTH - LEFT - 2 * GAP) / 2
    _draw_panel(canvas, LEFT, panel, "time, ms", [places(row.ms, 0) for _, row in bars], [row.ms for _, row in bars],
                limits, bars)
    memory = [row.extra_bytes / 1e9 for _, row in bars]
    results = [(row.result_bytes / 1e9, "the gradients", "left") for row in ours[-1:] if row.result_bytes]
    _draw_panel(canvas, LEFT + panel + GAP, panel, "peak memory beyond the inputs, GB",
                [places(value, 1) for value in memory], memory, results, bars)
    return canvas


def _draw_panel(canvas, left, width, title, words, values, limits, bars):
    """Bars of one figure. limits: [(value, text, side of the line where it ends)], dashed lines"""
    bottom = canvas.height - FOOT
    axes = canvas.axes(left, TOP, canvas.width - left - width + NUMBER, FOOT, xlim=(0, max(values)), ylim=(bottom, TOP),
                       yticks=[], xticks=[])
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
    axes.text(0, TOP - 42, title, size=14)
    for value, text, side in limits:
        axes.plot([value, value], [TOP - 12, bottom], color=drawing.COLOURS[1], linewidth=1, dashes=(4, 3),
                  clip_on=False)
        axes.text(value, TOP - 18, text, color=drawing.COLOURS[1], ha=side)
    for i, ((_, row), word, value) in enumerate(zip(bars, words, values)):
        y, ours = TOP + ROW * i + 12, rows.is_ours(row)
        axes.barh([y], [value], height=16, color=drawing.COLOURS[0] if ours else drawing.OTHERS)
        axes.annotate(word, (value, y), (6, -4.5), textcoords="offset points", size=13,
                      weight="bold" if ours else "normal")
