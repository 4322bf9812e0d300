"""flpgen on a scripted stand-in for libcuda: which rung runs, what a failing driver is reported as."""
import shutil
from pathlib import Path

import pytest

from flpgen_tool import FAKE, flpgen, needs_fake, needs_flpgen

pytestmark = [needs_flpgen, needs_fake]

DEMO = ["run", "--demo", "--vocab", 1000, "--hidden", 64, "--rows", 12, "--json"]


def on_fake(*arguments, cache, script="", **environment):
    return flpgen(*arguments, cache=cache, FLP_CUDA_LIBRARY=FAKE, FAKE_CUDA=script, **environment)


def test_jit_then_cache(tmp_path):
    first = on_fake(*DEMO, "--grad", "hidden,weight", cache=tmp_path).json()
    assert first["rung"] == "jit" and first["device"].startswith("Fake")
    second = on_fake(*DEMO, "--grad", "hidden,weight", cache=tmp_path).json()
    assert second["rung"] == "heuristic" and second["plan_id"] == first["plan_id"]
    assert second["memory"]["peak_bytes"] > 1000 * 64 * 2 + second["memory"]["workspace_bytes"]


def cubin_rows(listing):
    return [line for line in listing.splitlines() if "rows cubin" in line]


def test_linked_code_is_an_entry_of_the_cache(tmp_path):
    first = on_fake(*DEMO, cache=tmp_path, script="link=1").json()
    assert on_fake(*DEMO, cache=tmp_path, script="link=1").json()["plan_id"] == first["plan_id"]
    kept, = tmp_path.glob("*.flpc")
    row, = cubin_rows(flpgen("cache", "ls", cache=tmp_path).out)
    assert row.startswith(kept.name[:16]) and row.split()[-1] == "ok"
    listed = flpgen("cache", "ls", "--json", cache=tmp_path).json()
    assert [entry["key"].split()[0] for entry in listed["entries"]].count("flp-cubin/1") == 1
    assert flpgen("doctor", "--json", cache=tmp_path).json()["cache"]["entries"] == listed["entries_count"]
    assert flpgen("cache", "verify", cache=tmp_path).code == 0
    kept.write_bytes(kept.read_bytes()[:-1])
    assert flpgen("cache", "verify", cache=tmp_path).code == 4
    assert flpgen("cache", "gc", "--json", cache=tmp_path).json()["removed_files"] == 1
    assert not kept.exists() and len(list(tmp_path.glob("*.flpk"))) == listed["entries_count"] - 1


def test_kernels_of_gen_are_found(tmp_path):
    spec = ["--vocab", 1000, "--hidden", 64, "--entropy", "forward"]
    assert flpgen("gen", *spec, "--out", tmp_path / "kernels").code == 0
    done = on_fake(*DEMO, cache=tmp_path / "cache", FLP_CACHE_PATH=str(tmp_path / "kernels"))
    assert done.json()["rung"] == "heuristic"


def test_generic_kernels_stand_in(tmp_path):
    """Those of the build, which `flpgen gen --generic` wrote beside the command."""
    done = on_fake(*DEMO, "--grad", "hidden,weight", cache=tmp_path / "cache", FLP_JIT_LIBRARY="/nonexistent/lib.so")
    assert done.json()["rung"] == "generic", done.err


def test_bad_rows_of_the_device_are_exit_1(tmp_path):
    done = on_fake(*DEMO, cache=tmp_path, script="badrows=3")
    assert done.code == 1 and done.err.splitlines()[-1].startswith("flpgen run: 3 rows or row ids were bad")
    assert done.json()["bad_rows"].startswith("3 rows")


def test_a_failing_driver_is_named_in_json(tmp_path):
    done = on_fake(*DEMO, cache=tmp_path, script="fail:cuMemAlloc_v2=2@2")
    assert done.code == 3 and done.json()["error"]["status"] == "FLP_ERROR_DRIVER"


def test_an_old_driver_falls_back_to_the_cpu(tmp_path):
    done = on_fake(*DEMO, cache=tmp_path, script="fail:cuModuleLoadDataEx=222")
    assert done.code == 0 and done.json()["rung"] == "eager" and done.json()["device"] == "CPU"
    assert done.json()["fp64"]["logprob_error"] < 1e-5
    strict = on_fake(*DEMO, "--strict", cache=tmp_path, script="fail:cuModuleLoadDataEx=222")
    assert strict.code == 3 and "222" in strict.err


def test_doctor_sees_devices(tmp_path):
    document = on_fake("doctor", "--json", cache=tmp_path, script="devices=2;sms=7").json()
    assert [device["ordinal"] for device in document["devices"]] == [0, 1]
    assert document["devices"][1]["multiprocessors"] == 7 and document["driver"]["version"] == 13000
    assert document["rungs"]["jit"]["works"] and document["rungs"]["eager"]["works"]
    broken = on_fake("doctor", "--json", cache=tmp_path, script="fail:cuModuleLoadDataEx=222")
    assert broken.code == 0, "the CPU rung works"
    assert not broken.json()["rungs"]["jit"]["works"] and "222" in broken.json()["rungs"]["jit"]["text"]


@pytest.mark.first
@pytest.mark.parametrize("capability, arch, options", [
    ("8.0", "sm_80", []), ("9.0", "sm_90a", []), ("9.0", "sm_90a", ["--dtype", "fp32"]), ("9.0", "sm_80", ["--alignment", "8"])])
