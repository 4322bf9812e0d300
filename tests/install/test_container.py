"""packaging/container: the recipe agrees with the tree; its image runs without generator, HOME, /proc and rights.

The short form lays the image out from this build, as the recipe's build stage does, and enters it. The long form lets
buildah, an ordinary builder of images, run the recipe on a Debian 12 that debootstrap has made."""
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from documents import blocks
from flp_container import inside, read_recipe, unshare
from flpgen_tool import FLPGEN, flpgen, needs_flpgen
from installed import run

TREE, BUILD = Path(os.environ["FLP_TEST_TREE"]), Path(os.environ["FLP_TEST_BUILD"])
FOLDER = TREE / "packaging" / "container"
ARGUMENTS, STAGES = read_recipe(FOLDER / "Containerfile")
RUN = STAGES["run"]
HEALTH = RUN.last("HEALTHCHECK").arguments() if RUN.all("HEALTHCHECK") else []
COMMAND = "/opt/flp/bin/flpgen"
DEVICE, HOPPER = "Fake H200/132/13000", {"FAKE_CUDA": "capability=9.0"}
GENERIC = len(list((BUILD / "share/flp/generic").glob("*.flpk")))
SPEC = ["--vocab", 1024, "--hidden", 64, "--arch", "sm_90a"]  # what doctor tries
pytestmark = needs_flpgen
enters = pytest.mark.skipif(unshare() is None, reason="no namespace of mounts may be made here")


# ---- the recipe and the tree

def test_stages_build_on_each_other():
    known = []
    for name, stage in STAGES.items():
        assert stage.base in ("scratch", "${BASE}", *known), name
        assert {line.flags()["from"] for line in stage.all("COPY") if "from" in line.flags()} <= set(known), name
        known.append(name)
    assert known == ["build", "tune", "packs", "run"] and ARGUMENTS == {"BASE": "debian:12-slim"}


def test_what_it_copies_is_in_the_tree():
    sources = [source for stage in STAGES.values() for line in stage.all("COPY") if "from" not in line.flags()
               for source in line.arguments()[:-1]]
    packs = STAGES["packs"].last("ARG").pairs() | STAGES["packs"].all("ARG")[0].pairs()
    assert [source for source in sources if not (TREE / source.replace("${PACKS}", packs["PACKS"])).exists()] == []
    assert folders_of_the_build() <= set(sources)


def folders_of_the_build():
    """Top folders, or packaging/NAME, that the build reads without its tests."""
    found, root = set(), (TREE / "CMakeLists.txt").read_text()
    files = [path for folder in ("runtime", "gen", "autotune") for path in (TREE / folder).rglob("*")
             if path.name == "CMakeLists.txt" or path.suffix == ".cmake"]
    named = [re.findall(r"PROJECT_SOURCE_DIR}/([\w/.]+)", path.read_text()) for path in files]
    for path in [*re.findall(r"(?:add_subdirectory|include)\(([\w]+[/\w.]*)\)", root), *sum(named, [])]:
        parts = path.split("/")
        if (TREE / parts[0]).is_dir() and parts[0] != "tests":
            found.add("/".join(parts[:2]) if parts[0] == "packaging" else parts[0])
    assert {"runtime", "gen", "templates", "autotune"} <= found
    return found


def test_packages_stand_in_setup_sh_alone():
    listed = run(TREE / "setup.sh", "packages", "run").split()
    text = (TREE / "setup.sh").read_text()
    assert len(listed) > 10 and re.search(r"RUN_PACKAGES=\((.*?)\)", text, re.S)[1].split() == listed
    recipe = (FOLDER / "Containerfile").read_text()
    assert "$(./setup.sh packages run)" in recipe and not set(listed) - {"gcc", "cmake"} & set(recipe.split())
    assert set(run(TREE / "setup.sh", "packages", "test").split()) > set(listed)


