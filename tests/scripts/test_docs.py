"""The documents themselves: length and width, links, versions, and what they say of the command's output."""
import json
import os
import re
from pathlib import Path

import pytest

from documents import TREE, blocks, documents
from flp_report_tool import needs_matplotlib, report
from flpgen_tool import flpgen, needs_flpgen

DOCUMENTS = [str(path.relative_to(TREE)) for path in documents()]


def text_of(name):
    return (TREE / name).read_text()


def test_the_documents_are_there():
    assert {"README.md", "CHANGELOG.md", "runtime/README.md", "runtime/python/README.md", "gen/README.md",
            "gen/cli/README.md", "templates/README.md", "autotune/README.md", "autotune/bench/README.md",
            "tests/README.md", "docs/decisions.md", "docs/contributing.md", "docs/releasing.md"} <= set(DOCUMENTS)


def test_the_first_document_is_short():
    assert len(text_of("README.md").splitlines()) <= 250


@pytest.mark.parametrize("name", DOCUMENTS)
def test_lines_fit(name):
    assert [line for line in text_of(name).splitlines() if len(line) > 120] == []


def test_decisions_are_short_and_the_newest_stands_first():
    _, *entries = text_of("docs/decisions.md").split("\n### ")
    dates = [re.match(r"(\d{4}-\d\d-\d\d) · \S", entry).group(1) for entry in entries]
    assert len(entries) > 50 and dates == sorted(dates, reverse=True)
    for entry in entries:
        assert 1 <= len(entry.strip().split("\n")) - 1 <= 5, entry


# ---- links

def slug(heading):
    """The anchor that a heading gets: lower case, spaces as hyphens, no punctuation."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def prose_of(name):
    return re.sub(r"^```.*?^```$", "", text_of(name), flags=re.S | re.M)


def anchors_of(path):
    return {slug(heading) for heading in re.findall(r"^#+ (.*)$", prose_of(path.relative_to(TREE)), re.M)}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_lead_somewhere(name):
    dead = []
    for link in re.findall(r"\]\(([^)\s]+)\)", prose_of(name)):
        if re.match(r"\w+://", link):
            continue
        path, _, anchor = link.partition("#")
        target = ((TREE / name).parent / path).resolve() if path else TREE / name
        if not target.exists() or (anchor and anchor not in anchors_of(target)):
            dead.append(link)
    assert dead == []


def names_behind_files(text):
    """(file, name) of every name in code behind a link to a file, up to the next link."""
    parts = re.split(r"\]\(\.\./([^)]+)\)", prose_of(text))
    return [(file, name) for file, prose in zip(parts[1::2], parts[2::2])
            for name in re.findall(r"`([A-Za-z_]\w*)`", re.split(r"\n\n|\n\d\. |\n- ", prose)[0])]


def test_the_tour_names_what_stands_in_its_files():
    named = names_behind_files("docs/tour.md")
    gone = [f"{file}: {name}" for file, name in named if not re.search(rf"\b{name}\b", (TREE / file).read_text())]
    assert len(named) > 30 and gone == []


def test_every_document_is_linked_from_another():
    linked = set()
    for name in DOCUMENTS:
        for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text_of(name)):
            linked.add(os.path.relpath((TREE / name).parent / link, TREE))
    assert set(DOCUMENTS) - linked <= {"README.md"}


TABLES = [(name, folder) for name in DOCUMENTS
          for cell in re.findall(r"^\| (`[\w./]+/`(?:, `[\w./]+/`)*) \|", text_of(name), re.M)
          for folder in re.findall(r"`([^`]+)`", cell)]


def test_folders_that_tables_list_are_there():
    assert len(TABLES) > 30
    assert [(name, folder) for name, folder in TABLES if not ((TREE / name).parent / folder).is_dir()] == []


def test_tables_list_the_folders():
    """Those of code in runtime, gen and the command."""
    for name in ("runtime/README.md", "gen/README.md", "gen/cli/README.md"):
        listed = {folder.rstrip("/") for table, folder in TABLES if table == name}
        there = {path.parent.relative_to((TREE / name).parent).parts[0] for path in (TREE / name).parent.rglob("*/*.[ch]")}
        assert there - listed == set(), name


# ---- versions and figures

def test_versions_agree():
    header = text_of("runtime/flp.h")
    numbers = [re.search(rf"#define FLP_VERSION_{part} (\d+)", header).group(1) for part in ("MAJOR", "MINOR", "PATCH")]
    version = ".".join(numbers)
    assert f'#define FLP_VERSION_STRING "{version}"' in header
    assert f"## {version}\n" in text_of("CHANGELOG.md")
    formats = dict(re.findall(r"FLP_(KEY|DESC)_FORMAT = (\d+)", text_of("runtime/kernel/kernel.h")))
    assert "Keys have format {KEY}, descriptors {DESC};".format(**formats) in text_of("CHANGELOG.md")
    minor = ".".join(numbers[:2])
    for place in ("README.md", "examples/cmake/CMakeLists.txt"):
        assert f"find_package(flp {minor} REQUIRED)" in text_of(place)


@needs_matplotlib
def test_the_picture_is_what_the_records_give(tmp_path):
    """Its texts, numbers among them, in their order: places hang on matplotlib's release."""
    folder = TREE / "autotune/bench"
    done = report(folder / "peers_training.json", folder / "peers_saved.json", "--picture", tmp_path / "peers.svg")
    assert done.returncode == 0, done.stderr
    drawn, kept = (re.findall(r"<text [^>]*>([^<]*)", path.read_text()) for path in (tmp_path / "peers.svg",
                                                                                    folder / "peers.svg"))
    assert drawn == kept and len(drawn) > 40 and "189" in drawn


