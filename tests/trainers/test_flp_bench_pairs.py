"""python -m flp.bench --op diverge on the CPU: a teacher beside the head, the products, the reference, and refusals."""
import flpgen_tool
import pytest
import torch
from flp_bench_tool import parsed, record_of, tensors_of
from test_evidence import check_record

import flp
from flp.bench import baseline, cases, main, pairs, sharp
from flp.report import records

TWO = ["--op", "diverge", "--teacher-hidden", "24"]


@pytest.mark.parametrize("words", [TWO, ["--op", "diverge"], ["--op", "diverge", "--one-head"]], ids=" ".join)
def test_scores_of_both_heads_differ_by_the_spread(words):
    tensors = tensors_of(parsed("--rows", "400", *words))
    depth = 24 if "24" in words else 16
    assert tensors.teacher.hidden.shape == (400, depth) and tensors.teacher.weight.shape == (96, depth)
    assert (tensors.teacher.weight is tensors.weight) == ("--one-head" in words)
    apart = pairs.scores_of(tensors.teacher.hidden, tensors.teacher.weight) - \
        pairs.scores_of(tensors.hidden, tensors.weight)
    assert 0.8 * pairs.SPREAD < apart.std() < 1.2 * pairs.SPREAD
    again = tensors_of(parsed("--rows", "400"))
    assert torch.equal(again.hidden, tensors.hidden) and torch.equal(again.weight, tensors.weight)


@pytest.mark.parametrize("words, products", [
    (TWO, [{"scores": 1, "teacher_scores": 1}, {"scores": 1, "teacher_scores": 1, "grad_hidden": 1, "grad_weight": 1},
           {"scores": 1, "teacher_scores": 1, "grad_hidden": 1}]),
    (["--op", "diverge", "--one-head"], [{"scores": 2}, None, {"scores": 2, "grad_hidden": 1}]),
    ([*TWO, "--payload", "--loss", "forward_kl"], [{"scores": 1}, None, {"scores": 1, "grad_hidden": 1}])])
def test_products_stand_once_for_each_head_and_gradient(words, products):
    masks = ["--grad", "hidden,weight"] if products[1] else []
    found = cases.cases_of(parsed(*words, *masks, "--grad", "hidden"), 6)
    assert [case.products for case in found] == [one for one in products if one]
    assert [case.name for case in found] == ["forward"] + ["step"] * (len(found) - 1)
    if words == TWO:
        assert found[0].flops == 2 * 6 * (16 + 24) * 96 and found[1].flops == 2 * 6 * (3 * 16 + 24) * 96


def test_the_teachers_product_has_its_own_depth():
    products = baseline.Baselines(tensors_of(parsed(*TWO)), ["scores", "teacher_scores"], torch.device("cpu"))
    for subject in products.subjects.values():
        subject.samples = [1.0]
    assert [row["tflops"] for row in products.rows()] == [2e-9 * 6 * depth * 96 for depth in (16, 24)]


def test_a_record_of_every_divergence(tmp_path, capsys):
    result = record_of(tmp_path / "a.json", *TWO, "--dtype", "fp32", "--loss", ",".join(flp.losses.DIVERGENCES),
                       "--grad", "hidden,weight", "--grad", "hidden", "--budget", "1G", "--peers", "trl-divergence",
                       "--skip", "trl-divergence=not here")
    assert check_record(result) is None
    page = records.Records()
    page.read(tmp_path / "a.json")
    assert page.rows == [] and page.left_out == len(result["rows"]), "charts are of one head"
    assert {row["reason"] for row in result["rows"] if row["peer"] != "flp"} == {"not here"}
    rows = [row for row in result["rows"] if row["peer"] == "flp"]
    assert len(rows) == 3 * 7 and {(row["op"], row["teacher_D"], row["upstream"]) for row in rows} == {
        ("diverge", 24, None), ("diverge", 24, "loss")}
    for row in rows:
        assert row["ratio"] > 0 and row["divergence"] > 1e-5, row
        assert (row["divergence_error"] is None) == bool(row["grads"]) == (row["loss_error"] is not None)
        assert all(row[name] < 1e-5 for name in ("divergence_error", "loss_error") if row[name] is not None), row
        assert all(row["grad_%s_error" % leaf] < 1e-3 for leaf in row["grads"]), row
    printed = capsys.readouterr().out
    assert "D=16 E=24 V=96 fp32, step, jsd, gradients of hidden: 3 GEMM baselines" in printed
    assert "teacher_scores  default" in printed and "divergence  loss" in printed


@pytest.mark.parametrize("words, title", [
    (["--op", "diverge", "--one-head"], "D=16 of one head V=96 fp32, step, reverse_kl"),
    ([*TWO, "--payload", "--loss", "forward_kl"], "E=24 V=96 fp32, step, forward_kl from a payload")])
def test_records_of_one_head_and_of_a_payload(tmp_path, capsys, words, title):
    result = record_of(tmp_path / "a.json", *words, "--dtype", "fp32", "--grad", "hidden", "--peers", "none")
    assert [row["gemms"] for row in result["rows"]] == ([2, 3] if "--one-head" in words else [1, 2])
    assert all(row["grad_hidden_error"] < 1e-3 for row in result["rows"] if row["grads"])
    assert title in capsys.readouterr().out