def test_images_that_ship_have_no_shell_to_need():
    for stage in (STAGES["tune"], RUN):
        assert stage.base == "scratch" and not stage.all("RUN")
        assert stage.last("USER").arguments() == ["65534:65534"]
        assert all(line.is_exec_form() for word in ("ENTRYPOINT", "CMD", "HEALTHCHECK") for line in stage.all(word))
        assert stage.last("ENTRYPOINT").arguments() == [COMMAND]
    assert list(STAGES)[-1] == "run", "the last one is what a build makes that names none"


def test_verbs_options_and_settings_are_known():
    assert HEALTH == [COMMAND, "doctor", "--require", "gpu"]
    called = [HEALTH[1:], *(stage.last("CMD").arguments() for stage in (STAGES["tune"], RUN))]
    called += [shlex.split(found) for found in re.findall(r"/opt/flp/bin/flpgen ([^|;}]*)", STAGES["packs"].last("RUN").text)]
    assert len(called) == 4
    hold_commands(called)
    settings = {setting["name"] for setting in flpgen("doctor", "--json").json()["settings"]}
    for stage in STAGES.values():
        assert {name for name in stage.environment() if name.startswith("FLP_")} <= settings


def hold_commands(commands):
    for words in commands:
        verb = words[:2] if words[0] in ("pack", "loss") else words[:1]
        done = flpgen(*verb, "--help")
        known = set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", done.out)) | {"--help"}
        assert done.code == 0 and [word for word in words if re.match(r"--?[a-z]", word) and word not in known] == [], words


def test_the_manual_agrees_with_the_recipe():
    text = (FOLDER / "README.md").read_text()
    block, = [block for block in blocks("sh") if block.document.parent == FOLDER]
    commands = [shlex.split(line) for line in block.commands()]
    for words in (words for words in commands if words[:2] == ["docker", "build"]):
        assert (TREE / words[words.index("-f") + 1]).exists() and words[-1] == "."
        assert "--target" not in words or words[words.index("--target") + 1] in STAGES
        arguments = {word.split("=")[0] for before, word in zip(words, words[1:]) if before == "--build-arg"}
        assert arguments <= {name for stage in STAGES.values() for line in stage.all("ARG") for name in line.pairs()}
    images = {words[words.index("-t") + 1] for words in commands if words[:2] == ["docker", "build"]}
    runs = [words for words in commands if words[:2] == ["docker", "run"]]
    at = [next(i for i, word in enumerate(words) if word in images) for words in runs]
    hold_commands([words[i + 1:] for words, i in zip(runs, at)])
    probe = re.search(r"startupProbe: \{exec: \{command: \[(.*?)\]", text)[1].split(", ")
    assert probe[0] == COMMAND and flpgen(*probe[1:-1], "eager").code == 0
    hold_commands([re.search(r"args: \[(.*?)\]", text)[1].replace('"', "").split(", ")])
    settings = {setting["name"] for setting in flpgen("doctor", "--json").json()["settings"]}
    assert set(re.findall(r"\bFLP_[A-Z_]+", text)) <= settings
    assert "readOnlyRootFilesystem: true" in text and len(text.splitlines()) <= 80


# ---- the image

@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    out = tmp_path_factory.mktemp("prefix") / "opt"
    run("cmake", "--install", BUILD, "--strip", "--prefix", out)
    return out


@pytest.fixture(scope="module")
def image(prefix, tmp_path_factory):
    """The files of the run stage."""
    root = tmp_path_factory.mktemp("image") / "root"
    run(FOLDER / "image", prefix, root)
    return root


@pytest.fixture(scope="module")
def packs(tmp_path_factory):
    """Kernels tuned for the stand-in's device, installed as the recipe's packs stage does."""
    folder = tmp_path_factory.mktemp("packs")
    signed, public = sign(folder, "--tuned-for", DEVICE)
    assert take(folder, [signed], public).returncode == 0
    return folder / "packs"


