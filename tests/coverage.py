#!/usr/bin/env python3
"""What the tests ran of libflp, by room, from clang's counters; and the table of what they do not run, with reasons.

    tests/coverage.py PROFILE LIBRARY     the report; exit 1 below a target or where the table does not fit
    tests/coverage.py --list ...          every line and branch that was not run, for who writes tests or the table

A branch is one way out of one condition: `a && b` has four. clang reads them from the source; gcc's figures are those
of the code that it made, where two comparisons may have become one. Counters of all programs and libraries are one
file: they hold the same objects of runtime/ in the same order.

tests/coverage.txt has a reason, then the lines that it excuses: a file, then the text of a line, which stands for all
that follows it without having run. An entry whose text is no line of the file, or whose lines have all run, is an
error. So is a line that has not run and has no entry. What depends on the moment stands under a reason that begins
with "Sometimes": it may have run."""
import argparse
import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

TREE = Path(__file__).resolve().parents[1]
TABLE = TREE / "tests/coverage.txt"
LINES, BRANCHES = 95.0, 90.0  # percent
LLVM_COV = os.environ.get("FLP_LLVM_COV", "llvm-cov-19")


def export(profile, library, *options):
    command = [LLVM_COV, "export", str(library), f"-instr-profile={profile}", *options, str(TREE / "runtime")]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"tests/coverage.py: {' '.join(command)}: {done.stderr}")
    return done.stdout


def lines_of(lcov):
    """{file: {line: runs}}"""
    found, current = {}, None
    for row in lcov.splitlines():
        name, _, value = row.partition(":")
        if name == "SF":
            current = found.setdefault(str(Path(value).relative_to(TREE)), defaultdict(int))
        elif name == "DA":
            line, runs = value.split(",")[:2]
            current[int(line)] += int(runs)
    return found


def branches_of(report):
    """{file: {(line, where): [runs if true, runs if false]}}; one of a macro counts where the macro is used. Copies of
    a function of a header are one."""
    found = {}
    for file in report["data"][0]["files"]:
        ways = found.setdefault(str(Path(file["filename"]).relative_to(TREE)), defaultdict(lambda: [0, 0]))
        uses = [(branch[0], tuple(branch[:4]), branch) for branch in file["branches"]]
        for use in file["expansions"]:
            at = use["source_region"]
            uses += [(at[0], (*at[:2], *branch[:4]), branch) for branch in use["branches"]]
        for line, where, branch in uses:
            runs = ways[line, where]
            runs[0] += branch[4]
            runs[1] += branch[5]
    return found


def condition(text, where):
    """The condition of a branch as it stands in its line, or the macro that has it."""
    if len(where) == 6:
        return re.match(r"\w*", text[where[1] - 1:])[0]
    return text[where[1] - 1:where[3] - 1] if where[0] == where[2] else text[where[1] - 1:] + " ..."


class File:
    def __init__(self, name, lines, branches):
        self.text = (TREE / name).read_text().splitlines()
        self.name, self.room = name, str(Path(name).parent)
        self.lines, self.branches = lines, branches
        self.missed = defaultdict(list)  # {line: what did not happen there}
        for line, runs in lines.items():
            if not runs:
                self.missed[line].append("never run")
        for (line, where), runs in branches.items():
            if runs == [0, 0]:
                self.missed[line].append(f"`{condition(self.text[line - 1], where)}` never asked")
            elif 0 in runs:
                never = "true" if not runs[0] else "false"
                self.missed[line].append(f"`{condition(self.text[line - 1], where)}` never {never}")


def read_table():
    """[(reason, file, text, its line in the table)]"""
    entries, reason = [], None
    for number, row in enumerate(TABLE.read_text().splitlines(), 1):
        if not row or row.startswith("#"):
            continue
        if not row.startswith(" "):
            reason = row
            continue
        file, _, text = row.strip().partition(": ")
        entries.append((reason, file, text, number))
    return entries


def judge_table(files, entries):
    """What is wrong with the table; the lines that have no reason."""
    wrong, excused = [], set()
    for reason, name, text, number in entries:
        file = files.get(name)
        at = [line for line, row in enumerate(file.text, 1) if row.strip() == text] if file else []
        missed = [line for line in at if line in file.missed]
        for line in missed:  # and what follows it in one piece, which did not run either
            excused.add((name, line))
            while file.lines.get(line + 1) == 0 and (line + 1) in file.missed:
                line += 1
                excused.add((name, line))
        if not reason:
            wrong.append(f"coverage.txt:{number}: no reason stands above it")
        elif not at:
            wrong.append(f"coverage.txt:{number}: {name} has no such line: {text}")
        elif not missed and not reason.startswith("Sometimes"):
            wrong.append(f"coverage.txt:{number}: {name}:{at[0]} is covered now: {text}")
    for file in files.values():
        wrong += [f"{file.name}:{line}: {'; '.join(what)}: neither covered nor in tests/coverage.txt"
                  for line, what in sorted(file.missed.items()) if (file.name, line) not in excused]
    return wrong


def counts(files):
    """lines, those that ran, branches, those that were taken"""
    return (sum(len(f.lines) for f in files), sum(runs > 0 for f in files for runs in f.lines.values()),
            2 * sum(len(f.branches) for f in files),
            sum((way > 0) for f in files for runs in f.branches.values() for way in runs))


def percent(part, whole):
    return 100.0 * part / whole if whole else 100.0


def table(files):
    rooms = defaultdict(list)
    for file in files.values():
        rooms[file.room].append(file)
    order = [*sorted(rooms), "all"]
    rooms["all"] = list(files.values())
    out = [f"{'room':<18}{'lines':>8}{'run':>8}{'%':>8}{'branches':>11}{'taken':>8}{'%':>8}"]
    for room in order:
        lines, ran, branches, taken = counts(rooms[room])
        out.append(f"{room:<18}{lines:>8}{ran:>8}{percent(ran, lines):>8.2f}{branches:>11}{taken:>8}"
                   f"{percent(taken, branches):>8.2f}")
    return "\n".join(out)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("profile", type=Path)
    parser.add_argument("library", type=Path)
    parser.add_argument("--list", action="store_true", help="print what was not run and stop")
    given = parser.parse_args()
    lines = lines_of(export(given.profile, given.library, "-format=lcov"))
    branches = branches_of(json.loads(export(given.profile, given.library)))
    files = {name: File(name, lines[name], branches.get(name, {})) for name in sorted(lines)}
    if given.list:
        for file in files.values():
            for line, what in sorted(file.missed.items()):
                print(f"{file.name}:{line}: {'; '.join(what)}")
        return 0
    print(table(files))
    entries = read_table()
    wrong = judge_table(files, entries)
    by_reason = defaultdict(list)
    for reason, name, text, _ in entries:
        by_reason[reason].append(f"{name}: {text}")
    for reason, rows in by_reason.items():
        print(f"\nnot covered: {reason}", *rows, sep="\n  ")
    total = counts(files.values())
    for what, got, wanted in (("lines", percent(total[1], total[0]), LINES),
                              ("branches", percent(total[3], total[2]), BRANCHES)):
        if got < wanted:
            wrong.append(f"{got:.2f} % of the {what} of runtime/, wanted: {wanted:g} %")
    if wrong:
        print("\nwrong:", *wrong, sep="\n  ")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
