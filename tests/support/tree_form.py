"""The form of the tree in numbers: lines of code by folder, what is long or wide, and how many files read each field of a
call. tests/scripts/test_tree.py holds them."""
import ast
import os
import re
from collections import Counter
from pathlib import Path

CODE = (".c", ".h", ".lua", ".py", ".sh")
COLUMNS, LINES, LINES_OF_A_FUNCTION = 120, 500, 40
HEAD = r"(?!typedef|struct|enum|union|extern)(?=[A-Za-z_])[^=;]*?((?:Parameterized)?Test\([^)]*\)|\w+(?=\())"  # of C


def code(tree):
    """{path from the top: its lines}"""
    found = {}
    for folder, folders, names in os.walk(tree):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in ("build", "__pycache__"))
        for path in (Path(folder, name) for name in sorted(names) if name.endswith(CODE)):
            found[str(path.relative_to(tree))] = path.read_text().splitlines()
    return found


def folder(path):
    """Two parts deep where the first is large."""
    parts = Path(path).parts[:-1]
    return "/".join(parts[:2 if parts[:1] in [("runtime",), ("gen",), ("tests",)] else 1]) or "."


def lines_by_folder(files):
    counts = Counter()
    for path, lines in files.items():
        counts[folder(path)] += len(lines)
    return {**dict(sorted(counts.items())), "all": counts.total()}


def python_functions(lines):
    """(name, lines less its docstring's)"""
    for node in ast.walk(ast.parse("\n".join(lines))):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            said = node.body[0].end_lineno - node.body[0].lineno + 1 if ast.get_docstring(node) else 0
            yield node.name, node.end_lineno - node.lineno + 1 - said


def c_functions(lines):
    name, start = None, 0
    for at, line in enumerate(lines):
        if line == "}" and name:
            yield name, at - start + 1
            name = None
        elif found := re.match(HEAD, line):
            name, start = (None, 0) if line.endswith(";") else (found[1], at)


def lua_functions(lines):
    """Inner ones count as lines of the outer ones too."""
    opened = []
    for at, line in enumerate(lines):
        if (found := re.match(r"( *)(?:local )?function ([\w.:]+)\(", line)) and not line.endswith(" end"):
            opened.append((found[1] + "end", found[2], at))
        elif opened and line == opened[-1][0]:
            _, name, start = opened.pop()
            yield name, at - start + 1


FUNCTIONS = {".py": python_functions, ".c": c_functions, ".h": c_functions, ".lua": lua_functions}


def long_functions(files):
    """{"path: function": lines}"""
    return {f"{path}: {name}": count for path, lines in files.items()
            for name, count in FUNCTIONS.get(Path(path).suffix, lambda _: ())(lines) if count > LINES_OF_A_FUNCTION}


def long_files(files):
    return {path: len(lines) for path, lines in files.items() if len(lines) > LINES}


def wide_lines(files):
    """{folder: how many}"""
    counts = Counter()
    for path, lines in files.items():
        counts[folder(path)] += sum(len(line) > COLUMNS for line in lines)
    return {name: count for name, count in sorted(counts.items()) if count}


def files_by_field(tree, files):
    """{field of flp_spec: how many files of C and Lua outside tests read or write it}"""
    rows = (tree / "runtime/base/fields.h").read_text().split("FLP_SPEC_FIELDS(X, H)")[1].split("clang-format on")[0]
    texts = ["\n".join(lines) for path, lines in files.items() if not path.startswith("tests/") and path.endswith(CODE[:3])]
    return {field: sum(bool(re.search(rf"(->|\.){field}\b", text)) for text in texts)
            for field in re.findall(r"\bX\([\w \*]+, (\w+),", rows)}


RULES = {
    "lines of code": lambda tree, files: lines_by_folder(files),
    f"files of over {LINES} lines": lambda tree, files: long_files(files),
    f"functions of over {LINES_OF_A_FUNCTION} lines": lambda tree, files: long_functions(files),
    f"lines of over {COLUMNS} columns": lambda tree, files: wide_lines(files),
    "files that read a field of a call": files_by_field,
}
