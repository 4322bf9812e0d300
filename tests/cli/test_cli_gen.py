"""flpgen: help, exit codes, exact messages, gen and the cache it fills."""
import json
import re
import shutil
from pathlib import Path

import pytest

from flpgen_tool import flpgen, needs_flpgen, succeed
from tree_version import VERSION

pytestmark = needs_flpgen

VERBS = ["gen", "run", "check", "bench", "tune", "prove", "explain", "doctor", "pack", "sign", "verify", "loss",
         "cache", "completion"]
HELPS = [*VERBS, *(f"pack {action}" for action in ("build", "verify", "inspect", "install")),
         *(f"loss {action}" for action in ("list", "show", "check"))]
SMALL = ["--vocab", "1000", "--hidden", "64", "--dtype", "bf16"]


def fits(text):
    return not [line for line in text.splitlines() if len(line) > 79]


def test_help_lists_every_verb_and_exit_status():
    done = flpgen("--help")
    assert done.code == 0 and done.err == "" and fits(done.out)
    for verb in VERBS:
        assert f"\n  {verb} " in done.out
    for status in range(6):
        assert f"\n  {status}  " in done.out


@pytest.mark.parametrize("verb", HELPS)
def test_help_of_a_verb_or_an_action(verb):
    """It fits a terminal of 80 columns, and names every action."""
    words = verb.split()
    done = flpgen(*words, "--help")
    assert done.code == 0 and done.err == "" and fits(done.out)
    assert done.out.startswith(f"Usage: flpgen {verb} ")
    assert "--json" in done.out
    examples = [line for line in done.out.splitlines() if line.startswith(f"  flpgen {verb}")]
    assert len(examples) >= 2, "two examples, whole on their lines"
    for status in range(6):
        assert f"\n  {status}  " in done.out
    assert flpgen(*words, "-h").out == flpgen(*words, "-?").out == done.out
    assert words[-1] in flpgen(words[0], "--help").out


def test_version():
    first, sources, llvm = flpgen("--version").out.splitlines()
    assert first == f"flpgen {VERSION}" and re.fullmatch(r"LLVM \d+\.\d+\.\d+", llvm)
    kernels = flpgen("gen", *SMALL, "--json").json()["kernels"]
    assert sources == "sources " + kernels[0]["sources"]
    assert flpgen("gen", "--version").out == flpgen("gen", "-V").out == flpgen("-V").out == flpgen("--version").out


WRONG = [*[[verb, "--bogus"] for verb in VERBS], ["frobnicate"], ["pack", "frob"], ["pack", "verify"], ["loss", "show"],
         ["loss", "list", "extra"], ["cache"], ["cache", "burn"], ["gen", *SMALL, "--emit", "sass"],
         ["gen", *SMALL, "--out", "-"], ["check", "--limit", "0"], ["doctor", "--require", "best"],
         ["tune", "--preset", "gpt-9"]]


@pytest.mark.parametrize("words", WRONG, ids=" ".join)
def test_wrong_usage_is_json_too(words):
    plain, done = flpgen(*words), flpgen(*words, "--json")
    assert plain.code == done.code == 2 and plain.out == ""
    assert done.err == plain.err
    error = done.json()["error"]
    assert (error["status"], error["exit"]) == ("FLP_ERROR_ARGUMENT", 2)
    assert done.err.splitlines()[0].endswith(f": {error['message']}")


def test_json_may_be_shortened_and_stand_first():
    for words in (["gen", "--js", "--vocab"], ["cache", "--json", "burn"], ["run", "--j", "--bogus"]):
        assert flpgen(*words).json()["error"]["exit"] == 2


def test_json_that_goes_to_a_file_leaves_standard_output_alone(tmp_path):
    for option in (["--json=x.json"], ["--json", "x.json"]):
        done = flpgen("bench", "--bogus", *option, cwd=tmp_path)
        assert done.code == 2 and done.out == "" and done.err
    assert flpgen("bench", "--bogus", "--json=-").json()["error"]["exit"] == 2


def test_help_before_wrong_usage_is_no_error():
    done = flpgen("gen", "--help", "--json")
    assert done.code == 0 and done.err == "" and done.out.startswith("Usage: ")


def folder(path):
    return {entry.name: entry.read_bytes() for entry in path.iterdir()}


def test_gen_writes_the_same_bytes_twice(tmp_path):
    options = [*SMALL, "--grad", "hidden,weight,bias", "--bias", "--entropy", "backward", "--emit", "ir,opt,ptx"]
    for name in ("a", "b"):
        succeed("gen", *options, "--out", tmp_path / name)
    first = folder(tmp_path / "a")
    assert first == folder(tmp_path / "b")
    for kind in ("rows", "forward", "dz", "grad_hidden", "grad_weight"):
        assert b".target sm_80" in first[f"{kind}.sm_80.ptx"]
        assert b"define" in first[f"{kind}.sm_80.ll"] and b"define" in first[f"{kind}.sm_80.opt.ll"]
        descriptor = json.loads(first[f"{kind}.sm_80.json"])
        assert descriptor["key"]["kind"] == kind and len(descriptor["sources"]) == 64
        for entry in descriptor["entries"]:
            assert f".entry {entry['symbol']}(".encode() in first[f"{kind}.sm_80.ptx"]
    assert sum(name.endswith(".flpk") for name in first) == 5
    assert all(str(tmp_path).encode() not in content for content in first.values()), "no path of this machine"


