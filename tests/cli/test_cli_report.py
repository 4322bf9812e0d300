"""flpgen report: every chart of a page, its messages for files that are missing, wrong or hostile, and its layout."""
import json
import re
import shutil
import sqlite3
import subprocess
import xml.etree.ElementTree

import pytest

import report_sample
from flpgen_tool import flpgen, needs_flpgen

pytestmark = needs_flpgen

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
RECORDS = sorted((report_sample.TREE / "autotune" / "bench").glob("*.json"))
TAIL = [path for path in RECORDS if path.name.startswith("bench_tail_")]
# Of random rows alone, beside all products.
BENCH = [path for path in RECORDS if not path.name.startswith(
    ("bench_tail_", "bench_kept_", "bench_lora", "bench_mixed", "bench_streamed_cross_entropy", "peers_sft",
     "peers_policy", "peers_text", "peers_base", "peers_random"))]
HOSTILE = "</title></style><script>alert(1)</script>\"'&\x01<img src=x onerror=alert(1)>\u202e %s %n"


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "records.db"
    report_sample.write(path)
    return path


def page(tmp_path, *arguments):
    """Draws a page -> (its text, the tree of its elements)."""
    out = tmp_path / "report.html"
    done = flpgen("report", *arguments, "--out", out)
    assert done.code == 0, done.err
    text = out.read_text(encoding="utf-8")
    return text, parse(text)


def parse(text):
    """The page is well-formed XML too."""
    return xml.etree.ElementTree.fromstring(text.replace("<!DOCTYPE html>", "", 1))


def figures(tree, name):
    return [figure for figure in tree.iter("figure") if name in figure.get("class").split()]


def words(element):
    return " ".join("".join(element.itertext()).split())


def texts(svg, name):
    return [words(text) for text in svg.iter("text") if text.get("class") == name]


def table(figure):
    """Rows of the table behind a chart, by column name."""
    names = [words(cell) for cell in figure.iter("th")]
    rows = [[words(cell) for cell in row.iter("td")] for row in figure.iter("tr")]
    return [dict(zip(names, row)) for row in rows if row]


def labels(svg):
    """Names of the lines of a chart, in groups by their headings; a name may take several lines."""
    found, group = {}, None
    for text in svg.iter("text"):
        if text.get("class") == "head":
            joined = group is not None and not found[group]
            name = " ".join([group, words(text)]) if joined else words(text)
            if joined:
                del found[group]
            group = name
            found[group] = []
        elif not text.get("class") and text.get("text-anchor") == "start":
            found[group].append((float(text.get("y")), words(text)))
    return {group: join_lines(lines) for group, lines in found.items()}


def join_lines(lines):
    """Lines of one label are 16 pixels apart, labels more."""
    joined, last = [], None
    for y, text in lines:
        if last is not None and y - last < 17:
            joined[-1] += " " + text
        else:
            joined.append(text)
        last = y
    return joined


def mark_of(path):
    shape = path.get("d")
    classes = path.get("class").split()
    return shape, classes[1], classes[2] if len(classes) > 2 else None


def peers_record(path):
    rows = [{"case": "forward", "peer": peer, "N": 8192, "D": 4096, "V": 151936, "dtype": "bf16", "entropy": "forward",
             "grads": [], "gemms": 1, "ms": ms, "ms_low": ms and ms * 0.98, "ms_high": ms and ms * 1.03, "bare_ms": 15.0,
             "first_ms": 16.0 if peer == "flp" else None, "extra_bytes": 1e9,
             "reason": None if ms else "needs a newer torch, which this machine does not have"}
            for peer, ms in (("flp", 14.7), ("naive", 61.0), ("compile", 44.0), ("one", 30.0), ("two", None))]
    path.write_text(json.dumps({"gpu": "NVIDIA H200", "driver": "d", "sources_hash": "0", "command": "c", "date": "now",
                                "rows": rows}))
    return path


SHARP = {"policy": 0.01, "text": 0.79, "base": 2.5, "random": 11.4}  # medians of the entropies, from sharp to flat
PRODUCT_MS = 14.0


def sharp_row(kind, ms, **fields):
    return {"case": "forward+backward", "N": 8192, "D": 4096, "V": 151936, "dtype": "bf16", "entropy": "none",
            "grads": ["hidden", "weight"], "gemms": 4, "data": kind, "entropies": {"0.1": 0.0, "0.5": SHARP[kind]},
            "ms": ms, "ms_low": ms and ms * 0.98, "ms_high": ms and ms * 1.03, "bare_ms": 4 * PRODUCT_MS,
            "extra_bytes": 1e9, **fields}


def sharp_record(path, rows, products=(15.0, PRODUCT_MS)):
    bare = [{"product": "scores", "N": 8192, "ms": ms} for ms in products]
    bare += [{"product": "scores", "N": 1024, "ms": 1.0}, {"product": "grad_hidden", "N": 8192, "ms": 13.0}]
    path.write_text(json.dumps({"gpu": "NVIDIA H200", "driver": "d", "sources_hash": "0", "command": "c", "date": "now",
                                "bare": bare, "rows": rows}))
    return path


def sharp_records(folder):
    """Records of flp.bench of each kind, and of flpgen bench --tail of one."""
    paths = [sharp_record(folder / f"peers_{kind}.json", [
        sharp_row(kind, 58.0, peer="flp", mode="recompute-rows"),
        sharp_row(kind, 20.0 + 12 * i, peer="flp, tail", mode="tail"), sharp_row(kind, 190.0, peer="cce"),
        sharp_row(kind, None, peer="verl", reason="is not here")]) for i, kind in enumerate(SHARP)]
    return [*paths, sharp_record(folder / "bench_tail_text.json", [sharp_row("text", 28.0, mode="tail", loss=None)])]


