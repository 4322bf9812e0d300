"""Best columns and ranks on the command line: --topk and --rank, check and run on the CPU, explain, completion, what is
refused."""
import pytest

from flpgen_tool import document_of, flpgen, needs_flpgen, read_safetensors, spec_of

pytestmark = needs_flpgen

NO_GPU = {"FLP_CUDA_LIBRARY": "/nonexistent/libcuda.so.1"}
HEAD = ["--vocab", 1000, "--hidden", 64]
TOP = ["--topk", 20, "--rank"]
DEMO = ["run", "--demo", "--vocab", 500, "--hidden", 64, "--rows", 30, "--dtype", "fp32"]


# ---- the value ----


def test_a_spec_has_them():
    assert [(spec["topk"], spec["rank"]) for spec in (spec_of(*HEAD, *TOP), spec_of(*HEAD))] == [(20, True), (0, False)]


# ---- check ----


def test_check_of_a_set_takes_its_cases_alone():
    rows = document_of("check", "--quick", "--topk", 7, "--rung", "eager")["rows"]
    assert all("topk=" in row["options"] or "rank" in row["options"] for row in rows)
    assert {"top", "top-1", "top-shards", "rank", "top-few", "top-V=2"} <= {row["case"] for row in rows}
    assert any("topk=7" in row["options"] for row in rows)


# ---- run ----

def test_run_writes_and_tells_them(tmp_path):
    out = tmp_path / "out.safetensors"
    done = flpgen(*DEMO, *TOP, "-o", out, **NO_GPU)
    assert done.code == 0, done.err
    assert "best columns 20 have" in " ".join(done.out.split()) and "are the best column of their row" in done.out
    found = read_safetensors(out)
    names = ("top_ids", "top_logprob", "top_rest", "rank")
    kinds = {name: (found[name].dtype.str, found[name].shape) for name in names}
    assert kinds == {"top_ids": ("<i8", (30, 20)), "top_logprob": ("<f4", (30, 20)), "top_rest": ("<f4", (30,)),
                     "rank": ("<i4", (30,))}
    for own, values, rank, logprob in zip(found["top_ids"], found["top_logprob"], found["rank"], found["logprob"]):
        if rank == -1:
            assert (own == -1).all() and (values == 0).all()
            continue
        assert len(set(own)) == 20 and list(values) == sorted(values, reverse=True)
        if rank < 20:
            assert values[rank] == logprob


def test_run_reports_as_json():
    top = flpgen(*DEMO, *TOP, "--json", **NO_GPU).json()["top"]
    assert top["topk"] == 20 and 0 < top["rest"]["mean"] < 1 and top["first_rows"] >= 0
    assert flpgen(*DEMO, "--rank", "--json", **NO_GPU).json()["top"]["rest"] is None
    assert flpgen(*DEMO, "--json", **NO_GPU).json()["top"] is None


# ---- explain, completion ----

def test_explain_knows_their_memory():
    full = ["explain", "--vocab", 151936, "--hidden", 4096, "--rows", 8192]
    top, plain = document_of(*full, *TOP), document_of(*full)
    assert top["spec"]["topk"] == 20 and plain["spec"]["topk"] == 0
    sizes = [next(way for way in document["rows"][0]["ways"] if way["name"] == "score")["workspace_bytes"]
             for document in (top, plain)]
    assert sizes[0] > sizes[1]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_offers_them(shell):
    text = flpgen("completion", shell).out
    assert "topk" in text and "rank" in text
