"""flp.policy_loss: upstream gradients, budgets, the log, losses from files."""
import math
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from flp_reference import DEVICE

import documents
import flp
from flp import losses
from flp._library import _programs

B, T, D, V = 3, 6, 16, 53
GENERATOR = Path(os.environ.get("FLP_TEST_BUILD", "")) / "lib" / "libflpgen.so"


class Batch:
    """Tensors of one update; the old and reference policies are near the present one."""

    def __init__(self):
        generator = torch.Generator().manual_seed(5)

        def draw(*shape):
            return torch.randn(*shape, generator=generator).to(DEVICE)

        self.hidden, self.weight = draw(B, T, D).requires_grad_(), (draw(V, D) / 2).requires_grad_()
        self.target = torch.randint(V, (B, T), generator=generator).to(DEVICE)
        self.advantage = draw(B)
        exact = torch.log_softmax(self.scores().detach(), -1)
        logprob = exact.gather(-1, self.target[..., None])[..., 0]
        self.old = (logprob + 0.3 * draw(B, T)).float()
        self.ref = (logprob + 0.4 * draw(B, T)).float()
        self.mask = (torch.arange(T)[None] < torch.tensor([6, 2, 4])[:, None]).to(DEVICE)

    def scores(self):
        return self.hidden.double() @ self.weight.double().t()

    @property
    def leaves(self):
        return [self.hidden, self.weight]

    def rows(self):
        """What flp.losses and flp.policy_loss take alike."""
        return {"old_logprob": self.old, "ref_logprob": self.ref, "mask": self.mask, "length": T, "beta": 0.1}

    def fused(self, rule, **options):
        return flp.policy_loss(rule, self.hidden, self.weight, self.target, self.advantage,
                               **{**self.rows(), **options})


def assert_near(got, want, tolerance):
    assert (got.double() - want.double()).abs().max() <= tolerance * want.double().abs().max()


