"""Adds up what ctest and the programs under it left in folders of results; ends "N passed, N failed, N skipped".

ctest knows programs; the file NAME.xml beside its own (JUnit, from Criterion or pytest) knows the tests of program
NAME. A program that failed without a failure in its file (it crashed, or wrote none) counts as one failure of its own,
so that none is hidden. Exits 1 on any failure, or if nothing ran.

The line before says how much CPU time the script that runs this one has spent, builds included: ./setup.sh test, the
short form, is to stay below CEILING.
"""

import os
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

CEILING = 15 * 60  # seconds, user and system, in a fresh clone with the packages installed


def cpu_seconds(pid):
    """User and system time of a process and of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def count_cases(path, program):
    """Outcome counts of one JUnit file: (passed, [names of failures], [(name, reason) of skips])."""
    passed, failed, skipped = 0, [], []
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        name = f"{program}: {case.get('name')}"
        if case.find("failure") is not None or case.find("error") is not None:
            failed.append(name)
        elif case.find("skipped") is not None:
            skipped.append((name, case.find("skipped").get("message") or "no reason given"))
        else:
            passed += 1
    return passed, failed, skipped


def count_program(entry, results):
    """Outcome counts of one ctest entry, from its own file where it left one."""
    ran_well, path = entry.get("status") == "run", results / f"{entry.get('name')}.xml"
    name = f"{results.parents[1].name}/{entry.get('name')}"  # build/release/tests/results: release/test_abi
    if not path.exists():
        return (1, [], []) if ran_well else (0, [f"{name}: {entry.get('status')}, and it left no results"], [])
    try:
        passed, failed, skipped = count_cases(path, name)
    except ElementTree.ParseError as error:
        return 0, [f"{name}: unreadable results ({error})"], []
    if not ran_well and not failed:
        failed.append(f"{name}: the program failed outside its tests")
    return passed, failed, skipped


def main(folders):
    passed, failed, skipped = 0, [], []
    for results in folders:
        entries = list(ElementTree.parse(results / "ctest.xml").getroot().iter("testcase"))
        if not entries:
            failed.append(f"{results}: no test ran")
        for entry in entries:
            counts = count_program(entry, results)
            passed += counts[0]
            failed += counts[1]
            skipped += counts[2]
    for name, reason in skipped:
        print(f"skipped  {name}: {reason}")
    for name in failed:
        print(f"FAILED   {name}")
    spent = cpu_seconds(os.getppid())
    print(f"{spent / 60:.1f} minutes of CPU time, of {CEILING / 60:g} that the short form is to take in a fresh clone")
    print(f"{passed} passed, {len(failed)} failed, {len(skipped)} skipped")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main([Path(folder).resolve() for folder in sys.argv[1:]]))
