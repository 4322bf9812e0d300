"""What users read: every Python block of the documents runs, every public function documents its arguments and
errors."""
import ast
import contextlib
import importlib
import inspect
import re
import types

import pytest
import torch

import flp
import flp_megatron
import flp_standin_lm
from documents import blocks
from flp_reference import problem
from test_flp_adapters import hosts  # noqa: F401

SNIPPETS = [block.text for block in blocks("python")]


def operands(vocab=331):
    """The names that snippets take for given: hidden states, head, tokens."""
    hidden, weight, tokens, _ = (None if tensor is None else tensor.cpu() for tensor in problem(vocab=vocab, depth=16))
    head = torch.nn.Linear(16, vocab, bias=False)
    head.weight.data = weight
    return {"flp": flp, "torch": torch, "hidden": hidden.requires_grad_(), "lm_head": head, "tokens": tokens}


def run(text, **names):
    """Runs the one snippet that holds this text -> its names."""
    snippet, = (snippet for snippet in SNIPPETS if text in snippet)
    names = {**operands(), **names}
    exec(snippet, names)
    return names


# By words that no other snippet has: what is given besides, and what must hold of its names.
MADE = {
    "flp.policy_loss(\"grpo\", hidden, head.weight": (  # of README.md
        {}, lambda n: n.hidden.grad.abs().sum() > 0 and "clip_fraction" in n.metrics),
    "(-advantage * logprob - 0.001": (  # of docs/tour.md
        {"advantage": torch.randn(13)}, lambda n: n.hidden.grad.abs().sum() > 0 and n.entropy.requires_grad),
    "# gradients of what requires them": (  # of runtime/python/PYPI.md
        {}, lambda n: torch.isfinite(n.hidden.grad).all() and n.head.weight.grad.shape == (1000, 64)),
    "flp.linear_logprob(hidden, lm_head.weight, tokens, temperature": (
        {}, lambda n: n.logprob.shape == n.entropy.shape == (13,) and (n.entropy > 0).all()),
    "flp.contract(": ({}, lambda n: n.words == n.flp.contract(n.lm_head.weight) and " code=" in n.words),
    "flp.explain": ({}, lambda n: n.info.forward["products"] + n.info.backward["products"] == 3),
    "tail_report=": ({}, lambda n: 0 <= n.left_out <= 2**-9 * n.whole and n.hidden.grad.any()
                     and n.recomputed_rows >= 0 and n.listed_columns >= 0),
    "kept_mass=": ({}, lambda n: (n.kept >= n.whole - 1e-5).all() and torch.allclose(
        n.whole, n.flp.linear_logprob(n.hidden, n.lm_head.weight, n.tokens), atol=1e-4)),
    'mixed="round"': ({}, lambda n: n.hidden.grad.any() and n.head.grad.any() and n.head.grad.dtype is torch.float32),
    "topk=20": ({}, lambda n: torch.equal(n.greedy, (n.hidden @ n.lm_head.weight.t()).argmax(-1))
                and n.rank.shape == n.logprob.shape and torch.allclose(n.everything, torch.ones(13), atol=1e-5)),
    "statistics=True": ({}, lambda n: 0 <= n.accuracy <= 1 and torch.allclose(
        n.lse, (n.hidden @ n.lm_head.weight.t()).logsumexp(-1), atol=1e-4)),
    "lora=flp.Lora(": ({}, lambda n: torch.equal(n.logprob, n.reference) and not n.reference.requires_grad
                       and n.b.grad.any() and not n.a.grad.any() and n.head.weight.grad is None),
    "flp.cross_entropy(": ({"model": flp_standin_lm.TinyLM(), "ids": flp_standin_lm.IDS},
                           lambda n: n.hidden.grad.abs().sum() > 0 and n.own.requires_grad),
    "preference_loss(": ({}, lambda n: n.loss > 0 and n.hidden.grad.any()
                         and 0 <= n.metrics["accuracy"] <= 1),
    "flp.distill_loss(": ({}, lambda n: n.logprob.shape == n.best.shape == (13, 8) and n.loss > 0
                          and n.hidden.grad.any() and set(n.metrics) == {"reverse_kl"}),
    "flp.divergence_loss(": ({}, lambda n: n.hidden.grad.any() and n.lm_head.weight.grad.any() and set(n.metrics) == {
        "reverse_kl", "entropy", "acceptance", "agreement"}),
    "flp.Reference(": ({}, lambda n: n.hidden.grad.any() and n.lm_head.weight.grad.any()
                       and {"ratio", "reverse_kl", "acceptance", "agreement"} < set(n.metrics)),
    "divergence_payload": ({"teacher_hidden": torch.randn(13, 48), "teacher_head": torch.randn(331, 48)},
                           lambda n: n.payload.mean.shape == n.hidden.shape and n.hidden.grad.any()),
    "selective_log_softmax": ({}, lambda n: torch.isfinite(n.head.weight.grad).all() and torch.allclose(
        n.logprob, (n.head(n.hidden) / 0.7).log_softmax(-1).gather(-1, n.tokens.unsqueeze(-1)).squeeze(-1), atol=1e-5)),
    "flp.selective_divergence(": ({}, lambda n: n.student.grad.any() and n.found.agrees.shape == (4, 128)
                                  and (n.found.value > 0).all()),
    "flp.backend.token_logprobs(": ({}, lambda n: n.values.logprob.shape == n.tokens.shape and n.hidden.grad.any()
                                    and (n.values.entropy[n.tokens % 7 > 0] > 0).all()),
    "flp.score(": ({}, lambda n: n.kept.sum() == 1 and torch.isfinite(n.loss) and torch.equal(
        n.hidden.grad.abs().sum(1) > 0, torch.roll(n.chosen.mask, -1))),
}