# ---- charts ----

AXES = {
    "best": ["time / GEMM time (×, less is faster)"],
    "peers": ["time / GEMM time (×, less is faster)"],
    "sharpness": ["time / one product's (×, less is faster)", "rows, from sharp to flat (entropy, median)"],
    "landscape": ["time / time of the default (×, less is faster)"],
    "rejected": ["candidates (count)"],
    "roofline": ["arithmetic intensity (flop / byte)", "throughput (TFLOP/s)"],
    "memory": ["rows N (tokens, 1k = 1024)", "workspace (bytes)"],
}


@pytest.mark.parametrize("name", AXES)
def test_chart_has_title_axes_units_legend_and_table(tmp_path, records, name):
    _, tree = page(tmp_path, records, *BENCH, *(sharp_records(tmp_path) if name == "sharpness" else ()))
    drawn = figures(tree, name)
    assert len(drawn) == {"landscape": 13, "peers": 2}.get(name, 1)  # 12 of the sample and an exported search
    for figure in drawn:
        assert words(figure.find("figcaption/h3")) and words(figure.find("figcaption/p"))
        assert len(figure.findall("ul[@class='legend']/li")) >= 2
        assert all(words(item) for item in figure.findall("ul[@class='legend']/li"))
        charts = {svg.get("class"): svg for svg in figure.findall("svg")}
        assert set(charts) == {"wide", "narrow"}
        for svg in charts.values():
            assert svg.get("role") == "img" and svg.get("aria-label") == words(figure.find("figcaption/h3"))
            assert sorted(texts(svg, "title")) == sorted(AXES[name])
            assert len(texts(svg, "tick")) >= 2
        assert len(table(figure)) >= (0 if name == "peers" and figure is drawn[1] else 2), "one table has all passes"


def test_page_needs_nothing_else(tmp_path, records):
    text, tree = page(tmp_path, records, *BENCH)
    lower = text.lower()
    for word in ("http://", "https://", "<script", "<link", "<img", "<iframe", "src=", "href", "url(", "@import", "onload"):
        assert word not in lower, word
    assert "prefers-color-scheme:dark" in text and "max-width:760px" in text
    assert not [element for element in tree.iter() if element.get("id")], "drawings for both widths would share ids"


def test_same_files_give_the_same_bytes(tmp_path, records):
    first, _ = page(tmp_path, records, *BENCH)
    second, _ = page(tmp_path, records, *BENCH)
    assert first == second


def test_best_is_the_chosen_candidate_over_the_gemm_baselines(tmp_path, records):
    _, tree = page(tmp_path, records)
    db = sqlite3.connect(str(records))
    rows = [row for row in table(figures(tree, "best")[0]) if row["shape"].startswith("sample 8B")]
    assert [row["kernel"] for row in rows] == ["forward", "dz", "products", "layout"]
    bare = dict(db.execute("SELECT product, ms FROM bare WHERE spec = 2"))
    stands_for = {"forward": ["scores"], "dz": list(bare), "products": list(bare), "layout": list(bare)}
    for row in rows:
        ms, = db.execute("SELECT ms FROM candidate WHERE spec = 2 AND kind = ? AND status = 'chosen'", [row["kernel"]]).fetchone()
        expected = sum(bare[product] for product in stands_for[row["kernel"]])
        assert float(row["ms"]) == pytest.approx(ms, rel=1e-4)
        assert float(row["GEMM ms"]) == pytest.approx(expected, rel=1e-4)
        assert float(row["ratio"]) == pytest.approx(ms / expected, rel=2e-3)


def tunables_of(svg):
    """Names at the head of a landscape's parts."""
    return [head for head in texts(svg, "head") if not head.endswith(" ms") and not head.endswith("×")]


def beyond(svg):
    """Candidates that are counted at the edge of a landscape, not drawn."""
    return sum(int(text[1:]) for text in texts(svg, "dim") if re.match(r"\+\d+$", text))


def add_timed(path, candidates):
    """A record of one spec: stages, rounds, ratio, whether it was chosen."""
    db = report_sample.create(path)
    run = report_sample.insert(db, "run", gpu="NVIDIA H200", driver=13000)
    spec = report_sample.insert(db, "spec", run=run, vocab=1000, hidden=64, dtype="bf16", entropy="none", grads="none", rows=8)
    for stages, rounds, ratio, chosen in candidates:
        report_sample.insert(db, "candidate", spec=spec, kind="forward", ratio=ratio, rounds=rounds, ms=2.0 * (ratio or stages),
                             tune="ping-pong,128x192,stages=%d,cluster=2,raster=8" % stages, status="chosen" if chosen else "timed")
    db.commit()
    db.close()


def test_landscape_draws_every_timed_candidate_and_marks_the_best(tmp_path, records):
    _, tree = page(tmp_path, records)
    timed, = sqlite3.connect(str(records)).execute(
        "SELECT count(*) FROM candidate WHERE spec = 1 AND kind = 'forward' AND status IN ('timed', 'chosen')").fetchone()
    figure = figures(tree, "landscape")[0]
    assert len(table(figure)) == timed
    assert [row["status"] for row in table(figure)].count("chosen") == 1 and table(figure)[0]["status"] == "chosen"
    svg = figure.find("svg")
    heads = tunables_of(svg)
    assert heads == ["schedule", "tile (rows × columns)", "stages", "cluster (CTAs)", "raster (row panels)"]
    dots = [path for path in svg.iter("path") if path.get("class").startswith("mark")]
    assert len(dots) + beyond(svg) == timed * len(heads)
    assert len([dot for dot in dots if "s1" in dot.get("class")]) == len(heads)
    layouts = [figure for figure in figures(tree, "landscape") if "layout" in words(figure.find("figcaption/h3"))]
    assert tunables_of(layouts[0].find("svg")) == ["chunk of vocab (columns)"]


