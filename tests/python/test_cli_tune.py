"""flpgen tune on the stand-in for a GPU: what it finds, refuses, records, stores, goes on with and may be asked."""
import json
import os
import re
import sqlite3
import subprocess
import time
from pathlib import Path

import pytest

from flpgen_tool import FLPGEN, flpgen, needs_flpgen

FAKE = os.environ.get("FLP_TEST_FAKE_CUDA", "")
STAND_INS = {"FLP_CUDA_LIBRARY": FAKE,
             "FLP_JIT_LIBRARY": FAKE.replace("fake_cuda", "fake_provider"),
             "FLP_CUBLASLT_LIBRARY": FAKE.replace("fake_cuda", "fake_cublaslt")}

pytestmark = [needs_flpgen,
              pytest.mark.skipif(not os.path.exists(FAKE), reason="the stand-in for libcuda was not built")]

TREE = Path(__file__).resolve().parents[2]
PRESETS = TREE / "autotune" / "presets.json"
SPEC = ["--vocab", 200, "--hidden", 8]
BACKWARD = ["--grad", "hidden,weight", "--entropy", "backward"]
# Whatever the untuned kernels are, all others are faster: the tests know nothing of the cost model.
FASTER = "cost=forward/tune=own :50;cost=dz/tune=own :50;cost=products/tune=own :50"


# A device of compute capability 9.0 whose times have hardly any noise; 40 ms a launch, if the script says no more.
DEVICE = "capability=9.0;compute=1;jitter=5;cost=forward/:40;cost=dz/:40;cost=products/:40;"
QUICK = ["--rows", 40, "--burst-ms", 1, "--effort", "quick"]


def tune(*arguments, cache, script=FASTER, spec=SPEC, **environment):
    environment = {"TMPDIR": str(cache.parent), **STAND_INS, **environment}
    return flpgen("tune", *spec, *QUICK, *arguments, cache=cache, FAKE_CUDA=DEVICE + script, **environment)


def result(*arguments, **options):
    """-> the one target of the document, which must be there."""
    done = tune(*arguments, "--json", **options)
    assert done.code == 0 and done.err == "", done.err
    return done.json()["targets"][0]


def steps(target):
    return {step["kind"]: step for step in target["steps"]}


def rows(cache, sql, *values):
    db = sqlite3.connect(str(cache / "tune.sqlite"))
    found = db.execute(sql, values).fetchall()
    db.close()
    return found


def plan_of(cache, *spec):
    """-> (rung, plan id) of a plan that a user makes where no generator is."""
    done = flpgen("explain", *(spec or SPEC), "--json", cache=cache, FLP_CUDA_LIBRARY=FAKE,
                  FLP_JIT_LIBRARY="/nonexistent/lib.so", FAKE_CUDA=DEVICE)
    plan = done.json()["plan"]
    return plan["rung"], re.search(r"plan id ([0-9a-f]{16})", plan["description"]).group(1)


@pytest.fixture
def cache(tmp_path):
    """Not there yet: the verb makes it."""
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    """A cache that was tuned for every kind of kernel -> (it, the target of the document)."""
    cache = tmp_path_factory.mktemp("tune") / "cache"
    return cache, result(*BACKWARD, cache=cache)


# ---- what is found


def test_the_faster_kernels_are_chosen_and_plans_find_them(tuned):
    cache, target = tuned
    found = steps(target)
    assert list(found) == ["forward", "dz", "products", "layout"]
    for kind in ("forward", "dz", "products"):
        step = found[kind]
        assert step["chosen"] != step["default"] and not step["is_default"]
        assert step["ms"] < step["default_ms"] and step["ratio"] < 1 and step["timed"] <= step["tried"] + 1
        assert step["candidates"] > step["legal"] >= step["timed"]
    assert {bare["product"] for bare in target["bare"]} == {"scores", "grad_hidden", "grad_weight"}
    assert plan_of(cache, *SPEC, *BACKWARD) == ("tuned", target["plan"])
    assert not target["stopped"] and not target["done_before"]


