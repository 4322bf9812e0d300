"""Which Python files an export carries: those that its __init__.py reaches by relative imports.

Invariant, the hub's rule: a module imports the standard library, torch and files of its own package; the last by
relative imports alone.
"""
import ast
import sys
from pathlib import Path


def closure(roots):
    """{path in the package: file} of __init__.py and what it imports; a file of an earlier root hides later ones."""
    found, waiting = {}, ["__init__.py"]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found[name] = next(root / name for root in roots if (root / name).exists())
        waiting += [*imports(found[name], name, roots), str(Path(name).parent / "__init__.py")]
    return found


def imports(file, name, roots):
    """The paths in the package of what a file imports from it. error: SystemExit, naming the file and the import"""
    out, package = [], Path(name).parent
    for node in ast.walk(ast.parse(file.read_text(), str(file))):
        if not isinstance(node, ast.ImportFrom) or not node.level:
            continue
        folder = (package, *package.parents)[node.level - 1]
        if node.module:
            folder = folder / node.module.replace(".", "/")
            out.append(path_of(folder, roots))
        parts = [path_of(folder / alias.name, roots) for alias in node.names]
        if not node.module and None in parts or out and out[-1] is None:
            sys.exit("modules.py: %s: line %d imports what is no file of the package" % (file, node.lineno))
        out += [part for part in parts if part]
    return out


def path_of(module, roots):
    for path in (module.with_suffix(".py"), module / "__init__.py"):
        if any((root / path).exists() for root in roots):
            return str(path)
    return None


def public_names(file):
    """The names in __all__."""
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", None) == "__all__":
            return ast.literal_eval(node.value)
    sys.exit("modules.py: %s has no __all__" % file)


def class_names(file):
    return [node.name for node in ast.parse(file.read_text()).body if isinstance(node, ast.ClassDef)]
