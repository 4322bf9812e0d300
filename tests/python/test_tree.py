"""Folders include only what stands below them, so that one can be read, built and changed without those above."""
import re
from pathlib import Path

TREE = Path(__file__).resolve().parents[2]

# Folder: the folders that its C files may include, beside itself and the system. Each names none that stands above it.
BELOW = {
    "runtime": [],
    "gen/sources": ["runtime"],
    "gen": ["runtime", "gen/sources"],
    "gen/lint": ["gen", "gen/sources"],
    "gen/lang": ["runtime", "gen"],
    "gen/target": ["runtime", "gen"],
    "gen/loss": ["runtime", "gen"],
    "autotune": ["runtime", "gen"],
    "gen/cli/shared": ["runtime", "gen", "autotune"],
    "gen/cli/tensors": ["gen/cli/shared", "runtime"],
    **{f"gen/cli/{verb}": ["gen/cli", "gen/cli/shared", "gen/cli/tensors", "runtime", "gen", "autotune"]
       for verb in ("gen", "run", "cache", "loss", "pack", "bench", "check", "explain")},
    "gen/cli/report": ["gen/cli", "gen/cli/shared", "gen/cli/explain", "runtime", "autotune"],
    "gen/cli/report/charts": ["gen/cli/report", "gen/cli/shared", "gen/cli/explain", "runtime", "autotune"],
    "gen/cli/doctor": ["gen/cli", "gen/cli/shared", "gen/cli/pack", "runtime", "gen"],
    "gen/cli/tune": ["gen/cli", "gen/cli/shared", "gen/cli/bench", "gen/cli/check", "runtime", "gen", "autotune"],
    "gen/cli": ["gen/cli/shared"],
}


def included_folder(path, name):
    """Folder of a header of the tree; None for one that is made by the build or stands elsewhere."""
    for place in (TREE, path.parent, TREE / "runtime", TREE / "gen", TREE / "autotune"):
        if (place / name).exists():
            return str((place / name).resolve().parent.relative_to(TREE))
    return None


def test_folders_include_what_is_below_them():
    files = [path for top in ("runtime", "gen", "autotune") for path in (TREE / top).rglob("*.[ch]")]
    wrong = []
    for path in files:
        folder = str(path.parent.relative_to(TREE))
        for name in re.findall(r'^#include "([^"]+)"', path.read_text(), re.M):
            other = included_folder(path, name)
            if other not in (None, folder, *BELOW.get(folder, ())):
                wrong.append(f"{path.relative_to(TREE)} includes {name}")
    assert files and wrong == []


def test_no_folder_stands_above_itself():
    def below(folder, seen=()):
        assert folder not in seen, f"a ring: {' -> '.join((*seen, folder))}"
        for other in BELOW[folder]:
            below(other, (*seen, folder))
    for folder in BELOW:
        below(folder)
