"""Tail mode on the command line: tune, run, and check on the CPU."""
import pytest

from flpgen_tool import document_of, findings, flpgen, needs_flpgen

pytestmark = needs_flpgen

HEAD = ["--vocab", 1000, "--hidden", 64]
SHAPE = [*HEAD, "--grad", "hidden,weight"]
TAIL = ["--tail", "2^-9"]


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
