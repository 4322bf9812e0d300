#!/usr/bin/env python3
"""Exports flp as a kernel of the Hugging Face kernels hub: one folder that its builder's rules accept. See README.md.

    packaging/hub/export.py --libraries WHEEL|PREFIX --out FOLDER [--repo OWNER/NAME] [--variants cpu,cu120] [--local]

Invariants: what is written depends on the tree and the libraries alone, so that two exports are equal byte for byte;
a variant needs nothing outside of its folder but Python, torch, glibc and the CUDA driver.
exit: 0 done; 1 the libraries or the tree do not allow it; 2 wrong usage
"""
import argparse
import base64
import hashlib
import importlib
import json
import os
import shutil
import string
import sys
import tempfile
import types
import zipfile
from pathlib import Path

import abi
import modules

HERE = Path(__file__).resolve().parent
TREE = HERE.parents[1]
NAME = "flp"

# Builds for every CUDA of a major version; the first torch that the package works with; PTX that newer devices take.
VARIANTS = {"cpu": "cpu", "cu118": "cuda", "cu120": "cuda", "cu130": "cuda"}
TORCH = "torch-stable-abi113"
# The package opens libflp under its soname; `kernel-builder check-abi` sees names that end in .so alone.
LIBRARIES = ("libflp.so.0", "libflp.so", "libflpgen.so")
# Without this file a folder is no export: other kernels, and clones of the hub's repository, have a build.toml too.
MARKER = ".flp-export"
MARKER_TEXT = "Made by flp's packaging/hub/export.py, which replaces this folder when it writes it again.\n"
EXPORTED = {MARKER, "README.md", "build", "build.toml"}
CUDA_ARCHS = ["8.0+PTX"]


def refuse(sentence):
    sys.exit("export.py: " + sentence)


# ---- what a variant holds: {path in it: file}

def contents(libraries):
    """libraries: an installed prefix, or an unpacked wheel."""
    package = libraries / NAME
    prefix = package if (package / "lib").is_dir() else libraries
    files = modules.closure([HERE / "kernel", TREE / "runtime/python/flp"])
    files["include/flp.h"] = TREE / "runtime/flp.h"
    files["LICENSE"] = TREE / "LICENSE"
    for name in LIBRARIES:
        files["lib/" + name] = library(prefix, name)
    for path in (prefix / "share/flp/generic").glob("*.flpk"):
        files["share/flp/generic/" + path.name] = path
    for folder in (*libraries.glob("*.dist-info/licenses"), *libraries.glob("*.dist-info/sboms")):
        files.update({str(path.relative_to(folder.parent)): path for path in folder.rglob("*") if path.is_file()})
    return dict(sorted(files.items()))


def library(prefix, name):
    """The real file: a wheel holds no links, and may hold a linker script for the compiler under the plain name."""
    plain = name.partition(".so")[0] + ".so"
    for pattern in ("lib*/%s" % name, "lib*/%s.*" % plain, "lib*/%s" % plain, "lib*/*/%s" % plain):
        for path in sorted(prefix.glob(pattern)):
            if abi.is_library(path):
                return path
    refuse("%s has no %s in lib (accepted: a prefix of `cmake --install` with the generator, or flp's wheel)"
           % (prefix, name))


def unpacked(libraries, folder):
    if libraries.suffix != ".whl":
        return libraries
    with zipfile.ZipFile(libraries) as wheel:
        wheel.extractall(folder)
    return Path(folder)


def check_libraries(files, is_local):
    """-> the machine that they are for. Libraries of this machine's build may need more than the hub grants."""
    paths = [files["lib/" + name] for name in LIBRARIES[1:]]
    found = [sentence for path in paths for sentence in abi.violations(path)]
    if found and not is_local:
        refuse("%s; the hub takes what runs on manylinux_2_28 (accepted: the libraries of a wheel, ./setup.sh wheel "
               "makes one; or --local, for a folder that is not published)" % "; ".join(found))
    for sentence in found:
        print("export.py: " + sentence, file=sys.stderr)
    machines = {abi.machine(path) for path in paths}
    if len(machines) != 1:
        refuse("the libraries are for several machines: %s" % ", ".join(sorted(machines)))
    return machines.pop()


# ---- writing

def digest_of(folder):
    """{path: SHA-256 in base 64}, as metadata.json has it."""
    return {str(path.relative_to(folder)): base64.b64encode(hashlib.sha256(path.read_bytes()).digest()).decode()
            for path in sorted(folder.rglob("*")) if path.is_file()}


def write_variant(folder, files, first):
    """Copies the files, or links those that the first variant has already."""
    for name, path in files.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if first:
            os.link(first / name, target)
        else:
            shutil.copyfile(path, target)
            target.chmod(0o644)


