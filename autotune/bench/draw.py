#!/usr/bin/env python3
"""Draws peers.svg, the picture of README: time and memory of forward and backward, flp beside other libraries.

    python3 autotune/bench/draw.py            writes peers.svg beside the records it is drawn from
    python3 autotune/bench/draw.py --check    exit status 1 if peers.svg is not what the records give

Figures are those of peers_training.json (recompute, and the other libraries) and peers_saved.json (flp that saves
exponentials), both on one GPU. Standard library only; colours follow the reader's light or dark theme.
"""
import argparse
import json
import sys
from pathlib import Path
from xml.sax.saxutils import escape

FOLDER = Path(__file__).resolve().parent
PICTURE = FOLDER / "peers.svg"
NAMES = {"torch-16bit": "torch, scores in bf16", "torch-fp32": "torch, scores in fp32", "cce": "CCE, exact",
         "liger-mean": "Liger, of the mean alone", "liger": "Liger", "torch-compile": "torch.compile, chunked",
         "agilerl": "AgileRL", "verl": "verl", "liger-scaled": "Liger, CuTe", "lck": "liger-cute-kernels",
         "unsloth": "unsloth", "trl": "TRL"}
WIDTH, ROW, TOP, LEFT, GAP, BAR = 880, 28, 116, 196, 30, 16
PANEL = (WIDTH - LEFT - 2 * GAP) // 2
STYLE = """
text { font: 14px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2328 }
.title { font-size: 17px; font-weight: 600 } .small { font-size: 12px; fill: #59636e }
.number { font-size: 13px; stroke: #fff; stroke-width: 4px; paint-order: stroke } .ours { font-weight: 600 }
.bar { fill: #afb8c1 } .bar.ours { fill: #0969da }
.limit { stroke: #bc4c00; stroke-dasharray: 4 3 } .limits { fill: #bc4c00 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .small { fill: #9198a1 } .bar { fill: #545d68 } .bar.ours { fill: #4493f8 }
  .number { stroke: #0d1117 } .limit { stroke: #f0883e } .limits { fill: #f0883e }
}"""


def rows_of(name):
    """Rows of a record: forward and backward, both gradients, no entropy, timed."""
    record = json.loads((FOLDER / name).read_text())
    rows = {row["peer"]: row for row in record["rows"]
            if row["case"] == "forward+backward" and row["entropy"] == "none" and row["ms"] is not None}
    return record, rows


def bars_of(recompute, save):
    """[(name, row, is ours)], the fastest first."""
    bars = [("flp, save", save["flp"], True), ("flp, recompute", recompute["flp"], True)]
    bars += [(text, recompute[peer], False) for peer, text in NAMES.items()]
    return sorted(bars, key=lambda bar: bar[1]["ms"])


class Panel:
    """Bars of one figure. limits: [(value, text, anchor of the text)], drawn as dashed lines"""

    def __init__(self, left, title, form, largest, limits):
        self.left, self.title, self.form, self.limits = left, title, form, limits
        self.scale = (PANEL - 52) / largest  # the number stands behind its bar

    def at(self, value):
        return round(self.left + value * self.scale, 1)

    def head(self, bottom):
        yield f'<text x="{self.left}" y="{TOP - 38}">{escape(self.title)}</text>'
        for value, text, anchor in self.limits:
            x = self.at(value)
            yield f'<line class="limit" x1="{x}" x2="{x}" y1="{TOP - 12}" y2="{bottom}"/>'
            yield f'<text class="small limits" x="{x}" y="{TOP - 17}" text-anchor="{anchor}">{escape(text)}</text>'

    def bar(self, y, value, ours):
        kind, width = " ours" * ours, round(value * self.scale, 1)
        yield f'<rect class="bar{kind}" x="{self.left}" y="{y}" width="{width}" height="{BAR}" rx="2"/>'
        yield f'<text class="number{kind}" x="{self.at(value) + 6}" y="{y + 13}">{self.form % value}</text>'


def draw(record, bars, panels):
    """-> the text of the picture"""
    first = bars[0][1]
    bottom = TOP + ROW * len(bars)
    height = bottom + 44
    title = "Forward and backward of a language-model head"
    shape = f"N = {first['N']} tokens, V = {first['V']}, D = {first['D']}, {first['dtype']}, one {record['gpu']}"
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
             f'aria-label="{escape(title)}: time and memory of flp beside other libraries">', f"<style>{STYLE}</style>",
             f'<text class="title" x="8" y="26">{title}</text>', f'<text class="small" x="8" y="46">{shape}</text>']
    for panel in panels:
        lines += panel.head(bottom)
    for i, (name, row, ours) in enumerate(bars):
        y = TOP + ROW * i
        kind = "ours" if ours else "other"
        lines.append(f'<text class="{kind}" x="{LEFT - 12}" y="{y + 13}" text-anchor="end">{escape(name)}</text>')
        for panel, value in zip(panels, (row["ms"], row["extra_bytes"] / 1e9)):
            lines += panel.bar(y, value, ours)
    notes = ("GEMM baseline: the matrix products alone, by the fastest of eight cuBLASLt algorithms. "
             "Scores in bf16 round the logprob by up to %.2g nats." % next(
                 row["logprob_error"] for name, row, _ in bars if name == NAMES["torch-16bit"]))
    lines.append(f'<text class="small" x="8" y="{height - 14}">{escape(notes)}</text>')
    return "\n".join([*lines, "</svg>", ""])


def picture():
    record, recompute = rows_of("peers_training.json")
    saved, save = rows_of("peers_saved.json")
    if record["gpu"] != saved["gpu"]:
        sys.exit(f"draw.py: {record['gpu']} and {saved['gpu']}; one picture shows one GPU")
    bars = bars_of(recompute, save)
    slowest, largest = max(row["ms"] for _, row, _ in bars), max(row["extra_bytes"] for _, row, _ in bars) / 1e9
    baselines = [(save["flp"]["bare_ms"], "GEMM baseline of 3", "end"),
                 (recompute["flp"]["bare_ms"], "of 4 products", "start")]
    results = [(recompute["flp"]["result_bytes"] / 1e9, "the gradients", "start")]
    panels = [Panel(LEFT, "time, ms", "%.0f", slowest, baselines),
              Panel(LEFT + PANEL + GAP, "peak memory beyond the inputs, GB", "%.1f", largest, results)]
    return draw(record, bars, panels)


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--check", action="store_true", help="write nothing; compare")
    check, text = options.parse_args().check, picture()
    if check and PICTURE.read_text() != text:
        sys.exit("draw.py: peers.svg is not what the records give; draw it anew")
    if not check:
        PICTURE.write_text(text)


if __name__ == "__main__":
    main()
