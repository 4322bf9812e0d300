"""python -m flp.report: every chart of a page, and what its rows and groups are called."""
import json
import re
import sqlite3
from types import SimpleNamespace

import pytest

import report_sample
import transcripts
from flp.report import records as reading
from flp.report import roofline, rows, sharpness
from flp_report_tool import draw, drawings, figures, needs_matplotlib, report, table, texts, tips, words
from flpgen_tool import flpgen, needs_flpgen

pytestmark = needs_matplotlib

RECORDS = sorted((report_sample.TREE / "autotune" / "bench").glob("*.json"))
BENCH = [path for path in RECORDS if path.name.startswith("bench_")]
DRAWN = [path for path in BENCH if re.fullmatch("bench_(forward_long|kept_20|training|tail_text)", path.stem)]
EXPORT, = [path for path in RECORDS if path.name == "tune_forward_4096.json"]
SHARP = {"policy": 0.01, "text": 0.79, "base": 2.5, "random": 11.4}  # medians of the entropies, from sharp to flat
PRODUCT_MS = 14.0
TWICE = "flp · study_staggered · ping-pong, 128x192, stages=5, cluster=2 · %d of 2"  # first and last of a study's run
LABELS = report_sample.TREE / "tests/golden/records/labels.txt"


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "records.db"
    report_sample.write(path)
    return path


@pytest.fixture(scope="module")
def page(tmp_path_factory, records):
    """One of every chart: of the tuner's records, some of the tree's benchmarks and rows of all kinds."""
    folder = tmp_path_factory.mktemp("page")
    return draw(folder, records, *DRAWN, *sharp_records(folder))


@pytest.fixture(scope="module")
def all_rows():
    """The rows of every benchmark record of the tree."""
    read = reading.Records()
    for path in RECORDS:
        read.read(path)
    return read.rows


def row_of(kind="random", ms=58.0, **fields):
    return {"case": "forward+backward", "N": 8192, "D": 4096, "V": 151936, "dtype": "bf16", "entropy": "none",
            "grads": ["hidden", "weight"], "gemms": 4, "data": kind, "entropies": {"0.1": 0.0, "0.5": SHARP[kind]},
            "ms": ms, "ms_low": ms and ms * 0.98, "ms_high": ms and ms * 1.03, "bare_ms": 4 * PRODUCT_MS,
            "extra_bytes": 1e9, **fields}


def record(path, *made, products=(15.0, PRODUCT_MS)):
    bare = [{"product": "scores", "N": 8192, "ms": ms} for ms in products]
    bare += [{"product": "scores", "N": 1024, "ms": 1.0}, {"product": "grad_hidden", "N": 8192, "ms": 13.0}]
    path.write_text(json.dumps({"gpu": "NVIDIA H200", "driver": "d", "sources_hash": "0", "command": "c", "date": "now",
                                "bare": bare, "rows": made}))
    return path


def sharp_records(folder):
    """Records of flp.bench of each kind, and of flpgen bench --tail of one."""
    paths = [record(folder / f"peers_{kind}.json", row_of(kind, peer="flp", mode="recompute-rows"),
                    row_of(kind, 20.0 + 12 * i, peer="flp, tail", mode="tail"), row_of(kind, 190.0, peer="cce"),
                    row_of(kind, None, peer="verl", reason="is not here")) for i, kind in enumerate(SHARP)]
    return [*paths, record(folder / "bench_tail_text.json", row_of("text", 28.0, mode="tail", loss=None))]