def test_an_exported_search_is_a_landscape(tmp_path):
    export, = [path for path in BENCH if path.name == "tune_forward_4096.json"]
    record = json.loads(export.read_text())
    _, tree = page(tmp_path, export)
    figure, = figures(tree, "landscape")
    svg = figure.find("svg")
    ratios = [row["ratio"] for row in record["rows"]]
    best = max(record["rows"], key=lambda row: row["tune"] == record["searches"][0]["chosen"])["ratio"]
    assert max(ratios) > 1.3 * best, "the slowest would squash the rest"
    edge = max(1.2 * best, best * record["searches"][0]["bare_ms"] / record["searches"][0]["chosen_ms"])
    slower = len([ratio for ratio in ratios if ratio > edge * 1.03])
    assert beyond(svg) >= slower * len(tunables_of(svg)) > 0
    dots = [path for path in svg.iter("path") if path.get("class").startswith("mark")]
    assert len(dots) + beyond(svg) == len(ratios) * len(tunables_of(svg))
    chosen = [row["kernel"] + ":" + row["tiling"] for row in table(figures(tree, "best")[0])]
    assert chosen == ["forward:" + record["searches"][0]["chosen"]]
    rejected, = figures(tree, "rejected")
    assert "missing" in rejected.get("class") and "exported searches the timed ones alone" in words(rejected)


@pytest.mark.parametrize("search, rows", [
    (3, [{"tune": "x", "ms": 1.0}]),
    ({"chosen": 7, "bare_ms": "x"}, [{"tune": HOSTILE, "ms": 1e308, "ratio": -1, "rounds": 2**62}, {"tune": 5}, None]),
    ({"chosen": "x", "bare_ms": -1.0}, [{"tune": "x", "ms": 5e-324, "ratio": 1e308, "rounds": -1}]),
])
def test_odd_exported_searches_are_drawn_or_left_out(tmp_path, search, rows):
    path = tmp_path / "odd.json"
    path.write_text(json.dumps({"spec": None, "N": -5, "kind": "forward", "searches": [search], "rows": rows}))
    text, tree = page(tmp_path, path)
    assert len(table(figures(tree, "landscape")[0])) == len([row for row in rows if row and "ms" in row])
    assert not re.search(r"[\"( ](nan|-?inf)[\") ]", text)


def test_values_cost_what_their_best_does(tmp_path):
    """One tunable, three values: the head shows the worst, a value the fastest of those timed longest."""
    path = tmp_path / "three.db"
    add_timed(path, [(4, 9, 1.0, 1), (4, 1, 0.9, 0), (5, 9, 1.04, 0), (6, 3, 1.1, 0), (6, 3, 1.2, 0), (6, 1, 4.0, 0)])
    _, tree = page(tmp_path, path)
    figure, = figures(tree, "landscape")
    svg = figure.find("svg")
    assert tunables_of(svg)[2] == "stages"
    assert [text for text in texts(svg, "dim") if text.startswith("worst")] == ["worst value: +10.0 %"]
    assert beyond(svg) == 5, "the slowest, once under every tunable"
    told = [words(text).split(" · ")[0] for text in svg.iter("text") if words(text).endswith(" ms")]
    assert told == ["1.000×"] * 2 + ["1.000×", "1.040×", "1.100×"] + ["1.000×"] * 2
    assert [text for text in texts(svg, "title")] == ["time / time of the default (×, less is faster)"]


def test_records_without_ratios_are_compared_by_time(tmp_path):
    path = tmp_path / "times.db"
    add_timed(path, [(4, 9, None, 1), (5, 9, None, 0)])
    _, tree = page(tmp_path, path)
    assert texts(figures(tree, "landscape")[0].find("svg"), "title") == ["time / time of the chosen (×, less is faster)"]


def test_landscapes_are_as_many_as_asked_for(tmp_path, records):
    text, tree = page(tmp_path, records, "--landscapes", 5)
    assert len(figures(tree, "landscape")) == 5 and "5 of 12 landscapes are drawn" in text


def test_rejected_are_counted_by_reason(tmp_path, records):
    _, tree = page(tmp_path, records)
    rows = table(figures(tree, "rejected")[0])
    for status in ("illegal", "pruned", "wrong", "failed", "waiting"):
        expected, = sqlite3.connect(str(records)).execute("SELECT count(*) FROM candidate WHERE status = ?", [status]).fetchone()
        assert sum(int(row["candidates"]) for row in rows if row["rejected as"] == status) == expected > 0
    assert len([row for row in rows if row["rejected as"] == "illegal"]) == 2, "numbers do not split a reason"
    assert all("#" not in row["an example"] for row in rows)