def test_gen_is_the_default_verb_and_json_has_it_all():
    document = flpgen(*SMALL, "--json", "--arch", "sm_80,sm_90a").json()
    assert document["spec"]["vocab"] == 1000 and document["spec"]["dtype"] == "bf16"
    assert document["arches"]["sm_80"] == "sm_80" and document["out"] is None
    assert [kernel["key"]["kind"] for kernel in document["kernels"]][:2] == ["rows", "forward"]
    assert all(kernel["ptx_bytes"] > 100 for kernel in document["kernels"])


def test_gen_reports_what_becomes_of_the_kernels(tmp_path):
    says = "nothing was written; --out DIR or --install-cache keeps the kernels"
    assert flpgen("gen", *SMALL).out.endswith(f"\n{says}\n")
    assert says not in flpgen("gen", *SMALL, "--out", "made", cwd=tmp_path).out
    assert says not in flpgen("gen", *SMALL, "--install-cache", cache=tmp_path / "cache").out


def test_emit_without_out_prints_the_text():
    done = flpgen("gen", *SMALL, "--emit", "ptx")
    assert done.err == "flpgen gen: 2 modules, one behind the other; --out DIR writes each to a file of its own\n"
    assert flpgen("gen", "--op", "select", "--vocab", 1000, "--emit", "ir").err == ""
    assert done.code == 0 and done.out.count(".version") == 2
    assert flpgen("gen", *SMALL, "--emit", "ir", "--json").json()["kernels"][1]["ir"].count("define") >= 1


def test_kernels_of_other_templates_are_said_to_be_of_no_use_to_plans(tmp_path):
    """A plan looks for kernels by the hash of the templates that its library was built with."""
    shutil.copytree(Path(__file__).resolve().parents[2] / "templates", tmp_path / "mine")
    own = flpgen("gen", *SMALL, "--template-dir", tmp_path / "mine", "--out", tmp_path / "same")
    assert f"FLP_CACHE_PATH={tmp_path}/same finds them" in own.out and "no plan" not in own.out
    template = tmp_path / "mine/portable/forward.lua"
    template.write_text("local unused = 1\n" + template.read_text())
    done = flpgen("gen", *SMALL, "--template-dir", tmp_path / "mine", "--out", tmp_path / "other")
    assert done.code == 0 and "FLP_CACHE_PATH" not in done.out
    assert f"written to {tmp_path}/other\nno plan takes these kernels" in done.out
    both = [sorted(path.name for path in (tmp_path / name).glob("*.flpk")) for name in ("same", "other")]
    assert not set(both[0]) & set(both[1])


def test_cache_ls_verify_gc(tmp_path):
    cache = tmp_path / "cache"
    assert flpgen("gen", *SMALL, "--install-cache", cache=cache).code == 0
    listed = flpgen("cache", "ls", "--json", cache=cache).json()
    assert listed["entries_count"] == 2 and listed["bad"] == 0
    assert {entry["status"] for entry in listed["entries"]} == {"FLP_OK"}
    assert any(" kind=forward " in entry["key"] for entry in listed["entries"])
    assert flpgen("cache", "verify", cache=cache).code == 0
    victim = sorted(cache.glob("*.flpk"))[0]
    raw = bytearray(victim.read_bytes())
    raw[len(raw) // 2] ^= 1
    victim.write_bytes(raw)
    done = flpgen("cache", "verify", "--json", cache=cache)
    assert done.code == 4 and done.json()["bad"] == 1
    assert done.err == "flpgen cache: 1 of 2 entries are bad\n"
    assert "1 bad" in flpgen("cache", "ls", cache=cache).out
    removed = flpgen("cache", "gc", "--keep", "0", "--json", cache=cache).json()
    assert removed["removed_files"] >= 1
    assert flpgen("cache", "ls", "--json", cache=cache).json()["entries_count"] == 0


def test_ls_and_list_are_the_same(tmp_path):
    assert flpgen("cache", "list", cache=tmp_path).out == flpgen("cache", "ls", cache=tmp_path).out != ""
    assert flpgen("loss", "ls").out == flpgen("loss", "list").out != ""


def test_out_serves_as_cache_path(tmp_path):
    assert flpgen("gen", *SMALL, "--out", tmp_path / "kernels").code == 0
    listed = flpgen("cache", "ls", "--json", FLP_CACHE_PATH=str(tmp_path / "kernels")).json()
    assert listed["entries_count"] == 2
    assert {entry["writable"] for entry in listed["entries"]} == {False}