@needs_matplotlib
def test_a_picture_shows_one_shape_on_one_gpu(tmp_path):
    folder = TREE / "autotune/bench"
    other = json.loads((folder / "peers_saved.json").read_text())
    (tmp_path / "other.json").write_text(json.dumps({**other, "gpu": "another"}))
    for paths in ([folder / "peers_training.json", tmp_path / "other.json"], [folder / "peers_frozen.json"]):
        done = report(*paths, "--picture", tmp_path / "peers.svg")
        assert done.returncode == 4 and "one shape, one GPU" in done.stderr and not (tmp_path / "peers.svg").exists()


# ---- the command

def is_output(shown, printed):
    """Whether this was printed: blanks count alike; a line ... stands for any lines, ... in a line for any text. The
    last of six digits behind a point may be another processor's."""
    words = [re.sub(r"(\\.\d{5})\d$", r"\1\\d", re.escape(word)) for word in shown.split()]
    pattern = r"\s+".join(".*?" if word == re.escape("...") else word for word in words)
    return re.fullmatch(pattern.replace(r"\s+.*?\s+", r"\s.*?\s"), printed.strip(), re.S) is not None


def test_what_counts_as_output():
    printed = "rung   eager\nnot taken  none\ntime 0.3 s\nend 2\n"
    assert is_output("rung eager\n...\nend 2", printed)
    assert is_output("rung eager\nnot taken none\ntime ... s\nend 2", printed)
    assert is_output("mean -1.234567", "mean -1.234568") and not is_output("mean 1.234567", "mean 1.234577")
    assert not is_output("rung jit\n...\nend 2", printed) and not is_output("rung eager\nend 2", printed)
    assert not is_output("rung eager", printed) and not is_output("...\nend 3", printed)


@needs_flpgen
@pytest.mark.parametrize("block", blocks("console"), ids=lambda block: block.name)
def test_output_is_as_shown(block):
    assert block.text.startswith("$ ")
    for step in re.split(r"^\$ ", block.text, flags=re.M)[1:]:
        command, shown = step.split("\n", 1)
        name, *arguments = command.split()
        assert name == "flpgen"
        done = flpgen(*arguments, FLP_CUDA_LIBRARY="/nonexistent/libcuda.so.1")
        assert done.code == 0 and is_output(shown, done.out), done.out + done.err


def test_peers_without_a_figure_are_named_beside_the_tables():
    """What no row of a record has a time of is told, not left out: a paragraph that begins "Not measured"."""
    text = text_of("autotune/bench/README.md")
    told = " ".join(part for part in text.split("\n\n") if part.startswith("Not measured"))
    for record in (TREE / "autotune/bench").glob("peers_*.json"):
        rows = json.loads(record.read_text())["rows"]
        silent = {row["peer"] for row in rows} - {row["peer"] for row in rows if row["ms"] is not None}
        reasons = {row["peer"]: row["reason"] for row in rows if row["peer"] in silent}
        absent = [peer for peer, reason in reasons.items() if "Error" in reason]
        assert [peer for peer in absent if "`%s`" % peer not in told] == [], record.name