def add_timed(path, candidates):
    """A record of one spec, or one more of a record: stages, rounds, ratio, whether it was chosen."""
    db = sqlite3.connect(str(path)) if path.exists() else report_sample.create(path)
    run = report_sample.insert(db, "run", gpu="NVIDIA H200", driver=13000)
    spec = report_sample.insert(db, "spec", run=run, vocab=1000, hidden=64, dtype="bf16", entropy="none", grads="none",
                                rows=8)
    for stages, rounds, ratio, chosen in candidates:
        report_sample.insert(db, "candidate", spec=spec, kind="forward", ratio=ratio, rounds=rounds,
                             ms=2.0 * (ratio or stages), status="chosen" if chosen else "timed",
                             tune="ping-pong,128x192,stages=%d,cluster=2,raster=8" % stages)
    db.commit()
    db.close()
    return path


# ---- the page

AXES = {"passes": "time / time of the products alone (×, less is faster)", "best": "time / time of the products alone",
        "sharpness": "rows, from sharp to flat (median entropy)", "landscape": "time / time of the default (×",
        "rejected": "candidates (count)", "roofline": "arithmetic intensity (flop / byte)",
        "memory": "rows N (tokens, 1k = 1024)"}


@needs_flpgen
def test_every_chart_has_title_axis_label_and_table(page):
    _, tree = page
    for name, axis in AXES.items():
        found = figures(tree, name)
        assert found, name
        for figure in found:
            assert words(figure.find("figcaption/h3")) and words(figure.find("figcaption/p"))
            assert len(drawings(figure)) == 2
            for svg in drawings(figure):
                assert svg.get("role") == "img" and svg.get("aria-label") == words(figure.find("figcaption/h3"))
                assert any(axis in words(text) for text in svg.iter("text")), name
            assert name == "passes" or len(table(figure)) >= 1
    assert len(figures(tree, "landscape")) == 12


def test_page_needs_nothing_else(page):
    text, _ = page
    lower = re.sub(r'xmlns(:xlink)?="[^"]*"', "", text.lower())
    for word in ("http://", "https://", "<script", "<link", "<img", "<iframe", "src=", "@import", "onload"):
        assert word not in lower, word
    assert set(re.findall(r'href="(.)', lower)) == set(re.findall(r"url\((.)", lower)) | {"#"} == {"#"}
    assert "prefers-color-scheme:dark" in text and "max-width:760px" in text


def test_no_two_drawings_share_an_id(page):
    """A browser would take that of a drawing that is not shown."""
    _, tree = page
    ids = [{element.get("id") for element in svg.iter() if element.get("id")} for svg in tree.iter("svg")]
    assert len(ids) > 30 and sum(map(len, ids)) == len(set().union(*ids))


def test_same_files_give_the_same_bytes(tmp_path):
    given = add_timed(tmp_path / "t.db", [(4, 9, 1.0, 1), (5, 9, 1.1, 0)])
    assert draw(tmp_path, given)[0] == draw(tmp_path, given)[0]


@pytest.mark.parametrize("files, title, tiles", [
    (["peers"], "flp: benchmarks", ["benchmark rows"]),
    pytest.param(["records"], "flp: tuning", [
        "searches", "candidates timed", "candidates rejected", "best tuned time / the products' (geometric mean)"],
        marks=pytest.mark.long),
    (["export", "peers"], "flp: tuning and benchmarks", [
        "search", "candidates timed", "best tuned time / the products' (geometric mean)", "benchmark rows"]),
])
def test_title_and_tiles_claim_what_the_records_know(tmp_path, records, files, title, tiles):
    peers = record(tmp_path / "peers.json", row_of(), row_of(peer="cce"))
    given = {"peers": peers, "records": records, "export": EXPORT}
    _, tree = draw(tmp_path, *(given[name] for name in files))
    assert [words(tree.find("head/title")), words(tree.find("body/header/h1"))] == [title, title]
    assert [words(item.find("span")) for item in tree.findall("body/main/ul[@class='tiles']/li")] == tiles


def test_a_page_has_the_sections_of_its_records(tmp_path):
    """Of benchmarks alone there are no boxes for what the tuner would know."""
    text, tree = draw(tmp_path, *DRAWN)
    heads = [words(head) for head in tree.find("body/main").findall("h2")]
    assert heads[:3] == ["Passes against the matrix products alone", "Sharpness of the rows", "Roofline"]
    assert set(heads[3:]) <= {"Memory"} and "Not drawn" not in text and "tuned" not in text


