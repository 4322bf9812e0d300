"""Charts of the tuner's records: the best of each kernel, and why candidates were turned down."""
import collections
import re
import textwrap

from . import drawing, lines
from .records import KINDS, REJECTED
from .text import NONE, aside, figure, number, places, ratio, table

BEST = "Best kernel of each kind against the matrix products alone"
BEST_ABOUT = ("Left of the dashed line is faster than cuBLASLt's products of the same shapes. Marks are medians, bars "
              "the least to the most. For dz, products and layout the whole backward pass is timed, with that one "
              "tuned; for forward_keep and what is tuned beside it the whole training step or the streamed step.")
BEST_COLUMNS = ("shape", "kernel", "tiling", "#ms", "#least", "#most", "#products' ms", "#ratio", "#error", "#SM MHz",
                "#W", "#rounds")
REASONS = "Candidates that were not timed, by reason"
MEANING = {"illegal": "cannot be built", "pruned": "the cost model put it behind",
           "wrong": "its numbers missed the reference", "failed": "did not build or run",
           "waiting": "the search ended before its turn"}
BARS_MAX = 16


def mode_of(spec):
    """" loss=..." or " mode=direction ..." of a spec that was tuned so, or that it keeps something; "" of others."""
    found = re.findall(r"(?<= )(?:loss=|mode=direction|keep)\S*", spec.text or "")
    return max(found, key=len, default="")  # one that keeps directions has both words


def shape_of(spec):
    """"Qwen3-8B · V 151936 · D 4096 · bf16 · N 8192 · loss=grpo+k3"."""
    words = [spec.model, "V %s" % (spec.vocab or NONE), "D %s" % (spec.hidden or NONE), spec.dtype,
             "N %s" % (spec.rows or NONE)]
    words += [name + value for name, value in (("entropy ", spec.entropy), ("gradients of ", spec.grads))
              if value not in (None, "", "none")]
    return " · ".join(word for word in [*words, mode_of(spec)] if word)


def record_of(records, index):
    """What tells two searches of one shape apart: "a.sqlite, run 2"; "" where there is no other."""
    own = records.specs[index]
    others = [spec for spec in records.specs if spec is not own and shape_of(spec) == shape_of(own)]
    file = records.runs[own.run].file
    words = [file] if others else []
    in_file = [spec for spec in others if records.runs[spec.run].file == file]
    words += ["run %d" % records.runs[own.run].id] if in_file else []
    words += ["spec %d" % own.id] if any(spec.run == own.run for spec in in_file) else []
    return ", ".join(words)


def best_of(records):
    """[(index of a spec, kind, candidate)]"""
    found = ((i, kind, records.best(i, kind)) for i in range(len(records.specs)) for kind in KINDS)
    return [(i, kind, best) for i, kind, best in found if best]


def best(records):
    groups, cells = collections.defaultdict(list), []
    for i, kind, found in best_of(records):
        base, shape = records.baseline_ms(i, kind), shape_of(records.specs[i])
        who = " · ".join(filter(None, [kind, record_of(records, i)]))
        groups[shape].append(lines.line(who, found.ms, base, found.ms_low, found.ms_high, KINDS.index(kind),
                                        "%s %s: %s ms" % (kind, found.tune, number(found.ms, 5))))
        cells.append([shape, kind, found.tune or "own", *(places(value, 3) for value in (
            found.ms, found.ms_low, found.ms_high, base, ratio(found.ms, base))), number(found.error, 3),
            number(found.clock_mhz, 4), number(found.power_w, 4), found.rounds])
    if not cells:
        return ""
    return figure("best", BEST, BEST_ABOUT, drawing.both(lambda width: lines.draw(
        list(groups.items()), "time / time of the products alone (×, less is faster)", width), BEST, "best"),
        table("best candidates", BEST_COLUMNS, cells))


def reasons_of(records):
    """[(status, reason with # for numbers, how many, the first)], the most frequent first."""
    found = {}
    for one in records.candidates:
        if one.status in REJECTED:
            told = one.reason or ("not reached before the search ended" if one.status == "waiting" else
                                  "no reason recorded")
            found.setdefault((one.status, re.sub(r"\d+", "#", told.removeprefix("tune: "))), []).append(one)
    return sorted(((status, told, len(some), some[0]) for (status, told), some in found.items()),
                  key=lambda reason: -reason[2])


def rejected(records):
    reasons = reasons_of(records)
    if not reasons:
        return ""
    counts = collections.Counter(one.status for one in records.candidates)
    timed = sum(count for status, count in counts.items() if status not in REJECTED)
    about = "%d candidates: %d were timed, %d rejected before, and %d not reached. # stands for numbers. %s." % (
        len(records.candidates), timed, len(records.candidates) - timed - counts["waiting"], counts["waiting"],
        "; ".join("%s: %s" % (status, MEANING[status]) for status in REJECTED if counts[status]))
    cells = [[status, told, count, one.reason or "", "%s %s" % (one.kind or "", one.tune or "")]
             for status, told, count, one in reasons]
    more = [aside("Only the %d most frequent reasons are drawn; the table has all." % BARS_MAX)]
    return figure("rejected", REASONS, about, drawing.both(lambda width: draw_reasons(
        reasons[:BARS_MAX], width), REASONS, "rejected"), *(more if len(reasons) > BARS_MAX else ()),
        table("reasons", ("rejected as", "reason, # for numbers", "#candidates", "an example", "its tiling"), cells))


def draw_reasons(reasons, width):
    """A bar below its reason."""
    words = [textwrap.wrap("%s: %s" % (status, told), int((width - 16) / lines.BOLD)) for status, told, _, _ in reasons]
    height = sum(30 + lines.LINE * len(one) for one in words) + 56
    canvas = drawing.Canvas(width, height)
    axes = canvas.axes(8, 4, 60, 52, xlim=(0, max(reason[2] for reason in reasons)), ylim=(height - 52, 4), yticks=[],
                       xlabel="candidates (count)")
    drawing.plain_ticks(axes.xaxis)
    sheet, y = canvas.sheet(), 4
    for (status, _, count, _), told in zip(reasons, words):
        for i, line in enumerate(told):
            sheet.text(8, y + 14 + lines.LINE * i, line)
        y += lines.LINE * len(told) + 12
        axes.barh([y], [count], height=14, color=drawing.COLOURS[REJECTED.index(status) + 1])
        sheet.text(8 + (width - 68) * count / axes.get_xlim()[1] + 6, y + 4, str(count), weight="bold")
        y += 18
    return canvas
