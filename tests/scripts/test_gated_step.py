"""tests/gpu/gated_step.py: the whole script without a GPU, and that it catches what it is there for."""
import json

import pytest
import torch

import flp
import gated_step
from test_evidence import check_record

ON_CPU = ["--cpu", "--rounds", "3"]


def test_the_script_writes_a_whole_record(tmp_path, capsys):
    path = tmp_path / "gated.json"
    assert gated_step.main([*ON_CPU, "--json", str(path)]) == 0
    record = json.loads(path.read_text())
    assert check_record(record) is None and record["sources_hash"] == flp.sources_id()
    assert record["command"] == "tests/gpu/gated_step.py --cpu --rounds 3 --json gated.json"
    rows = {row["case"]: row for row in record["rows"]}
    assert 24 - 8 <= rows["gated step, sequences"]["kept_rows"] <= 24 - 1
    assert rows["gated step, tokens"]["kept_rows"] == 4     # ⌈0.03·n⌉ of those that are scored
    for row in rows.values():
        assert row["errors"] == [] and row["ms"] > 0 and row["target"] is None
    bound = rows["forward"]["ms"] + 0.03 * rows["backward"]["ms"]
    assert rows["gated step, tokens"]["bound_ms"] == pytest.approx(bound, rel=1e-4)
    assert rows["gated step, tokens"]["ratio"] == pytest.approx(rows["gated step, tokens"]["ms"] / bound, rel=1e-4)


class Graph:
    """A stand-in for a captured call: a replay fills the same tensors, with one of them forgotten if asked to."""

    def __init__(self, forgets=None):
        self.forgets = forgets

    def __call__(self, call):
        results = tuple(result.clone() for result in call())

        def replay():
            for i, (old, new) in enumerate(zip(results, call())):
                if i != self.forgets:
                    old.copy_(new)

        return replay, results


def case_of(monkeypatch, capture):
    options = gated_step.parse(ON_CPU)
    weight = torch.randn(options.vocab, options.hidden, requires_grad=True)
    monkeypatch.setattr(gated_step, "capture", capture)
    monkeypatch.setattr(gated_step, "without_waiting", lambda call: call())
    batches = [gated_step.Batch(options, weight, seed, ragged=seed == 2) for seed in (1, 2, 3)]
    assert batches[1].ends.diff().unique().numel() > 1
    case = gated_step.Case("a case", False, options, *batches, True)
    case.subject.samples = [2.0]
    return case.row({"forward": 1.0, "backward": 10.0}, options)


def test_a_graph_is_replayed_on_other_data(monkeypatch):
    row = case_of(monkeypatch, Graph())
    assert row["graph"] is True and row["bound_ms"] == 1.3
    assert row["errors"] == ["ratio 1.538 is above the target 1.15"]


@pytest.mark.parametrize("place, name", list(enumerate(["loss", "kept", "grad_hidden", "grad_weight"])))
def test_a_replay_that_reads_old_data_is_caught(monkeypatch, place, name):
    row = case_of(monkeypatch, Graph(forgets=place))
    assert row["errors"][0] == "%s is not that of the eager step" % name


def test_a_step_that_cannot_be_captured_is_caught(monkeypatch):
    def capture(call):
        raise RuntimeError("operation not permitted when stream is capturing")

    row = case_of(monkeypatch, capture)
    assert row["graph"] is False and row["errors"][0].startswith("cannot be captured: operation not permitted")


def test_without_a_gpu_the_script_reports_it(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gated_step.main([]) == 2
    assert "--cpu tries the script without" in capsys.readouterr().err