def test_upstream_gradients_multiply_and_come_once():
    batch = Batch()
    plain = torch.autograd.grad(batch.fused("ppo")[0], batch.leaves)
    loss, _ = batch.fused("ppo")
    for got, expected in zip(torch.autograd.grad(loss * -0.5, batch.leaves), plain):
        assert torch.equal(got, -0.5 * expected)
    loss, _ = batch.fused("ppo")
    loss.backward(retain_graph=True)
    assert torch.equal(batch.hidden.grad, plain[0]) and torch.equal(batch.weight.grad, plain[1])
    loss, _ = batch.fused("ppo")
    first, = torch.autograd.grad(loss, batch.hidden, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        first.sum().backward()


def test_it_composes_with_what_comes_before_and_after():
    batch, layer = Batch(), torch.nn.Linear(D, D).to(DEVICE)
    embedded = batch.hidden.detach()

    def through(function):
        layer.zero_grad()
        loss, _ = function(layer(embedded))
        (2 * loss + layer.weight.square().sum()).backward()
        return layer.weight.grad.clone()

    rows = batch.rows()
    got = through(lambda h: flp.policy_loss("grpo", h, batch.weight, batch.target, batch.advantage, **rows))
    want = through(lambda h: losses.policy_loss("grpo", flp.linear_logprob(h, batch.weight, batch.target),
                                                batch.advantage, **rows))
    assert_near(got, want, 1e-5)


def test_without_gradients_it_scores(engine):
    batch = Batch()
    with torch.no_grad():
        loss, metrics = batch.fused("cispo", entropy_weight=0.1)
    want, wanted = batch.fused("cispo", entropy_weight=0.1)
    assert not loss.requires_grad and torch.equal(loss, want)
    assert all(torch.equal(metrics[name], wanted[name]) for name in wanted)


def test_the_budget_bounds_the_step():
    batch = Batch()
    with pytest.raises(flp.BudgetError, match="budget: 100 bytes"):
        batch.fused("grpo", budget=100)


def test_rules_of_sequences_report_how_they_run(monkeypatch):
    logged = []
    monkeypatch.setattr("flp._functions._policy._logged", set())
    flp.set_log(lambda level, text: logged.append(text))
    try:
        batch = Batch()
        batch.fused("gspo"), batch.fused("gspo"), batch.fused("grpo")
    finally:
        flp.set_log(None)
    assert [text for text in logged if "gspo pools" in text and "mode recompute" in text] == logged


def test_the_snippet_of_the_manual_runs(capsys):
    names = {}
    exec(documents.python_block("grad_weight_accumulate="), names)
    assert names["main_grad"].abs().sum() > 0 and names["hidden"].grad.abs().sum() > 0 and names["head"].grad is None
    assert capsys.readouterr().out.count("clip_fraction") == 2


# ---- losses from files ----

MINE = textwrap.dedent("""
    return {
      parameters = {margin = {default = 0.1, min = 0}}, vectors = {"reward", "unused"},
      loss = function(row, p)
        local ratio = exp(row.logprob - row.old_logprob)
        return -row.weight * min(ratio, 1 + p.margin) * row.reward, {ratio = ratio}
      end,
    }""")


@pytest.fixture
def mine(tmp_path, monkeypatch):
    if not GENERATOR.exists():
        pytest.skip("no libflpgen in this build")
    monkeypatch.setenv("FLP_JIT_LIBRARY", str(GENERATOR))
    (tmp_path / "mine.lua").write_text(MINE)
    return str(tmp_path / "mine.lua")


def test_a_loss_of_a_file(mine, engine):
    batch, reward = Batch(), torch.randn(B, T, generator=torch.Generator().manual_seed(2)).to(DEVICE)

    def want_of(margin, beta):
        logprob = torch.log_softmax(batch.scores(), -1).gather(-1, batch.target[..., None])[..., 0]
        ratio, d = (logprob - batch.old).exp(), logprob - batch.ref
        terms = -torch.clamp(ratio, max=1 + margin) * reward + beta * (torch.expm1(-d) + d)
        return terms[batch.mask].mean(), ratio[batch.mask].mean()

    for margin, beta in ((0.1, 0.0), (0.4, 0.2)):
        loss, metrics = flp.policy_loss(
            mine, batch.hidden, batch.weight, batch.target, old_logprob=batch.old, mask=batch.mask, beta=beta,
            ref_logprob=batch.ref, parameters={} if margin == 0.1 else {"margin": margin},
            vectors={"reward": reward, "unused": reward})
        want, ratio = want_of(margin, beta)
        assert math.isclose(loss.item(), want.item(), rel_tol=1e-5)
        assert math.isclose(metrics["ratio"].item(), ratio.item(), rel_tol=1e-5)
        assert "clip_fraction" not in metrics and ("kl" in metrics) == (beta != 0)
        for got, expected in zip(torch.autograd.grad(loss, batch.leaves), torch.autograd.grad(want, batch.leaves)):
            assert_near(got, expected, 1e-5)


@pytest.mark.parametrize("options, words", [
    ({"vectors": {}}, "vectors['reward'] is missing"),
    ({"vectors": {"reward": 1, "prize": 2}}, "vectors is 'prize' (accepted: reward, unused)"),
    ({"parameters": {"limit": 1}}, "parameters is 'limit' (accepted: margin)"),
    ({"parameters": {"margin": -1}}, "margin"),
    ({"clip": (0.1, 0.1)}, "clip is (0.1, 0.1)"),
])
def test_what_a_file_does_not_take_is_named(mine, engine, options, words):
    batch, given = Batch(), torch.ones(B, T, device=DEVICE)
    options = {"vectors": {"reward": given, "unused": given}, **options}
    options["vectors"] = {name: given for name in options["vectors"]}
    with pytest.raises((ValueError, TypeError)) as caught:
        batch.fused(mine, **{**options, "beta": 0.0, "ref_logprob": None})
    assert words in str(caught.value)


def test_a_file_that_is_no_loss(mine, tmp_path):
    (tmp_path / "broken.lua").write_text("return function(row) return row.logprob + end")
    with pytest.raises(flp.CompileError, match="broken.lua:1:"):
        Batch().fused(str(tmp_path / "broken.lua"))
    with pytest.raises(flp.FileError, match="nowhere.lua cannot be read"):
        Batch().fused("nowhere.lua")


ENDLESS = {
    "while.lua": "while true do end",
    "rep.lua": "while true do local s = string.rep('', 1 << 20) end",
    "move.lua": "table.move({}, 1, 1 << 62, 2)",
    "compare.lua": "local a, b = ('x'):rep(16000), ('x'):rep(15999) .. 'x' while true do local c = a == b end",
}


@pytest.mark.parametrize("name", ENDLESS)
def test_a_file_without_an_end_is_stopped(name, tmp_path):
    (tmp_path / name).write_text(f"{ENDLESS[name]} return function(row) return row.logprob end")
    with pytest.raises(flp.CompileError, match=f"{name}:1: the loss ran 2000000 steps without an end"):
        Batch().fused(str(tmp_path / name))


def test_an_interrupt_is_seen_between_files_without_an_end(tmp_path):
    (tmp_path / "while.lua").write_text(ENDLESS["while.lua"])
    script = """if True:
        import signal, sys, flp
        from flp._library import _programs
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
        print("ready", flush=True)
        while True:
            try:
                _programs.of_file(sys.argv[1])
            except flp.CompileError:
                pass
    """
    with subprocess.Popen([sys.executable, "-c", script, tmp_path / "while.lua"], text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE) as child:
        try:
            assert child.stdout.readline() == "ready\n"
            child.send_signal(signal.SIGINT)
            assert "KeyboardInterrupt" in child.communicate(timeout=600)[1]
        finally:
            child.kill()


def test_files_need_the_generator(tmp_path, monkeypatch):
    (tmp_path / "mine.lua").write_text(MINE)
    monkeypatch.setenv("FLP_JIT_LIBRARY", str(tmp_path / "absent.so"))
    with pytest.raises(flp.LibraryError, match="needs libflpgen, which could not be loaded from .*absent.so"):
        Batch().fused(str(tmp_path / "mine.lua"))


def test_programs_report_what_they_read():
    program = _programs.builtin("grpo+k3+entropy")
    assert program.name == "grpo+k3+entropy"
    assert sorted(program.metrics) == ["clip_fraction", "entropy", "kl", "kl_old", "ratio"]
    assert sorted(program.parameters) == ["beta", "clip_high", "clip_low", "entropy_weight"]
    assert program.parameters["clip_low"] == (0.2, 0.0, 1.0) and not program.vectors
    assert program.inputs == {"logprob", "entropy", "old_logprob", "ref_logprob", "advantage", "weight"}


def test_a_step_is_explained():
    batch = Batch()
    info = flp.explain(batch.hidden, batch.weight, batch.target, loss="grpo+k3")
    assert info.step["products"] == info.forward["products"] + info.backward["products"]
    assert info.step["bytes"] > 0 and not flp.explain(batch.hidden, batch.weight, batch.target).step