def test_peers_stand_beside_ours_with_their_reasons(tmp_path):
    _, tree = page(tmp_path, peers_record(tmp_path / "peers.json"))
    figure = figures(tree, "peers")[0]
    legend = [words(item) for item in figure.findall("ul/li")]
    assert legend == ["flp", "naive", "compile", "one", "GEMM baselines (1×)"], "no mark for what was not timed"
    assert untimed(figure) == ["two needs a newer torch, which this machine does not have"]
    assert {row["who"]: row["of first"] for row in table(figure)}["flp"] == "0.919"
    assert {row["of first"] for row in table(figure) if row["who"] != "flp"} == {"–"}, "older records have none"
    assert {row["who"]: row["ratio"] for row in table(figure)} == {"flp": "0.980", "naive": "4.067", "compile": "2.933",
                                                                  "one": "2.000", "two": "–"}


def untimed(figure):
    return [words(item) for item in figure.findall("div[@class='untimed']/ul/li")]


def test_names_that_were_not_timed_are_listed_once(tmp_path):
    record = json.loads(peers_record(tmp_path / "peers.json").read_text())
    missing = record["rows"][-1]
    here = dict(missing, peer="one", N=1024, reason="does not train")
    record["rows"] += [dict(record["rows"][0], N=1024), here, here, dict(here, peer="naive"), dict(missing, peer="three"),
                       dict(missing, N=1024), dict(missing, peer="four"), dict(missing, peer="four", N=1024, reason="is slow")]
    path = tmp_path / "more.json"
    path.write_text(json.dumps(record))
    figure = figures(page(tmp_path, path)[1], "peers")[0]
    assert untimed(figure) == ["two, three " + missing["reason"], "four " + missing["reason"] + "; is slow"]
    for svg in figure.findall("svg"):
        assert " ".join(texts(svg, "dim")) == "not timed: one, naive: does not train"


def test_marks_report_fifteen_names_apart(tmp_path):
    record = json.loads(peers_record(tmp_path / "peers.json").read_text())
    names = ["flp"] + [f"peer-{i}" for i in range(14)]
    record["rows"] = [dict(record["rows"][1], peer=name, ms=20.0 + i) for i, name in enumerate(names)]
    path = tmp_path / "many.json"
    path.write_text(json.dumps(record))
    figure = figures(page(tmp_path, path)[1], "peers")[0]
    items = [item for item in figure.findall("ul[@class='legend']/li") if item.find("svg/path") is not None]
    assert [words(item) for item in items] == names
    marks = [mark_of(item.find("svg/path")) for item in items]
    assert len(set(marks)) == 15
    own, others = marks[0], marks[1:]
    assert own[0] not in [shape for shape, _, _ in others] and own[1] not in [colour for _, colour, _ in others]
    assert all(a != b for left, right in zip(marks, marks[1:]) for a, b in zip(left, right)), "neighbours differ in all three"
    said = [item.find("svg").get("aria-label") for item in items]
    assert len(set(said)) == 15 and said[0] == "blue circle on a solid line"
    for svg in figure.findall("svg"):
        drawn = [path for path in svg.iter("path") if path.get("class").startswith("mark")]
        assert [mark_of(path) for path in drawn] == marks, "a line has the mark of its name"
        stems = [line.get("class").split()[1:] for line in svg.iter("line") if line.get("class").startswith("stem")]
        assert stems == [list(mark[1:]) for mark in marks]


def test_labels_of_unequal_rows_are_unequal(tmp_path):
    twice = json.loads(peers_record(tmp_path / "peers.json").read_text())
    twice["rows"] += [dict(twice["rows"][0], rounds=3), dict(twice["rows"][1], variant="a,b=1"), dict(twice["rows"][1], run=2)]
    (tmp_path / "same").mkdir()
    for path in (tmp_path / "twice.json", tmp_path / "same" / "twice.json"):
        path.write_text(json.dumps(twice))
        twice["rows"] = twice["rows"][2:4]
    _, tree = page(tmp_path, *BENCH, tmp_path / "twice.json", tmp_path / "same" / "twice.json")
    for figure in figures(tree, "peers"):
        for svg in figure.findall("svg"):
            found = labels(svg)
            assert len(found) > 5
            for group, names in found.items():
                assert len(set(names)) == len(names), (group, names)
            assert not [text for text in svg.iter("text") if "…" in words(text)], "there is room for every label"
    found = labels(figures(tree, "peers")[0].find("svg"))
    steps = [group for group in found if group.startswith("step")]
    assert len(steps) == 4
    assert all(" · loss nll · " in group or " · loss grpo+k3 · " in group for group in steps)
    assert "flp · twice · row 1" in str(found) and "flp · twice · row 2" in str(found)
    assert "one · row 1" in str(found) and "one · row 2" in str(found), "of files of one name"
    assert "naive · a, b=1" in str(found) and "naive · run 2" in str(found)
    assert {row["loss"] for row in table(figures(tree, "peers")[0]) if row["pass"] == "step"} == {"nll", "grpo+k3"}


def test_labels_of_searches_of_one_file_are_unequal(tmp_path):
    for name in ("one.db", "two.db"):
        add_timed(tmp_path / name, [(4, 9, 1.0, 1)])
    db = sqlite3.connect(str(tmp_path / "two.db"))
    run = report_sample.insert(db, "run", gpu="NVIDIA H200", driver=13000)
    spec = report_sample.insert(db, "spec", run=run, vocab=1000, hidden=64, dtype="bf16", entropy="none", grads="none", rows=8)
    report_sample.insert(db, "candidate", spec=spec, kind="forward", ms=2.0, rounds=1, tune="raster=4", status="chosen")
    db.commit()
    db.close()
    _, tree = page(tmp_path, tmp_path / "one.db", tmp_path / "two.db")
    found, = labels(figures(tree, "best")[0].find("svg")).values()
    assert found == ["forward · one.db", "forward · two.db, run 1", "forward · two.db, run 2"]


