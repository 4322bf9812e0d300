"""flpgen pack build --variants: one line a head, kernels for whatever is asked of it; what is shared, how large it is."""
import os

import pytest

from flpgen_pack_tool import build, entries_of, pack
from flpgen_tool import needs_flpgen

PTXAS = os.environ.get("FLP_PTXAS", "")
HEAD = "--vocab 1000 --hidden 64"
MODEL = "--vocab 151936 --hidden 4096 --entropy backward --grad hidden,weight"
DEVICE = "A GPU/7/13000"
TUNED_FOR = f"--tuned-for '{DEVICE}'"

pytestmark = needs_flpgen


def of_list(folder, name, lines, *arguments, **environment):
    """The pack of a list."""
    (folder / name).write_text("\n".join(lines))
    return build(folder / f"{name}.flpp", "--list", folder / name, *arguments, **environment)


def is_tuned(entry):
    return entry["key"].endswith("tuned=" + DEVICE)


def of_kind(entries, kind):
    return [entry for entry in entries if entry["kernel"]["key"]["kind"] == kind]


@pytest.mark.long
def test_variants_are_what_callers_ask_of_a_head(tmp_path):
    """The same pack as of a list that spells them out, with forward_keep in its default tiling."""
    tuned = f"--tune 'forward:stages=4;dz:raster=4' --chunks 0x320 {TUNED_FOR}"
    asked = [f"{grads} {entropy}" for grads in ("", "--grad hidden", "--grad hidden,weight")
             for entropy in ("", "--entropy backward" if grads else "--entropy forward")]
    one = of_list(tmp_path, "one", [f"{HEAD} {asked[-1]} {tuned}"], "--variants")
    spelt = of_list(tmp_path, "spelt", [f"{HEAD} {way} {tuned}" for way in asked] +
                    [f"{HEAD} {way} --keep" for way in asked if "--grad" in way])
    assert one.read_bytes() == spelt.read_bytes()
    kernels = [entry["kernel"] for entry in entries_of(one) if is_tuned(entry)]
    assert sorted((kernel["key"]["kind"], kernel["key"]["entropy"], kernel["chunk_vocab"]) for kernel in kernels) == [
        ("dz", False, 320), ("dz", True, 320), ("forward", False, 0), ("forward", True, 0), ("forward_short", False, 0),
        ("forward_short", True, 0), ("products", False, 0)]


def test_variants_of_a_head_in_fp32_keep_nothing(tmp_path):
    one = of_list(tmp_path, "one", [f"{HEAD} --dtype fp32 --grad hidden {TUNED_FOR}"], "--variants")
    assert {entry["kernel"]["key"]["kind"] for entry in entries_of(one)} == {
        "rows", "forward", "dz", "grad_hidden", "products"}


@pytest.mark.long
def test_variants_of_what_keeps_are_tuned_with_it(tmp_path):
    """forward_keep was searched in save or stream mode; a loss is of the line alone."""
    line = f"{HEAD} --grad hidden --loss grpo --step-rows 512 {TUNED_FOR}"
    entries = entries_of(of_list(tmp_path, "one", [line], "--variants"))
    assert [(entry["kernel"]["key"]["entropy"], entry["kernel"]["chunk_rows"])
            for entry in of_kind(entries, "forward_keep") if is_tuned(entry)] == [(False, 512), (True, 512)]
    assert len(of_kind(entries, "loss_rows")) == 1


def test_scores_that_exist_have_no_variants(tmp_path):
    line = ["--op select --vocab 1000"]
    assert of_list(tmp_path, "a", line).read_bytes() == of_list(tmp_path, "b", line, "--variants").read_bytes()


@pytest.mark.parametrize("tilings", [("--tune products:raster=4", ""), ("", "--tune products:raster=4")])
def test_heads_that_share_a_tuned_kernel_take_the_last_tiling(tmp_path, tilings):
    """products knows no vocabulary; two heads of one width may have found different tilings."""
    lines = [f"--vocab {700 + i} --hidden 64 --grad hidden {one} {TUNED_FOR}" for i, one in enumerate(tilings)]
    products = of_kind(entries_of(of_list(tmp_path, "a", lines)), "products")
    raster = {is_tuned(entry): entry["kernel"]["tile"]["raster"] for entry in products}
    assert len(products) == 2 and raster[False] != 4 and raster[True] == (4 if tilings[1] else raster[False])


# ---- size ----

def image_bytes(entries):
    """Bytes of PTX and machine code; what entries share counts once."""
    return sum({image["sha256"]: image["stored_bytes"] for entry in entries for image in entry["images"]}.values())


@pytest.mark.long
def test_a_model_fits_two_mebibytes(tmp_path):
    """A kernel that stays as it is untuned is there once, for the device and for others."""
    path = of_list(tmp_path, "a", [f"{MODEL} {TUNED_FOR}"], "--variants", "--name", "a model")
    entries = entries_of(path)
    images = {entry["key"]: entry["images"] for entry in entries}
    tuned = [key for key in images if key.endswith(DEVICE)]
    assert len(tuned) == 7 and all(images[key] == images[key.removesuffix(DEVICE)] for key in tuned)
    assert path.stat().st_size - image_bytes(entries) < 2**15 and path.stat().st_size < 2**19
    assert pack("inspect", path, "--json").json()["manifest"]["name"] == "a model"


@pytest.mark.long
@pytest.mark.skipif(not PTXAS, reason="no ptxas")
def test_a_model_with_cubins_fits_two_mebibytes(tmp_path):
    """Each kernel with a tiling that is not the default, so that nothing is shared; forward_short has one tiling."""
    line = f"{MODEL} --tune 'forward:raster=4;dz:raster=4;products:raster=4' {TUNED_FOR}"
    path = of_list(tmp_path, "a", [line], "--variants", "--cubin", "sm_90", FLP_PTXAS=PTXAS)
    entries = entries_of(path)
    bare = [entry for entry in entries if len(entry["images"]) == 1]
    assert {entry["kernel"]["key"]["kind"] for entry in bare} == {
        "forward", "forward_keep", "dz", "grad_hidden", "grad_weight"}, "Hopper has its own"
    shared = len(of_kind(entries, "forward_short"))
    assert len({image["sha256"] for entry in entries for image in entry["images"]}) == \
        2 * len(entries) - len(bare) - shared
    assert path.stat().st_size < 2**20
