"""tests/gpu/fragmentation.py without a GPU: the loop, its record, what is counted, accepted and refused."""
import copy
import json
from types import SimpleNamespace

import pytest
import torch

import flp
import fragmentation
from flp.memory.timeline import Event, Level, Spans, Timeline
from flp_reference import doubles, problem, reference
from test_evidence import check_record


def tiny(**changes):
    sizes = fragmentation.parse(["--json", "-", "--tiny"])
    vars(sizes).update(changes)
    return sizes


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """-> exit status, the record"""
    out = tmp_path_factory.mktemp("fragmentation") / "record.json"
    code = fragmentation.main(["--tiny", "--json", str(out)])
    return code, json.loads(out.read_text())


@pytest.mark.long
def test_the_record_is_one_of_the_tree(measured):
    code, record = measured
    assert code == 0 and check_record(record) is None and record["gpu"] == "none"
    assert record["command"] == "tests/gpu/fragmentation.py --tiny --json record.json"
    assert [(row["method"], row["empty_cache"]) for row in record["rows"]] == [
        (method, place) for place in ("never", "inference", "training", "both") for method in fragmentation.METHODS]
    assert record["acceptance"]["missed"] == [] and record["acceptance"]["fragmentation_logprob_of_reserved"] == 0


@pytest.mark.long
def test_only_the_source_of_memory_differs(measured):
    rows = measured[1]["rows"]
    for row in rows:
        assert row["errors"] == [] and len(row["loss_actor"]) == len(row["loss_critic"]) == 3 and row["ms"] > 0
    losses = {method: [row["loss_actor"] + row["loss_critic"] for row in rows if row["method"] == method]
              for method in fragmentation.METHODS}
    assert losses["flp, torch"] == losses["flp, arena"]
    assert all(other == some[0] for some in losses.values() for other in some)
    assert losses["naive"][0] == pytest.approx(losses["flp, torch"][0], abs=1e-5)
    assert len(set(losses["naive"][0])) == 6


@pytest.mark.long
def test_on_the_cpu_memory_is_known_of_the_arena_only(measured):
    for row in measured[1]["rows"]:
        columns = {name: value for name, value in row.items() if name.endswith("_bytes")}
        assert columns.pop("device_used_bytes") is None and len(columns) == 7
        if row["method"] != "flp, arena":
            assert set(columns.values()) == {None} and row["growths"] is None
            continue
        assert columns["reserved_bytes"] == columns["arena_bytes"] >= columns["allocated_bytes"] > 0
        assert columns["fragmentation_logprob_bytes"] == 0 and row["growths"] == 3 * (2 + 2 * 2)


def test_the_loop_learns():
    loop = fragmentation.Loop(tiny(rate=1e-2), "flp, arena", "never")
    with loop.phase("inference"):
        ids, logprobs, advantage, rewards = loop.infer(12)
    assert torch.allclose(advantage.mean(), torch.zeros(()), atol=1e-5) and ids.shape == (4, 16)
    before = copy.deepcopy(loop.reference.state_dict())
    with loop.phase("training"):
        actor = [loop.update_actor(ids, logprobs, advantage).item() for _ in range(8)]
        critic = [loop.update_critic(ids, rewards).item() for _ in range(8)]
    assert actor[-1] < actor[0] - 0.05 and critic[-1] < 0.6 * critic[0]
    assert all(torch.equal(value, before[name]) for name, value in loop.reference.state_dict().items())


def test_gradients_reach_the_trunk_through_the_split():
    """The split backward pass gives the gradients of the whole one."""
    loop = fragmentation.Loop(tiny(), "naive", "never")
    ids, logprobs, advantage, _ = loop.infer(6)
    hidden = loop.response_hidden(loop.actor, ids)
    logprob = fragmentation.naive_logprob(hidden, loop.actor.head.weight, ids[:, 4:])
    loss, _ = flp.losses.policy_loss("ppo", logprob, advantage, old_logprob=logprobs[0], ref_logprob=logprobs[1],
                                     beta=0.1)
    loss.backward()
    want = [parameter.grad.clone() for parameter in loop.actor.parameters()]
    loop.update_actor(ids, logprobs, advantage)
    for got, wanted in zip(loop.actor.parameters(), want):
        assert torch.allclose(got.grad, wanted, atol=1e-6)


def test_the_naive_way_is_the_definition():
    hidden, weight, target, _ = problem(n=24)
    got = fragmentation.naive_logprob(hidden.view(4, 6, -1), weight, target.view(4, 6))
    assert torch.allclose(got.double().flatten(), reference(*doubles(hidden, weight), target)[0], atol=2e-5)


# ---- what is counted and accepted


