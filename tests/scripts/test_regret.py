"""tests/gpu/regret.py: the shapes it draws, what it counts as regret, and that it goes on where a record stops."""
import json
import sys

import pytest

import regret


def test_the_shapes_are_those_of_the_seed():
    shapes = regret.draw()
    assert len(shapes) == 30 and shapes == regret.draw() and shapes != regret.draw(seed=1)
    assert len({(shape["vocab"], shape["hidden"]) for shape in shapes}) == 30
    for shape in shapes:
        for key, (least, most), step in (("vocab", regret.VOCAB, 64), ("hidden", regret.HIDDEN, 64),
                                         ("rows", regret.ROWS, 256)):
            assert shape[key] % step == 0 and least - step <= shape[key] <= most + step
    assert sum(shape["training"] for shape in shapes) == 15


@pytest.mark.parametrize("included, ratio, expected", [
    (None, 0.95, 1 / 0.95 - 1), (None, 1.0, 0), ({"cut": "x", "ratio": 1.2}, 0.96, 0.25),
    ({"cut": "x", "ratio": 0.99}, 1.0, 0)])
def test_regret_is_what_the_untuned_tiling_loses(included, ratio, expected):
    assert regret.regret_of({"kind": "dz", "included": included, "ratio": ratio}) == pytest.approx(expected)


@pytest.fixture
def tool(monkeypatch):
    """Stands in for flpgen: the second shape has a neighbour's tiling, which loses a tenth."""
    asked = []

    def run(command, **environment):
        asked.append(command)
        if command[1] == "doctor":
            return {"generator": {"sources": "a" * 16}}
        if command[1] == "explain":
            near = len([c for c in asked if c[1] == "explain"]) == 2
            return {"plan": {"rung": "jit", "cut": "as the nearest" if near else "default",
                             "tune": "forward:stages=4" if near else ""}}
        included = {"cut": "stages=4", "status": "timed", "ratio": 1.1, "reason": ""} if "--include" in command else None
        step = {"kind": "forward", "chosen": "x", "ratio": 1.0, "noise": 0.01, "included": included}
        return {"gpu": "a GPU", "driver": 13000, "targets": [{"steps": [step]}]}

    monkeypatch.setattr(regret, "run", run)
    return asked


def call(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["regret.py", "--flpgen", "flpgen", *map(str, arguments)])
    regret.main()


def test_a_record_is_gone_on_with(tool, monkeypatch, tmp_path):
    out = tmp_path / "regret.json"
    call(monkeypatch, "--out", out, "--most", 1)
    call(monkeypatch, "--out", out, "--most", 1, "--resume")
    record = json.loads(out.read_text())
    assert [row["regret"] for row in record["rows"]] == [0, 0.1]
    assert [{key: row[key] for key in shape} for row, shape in zip(record["rows"], regret.draw())] == regret.draw()[:2]
    assert record["summary"] == {"shapes": 2, "median": 0.05, "worst": 0.1} and record["driver"] == "13.0"
    assert [command[-1] for command in tool if "--include" in command] == ["forward:stages=4"]


def test_a_record_of_other_sources_is_left_alone(tool, monkeypatch, tmp_path):
    out = tmp_path / "regret.json"
    call(monkeypatch, "--out", out, "--most", 1)
    before = out.read_text().replace("a" * 16, "b" * 16)
    out.write_text(before)
    with pytest.raises(SystemExit, match="of sources bbbbbbbbbbbb"):
        call(monkeypatch, "--out", out, "--resume")
    assert out.read_text() == before
