"""The page: head, summary, charts in their order, and at the foot where every number came from."""
import collections
import math

from .. import _version
from . import drawing, landscape, memory, passes, roofline, sharpness, tuning
from .records import REJECTED, clean
from .text import escape, note, number, ratio

SOURCES_MAX = 200
COLOUR = "--ground:%s;--card:%s;--ink:%s;--dim:%s;--rule:%s;--grid:%s;--note:%s;--note-rule:%s"
LIGHT = COLOUR % ("#fff", drawing.CARD, drawing.INK, drawing.DIM, drawing.RULE, drawing.GRID, "#fff4d6", "#b98900")
DARK = COLOUR % ("#14171a", *(drawing.ON_DARK[name] for name in (
    drawing.CARD, drawing.INK, drawing.DIM, drawing.RULE, drawing.GRID)), "#3a300f", "#d8a931")
STYLE = ":root{color-scheme:light dark;" + LIGHT + "}\n@media (prefers-color-scheme:dark){:root{" + DARK + "}}\n" + """
*{box-sizing:border-box}
body{margin:0 auto;max-width:960px;padding:24px 16px 48px;background:var(--ground);color:var(--ink);
font:16px/1.5 FONTS;font-variant-numeric:tabular-nums;overflow-wrap:anywhere}
h1{font-size:1.75rem;line-height:1.2;margin:0 0 .25rem}h2{font-size:1.3rem;margin:2.5rem 0 .5rem;line-height:1.25}
h3{font-size:1.05rem;margin:0 0 .15rem;line-height:1.3}p{margin:0 0 .75rem}
p.dim,figcaption p{color:var(--dim);font-size:.9rem}
.note{background:var(--note);border-left:4px solid var(--note-rule);padding:8px 12px;border-radius:4px;font-size:.9rem}
figure{margin:0 0 20px;padding:16px 24px;background:var(--card);border:1px solid var(--grid);border-radius:10px}
figure svg{display:block;width:100%;height:auto;margin:6px auto}
figure svg text{paint-order:stroke;stroke:var(--card);stroke-width:3px;stroke-linejoin:round}.narrow{display:none}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:12px;margin:20px 0;padding:0;
list-style:none}.tiles li{background:var(--card);border:1px solid var(--grid);border-radius:10px;padding:12px 16px}
.tiles b{display:block;font-size:1.5rem;line-height:1.2}.tiles span{color:var(--dim);font-size:.85rem}
.untimed{font-size:.85rem;color:var(--dim);margin:8px 0}.untimed p{margin:0}.untimed ul{margin:0;padding-left:1.2em}
.untimed b{color:var(--ink);font-weight:600}
details{margin:10px 0;font-size:.9rem}summary{cursor:pointer;color:var(--dim);padding:4px 0}
summary:hover{color:var(--ink)}details.more>summary{font-weight:600;color:var(--ink)}
.scroll{overflow-x:auto;margin-top:6px}table{border-collapse:collapse;font-size:.82rem;min-width:100%}
th,td{padding:4px 12px 4px 0;text-align:left;border-bottom:1px solid var(--grid);vertical-align:top;
overflow-wrap:normal;max-width:26rem}th{color:var(--dim);font-weight:600;white-space:nowrap}
tbody tr:hover{background:var(--grid)}td.n,th.n{text-align:right;white-space:nowrap}
footer{margin-top:40px;border-top:1px solid var(--rule);padding-top:12px;font-size:.85rem}
footer dl{margin:0 0 16px;display:grid;grid-template-columns:max-content 1fr;gap:2px 14px}
dt{color:var(--dim)}dd{margin:0}
code{font:.92em ui-monospace,"Liberation Mono",Menlo,monospace}
@media (max-width:760px){body{padding:16px 8px 32px}h1{font-size:1.4rem}figure{padding:12px 11px}.wide{display:none}
.narrow{display:block;max-width:520px;margin:auto}.tiles{grid-template-columns:1fr 1fr}
footer dl{grid-template-columns:1fr}
dd{margin-bottom:6px}}
@media print{figure{break-inside:avoid}}
""".replace("FONTS", drawing.FONTS) + drawing.STYLE


