"""Best columns and ranks on the command line: --topk and --rank, run on the CPU, completion."""
import pytest

from flpgen_tool import flpgen, needs_flpgen, read_safetensors, succeed

pytestmark = needs_flpgen

NO_GPU = {"FLP_CUDA_LIBRARY": "/nonexistent/libcuda.so.1"}
TOP = ["--topk", 20, "--rank"]
DEMO = ["run", "--demo", "--vocab", 500, "--hidden", 64, "--rows", 30, "--dtype", "fp32"]


@pytest.mark.parametrize("rows", [30, 300])  # in one call, and in blocks
def test_run_writes_and_tells_them(tmp_path, rows):
    out = tmp_path / "out.safetensors"
    done = succeed(*DEMO, "--rows", rows, *TOP, "-o", out, **NO_GPU)
    assert "best columns 20 have" in " ".join(done.out.split()) and "are the best column of their row" in done.out
    found = read_safetensors(out)
    names = ("top_ids", "top_logprob", "top_rest", "rank")
    kinds = {name: (found[name].dtype.str, found[name].shape) for name in names}
    assert kinds == {"top_ids": ("<i8", (rows, 20)), "top_logprob": ("<f4", (rows, 20)),
                     "top_rest": ("<f4", (rows,)), "rank": ("<i4", (rows,))}
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


# ---- completion ----

@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_offers_them(shell):
    text = flpgen("completion", shell).out
    assert "topk" in text and "rank" in text
