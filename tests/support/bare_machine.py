"""A bare Debian 12, as debootstrap makes it: minbase, and nothing else but the way to the registries."""
import os
import shutil
import subprocess
from pathlib import Path

from flp_buildah import make_base
from flp_container import unshare

ENTER = """set -e
mount -t proc proc "$0/proc"
mount --rbind /dev "$0/dev"
mount -t tmpfs tmpfs "$0/dev/shm"
root=$0
cd "$root"
exec chroot "$root" "$@"
"""
REGISTRIES = ["etc/pip.conf", "etc/apt/apt.conf.d", "etc/resolv.conf", "etc/hosts"]
CERTIFICATES = Path(os.environ.get("PIP_CERT", "/etc/ssl/certs/ca-certificates.crt"))  # those of this machine
SETTINGS = {"PIP_CERT": "/etc/registries.crt", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8", "FLP_REQUIRE_PTXAS": "1"}


def reason_for_none():
    """Why none can be made here, or ""."""
    missing = [name for name in ("debootstrap", "git") if not shutil.which(name)]
    if os.geteuid() != 0 or missing:
        return f"needs root, debootstrap and git; missing: {', '.join(missing) or 'root'}"
    return "" if unshare() else "no namespace of mounts may be made here"


class BareMachine:
    def __init__(self, folder):
        self.root = Path(folder)
        make_base(self.root)
        shutil.copy(CERTIFICATES, self.root / SETTINGS["PIP_CERT"].lstrip("/"))
        for name in REGISTRIES:
            here, there = Path("/", name), self.root / name
            there.parent.mkdir(parents=True, exist_ok=True)
            if here.is_dir():
                shutil.copytree(here, there, dirs_exist_ok=True)
            elif here.exists():
                shutil.copy(here, there)

    def clone(self, tree, place):
        """What is committed in a tree, as a clone at an absolute path of the machine."""
        to = self.root / str(place).lstrip("/")
        subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", tree, to], check=True)

    def run(self, place, *command, log):
        """Runs a command in a folder of the machine, its output in a file -> its exit status."""
        settings = [f"{name}={value}" for name, value in SETTINGS.items()]
        with open(log, "w", encoding="utf-8") as out:
            return subprocess.run(
                ["unshare", "--mount", "--pid", "--fork", "sh", "-c", ENTER, self.root, "env", "-i", *settings, "sh", "-c",
                 'cd "$0" && exec "$@"', place, *command], stdin=subprocess.DEVNULL, stdout=out, stderr=out).returncode
