"""Numbers and tables as text."""
import html
import math

NONE = "–"


def number(value, digits=6):
    """At most that many significant digits, without trailing zeros."""
    return NONE if value is None else "%.*g" % (digits, value) if abs(value) < 1e15 else "%.3g" % value


def places(value, count):
    """With that many places, for columns."""
    return NONE if value is None else "%.*f" % (count, value) if abs(value) < 1e9 else "%.3g" % value


def size(count):
    """Bytes in a unit that a person reads: "87 MB"."""
    if count is None:
        return NONE
    step = min(int(math.log10(max(count, 1)) // 3), 5)
    return "%.3g %s" % (count / 1000**step, ("B", "kB", "MB", "GB", "TB", "PB")[step])


def ratio(over, under):
    return None if over is None or not under else over / under


def escape(text):
    return html.escape(str(text))


def table(caption, columns, rows):
    """A table behind a chart, closed until it is opened. A column whose name begins with # holds numbers."""
    kinds = [' class="n"' if name.startswith("#") else "" for name in columns]

    def line(tag, cells):
        return "<tr>%s</tr>\n" % "".join("<%s%s>%s</%s>" % (tag, kind, escape(NONE if cell is None else cell), tag)
                                          for kind, cell in zip(kinds, cells))
    return ('<details><summary>Table: %s (%d)</summary><div class="scroll" tabindex="0"><table>\n<thead>%s</thead>\n'
            "<tbody>%s</tbody></table></div></details>\n" % (
                escape(caption), len(rows), line("th", [name.lstrip("#") for name in columns]),
                "".join(line("td", row) for row in rows)))


def figure(name, title, about, *parts):
    return '<figure class="%s"><figcaption><h3>%s</h3><p>%s</p></figcaption>\n%s</figure>\n' % (
        name, escape(title), escape(about), "".join(parts))


def aside(words):
    return '<p class="dim">%s</p>\n' % escape(words)


def note(words):
    return '<p class="note">%s</p>\n' % escape(words)
