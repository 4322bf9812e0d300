"""Measured results kept in the tree are whole, and name the kernels they were measured with.

A record is one JSON object, tests/gpu/evidence/*.json or autotune/bench/*.json:

    {"command": "...",        what was run, so that it can be run again
     "date": "2026-01-31",
     "gpu": "NVIDIA H200", "driver": "580.65",
     "sources_hash": "<16 to 64 hex digits>",   templates and generator, as `flpgen doctor` prints them
     "sources_hash_before": [...],              hashes it had before, where kernels.py carried it over a change
     "kernels": {"forward sm_90a": {"kernels": 1, "sha256": "<64 hex digits>"}},  what it ran (kernels.py)
     "rows": [...]}           or "results": {...}: figures with their units in their names; never empty. A record of
                              checks has "failed", their number, which must be 0. A row of a comparison (those of
                              python -m flp.bench have "peer") without a time has a "reason". One of a benchmark may have
     "host": {...}}           what calls cost the host, not in older records: forward_us, backward_us, their launches; of
                              steps of a loss step_us
A row of `flpgen check` is a case, on each rung where every figure was the same:

    {"case": "random", "rungs": ["heuristic", "jit", "generic"], "shape": "67x1531x72", "dtype": "bf16",
     "options": "grads=h",
     "checks": 4,             comparisons a rung: over all rows and rungs they are the record's "checks"
     "pass": true,
     "outputs": {"logprob": {  of an output that was compared more than once, the comparison with the worst share
        "worst_share": 0.21,  of the error that is allowed, where it is the largest: 1 and less pass
        "max_ulp": 0.84,      the largest error in the row's ulp, of what is judged row by row
        "rel_l2": 2.2e-8,     of the output as a whole
        "bound": 4.0}},       what is allowed where worst_share is: in ulp beside "max_ulp", as rel_l2 otherwise
     "exact": ["logprob bits"],  outputs that may have no error and had none
     "notes": {...}}          by output what else there is to say, where there is any
A comparison that fails has a row of its own, with "pass" false, one output and its "cosine", too.

A malformed record fails. A record is current if its sources_hash is the tree's, or if the tree's generator makes the
kernels that it ran as they were, to the byte. Any other is reported STALE and counts as skipped: what it records was
true, and should be measured again. Kernels are compared by `./setup.sh test --all` alone.
"""

import datetime
import json
import os
import re
import sys
import warnings
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import kernels  # noqa: E402
import transcripts  # noqa: E402

TREE = Path(__file__).resolve().parents[2]
RECORDS = sorted([*TREE.glob("tests/gpu/evidence/*.json"), *TREE.glob("autotune/bench/*.json")])
GOLDEN = TREE / "tests/golden/records"
TEXT_FIELDS = ("command", "gpu", "driver", "date", "sources_hash")


def check_host(host):
    """Why this does not show what calls cost the host, or None. A pass that was not measured is null."""
    for name in ("step",) if "step_us" in host else ("forward", "backward"):
        us, launches = host.get(f"{name}_us"), host.get(f"{name}_launches")
        if name == "backward" and us is None and launches is None:
            continue
        if not all(isinstance(value, (int, float)) and value > 0 for value in (us, launches)):
            return f"host: {name}_us {us!r} over {name}_launches {launches!r}, two numbers > 0 are expected"
    return None


def check_case(row):
    """Why this is not a row of `flpgen check`, or None."""
    name = row.get("case")
    for field in ("case", "shape", "dtype", "options"):
        if not isinstance(row.get(field), str):
            return f"rows: {name}: {field}: {row.get(field)!r}, a string is expected"
    rungs, outputs, exact, checks = (row.get(field) for field in ("rungs", "outputs", "exact", "checks"))
    if not isinstance(rungs, list) or not rungs or len({*map(str, rungs)}) != len(rungs):
        return f"rows: {name}: rungs: {rungs!r}, different ones are expected"
    if not isinstance(outputs, dict) or not isinstance(exact, list) or not isinstance(checks, int):
        return f"rows: {name}: outputs, exact or checks: missing or malformed"
    if not 0 < len({*outputs, *exact}) == len(outputs) + len(exact) <= checks:
        return f"rows: {name}: {checks} checks of {len(outputs)} outputs and {len(exact)} exact ones"
    if row.get("pass") is not True:
        return f"rows: {name}: pass is {row.get('pass')!r}: evidence of a failure is no evidence"
    for output, figures in outputs.items():
        values = [figures.get(field) for field in ("worst_share", "rel_l2", "bound")]
        values += [figures["max_ulp"]] if "max_ulp" in figures else []
        numbers = all(isinstance(value, (int, float)) and value >= 0 for value in values)
        if not numbers or values[0] > 1 or not values[2]:
            return f"rows: {name}: {output}: {figures}: a share of a bound is expected that is at most 1"
    return None