@pytest.mark.parametrize("options", [["--dtype", "fp16", "--target-dtype", "int32", "--grad", "hidden"],
                                     ["--dtype", "fp32", "--softcap", "20", "--grad", "weight", "--no-bare"],
                                     ["--bias", "--grad", "bias,hidden", "--entropy", "forward"],
                                     ["--per-row-temperature", "--grad-hidden-dtype", "fp32", "--grad", "hidden"]])
def test_every_kind_of_specialisation(cache, options):
    target = result(*options, cache=cache)
    assert not steps(target)["forward"]["is_default"]
    assert plan_of(cache, *SPEC, *[o for o in options if o != "--no-bare"]) == ("tuned", target["plan"])


def test_the_default_stays_and_is_stored_where_nothing_is_faster(cache):
    target = result(cache=cache, script="")
    step = steps(target)["forward"]
    assert step["is_default"] and step["chosen"] == step["default"] and step["ratio"] == 1
    assert plan_of(cache) == ("tuned", target["plan"])


def ways_tried(*spec):
    """kind -> ways to cut it, the least predicted first."""
    done = tune("--dry-run", "--json", *spec, cache=TREE)
    return {kind["kind"]: [way["cut"] for way in kind["tried"] if not way["is_default"]]
            for kind in done.json()["targets"][0]["kinds"]}


def planted(ways, *places):
    """Script in which those of each kind are faster than all others, and equally fast."""
    return ";".join(f"cost={kind}/{cuts[place]} :35" for kind, cuts in ways.items() for place in places)


def test_ties_fall_to_the_least_predicted_whatever_the_seed(tmp_path):
    ways = ways_tried(*BACKWARD)
    found = [result(*BACKWARD, "--seed", seed, cache=tmp_path / str(seed), script=planted(ways, 3, 1, 2))
             for seed in (1, 77)]
    for target in found:
        assert [step["chosen"] for step in target["steps"][:3]] == [ways[kind][1] for kind in ways]
    assert found[0]["plan"] == found[1]["plan"]


def test_what_is_stored_is_the_same_bytes_each_time(tmp_path):
    files = []
    for name in ("a", "b"):
        result(cache=tmp_path / name)
        files.append({path.name: path.read_bytes() for path in (tmp_path / name).glob("*.flpk")})
    assert files[0] == files[1] and len(files[0]) == 2


# ---- what is refused


def test_wrong_candidates_are_rejected_and_never_stored(cache):
    ways = ways_tried(*BACKWARD)
    script = planted(ways, 2) + f";wrong=forward/{ways['forward'][2]} ;wrong=dz/{ways['dz'][2]} "
    target = result(*BACKWARD, cache=cache, script=script)
    found = steps(target)
    assert found["forward"]["is_default"] and found["dz"]["is_default"]
    assert found["products"]["chosen"] == ways["products"][2]
    wrong = rows(cache, "SELECT kind, tune, reason FROM candidate WHERE status = 'wrong' AND ms IS NULL ORDER BY id")
    assert [row[:2] for row in wrong] == [(kind, ways[kind][2]) for kind in ("forward", "dz")]
    assert re.search("forward differs in [0-9]+ bytes", wrong[0][2])
    assert re.search(r"grad_\w+ is off by .* allowed: ", wrong[1][2])
    assert plan_of(cache, *SPEC, *BACKWARD) == ("tuned", target["plan"])


def test_candidates_that_do_not_load_are_recorded(cache):
    way = ways_tried()["forward"][2]
    target = result(cache=cache, script=f"cost=forward/{way} :35;refuse=forward/{way} ")
    assert steps(target)["forward"]["is_default"]
    (cut, reason), = rows(cache, "SELECT tune, reason FROM candidate WHERE status = 'failed'")
    assert cut == way and "do not load" in reason


