"""Tail mode on the command line: --tail and its forms, kernels, packs, explain, run, check on the CPU, and what is refused."""
import pytest

from flpgen_tool import document_of, findings, flpgen, generated, kinds, needs_flpgen, spec_of

pytestmark = needs_flpgen

HEAD = ["--vocab", 1000, "--hidden", 64]
SHAPE = [*HEAD, "--grad", "hidden,weight"]
TAIL = ["--tail", "2^-9"]
FULL = ["--vocab", 151936, "--hidden", 4096, "--grad", "hidden,weight", "--rows", 8192]


# ---- the value ----

@pytest.mark.parametrize("text, value", [("2^-9", 2**-9), ("1/512", 2**-9), ("0.001953125", 2**-9), ("0.002", 0.002),
                                         ("2^-20", 2**-20), ("2^-2", 0.25), ("1e-3", 1e-3)])
def test_forms_of_a_tail(text, value):
    assert spec_of(*SHAPE, "--tail", text)["tail"] == pytest.approx(value, rel=1e-7)


# ---- kernels ----

@pytest.mark.long
def test_kernels_of_a_tail_and_no_others_depend_on_it():
    tailed, exact = generated(*SHAPE, *TAIL), generated(*SHAPE)
    assert exact["spec"]["tail"] is None and tailed["spec"]["keep"] == 0
    assert {"forward_emit", "emitted", "tail", "listed_weight"} <= kinds(tailed)
    assert not {"forward_emit", "emitted", "tail", "listed_weight"} & kinds(exact)
    assert kinds(exact) - {"forward"} <= kinds(tailed), "rows may be recomputed"
    other = generated(*SHAPE, "--tail", "2^-4")
    assert [kernel["key"] for kernel in other["kernels"]] == [kernel["key"] for kernel in tailed["kernels"]]


def test_tune_finds_the_kernels_of_the_rows_that_are_recomputed():
    targets = [document_of("tune", *SHAPE, *more, "--dry-run")["targets"] for more in (TAIL, [])]
    assert "tail=2^-9" in targets[0][0]["spec"] and "tail" not in targets[1][0]["spec"]


# ---- explain ----

def test_explain_has_what_is_kept_and_the_exact_ways_beside_it():
    document = document_of("explain", *FULL, *TAIL)
    row = document["rows"][0]
    ways = {way["name"]: way for way in row["ways"]}
    assert document["spec"]["tail"] == 2**-9
    assert {"naive, forward", "score", "recompute-vocab", "recompute-rows", "recompute-split", "tail"} <= set(ways)
    assert ways["tail"]["products"] == 1 and ways["recompute-rows"]["products"] == 4
    modes = {mode["mode"]: mode for mode in row["assumed_modes"]}
    kept = modes["tail"]["saved_bytes"]
    assert 16 * 8192 <= kept <= 10 * 1024 * 8192 and kept < ways["tail"]["workspace_bytes"]
    assert modes["tail"]["why"].startswith("taken: ")
    layouts = {layout["pass"]: layout for layout in row["assumed_layouts"]}
    assert layouts["forward, saved"]["mode"] == layouts["backward, saved"]["mode"] == "tail"
    exact = {way["name"]: way for way in document_of("explain", *FULL)["rows"][0]["ways"]}
    assert exact["recompute-vocab"] == ways["recompute-vocab"] and "tail" not in exact


# ---- run ----

def test_the_cpu_rung_leaves_nothing_out():
    words = ["run", "--demo", "--vocab", 500, "--hidden", 64, "--rows", 90, "--grad", "hidden", "--rung", "eager"]
    document = flpgen(*words, *TAIL, "--json").json()
    assert document["spec"]["tail"] == 2**-9
    assert document["tail_report"] == {"left": 0, "sum": 0, "dense_rows": 0, "columns": 0}
    assert flpgen(*words, "--json").json()["tail_report"] is None
    assert "left out 0 of the scores' gradient, at most 2^-9" in flpgen(*words, *TAIL).out.replace("\n             ", " ")


# ---- check ----


def test_a_mode_says_the_usual_tail():
    rows = flpgen("check", *SHAPE, "--rows", 9, "--mode", "T", "--rung", "eager", "--json").json()["rows"]
    assert rows and all("mode=tail tail=2^-9" in row["options"] for row in rows)


def test_a_loss_is_checked_as_a_step():
    done = flpgen("check", *SHAPE, "--rows", 9, *TAIL, "--loss", "grpo+k3", "--rung", "eager", "--json")
    rows = findings(done.json())
    assert all("mode=tail tail=2^-9 loss=grpo+k3" in row["options"] and row["pass"] for row in rows)
    assert {"loss", "tail_report", "grad_hidden"} <= {row["output"] for row in rows}


@pytest.mark.long
@pytest.mark.parametrize("words, tail", [(["--mode", "tail"], "2^-9"), (["--tail", "0.01"], "0.00999999978")])
def test_a_set_has_the_cases_of_tail_mode_alone(words, tail):
    rows = findings(flpgen("check", "--quick", *words, "--rung", "eager", "--json").json())
    assert all(f"mode=tail tail={tail}" in row["options"] for row in rows) and all(row["pass"] for row in rows)
    assert {"shards", "accumulate", "strides", "align-2", "softcap", "T=1e-3", "T=1e3", "shifted", "N=1", "N=0", "flat", "equal",
            "one-hot", "bad-rows", "masked-all", "sharp", "sharp-shards"} <= {row["case"] for row in rows}
    assert {"tail_report", "repeat: grad_hidden", "repeat: tail_report", "loss"} <= {row["output"] for row in rows}


def test_other_modes_have_no_tail():
    assert "tail=" not in str(document_of("check", "--quick", "--mode", "S", "--rung", "eager"))
