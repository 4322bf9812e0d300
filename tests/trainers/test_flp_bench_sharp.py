"""python -m flp.bench on rows as sharp as a trained model's, and with a tail: what is read, recorded and refused."""
import os

import flpgen_tool
import pytest
import torch
from flp_bench_tool import SHAPE, parsed, record_of

import flp
from flp.bench import cases, data, limits, main, options, ours, reference, sharp

KINDS = [kind for kind in sharp.KINDS if kind != sharp.RANDOM]
SHARP = ["--vocab", "600", "--hidden", "64", "--rows", "40"]
CPU = torch.device("cpu")
REPORT = torch.tensor([1.0, 512.0, 2, 8])  # of six rows


@pytest.fixture(autouse=True)
def command(monkeypatch):
    if flpgen_tool.FLPGEN:
        monkeypatch.setattr(sharp, "command_path", lambda: flpgen_tool.FLPGEN)


def sharp_data(kind, *arguments):
    chosen = parsed(*SHARP, "--data", kind, *arguments)
    return data.Data(chosen, data.Head(chosen, CPU), chosen.rows[0], CPU)


# ---- the rows ----

@flpgen_tool.needs_flpgen
@pytest.mark.parametrize("dtype", cases.DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_the_commands_own(tmp_path, kind, dtype):
    """What is measured on is what `flpgen bench --data` measures on, to the byte; sharper kinds have less entropy."""
    tensors = sharp_data(kind, "--dtype", dtype)
    written = flpgen_tool.flpgen("bench", *SHARP, "--dtype", dtype, "--data", kind, "--seed", 1, "--write-rows",
                                 tmp_path / "rows.safetensors")
    assert written.code == 0, written.err
    expected = sharp.read(tmp_path / "rows.safetensors")
    assert set(expected) == {"hidden", "weight", "target"} and expected["hidden"].dtype == data.TORCH_DTYPES[dtype]
    for name in expected:
        assert torch.equal(getattr(tensors, name), expected[name]), name
    scores = tensors.hidden.double() @ tensors.weight.double().t()
    logp = torch.log_softmax(scores, -1)
    found = sharp.quantiles(-(logp.exp() * logp).sum(-1))
    told = dict(reversed(pair.rstrip(")").split(" (")) for pair in written.out.split("s): ")[1].strip().split(", "))
    assert {name: float(value) for name, value in told.items()} == pytest.approx(found, rel=0.01, abs=1e-4)
    assert tensors.weight.double().norm(dim=1).sub(1).abs().max() < 0.01


@flpgen_tool.needs_flpgen
def test_kinds_differ_in_their_entropies():
    medians = [reference.Reference(sharp_data(kind), None, 1).entropy.median().item() for kind in KINDS]
    random = reference.Reference(sharp_data("random"), None, 1).entropy.median().item()
    assert medians == sorted(medians) and 2 * medians[0] < medians[-1] < random


@flpgen_tool.needs_flpgen
def test_a_head_with_bias_softcap_and_several_numbers_of_rows():
    chosen = parsed(*SHARP[:4], "--rows", "8,12", "--data", "text", "--bias", "--softcap", "20", "--seed", "3")
    head = data.Head(chosen, CPU)
    assert head.bias.shape == (600,) and {n: made["hidden"].shape[0] for n, made in head.made.items()} == {8: 8, 12: 12}
    for n in chosen.rows:
        tensors = data.Data(chosen, head, n, CPU)
        assert tensors.weight is head.weight and tensors.target.shape == (n,)
        assert reference.Reference(tensors, chosen.softcap, 1).entropy.median() < 3
    assert not torch.equal(head.weight, data.Head(parsed(*SHARP, "--data", "text"), CPU).weight), "another seed"


@flpgen_tool.needs_flpgen
def test_the_command_names_what_is_computed(tmp_path):
    chosen = options.parse(["--vocab", "96", "--hidden", "16", "--device", "cuda:3", "--data", "base", "--softcap",
                            "2.5", "--bias", "--seed", "7", "--dtype", "fp16"])
    words = sharp.command_of(chosen, 8, "x")
    assert " ".join(words[1:]) == "bench --vocab 96 --hidden 16 --rows 8 --dtype fp16 --data base --seed 7 " \
                                  "--write-rows x --quiet --bias --softcap 2.5 --device 3"


def test_the_command_is_the_one_beside_the_library(tmp_path, monkeypatch):
    monkeypatch.undo()
    (tmp_path / "bin").mkdir()
    (tmp_path / "path").mkdir()
    monkeypatch.setattr(sharp._c, "library_path", lambda: str(tmp_path / "lib" / "libflp.so"))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    with pytest.raises(limits.Unavailable, match="needs the command flpgen, .* neither beside libflp nor on PATH"):
        sharp.command_path()
    for folder in ("path", "bin"):
        (tmp_path / folder / "flpgen").write_text("#!/bin/sh\n")
        os.chmod(tmp_path / folder / "flpgen", 0o755)
        assert sharp.command_path() == str(tmp_path / folder / "flpgen")


def test_a_command_that_fails_says_why(tmp_path, monkeypatch, capsys):
    script = tmp_path / "flpgen"
    script.write_text("#!/bin/sh\necho 'warning' >&2\necho 'flpgen bench: no memory' >&2\nexit 3\n")
    script.chmod(0o755)
    monkeypatch.setattr(sharp, "command_path", lambda: str(script))
    assert main.main([*SHAPE, "--quiet", "--data", "policy"]) == 3
    assert "flp.bench: --data policy: the rows could not be made: flpgen bench: no memory" in capsys.readouterr().err


# ---- records ----

@flpgen_tool.needs_flpgen
def test_a_record_names_its_data(tmp_path, capsys):
    words = ["--peers", "torch-fp32", "--grad", "hidden,weight", "--dtype", "fp32"]
    result = record_of(tmp_path / "a.json", *SHARP, "--data", "policy", *words)
    assert {row["data"] for row in result["rows"]} == {"policy"}
    fractions = ["%g" % fraction for fraction in sharp.FRACTIONS]
    assert all(list(row["entropies"]) == fractions for row in result["rows"])
    printed = capsys.readouterr().out
    assert "data: policy; entropies of 40 rows in nats (quantiles): " in printed
    assert "fp32, policy rows, forward" in printed
    assert all(row[name] < 1e-4 for row in result["rows"] for name in ("logprob_error", "grad_hidden_error")
               if row.get(name) is not None)
    random = record_of(tmp_path / "b.json", *words, "--no-bare")
    assert {row["data"] for row in random["rows"]} == {"random"}
    assert random["rows"][0]["entropies"]["0.5"] > 2 and "data:" not in capsys.readouterr().out


# ---- the tail ----

def test_a_tail_is_a_number_a_quotient_or_a_power():
    for text in ("2**-9", "2^-9", "1/512", "0.001953125"):
        assert parsed("--grad", "hidden", "--tail", text).tail == 2.0 ** -9
    assert parsed().tail is None


def test_the_tail_is_a_row_beside_flp(tmp_path, monkeypatch, capsys):
    """With a binding that takes the keyword and leaves nothing out."""
    given = []

    def keywords(self, case):
        given.append(ours_keywords(self, case))
        return {name: value for name, value in given[-1].items() if name != "tail"}

    ours_keywords = ours.FlpTail.keywords
    monkeypatch.setattr(ours.FlpTail, "keywords", keywords)
    monkeypatch.setattr(ours.FlpTail, "outputs", lambda self, device: setattr(self, "report", REPORT) or {})
    result = record_of(tmp_path / "a.json", "--peers", "none", "--grad", "hidden,weight", "--tail", "2**-9")
    assert [(row["peer"], row["case"], row["ms"] is not None) for row in result["rows"]] == [
        ("flp", "forward", True), ("flp", "forward+backward", True),
        ("flp, tail", "forward", False), ("flp, tail", "forward+backward", True)]
    exact, tail = result["rows"][1], result["rows"][3]
    assert tail["tail"] == pytest.approx(2.0 ** -9, rel=1e-5) and "tail" not in exact
    assert tail["gemms"] == exact["gemms"] == 4
    assert tail["tail_report"] == {"left": 1, "sum": 512, "bound": 1, "dense_rows": 2, "columns": 8, "columns_a_row": 2}
    assert result["rows"][2]["reason"] == "is flp without gradients, which alone have a tail"
    assert {keywords["tail"] for keywords in given} == {2.0 ** -9}
    assert "note: flp, tail: leaves out as much" in capsys.readouterr().out


@pytest.mark.skipif("tail" not in flp.linear_logprob.__code__.co_varnames, reason="this binding has no tail mode")
def test_the_binding_takes_the_tail(tmp_path):
    words = ["--grad", "hidden,weight", "--tail", "2**-9", "--no-bare"]
    result = record_of(tmp_path / "a.json", "--peers", "none", *words)
    row = result["rows"][3]
    assert row["ms"] > 0 and row["grad_hidden_error"] < 0.02
    assert row["tail_report"]["left"] <= row["tail_report"]["bound"]


@pytest.mark.parametrize("words, call, case", [
    (["--grad", "hidden,weight", "--loss", "grpo+k3,nll", "--accumulate"], "policy_loss", "step"),
    (["--grad", "hidden", "--loss", "ppo"], "policy_loss", "step"),
    (["--frozen", "--entropy", "none,forward"], "linear_logprob", "forward+backward")])
def test_the_tail_of_a_loss_and_of_a_frozen_head(tmp_path, monkeypatch, words, call, case):
    """Every call of the contender has the bound and its report, none of flp's own has."""
    given, function = [], getattr(flp, call)

    def spy(*operands, **keywords):
        given.append((keywords.get("tail"), "tail_report" in keywords))
        return function(*operands, **keywords)

    monkeypatch.setattr(flp, call, spy)
    result = record_of(tmp_path / "a.json", "--peers", "none", "--tail", "2**-9", "--no-bare", *words)
    rows = [row for row in result["rows"] if row["case"] == case]
    assert [row["peer"] for row in rows if "tail" in row] == [cases.TAIL] * (len(rows) // 2)
    assert {row["peer"] for row in rows if "tail" not in row} == {"flp"} and all(row["ms"] > 0 for row in rows)
    assert set(given) == {(None, False), (2.0 ** -9, True)}
    for row in rows:
        assert row["grad_hidden_error"] < 0.02 and (row["grad_weight_error"] or 0) < 0.02
        assert "tail_report" not in row or row["tail_report"]["left"] <= row["tail_report"]["bound"]