def check_cases(record):
    """Why the rows of this are not those of `flpgen check`, or None."""
    fault = next(filter(None, map(check_case, record["rows"])), None)
    count = 0 if fault else sum(row["checks"] * len(row["rungs"]) for row in record["rows"])
    if not fault and count != record.get("checks"):
        return f"checks: {record.get('checks')!r}, the rows have {count}"
    return fault


def check_record(record):
    """Why this is not a record, or None."""
    if not isinstance(record, dict):
        return "not a JSON object"
    for field in TEXT_FIELDS:
        value = record.get(field)
        if not isinstance(value, str) or not value.strip():
            return f"{field}: {value!r}, a non-empty string is expected"
    for value in (record["sources_hash"], *record.get("sources_hash_before", [])):
        if not re.fullmatch("[0-9a-f]{16,64}", value):
            return f"sources_hash: {value!r}, 16 to 64 hexadecimal digits are expected"
    try:
        datetime.date.fromisoformat(record["date"][:10])
    except ValueError:
        return f"date: {record['date']!r}, YYYY-MM-DD is expected"
    figures = record.get("rows", record.get("results"))
    if not isinstance(figures, (dict, list)) or not figures:
        return "rows, results: missing or empty"
    for row in figures if isinstance(figures, list) else []:
        if not isinstance(row, dict):
            return f"rows: {row!r}, objects are expected"
        if "ms" in row and row["ms"] is None and not row.get("reason"):
            return f"rows: {row.get('peer')}: a time or a reason is expected"
    if isinstance(figures, dict) and figures.get("agree", True) is not True:
        return f"results: agree is {figures['agree']!r}: evidence of a failure is no evidence"
    if record.get("failed", 0) != 0:
        return f"failed: {record['failed']}: evidence of a failure is no evidence"
    if record["command"].startswith("flpgen check"):
        return check_cases(record)
    return check_host(record["host"]) if "host" in record else None


@pytest.fixture(scope="module")
def generator():
    flpgen = os.environ["FLP_TEST_FLPGEN"]
    if not Path(flpgen).exists():
        pytest.skip("this build has no generator")
    return kernels.Generator(flpgen)


def staleness(record, generator, is_long):
    """Why a record may not be what the tree's kernels do, or None."""
    if generator.sources_hash.startswith(record["sources_hash"]):
        return None
    stated = f"recorded with sources {record['sources_hash'][:12]}, the tree has {generator.sources_hash[:12]}"
    if "kernels" not in record:
        return f"STALE: {stated}"
    if not is_long:
        return f"{stated}; ./setup.sh test --all compares the kernels of its {len(kernels.specs_of(record))} specs"
    changed = kernels.differences(record, generator)
    return f"STALE: {stated}, which makes otherwise: {', '.join(changed)}" if changed else None


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.name)
def test_record(path, generator):
    record = json.loads(path.read_text())
    fault = check_record(record)
    assert fault is None, f"{path.relative_to(TREE)}: {fault}"
    reason = staleness(record, generator, os.environ.get("FLP_TEST_LONG") == "1")
    if reason:
        warnings.warn(f"{path.name}: {reason}")
        pytest.skip(reason)


SPEC = "--vocab 331 --hidden 40 --dtype bf16 --entropy forward"


@pytest.fixture
def record(generator):
    """A benchmark's record, made with other sources but the same kernels."""
    return {**GOOD, "command": f"flpgen bench {SPEC} --rows 64 --json=x.json", "kernels": generator.digests([SPEC])}


def test_equal_kernels_are_current_whatever_the_hash(record, generator):
    assert staleness(record, generator, is_long=True) is None
    assert set(record["kernels"]) == {"forward sm_90a", "forward_short sm_90a", "rows sm_80"}


