"""What a shared library asks of a system, against what the kernels hub grants: manylinux_2_28 and no libraries else.

source: the hub's kernel requirements, "Native Python module" and "Linux"
"""
import re
import subprocess

NEWEST = {"GLIBC": (2, 28), "GLIBCXX": (3, 4, 24), "CXXABI": (1, 3, 11), "GCC": (7, 0, 0)}
SYSTEM = ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libgcc_s.so.1", "libstdc++.so.6",
          "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1")
MACHINES = {62: "x86_64", 183: "aarch64"}  # e_machine of ELF


def is_library(path):
    with open(path, "rb") as file:
        return file.read(4) == b"\x7fELF"


def machine(path):
    """As a variant's name has it."""
    with open(path, "rb") as file:
        number = int.from_bytes(file.read(20)[18:], "little")
    return MACHINES.get(number, "machine%d" % number)


def violations(path):
    """Sentences: symbols of versions that are too new, libraries that a system may lack."""
    out = []
    newest = {}
    for symbol, tag, version in re.findall(r"UND (\w+)@(\w+?)_([\d.]+)\b", read(path, "--dyn-syms")):
        numbers = tuple(int(number) for number in version.split("."))
        if tag in NEWEST and numbers > max(NEWEST[tag], newest.get(tag, ((),))[0]):
            newest[tag] = (numbers, "%s needs %s_%s for %s" % (path.name, tag, version, symbol))
    out += [sentence for _, sentence in newest.values()]
    others = [name for name in re.findall(r"\(NEEDED\).*\[(.*)\]", read(path, "--dynamic")) if name not in SYSTEM]
    if others:
        out.append("%s needs %s" % (path.name, ", ".join(others)))
    return out


def read(path, what):
    return subprocess.run(["readelf", "--wide", what, str(path)], check=True, capture_output=True, text=True).stdout