# ---- rows and groups

def test_groups_have_rows_of_one_base(all_rows):
    """Of all records: a tail beside one product, a step beside three, and so on, and labels that tell rows apart."""
    groups = rows.groups_of(all_rows)
    assert len(groups) > 50
    numbered = []
    for group in groups:
        assert len({(row.case, row.N, row.D, row.V, row.gemms, row.grads, row.data, row.gpu) for row in group}) == 1
        labels = rows.labels_of(group)
        assert len(set(labels)) == len(labels)
        numbered += [label for label in labels if re.search(r"\d of \d", label)]
        for row, label in zip(group, labels):
            assert row.mode != "tail" or label.startswith("flp, tail")
        bases = [row.bare_ms for row in group if row.bare_ms]
        assert not bases or max(bases) < 1.12 * min(bases), rows.labels_of(group)
    assert numbered == [TWICE % 1, TWICE % 2]


def test_bases_that_differ_stand_in_groups_of_their_own(tmp_path):
    path = record(tmp_path / "bench.json", row_of(mode="recompute-vocab"),
                  row_of(ms=59.99, mode="tail", tail=2**-9, gemms=1, bare_ms=14.6))
    said = [text for _, text in texts(figures(draw(tmp_path, path)[1], "passes")[0])]
    one, four = said.index("Beside 1 product"), said.index("Beside 4 products")
    tail, plain = said.index("flp, tail 2^-9"), said.index("flp · recompute-vocab")
    assert (one < tail < four < plain) or (four < plain < one < tail)


def test_rows_are_called_what_they_are(tmp_path):
    """Questions are of rows of a file one.json, and of others by their names."""
    def labels(*made, **others):
        read = reading.Records()
        for name, given in {"one": made, **others}.items():
            read.read(record(tmp_path / f"{name}.json", *given))
        return rows.labels_of(read.rows)

    transcripts.check(LABELS, None, lambda call: eval(call, {"labels": labels, "row": row_of}))


def test_peers_stand_beside_ours_with_their_reasons(tmp_path):
    missing = "needs a newer torch, which this machine does not have"
    forward = dict(case="forward", grads=[], gemms=1, bare_ms=15.0)
    times = {"flp": 14.7, "naive": 61.0, "one": 30.0, "two": None}
    made = [row_of(ms=ms, peer=peer, first_ms=16.0 if peer == "flp" else None, **forward, **(
        {} if ms else {"reason": missing})) for peer, ms in times.items()]
    made += [row_of(peer="flp"), row_of(ms=None, peer="one", reason="does not train"),
             row_of(ms=None, peer="naive", reason="does not train")]
    _, tree = draw(tmp_path, record(tmp_path / "peers.json", *made))
    untimed = [words(item) for item in tree.findall("body/main/div[@class='untimed']/ul/li")]
    assert untimed == ["two: " + missing, "naive (forward+backward); one (forward+backward): does not train"]
    listed = {row["who"]: row for row in table(tree.find("body/main")) if row["pass"] == "forward"}
    assert {who: row["ratio"] for who, row in listed.items()} == {"flp": "0.980", "naive": "4.067", "one": "2.000",
                                                                  "two": "–"}
    assert listed["flp"]["of first"] == "0.919" and listed["one"]["of first"] == "–"
    beside, = figures(tree, "passes")[:1]
    assert tips(beside) == ["%s ms (peers.json)" % told for told in ("flp: 14.700", "naive: 61.000", "one: 30.000")]
    folded = [item for item in tree.iter("details") if item.get("class") == "more"]
    assert [words(item.find("summary")) for item in folded] == [] and len(figures(tree, "passes")) == 2


