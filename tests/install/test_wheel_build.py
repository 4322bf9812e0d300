"""The wheel of ./setup.sh wheel, for every Linux with glibc 2.28: built, read, run in clean environments of every Python
and on an older Debian. Minutes of CPU, so all but the scripts' refusals run in the long form."""
import json
import os
import re
import shutil
import subprocess
import tempfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from flp_wheels import LOGPROB, check_command, clean_environment, make_environment, pythons, run

BUILD = Path(os.environ["FLP_TEST_BUILD"])
TREE = Path(os.environ["FLP_TEST_TREE"])
SCRIPTS = TREE / "packaging" / "wheel"
FOUND = pythons()
VERSION = re.search(r'FLP_VERSION_STRING "([0-9.]+)"', (TREE / "runtime" / "flp.h").read_text())[1]
NAME = f"flp-{VERSION}-py3-none-manylinux_2_28_x86_64.whl"
BINARIES = ("flp/lib/libflp.so.0", "flp/lib/libflpgen.so", "flp/bin/flpgen")
LINKED = {"llvm", "lua", "libsodium", "zstd", "zlib", "jansson", "sqlite", "libstdcxx", "zig"}
SYSTEM = {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "libgcc_s.so.1", "ld-linux-x86-64.so.2",
          "libflpgen.so"}


@pytest.fixture(scope="module")
def wheel():
    run(SCRIPTS / "build.sh")
    return TREE / "build" / "wheel" / "dist" / NAME


@pytest.fixture(scope="module")
def unpacked(wheel, tmp_path_factory):
    folder = tmp_path_factory.mktemp("unpacked")
    zipfile.ZipFile(wheel).extractall(folder)
    return folder