@pytest.mark.parametrize("files, title, tiles", [
    (["peers"], "flp: benchmarks", ["benchmark rows"]),
    (["records"], "flp: tuning", ["searches", "candidates timed", "candidates rejected",
                                  "best tuned time / GEMM time (geometric mean)"]),
    (["export"], "flp: tuning", ["search", "candidates timed", "best tuned time / GEMM time (geometric mean)"]),
    (["export", "peers"], "flp: tuning and benchmarks", ["search", "candidates timed",
                                                         "best tuned time / GEMM time (geometric mean)", "benchmark rows"]),
    ([], "flp: memory against rows", []),
])
def test_title_and_tiles_claim_what_the_records_know(tmp_path, records, files, title, tiles):
    given = {"peers": peers_record(tmp_path / "peers.json"), "records": records,
             "export": next(path for path in BENCH if path.name == "tune_forward_4096.json")}
    text, tree = page(tmp_path, *([given[name] for name in files] or ["--vocab", "1000", "--hidden", "64"]))
    assert [words(tree.find("head/title")), words(tree.find("body/header/h1"))] == [title, title]
    assert [words(item.find("span")) for item in tree.findall("body/main/ul[@class='tiles']/li")] == tiles


def test_every_drawing_has_a_role_and_a_label(tmp_path, records):
    _, tree = page(tmp_path, records, *BENCH, peers_record(tmp_path / "peers.json"))
    drawings = list(tree.iter("svg"))
    assert len(drawings) > 60
    for svg in drawings:
        assert svg.get("role") == "img" and svg.get("aria-label").strip() and not svg.get("aria-hidden")
    for legend in tree.iter("ul"):
        if legend.get("class") == "legend":
            said = [(item.find("svg").get("aria-label"), words(item)) for item in legend.findall("li")]
            assert len(set(said)) == len(said)


def test_times_beyond_the_axis_are_arrows_and_flp_alone_is_folded(tmp_path):
    _, tree = page(tmp_path, peers_record(tmp_path / "peers.json"), *BENCH)
    peers, alone = figures(tree, "peers")
    rows = [row for row in table(peers) if row["who"] != "flp" and row["ratio"] != "–"]
    arrows = [path for path in peers.find("svg").iter("path") if path.get("class").startswith("arrow")]
    assert len(arrows) == len([row for row in rows if float(row["ratio"]) > 3.6]) > 0
    assert [folded for folded in tree.iter("details") if folded.get("class") == "more" and alone in list(folded)]
    assert [words(item) for item in alone.findall("ul/li")] == ["flp", "GEMM baselines (1×)"]


# ---- sharpness ----

def test_sharpness_is_told_in_products_of_the_same_record(tmp_path):
    _, tree = page(tmp_path, *sharp_records(tmp_path))
    figure, = figures(tree, "sharpness")
    assert words(figure.find("figcaption/p")).startswith(
        "forward+backward · N 8192 · D 4096 · V 151936 · bf16 · entropy none · grads hidden,weight.")
    legend = [words(item) for item in figure.findall("ul/li")]
    assert legend == ["flp", "flp, tail", "cce", "one product of hidden and weight (1×)"], "verl has no time"
    rows = table(figure)
    assert [row["rows"] for row in rows] == ["policy"] * 3 + ["text"] * 4 + ["base"] * 3 + ["random"] * 3
    expected = {"flp": 58, "cce": 190}
    for row in rows:
        assert float(row["products"]) == pytest.approx(float(row["ms"]) / PRODUCT_MS, rel=1e-3)
        assert float(row["product ms"]) == PRODUCT_MS and float(row["median entropy"]) == pytest.approx(SHARP[row["rows"]])
        assert float(row["ms"]) == expected.get(row["who"], float(row["ms"]))
    assert [row["ms"] for row in rows if row["who"] == "flp, tail"] == ["20.000", "28.000", "32.000", "44.000", "56.000"]
    assert {row["file"] for row in rows if row["ms"] == "28.000"} == {"bench_tail_text.json"}


def test_sharpness_draws_every_time_and_joins_each_name(tmp_path):
    _, tree = page(tmp_path, *sharp_records(tmp_path))
    figure, = figures(tree, "sharpness")
    for svg in figure.findall("svg"):
        marks = [path for path in svg.iter("path") if path.get("class").startswith("mark")]
        assert len(marks) == 13
        assert len([line for line in svg.iter("line") if line.get("class").startswith("curve")]) == 3 * 3
        ticks = texts(svg, "tick")
        assert ["policy", "0.01 nats", "text", "0.79 nats", "base", "2.5 nats", "random", "11 nats"] == ticks[-8:]
        left, right = 0, float(svg.get("viewBox").split()[2])
        places = [tuple(map(float, re.match(r"translate\(([\d.]+) ([\d.]+)\)", mark.get("transform")).groups()))
                  for mark in marks]
        assert all(left < x < right for x, _ in places) and len(set(places)) == 13, "none covers another"
        told = [mark.find("title").text for mark in marks]
        assert told[0] == "flp, tail, policy rows: 1.43 products, 20 ms (peers_policy.json)"
        height = {text: y for text, (_, y) in zip(told, places)}
        assert [height[text] for text in sorted(told, key=lambda text: -float(text.split(": ")[1].split()[0]))] == \
            sorted(height[text] for text in told), "less is lower"


