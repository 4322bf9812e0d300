"""The wheel of ./setup.sh wheel arm64: built and run by an emulator where this machine is no aarch64. Minutes of CPU, so
all but the script's refusal runs in the long form."""
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from flp_wheels import BINARIES, LARGEST_WHEEL, OLD_SYSTEM, TREE, build_elsewhere, check_binary, run

BUILD = Path(os.environ["FLP_TEST_BUILD"])
FLPGEN = os.environ["FLP_TEST_FLPGEN"]
VERSION = re.search(r'FLP_VERSION_STRING "([0-9.]+)"', (TREE / "runtime" / "flp.h").read_text())[1]
NAME = f"flp-{VERSION}-py3-none-manylinux_2_28_aarch64.whl"
IS_FOREIGN = platform.machine() != "aarch64"
DIST = TREE / "build" / "wheel" / ("dist-arm64" if IS_FOREIGN else "dist")
EMULATOR = "qemu-aarch64-static"
FORMAT = Path("/usr/lib/binfmt.d/qemu-aarch64.conf")  # what tells Linux to run programs by the emulator
MODULE = "import ctypes, flp; print(ctypes.CDLL(flp.prefix() + '/lib/libflp_jax.so')._name)"
COMMANDS = f"/tmp/venv/bin/python -c \"{MODULE}\"\nuname -m\n"


@pytest.fixture(scope="module")
def wheel():
    if IS_FOREIGN and not shutil.which(EMULATOR):
        pytest.skip(f"{EMULATOR} is not in PATH: apt-get install qemu-user-static")
    if not shutil.which("ninja") or not shutil.which("dpkg-source"):
        pytest.skip("the wheel's build needs ninja and dpkg-source: ./setup.sh packages wheel")
    run(TREE / "packaging/wheel/build.sh", "arm64")
    return DIST / NAME


def test_without_an_emulator_nothing_is_downloaded(tmp_path):
    """For the architecture that this machine is not."""
    foreign, processor = ("arm64", "aarch64") if IS_FOREIGN else ("amd64", "x86_64")
    for name in ("bash", "dirname", "dpkg"):
        (tmp_path / name).symlink_to(shutil.which(name))
    done = subprocess.run([TREE / "packaging/wheel/sysroot.sh", foreign], capture_output=True, text=True,
                          env={"PATH": str(tmp_path)})
    assert (done.returncode, done.stderr) == (1, f"sysroot.sh: {foreign} is built with programs of it, and "
                                                 f"qemu-{processor}-static is not in PATH: "
                                                 "apt-get install qemu-user-static\n")


@pytest.mark.long
def test_tag_and_size(wheel):
    shown = " ".join(run(TREE / "build/wheel/venv/bin/auditwheel", "show", wheel).split())
    assert 'is consistent with the following platform tag: "manylinux_2_28_aarch64"' in shown
    assert wheel.stat().st_size <= LARGEST_WHEEL


@pytest.mark.long
@pytest.mark.parametrize("name", BINARIES)
def test_binaries_need_an_old_system_and_nothing_of_this_one(unpacked, name):
    check_binary(unpacked / name, "ld-linux-aarch64.so.1")
    assert re.search(r"Machine: +AArch64", run("readelf", "-h", unpacked / name))
    alignments = re.findall(r"LOAD .* (0x[0-9a-f]+)$", run("readelf", "-l", "-W", unpacked / name), re.MULTILINE)
    assert alignments and min(int(alignment, 16) for alignment in alignments) >= 1 << 16  # pages of 64 KiB load it


@pytest.mark.long
def test_kernels_and_documents_are_those_of_the_build(unpacked):
    """The emulated generator writes what the one of this machine does: the same PTX, signatures and words."""
    def files(folder):
        return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    shipped = files(unpacked / "flp/share/flp/generic")
    assert len(shipped) >= 108 and shipped == files(BUILD / "share/flp/generic")
    completions = files(unpacked / "flp/share/bash-completion")
    assert completions and completions == files(BUILD / "share/bash-completion")


@pytest.mark.long
def test_two_builds_give_the_same_bytes(wheel, tmp_path):
    assert build_elsewhere(wheel, tmp_path / "elsewhere", "arm64") == wheel.read_bytes()


# ---- an older system ----

@pytest.fixture(scope="module")
def bullseye():
    """Debian 11 of that architecture with Python 3.9 and glibc 2.31, made once: unpacked, not configured."""
    if os.geteuid() != 0 or not shutil.which("debootstrap"):
        pytest.skip("an older Debian needs root and debootstrap")
    root = TREE / "build" / "wheel" / "bullseye-arm64"
    if not (root / "unpacked").exists():
        shutil.rmtree(root, ignore_errors=True)
        run("debootstrap", "--foreign", "--arch=arm64", "--variant=minbase", "--include=python3,python3-venv", "bullseye",
            root)
        for package in sorted((root / "var/cache/apt/archives").glob("*.deb")):
            run("dpkg-deb", "-x", package, root)
        (root / "unpacked").touch()
    return root


def emulated(root, command):
    """Output of a command in a folder with another Linux, without a network. Programs are registered with the emulator
    in a name space of users of their own, so that this machine runs what it ran before."""
    known = "/proc/sys/fs/binfmt_misc"
    register = f"mount -t binfmt_misc none {known} && cat {FORMAT} >{known}/register" if IS_FOREIGN else "true"
    return run("unshare", "--user", "--map-root-user", "--mount", "--pid", "--net", "--fork", "--mount-proc", "sh", "-ec",
               f"mount --rbind /proc '{root}/proc'; {register}; exec chroot '{root}' {command}",
               env={"PATH": os.environ["PATH"], "HOME": "/root"})


@pytest.fixture(scope="module")
def is_run_here(bullseye):
    if IS_FOREIGN and not FORMAT.exists():
        pytest.skip(f"no {FORMAT}, which Debian's qemu-user-static has")
    try:
        emulated(bullseye, "/bin/true")
    except AssertionError as error:
        pytest.skip(f"no name space of users with programs of its own, which Linux 6.7 has: {error}")


@pytest.mark.long
def test_older_glibc(wheel, bullseye, is_run_here, tmp_path):
    """Every program runs by the emulator: installed, imported, scored on the CPU rung, kernels equal to this machine's."""
    for old in (bullseye / "tmp").glob("*.whl"):
        old.unlink()
    shutil.copy(wheel, bullseye / "tmp")
    (bullseye / "tmp" / "script").write_text(OLD_SYSTEM + COMMANDS)
    text = emulated(bullseye, "sh -e /tmp/script")
    assert re.search(r"GLIBC 2\.31-", text) and text.endswith("\naarch64\n")
    assert f"flpgen {VERSION}" in text and f"library {VERSION}" in text and "/flp/lib/libflp_jax.so" in text
    assert "rung         eager on CPU" in text and "against fp64 largest error" in text
    run(FLPGEN, "gen", "--vocab", "1000", "--hidden", "64", "--out", tmp_path / "kernels")
    own = {path.name: path.read_bytes() for path in (tmp_path / "kernels").iterdir()}
    assert any(name.endswith(".ptx") for name in own)
    assert own == {path.name: path.read_bytes() for path in (bullseye / "tmp/kernels").iterdir()}