def test_wrong_untuned_kernels_end_it(cache):
    done = tune(*BACKWARD, cache=cache, script="wrong=kind=dz")
    assert done.code == 5 and "the untuned kernels are wrong, nothing is tuned: grad_" in done.err
    assert not list(cache.glob("*.flpk"))


def test_a_target_that_fails_does_not_keep_the_next_from_being_tuned(cache):
    done = tune("--grad", "hidden", "--json", cache=cache, spec=["--shapes", "200x8,200x16"],
                script=FASTER + ";wrong=dz/hidden=8 ")
    first, second = done.json()["targets"]
    assert done.code == 5 and "V=200 D=8" in done.err
    assert "untuned kernels are wrong" in first["error"] and "V=200 D=8" in first["spec"]
    assert plan_of(cache, "--vocab", 200, "--hidden", 16, "--grad", "hidden") == ("tuned", second["plan"])


def test_a_device_that_is_gone_ends_it(cache):
    done = tune(cache=cache, script="fail:cuStreamSynchronize=700@20+")
    assert done.code == 3 and "700" in done.err
    assert rows(cache, "SELECT count(*) FROM run") == [(1,)] and not list(cache.glob("*.flpk"))


def test_without_a_device_that_leaves_a_choice(cache):
    old = flpgen("tune", *SPEC, cache=cache, FAKE_CUDA="capability=8.0", **STAND_INS)
    assert old.code == 3 and "compute capability 8.0, whose kernels leave nothing to tune" in old.err
    none = flpgen("tune", *SPEC, cache=cache, FLP_CUDA_LIBRARY="/nonexistent/libcuda.so")
    assert none.code == 3 and "/nonexistent/libcuda.so" in none.err


def test_without_cublaslt_it_says_how_to_go_on(cache):
    done = tune(cache=cache, FLP_CUBLASLT_LIBRARY="/nonexistent/lib.so")
    assert done.code == 3 and "--no-bare" in done.err
    assert result("--no-bare", cache=cache, FLP_CUBLASLT_LIBRARY="/nonexistent/lib.so")["bare"] == []


# ---- records


def test_every_candidate_is_recorded(tuned):
    cache, target = tuned
    for kind, step in steps(target).items():
        count = dict(rows(cache, "SELECT status, count(*) FROM candidate WHERE kind = ? GROUP BY status", kind))
        assert sum(count.values()) == step["candidates"]
        assert count["chosen"] == 1 and count["chosen"] + count.get("timed", 0) == step["timed"]
        assert step["candidates"] - count.get("illegal", 0) == step["legal"]
        assert rows(cache, "SELECT count(*) FROM candidate WHERE kind = ? AND is_default", kind) == [(1,)]
        (cut, ms, low, high), = rows(cache, "SELECT tune, ms, ms_low, ms_high FROM candidate WHERE kind = ? AND "
                                            "status = 'chosen'", kind)
        assert step["chosen"].startswith(cut) and low <= ms <= high and ms == pytest.approx(step["ms"])
    assert rows(cache, "SELECT id FROM candidate WHERE status IN ('illegal', 'pruned') AND reason IS NULL") == []
    (gpu, driver, seed, effort, command, text, plan), = rows(
        cache, "SELECT gpu, driver, seed, effort, command, text, plan FROM run JOIN spec ON spec.run = run.id "
               "WHERE run.finished IS NOT NULL AND spec.finished IS NOT NULL")
    assert (gpu, driver, seed, effort, plan) == ("Fake H200", 13000, 1, "quick", target["plan"])
    assert text == target["spec"] and "tune --vocab 200" in command
    assert rows(cache, "SELECT count(*) FROM bare WHERE ms > 0") == [(3,)]


