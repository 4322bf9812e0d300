"""flpgen tune --list: lines from which flpgen pack build makes the kernels that were found once more."""
import json

import pytest

from flpgen_pack_tool import build, entries_of
from flpgen_tune_tool import BACKWARD, FASTER, pytestmark, tune  # noqa: F401


@pytest.fixture(scope="module")
def listed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("listed")
    done = tune(*BACKWARD, "--list", folder / "list.txt", "--json", cache=folder / "cache")
    assert done.code == 0, done.err
    return folder / "list.txt", done.json()["targets"][0]


@pytest.mark.long
def test_a_line_names_spec_tilings_and_device(listed):
    path, target = listed
    line, = path.read_text().splitlines()
    assert line.startswith("--vocab 200 --hidden 8 --dtype bf16 --entropy backward --grad hidden,weight --tune '")
    for step in target["steps"]:
        if step["kind"] != "layout":
            assert (f"{step['kind']}:{step['chosen']}" in line) != step["is_default"]
    assert line.endswith("/13000'") and " --tuned-for '" in line


def test_what_stays_is_listed_without_a_tiling(tmp_path):
    tune("--list", tmp_path / "list.txt", cache=tmp_path / "cache", script="")
    line, = (tmp_path / "list.txt").read_text().splitlines()
    assert "--tune " not in line and "--tuned-for" in line


def test_lines_are_appended_and_a_finished_target_adds_none(tmp_path):
    for _ in range(2):
        tune("--list", tmp_path / "list.txt", "--resume", cache=tmp_path / "cache", script=FASTER)
    tune("--list", tmp_path / "list.txt", cache=tmp_path / "cache", script=FASTER, spec=["--vocab", 300, "--hidden", 8])
    assert len((tmp_path / "list.txt").read_text().splitlines()) == 2


def test_a_list_that_cannot_be_written_is_reported(tmp_path):
    done = tune("--list", tmp_path / "none" / "list.txt", cache=tmp_path / "cache")
    assert done.code == 4 and "--list: " in done.err and "No such file" in done.err


@pytest.mark.long
def test_pack_build_takes_the_list(listed, tmp_path):
    path, target = listed
    entries = entries_of(build(tmp_path / "a.flpp", "--list", path))
    tuned = {entry["kernel"]["key"]["kind"]: entry["kernel"]["tile"] for entry in entries
             if not entry["key"].endswith("tuned=")}
    assert set(tuned) == {"forward", "dz", "products"}
    for step in target["steps"]:
        if step["kind"] in tuned:
            assert f"cluster={tuned[step['kind']]['cluster']}" in step["chosen"], json.dumps(step)


def test_what_is_included_is_timed_to_the_end(tmp_path):
    slow = "cost=forward/cluster=1:60"
    done = tune("--include", "forward:cluster=1,raster=7", "--json", cache=tmp_path / "cache", script=slow)
    step, = done.json()["targets"][0]["steps"]
    assert step["is_default"] and step["included"]["status"] == "timed", json.dumps(step)
    assert step["included"]["cut"].endswith("cluster=1,raster=7") and step["included"]["ratio"] > 1.2


def test_what_is_included_and_not_built_has_a_reason(tmp_path):
    done = tune("--include", "forward:stages=12", "--json", cache=tmp_path / "cache", script="")
    included = done.json()["targets"][0]["steps"][0]["included"]
    assert included["status"] == "illegal" and "shared memory" in included["reason"] and included["ratio"] is None
