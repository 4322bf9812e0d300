"""python -m flp.report: files that are missing, wrong, odd or hostile, its options, and its layout in a browser."""
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys

import pytest

import report_sample
import transcripts
from flp_report_tool import draw, figures, needs_matplotlib, report
from test_flp_report import BENCH, add_timed, page, record, records, row_of  # noqa: F401

REFUSED = report_sample.TREE / "tests/golden/refused/report/files.txt"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
HOSTILE = "</title></style><script>alert(1)</script>\"'&\x01<img src=x onerror=alert(1)>\u202e $\\frac$ %s %n"


def test_without_records_there_is_nothing_to_draw(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "report.html").write_text("a page of before")
    done = report()
    assert done.returncode == 2 and done.stdout == "" and "expected records to draw, or --memory" in done.stderr
    assert (tmp_path / "report.html").read_text() == "a page of before"


def test_without_matplotlib_it_says_how_to_install_it(tmp_path):
    (tmp_path / "matplotlib.py").write_text("raise ModuleNotFoundError('no matplotlib', name='matplotlib')")
    path = os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]])
    done = subprocess.run([sys.executable, "-m", "flp.report", BENCH[0], "--out", tmp_path / "report.html"],
                          capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path})
    assert done.returncode == 3 and not (tmp_path / "report.html").exists()
    assert done.stderr == ("flp.report: flp.report needs matplotlib, which is not installed: pip install matplotlib\n")


@needs_matplotlib
def test_empty_records_report_that_they_hold_nothing(tmp_path):
    report_sample.create(tmp_path / "empty.db").close()
    (tmp_path / "empty.json").write_text('{"rows": []}')
    text, tree = draw(tmp_path, tmp_path / "empty.db", tmp_path / "empty.json")
    assert "hold nothing to draw" in text and not list(tree.iter("figure"))


def add_sparse(path, text):
    """A record with this text in every field that takes one, and few numbers."""
    db = report_sample.create(path)
    insert = report_sample.insert
    run = insert(db, "run", started=text, finished=text, command=text, gpu=text, driver=0, flp_version=text,
                 sources=text, effort=text)
    spec = insert(db, "spec", run=run, text=text, vocab=1000, hidden=64, dtype=text, entropy=text, grads=text, rows=8,
                  model=text)
    for kind in ("forward", text):
        for status in ("illegal", "pruned", "wrong", "failed", "timed", "timed", "chosen"):
            insert(db, "candidate", spec=spec, kind=kind, tune=text, status=status, reason=text, rounds=1,
                   ms=2.0 if status in ("timed", "chosen") else None)
    insert(db, "bare", spec=spec, product=text, rows=8, ms=1.0)
    db.commit()
    db.close()
    return path


@needs_matplotlib
def test_hostile_text_stays_text(tmp_path):
    made = {**row_of(), "case": HOSTILE, "peer": HOSTILE, "dtype": HOSTILE, "entropy": HOSTILE, "grads": [HOSTILE]}
    name = tmp_path / "<script>&'.json"
    name.write_text(json.dumps({**dict.fromkeys(("gpu", "driver", "sources_hash", "command", "date"), HOSTILE),
                                "rows": [made, {**made, "ms": None, "reason": HOSTILE}]}))
    text, tree = draw(tmp_path, add_sparse(tmp_path / "<b>.db", HOSTILE), name, "--note", HOSTILE)
    assert "<script" not in text and "<img" not in text and "onerror=alert(1)&gt;" in text
    assert not re.search("[\x00-\x09\x0b-\x1f\u202e]", text)
    assert not [key for element in tree.iter() for key in element.attrib if key.startswith("on")]


@needs_matplotlib
@pytest.mark.parametrize("ms", [1e12, 1e-9])
def test_odd_times_are_drawn(tmp_path, ms):
    text, _ = draw(tmp_path, record(tmp_path / "odd.json", row_of(ms=ms), row_of("policy", ms), row_of(N=1, D=1, V=1)))
    assert not re.search(r'[a-z]="[^"]*\b(nan|inf)\b', text)


@needs_matplotlib
def test_rows_of_other_records_are_counted(tmp_path):
    path = tmp_path / "other.json"
    path.write_text('{"rows": [{"variant": "x", "ms": 1}, 3, null]}')
    assert "3 rows of records name no pass, shape or time" in draw(tmp_path, path)[0]


def refused(tmp_path, *paths):
    out = tmp_path / "report.html"
    done = report(*paths, "--out", out)
    assert done.returncode == 4 and not out.exists(), done.stderr
    return done.stderr


@needs_matplotlib
def test_wrong_files_are_refused(tmp_path, records):  # noqa: F811
    """Questions of the text are calls of these, each of which makes a file."""
    def row(**fields):
        return record(tmp_path / "record.json", row_of(**fields))

    def document(text):
        path = tmp_path / "document.json"
        path.write_text(text, encoding="latin-1")
        return path

    def database(change):
        path = tmp_path / "changed.db"
        shutil.copy(str(records), str(path))
        db = sqlite3.connect(str(path))
        db.executescript(change)
        db.close()
        return path

    def ask(call):
        made = eval(call, {"row": row, "document": document, "database": database})
        return refused(tmp_path, made).replace(f"{tmp_path}/", "").splitlines()

    transcripts.check(REFUSED, None, ask)