def test_the_report_can_be_drawn(tuned, tmp_path):
    cache, _ = tuned
    done = flpgen("report", cache / "tune.sqlite", "--out", tmp_path / "report.html")
    assert done.code == 0 and "Fake H200" in (tmp_path / "report.html").read_text(encoding="utf-8"), done.err


def test_nothing_is_written_but_cache_and_record(tmp_path):
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    work.mkdir()
    cache, record = work / "cache", work / "rows.db"
    result("--record", record, cache=cache, TMPDIR=str(work), HOME=str(home), XDG_CACHE_HOME=str(home))
    assert not list(home.iterdir()) and sorted(path.name for path in work.iterdir()) == ["cache", "rows.db"]
    assert {path.suffix for path in cache.iterdir()} == {".flpk"}
    assert record.stat().st_size > 0


def test_kernels_go_where_out_says(tmp_path):
    target = result("--out", tmp_path / "out", cache=tmp_path / "cache")
    assert not (tmp_path / "cache").exists() and (tmp_path / "out" / "tune.sqlite").exists()
    assert plan_of(tmp_path / "out") == ("tuned", target["plan"])


def test_a_record_that_is_none_is_refused_and_left_alone(cache, tmp_path):
    other = tmp_path / "notes.txt"
    other.write_text("not a database " * 100)
    done = tune("--record", other, cache=cache)
    assert done.code == 4 and "notes.txt: not a record of tuning" in done.err
    assert other.read_text() == "not a database " * 100


# ---- Ctrl-C, and going on


@pytest.mark.parametrize("when", ["interrupt=1", "interrupt=500", "interruptload=40", "interruptload=80"])
def test_ctrl_c_stores_what_was_found(cache, when):
    done = tune(*BACKWARD, "--json", cache=cache, script=f"{FASTER};{when}")
    assert done.code == 0 and done.err == ""
    document, target = done.json(), done.json()["targets"][0]
    assert document["stopped"] and target["stopped"] and target["steps"]
    assert plan_of(cache, *SPEC, *BACKWARD) == ("tuned", target["plan"])
    assert rows(cache, "SELECT count(*) FROM spec WHERE finished IS NOT NULL") == [(0,)]
    found = steps(target)
    if when.startswith("interruptload"):
        assert not found["forward"]["is_default"]
    assert len(found) < 4


def test_resume_goes_on_and_then_has_nothing_to_do(cache):
    ways = ways_tried(*BACKWARD)
    script = planted(ways, 1)
    assert tune(*BACKWARD, "--json", cache=cache, script=script + ";interruptload=40").json()["stopped"]
    (first,), = rows(cache, "SELECT count(*) FROM candidate WHERE kind = 'forward' AND rounds > 0")
    assert first > 10
    target = result(*BACKWARD, "--resume", cache=cache, script=script)
    assert [step["chosen"] for step in target["steps"][:3]] == [ways[kind][1] for kind in ways]
    assert steps(target)["forward"]["tried"] <= 24 - first + 1
    again = result(*BACKWARD, "--resume", cache=cache, script=script)
    assert again["done_before"] and again["plan"] == target["plan"] and again["steps"] == []


def test_a_run_that_was_killed_is_gone_on_with(cache):
    environment = {**os.environ, **STAND_INS, "TMPDIR": str(cache.parent), "FLP_CACHE_DIR": str(cache),
                   "FAKE_CUDA": DEVICE + FASTER}
    command = [FLPGEN, "tune", *SPEC, *QUICK, "--effort", "exhaustive", "--budget", "0"]
    process = subprocess.Popen([str(word) for word in command], env=environment, stdout=subprocess.DEVNULL)
    timed = 0
    while timed < 20 and process.poll() is None:
        time.sleep(0.01)
        if (cache / "tune.sqlite").exists():
            timed = rows(cache, "SELECT count(*) FROM sqlite_schema WHERE name = 'candidate'")[0][0] and \
                rows(cache, "SELECT count(*) FROM candidate WHERE rounds > 0")[0][0]
    process.kill()
    process.wait()
    assert timed >= 20 and not list(cache.glob("*.flpk"))
    target = result("--resume", cache=cache)
    assert steps(target)["forward"]["tried"] < 24 and plan_of(cache) == ("tuned", target["plan"])