def sign(folder, *options):
    """A signed pack, and the public key."""
    key, out = folder / "key.hex", folder / "a.flpp"
    key.write_text("11" * 32)
    key.chmod(0o600)
    done = flpgen("pack", "build", *SPEC, *options, "--sign", key, "-o", out)
    assert done.code == 0, done.err
    return out, re.search(r"public key is\s+(\w{64})", done.out)[1]


def take(folder, given, keys):
    """Runs the command of the packs stage, with its folders below this one."""
    (folder / "given").mkdir(exist_ok=True)
    for path in given:
        shutil.copy(path, folder / "given")
    text = STAGES["packs"].last("RUN").text.replace(COMMAND, shlex.quote(FLPGEN))
    text = re.sub(r"(?<=[ \"])/(given|packs)\b", lambda found: f"{folder}/{found[1]}", text)
    return subprocess.run(["sh", "-c", text], capture_output=True, text=True, umask=0o022,
                          env={"PATH": os.environ["PATH"], "FLP_PACK_KEYS": keys})


def files_of(root):
    return {str(path.relative_to(root)): path for path in root.rglob("*") if path.is_file()}


def test_the_image_is_small_and_has_no_generator(image):
    files = files_of(image)
    names = {Path(name).name for name in files}
    assert not [name for name in names if re.match(r"libflpgen|libLLVM|liblua|(cc|gcc|sh)$|bash|python", name)]
    assert {"flpgen", "libflp.so.0", "libc.so.6", "libsodium.so.23"} <= names
    assert sum(name.endswith(".flpk") for name in files) == GENERIC >= 108
    size = sum(path.stat().st_size for path in files.values() if not path.is_symlink())
    assert size < 84 << 20, f"{size / 1e6:.1f} MB"
    assert [name for name, path in files.items() if path.stat().st_mode & 0o022 or not path.stat().st_mode & 0o004] == []
    licences = {Path(name).parent.name for name in files if name.endswith("/copyright")}
    assert {"flp", "libc6", "libsodium23", "libzstd1", "libjansson4", "libsqlite3-0"} <= licences