@pytest.mark.parametrize("policy", ["grpo", "ppo+k3"])
def test_records_of_a_policy_beside_its_reference(tmp_path, capsys, policy):
    result = record_of(tmp_path / "a.json", *TWO, "--dtype", "fp32", "--grad", "hidden", "--grad", "hidden,weight",
                       "--policy", policy, "--loss", "reverse_kl,jsd", "--peers", "trl-divergence")
    rows = [row for row in result["rows"] if row["peer"] == "flp"]
    assert [row["gemms"] for row in rows] == [3, 3, 4, 4] and {row["policy"] for row in rows} == {policy}
    assert all(row["loss_error"] < 1e-5 for row in rows), rows
    assert all(row["grad_%s_error" % leaf] < 1e-4 for row in rows for leaf in row["grads"]), rows
    assert "step, %s with jsd, gradients of hidden and weight: 4 GEMM" % policy in capsys.readouterr().out
    others = [row for row in result["rows"] if row["peer"] != "flp"]
    assert others and not any(row["ms"] for row in others)


@flpgen_tool.needs_flpgen
def test_sharp_rows_have_a_teacher_too(tmp_path, monkeypatch):
    monkeypatch.setattr(sharp, "command_path", lambda: flpgen_tool.FLPGEN)
    result = record_of(tmp_path / "a.json", "--op", "diverge", "--vocab", "600", "--hidden", "64", "--rows", "40",
                       "--teacher-hidden", "128", "--data", "policy", "--grad", "hidden,weight", "--peers", "none")
    assert {row["data"] for row in result["rows"]} == {"policy"} and result["rows"][0]["entropies"]["0.5"] < 2
    assert all(1e-5 < row["divergence"] < 0.01 for row in result["rows"])


def test_the_reference_over_chunks_and_of_a_sample_is_the_reference(monkeypatch):
    tensors = tensors_of(parsed(*TWO, "--rows", "40", "--dtype", "fp32"))
    case = cases.Case(40, 16, 96, loss="jsd", op=cases.DIVERGE)
    whole = pairs.Reference(tensors, 3).of(case)
    monkeypatch.setattr(pairs, "CHUNK_BYTES", 8 * 96 * 7)
    monkeypatch.setattr(pairs, "COLUMNS", 11)
    chunks = pairs.Reference(tensors, 3).of(case)
    for name in ("divergence", "grad_hidden", "grad_weight"):
        assert torch.allclose(getattr(whole, name), getattr(chunks, name))
    monkeypatch.setattr(pairs.reference, "AFFORDABLE_FLOPS", 0)
    monkeypatch.setattr(pairs.reference, "SAMPLE_ROWS", 7)
    part = pairs.Reference(tensors, 3).of(case)
    assert part.mean_loss is None and part.grad_weight is None and len(part.rows) == 7
    assert torch.allclose(part.divergence, whole.divergence[part.rows])
    assert torch.allclose(part.grad_hidden, whole.grad_hidden[part.rows])


@pytest.mark.parametrize("words, reason", [
    (["--teacher-hidden", "24"], "--teacher-hidden, --one-head, --payload, --policy: only with --op diverge"),
    (["--op", "diverge", "--teacher-hidden", "8"], "--teacher-hidden: 8 is not accepted; at least --hidden is, 16"),
    ([*TWO, "--one-head"], "--teacher-hidden: 24 is not accepted; with --one-head --hidden is, 16"),
    ([*TWO, "--softcap", "3"], "--op: diverge is not accepted with --softcap"),
    ([*TWO, "--entropy", "forward"], "--op: diverge is not accepted with --entropy"),
    ([*TWO, "--policy", "grpo"], "--policy: needs --grad hidden, or hidden,weight, and is not accepted with --payload"),
    ([*TWO, "--policy", "nll,ppo"], "--policy: 'nll,ppo' is not accepted; one of nll, reinforce, "),
    ([*TWO, "--policy", "grpo", "--grad", "hidden", "--dtype", "fp16"], "--dtype: fp16 is not accepted with --policy"),
    ([*TWO, "--payload"], "--payload: only with --loss forward_kl, without --one-head"),
    (["--op", "diverge", "--one-head", "--grad", "hidden,weight"],
     "--grad: weight is not accepted with --one-head or --payload"),
    ([*TWO, "--loss", "grpo"], "--loss: 'grpo' is not accepted; any of forward_kl, reverse_kl, jsd, "),
    (["--grad", "hidden", "--loss", "jsd"], "--loss: 'jsd' is not accepted; any of nll, "),
    ([*TWO, "--peers", "cce"], "--peers: 'cce' is not accepted; all, none, -NAME "),
    (["--peers", "liger-jsd"], "--peers: 'liger-jsd' is not accepted; all, none, -NAME ")])
def test_what_does_not_go_together_is_refused(capsys, words, reason):
    with pytest.raises(SystemExit) as end:
        main.main(["--device", "cpu", "--vocab", "96", "--hidden", "16", *words])
    assert end.value.code == 2 and "error: argument " + reason in capsys.readouterr().err
