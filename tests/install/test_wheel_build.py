"""The wheel of ./setup.sh wheel, for every Linux with glibc 2.28: built, read, run in clean environments of every Python
and on an older Debian. Minutes of CPU, so all but the scripts' refusals run in the long form."""
import json
import os
import re
import shutil
import subprocess
from email.parser import Parser
from pathlib import Path

import pytest

from flp_wheels import (BINARIES, LARGEST_WHEEL, LOGPROB, OLD_SYSTEM, build_elsewhere, check_binary, check_command,
                        clean_environment, make_environment, pythons, run)

BUILD = Path(os.environ["FLP_TEST_BUILD"])
TREE = Path(os.environ["FLP_TEST_TREE"])
SCRIPTS = TREE / "packaging" / "wheel"
FOUND = pythons()
VERSION = re.search(r'FLP_VERSION_STRING "([0-9.]+)"', (TREE / "runtime" / "flp.h").read_text())[1]
NAME = f"flp-{VERSION}-py3-none-manylinux_2_28_x86_64.whl"
LINKED = {"llvm", "lua", "libsodium", "zstd", "zlib", "jansson", "sqlite", "libstdcxx", "zig"}

@pytest.fixture(scope="module")
def wheel():
    run(SCRIPTS / "build.sh")
    return TREE / "build" / "wheel" / "dist" / NAME


def test_an_unknown_architecture_is_refused():
    done = subprocess.run([SCRIPTS / "sysroot.sh", "riscv64"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (2, "sysroot.sh: architecture riscv64; accepted: amd64, arm64\n")


@pytest.mark.long
def test_tag_and_size(wheel):
    shown = " ".join(run(TREE / "build/wheel/venv/bin/auditwheel", "show", wheel).split())
    assert 'is consistent with the following platform tag: "manylinux_2_28_x86_64"' in shown
    assert wheel.stat().st_size <= LARGEST_WHEEL


@pytest.mark.long
@pytest.mark.parametrize("name", BINARIES)
def test_binaries_need_an_old_system_and_nothing_of_this_one(unpacked, name):
    check_binary(unpacked / name, "ld-linux-x86-64.so.2")


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
    assert build_elsewhere(wheel, tmp_path / "elsewhere") == wheel.read_bytes()


# ---- an older system, and a newer one ----

@pytest.fixture(scope="module", params=["bullseye", "sid"])
def debian(request):
    """Debian 11 with Python 3.9 and glibc 2.31, and the newest Debian with the newest Python there is; made once."""
    if os.geteuid() != 0 or not shutil.which("debootstrap"):
        pytest.skip("another Debian needs root and debootstrap")
    root = TREE / "build" / "wheel" / request.param
    if not (root / "usr/bin/python3").exists():
        shutil.rmtree(root, ignore_errors=True)
        run("debootstrap", "--variant=minbase", "--include=python3,python3-venv,python3-pip", request.param, root)
    return root


@pytest.mark.long
def test_another_debian(wheel, debian):
    """Without a network, a compiler or packages beyond Python's."""
    for old in (debian / "tmp").glob("*.whl"):
        old.unlink()
    shutil.copy(wheel, debian / "tmp")
    (debian / "tmp" / "script").write_text(OLD_SYSTEM)
    text = run("unshare", "--mount", "--net", "sh", "-ec",
               f"mount -t proc proc '{debian}/proc' && exec chroot '{debian}' sh -e /tmp/script",
               env={"PATH": os.environ["PATH"], "HOME": "/root"})
    assert debian.name != "bullseye" or re.search(r"GLIBC 2\.31-", text)
    assert f"flpgen {VERSION}" in text and f"library {VERSION}" in text
    assert "rung         eager on CPU" in text and "forward.sm_80.ptx" in text