def test_only_glibc_is_where_a_base_would_have_its_own(image):
    """/opt/flp can be copied to an image with another glibc."""
    outside = {Path(name).name for name in files_of(image) if ".so" in name and not name.startswith(("opt/flp/", "etc/"))}
    outside = {name for name in outside if not name.startswith("ld-linux")}
    assert outside == {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1"}
    needed = run("objdump", "-T", *(image / "opt/flp/lib").glob("*.so.*"), image / "opt/flp/bin/flpgen")
    assert max(map(int, re.findall(r"GLIBC_2\.(\d+)", needed))) <= 34


def test_layouts_that_cannot_be_made(prefix, tmp_path):
    (tmp_path / "there").mkdir()
    for arguments in ([], [prefix], [prefix, tmp_path / "there"], [tmp_path, tmp_path / "new"]):
        done = subprocess.run([FOLDER / "image", *arguments], capture_output=True, text=True)
        assert (done.returncode, "usage: packaging/container/image" in done.stderr) == (2, True)


@pytest.mark.first
@enters
@pytest.mark.parametrize("proc", [False, True], ids=["no-proc", "proc"])
def test_a_read_only_image_without_home(image, proc):
    done = inside(image, COMMAND, "doctor", "--json", proc=proc)
    assert done.code == 0, done.err
    document = done.json()
    assert document["generic"]["entries"] == GENERIC and document["generic"]["bad"] == 0
    assert (document["cache"]["exists"], document["cache"]["writable"]) == (False, False)
    assert document["plan"] == {"works": True, "text": "eager"} and "generator is not here" in document["generator"]["text"]
    health = inside(image, *HEALTH, proc=proc)
    assert health.code == 3 and "no GPU rung works: no NVIDIA driver" in health.err


@enters
def test_a_read_only_cache_is_read(image, packs):
    mounts = [(packs, "/packs"), (packs, "/cache")]
    environment = {**RUN.environment(), "FLP_CACHE_DIR": "/cache", "FLP_PACK_KEYS": ""}
    document = inside(image, COMMAND, "doctor", "--json", mounts=mounts, **environment).json()
    path = next(path for path in document["paths"] if path["path"] == "/packs")
    assert (path["kind"], path["entries"], path["usable"]) == ("directory", len(list(packs.glob("*.flpk"))), True)
    cache = document["cache"]
    assert (cache["writable"], document["health"]["works"]) == (False, True)
    if os.geteuid() == 0:
        assert cache["exists"] is False, "of another user: nothing is kept there"


RUNGS = [
    # packs, a driver, settings, required: exit status
    (True, True, {}, "tuned", 0), (True, True, {}, "heuristic", 0), (True, True, {}, "generic", 0),
    (True, True, {}, "gpu", 0), (True, True, {}, "jit", 3), (True, True, {"FLP_STRICT": "1"}, "tuned", 0),
    (True, True, {"FLP_FORCE": "tuned"}, "gpu", 0),
    (False, True, {}, "tuned", 3), (False, True, {}, "heuristic", 3), (False, True, {}, "jit", 3),
    (False, True, {}, "generic", 0), (False, True, {}, "gpu", 0), (False, True, {"FLP_STRICT": "1"}, "gpu", 3),
    (False, True, {"FLP_FORCE": "tuned"}, "gpu", 3),
    (True, False, {}, "tuned", 3), (True, False, {}, "gpu", 3), (True, False, {}, "eager", 0)]


@pytest.mark.first(4)
@enters
@pytest.mark.parametrize("with_packs, with_driver, settings, rung, code", RUNGS)
def test_health(image, packs, driver, with_packs, with_driver, settings, rung, code):
    mounts = [(packs, "/packs")] * with_packs + [driver] * with_driver
    environment = {**RUN.environment(), **HOPPER, **settings, "FLP_PACK_KEYS": ""}
    done = inside(image, *HEALTH[:-1], rung, "--json", mounts=mounts, **environment)
    assert done.code == code, done.out + done.err
    document = done.json()
    assert document["health"]["works"] is (code == 0)
    if with_packs and with_driver:
        assert document["rungs"]["tuned"]["works"] is True and document["plan"]["text"] == "tuned"


@enters
def test_strict_images_are_well_with_kernels_of_other_heads(image, driver, tmp_path):
    """What doctor tries is no head that anyone has; a strict image has kernels of its own head alone."""
    signed, public = sign(tmp_path, "--tuned-for", DEVICE, "--hidden", 128)
    assert take(tmp_path, [signed], public).returncode == 0
    mounts = [(tmp_path / "packs", "/packs"), driver]
    environment = {**RUN.environment(), **HOPPER, "FLP_STRICT": "1", "FLP_PACK_KEYS": ""}
    done = inside(image, *HEALTH[:-1], "tuned", mounts=mounts, **environment)
    assert done.code == 0, done.out + done.err


@pytest.mark.parametrize("keys, message", [
    ("", "FLP_PACK_KEYS: names no key, which packs are to be signed with"), ("22" * 32, "which is not among the trusted ones")])
def test_packs_that_no_key_has_signed_end_the_build(tmp_path, keys, message):
    signed, _ = sign(tmp_path)
    done = take(tmp_path, [signed], keys)
    assert done.returncode != 0 and message in done.stderr, done.stderr
    assert not list((tmp_path / "packs").glob("*.flpk"))


def test_no_packs_are_no_fault(tmp_path):
    done = take(tmp_path, [], "")
    assert done.returncode == 0 and list((tmp_path / "packs").iterdir()) == []
    assert (tmp_path / "packs").stat().st_mode & 0o777 == 0o755