def overwrite(data):
    data = bytearray(data)
    for at in range(4096, len(data), 4096):
        data[at:at + 512] = b"\xa5" * 512
    return data


@needs_matplotlib
@pytest.mark.parametrize("damage, said", [(lambda data: data[:5000], "damaged.db"), (overwrite, "damaged.db"),
                                          (lambda data: b"[" * 100000, "neither tuning records nor JSON")])
def test_damaged_files_are_refused(tmp_path, records, damage, said):  # noqa: F811
    (tmp_path / "damaged.db").write_bytes(damage(records.read_bytes()))
    assert said in refused(tmp_path, tmp_path / "damaged.db")


@needs_matplotlib
def test_files_that_cannot_be_opened(tmp_path):
    assert "none.db: No such file or directory" in refused(tmp_path, tmp_path / "none.db")
    assert "Is a directory" in refused(tmp_path, tmp_path)
    done = report(BENCH[0], "--out", tmp_path / "none" / "report.html")
    assert done.returncode == 4 and "none/report.html: No such file" in done.stderr


@needs_matplotlib
def test_a_file_is_read_whatever_its_name_is(tmp_path):
    assert figures(draw(tmp_path, add_timed(tmp_path / "a ?mode=rw#%41.db", [(4, 9, 1.0, 1)]))[1], "best")


@needs_matplotlib
def test_standard_output_and_summary(tmp_path):
    records = add_timed(tmp_path / "records.db", [(4, 9, 1.0, 1)])
    text, _ = draw(tmp_path, records)
    assert report(records, "--out", "-").stdout == text
    summary = json.loads(report(records, "--out", tmp_path / "again.html", "--json").stdout)
    assert summary["specs"] == 1 and summary["bytes"] == len(text.encode()) and summary["files"] == 1
    assert report(records, "--out", "-", "--json").returncode == 2
    assert report(records, "--landscapes", "-1").returncode == 2


# ---- in a browser

PROBE = """<script>
addEventListener("load", () => {
  const wrong = [], wide = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth > wide) wrong.push("page is wider than the screen");
  for (const svg of document.querySelectorAll("figure svg")) {
    const frame = svg.getBoundingClientRect();
    if (!frame.width) continue;
    if (frame.left < 0 || frame.right > wide + .5) wrong.push("a chart leaves the screen");
    const boxes = [...svg.querySelectorAll("text")].map(text => [text.textContent, text.getBoundingClientRect()]);
    for (const [text, box] of boxes)
      if (box.left < frame.left - 1 || box.right > frame.right + 1 || box.top < frame.top - 1 ||
          box.bottom > frame.bottom + 1)
        wrong.push("clipped: " + text);
    for (let i = 0; i < boxes.length; i++)
      for (let j = i + 1; j < boxes.length; j++) {
        const a = boxes[i][1], b = boxes[j][1];
        if (a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 4 && b.top < a.bottom - 4)
          wrong.push("over each other: " + boxes[i][0] + " / " + boxes[j][0]);
      }
  }
  for (const box of document.querySelectorAll(".tiles li, summary, h3, dd"))
    if (box.scrollWidth > box.clientWidth + 1) wrong.push("too wide: " + box.textContent.slice(0, 40));
  document.title = "checked " + wide + ": " + JSON.stringify(wrong);
});
</script></body>"""


@needs_matplotlib
@pytest.mark.skipif(not CHROMIUM, reason="Chromium is not installed")
@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_overlaps_or_is_clipped_in_chromium(tmp_path, page, width):  # noqa: F811
    text, _ = page
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*/>', "", text)
    text = text.replace('<details class="more"', '<details open="" class="more"').replace("</body>", PROBE)
    (tmp_path / "inner.html").write_text(text, encoding="utf-8")
    outer = tmp_path / "outer.html"  # a headless window has a least width of its own; a frame has none
    outer.write_text('<iframe src="inner.html" style="width:%dpx;height:3000px;border:0" onload="setTimeout(() => '
                     'document.body.append(this.contentDocument.title), 50)"></iframe>' % width, encoding="utf-8")
    done = subprocess.run([CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files",
                           "--hide-scrollbars", "--window-size=1400,3000", f"--user-data-dir={tmp_path}/profile",
                           "--virtual-time-budget=20000", "--dump-dom", outer.as_uri()],
                          capture_output=True, text=True, timeout=1800)
    found = re.search(r"checked (\d+): (\[.*?\])</body>", done.stdout, re.S)
    assert found, done.stdout[-500:] + done.stderr[-2000:]
    assert int(found.group(1)) == width and json.loads(found.group(2)) == []