MANUAL = "gen/cli/README.md"


def test_every_verb_has_examples():
    verbs = re.findall(r'^    \{"(\w+)", ', text_of("gen/cli/verbs.c"), re.M)
    text = "\n".join(block.text for block in blocks("sh") if str(block.document).endswith(MANUAL))
    assert len(verbs) >= 11 and [verb for verb in verbs if len(re.findall(rf"^flpgen {verb}\b", text, re.M)) < 2] == []


JSON_KEYS = re.findall(r"^\| ([a-z ]+) \| (.*`.*) \|$", text_of(MANUAL).split("## What --json gives")[1], re.M)
SEED, PUBLIC = bytes(range(32)).hex(), "03a107bff3ce10be1d70dd18e74bc09967e4d6309ba50d5f1ddc8664125531b8"  # by RFC 8032
TRIED = {  # the verbs of the table: what is run for it
    "gen": ["gen", "--vocab", 64, "--hidden", 16],
    "run": ["run", "--demo", "--vocab", 64, "--hidden", 16, "--rows", 4],
    "check": ["check", "--vocab", 64, "--hidden", 16, "--rung", "eager"],
    "tune": ["tune", "--vocab", 64, "--hidden", 16, "--dry-run"],
    "explain": ["explain", "--vocab", 64, "--hidden", 16],
    "loss show": ["loss", "show", "nll"],
    "loss check": ["loss", "check", "nll", "--rows", 16],
    "pack inspect": ["pack", "inspect", "one.flpp"],
    "sign": ["sign", "--key", "key.hex", "key.hex"],
    "verify": ["verify", "--trust", PUBLIC, "key.hex"],
    "completion": ["completion", "bash"],
    "cache": ["cache", "ls"],
    "doctor": ["doctor"]}


@needs_flpgen
@pytest.mark.parametrize("verb,cell", [row for row in JSON_KEYS if row[0] != "bench"])
def test_json_has_the_keys(tmp_path, monkeypatch, verb, cell):
    monkeypatch.chdir(tmp_path)
    if verb in ("sign", "verify"):
        Path("key.hex").write_text(SEED)
        Path("key.hex").chmod(0o600)
        assert flpgen("sign", "--key", "key.hex", "key.hex").code == 0
    if verb == "pack inspect":
        assert flpgen("pack", "build", "--vocab", 64, "--hidden", 16, "-o", "one.flpp").code == 0
    document = flpgen(*TRIED[verb], "--json", cache=tmp_path).json()
    keys = [key for key in re.findall(r"`([^`]+)`", cell) if not key.startswith("--")]
    assert keys and [key for key in keys if key not in document] == []


def test_the_keys_of_a_benchmark():
    (cell,) = [cell for verb, cell in JSON_KEYS if verb == "bench"]
    record = json.loads(text_of("autotune/bench/bench_saved.json"))
    assert [key for key in re.findall(r"`([^`]+)`", cell) if key not in record] == []


@needs_flpgen
def test_every_setting_is_described():
    """In the table of the manual, and none that there is not."""
    table = text_of("runtime/README.md").split("\n## Settings\n")[1].split("\n\n")[1]
    settings = [setting["name"] for setting in flpgen("doctor", "--json").json()["settings"]]
    assert sorted(re.findall(r"^\| `(FLP_\w+)` \|", table, re.M)) == sorted(settings)


def test_the_table_of_changes_names_tests():
    table = text_of("docs/contributing.md").split("\n## Where do I change X\n")[1].split("\n\n")[1]
    names = re.findall(r"\| `([\w./]+)` \|$", table, re.M)
    assert len(names) == 10 and len(set(names)) >= 8
    for name in names:
        places = TREE / name, *(TREE / "tests").glob(f"*/{name}"), *(TREE / "tests/unit").rglob(f"{name}.c")
        assert any(place.exists() for place in places), name