def test_an_unknown_architecture_is_refused():
    done = subprocess.run([SCRIPTS / "sysroot.sh", "riscv64"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (2, "sysroot.sh: architecture riscv64; accepted: amd64, arm64\n")


@pytest.mark.long
def test_tag_and_size(wheel):
    shown = " ".join(run(TREE / "build/wheel/venv/bin/auditwheel", "show", wheel).split())
    assert 'is consistent with the following platform tag: "manylinux_2_28_x86_64"' in shown
    assert wheel.stat().st_size <= 25 << 20


@pytest.mark.long
@pytest.mark.parametrize("name", BINARIES)
def test_binaries_need_an_old_system_and_nothing_of_this_one(unpacked, name):
    path = unpacked / name
    needed = set(re.findall(r"NEEDED.*\[(.*)\]", run("readelf", "-d", "-W", path)))
    assert needed <= SYSTEM
    symbols = run("objdump", "-T", path)
    versions = {tuple(map(int, found.split("."))) for found in re.findall(r"GLIBC_([0-9.]+)", symbols)}
    assert versions and max(versions) <= (2, 28)
    assert ".symtab" not in run("readelf", "-S", "-W", path)
    folders = [str(TREE), str(Path.home()), tempfile.gettempdir() + "/tmp", "ziglang"]
    text = path.read_bytes()
    assert [folder for folder in folders if len(folder) > 1 and folder.encode() in text] == []


@pytest.mark.long
def test_kernels_are_those_of_the_build(unpacked):
    kernels = {path.name: path.read_bytes() for path in (BUILD / "share/flp/generic").glob("*.flpk")}
    shipped = {path.name: path.read_bytes() for path in (unpacked / "flp/share/flp/generic").iterdir()}
    assert kernels and kernels == shipped


@pytest.mark.long
def test_metadata_and_licences(unpacked):
    info = unpacked / f"flp-{VERSION}.dist-info"
    metadata = Parser().parsestr((info / "METADATA").read_text())
    assert metadata["License-Expression"].startswith("Apache-2.0 AND Apache-2.0 WITH LLVM-exception AND MIT AND ")
    licences = {path.name for path in (info / "licenses").iterdir()}
    assert licences == {"LICENSE"} | {f"LICENSE.{name}" for name in LINKED} == set(metadata.get_all("License-File"))
    assert "GCC RUNTIME LIBRARY EXCEPTION" in (info / "licenses/LICENSE.libstdcxx").read_text()
    assert "LLVM Exceptions" in (info / "licenses/LICENSE.llvm").read_text()
    assert "Permission is hereby granted" in (info / "licenses/LICENSE.lua").read_text()


@pytest.mark.long
def test_sbom(wheel, unpacked):
    text = (unpacked / f"flp-{VERSION}.dist-info/sboms/flp.cdx.json").read_text()
    assert text == wheel.with_suffix(".cdx.json").read_text()
    document = json.loads(text)
    assert document["bomFormat"] == "CycloneDX"
    assert document["metadata"]["component"]["purl"] == f"pkg:pypi/flp@{VERSION}"
    assert {part["name"] for part in document["components"]} == LINKED
    assert all(re.match(r"(\d+:)?\d+\.\d+", part["version"]) and part["licenses"] for part in document["components"])
    files = {part["name"]: part["hashes"][0]["content"] for part in document["metadata"]["component"]["components"]}
    assert files == {name: run("sha256sum", unpacked / name).split()[0] for name in BINARIES}


@pytest.mark.long
@pytest.mark.parametrize("version", list(FOUND))
def test_every_python(wheel, tmp_path, version):
    check_command(make_environment(FOUND[version], tmp_path / "venv", wheel), VERSION, tmp_path / "venv")


@pytest.mark.long
def test_logprob_with_torch(wheel, tmp_path):
    programs = make_environment("/usr/bin/python3", tmp_path / "venv", wheel, site=True)
    assert run(programs / "python", "-c", LOGPROB, env=clean_environment(tmp_path), cwd=tmp_path).startswith("True ")


# ---- the same bytes twice ----

@pytest.mark.long
def test_two_builds_give_the_same_bytes(wheel, tmp_path):
    """In another folder, from nothing but the tools and what was downloaded."""
    names = run("git", "-C", TREE, "ls-files", "--cached", "--others", "--exclude-standard").splitlines()
    for name in names:
        if (TREE / name).is_file():
            (tmp_path / "elsewhere" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(TREE / name, tmp_path / "elsewhere" / name)
    (tmp_path / "elsewhere/build/wheel").mkdir(parents=True)
    (tmp_path / "elsewhere/build/wheel/venv").symlink_to(TREE / "build/wheel/venv")
    with zipfile.ZipFile(wheel) as archive:
        time = json.loads(archive.read(f"flp-{VERSION}.dist-info/sboms/flp.cdx.json"))["metadata"]["timestamp"]
    epoch = run("date", "--date", time, "+%s").strip()
    run(tmp_path / "elsewhere/packaging/wheel/build.sh", env={**os.environ, "SOURCE_DATE_EPOCH": epoch})
    assert (tmp_path / "elsewhere/build/wheel/dist" / NAME).read_bytes() == wheel.read_bytes()


# ---- an older system ----

@pytest.fixture(scope="module")
def bullseye():
    """Debian 11 with Python 3.9 and glibc 2.31, made once."""
    if os.geteuid() != 0 or not shutil.which("debootstrap"):
        pytest.skip("an older Debian needs root and debootstrap")
    root = TREE / "build" / "wheel" / "bullseye"
    if not (root / "usr/bin/python3").exists():
        shutil.rmtree(root, ignore_errors=True)
        run("debootstrap", "--variant=minbase", "--include=python3,python3-venv,python3-pip", "bullseye", root,
            "http://deb.debian.org/debian")
    return root


OLD_SYSTEM = r"""
rm -rf /tmp/venv && python3 -m venv /tmp/venv
/tmp/venv/bin/pip install --quiet --no-index /tmp/*.whl
ldd --version | head -n 1
/tmp/venv/bin/flpgen --version
/tmp/venv/bin/python -c 'import flp; print("library", flp.version())'
/tmp/venv/bin/flpgen run --demo --vocab 1000 --hidden 64 --rows 16 --rung eager
/tmp/venv/bin/flpgen gen --vocab 1000 --hidden 64 --out /tmp/kernels && ls /tmp/kernels
"""


@pytest.mark.long
def test_older_glibc(wheel, bullseye):
    """Without a network, a compiler or packages beyond Python's."""
    for old in (bullseye / "tmp").glob("*.whl"):
        old.unlink()
    shutil.copy(wheel, bullseye / "tmp")
    (bullseye / "tmp" / "script").write_text(OLD_SYSTEM)
    text = run("unshare", "--mount", "--net", "sh", "-ec",
               f"mount -t proc proc '{bullseye}/proc' && exec chroot '{bullseye}' sh -e /tmp/script",
               env={"PATH": os.environ["PATH"], "HOME": "/root"})
    assert re.search(r"GLIBC 2\.31-", text)
    assert f"flpgen {VERSION}" in text and f"library {VERSION}" in text
    assert "rung         eager on CPU" in text and "forward.sm_80.ptx" in text
