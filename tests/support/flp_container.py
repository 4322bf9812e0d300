"""Reads a Containerfile, and runs programs in a folder as a container would: its root, read-only, as user 65534."""
import json
import os
import re
import shlex
import subprocess
from pathlib import Path

from flpgen_tool import Outcome

NOBODY = "65534"

# $1: the root; then pairs of what is mounted where, read-only, to "--"; then how /proc is, and the command.
ENTER = """
set -e
root=$1; shift
mount --bind "$root" "$root"
while [ "$1" != -- ]; do
  mount --bind "$1" "$root$2"
  mount -o remount,bind,ro "$root$2"
  shift 2
done
[ "$2" = no-proc ] || mount --rbind /proc "$root/proc"
mount -o remount,bind,ro "$root"
shift 2
exec "$@"
"""


def unshare():
    """The command that gives a process mounts of its own, as root or in a namespace where it is; None if none may."""
    for command in (["unshare", "--mount"], ["unshare", "--map-root-user", "--mount"]):
        if command[-2] == "unshare" and os.geteuid() != 0:
            continue
        try:
            if subprocess.run([*command, "true"], capture_output=True).returncode == 0:
                return command
        except FileNotFoundError:
            return None
    return None


def inside(root, *argv, mounts=(), proc=False, **environment):
    """Runs argv in root with these variables and no others. mounts: (a path here, a path there that exists), read-only.
    Only root can become user 65534: another user is then root of a namespace, with the rights of his own."""
    user = [f"--userspec={NOBODY}:{NOBODY}", "--groups="] if os.geteuid() == 0 else []
    pairs = [str(part) for pair in mounts for part in pair]
    command = [*unshare(), "sh", "-c", ENTER, "sh", str(root), *pairs, "--", "proc" if proc else "no-proc", "env", "-i",
               *(f"{name}={value}" for name, value in environment.items()), "/usr/sbin/chroot", *user, str(root),
               *map(str, argv)]
    return Outcome(subprocess.run(command, capture_output=True, text=True))


class Instruction:
    """One line of a Containerfile, with its continuations. word: FROM, RUN, ..."""

    def __init__(self, text):
        self.word, self.text = text.split(None, 1)

    def flags(self):
        return dict(part[2:].split("=", 1) for part in self.text.split() if part.startswith("--"))

    def arguments(self):
        """The words, without flags; of the exec form those of its list."""
        text = re.sub(r"^(CMD|NONE) ", "", re.sub(r"(^|\s)--\w[\w-]*=\S+", "", self.text).strip())
        return json.loads(text) if text.startswith("[") else shlex.split(text)

    def is_exec_form(self):
        return re.search(r"(^|\s)\[.*\]$", self.text) is not None

    def pairs(self):
        """Of ARG and ENV: {name: value}"""
        return dict((word.split("=", 1) + [""])[:2] for word in self.arguments())


class Stage:
    def __init__(self, base, name):
        self.base, self.name, self.lines = base, name, []

    def all(self, word):
        return [line for line in self.lines if line.word == word]

    def last(self, word):
        return self.all(word)[-1]

    def environment(self):
        return {name: value for line in self.all("ENV") for name, value in line.pairs().items()}


def read_recipe(path):
    """-> (ARGs before the first stage, {name: Stage}) of a Containerfile"""
    text = re.sub(r"^#.*\n", "", Path(path).read_text(), flags=re.M)
    arguments, stages = {}, {}
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        if not line.strip():
            continue
        instruction = Instruction(line.strip())
        if instruction.word == "FROM":
            base, _, name = instruction.arguments()
            stages[name] = Stage(base, name)
        elif stages:
            stages[name].lines.append(instruction)
        else:
            assert instruction.word == "ARG", line
            arguments.update(instruction.pairs())
    return arguments, stages