def test_every_snippet_has_a_test():
    """Those that are not in MADE have a test of their own."""
    words = [*MADE, "flp.losses.policy_loss(", "logprob_head", "from transformers", "ahead = torch.tanh",
             "flp.installed", "flp.adapters.megatron", "flp.parallel", "grad_weight_accumulate=", "memory.Profiler",
             "flp.jax.linear_logprob(", "cpu_kernel import Kernel"]
    # test_flp_policy.py runs grad_weight_accumulate, test_flp_phase.py the Profiler, tests/install/jax_cases.py
    # flp.jax, test_docs_code.py the kernel of templates/README.md
    found = [[word for word in words if word in snippet] for snippet in SNIPPETS]
    assert sorted(found) == sorted([word] for word in words)


@pytest.mark.parametrize("words", MADE)
def test_a_snippet_makes_what_it_says(words):
    given, holds = MADE[words]
    assert holds(types.SimpleNamespace(**run(words, **given)))


def test_losses():
    logprob = -torch.rand(2, 5)
    names = run("flp.losses.policy_loss(", logprob=logprob.requires_grad_(), advantage=torch.tensor([1.0, -1.0]),
                old=logprob.detach(), ref=-torch.rand(2, 5), mask=torch.ones(2, 5))
    names["loss"].backward()
    assert torch.isfinite(logprob.grad).all() and "kl" in names["metrics"]


def test_heads_of_models():
    model = flp_standin_lm.TinyLM()
    model.disable_adapter = contextlib.nullcontext
    ids = flp_standin_lm.IDS
    names = run("logprob_head", model=model, ids=ids, mask=torch.ones_like(ids))
    assert torch.equal(names["old"], names["reference"]) and names["out"].entropy.shape == (3, 10)


def test_ten_lines(monkeypatch, capsys):
    """With a stand-in for transformers: small, and a head that learns."""
    flp_standin_lm.stand_in(monkeypatch)
    torch.manual_seed(0)
    run("from transformers")
    losses = [float(line.split()[1]) for line in capsys.readouterr().out.splitlines()]
    assert len(losses) == 20 and sum(losses[-5:]) < sum(losses[:5])  # one batch is above the next by chance


def test_several_predictions_a_token():
    """The loss of the next token and 0.3 of the one behind it, and its gradients, from scores."""
    names = run("ahead = torch.tanh")
    names["loss"].backward()
    hidden, head = names["hidden"].detach().requires_grad_(), names["lm_head"].weight.detach().requires_grad_()
    first = torch.nn.functional.cross_entropy(hidden @ head.t(), names["tokens"], reduction="sum")
    behind = torch.nn.functional.cross_entropy((torch.tanh(hidden) @ head.t())[:-1], names["tokens"][1:],
                                               reduction="sum")
    want = first + 0.3 * behind
    assert torch.allclose(names["loss"], want)
    for got, gradient in zip((names["hidden"].grad, names["lm_head"].weight.grad),
                             torch.autograd.grad(want, (hidden, head))):
        assert torch.allclose(got, gradient, atol=1e-5)