def test_what_was_rejected_is_not_tried_again(cache):
    first, second = ways_tried()["forward"][:2]
    assert result(cache=cache, script=f"wrong=forward/{first} ;wrong=forward/{second} ;interruptload=25")["stopped"]
    wrong = "SELECT tune, reason FROM candidate WHERE status = 'wrong' AND spec = ? ORDER BY tune"
    assert {row[0] for row in rows(cache, wrong, 1)} == {first, second}
    result("--resume", cache=cache)
    assert rows(cache, wrong, 2) == rows(cache, wrong, 1), "they would be right now"


def test_what_was_done_elsewhere_is_done_again(cache):
    first = result(cache=cache)
    other = result("--resume", cache=cache, script=FASTER + ";driver=13010")
    assert not other["done_before"] and steps(other)["forward"]["tried"] == steps(first)["forward"]["tried"]


def test_what_was_done_and_is_no_longer_stored_is_stored_again(cache):
    script = planted(ways_tried(), 4)
    first = result(cache=cache, script=script)
    for path in cache.glob("*.flpk"):
        path.unlink()
    again = result("--resume", cache=cache, script=script)
    assert not again["done_before"] and steps(again)["forward"]["tried"] == 0
    assert plan_of(cache) == ("tuned", again["plan"]) and again["plan"] == first["plan"]


# ---- what is printed


def test_it_is_silent_in_a_pipe_and_says_what_it_did(cache):
    done = tune(cache=cache)
    assert done.code == 0 and done.err == "", done.err
    assert "bf16 V=200 D=8" in done.out and "forward" in done.out
    assert re.search(r"stored; plan [0-9a-f]{16}", done.out) and str(cache / "tune.sqlite") in done.out
    assert "\r" not in done.out and "\x1b" not in done.out


def test_errors_are_json_where_json_is_asked_for(cache):
    done = tune("--json", cache=cache, spec=["--preset", "gpt-9"])
    assert done.code == 2 and done.json()["error"]["status"] == "FLP_ERROR_ARGUMENT"


# ---- dry runs


def dry(*arguments, **environment):
    return flpgen("tune", "--dry-run", *arguments, FLP_CUDA_LIBRARY="/nonexistent/libcuda.so", **environment)


def test_a_dry_run_needs_no_gpu_and_writes_nothing(tmp_path):
    done = dry(*SPEC, *BACKWARD, "--json", TMPDIR=str(tmp_path), FLP_CACHE_DIR=str(tmp_path / "cache"))
    assert done.code == 0 and not list(tmp_path.iterdir())
    target, = done.json()["targets"]
    assert [kind["kind"] for kind in target["kinds"]] == ["forward", "dz", "products"]
    for kind in target["kinds"]:
        assert kind["candidates"] == kind["illegal"] + kind["pruned"] + len(kind["tried"])
        assert sum(way["is_default"] for way in kind["tried"]) == 1
        predicted = [way["predicted_ms"] for way in kind["tried"]]
        assert predicted == sorted(predicted) and len(set(way["cut"] for way in kind["tried"])) == len(predicted)
    assert "tried; first " in dry(*SPEC).out


def test_efforts_try_more_and_more():
    documents = [dry("--vocab", 151936, "--hidden", 4096, "--effort", effort, "--json").json()
                 for effort in ("quick", "normal", "exhaustive")]
    tried = [len(document["targets"][0]["kinds"][0]["tried"]) for document in documents]
    assert tried[0] < tried[1] <= tried[2]


def targets(*arguments):
    done = dry(*arguments, "--json")
    assert done.code == 0, done.err
    return [(target["model"], target["spec"]) for target in done.json()["targets"]]