def test_who_was_timed_on_random_rows_alone_is_not_in_the_chart_of_sharpness(tmp_path):
    records = sharp_records(tmp_path)
    records.append(sharp_record(tmp_path / "saved.json", [sharp_row("random", 40.0, mode="save"),
                                                          sharp_row("random", 41.0, peer="liger")]))
    older = sharp_row("random", 57.0)
    del older["data"], older["entropies"]
    records.append(sharp_record(tmp_path / "older.json", [older]))
    figure, = figures(page(tmp_path, *records)[1], "sharpness")
    assert {row["who"] for row in table(figure)} == {"flp", "flp, tail", "cce"}
    assert [row["file"] for row in table(figure) if row["ms"] == "57.000"] == ["older.json"], "those had random rows"


def test_without_sharp_rows_there_is_no_section_of_them(tmp_path):
    text, tree = page(tmp_path, *[path for path in sharp_records(tmp_path) if path.name == "peers_random.json"], *BENCH)
    assert not figures(tree, "sharpness") and "Sharpness" not in text


@pytest.mark.parametrize("change", [dict(data="bytes"), dict(N=77), dict(case="forward"), dict(grads=[]), dict(ms=0)],
                         ids=str)
def test_rows_that_say_nothing_of_sharpness_are_left_out_of_it(tmp_path, change):
    """An unknown kind, no product of as many rows, no gradients, no time."""
    odd = sharp_record(tmp_path / "odd.json", [{**sharp_row("policy", 58.0, peer="flp"), **change}])
    assert not figures(page(tmp_path, odd)[1], "sharpness")
    figure, = figures(page(tmp_path, odd, *sharp_records(tmp_path))[1], "sharpness")
    assert "odd.json" not in {row["file"] for row in table(figure)}


def test_peers_of_other_rows_are_another_group(tmp_path):
    _, tree = page(tmp_path, *sharp_records(tmp_path))
    groups = labels(figures(tree, "peers")[0].find("svg"))
    assert [group.split(" · ")[-1] for group in groups] == ["grads hidden,weight", "base rows", "policy rows", "text rows"]
    assert sorted(next(names for group, names in groups.items() if group.endswith("text rows"))) == [
        "cce", "flp", "flp, tail · bench_tail_text", "flp, tail · peers_text"]


def test_records_of_tail_mode_are_drawn_against_sharpness(tmp_path):
    """Of each kind of rows; a frozen head and a step in figures of their own."""
    _, tree = page(tmp_path, *RECORDS)
    drawn = figures(tree, "sharpness")
    assert len(drawn) == 3 and len(TAIL) == 6
    both = next(figure for figure in drawn if "text" in {row["rows"] for row in table(figure)})
    assert list(dict.fromkeys(row["rows"] for row in table(both))) == ["policy", "text", "base", "random"]
    for path in TAIL:
        row = [row for row in json.loads(path.read_text())["rows"] if row["mode"] == "tail"][-1]
        found = [line for figure in drawn for line in table(figure) if (line["file"], line["mode"]) == (path.name, "tail")]
        assert [line["products"] for line in found] == [f"{row['ratio']:.3f}"]


def test_roofline_has_a_series_for_each_hidden_size_and_the_limits_of_the_card(tmp_path):
    _, tree = page(tmp_path, *BENCH)
    figure = figures(tree, "roofline")[0]
    legend = [words(item) for item in figure.findall("ul/li")]
    timed = [json.loads(path.read_text())["rows"] for path in BENCH if path.name.startswith("bench_")]
    sizes = [f"D {depth}" for depth in sorted({row["D"] for rows in timed for row in rows})]
    assert len(sizes) > 3 and legend[:len(sizes)] == sizes
    assert "limits of the card: 989 TFLOP/s dense bf16, 4.80 TB/s" in legend
    row = [row for row in table(figure) if row["pass"] == "forward · N 65536 · V 248320 · bench_forward_long.json"][0]
    n, d, v = 65536, 2048, 248320
    record = next(path for path in BENCH if str(path).endswith("bench_forward_long.json"))
    measured = json.loads(record.read_text())["rows"][0]["ms"]
    moved = 2 * d * (n + v) + 8 * n + 8 * n  # operands and int64 targets; logprob and entropy
    assert float(row["flop / byte"]) == pytest.approx(2 * n * d * v / moved, rel=1e-3)
    assert float(row["TFLOP/s"]) == pytest.approx(2e-9 * n * d * v / measured, rel=1e-3)


def bytes_of(cell):
    value, unit = cell.split()[:2]
    return float(value) * {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}[unit]


def test_memory_is_what_explain_reports(tmp_path):
    _, tree = page(tmp_path, "--vocab", 248320, "--hidden", 2048)
    rows = table(figures(tree, "memory")[0])
    explained = flpgen("explain", "--vocab", 248320, "--hidden", 2048, "--grad", "hidden,weight", "--rows",
                       ",".join(row["N"] for row in rows), "--json", FLP_CUDA_LIBRARY="/nonexistent/libcuda.so.1").json()["rows"]
    assert len(rows) == len(explained) == 10
    for found, part in zip(rows, explained):
        assert len(found) == 1 + len(part["ways"])
        for way in part["ways"]:
            assert bytes_of(found[way["name"]]) == pytest.approx(way["workspace_bytes"], rel=6e-3)
            assert found[way["name"]].endswith("(beyond)") == (not way["fits"])
        plan = {layout["pass"]: layout for layout in part["assumed_layouts"]}["forward"]
        assert bytes_of(found["score"]) == pytest.approx(plan["workspace_bytes"], rel=6e-3)
    own = [item for item in figures(tree, "memory")[0].findall("ul/li") if "blue circle" in item.find("svg").get("aria-label")]
    assert [words(item) for item in own] == ["score"], "the naive way has not flp's mark"
    scoring = {int(row["N"]): bytes_of(row["score"]) for row in rows}
    assert max(scoring.values()) <= 256 * 2**20 and scoring[65536] == pytest.approx(181e6, rel=6e-3), "as README has it"


