"""Measured results kept in the tree are whole, and say which templates they were measured with.

A record is one JSON object, tests/gpu/evidence/*.json or autotune/bench/*.json:

    {"command": "...",        what was run, so that it can be run again
     "date": "2026-01-31",
     "gpu": "NVIDIA H200", "driver": "580.65",
     "sources_hash": "<16 to 64 hex digits>",   templates and generator, as `flpgen doctor` prints them
     "rows": [...]}           or "results": {...}: figures with their units in their names; never empty. A record of
                              checks has "failed", their number, which must be 0. A row of a comparison (those of
                              python -m flp.bench have "peer") without a time has a "reason". One of a benchmark may have
     "host": {...}}           what calls cost the host, not in older records: forward_us, backward_us, their launches; of
                              steps of a loss step_us
A malformed record fails. A record of other templates than the tree's is reported STALE and counts as skipped: what it
says was true, and should be measured again.
"""

import datetime
import json
import os
import re
import warnings
from pathlib import Path

import pytest

TREE = Path(__file__).resolve().parents[2]
RECORDS = sorted([*TREE.glob("tests/gpu/evidence/*.json"), *TREE.glob("autotune/bench/*.json")])
TEXT_FIELDS = ("command", "gpu", "driver", "date", "sources_hash")


def check_host(host):
    """Why this does not say what calls cost the host, or None. A pass that was not measured is null."""
    for name in ("step",) if "step_us" in host else ("forward", "backward"):
        us, launches = host.get(f"{name}_us"), host.get(f"{name}_launches")
        if name == "backward" and us is None and launches is None:
            continue
        if not all(isinstance(value, (int, float)) and value > 0 for value in (us, launches)):
            return f"host: {name}_us {us!r} over {name}_launches {launches!r}, two numbers > 0 are expected"
    return None


def check_record(record):
    """Why this is not a record, or None."""
    if not isinstance(record, dict):
        return "not a JSON object"
    for field in TEXT_FIELDS:
        value = record.get(field)
        if not isinstance(value, str) or not value.strip():
            return f"{field}: {value!r}, a non-empty string is expected"
    if not re.fullmatch("[0-9a-f]{16,64}", record["sources_hash"]):
        return f"sources_hash: {record['sources_hash']!r}, 16 to 64 hexadecimal digits are expected"
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
    if record.get("failed", 0) != 0:
        return f"failed: {record['failed']}: evidence of a failure is no evidence"
    if "host" in record:
        return check_host(record["host"])
    return None


@pytest.fixture(scope="module")
def current_hash():
    header = Path(os.environ["FLP_TEST_BUILD"]) / "generated" / "flp_sources.h"
    return re.search(r'FLP_SOURCES_SHA256_HEX "([0-9a-f]{64})"', header.read_text()).group(1)


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.name)
def test_record(path, current_hash):
    record = json.loads(path.read_text())
    fault = check_record(record)
    assert fault is None, f"{path.relative_to(TREE)}: {fault}"
    if not current_hash.startswith(record["sources_hash"]):
        reason = f"STALE: recorded with sources {record['sources_hash'][:12]}, the tree has {current_hash[:12]}"
        warnings.warn(f"{path.name}: {reason}")
        pytest.skip(reason)


GOOD = {"command": "flpgen check", "date": "2026-01-31", "gpu": "a GPU", "driver": "1", "sources_hash": "0" * 64,
        "results": {"ms": 1}}


def test_check_accepts_a_whole_record():
    assert check_record(GOOD) is None


HOST = {"forward_us": 9.5, "forward_launches": 4, "backward_us": None, "backward_launches": None}


def test_check_accepts_host_times_and_records_without():
    assert check_record({**GOOD, "host": HOST}) is None
    assert check_record({**GOOD, "host": {**HOST, "backward_us": 30.5, "backward_launches": 10}}) is None
    assert check_record({**GOOD, "host": {"step_us": 40.5, "step_launches": 30}}) is None
    assert check_record({**GOOD, "host": {"step_us": None, "step_launches": 30}}).startswith("host: step_us")


@pytest.mark.parametrize("wrong", [{"forward_us": None}, {"forward_us": 0}, {"backward_us": 5}, {"backward_launches": 3},
                                   {"backward_us": 5, "backward_launches": 0}])
def test_check_refuses_half_a_host_time(wrong):
    assert check_record({**GOOD, "host": {**HOST, **wrong}}).startswith("host: ")


def test_check_accepts_a_row_with_a_time_or_a_reason():
    rows = [{"peer": "flp", "ms": 1.0}, {"peer": "cce", "ms": None, "reason": "not installed"}]
    assert check_record({**GOOD, "rows": rows}) is None


@pytest.mark.parametrize("field,value,fault", [
    ("command", None, "command"), ("gpu", "", "gpu"), ("driver", 5, "driver"), ("sources_hash", "0" * 15, "64 hex"),
    ("sources_hash", "G" * 64, "64 hex"), ("date", "yesterday", "YYYY-MM-DD"), ("results", {}, "results"), ("results", "fast", "results"), ("rows", [], "rows"),
    ("rows", [{"peer": "cce", "ms": None}], "rows: cce: a time or a reason"), ("rows", [3], "objects"),
    ("failed", 3, "failed")])
def test_check_names_the_fault(field, value, fault):
    assert fault in check_record({**GOOD, field: value})