def write_metadata(folder, backend, version, digest, sources):
    """The id names the operators too (flp/_tensors/_ops.py), so it has what tells this build from any other."""
    build = hashlib.sha256(json.dumps(digest, sort_keys=True).encode()).hexdigest()[:12]
    metadata = {"name": NAME, "id": "_%s_%s_%s" % (NAME, backend, build), "version": version, "license": "Apache-2.0",
                "python-depends": [], "kernel-depends": [], "backend": {"type": backend},
                "sources-id": sources, "digest": {"algorithm": "sha256", "files": digest}}
    if backend == "cuda":
        metadata["backend"]["archs"] = CUDA_ARCHS
    (folder / "metadata.json").write_text(json.dumps(metadata, indent=2) + "\n")


def about(variant):
    """Opens the library of a variant as its Python side will -> version, sources' id"""
    os.environ.pop("FLP_LIBRARY", None)
    sys.dont_write_bytecode = True
    package = types.ModuleType("flp_of_variant")
    package.__path__ = [str(variant)]
    sys.modules[package.__name__] = package
    binding = importlib.import_module(package.__name__ + "._library._c")
    try:
        return binding.version(), binding.sources_id()
    except package.errors.LibraryError as error:
        refuse("the exported library does not load here, so its version is not known: %s" % error)


def write_texts(folder, version, values):
    names = modules.public_names(HERE / "kernel/__init__.py")
    lists = {"functions": [name for name in names if name != "layers"],
             "layers": modules.class_names(HERE / "kernel/layers.py")}
    values = {**values, "version": version, "repo": values["repo"] or "OWNER/" + NAME,
              "hub": '\n[general.hub]\nrepo-id = "%s"\n' % values["repo"] if values["repo"] else "",
              **{key: "\n".join("- `%s`" % name for name in found) for key, found in lists.items()}}
    card = string.Template((HERE / "CARD.md.in").read_text()).substitute(values)
    (folder / "README.md").write_text(card)
    (folder / "build/CARD.md").write_text(card)
    (folder / "build.toml").write_text(string.Template((HERE / "build.toml.in").read_text()).substitute(values))
    (folder / MARKER).write_text(MARKER_TEXT)


def export(out, libraries, variants, repo, is_local):
    files = contents(libraries)
    system = check_libraries(files, is_local) + "-linux"
    first = None
    for name in variants:
        variant = out / "build" / ("%s-%s-%s" % (TORCH, name, system))
        write_variant(variant, files, first)
        if first is None:
            first, digest, (flp_version, sources) = variant, digest_of(variant), about(variant)
        write_metadata(variant, VARIANTS[name], int(flp_version.split(".")[0]), digest, sources)
    write_texts(out, int(flp_version.split(".")[0]), {"repo": repo, "flp_version": flp_version, "sources": sources})
    return "flp %s, %s" % (flp_version, ", ".join(path.name for path in sorted((out / "build").glob("torch-*"))))


def check_replaceable(out):
    """Refuses an --out that is there, unless it is an empty folder or an earlier export and nothing else."""
    if not out.exists():
        return
    if not out.is_dir():
        refuse("--out is %s, which is no folder (accepted: a new or empty folder, or an earlier export)" % out)
    names = {path.name for path in out.iterdir()}
    others = sorted(names - EXPORTED if MARKER in names else names)
    if others:
        refuse("--out is %s, which holds what is of no earlier export: %s (accepted: a new or empty folder, or an "
               "earlier export, which has the file %s)" % (out, ", ".join(others), MARKER))


def replace(out, write):
    """Writes a folder beside out, then puts it in out's place."""
    check_replaceable(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent) as folder:
        fresh = Path(folder) / out.name
        print("%s: %s" % (out, write(fresh)))
        if out.exists():
            shutil.rmtree(out)
        fresh.rename(out)


def parse(words):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--libraries", type=Path, required=True, help="flp's wheel, or an installed prefix")
    parser.add_argument("--out", type=Path, required=True, help="folder to write; an earlier export there is replaced")
    parser.add_argument("--repo", help="OWNER/NAME on the hub, for the card and for `kernel-builder upload`")
    parser.add_argument("--variants", default=",".join(VARIANTS), help="which ones; default: %(default)s")
    parser.add_argument("--local", action="store_true", help="take libraries that run on this system alone")
    args = parser.parse_args(words)
    args.variants = args.variants.split(",")
    for name in args.variants:
        if name not in VARIANTS:
            parser.error("--variants has %r (accepted: %s)" % (name, ", ".join(VARIANTS)))
    if not args.libraries.exists():
        parser.error("--libraries is %s, which does not exist (accepted: a wheel, or a prefix)" % args.libraries)
    return args


def main(words):
    args = parse(words)
    with tempfile.TemporaryDirectory() as folder:
        libraries = unpacked(args.libraries.resolve(), folder)
        replace(args.out.resolve(), lambda out: export(out, libraries, args.variants, args.repo, args.local))


if __name__ == "__main__":
    main(sys.argv[1:])