def text_of(records, options):
    """The page. options: note, landscapes, memory, as main.py has them. error: memory.Failed"""
    sections = [("Passes against the matrix products alone", passes.charts(records)),
                ("Best tuned kernels", tuning.best(records)),
                ("Sharpness of the rows", sharpness.charts(records)),
                ("Landscape of the tunables", landscape.charts(records, options.landscapes)),
                ("Rejected candidates", tuning.rejected(records)), ("Roofline", roofline.charts(records)),
                ("Memory", memory.chart(records, options.memory))]
    body = "".join("<h2>%s</h2>\n%s" % section for section in sections if section[1])
    return head(records, options) + (body or note("These records hold nothing to draw.")) + foot(records)


def title_of(records):
    if records.specs:
        return "flp: tuning and benchmarks" if records.rows else "flp: tuning"
    return "flp: benchmarks" if records.rows else "flp: memory against rows"


def head(records, options):
    title, gpus = title_of(records), dict.fromkeys(source.gpu for source in records.sources if source.gpu)
    about = escape(", ".join(gpus) or "no GPU in the records")
    if records.rows or records.specs:
        about += ". Times are milliseconds on the GPU; ratios are to the matrix products of the same shapes alone"
    return ('<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8"/>\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1"/>\n'
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\"/>\n"
            '<title>%s</title>\n<style>\n%s</style>\n</head>\n<body>\n<header><h1>%s</h1>\n<p class="dim">%s.</p>\n%s'
            "</header>\n<main>\n%s" % (title, STYLE, title, about, note(clean(options.note)) if options.note else "",
                                       tiles(records)))


def tiles(records):
    """What the records can know, and nothing else."""
    counts = collections.Counter(one.status for one in records.candidates)
    timed = counts["timed"] + counts["chosen"]
    rejected = sum(counts[status] for status in REJECTED if status != "waiting")
    found = [(str(count), one if count == 1 else many) for count, one, many in (
        (len(records.specs), "search", "searches"), (timed, "candidate timed", "candidates timed"),
        (rejected, "candidate rejected", "candidates rejected")) if count]
    ratios = [ratio(best.ms, records.baseline_ms(i, kind)) for i, kind, best in tuning.best_of(records)]
    logs = [math.log(one) for one in ratios if one]
    if logs:
        found.append(("%.3f×" % math.exp(sum(logs) / len(logs)), "best tuned time / the products' (geometric mean)"))
    if records.rows:
        found.append((str(len(records.rows)), "benchmark row%s" % ("s" * (len(records.rows) > 1))))
    items = "".join("<li><b>%s</b><span>%s</span></li>\n" % (value, name) for value, name in found)
    return '<ul class="tiles">\n%s</ul>\n' % items if items else ""


def foot(records):
    parts = ["</main>\n<footer>\n<h2>Where these numbers come from</h2>\n"]
    parts += [_source(source) for source in records.sources[:SOURCES_MAX]] or [note("No records were given.")]
    parts += ['<p class="dim">%s, run %s: %s</p>\n' % (escape(run.file), run.id, escape(_run(run)))
              for run in records.runs[:SOURCES_MAX]]
    if len(records.sources) > SOURCES_MAX:
        parts.append(note("Only the first %d records are listed." % SOURCES_MAX))
    if records.left_out:
        parts.append(note("%d rows of records name no pass, shape or time and are left out." % records.left_out))
    return "".join(parts) + '<p class="dim">Drawn by flp.report %s.</p>\n</footer>\n</body>\n</html>\n' % (
        escape(_version.__version__))


def _source(source):
    where = " · ".join(part or "not recorded" for part in (source.gpu, source.driver, source.date))
    pairs = [(source.what, escape(source.file)), ("GPU, driver, date", escape(where))]
    pairs += [(name, "<code>%s</code>" % escape(value)) for name, value in (
        ("sources", source.sources), ("command", source.command)) if value]
    return "<dl>\n%s</dl>\n" % "".join("<dt>%s</dt><dd>%s</dd>\n" % pair for pair in pairs)


def _run(run):
    words = ["seed %s" % run.seed, "effort %s" % run.effort, "finished" if run.finished else "not finished"]
    if run.flp_version:  # exported searches leave these out
        words += ["budget %s s" % number(run.budget_s), "flp " + run.flp_version,
                  "%s multiprocessors" % run.multiprocessors]
    return " · ".join(words)
