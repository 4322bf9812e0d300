"""Folders use only what stands below them, so that one can be read, built and changed without those above."""
import ast
import functools
import json
import os
import re
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest

import tree_form

TREE = Path(__file__).resolve().parents[2]
CODE = [path for top in ("runtime", "gen", "autotune") for path in (TREE / top).rglob("*.[ch]")]

# The parts of libflp, lowest first, with the parts below that each uses. runtime/ itself is flp.h.
LIBFLP = {
    "base": "",
    "kernel": "base",
    "loss": "base",
    "driver": "base kernel",
    "pack": "base kernel",
    "store": "base kernel pack",
    "planner": "base kernel loss driver",
    "eager": "base kernel loss",
    "load": "base kernel driver pack store",
    "plan": "base kernel loss driver planner eager load",
    "launch": "base kernel driver planner plan",
    "api": "base kernel loss driver planner eager plan launch",
}
RUNTIME = ["runtime", *(f"runtime/{part}" for part in LIBFLP)]
# Of libflp, as a program of somebody else is: flp.h, and the rows of base that say what a call is.
USERS = ("runtime/jax",)
SHARED = [*RUNTIME, "gen", "autotune", "autotune/gemm", "gen/cli/shared", "gen/cli/call", "gen/cli/kernels"]

# Folder: the folders that its files may include, or call, beside itself and the system.
BELOW = {
    "runtime": [],
    **{f"runtime/{part}": ["runtime", *(f"runtime/{other}" for other in below.split())] for part, below in LIBFLP.items()},
    **{folder: ["runtime", "runtime/base"] for folder in USERS},
    "gen": RUNTIME,  # gen.h alone
    "gen/sources": RUNTIME,
    "gen/lint": ["gen/sources"],
    "gen/lang": [*RUNTIME, "gen/lint"],
    "gen/loss": [*RUNTIME, "gen", "gen/sources", "gen/lang"],
    "gen/target": [*RUNTIME, "gen", "gen/lang"],
    "gen/generate": [*RUNTIME, "gen", "gen/sources", "gen/lang", "gen/loss", "gen/target"],
    "autotune": [*RUNTIME, "gen"],
    "autotune/gemm": [*RUNTIME, "autotune"],
    "gen/cli/shared": [*RUNTIME, "gen", "autotune", "autotune/gemm"],
    "gen/cli/tensors": [*RUNTIME, "gen/cli/shared"],
    "gen/cli/presets": [*RUNTIME, "gen/cli/shared"],
    "gen/cli/keys": [*RUNTIME, "gen/cli/shared"],
    "gen/cli/call": [*RUNTIME, "gen/cli/shared"],
    "gen/cli/kernels": [*RUNTIME, "gen", "gen/cli/shared", "gen/cli/call"],
    **{f"gen/cli/{verb}": [*SHARED, "gen/cli", "gen/cli/tensors"]
       for verb in ("gen", "cache", "loss", "bench", "explain")},
    "gen/cli/check/cases": SHARED,
    "gen/cli/check": [*SHARED, "gen/cli", "gen/cli/tensors", "gen/cli/check/cases"],
    "gen/cli/completion": [*SHARED, "gen/cli", "gen/cli/presets"],
    "gen/cli/run": [*SHARED, "gen/cli", "gen/cli/tensors", "gen/cli/bench"],
    "gen/cli/pack": [*SHARED, "gen/cli", "gen/cli/keys", "gen/cli/presets"],
    "gen/cli/sign": [*RUNTIME, "gen/cli", "gen/cli/keys", "gen/cli/shared"],
    "gen/cli/doctor": [*SHARED, "gen/cli", "gen/cli/pack"],
    "gen/cli/tune": [*SHARED, "gen/cli", "gen/cli/presets", "gen/cli/bench", "gen/cli/check",
                     "gen/cli/check/cases"],
    "gen/cli/prove": [*SHARED, "gen/cli", "gen/cli/check", "gen/cli/check/cases"],
    "gen/cli/generator": ["gen"],
    "gen/cli": ["runtime", "runtime/base", "gen/cli/shared"],
}