def test_what_flp_alone_was_timed_on_is_folded_away(tmp_path):
    _, tree = draw(tmp_path, record(tmp_path / "peers.json", row_of(), row_of(peer="cce"), row_of(N=1024)))
    folded, = [item for item in tree.iter("details") if item.get("class") == "more"]
    assert words(folded.find("summary")) == "Passes of flp alone (1)" and len(figures(folded, "passes")) == 1


# ---- sharpness

def read_sharp(*paths):
    read = reading.Records()
    for path in paths:
        read.read(path)
    return sharpness.shapes_of(read.rows)


def test_sharpness_is_told_in_products_of_the_same_record(tmp_path):
    _, tree = draw(tmp_path, *sharp_records(tmp_path))
    figure, = figures(tree, "sharpness")
    listed = table(figure)
    assert [row["rows"] for row in listed] == ["policy"] * 3 + ["text"] * 4 + ["base"] * 3 + ["random"] * 3
    for row in listed:
        assert float(row["products"]) == pytest.approx(float(row["ms"]) / PRODUCT_MS, rel=1e-3)
        assert float(row["median entropy"]) == pytest.approx(SHARP[row["rows"]])
    tails = [float(row["ms"]) for row in listed if row["who"] == "flp, tail"]
    assert tails == [20, 28, 32, 44, 56]
    said = [text for _, text in texts(figure)]
    assert {"flp", "flp, tail", "cce", "0.79 nats", "one product of hidden and weight"} <= set(said)
    assert "verl" not in said and len(tips(figure)) == 13
    assert "flp, text rows: 4.14 products, 58 ms (peers_text.json)" in tips(figure)


def test_kept_sets_join_no_plain_line(tmp_path):
    """Nor do an adapter, several targets, or who was timed on random rows alone."""
    odd = record(tmp_path / "odd.json", row_of(ms=2.0, kept=20.0, list_ids=163840, mode="listed"), row_of(lora_rank=64),
                 row_of(targets=64), row_of(ms=40.0, mode="save"), row_of(peer="liger"))
    older = row_of(ms=57.0)
    del older["data"], older["entropies"]
    shape, = read_sharp(odd, record(tmp_path / "older.json", older), *sharp_records(tmp_path))
    assert {sharpness.who_of(row) for row in shape} == {"flp", "flp, tail", "cce"}
    assert "odd.json" not in {row.source.file for row in shape}
    assert [row.ms for row in shape if row.source.file == "older.json"] == [57.0], "those had random rows"
    on_sharp = record(tmp_path / "on_sharp.json", row_of("policy", 2.0, kept=20.0, list_ids=163840, mode="listed"))
    shape, = read_sharp(odd, on_sharp, *sharp_records(tmp_path))
    kept = [row for row in shape if row.kept]
    assert {sharpness.who_of(row) for row in kept} == {"flp, kept sets of 20 ids"} and len(kept) == 2


def test_kept_sets_of_the_tree_are_in_no_chart_of_sharpness():
    shapes = read_sharp(*BENCH)
    assert len(shapes) == 5
    assert not [row for shape in shapes for row in shape if row.kept is not None or row.lora_rank]


@pytest.mark.parametrize("change", [dict(data="bytes"), dict(N=77), dict(case="forward"), dict(grads=[])], ids=str)
def test_rows_that_say_nothing_of_sharpness_are_left_out_of_it(tmp_path, change):
    """An unknown kind, no product of as many rows, no gradients."""
    odd = record(tmp_path / "odd.json", {**row_of("policy"), **change})
    assert read_sharp(odd) == []
    assert "odd.json" not in {row.source.file for row in read_sharp(odd, *sharp_records(tmp_path))[0]}


# ---- roofline

