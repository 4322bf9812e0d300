"""What users read: every Python snippet of the README runs, every public function tells its arguments and errors."""
import contextlib
import inspect
import re
from pathlib import Path

import pytest
import torch

import flp
import flp_standin_lm
from flp_reference import problem
from test_flp_adapters import hosts  # noqa: F401

TREE = Path(__file__).resolve().parents[2]
SNIPPETS = re.findall(r"```python\n(.*?)```", (TREE / "README.md").read_text(), re.S)


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


def test_every_snippet_has_a_test():
    words = ["flp.linear_logprob(hidden, lm_head.weight, tokens, temperature", "flp.losses.policy_loss(",
             "flp.policy_loss(", "selective_log_softmax", "flp.score(", "logprob_head", "from transformers", "flp.explain",
             "flp.install", "memory.Profiler", "flp.parallel"]
    # test_flp_policy.py runs flp.policy_loss, test_flp_scoring.py flp.score, test_flp_phase.py the Profiler
    assert [[word for word in words if word in snippet] for snippet in SNIPPETS] == [[word] for word in words]


def test_first_calls():
    names = run("tokens, temperature=0.7)")
    assert names["logprob"].shape == names["entropy"].shape == (13,) and (names["entropy"] > 0).all()


def test_losses():
    logprob = -torch.rand(2, 5)
    names = run("flp.losses.policy_loss(", logprob=logprob.requires_grad_(), advantage=torch.tensor([1.0, -1.0]),
                old=logprob.detach(), ref=-torch.rand(2, 5), mask=torch.ones(2, 5))
    names["loss"].backward()
    assert torch.isfinite(logprob.grad).all() and "kl" in names["metrics"]


def test_scores_that_exist():
    names = run("selective_log_softmax")
    want = (names["head"](names["hidden"]) / 0.7).log_softmax(-1).gather(-1, names["tokens"].unsqueeze(-1))
    assert torch.allclose(names["logprob"], want.squeeze(-1), atol=1e-5)
    assert torch.isfinite(names["head"].weight.grad).all()


def test_heads_of_models():
    model = flp_standin_lm.TinyLM()
    model.disable_adapter = contextlib.nullcontext
    ids = flp_standin_lm.IDS
    names = run("logprob_head", model=model, ids=ids, mask=torch.ones_like(ids))
    assert torch.equal(names["old"], names["reference"]) and names["out"].entropy.shape == (3, 10)


def test_explain():
    names = run("flp.explain")
    assert names["info"].forward["products"] + names["info"].backward["products"] == 3


def test_trainers(hosts, monkeypatch, capsys):  # noqa: F811
    """A stand-in, whose source text is another's."""
    hosts("trl")
    install = flp.install
    monkeypatch.setattr(flp, "install", lambda host: install(host, untested=True))
    run("flp.install")
    assert "'trl'" in capsys.readouterr().out and flp.installed() == {}


def test_tensor_parallel(tmp_path):
    import torch.distributed as dist

    dist.init_process_group("gloo", rank=0, world_size=1, init_method="file://%s" % (tmp_path / "store"))
    try:
        names = run("flp.parallel", **operands(vocab=151936), tp_group=dist.group.WORLD)
    finally:
        dist.destroy_process_group()
    assert names["logprob"].shape == names["entropy"].shape == (13,)


# ---- docstrings


MODULES = {"flp": flp, "flp.losses": flp.losses, "flp.memory": flp.memory, "flp.parallel": flp.parallel}
FUNCTIONS = {"%s.%s" % (path, name): value for path, module in MODULES.items()
             for name in getattr(module, "__all__", vars(module))
             for value in [getattr(module, name)] if inspect.isfunction(value) and not name.startswith("_")}
METHODS = {"%s.%s" % (kind.__name__, name): value for kind in (flp.Scores, flp.memory.Profiler)
           for name, value in vars(kind).items() if inspect.isfunction(value) and not name.startswith("_")}
OTHERS_TELL = ("those of linear_logprob", "those of flp.linear_logprob", "that of linear_logprob")


def test_the_walk_finds_functions():
    assert {"flp.linear_logprob", "flp.memory.plot", "flp.losses.policy_loss", "flp.parallel.linear_logprob"} <= set(
        FUNCTIONS) and {"Scores.keep", "Profiler.step"} <= set(METHODS)


@pytest.mark.parametrize("name", sorted({**FUNCTIONS, **METHODS}))
def test_public_functions_tell_arguments_and_errors(name):
    function = {**FUNCTIONS, **METHODS}[name]
    text = inspect.getdoc(function) or ""
    arguments = [argument for argument in inspect.signature(function).parameters if argument != "self"]
    if not any(words in text for words in OTHERS_TELL):
        assert [argument for argument in arguments if not re.search(r"\b%s\b" % argument, text)] == []
    if arguments:
        assert "error:" in text