# ---- what is missing or wrong ----

def test_without_records_there_is_nothing_to_draw(tmp_path):
    (tmp_path / "report.html").write_text("a page of before")
    done = flpgen("report", cwd=tmp_path)
    assert done.code == 2 and done.out == "" and "expected records to draw, or --vocab and --hidden" in done.err
    assert (tmp_path / "report.html").read_text() == "a page of before"
    assert "default report.html, replaced if it is there" in " ".join(flpgen("report", "-h").out.split())


def test_empty_records_report_what_is_missing(tmp_path):
    report_sample.create(tmp_path / "empty.db").close()
    (tmp_path / "empty.json").write_text('{"rows": []}')
    _, tree = page(tmp_path, tmp_path / "empty.db", tmp_path / "empty.json")
    for name in AXES.keys() - {"sharpness"}:
        figure, = figures(tree, name)
        assert "missing" in figure.get("class") and "Not drawn." in words(figure) and figure.find("svg") is None


def add_sparse(path, text):
    """A record with this text in every field that takes one, and few numbers."""
    db = report_sample.create(path)
    insert = report_sample.insert
    run = insert(db, "run", started=text, finished=text, command=text, gpu=text, driver=0, flp_version=text, sources=text,
                 effort=text)
    spec = insert(db, "spec", run=run, text=text, vocab=1000, hidden=64, dtype=text, entropy=text, grads=text, rows=8, model=text)
    for kind in ("forward", text):
        for status in ("illegal", "pruned", "wrong", "failed", "timed", "timed", "chosen"):
            insert(db, "candidate", spec=spec, kind=kind, tune=text, status=status, reason=text, rounds=1,
                   ms=2.0 if status in ("timed", "chosen") else None)
    insert(db, "bare", spec=spec, product=text, rows=8, ms=1.0)
    db.commit()
    db.close()
    return path


def test_hostile_text_stays_text(tmp_path):
    row = {"case": HOSTILE, "peer": HOSTILE, "N": 8, "D": 64, "V": 1000, "dtype": HOSTILE, "entropy": HOSTILE,
           "grads": [HOSTILE], "gemms": 1, "ms": 1.0, "bare_ms": 2.0, "reason": HOSTILE}
    record = dict.fromkeys(("gpu", "driver", "sources_hash", "command", "date"), HOSTILE)
    name = tmp_path / "<script>&'.json"
    name.write_text(json.dumps(dict(record, rows=[row, dict(row, ms=None)])))
    text, tree = page(tmp_path, add_sparse(tmp_path / "<b>.db", HOSTILE), name, "--note", HOSTILE)
    clean, clean_tree = page(tmp_path, add_sparse(tmp_path / "plain.db", "plain"))
    allowed = {element.tag for element in clean_tree.iter()} | {"path", "figure", "svg", "polyline", "rect"}
    assert {element.tag for element in tree.iter()} <= allowed
    assert "<script" not in text and "<img" not in text and "onerror=alert(1)&gt;" in text
    assert not re.search("[\x00-\x09\x0b-\x1f\u202e]", text)
    assert not [key for element in tree.iter() for key in element.attrib if key.startswith("on")]


@pytest.mark.parametrize("numbers", [dict(ms=1e308, ms_low=-1e308, ms_high=float("inf")), dict(ms=5e-324, ms_low=0.0, ms_high=0.0),
                                     dict(ms=-1.0, ms_low=2.0, ms_high=1.0), dict(ms="fast", ms_low=b"\xff", ms_high=None)])
def test_odd_numbers_are_drawn_or_left_out(tmp_path, numbers):
    path = add_sparse(tmp_path / "odd.db", "plain")
    db = sqlite3.connect(str(path))
    for chunk in (0, -1, 2**62):
        report_sample.insert(db, "candidate", spec=1, kind="forward", tune="", chunk_rows=chunk, chunk_vocab=chunk, status="timed",
                             rounds=2**62, **numbers)
    report_sample.insert(db, "bare", spec=1, product="scores", rows=8, ms=numbers["ms"])
    db.execute("UPDATE spec SET vocab = -5, hidden = 0")
    db.commit()
    db.close()
    text, tree = page(tmp_path, path)
    for svg in tree.iter("svg"):
        for element in svg.iter():
            for key in ("x", "y", "x1", "x2", "y1", "y2", "width", "height"):
                assert element.get(key) is None or -1 <= float(element.get(key)) < 1e5, (key, element.attrib)
    assert not re.search(r"[\"( ](nan|-?inf)[\") ]", text)


def damaged(records, tmp_path, change):
    path = tmp_path / "damaged.db"
    shutil.copy(str(records), str(path))
    if callable(change):
        change(path)
    else:
        db = sqlite3.connect(str(path))
        db.executescript(change)
        db.close()
    return path


def overwrite(path):
    data = bytearray(path.read_bytes())
    for page_at in range(4096, len(data), 4096):
        data[page_at:page_at + 512] = b"\xa5" * 512
    path.write_bytes(data)