def test_no_point_lies_above_the_roof(all_rows):
    """Of all records: kept sets count their columns, tails what they recompute, modes that keep one product less."""
    points, gpu, _ = roofline.points_of(SimpleNamespace(rows=all_rows, specs=[]))
    card = next(card for card in roofline.CARDS if card[0] in gpu)
    assert len(points) > 80 and {"tail", "listed", "save", "stream"} <= {point.row.mode for point in points}
    for point in points:
        assert point.tflops < min(card[1], 1e-12 * card[2] * point.intensity), (point.row.source.file, point.what)


def test_points_are_flop_over_bytes_moved_once(page):
    figure, = figures(page[1], "roofline")
    row, = [row for row in table(figure) if row["file"] == "bench_forward_long.json"]
    n, d, v = 65536, 2048, 248320
    path, = [path for path in BENCH if path.name == "bench_forward_long.json"]
    moved = 2 * d * (n + v) + 8 * n + 8 * n  # operands and int64 targets; logprob and entropy
    assert float(row["flop / byte"]) == pytest.approx(2 * n * d * v / moved, rel=1e-3)
    ms = json.loads(path.read_text())["rows"][0]["ms"]
    assert float(row["TFLOP/s"]) == pytest.approx(2e-9 * n * d * v / ms, rel=1e-3)
    kept = [row for row in table(figure) if row["file"] == "bench_kept_20.json"]
    assert [float(row["TFLOP/s"]) for row in kept] == [pytest.approx(value, rel=1e-2) for value in (2.86, 2.83, 2.66)]
    said = [text for _, text in texts(figure)]
    assert {"limits: 989 TFLOP/s, 4.80 TB/s", "D 4096, kept sets", "D 2048"} <= set(said)


# ---- the tuner's records

def test_best_is_the_chosen_candidate_over_the_products(records, page):
    listed = table(figures(page[1], "best")[0])
    listed = [row for row in listed if row["shape"].startswith("sample 8B")]
    db = sqlite3.connect(str(records))
    bare = dict(db.execute("SELECT product, ms FROM bare WHERE spec = 2"))
    assert [row["kernel"] for row in listed] == ["forward", "dz", "products", "layout"]
    for row in listed:
        ms, = db.execute("SELECT ms FROM candidate WHERE spec = 2 AND kind = ? AND status = 'chosen'",
                         [row["kernel"]]).fetchone()
        expected = bare["scores"] if row["kernel"] == "forward" else sum(bare.values())
        assert float(row["ms"]) == pytest.approx(ms, rel=1e-4)
        assert float(row["ratio"]) == pytest.approx(ms / expected, rel=2e-3)


def tunables_of(figure):
    """The heads of a landscape's parts, by their height."""
    heights = [y for y, text in texts(figure) if text.startswith(("worst value", "one value"))]
    return [text for y, text in texts(figure) if y in heights and not text.startswith(("worst value", "one value"))]


def beyond(figure):
    """Candidates that are counted at the edge of a landscape, not drawn."""
    return sum(int(text[1:]) for _, text in texts(figure) if re.match(r"\+\d+$", text))


def test_landscape_draws_every_timed_candidate_and_marks_the_best(records, page):
    found = figures(page[1], "landscape")
    timed, = sqlite3.connect(str(records)).execute("SELECT count(*) FROM candidate WHERE spec = 1 AND kind = 'forward' "
                                                   "AND status IN ('timed', 'chosen')").fetchone()
    assert len(table(found[0])) == timed and [row["status"] for row in table(found[0])].count("chosen") == 1
    assert tunables_of(found[0]) == ["schedule", "tile (rows × columns)", "stages", "cluster (CTAs)",
                                     "raster (row panels)"]
    assert len(tips(found[0])) + beyond(found[0]) == timed * 5
    layout, = [figure for figure in found[:4] if "layout" in words(figure.find("figcaption/h3"))]
    assert tunables_of(layout) == ["chunk of vocab (columns)"]