def test_trainers(hosts, monkeypatch, capsys):  # noqa: F811
    """A stand-in, whose source text is another's."""
    hosts("trl")
    install = flp.install
    monkeypatch.setattr(flp, "install", lambda host: install(host, untested=True))
    run("flp.installed")
    assert "'trl'" in capsys.readouterr().out and flp.installed() == {}


def test_what_trainers_are_told(hosts, logged):  # noqa: F811
    """The line and the counts that runtime/python/README.md shows, but for rung and mode."""
    hosts("trl")
    flp.install("trl", untested=True)
    head = importlib.import_module("trl.kernels.chunked_logprob").ChunkedLogProbFunction
    hidden, weight, target, _ = problem()
    for calls in (12, 3):
        for _ in range(calls):
            head.apply(hidden, weight, None, target, 1.0, 64, outputs=("log_probs",))
        weight.ds_id = 0
    shown, = [block.text for block in blocks("text") if "runs on flp" in block.text]
    rung = flp.explain(hidden, weight, target).rung
    shown = shown.replace("rung jit, mode direction", "rung %s, mode score" % rung)
    shown = shown.replace("contract: ...", "contract: " + flp.contract(weight))
    line, counts = shown.replace("jit direction", rung + " score").replace(", ...", "").split("\n", 1)
    assert line in [text for _, text in logged]
    found = flp.installed(counts=True)["trl"]
    assert {seam: found[seam] for seam in found if any(found[seam].values())} == ast.literal_eval(counts)["trl"]


def test_an_output_processor():
    model, labels, _ = flp_megatron.Model(), torch.randint(0, flp_megatron.VOCAB, (2, 9)), torch.manual_seed(0)
    hidden, mask = torch.randn(9, 2, flp_megatron.DEPTH, requires_grad=True), torch.arange(9).expand(2, 9) > 3

    def megatron(ids, positions, attention_mask, **given):
        return model(hidden, **given)

    names = run("flp.adapters.megatron", model=megatron, ids=None, positions=None, labels=labels, mask=mask,
                loss_mask=torch.ones(2, 9), advantage=torch.randn(2, 9))
    assert names["logprob"].shape == (2, 9) and not names["entropy"].requires_grad
    assert (names["logprob"] != 0).equal(mask) and (hidden.grad.abs().sum(-1) > 0).t().equal(mask)


def test_tensor_parallel(one_rank):
    names = run("flp.parallel", **operands(vocab=151936), tp_group=torch.distributed.group.WORLD)
    assert names["logprob"].shape == names["entropy"].shape == (13,)


# ---- docstrings


MODULES = {"flp": flp, "flp.losses": flp.losses, "flp.memory": flp.memory, "flp.parallel": flp.parallel}
FUNCTIONS = {"%s.%s" % (path, name): value for path, module in MODULES.items()
             for name in getattr(module, "__all__", vars(module))
             for value in [getattr(module, name)] if inspect.isfunction(value) and not name.startswith("_")}
METHODS = {"%s.%s" % (kind.__name__, name): value for kind in (flp.Scores, flp.memory.Profiler)
           for name, value in vars(kind).items() if inspect.isfunction(value) and not name.startswith("_")}
OTHERS_TELL = ("those of linear_logprob", "those of flp.linear_logprob", "that of linear_logprob",
               "those of flp.divergence")


def test_the_walk_finds_functions():
    assert {"flp.linear_logprob", "flp.memory.plot", "flp.losses.policy_loss", "flp.parallel.linear_logprob"} <= set(
        FUNCTIONS) and {"Scores.keep", "Profiler.step"} <= set(METHODS)


@pytest.mark.parametrize("name", sorted({**FUNCTIONS, **METHODS}))
def test_public_functions_report_arguments_and_errors(name):
    function = {**FUNCTIONS, **METHODS}[name]
    text = inspect.getdoc(function) or ""
    arguments = [argument for argument in inspect.signature(function).parameters if argument != "self"]
    if not any(words in text for words in OTHERS_TELL):
        assert [argument for argument in arguments if not re.search(r"\b%s\b" % argument, text)] == []
    if arguments:
        assert "error:" in text
