"""What a specialisation takes beside the usual kernels, a row each: the kernels that its packs hold, and the patterns
and outputs that `flpgen check` has of it on the CPU."""
import pytest

from flpgen_pack_tool import build, entries_of
from flpgen_tool import findings, flpgen, generated, needs_flpgen

pytestmark = needs_flpgen

SHAPE = ["--vocab", 1000, "--hidden", 64, "--arch", "sm_80"]
PACKS = {  # options: kinds of its kernels
    "--grad weight --keep-set 20": ["listed", "listed_weight"],
    "--grad hidden --tail 2^-9": ["tail", "forward_emit"],
    "--grad hidden --targets 64": ["forward_targets", "targets"],
    "--grad hidden,weight --targets 8 --loss jsd": ["loss_targets"],
}


@pytest.mark.first
@pytest.mark.parametrize("options", PACKS)
def test_packs_hold_its_kernels(tmp_path, options):
    lines = tmp_path / "list.txt"
    lines.write_text(f"--vocab 1000 --hidden 64 {options}\n")
    keys = [entry["key"] for entry in entries_of(build(tmp_path / "a.flpp", "--list", lines, "--arch", "sm_80"))]
    assert all(any(f"kind={kind} " in key for key in keys) for kind in PACKS[options]), keys


@pytest.mark.parametrize("options", ["--keep-set 20", *(pytest.param(options, marks=pytest.mark.long)
                                                        for options in ("--tail 2^-9", "--targets 64"))])
def test_packs_hold_its_variants(tmp_path, options):
    words = ["--grad", "hidden,weight", *options.split()]
    build(tmp_path / "a.flpp", *SHAPE, *words, "--variants")


@pytest.mark.parametrize("one, other", [
    ("--keep-set 1", "--keep-set 512"), ("--targets 2", "--targets 512"), ("", "--targets 1"),
    pytest.param("--tail 2^-9", "--tail 2^-4", marks=pytest.mark.long)])
def test_kernels_are_the_same_for_any_number(one, other):
    keys = [[kernel["key"] for kernel in generated(*SHAPE[:4], "--grad", "hidden,weight", *options.split())["kernels"]]
            for options in (one, other)]
    assert keys[0] == keys[1]


GRADS = ["--grad", "hidden,weight,bias", "--bias"]
BACKWARD = [*GRADS, "--entropy", "backward"]
OUTPUTS = {"logprob", "entropy", "grad_hidden", "grad_weight", "grad_bias"}
TEACHERS = {"random", "masked", "bad-rows", "idle-rows", "targets-bad", "teacher-certain", "teacher-missing",
            "teacher-tails", "teacher-whole"}
STEPS = {"logprob", "logprob bits", "loss", "metrics", "grad_hidden", "grad_weight", "grad_bias"}
CHECKS = [  # words; what every row says of itself; cases; outputs
    ([*BACKWARD, "--keep-set", 9], "mode=listed kept=9",
     {"random", "masked", "row-list", "nan-rows", "lists-bad", "lists-one", "lists-all", "lists-repeat",
      "lists-descend", "lists-behind"}, OUTPUTS),
    ([*BACKWARD, "--tail", "2^-9"], "mode=tail tail=2^-9",
     {"random", "masked", "one-hot", "bad-rows", "nan-rows", "sharp", "equal", "sharp-masked", "sharp-bad", "sharp-nan",
      "masked-all"}, {"tail_report", "logprob bits", "entropy bits", "grad_bias"}),
    ([*BACKWARD, "--targets", 5], "targets=5",
     {"random", "masked", "bad-rows", "targets-teacher", "targets-same", "targets-ends", "targets-few", "targets-bad"},
     OUTPUTS),
    *(([*GRADS, "--loss", loss, "--targets", 5], f"targets=5 loss={loss}", TEACHERS, STEPS)
      for loss in ("forward_kl", "reverse_kl", "jsd")),
    (["--entropy", "forward", "--topk", 20, "--rank"], "topk=20 rank",
     {"equal", "exact", "sharp", "nan-rows", "bad-rows"},
     {"logprob bits", "entropy bits", "top_ids", "top_logprob", "top_rest", "rank"}),
    (["--grad", "hidden,weight", "--loss", "grpo+k3", "--loss-parameter", "beta=0.5"], "loss=grpo+k3",
     {"peaked", "unlikely", "steep", "nan-rows", "shifted"},
     {"loss", "metrics", "logprob bits", "grad_hidden", "grad_weight"}),
]


@pytest.mark.parametrize("words, told, cases, outputs", CHECKS, ids=[told for _, told, *_ in CHECKS])
def test_check_has_every_pattern(words, told, cases, outputs):
    done = flpgen("check", "--vocab", 300, "--hidden", 32, "--rows", 30, *words, "--rung", "eager", "--json",
                  FLP_CUDA_LIBRARY="/nonexistent/libcuda.so.1")
    assert done.code == 0, done.out
    record = done.json()
    assert record["failed"] == 0 and " ".join(map(str, words[-2:])) in record["command"]
    assert {row["case"] for row in record["rows"]} >= cases
    assert all(told in row["options"] for row in record["rows"])
    assert {row["output"] for row in findings(record)} >= outputs
