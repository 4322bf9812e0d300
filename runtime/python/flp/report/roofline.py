"""Throughput against arithmetic intensity, one series a hidden size, under the card's limits.

Bytes are those of inputs and outputs, each moved once. Flop are those of the products that a pass makes at least: of
kept sets over the listed columns alone, of a tail over the columns that it reads and the rows that it recomputes.
"""
import math
from types import SimpleNamespace

from . import drawing, rows
from .text import aside, figure, number, table

TITLE = "Roofline: throughput of 16-bit passes against arithmetic intensity"
# Data sheets: a word of the name, dense bf16 TFLOP/s with fp32 accumulation at the boost clock, bytes/s of memory.
CARDS = (("H200", 989.4, 4.8e12), ("H100 PCIe", 756.0, 2.0e12), ("H100", 989.4, 3.35e12), ("A100", 312.0, 2.039e12),
         ("L40", 362.1, 0.864e12))
HALF = ("bf16", "fp16")
COLUMNS = ("pass", "what", "#N", "#D", "#V", "#flop / byte", "#TFLOP/s", "#of the tensor limit", "file")


def flop_of(row):
    """None where the record does not say what was computed."""
    grads, whole = len(row.grads), 2 * row.active * row.D * row.V
    if row.kept is not None:
        products = 1 + (row.case != "forward") * grads + (row.case == "forward+backward")
        return row.list_ids and 2 * row.list_ids * row.D * products
    if row.mode == "tail" and grads:
        told = row.tail_report
        if None in (told.dense_rows, told.columns):
            return None
        return whole * (1 + told.dense_rows / row.active * (1 + grads)) + 2 * row.D * told.columns * grads
    kept = grads and row.mode in rows.KEPT
    return row.gemms and whole * (min(row.gemms, 1 + grads) if kept else row.gemms)


def bytes_of(row):
    weight = 4 if row.weight_dtype == "fp32" else 2
    columns = min(row.list_ids or row.V, row.V)
    targets = row.active * (row.targets or 1)
    adapter = 2 * (row.lora_rank or 0) * (row.D + row.V)
    moved = 2 * row.active * row.D + weight * columns * row.D + 8 * targets + 8 * (row.list_ids or 0) + adapter
    moved += 4 * targets + 4 * row.active * (row.entropy not in (None, "none"))
    moved += 2 * row.active * row.D * ("hidden" in row.grads) + weight * row.V * row.D * ("weight" in row.grads)
    return moved + adapter * ("lora_a" in row.grads)


def points_of(records):
    """Passes of flp, and the best forward kernels of the tuner, which are passes but for a few microseconds.
    -> ([point], card's GPU, how many are of others)"""
    given = [(row, row.gpu, ", ".join([row.mode or "", *rows.special_of(row)]).strip(", "), row.source.file)
             for row in records.rows if rows.is_ours(row) and row.ms]
    for i, spec in enumerate(records.specs):
        best = records.best(i, "forward")
        if best and None not in (spec.rows, spec.hidden, spec.vocab):
            row = SimpleNamespace(case="forward", dtype=spec.dtype, entropy=spec.entropy, grads=(), N=spec.rows,
                                  active=spec.rows, D=spec.hidden, V=spec.vocab, gemms=1, ms=best.ms, kept=None,
                                  list_ids=None, mode="score", weight_dtype=None, targets=1, lora_rank=0,
                                  bare_ms=records.baseline_ms(i, "forward"))
            run = records.runs[spec.run]
            given.append((row, run.gpu or "", "tuned", run.file))
    gpu = next((gpu for _, gpu, _, _ in given), "")
    points = []
    for row, where, what, file in given:
        flop = flop_of(row)
        if flop and where == gpu and row.dtype in HALF:
            points.append(SimpleNamespace(row=row, what=what, file=file, intensity=flop / bytes_of(row),
                                          tflops=1e-9 * flop / row.ms))
    return points, gpu, len(given) - len(points)


def charts(records):
    points, gpu, left_out = points_of(records)
    if not points:
        return ""
    card = next((card for card in CARDS if card[0] in gpu), None)
    notes = [] if card else [aside("The limits of this GPU are not known, so no limit is drawn.")]
    if left_out:
        notes.append(aside("%d timings are not drawn: of other dtypes or GPUs, or with no word of what they computed."
                          % left_out))
    cells = [[point.row.case, point.what, point.row.N, point.row.D, point.row.V, number(point.intensity, 4),
              number(point.tflops, 4), "%.1f %%" % (100 * point.tflops / card[1]) if card else None, point.file]
             for point in points]
    about = ("%s. Filled marks are forward passes, hollow ones have gradients. Bytes are those of inputs and outputs, "
             "each moved once; flop are those of the products that a pass makes." % (gpu or "GPU not recorded"))
    return figure("roofline", TITLE, about, drawing.both(lambda width: draw(points, card, width), TITLE, "roofline"),
                  *notes, table("points", COLUMNS, cells))


def name_of(point):
    return "D %d%s" % (point.row.D, ", kept sets" if point.row.kept is not None else "")


def draw(points, card, width):
    names = sorted({name_of(point) for point in points}, key=lambda name: (len(name), name))
    columns = 1 if width < 500 else 5
    top = 20 + 20 * (math.ceil((len(names) + 2) / columns))
    canvas = drawing.Canvas(width, 380 + top)
    low, high = min(point.intensity for point in points) / 1.5, max(point.intensity for point in points) * 1.3
    most = max([point.tflops for point in points] + [card[1]] * bool(card))
    axes = canvas.axes(58, top, 26, 50, xscale="log", yscale="log", xlim=(min(low, 100), max(high, 1000)),
                       ylim=(min(point.tflops for point in points) / 2, most * 1.4),
                       xlabel="arithmetic intensity (flop / byte)", ylabel="throughput (TFLOP/s)")
    for axis in (axes.xaxis, axes.yaxis):
        drawing.plain_ticks(axis)
    _draw_limits(axes, points, card)
    for number_, name in enumerate(names):
        look = {**drawing.series(number_), "linestyle": "none"}
        axes.plot([], [], label=name, **look)
        for point in (point for point in points if name_of(point) == name):
            is_forward = point.row.case == "forward"
            mark, = axes.plot([point.intensity], [point.tflops], markersize=7, alpha=0.85, **look,
                              markerfacecolor=look["color"] if is_forward else drawing.CARD)
            canvas.tip(mark, "%s · N %d · V %d · D %d · %s: %.3g TFLOP/s at %.3g flop/byte (%s)" % (
                point.row.case, point.row.N, point.row.V, point.row.D, point.what, point.tflops, point.intensity,
                point.file))
    canvas.figure.legend(loc="upper left", ncol=columns, fontsize=11, borderaxespad=0.3, columnspacing=1.2)
    return canvas


def _draw_limits(axes, points, card):
    """The lower of both limits from the left end to the right, and the best that the products alone reach."""
    low, high = axes.get_xlim()
    if card:
        ridge = card[1] * 1e12 / card[2]
        axes.plot([low, ridge, high], [low * card[2] * 1e-12, card[1], card[1]], color=drawing.INK, linewidth=1.3,
                  label="limits: %.0f TFLOP/s, %.2f TB/s" % (card[1], 1e-12 * card[2]))
    base = [2e-9 * point.row.gemms * point.row.active * point.row.D * point.row.V / point.row.bare_ms
            for point in points if point.row.bare_ms and point.row.gemms and point.row.active == point.row.N]
    if base:
        axes.axhline(max(base), color=drawing.INK, linewidth=1.3, dashes=(4, 3),
                     label="products alone: %.0f TFLOP/s" % max(base))