def test_other_kernels_are_stale_and_named(record, generator):
    record["kernels"]["forward sm_90a"]["sha256"] = "0" * 64
    assert staleness(record, generator, is_long=True).endswith("which makes otherwise: forward sm_90a")


def test_without_kernels_another_hash_is_stale(record, generator):
    del record["kernels"]
    assert staleness(record, generator, is_long=False).startswith("STALE: recorded with sources 000000000000")
    assert staleness({**record, "sources_hash": generator.sources_hash}, generator, is_long=False) is None


def test_kernels_are_compared_in_the_long_form(record, generator):
    assert "--all compares the kernels of its 1 spec" in staleness(record, generator, is_long=False)


LAID_OUT = """{
 "gpu": "a GPU",
 "sources_hash": "%s",
 "command": "flpgen bench %s --json=x.json",
 "rows": [
  {"ms":1.50}
 ]
}
"""


def restamped(folder, generator, before):
    path = folder / "record.json"
    path.write_text(LAID_OUT % (before.sources_hash, SPEC))
    fine, text = kernels.restamp(path, generator, before)
    return fine, text, path.read_text()


class Before(kernels.Generator):
    """The same generator under another hash; or, with ptx, one that makes other bytes."""

    def __init__(self, flpgen, changes=False):
        super().__init__(flpgen)
        self.sources_hash, self.changes = "ab" * 32, changes

    def kernels(self, spec):
        return {(name, digest[::-1] if self.changes else digest) for name, digest in super().kernels(spec)}


def test_a_record_is_carried_over_a_change_that_keeps_its_kernels(tmp_path, generator):
    fine, text, record = restamped(tmp_path, generator, Before(generator.flpgen))
    assert fine and text == "restamped, 3 kernels equal to the byte"
    now = json.loads(record)
    assert now["sources_hash"] == generator.sources_hash and now["sources_hash_before"] == ["ab" * 32]
    assert now["kernels"] == generator.digests([SPEC]) and '{"ms":1.50}' in record
    (tmp_path / "record.json").write_text(record.replace(generator.sources_hash, "cd" * 32))
    again = Before(generator.flpgen)
    again.sources_hash = "cd" * 32
    assert kernels.restamp(tmp_path / "record.json", generator, again)[0]
    assert json.loads((tmp_path / "record.json").read_text())["sources_hash_before"] == ["ab" * 32, "cd" * 32]


def test_a_record_is_not_carried_over_a_change_of_its_kernels(tmp_path, generator):
    fine, text, record = restamped(tmp_path, generator, Before(generator.flpgen, changes=True))
    assert not fine and text == "STALE in forward sm_90a, forward_short sm_90a, rows sm_80: left as it is"
    assert record == LAID_OUT % ("ab" * 32, SPEC)


def test_a_record_of_a_third_generator_is_left_alone(tmp_path, generator):
    path = tmp_path / "record.json"
    path.write_text(LAID_OUT % ("12" * 32, SPEC))
    assert "left as it is" in kernels.restamp(path, generator, Before(generator.flpgen))[1]
    assert path.read_text() == LAID_OUT % ("12" * 32, SPEC)


def case(options, **fields):
    """A row of `flpgen check`, of an exact output."""
    return {"case": "random", "rungs": ["jit"], "shape": "3x9x8", "dtype": "bf16", "options": options, "checks": 1,
            "pass": True, "outputs": {}, "exact": ["logprob bits"], **fields}


GOOD = {"command": "flpgen bench", "date": "2026-01-31", "gpu": "a GPU", "driver": "1", "sources_hash": "0" * 64,
        "results": {"ms": 1}}


def test_a_fault_of_a_record_is_named():
    names = {"record": lambda **fields: {**GOOD, **fields}, "case": case}
    transcripts.check(GOLDEN / "faults.txt", lambda text: exec(text, names),
                      lambda call: [check_record(eval(call, names)) or "whole"])


def test_what_a_record_ran():
    names = {"ran": lambda command, *rows: kernels.specs_of({"command": command, "rows": list(rows)}), "case": case}
    transcripts.check(GOLDEN / "specs.txt", None, lambda call: eval(call, names) or ["nothing"])
