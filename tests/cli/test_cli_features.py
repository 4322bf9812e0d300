"""What a specialisation takes beside the usual kernels, a row each: the kernels that its packs hold."""
import pytest

from flpgen_pack_tool import build, entries_of
from flpgen_tool import generated, needs_flpgen, succeed

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


@pytest.mark.first
@pytest.mark.parametrize("beside", ["--lora-rank 8", "--weight-dtype fp32 --mixed round", "--weight-dtype fp32 --mixed split",
                                    "--hidden-dtype fp32 --mixed split"])
def test_listed_columns_have_generic_kernels(beside):
    out = succeed("explain", *SHAPE[:4], "--grad", "hidden", "--keep-set", 20, *beside.split()).out
    assert "rung generic, which needs no compiler, has all of them" in out