def test_an_exported_search_is_a_landscape(tmp_path):
    given = json.loads(EXPORT.read_text())
    _, tree = draw(tmp_path, EXPORT)
    figure, = figures(tree, "landscape")
    assert len(tips(figure)) + beyond(figure) == len(given["rows"]) * len(tunables_of(figure)) and beyond(figure) > 0
    assert [row["tiling"] for row in table(figures(tree, "best")[0])] == [given["searches"][0]["chosen"]]
    assert not figures(tree, "rejected")


def test_values_cost_what_their_best_does(tmp_path):
    """One tunable, three values: the head shows the worst, a value the fastest of those timed longest."""
    path = add_timed(tmp_path / "three.db", [(4, 9, 1.0, 1), (4, 1, 0.9, 0), (5, 9, 1.04, 0), (6, 3, 1.1, 0),
                                             (6, 3, 1.2, 0), (6, 1, 4.0, 0)])
    figure, = figures(draw(tmp_path, path)[1], "landscape")
    said = [text for _, text in texts(figure)]
    assert [text for text in said if text.startswith("worst")] == ["worst value: +10.0 %"] and beyond(figure) == 5
    assert [text.split(" · ")[0] for text in said if text.endswith(" ms")] == \
        ["1.000×"] * 2 + ["1.000×", "1.040×", "1.100×"] + ["1.000×"] * 2


def test_records_without_ratios_are_compared_by_time(tmp_path):
    figure, = figures(draw(tmp_path, add_timed(tmp_path / "t.db", [(4, 9, None, 1), (5, 9, None, 0)]))[1], "landscape")
    assert texts(figure)[-1][1] == "time / time of the chosen (×, less is faster)"


def test_landscapes_are_as_many_as_asked_for(tmp_path, records):
    text, tree = draw(tmp_path, records, "--landscapes", 2)
    assert len(figures(tree, "landscape")) == 2 and "2 of 12 landscapes are drawn" in text


def test_rejected_are_counted_by_reason(records, page):
    listed = table(figures(page[1], "rejected")[0])
    for status in reading.REJECTED:
        expected, = sqlite3.connect(str(records)).execute("SELECT count(*) FROM candidate WHERE status = ?",
                                                          [status]).fetchone()
        assert sum(int(row["candidates"]) for row in listed if row["rejected as"] == status) == expected > 0
    assert len([row for row in listed if row["rejected as"] == "illegal"]) == 2, "numbers do not split a reason"


def test_labels_of_searches_of_one_file_are_unequal(tmp_path):
    paths = [add_timed(tmp_path / name, [(4, 9, 1.0, 1)]) for name in ("one.db", "two.db", "two.db")]
    said = [text for _, text in texts(figures(draw(tmp_path, *paths[:2])[1], "best")[0]) if text.startswith("forward")]
    assert said == ["forward · one.db", "forward · two.db, run 1", "forward · two.db, run 2"]


# ---- memory

@needs_flpgen
def test_memory_is_what_explain_reports(tmp_path):
    _, tree = draw(tmp_path, "--memory", "--vocab 248320 --hidden 2048")
    listed = table(figures(tree, "memory")[0])
    explained = flpgen("explain", "--vocab", 248320, "--hidden", 2048, "--grad", "hidden,weight", "--rows",
                       ",".join(row["N"] for row in listed), "--json",
                       FLP_CUDA_LIBRARY="/nonexistent/libcuda.so.1").json()
    assert len(listed) == len(explained["rows"]) == 10
    for found, part in zip(listed, explained["rows"]):
        assert len(found) == 1 + len(part["ways"])
        for way in part["ways"]:
            value, unit = found[way["name"]].split()[:2]
            bytes_ = float(value) * {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}[unit]
            assert bytes_ == pytest.approx(way["workspace_bytes"], rel=6e-3)
            assert found[way["name"]].endswith("(beyond)") == (not way["fits"])
    done = report("--memory", "--vocab x --hidden 64", "--out", tmp_path / "none.html")
    assert done.returncode == 2 and "--vocab: " in done.stderr and not (tmp_path / "none.html").exists()
