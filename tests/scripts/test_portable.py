"""tests/gpu/portable.py without a GPU: what it makes of a benchmark's records and of products."""
import json
import sys

import portable
import pytest
from test_evidence import check_record

HEAD = {"gpu": "a GPU", "driver": "1", "sources_hash": "0" * 64, "date": "2026-01-31", "command": "flpgen bench"}


def test_a_pass_is_judged_by_the_best_product(tmp_path, monkeypatch):
    """Medians of both; a pass of three products by three of them."""
    out, products, passes = tmp_path / "portable.json", iter([4.0, 2.0, 3.0]), iter([9.9, 12.6])
    monkeypatch.setattr(portable, "built", lambda *_: ["gemm"])
    monkeypatch.setattr(portable, "products", lambda *_: {"128x128x32/4": 5.0, "256x128x64/3": next(products)})
    monkeypatch.setattr(portable, "bench", lambda *_: {**HEAD, "rows": [
        {"case": "forward", "mode": "keep", "gemms": 1, "ms": 3.0},
        {"case": "forward+backward", "mode": "save", "gemms": 3, "ms": next(passes)}]})
    monkeypatch.setattr(sys, "argv", ["portable.py", "--cutlass", "x", "--only=saved", "--json", str(out)])
    assert portable.main() == 0
    record = json.loads(out.read_text())
    assert check_record(record) is None and record["command"] == "tests/gpu/portable.py --only saved --rounds 2"
    assert [(row["pass"], row["gemm"], row["gemm_ms"], row["products"]) for row in record["rows"]] == [
        ("forward", "256x128x64/3", 3.0, 1), ("forward+backward", "256x128x64/3", 3.0, 3)]
    assert [row["ratio"] for row in record["rows"]] == pytest.approx([1.0, 11.25 / 9])
    assert all((row["problem"], row["N"], row["D"]) == ("saved", 8192, 4096) for row in record["rows"])


def test_lines_of_products_are_read(tmp_path):
    gemm = tmp_path / "gemm"
    gemm.write_text("#!/bin/sh\n[ $1 = 64 ] && [ $3 = 1024 ] && printf '128x128x32/4 1.5\\n256x128x64/3 1.25\\n'\n")
    gemm.chmod(0o755)
    assert portable.products([str(gemm)], 64, 1024) == {"128x128x32/4": 1.5, "256x128x64/3": 1.25}