def test_shapes_make_one_target_each():
    assert [spec.split(" entropy")[0] for _, spec in targets("--shapes", "4000x512,151936x4096,4000x512", "--dtype", "fp16")] \
        == ["fp16 V=4000 D=512", "fp16 V=151936 D=4096"]


def test_a_model_file_makes_one_target(tmp_path):
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_type": "qwen3", "vocab_size": 4000, "hidden_size": 512, "torch_dtype": "bfloat16"}))
    (model, spec), = targets("--model", config)
    assert model and str(config).endswith(model.lstrip(".")) and spec.startswith("bf16 V=4000 D=512")


@pytest.mark.parametrize("arguments, words", [
    (["--shapes", "4000"], "--shapes: '4000' is not accepted; VOCABxHIDDEN is"),
    (["--shapes", "4000x512,"], "--shapes: '' is not accepted"),
    (["--shapes", "4000x513"], "hidden"),
    (["--shapes", "4000x512", "--vocab", "7"], "--vocab and --hidden beside --shapes"),
    (["--shapes", "4000x512", "--preset", "all"], "--shapes beside presets"),
    (["--preset", "qwen3-8b", "--model", "config.json"], "--model beside presets"),
    (["--preset", "gpt-9"], "--preset: 'gpt-9' is not accepted; all is, or any of qwen2.5-0.5b, "),
    (["--preset", "qwen3-8b,qwen3"], "--preset: 'qwen3' is not accepted"),
    (["--preset", ""], "--preset: '' is not accepted"),
    (["--model", "/nonexistent/config.json"], "/nonexistent/config.json"),
    ([], "vocab"),
    ([*SPEC, "--alignment", "8"], "alignment 8 is not accepted; 16 is"),
    ([*SPEC, "--budget", "soon"], "--budget: 'soon' is not accepted; seconds are, or a time such as 90s, 2m"),
    ([*SPEC, "--budget", "-1"], "--budget: '-1'"),
    ([*SPEC, "--budget", "1d"], "--budget: '1d'"),
    ([*SPEC, "--budget", "nan"], "--budget: 'nan'"),
    ([*SPEC, "--budget", ""], "--budget: ''"),
    ([*SPEC, "--effort", "hard"], "--effort: 'hard' is not accepted; one of quick, normal, exhaustive is"),
    ([*SPEC, "--rows", "0"], "--rows: '0'"),
    ([*SPEC, "--burst-ms", "0"], "--burst-ms: '0' is not accepted"),
    ([*SPEC, "--seed", "-1"], "--seed: '-1'"),
    ([*SPEC, "--tune", "forward:stages=4"], "--tune: it is for this verb to find out"),
    ([*SPEC, "more"], "argument 'more' is not accepted"),
])
def test_what_is_not_accepted_is_named(arguments, words):
    done = dry(*arguments)
    assert done.code in (2, 4) and words in done.err, done.err


@pytest.mark.parametrize("budget, seconds", [("90", 90), ("90s", 90), ("1.5m", 90), ("1h", 3600), ("0", 0)])
def test_budgets_in_every_form(cache, budget, seconds):
    assert tune("--budget", budget, cache=cache, script="interrupt=1").code == 0
    assert rows(cache, "SELECT budget_s FROM run") == [(seconds,)]


def test_a_budget_is_kept(cache):
    # Rows enough that every raster is a candidate of its own and takes the stand-in a while.
    target = result("--budget", "0.02", "--effort", "exhaustive", "--rows", 3000, cache=cache)
    assert steps(target)["forward"]["out_of_time"], target
    assert target["seconds"] < 20, "the first group and the finalists, on a machine that is busy"
    assert rows(cache, "SELECT count(*) > 0 FROM candidate WHERE status = 'waiting'") == [(1,)]


# ---- presets