@pytest.mark.parametrize("change, said", [
    ("PRAGMA user_version = 2", "of version 2; version 1 is accepted"),
    ("DROP TABLE bare", "it has no table 'bare'"),
    ("DROP TABLE bare; CREATE VIEW bare AS SELECT 1 AS spec", "it has no table 'bare'"),
    ("ALTER TABLE run RENAME COLUMN gpu TO card", "no such column: gpu"),
    ("UPDATE candidate SET status = 'odd' WHERE id = 3", "status 'odd' is not known"),
    ("UPDATE candidate SET spec = 99 WHERE id = 3", "spec 99 is not there"),
    ("UPDATE spec SET run = 99 WHERE id = 1", "run 99 is not there"),
    (lambda path: path.write_bytes(path.read_bytes()[:5000]), "damaged.db"),
    (overwrite, "damaged.db"),
])
def test_wrong_records_are_refused(tmp_path, records, change, said):
    out = tmp_path / "report.html"
    done = flpgen("report", damaged(records, tmp_path, change), "--out", out)
    assert done.code == 4 and said in done.err and not out.exists(), done.err


@pytest.mark.parametrize("text, said", [("", "neither tuning records nor JSON"), ("SQLite format 2", "neither tuning records"),
                                        ("[]", "'rows' is missing"), ('{"rows": 3}', "'rows' is missing"),
                                        ('{"rows": [}', "line 1")])
def test_wrong_documents_are_refused(tmp_path, text, said):
    path = tmp_path / "record.json"
    path.write_text(text)
    done = flpgen("report", path, "--out", tmp_path / "report.html")
    assert done.code == 4 and said in done.err, done.err


def test_rows_of_other_records_are_counted(tmp_path):
    path = tmp_path / "other.json"
    path.write_text('{"rows": [{"variant": "x", "ms": 1}, 3, null]}')
    text, _ = page(tmp_path, path)
    assert "3 rows of records name no pass, shape or time" in text


def test_files_that_cannot_be_opened(tmp_path, records):
    assert flpgen("report", tmp_path / "none.db").code == 4
    assert flpgen("report", records, "--out", tmp_path / "none" / "report.html").code == 4
    assert flpgen("report", tmp_path).code == 4, "a directory"


def test_standard_output_and_summary(tmp_path, records):
    text, _ = page(tmp_path, records)
    assert flpgen("report", records, "--out", "-").out == text
    summary = flpgen("report", records, "--out", tmp_path / "again.html", "--json").json()
    assert summary["specs"] == 3 and summary["bytes"] == len(text.encode()) and summary["files"] == 1
    assert flpgen("report", records, "--out", "-", "--json").code == 2


# ---- in a browser ----

PROBE = """<script>
addEventListener("load", () => {
  const wrong = [], wide = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth > wide) wrong.push("page is wider than the screen");
  for (const svg of document.querySelectorAll("figure > svg")) {
    const frame = svg.getBoundingClientRect();
    if (!frame.width) continue;
    if (frame.left < 0 || frame.right > wide + .5) wrong.push("a chart leaves the screen");
    const boxes = [...svg.querySelectorAll("text")].map(text => [text.firstChild.data, text.getBoundingClientRect()]);
    for (const [text, box] of boxes)
      if (box.left < frame.left - 1 || box.right > frame.right + 1 || box.top < frame.top - 1 || box.bottom > frame.bottom + 1)
        wrong.push("clipped: " + text);
    for (let i = 0; i < boxes.length; i++)
      for (let j = i + 1; j < boxes.length; j++) {
        const a = boxes[i][1], b = boxes[j][1];
        if (a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 4 && b.top < a.bottom - 4)
          wrong.push("over each other: " + boxes[i][0] + " / " + boxes[j][0]);
      }
    for (const line of svg.querySelectorAll("figure.peers line.base, figure.best line.base")) {
      const base = line.getBoundingClientRect();
      for (const [text, box] of boxes)
        if (base.left < box.right && box.left < base.right && base.top < box.bottom - 3 && box.top + 3 < base.bottom)
          wrong.push("a line runs through: " + text);
    }
  }
  for (const box of document.querySelectorAll(".tiles li, summary, h3, dd, .legend li"))
    if (box.scrollWidth > box.clientWidth + 1) wrong.push("too wide: " + box.textContent.slice(0, 40));
  document.title = "checked " + wide + ": " + JSON.stringify(wrong);
});
</script></body>"""


@pytest.mark.skipif(not CHROMIUM, reason="Chromium is not installed")
@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_overlaps_or_is_clipped_in_chromium(tmp_path, records, width):
    text, _ = page(tmp_path, records, *BENCH, peers_record(tmp_path / "peers.json"), *sharp_records(tmp_path), "--note",
                   report_sample.NOTE)
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*/>', "", text)
    text = text.replace('<details class="more"', '<details open="" class="more"').replace("</body>", PROBE)
    # A headless window has a least width of its own; a frame has none.
    (tmp_path / "inner.html").write_text(text, encoding="utf-8")
    outer = tmp_path / "outer.html"
    outer.write_text('<iframe src="inner.html" style="width:%dpx;height:3000px;border:0" onload="setTimeout(() => '
                     'document.body.append(this.contentDocument.title), 50)"></iframe>' % width, encoding="utf-8")
    done = subprocess.run([CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files",
                           "--hide-scrollbars", "--window-size=1400,3000", "--user-data-dir=%s" % (tmp_path / "profile"),
                           "--virtual-time-budget=20000", "--dump-dom", outer.as_uri()],
                          capture_output=True, text=True, timeout=1800)
    found = re.search(r"checked (\d+): (\[.*?\])</body>", done.stdout, re.S)
    assert found, done.stdout[-500:] + done.stderr[-2000:]
    assert int(found.group(1)) == width and json.loads(found.group(2)) == []
