"""packaging/container/Containerfile as buildah builds it, from a bare Debian 12; the short form is test_container.py."""
import os
import re
import shutil
from pathlib import Path

import pytest

import flp_buildah
from documents import blocks
from flp_container import inside, read_recipe, unshare
from flpgen_tool import flpgen, needs_flpgen

TREE = Path(os.environ["FLP_TEST_TREE"])
RECIPE = TREE / "packaging" / "container" / "Containerfile"
KEPT = TREE / "build" / "container"
COMMAND = "/opt/flp/bin/flpgen"
HEAD = ["--vocab", "1024", "--hidden", "64"]  # what doctor tries
DEVICE, HOPPER = "Fake H200/132/13000", {"FAKE_CUDA": "capability=9.0"}
pytestmark = [pytest.mark.long, needs_flpgen, pytest.mark.skipif(unshare() is None, reason="no namespace of mounts")]


@pytest.fixture(scope="module")
def packs():
    """A folder in the tree's build folder with a signed pack -> (its name from the top of the tree, the key)"""
    folder = KEPT / "packs"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    key = KEPT / "key.hex"
    key.write_text("11" * 32)
    key.chmod(0o600)
    done = flpgen("pack", "build", *HEAD, "--arch", "sm_90a", "--tuned-for", DEVICE, "--sign", key, "-o", folder / "a.flpp")
    assert done.code == 0, done.err
    return folder.relative_to(TREE), re.search(r"public key is\s+(\w{64})", done.out)[1]


@pytest.fixture(scope="module")
def images(packs, tmp_path_factory):
    builder, reason = flp_buildah.builder(tmp_path_factory.mktemp("buildah"))
    if not builder:
        pytest.skip(reason)
    try:
        builder.add_base("flp-base", flp_buildah.make_base(KEPT / "bookworm"))
        folder, key = packs
        for tag, target in (("flp-tune", "tune"), ("flp", "run")):
            builder.build(tag, RECIPE, TREE, "--target", target, BASE="localhost/flp-base", PACKS=folder, FLP_PACK_KEYS=key)
        yield builder
    finally:
        builder.clear()


@pytest.fixture(scope="module")
def root(images):
    return images.root("flp")


def environment_of(config):
    return dict(word.split("=", 1) for word in config["Env"])


def test_the_image_is_what_the_recipe_says(images, root):
    _, stages = read_recipe(RECIPE)
    config = images.config("flp")
    assert config["User"] == "65534:65534" and config["Entrypoint"] == [COMMAND] and config["Cmd"] == ["doctor"]
    assert config["Healthcheck"]["Test"] == ["CMD", *stages["run"].last("HEALTHCHECK").arguments()]
    assert set(stages["run"].environment()) == set(environment_of(config))
    files = [path for path in Path(root).rglob("*") if path.is_file() and not path.is_symlink()]
    kernels = [path for path in files if path.suffix == ".flpk"]
    assert sum(path.stat().st_size for path in kernels) < 80 << 20, "text, a sixth of it in a layer"
    assert sum(path.stat().st_size for path in set(files) - set(kernels)) < 10 << 20
    assert not [path for path in files if re.match(r"libflpgen|libLLVM|gcc|sh$|bash|apt", path.name)]


def test_it_runs_what_was_packed(images, root, driver):
    config = images.config("flp")
    environment = {**environment_of(config), **HOPPER}
    health = config["Healthcheck"]["Test"][1:]
    done = inside(root, *health, mounts=[driver], **environment)
    assert done.code == 0, done.out + done.err
    document = inside(root, *health[:-1], "tuned", "--json", mounts=[driver], **environment)
    assert document.code == 0 and document.json()["plan"] == {"works": True, "text": "tuned"}
    assert inside(root, *health[:-1], "jit", mounts=[driver], **environment).code == 3
    assert inside(root, *health, **environment).code == 3, "no driver"
    demo = inside(root, COMMAND, "run", "--demo", *HEAD, "--rows", "64", "--rung", "eager", **environment)
    assert demo.code == 0 and "eager on CPU" in demo.out


def test_the_other_image_tunes_and_packs(images, driver):
    config, root = images.config("flp-tune"), images.root("flp-tune")
    environment = {**environment_of(config), **HOPPER}
    assert (config["User"], config["Entrypoint"]) == ("65534:65534", [COMMAND])
    os.chown(f"{root}/packs", 65534, 65534)
    for words in (["tune", *HEAD, "--dry-run"], ["tune", "--preset", "qwen3-8b", "--dry-run"],
                  ["doctor", "--require", "jit"]):
        done = inside(root, COMMAND, *words, mounts=[driver], **environment)
        assert done.code == 0, done.out + done.err


def test_a_base_of_ones_own_takes_the_folders(images, driver, tmp_path):
    """The first recipe of README.md, with Debian in the place of its base."""
    block = next(block for block in blocks("dockerfile") if block.document.parent == RECIPE.parent)
    text, count = re.subn(r"^FROM \S+", "FROM localhost/flp-base", block.text)
    (tmp_path / "Containerfile").write_text(text.replace("--from=flp ", "--from=localhost/flp "))
    images.build("own", tmp_path / "Containerfile", tmp_path)
    root, environment = images.root("own"), {**environment_of(images.config("own")), **HOPPER}
    library = Path(root, "usr/lib/x86_64-linux-gnu/libcuda.so.1")
    shutil.copy(driver[0] / library.name, library)
    done = inside(root, COMMAND, "doctor", "--require", "tuned", proc=True, **environment)
    assert count == 1 and done.code == 0, done.out + done.err
