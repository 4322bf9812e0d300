#!/usr/bin/env python3
"""Makes autotune/report.png: the page of `flpgen report` as Chromium shows it on a desktop in light colours.

    python3 tests/cli/report_shot.py --flpgen build/bin/flpgen exhaustive.sqlite training.sqlite \\
        autotune/bench/bench*.json autotune/bench/peers*.json

The databases are what `flpgen tune --vocab 151936 --hidden 4096 --dtype bf16` recorded on an H200: once with --effort
exhaustive, once with --entropy backward --grad hidden,weight. autotune/bench/*.json alone will do too, without spreads
and reasons. --width, --height and --dark show the page otherwise; --from is where on it the picture begins. Needs
Chromium and Pillow, which brings the picture down to 160 colours and a third of the bytes.
"""
import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

COLOURS = 160

# Out of sight: what Chromium would draw dark by the machine's settings, and what the picture has no room for.
FRAME = """<!DOCTYPE html><style>html,body{{margin:0;overflow:hidden}}iframe{{border:0;display:block;position:absolute;
top:-{top}px;width:{width}px;height:{full}px}}</style><iframe src="{page}"></iframe>"""


def colours(page, dark):
    """The page without the choice between its colours, which headless Chromium makes by settings of its own."""
    return page.replace("@media (prefers-color-scheme:dark)", "@media all" if dark else "@media not all").replace(
        "color-scheme:light dark", "color-scheme:dark" if dark else "color-scheme:light")


def reduce(path):
    """The most frequent colours stay what they are, the rest goes to the nearest of them: grounds keep their tint."""
    image = Image.open(path).convert("RGB")
    frequent = sorted(image.getcolors(1 << 24), reverse=True)[:COLOURS]
    palette = Image.new("P", (1, 1))
    palette.putpalette([part for _, colour in frequent for part in colour] + list(frequent[0][1]) * (256 - len(frequent)))
    image.quantize(palette=palette, dither=Image.Dither.NONE).save(path, optimize=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("records", nargs="+")
    parser.add_argument("--flpgen", default="flpgen")
    parser.add_argument("--chromium", default="chromium")
    parser.add_argument("--out", default="autotune/report.png")
    parser.add_argument("--width", type=int, default=1000)
    parser.add_argument("--height", type=int, default=3265)
    parser.add_argument("--from", dest="top", type=int, default=0)
    parser.add_argument("--dark", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        page = Path(scratch) / "page.html"
        subprocess.run([args.flpgen, "report", *args.records, "--out", str(page)], check=True)
        page.write_text(colours(page.read_text(encoding="utf-8"), args.dark), encoding="utf-8")
        frame = Path(scratch) / "frame.html"
        frame.write_text(FRAME.format(top=args.top, width=args.width, full=args.top + args.height, page=page.name))
        out = Path(args.out).resolve()
        out.parent.mkdir(parents=True, exist_ok=True)
        out.unlink(missing_ok=True)
        # A headless window has a least width of its own: the frame keeps narrower pages narrow.
        done = subprocess.run([args.chromium, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                               "--allow-file-access-from-files", "--force-device-scale-factor=1",
                               f"--user-data-dir={scratch}/profile", f"--window-size={max(args.width, 500)},{args.height}",
                               f"--screenshot={out}", frame.as_uri()], capture_output=True, text=True, timeout=1800)
        if not out.exists():
            sys.exit("no picture: " + done.stderr[-2000:])
    reduce(out)


if __name__ == "__main__":
    main()