def test_columns_of_a_device(monkeypatch):
    """Idle memory counts for the log-prob step if the step asked for it, wherever the growth that meets it is; what the
    step hands on, as the gradient that zero_grad frees, counts apart."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    spans, size = Spans(), 1 << 20
    for name, enter, leave in (("logprob", 10, 20), ("logprob", 30, 40)):
        spans.enter("inference", enter - 5), spans.enter(name, enter)
        spans.leave(name, leave), spans.leave("inference", leave + 2)
    line = Timeline(None, 0, spans.at).run([
        Event(6, "segment_alloc", 0, size), Event(12, "segment_alloc", size, 2 * size), Event(12, "alloc", size, size),
        Event(13, "segment_alloc", 5 * size, 3 * size), Event(13, "alloc", 5 * size, 3 * size),
        Level(14, "arena", 500, 500, True, 0), Level(15, "arena", 0, 0, False, 0),
        Event(21, "segment_alloc", 9 * size, size), Event(24, "free_requested", 5 * size, 3 * size),
        Event(25, "segment_alloc", 11 * size, size), Event(31, "free_requested", size, size),
        Event(50, "segment_free", size, 2 * size)])
    peaks = {"reserved": 1, "allocated": 2, "fragmentation": 3, "without_fragmentation": 4, "arena": 5, "growths": 6}
    seen = {"peaks": {"": peaks}, "device_used_peak": 7, "drift": {"reserved": 8}, "unmatched": 9, "truncated": False}
    profiler = SimpleNamespace(report={"devices": {"cuda:0": seen}}, timelines={"cuda:0": line})
    assert fragmentation.memory_columns(profiler, torch.device("cuda")) == {
        "reserved_bytes": 1, "allocated_bytes": 2, "fragmentation_bytes": 3, "without_fragmentation_bytes": 4,
        "arena_bytes": 5, "growths": 6, "fragmentation_logprob_bytes": size,
        "fragmentation_gradients_bytes": 3 * size, "device_used_bytes": 7, "drift_bytes": {"reserved": 8},
        "unmatched": 9, "truncated": False}


def rows_with(overhead, share):
    rows = [{"method": method, "empty_cache": place, "ms_iterations": [100.0, 50.0, 10.0], "reserved_bytes": 1000,
             "fragmentation_logprob_bytes": 0, "fragmentation_gradients_bytes": 300}
            for place in fragmentation.PLACES for method in fragmentation.METHODS]
    rows[2]["ms_iterations"] = [100 * overhead, 50 * overhead, 100.0]
    rows[5]["fragmentation_logprob_bytes"] = share
    rows[1]["fragmentation_logprob_bytes"] = 900
    return rows


@pytest.mark.parametrize("overhead,share,missed", [
    (1.019, 10, []), (1.03, 10, ["time_overhead"]), (1.0, 11, ["fragmentation_logprob_of_reserved"]),
    (1.03, 11, ["time_overhead", "fragmentation_logprob_of_reserved"])])
def test_what_is_accepted(overhead, share, missed):
    rows = rows_with(overhead, share)
    assert fragmentation.accepted(rows, on_gpu=True)["missed"] == missed
    assert fragmentation.accepted(rows, on_gpu=True)["fragmentation_gradients_of_reserved"] == 0.3  # not judged
    assert fragmentation.accepted(rows, on_gpu=False)["missed"] == []


def test_losses_that_are_wrong():
    sizes = tiny()
    base = {"loss_actor": [1.0, 2.0, 3.0], "loss_critic": [0.1, 0.1, 0.1]}
    assert fragmentation.errors_of(base, base, sizes) == []
    broken = {**base, "loss_critic": [0.1, float("nan"), 0.1]}
    assert fragmentation.errors_of(broken, base, sizes) == ["losses are not finite"]
    late = {**base, "loss_actor": [1.0, 2.0, 3.1]}
    assert fragmentation.errors_of(late, base, sizes) == ["losses differ by 0.033 (accepted: 0.0001)"]
    assert fragmentation.errors_of(late, base, tiny(device=torch.device("cuda"))) == []


@pytest.mark.parametrize("has_gpu, arguments, says", [
    (False, ["--json", "-"], "no CUDA device is usable; accepted: --tiny"), (False, [], "no CUDA device is usable"),
    (False, ["--json", "-", "--format", "jpg", "--tiny"], "--format"),
    (True, [], "--json: a run on a GPU leaves a record"),
    (False, ["--json", "-", "--tiny", "--plots", "plots"],
     "--plots: matplotlib is not installed; accepted: a run without pictures")])
def test_what_is_refused(has_gpu, arguments, says, capsys, monkeypatch):
    """Before anything is measured."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    monkeypatch.setattr(fragmentation.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit):
        fragmentation.parse(arguments)
    assert says in capsys.readouterr().err


def test_a_tiny_run_needs_no_record(monkeypatch, capsys):
    """As the documents have it: --tiny alone."""
    monkeypatch.setattr(fragmentation, "measure", lambda sizes: [])
    monkeypatch.setattr(fragmentation, "accepted", lambda rows, on_gpu: {"missed": []})
    assert fragmentation.main(["--tiny"]) == 0
    assert capsys.readouterr().out == ""


def test_places_of_one_round(monkeypatch):
    """Methods are compared where empty_cache() is never called: all rounds are of that, the other places get one."""
    timed = []
    monkeypatch.setattr(fragmentation, "timed", lambda sizes, *key: timed.append(key) or [1.0])
    monkeypatch.setattr(fragmentation, "row_of", lambda sizes, method, place, times: {"times": times})
    monkeypatch.setattr(fragmentation, "errors_of", lambda *_: [])
    monkeypatch.setattr(fragmentation, "show", lambda row: None)
    rows = fragmentation.measure(tiny(rounds=3))
    assert [len(row["times"]) for row in rows] == [3] * 3 + [1] * 9
    assert timed[12:15] == timed[15:18] == [(method, "never") for method in fragmentation.METHODS] and len(timed) == 18


def test_pictures_of_every_row(tmp_path):
    pytest.importorskip("matplotlib")
    sizes = tiny(plots=str(tmp_path / "plots"), format="svg", iterations=2)
    fragmentation.row_of(sizes, "flp, arena", "both", [1.0])
    assert [path.name for path in (tmp_path / "plots").iterdir()] == ["flp_arena_both.svg"]