# The rooms of the Python package, lowest first, with the rooms that each uses; a file beside them is one of its own.
FLP = TREE / "runtime/python/flp"
ROOMS = {
    "errors": "",
    "_version": "",
    "_matplotlib": "",
    "_library": "errors _version",
    "_tensors": "errors _library",
    "losses": "_library _tensors",
    "_eager": "errors _library _tensors",
    "_passes": "errors _library _tensors _eager",
    "_functions": "errors _library _tensors losses _eager _passes",
    "heads": "errors _library _tensors _eager _passes _functions",
    "parallel": "_library _tensors _eager _passes _functions losses",
    "adapters": "errors _library _tensors _passes _functions heads parallel",
    "backend": "_tensors _functions parallel",
    "memory": "_matplotlib _library _tensors _passes",
    "jax": "errors _library",
    "report": "_version _matplotlib _library",
    "__main__": "errors _library",
    "__init__": "errors _version _library _tensors losses _passes _functions heads parallel adapters backend memory",
    "bench": "_library _tensors __init__",
}


def folder_of(path):
    return str(Path(path).parent.relative_to(TREE))


def test_folders_include_what_is_below_them():
    wrong = []
    for path in CODE:
        for name in re.findall(r'^#include "([^"]+)"', path.read_text(), re.M):
            if (TREE / name).exists():
                allowed = (folder_of(path), *BELOW.get(folder_of(path), ()))
                if folder_of(TREE / name) not in allowed:
                    wrong.append(f"{path.relative_to(TREE)} includes {name}")
            elif name not in ("flp_sources.h",):  # made by the build
                wrong.append(f"{path.relative_to(TREE)} includes {name}, which is no path from the top of the tree")
    assert CODE and wrong == []


def test_no_folder_stands_above_itself():
    def below(folder, seen=()):
        assert folder not in seen, f"a ring: {' -> '.join((*seen, folder))}"
        for other in BELOW[folder]:
            below(other, (*seen, folder))
    for folder in BELOW:
        below(folder)


def test_rooms_are_small():
    held = defaultdict(int)
    for path in (*CODE, *FLP.rglob("*.py")):
        held[folder_of(path)] += 1
    assert {folder: count for folder, count in held.items() if count > 30} == {}


def objects():
    """The C files of libflp, libflpgen and the command, each with the object that the build made of it."""
    build = Path(os.environ.get("FLP_TEST_BUILD", TREE / "build/release"))
    commands = build / "compile_commands.json"
    if not commands.exists():
        pytest.skip(f"{build} holds no build")
    found = {}
    for entry in json.loads(commands.read_text()):
        made = Path(entry["directory"]) / re.search(r" -o (\S+)", entry["command"])[1]
        if Path(entry["file"]) in CODE and "flp_hash_sources" not in str(made) and made.exists():
            found[Path(entry["file"])] = made
    return found


# Opens libflpgen for the command: each function is defined once more than gen/ does it.
FORWARDS = TREE / "gen/cli/generator/open.c"


@functools.cache
def symbols():
    """{name: the file that defines it}, {file: the names that it needs}"""
    defines, needs = {}, defaultdict(set)
    made = {str(file): path for path, file in objects().items()}
    listed = subprocess.run(["nm", "-PA", *made], capture_output=True, text=True, check=True).stdout
    for file, name, kind in re.findall(r"^(.*): (\S+) (\w)\b", listed, re.M):
        if kind == "U":
            needs[made[file]].add(name)
        elif kind.isupper() and made[file] != FORWARDS:
            defines[name] = made[file]
    return defines, needs


def calls():
    """(folder, folder): who calls what, between folders."""
    defines, needs = symbols()
    edges = defaultdict(list)
    for path, names in needs.items():
        for name in sorted(names & defines.keys()):
            above = folder_of(path).startswith(("autotune", "gen/cli"))  # of libflpgen these see gen.h, which declares it
            defined = "gen" if above and name.startswith("flpgen_") else folder_of(defines[name])
            if folder_of(path) in USERS and defined in RUNTIME:  # what libflp.so exports is declared by flp.h
                defined = "runtime"
            if folder_of(path) != defined:
                edges[folder_of(path), defined].append(f"{path.name} calls {name}")
    return edges