def test_presets_are_published_heads_with_their_sources():
    presets = json.loads(PRESETS.read_text())["presets"]
    assert len({(preset["vocab"], preset["hidden"]) for preset in presets}) >= 20
    assert len({preset["name"] for preset in presets}) == len(presets)
    for preset in presets:
        assert re.fullmatch(r"https://huggingface\.co/[\w.-]+/[\w.-]+/blob/main/config\.json", preset["source"]), preset
        assert preset["hidden"] % 8 == 0


def test_presets_are_found_by_name_in_the_order_asked():
    found = targets("--preset", "qwen3-8b,gemma-2-9b")
    assert [model for model, _ in found] == ["qwen3-8b", "gemma-2-9b"]
    assert found[0][1].startswith("bf16 V=151936 D=4096") and "softcap=30" in found[1][1]


def test_all_presets_are_each_head_once():
    found = targets("--preset", "all", "--effort", "quick")
    presets = json.loads(PRESETS.read_text())["presets"]
    assert len({spec for _, spec in found}) == len(found)
    assert len(found) == len({(p["vocab"], p["hidden"], p.get("softcap")) for p in presets})


SOUND = {"name": "one", "vocab": 4000, "hidden": 512, "source": "https://example.org/config.json"}


def preset_file(tmp_path, *presets):
    path = tmp_path / "presets.json"
    path.write_text(json.dumps({"presets": presets}))
    return path


def test_presets_of_a_file(tmp_path):
    path = preset_file(tmp_path, SOUND, {**SOUND, "name": "two", "hidden": 64, "softcap": 30, "bias": True, "scale": 0.5})
    assert [model for model, _ in targets("--preset-file", path)] == ["one", "two"]
    (model, spec), = targets("--preset-file", path, "--preset", "two")
    assert model == "two" and "softcap=30" in spec and "bias" in spec


@pytest.mark.parametrize("field, value, words", [
    ("name", None, "preset 1: name is missing"),
    ("name", "", "preset 1: name is empty"),
    ("name", 7, "preset 1: name is no text"),
    ("name", "a,b", "preset 1: name has a comma"),
    ("vocab", None, "preset 1: vocab is missing"),
    ("vocab", 1, "preset 1: vocab is too small"),
    ("vocab", 4000.5, "preset 1: vocab is no whole number"),
    ("vocab", 1 << 40, "preset two: "),
    ("hidden", "512", "preset 1: hidden is no whole number"),
    ("hidden", -8, "preset 1: hidden is too small"),
    ("hidden", 513, "preset two: "),
    ("source", None, "preset 1: source is missing"),
    ("softcap", "30", "preset 1: softcap is no number"),
    ("softcap", -1, "preset 1: softcap is not above 0"),
    ("scale", 0, "preset 1: scale is not above 0"),
    ("bias", 1, "preset 1: bias is neither true nor false"),
    ("soft_cap", 30, "preset 1: soft_cap is not known"),
])
def test_a_preset_that_is_malformed_is_named(tmp_path, field, value, words):
    preset = {**SOUND, "name": "two", field: value}
    if value is None:
        del preset[field]
    done = dry("--preset-file", preset_file(tmp_path, SOUND, preset))
    assert done.code in (2, 4) and words in done.err, done.err


@pytest.mark.parametrize("text, words", [
    ("", "not JSON"), ("[1, 2", "not JSON"), ("[]", "presets is no list"), ('{"presets": {}}', "presets is no list"),
    ('{"presets": [7]}', "preset 0 is not an object"), ('{"presets": [], "presets": []}', "not JSON: duplicate"),
    ('{"presets": []}', "--preset: 'all' is not accepted"),
])
def test_a_file_without_presets_is_refused(tmp_path, text, words):
    path = tmp_path / "presets.json"
    path.write_text(text)
    done = dry("--preset-file", path)
    assert done.code in (2, 4) and words in done.err, done.err
