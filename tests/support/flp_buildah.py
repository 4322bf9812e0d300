"""buildah without a daemon or a registry: images are built in a folder, on a Debian 12 that debootstrap makes."""
import json
import os
import shutil

from installed import run


def make_base(folder):
    """A minimal Debian 12 at folder, which is kept from test to test."""
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(f"{folder}.new", ignore_errors=True)
        run("debootstrap", "--variant=minbase", "bookworm", f"{folder}.new")
        os.rename(f"{folder}.new", folder)
    return folder


class Builder:
    def __init__(self, folder, driver):
        self.command = ["buildah", "--root", folder / "images", "--runroot", folder / "state", "--storage-driver", driver]

    def __call__(self, *arguments):
        return run(*self.command, *arguments).strip()

    def add_base(self, name, folder):
        container = self("from", "scratch")
        run("cp", "-a", f"{folder}/.", self("mount", container))
        self("commit", "--quiet", "--rm", container, name)

    def build(self, tag, recipe, context, *options, **arguments):
        """Builds the image localhost/tag; stages that were built before are taken."""
        words = [word for name, value in arguments.items() for word in ("--build-arg", f"{name}={value}")]
        self("build", "--isolation", "chroot", "--format", "docker", "--layers", "--tag", tag, "--file", recipe, *options,
             *words, context)

    def root(self, tag):
        """A folder with the files of an image."""
        return self("mount", self("from", f"localhost/{tag}"))

    def config(self, tag):
        return json.loads(self("inspect", "--type", "image", f"localhost/{tag}"))["Docker"]["config"]

    def clear(self):
        self("rm", "--all")
        self("rmi", "--all", "--force")


def builder(folder):
    """-> (a Builder, "") or (None, why there is none)"""
    missing = [name for name in ("buildah", "debootstrap") if not shutil.which(name)]
    if missing or os.geteuid() != 0:
        return None, f"needs root and buildah and debootstrap; missing: {', '.join(missing) or 'root'}"
    reason = ""
    for driver in ("overlay", "vfs"):
        made = Builder(folder / driver, driver)
        try:
            made("mount", made("from", "scratch"))
            return made, ""
        except AssertionError as error:
            reason = str(error)
    return None, f"buildah cannot mount a container: {reason}"
