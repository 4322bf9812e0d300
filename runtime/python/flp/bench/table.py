"""What a run found, for people."""
from . import sharp

COLUMNS = ("who", "ms", "least .. most", "ratio", "of first", "TFLOP/s", "memory", "less results")
ERRORS = ("logprob", "entropy", "grad_hidden", "grad_weight")
ERRORS_OF_DIVERGENCES = ("divergence", "loss", "grad_hidden", "grad_weight")
GRADS = {"grad_hidden": "dh", "grad_weight": "dW"}


def lines_of(rows):
    """Left-aligned columns as wide as their widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]


def bytes_text(count):
    """ "1.24 GB": decimal units."""
    if count is None:
        return "-"
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if count >= scale:
            return "%.3g %s" % (count / scale, unit)
    return "%d B" % count


def number_text(pattern, value):
    return "-" if value is None else pattern % value


def errors_of(row):
    return ERRORS_OF_DIVERGENCES if "divergence_error" in row else ERRORS


def cells(row):
    less = None if row["extra_bytes"] is None else row["extra_bytes"] - row["result_bytes"]
    return (row["peer"], "%.3f" % row["ms"], "%.3f .. %.3f" % (row["ms_low"], row["ms_high"]),
            number_text("%.3f", row["ratio"]), number_text("%.3f", row["first_ratio"]), "%.3g" % row["tflops"],
            bytes_text(row["extra_bytes"]), bytes_text(less),
            *(number_text("%.1e", row[name + "_error"]) for name in errors_of(row)))


def title_of(row):
    grads = ", gradients of %s" % " and ".join(row["grads"]) if row["grads"] else ""
    what = row.get("loss") or "entropy " + row["entropy"]
    what += " from a payload" if row.get("payload") else ""
    what = "%s with %s" % (row["policy"], what) if row.get("policy") else what
    teacher = "" if row.get("teacher_D") is None else " of one head" if row["one_head"] else " E=%d" % row["teacher_D"]
    rows = "" if row["data"] == sharp.RANDOM else ", %s rows" % row["data"]
    return "N=%d D=%d%s V=%d %s%s, %s, %s%s" % (row["N"], row["D"], teacher, row["V"], row["dtype"], rows, row["case"],
                                                what, grads)


def grouped(pairs):
    """{key: [values]} in order of appearance."""
    out = {}
    for key, value in pairs:
        out.setdefault(key, []).append(value)
    return out


def case_lines(rows, absent):
    """One case: who was measured, fastest first, then who was not and why; the absent are listed once, at the end."""
    measured = sorted((row for row in rows if row["ms"] is not None), key=lambda row: row["ms"])
    baseline, first = rows[0]["bare_ms"], rows[0]["first_ms"]
    out = ["", title_of(rows[0]) +
           ("" if baseline is None else ": %d GEMM baselines, %.3f ms" % (rows[0]["gemms"], baseline)) +
           ("" if first is None else "; by the first algorithms, %.3f ms" % first)]
    if measured:
        columns = COLUMNS + tuple(GRADS.get(name, name) for name in errors_of(rows[0]))
        out += lines_of([columns] + [cells(row) for row in measured])
    out += ["%s: rung %s, mode %s, plan %s" % (row["peer"], row["rung"], row["mode"], row["plan_id"])
            for row in measured if "rung" in row]
    out += ["%s: ran without torch.compile" % row["peer"] for row in measured if row.get("compiled") is False]
    reasons = grouped((row["reason"], row["peer"]) for row in rows if row["ms"] is None and row["peer"] not in absent)
    return out + ["not measured: %s: %s" % (", ".join(names), reason) for reason, names in reasons.items()]


def bare_lines(rows):
    if not rows:
        return []
    listed = [("N", "GEMM baseline", "backend", "ms", "least .. most", "TFLOP/s", "")]
    for row in rows:
        figures = ("-", row["reason"], "", "") if row["ms"] is None else (
            "%.3f" % row["ms"], "%.3f .. %.3f" % (row["ms_low"], row["ms_high"]), "%.3g" % row["tflops"],
            "best" if row["best"] else "")
        listed.append((str(row["N"]), row["product"], row["backend"], *figures))
    return [""] + lines_of(listed)


def entropy_lines(rows):
    """Of sharp rows, a line a number of rows."""
    known = {row["N"]: row["entropies"] for row in rows if row["data"] != sharp.RANDOM}
    return ["data: %s; entropies of %d rows in nats (quantiles): %s"
            % (rows[0]["data"], n, ", ".join("%.3g (%s)" % (value, fraction) for fraction, value in found.items()))
            for n, found in known.items()]


def peer_lines(states):
    """Versions of who is here, and how to get who is not."""
    here = ["%s %s" % (state["peer"], state["version"]) for state in states if state["version"]]
    out = ["", "present: " + ", ".join(here)] if here else [""]
    absent = grouped(((state["reason"], state["install"]), state["peer"]) for state in states if not state["version"])
    return out + ["absent: %s (%s); to have it: %s" % (", ".join(names), reason, install)
                  for (reason, install), names in absent.items()]


def text_of(record):
    """The whole, ready to print."""
    cases = grouped(((row["N"], row["case"], row.get("loss"), row["entropy"], tuple(row["grads"])), row)
                    for row in record["rows"])
    absent = [state["peer"] for state in record["peers"] if not state["version"]]
    lines = ["device: %s, driver %s, torch %s" % (record["gpu"], record["driver"], record["torch"])]
    lines += entropy_lines(record["rows"])
    lines += bare_lines(record["bare"])
    for rows in cases.values():
        lines += case_lines(rows, absent)
    notes = grouped((state["note"], state["peer"]) for state in record["peers"] if state["note"] and state["version"])
    lines += peer_lines(record["peers"])
    return "\n".join(lines + ["note: %s: %s" % (", ".join(names), note) for note, names in notes.items()]) + "\n"
