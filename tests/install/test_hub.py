"""The folder for the kernels hub (packaging/hub): its layout, what its files may import and name, and that it runs.

The short form loads a variant as the package `kernels` does; the long one installs that package, with the hub's own
checks, into build/hub-venv.
"""
import ast
import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

BUILD = Path(os.environ["FLP_TEST_BUILD"])
TREE = Path(os.environ["FLP_TEST_TREE"])
HUB = TREE / "packaging" / "hub"
DRIVER = TREE / "tests" / "support" / "flp_hub.py"
pytestmark = pytest.mark.skipif(not (BUILD / "share/flp/generic").exists(), reason="this build has no generic kernels")

LIBRARIES = ["lib/libflp.so", "lib/libflp.so.0", "lib/libflpgen.so"]
CHECKS = ["interface", "linear_logprob", "selective_log_softmax", "policy_loss", "layers", "beside_pip", "compiled"]


def run(*command, **environment):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True,
                          env={**os.environ, **environment})


def export(libraries, out, *options):
    return run(sys.executable, HUB / "export.py", "--libraries", libraries, "--out", out, *options)


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    folder = tmp_path_factory.mktemp("prefix")
    done = run("cmake", "--install", BUILD, "--prefix", folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def exported(prefix, tmp_path_factory):
    out = tmp_path_factory.mktemp("hub") / "flp"
    done = export(prefix, out, "--local", "--repo", "someone/flp")
    assert done.returncode == 0, done.stderr
    return out


def variants(folder):
    return sorted((folder / "build").glob("torch-*"))


def metadata(variant):
    return json.loads((variant / "metadata.json").read_text())


def python_files(folder):
    return [(path, ast.parse(path.read_text(), feature_version=(3, 9)))
            for path in sorted(variants(folder)[0].rglob("*.py"))]


def files(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# ---- layout

def test_variants_are_named_for_what_selects_them(exported):
    machine = os.uname().machine
    assert [path.name for path in variants(exported)] == [
        f"torch-stable-abi113-{backend}-{machine}-linux" for backend in ("cpu", "cu118", "cu120", "cu130")]
    assert {path.name for path in exported.iterdir()} == {".flp-export", "build", "build.toml", "README.md"}


def test_metadata_has_what_the_hub_asks_for(exported):
    major = int(re.search(r"FLP_VERSION_MAJOR (\d+)", (TREE / "runtime/flp.h").read_text()).group(1))
    portable = re.search(r'FLP_PORTABLE_ARCH "sm_(\d+)(\d)"', text_of_headers()).groups()
    for variant in variants(exported):
        found = metadata(variant)
        backend = "cpu" if "-cpu-" in variant.name else "cuda"
        assert re.fullmatch(r"[a-z][-a-z0-9]*[a-z0-9]", found["name"])
        assert re.fullmatch(f"_flp_{backend}_[0-9a-f]{{12}}", found["id"])
        assert (found["version"], found["license"], found["python-depends"]) == (major, "Apache-2.0", [])
        archs = {"archs": ["%s.%s+PTX" % portable]} if backend == "cuda" else {}
        assert found["backend"] == {"type": backend, **archs}
        assert re.fullmatch("[0-9a-f]{64}", found["sources-id"])


def text_of_headers():
    return "".join(path.read_text() for path in (TREE / "runtime").rglob("*.h"))


def test_the_digest_is_of_every_file(exported):
    for variant in variants(exported):
        found = {name: base64.b64encode(hashlib.sha256(data).digest()).decode()
                 for name, data in files(variant).items() if name != "metadata.json"}
        assert metadata(variant)["digest"] == {"algorithm": "sha256", "files": found}
        assert {"__init__.py", "layers.py", "LICENSE", "include/flp.h", *LIBRARIES} <= set(found)
        assert any(name.endswith(".flpk") for name in found)


def test_build_toml_names_the_repository(exported):
    found = tomllib.loads((exported / "build.toml").read_text())
    assert found["general"]["hub"] == {"repo-id": "someone/flp"}
    assert found["general"]["version"] == metadata(variants(exported)[0])["version"]
    assert set(found["general"]["backends"]) == {metadata(variant)["backend"]["type"] for variant in variants(exported)}


def test_the_card_has_front_matter_and_every_public_name(exported):
    card = (exported / "README.md").read_text()
    assert card == (exported / "build/CARD.md").read_text()
    assert card.startswith("---\nlibrary_name: kernels\nlicense: apache-2.0\n") and "$" not in card
    for name in ("linear_logprob", "selective_log_softmax", "policy_loss", "LinearLogprob", "SelectiveLogSoftmax"):
        assert f"- `{name}`\n" in card
    assert 'get_kernel("someone/flp", version=0' in card and metadata(variants(exported)[0])["sources-id"] in card


# ---- the Python files

def test_imports_are_relative_or_of_the_standard_library_or_torch(exported):
    for path, tree in python_files(exported):
        names = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
        names += [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and not node.level]
        assert {name.partition(".")[0] for name in names} <= {*sys.stdlib_module_names, "torch"}, path


def test_operators_are_named_by_the_copy_alone(exported):
    """No registration and no call has a namespace written out; docstrings may."""
    for path, tree in python_files(exported):
        documents = {id(node.body[0].value) for node in ast.walk(tree)
                     if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node)}
        for node in ast.walk(tree):
            is_text = isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documents
            assert not (is_text and re.match(r"\w+::", node.value)), f"{path}:{node.lineno}"
            is_operators = isinstance(node, ast.Attribute) and ast.unparse(node.value) == "torch.ops"
            assert not is_operators, f"{path}:{node.lineno}"


# ---- exporting

@pytest.mark.long
def test_two_exports_are_equal(prefix, exported, tmp_path):
    assert export(prefix, tmp_path / "again", "--local", "--repo", "someone/flp").returncode == 0
    assert files(tmp_path / "again") == files(exported)


@pytest.mark.long
def test_an_export_replaces_an_earlier_one(prefix, tmp_path):
    out = tmp_path / "hub"
    assert export(prefix, out, "--local").returncode == 0
    assert export(prefix, out, "--local", "--variants", "cpu").returncode == 0
    assert [path.name.split("-")[3] for path in variants(out)] == ["cpu"]
    assert "general.hub" not in (out / "build.toml").read_text()


@pytest.mark.parametrize("names", [["build.toml", ".git"], ["README.md"], [".flp-export", "notes.txt"]])
def test_a_folder_that_is_no_export_stays_as_it_is(tmp_path, names):
    out = tmp_path / "mine"
    out.mkdir()
    for name in names:
        (out / name).write_text("precious")
    before = files(out)
    done = export(tmp_path, out, "--local")
    assert done.returncode == 1 and f"{out}, which holds what is of no earlier export: " in done.stderr
    assert names[-1] in done.stderr and files(out) == before


def test_a_file_is_not_replaced(tmp_path):
    (tmp_path / "mine").write_text("precious")
    done = export(tmp_path, tmp_path / "mine", "--local")
    assert done.returncode == 1 and "which is no folder" in done.stderr
    assert (tmp_path / "mine").read_text() == "precious"


def test_an_id_is_of_all_that_is_in_the_build(prefix, exported, tmp_path):
    """A build with another file is another kernel, whose operators stand beside the first one's."""
    other = tmp_path / "prefix"
    shutil.copytree(prefix, other, symlinks=True)
    next((other / "share/flp/generic").glob("*.flpk")).unlink()
    assert export(other, tmp_path / "hub", "--local", "--variants", "cpu").returncode == 0
    assert metadata(variants(tmp_path / "hub")[0])["id"] != metadata(variants(exported)[0])["id"]


def test_a_wheel_gives_libraries_and_licences(prefix, exported, tmp_path):
    """A wheel holds no links: the library stands under its soname, a linker script under the plain name."""
    wheel = tmp_path / "flp-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as out:
        out.write(prefix / "lib/libflp.so", "flp/lib/libflp.so.0")
        out.writestr("flp/lib/libflp.so", "INPUT(libflp.so.0)\n")
        out.write(prefix / "lib/libflpgen.so", "flp/lib/libflpgen.so")
        for path in (prefix / "share/flp/generic").iterdir():
            out.write(path, "flp/share/flp/generic/" + path.name)
        out.writestr("flp-0.1.0.dist-info/licenses/lua/COPYRIGHT", "of Lua\n")
        out.writestr("flp-0.1.0.dist-info/sboms/flp.cdx.json", "{}")
    done = export(wheel, tmp_path / "hub", "--local", "--variants", "cpu")
    assert done.returncode == 0, done.stderr
    found, wanted = files(variants(tmp_path / "hub")[0]), files(variants(exported)[0])
    assert (found.pop("licenses/lua/COPYRIGHT"), found.pop("sboms/flp.cdx.json")) == (b"of Lua\n", b"{}")
    assert {**found, "metadata.json": b""} == {**wanted, "metadata.json": b""}


def compiled(path, source, *options):
    path.with_suffix(".c").write_text(source)
    subprocess.run(["gcc", "-shared", "-fPIC", path.with_suffix(".c"), "-o", path, *options], check=True)


@pytest.mark.first
@pytest.mark.parametrize("name, source, options, sentence", [
    ("libflp.so.0.1.0", "#include <threads.h>\nint f(void) { return thrd_create(0, 0, 0); }", [],
     r"libflp\.so\S* needs GLIBC_2\.34 for thrd_create"),
    ("libflpgen.so", "int f(void) { return 1; }", ["-Wl,--no-as-needed", "-lsodium"],
     r"libflpgen\.so needs libsodium\.so\.23"),
])
def test_libraries_that_need_more_than_the_hub_grants_are_refused(prefix, tmp_path, name, source, options, sentence):
    other = tmp_path / "prefix"
    shutil.copytree(prefix, other, symlinks=True)
    for library in ("libflp.so.0.1.0", "libflpgen.so"):
        (other / "lib" / library).unlink()
        compiled(other / "lib" / library, "int f(void) { return 1; }")
    compiled(other / "lib" / name, source, *options)
    done = export(other, tmp_path / "hub")
    assert done.returncode == 1 and re.search(sentence, done.stderr) and "manylinux_2_28" in done.stderr
    assert not (tmp_path / "hub").exists()


@pytest.mark.first
@pytest.mark.parametrize("change, options, code, sentence", [
    (lambda folder: (folder / "lib/libflpgen.so").unlink(), [], 1, "has no libflpgen.so in lib"),
    (lambda folder: None, ["--variants", "cpu,rocm60"], 2, "'rocm60' (accepted: cpu, cu118, cu120, cu130)"),
    (shutil.rmtree, [], 2, "which does not exist (accepted: a wheel, or a prefix)"),
])
def test_refusals_say_what_is_accepted(prefix, tmp_path, change, options, code, sentence):
    other = tmp_path / "prefix"
    shutil.copytree(prefix, other, symlinks=True)
    change(other)
    done = export(other, tmp_path / "hub", "--local", *options)
    assert done.returncode == code and sentence in done.stderr, done.stderr
    assert not (tmp_path / "hub").exists()


def test_an_import_of_what_is_not_there_stops_the_export(tmp_path):
    (tmp_path / "__init__.py").write_text("from ._a import b\n")
    (tmp_path / "_a.py").write_text("from . import _missing\n")
    done = run(sys.executable, "-c", f"import modules; modules.closure([modules.Path({str(tmp_path)!r})])",
               PYTHONPATH=str(HUB))
    assert done.returncode == 1 and "_a.py: line 1 imports what is no file of the package" in done.stderr


# ---- running

def driven(python, how, folder, checks, **environment):
    done = run(python, DRIVER, how, folder, **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split() == ["check_" + name for name in checks]


def test_a_variant_runs_moved_and_beside_pips_package(exported, tmp_path):
    shutil.copytree(exported, tmp_path / "moved")
    before = set(files(tmp_path / "moved"))
    driven(sys.executable, "plain", tmp_path / "moved", CHECKS)
    assert set(files(tmp_path / "moved")) == before


@pytest.fixture(scope="module")
def hub_python():
    """A Python with `kernels` and the hub's ABI checker beside the torch that the tests have."""
    python = TREE / "build/hub-venv/bin/python"
    for command in ([sys.executable, "-m", "venv", "--system-site-packages", python.parents[1]],
                    [python, "-m", "pip", "install", "--quiet", "-r", HUB / "requirements.txt"]):
        done = run(*command)
        if done.returncode:
            pytest.skip(f"no `kernels` from the registry: {done.stderr[-300:]}")
    return python


OWN_CHECKS = """
import sys
from pathlib import Path
from kernels._rust import Build, Digest, DigestAlgorithm, Metadata
from kernels.validate import AllValidator, ArchValidator, default_metadata_validators
from kernels.variants import get_variants_local
folder = Path(sys.argv[1])
print(*Build.open(folder).general.backends)
for variant in sorted(path.variant_str for path in get_variants_local(folder / "build")):
    metadata = Metadata.read_from_file(folder / "build" / variant / "metadata.json")
    metadata.digest.validate(Digest.hash_variant(DigestAlgorithm.SHA256, folder / "build" / variant))
    validator = AllValidator([*default_metadata_validators(), ArchValidator()])
    validator.validate_metadata(metadata=metadata, variant=variant)
    print(variant, metadata.id)
"""

ABI = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
import abi
from kernel_abi_check import ObjectFile
for path in sys.argv[2:]:
    library = ObjectFile(path)
    assert library.check_python_abi("3.9") == []
    theirs = {symbol.dep for symbol in library.check_manylinux("manylinux_2_28")}
    ours = " ".join(abi.violations(Path(path)))
    print("refused" if theirs or ours else "accepted")
    assert all(tag + "_" in ours for tag in theirs), (path, theirs, ours)
"""


@pytest.mark.long
def test_the_hubs_own_schemas_and_validators_accept_it(hub_python, exported, tmp_path):
    done = run(hub_python, "-c", OWN_CHECKS, exported, HF_HUB_OFFLINE="1")
    assert done.returncode == 0, done.stderr
    backends, *lines = done.stdout.splitlines()
    assert backends == "cpu cuda"
    assert lines == [f"{variant.name} {metadata(variant)['id']}" for variant in variants(exported)]
    first = f"build/{variants(exported)[0].name}"
    for name, text, reason in ((first + "/LICENSE", "another", "mismatch for LICENSE"),
                               ("build.toml", "[general]\nname = 'flp'\n", "build configuration"),
                               (first + "/metadata.json", '{"name": "flp"}', "metadata")):
        other = shutil.copytree(exported, tmp_path / str(len(text)))
        (other / name).write_text(text)
        done = run(hub_python, "-c", OWN_CHECKS, other, HF_HUB_OFFLINE="1")
        assert done.returncode != 0 and reason in done.stderr, done.stderr


@pytest.mark.long
def test_the_hubs_abi_checker_finds_nothing_that_the_export_lets_pass(hub_python, exported, tmp_path):
    compiled(tmp_path / "new.so", "#include <threads.h>\nint f(void) { return thrd_create(0, 0, 0); }")
    compiled(tmp_path / "old.so", "int f(void) { return 1; }")
    paths = [tmp_path / "new.so", tmp_path / "old.so", *(variants(exported)[0] / name for name in LIBRARIES)]
    done = run(hub_python, "-c", ABI, HUB, *paths)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[:2] == ["refused", "accepted"]


@pytest.mark.long
def test_kernels_loads_it_and_kernelize_takes_its_layer(hub_python, exported):
    driven(hub_python, "kernels", exported, [*CHECKS, "kernelize"], HF_HUB_OFFLINE="1")


@pytest.mark.long
def test_the_wheel_is_exported_without_conditions(hub_python, tmp_path):
    wheels = sorted((TREE / "build/wheel/dist").glob(f"flp-[0-9]*_{os.uname().machine}.whl"))
    if not wheels:
        pytest.skip("no wheel in build/wheel/dist: ./setup.sh wheel makes it")
    done = export(wheels[-1], tmp_path / "hub")
    assert done.returncode == 0, done.stderr
    assert (variants(tmp_path / "hub")[0] / "licenses").is_dir()
    done = run(hub_python, "-c", ABI, HUB, *(variants(tmp_path / "hub")[0] / name for name in LIBRARIES))
    assert done.stdout.split() == ["accepted"] * len(LIBRARIES), done.stderr
    driven(hub_python, "kernels", tmp_path / "hub", [*CHECKS, "kernelize"], HF_HUB_OFFLINE="1")