def test_folders_call_what_is_below_them():
    """A function that is declared below and defined above would pass the test of includes."""
    edges = calls()
    assert len(edges) > 100
    # main.c calls the verbs, which share the header that lists them
    edges = {edge: names for edge, names in edges.items() if edge[0] != "gen/cli" or not edge[1].startswith("gen/cli/")}
    assert {edge: names for edge, names in edges.items() if edge[1] not in BELOW[edge[0]]} == {}


# Tables of functions: a row names what others call, so these files stand below those that ask them.
TABLES = {TREE / "runtime/api/op.c", TREE / "runtime/kernel/op.c", TREE / "gen/cli/verbs.c"}


def test_files_do_not_call_in_rings():
    """Two files that call each other are one subject, or a part of one of them belongs below both."""
    defines, needs = symbols()
    below = {path: {defines[name] for name in names & defines.keys()} - {path} for path, names in needs.items()
             if path not in TABLES}
    assert len(below) > 100
    while leaves := [path for path, others in below.items() if not others & below.keys()]:
        for path in leaves:
            del below[path]
    assert {str(path.relative_to(TREE)): [other.name for other in others & below.keys()]
            for path, others in below.items()} == {}


def module_of(*names):
    """The file of the package that an import names, or None."""
    place = FLP.joinpath(*names)
    return next((path for path in (place.with_suffix(".py"), place / "__init__.py") if path.exists()), None)


def imported(path):
    """The files of the package that one of its files imports, wherever in it."""
    package, found = path.parent.relative_to(FLP).parts, set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name.split(".") for alias in node.names]
            found |= {module_of(*parts[1:]) for parts in names if parts[0] == "flp"}
        elif isinstance(node, ast.ImportFrom) and (node.level or node.module.split(".")[0] == "flp"):
            folder = package[:len(package) - node.level + 1] if node.level else ()
            folder += tuple(node.module.split(".")[not node.level:] if node.module else ())
            found |= {module_of(*folder, alias.name) or module_of(*folder) for alias in node.names}
    assert None not in found, path
    return found - {path}


def room_of(path):
    return path.relative_to(FLP).with_suffix("").parts[0]


def test_python_rooms_import_what_is_below_them():
    """The table says no more than that is so, and each row stands behind those that it names."""
    uses = {room: set() for room in ROOMS}
    for path in FLP.rglob("*.py"):
        uses[room_of(path)] |= {room_of(other) for other in imported(path)} - {room_of(path)}
    assert {room: set(below.split()) for room, below in ROOMS.items()} == uses
    names = list(ROOMS)
    assert all(names.index(other) < names.index(room) for room in names for other in uses[room])


def test_python_files_do_not_import_in_rings():
    below = {path: imported(path) for path in FLP.rglob("*.py")}
    while leaves := [path for path, others in below.items() if not others & below.keys()]:
        for path in leaves:
            del below[path]
    assert sorted(below) == []


# What the tree may have at most: edited to raise it, with a reason in the commit; FLP_GOLDEN_UPDATE=1 lowers it.
RATCHETS = Path(__file__).with_name("tree_ratchets.json")
CODE_OF_THE_TREE = tree_form.code(TREE)


@pytest.mark.parametrize("rule", tree_form.RULES)
def test_the_tree_grows_by_what_is_written_down(rule):
    ratchets, is_now = json.loads(RATCHETS.read_text()), tree_form.RULES[rule](TREE, CODE_OF_THE_TREE)
    most = ratchets[rule]
    above = {name: f"{count}, of {most.get(name, 0)}" for name, count in is_now.items() if count > most.get(name, 0)}
    assert above == {}, f"{RATCHETS.name}: write less, or raise it with a reason in the commit"
    if os.environ.get("FLP_GOLDEN_UPDATE"):
        RATCHETS.write_text(json.dumps({**ratchets, rule: is_now}, indent=1) + "\n")
        return
    below = {name: f"{is_now.get(name, 0)}, of {count}" for name, count in most.items()
             if is_now.get(name, 0) < count - max(count // 20, 20) or name not in is_now}
    assert below == {}, f"{RATCHETS.name}: FLP_GOLDEN_UPDATE=1 tests/run tests/scripts/test_tree.py lowers it"