def test_explain_assumes_what_a_plan_of_that_device_takes(tmp_path, capability, arch, options):
    command = ["explain", "--vocab", 40000, "--hidden", 512, "--entropy", "backward", "--grad", "hidden,weight", "--bias",
               "--rows", "700,8192", "--json", "--capability", capability, *options]
    document = on_fake(*command, cache=tmp_path, script=f"sms=132;capability={capability}").json()
    assert document["plan"]["rung"] == "jit"
    assert f" for {arch};" in document["plan"]["description"]
    assert document["assumed"]["arch"] == arch and document["assumed"]["capability"] == capability
    for part in document["rows"]:
        assert part["layouts"] == part["assumed_layouts"]
    assert document["assumed"]["generic_lacks"] == []
    several = on_fake(*command, "--targets", 4, "--topk", 5, cache=tmp_path, script=f"sms=132;capability={capability}")
    assert several.json()["assumed"]["generic_lacks"] == ["forward_targets_top"]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """A cache that the first command fills."""
    return tmp_path_factory.mktemp("compiled")


@pytest.mark.first
@pytest.mark.parametrize("budget", ["32M", "100M", "256M", "1G"])
def test_explain_of_a_mode_is_what_the_plan_answers(compiled, budget):
    """flp_plan_layout of a plan of such a GPU beside the table of alternatives."""
    document = on_fake("explain", "--vocab", 151936, "--hidden", 1024, "--grad", "hidden,weight", "--rows", "700,8192,65536",
                       "--budget", budget, "--json", cache=compiled, script="sms=132;capability=9.0").json()
    assert document["plan"]["rung"] in ("jit", "heuristic")
    for part in document["rows"]:
        ways = {way["name"]: way for way in part["ways"]}
        forward = part["layouts"][0]
        assert forward["mode"] == "score" and ways["score"]["workspace_bytes"] == forward["workspace_bytes"]
        assert ways["score"]["chunks"] == forward["chunks"]
        backward = part["layouts"][1]
        fitting = [way["workspace_bytes"] for name, way in ways.items() if name.startswith("recompute") and way["fits"]]
        assert backward["workspace_bytes"] in fitting if "mode" in backward else not fitting
    assert document["rows"][2]["layouts"][0]["chunks"] > 1 or budget == "1G"


def test_explain_without_the_device_that_is_asked_for(tmp_path):
    missing = on_fake("explain", "--vocab", 4000, "--hidden", 64, "--json", "--device", "5", cache=tmp_path)
    assert missing.code == 0 and missing.json()["plan"] is None and "5" in missing.json()["plan_error"]


@pytest.mark.parametrize("verb", ["run --demo --rows 4 --json", "explain --json", "check --rows 4", "bench -q"])
def test_plans_take_templates_of_a_folder(tmp_path, verb):
    """Kernels of these alone, whatever the cache has: a mistake in them shows."""
    mine, words = tmp_path / "mine", [*verb.split(), "--vocab", 1000, "--hidden", 64]
    shutil.copytree(Path(__file__).resolve().parents[2] / "templates", mine)
    (mine / "portable/forward.lua").write_text("error('on purpose')")
    assert flpgen("gen", *words[-4:], "--install-cache", cache=tmp_path / "cache").code == 0
    done = on_fake(*words, "--template-dir", mine, cache=tmp_path / "cache")
    assert done.code and "portable/forward.lua:1: on purpose" in done.out + done.err


@pytest.mark.long
def test_kernels_of_a_folder_are_kept_apart(tmp_path):
    mine = tmp_path / "mine"
    shutil.copytree(Path(__file__).resolve().parents[2] / "templates", mine)
    (mine / "portable/forward.lua").write_text("local unused = 1\n" + (mine / "portable/forward.lua").read_text())
    ids = [on_fake(*DEMO, *option, cache=tmp_path / "cache").json()["plan_id"]
           for option in ([], ["--template-dir", mine], ["--template-dir", mine], [])]
    assert ids[0] == ids[3] != ids[1] == ids[2]
    assert flpgen("cache", "ls", "--json", cache=tmp_path / "cache").json()["other_sources"] == 2
    records = [on_fake("check", "--op", "scale", *option, "--json", cache=tmp_path / "cache").json()
               for option in ([], ["--template-dir", mine])]
    assert records[0]["sources_hash"] != records[1]["sources_hash"]


@pytest.mark.parametrize("rung, code", [("heuristic", 3), ("jit", 0)])
def test_doctor_leaves_the_cache_as_it_is(tmp_path, rung, code):
    done = on_fake("doctor", "--require", rung, cache=tmp_path / "cache")
    assert done.code == code and "a plan takes rung jit" in done.out and not list(tmp_path.iterdir())


@pytest.mark.parametrize("arguments,script,code,why", [
    ("", "capability=8.0", 0, ""),
    ("--arch sm_80", "capability=9.0", 2, "--arch: 'sm_80' is not accepted; its kernels are those that others"),
    ("--arch sm_90a", "capability=8.0", 3, "--arch: kernels for sm_90a do not run on Fake H200 of compute"),
    ("--arch sm_90", "capability=9.0", 2, "--arch: 'sm_90'"),
    ("", "fail:cuInit=999", 3, "cuInit failed")])
def test_what_cannot_be_proven(tmp_path, arguments, script, code, why):
    done = on_fake("prove", *arguments.split(), cache=tmp_path / "cache", script=script)
    assert done.code == code and why in done.err and not list(tmp_path.glob("cache/*")), done.err
    assert code or "Fake H200 has no architecture that is to be proven; --arch names another" in done.out


def test_a_proof_needs_a_place_for_its_stamp(tmp_path):
    (tmp_path / "file").write_text("")
    done = on_fake("prove", "--arch", "sm_90a", cache=tmp_path / "file", script="capability=9.0")
    assert done.code == 4 and "Not a directory" in done.err
