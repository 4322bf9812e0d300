"""The examples without a GPU: they learn, and what they say of themselves is so."""
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import flp
from flp import _c, _run

EXAMPLES = Path(__file__).resolve().parents[2] / "runtime" / "python" / "examples"
sys.path.insert(0, str(EXAMPLES))
import _grpo  # noqa: E402
import _tiny  # noqa: E402
import grpo_lora  # noqa: E402
import grpo_tiny  # noqa: E402
import long_context  # noqa: E402

SMALL = ["--device", "cpu", "--prompts", "8", "--length", "8", "--hidden", "32", "--vocab", "32"]


def learn(example, *options):
    return example.train(example.parser().parse_args([*SMALL, *options]), say=lambda line: None)


def gain_of(rewards):
    return sum(rewards[-3:]) / 3 - sum(rewards[:3]) / 3


@pytest.mark.parametrize("rule", sorted(flp.losses.RULES))
def test_every_rule_learns(rule):
    results = learn(grpo_tiny, "--rule", rule, "--steps", "14", "--beta", "0" if rule == "gspo" else "0.005")
    assert gain_of(results["rewards"]) > 0.04, results
    assert results["peak_bytes_above_held"] is None and results["seconds"] > 0


def test_one_call_is_loss_and_logprobs():
    """What grpo_tiny does in one call is what grpo_lora does in two."""
    arguments = grpo_tiny.parser().parse_args([*SMALL, "--beta", "0.1"])
    model, tokens = _grpo.policy_of(arguments), torch.randint(32, (4, 9))
    with torch.no_grad():
        old = model.logprob(tokens) + 0.1
    found = []
    for loss_of in (grpo_tiny.loss_of, _grpo.loss_of):
        loss, metrics = loss_of(model, tokens, torch.randn(4, generator=torch.Generator().manual_seed(1)), old, old, arguments)
        model.zero_grad()
        loss.backward()
        found.append((loss.detach(), metrics["kl"], model.head.weight.grad.clone(), model.embed.weight.grad.clone()))
    for one, two in zip(*found):
        assert torch.allclose(one, two, rtol=1e-4, atol=1e-7)


def test_rewards_and_advantages_are_what_they_are_said_to_be():
    tokens = torch.tensor([[1, 2, 3, 3], [5, 4, 6, 7], [9, 8, 7, 6], [0, 1, 2, 3]])
    assert torch.allclose(_grpo.reward(tokens), torch.tensor([2 / 3, 2 / 3, 0, 1.0]))
    scaled = _grpo.advantages(torch.tensor([1.0, 3.0, 5.0, 5.0]), 2)
    assert torch.allclose(scaled, torch.tensor([-0.7071, 0.7071, 0, 0]), atol=1e-3)


def test_tiny_model_is_causal():
    torch.manual_seed(0)
    model = _tiny.TinyLM(16, 8, 2, 2)
    tokens = torch.arange(6)[None]
    changed = tokens.clone()
    changed[0, 4] = 15
    before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :4], after[:, :4]) and not torch.allclose(before[:, 4:], after[:, 4:])


# ---- adapters ----

def test_adapters_learn_and_the_head_gets_no_gradient(monkeypatch):
    masks = []

    def backward(ops, settings, grads, *rest):
        masks.append(grads)
        return real(ops, settings, grads, *rest)

    real = _run.backward
    monkeypatch.setattr(_run, "backward", backward)
    results = learn(grpo_lora, "--steps", "14")
    assert gain_of(results["rewards"]) > 0.04, results
    assert masks == [_c.GRAD_HIDDEN] * 28  # two updates a step
    assert not results["head_has_gradient"]
    assert (results["products"], results["products_of_a_trained_head"]) == (3, 4)
    assert 0 < results["trained_parameters"] < results["parameters"]


def test_an_adapter_is_the_merged_weight():
    torch.manual_seed(0)
    layer = grpo_lora.LoraLinear(torch.nn.Linear(8, 6), rank=2, alpha=3)
    x = torch.randn(5, 8)
    assert torch.equal(layer(x), layer.base(x))
    torch.nn.init.normal_(layer.lora_b)
    merged = layer.base.weight.double() + 1.5 * layer.lora_b.double() @ layer.lora_a.double()
    expected = x.double() @ merged.t() + layer.base.bias.double()
    assert torch.allclose(layer(x).double(), expected, atol=1e-5)


def test_without_adapters_the_model_is_what_it_was():
    arguments = grpo_lora.parser().parse_args([*SMALL, "--steps", "2"])
    model = _grpo.policy_of(arguments)
    tokens = torch.arange(9)[None]
    before = model.logprob(tokens)
    grpo_lora.add_lora(model, 4, 8)
    _grpo.run(model, model.logprob, arguments, say=lambda line: None)
    with grpo_lora.adapters_off(model):
        assert torch.equal(model.logprob(tokens), before)
    assert not torch.allclose(model.logprob(tokens), before)


# ---- a long context ----

def test_long_context_tiny(tmp_path):
    out = tmp_path / "long.json"
    sizes = ["--tokens", "256", "--vocab", "1000", "--hidden", "64", "--budget", "4M"]
    command = [sys.executable, str(EXAMPLES / "long_context.py"), *sizes, "--device", "cpu", "--json", str(out)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads(out.read_text())
    assert record["failed"] == 0 and str(tmp_path) not in record["command"]
    assert record["budget_bytes"] == 4 << 20
    assert max(record["workspace_forward_bytes"], record["workspace_backward_bytes"]) <= 4 << 20
    rows = {(row["part"], row["way"]): row for row in record["rows"]}
    assert set(rows) == {(part, way) for part in ("loss", "step") for way in long_context.WAYS}
    for way in long_context.WAYS:
        assert rows["loss", way]["ms"] > 0 and rows["loss", way]["logprob_error"] < 3e-6
    assert rows["loss", "flp"]["loss"] == pytest.approx(rows["loss", "naive, fp32"]["loss"], abs=2e-6)


def test_the_gradients_of_all_ways_are_those_of_fp64():
    torch.manual_seed(0)
    operands = [torch.randn(1, 6, 8), torch.randn(40, 8)]
    target = torch.randint(40, (1, 6))

    def grads_of(way, dtype):
        hidden, weight = (tensor.to(dtype).requires_grad_() for tensor in operands)
        logprob, entropy = way(hidden, weight, target, None)
        whole = logprob.sum() if entropy is None else logprob.sum() + 0.5 * entropy.sum()
        return entropy is not None, torch.autograd.grad(whole, [hidden, weight])

    exact = dict(grads_of(lambda h, w, y, _: long_context.selected(h @ w.t(), y, entropy), torch.float64)
                 for entropy in (False, True))
    for way in long_context.WAYS.values():
        has_entropy, grads = grads_of(way, torch.float32)
        assert all(torch.allclose(got.double(), known, atol=1e-5) for got, known in zip(grads, exact[has_entropy]))


def test_a_way_that_runs_out_of_memory_says_what_it_asked_for():
    def call():
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 60.62 GiB.\nGPU 0 has 139.80 GiB")

    row = long_context.measure(call, torch.device("cpu"))
    assert row["ms"] is None and "\n" not in row["reason"] and row["reason"].startswith("CUDA out of memory.")
    assert row["requested_bytes"] == int(60.62 * 2**30)
    assert long_context.requested("it just failed") is None


def test_faults_are_named():
    rows = [{"way": "flp", "part": "loss", "ms": None, "reason": "CUDA out of memory."},
            {"way": "naive, fp32", "part": "loss", "ms": None, "reason": "CUDA out of memory."}]
    workspace = {"workspace_forward_bytes": 10, "workspace_backward_bytes": 11}
    assert long_context.faults_of(rows, workspace, 10) == [
        "flp, loss: CUDA out of memory.", "workspace_backward_bytes: 11, beyond the budget of 10"]
    assert long_context.faults_of(rows[1:], workspace, 11) == []


def test_an_unwritable_record_is_told_before_the_work(tmp_path, capsys):
    path = tmp_path / "no" / "record.json"
    with pytest.raises(SystemExit) as ended:
        grpo_tiny.parser().parse_args([*SMALL, "--json", str(path)])
    assert ended.value.code == 2
    assert "argument --json: %s cannot be written: No such file or directory\n" % path in capsys.readouterr().err


def test_an_example_without_options_refuses_them():
    done = subprocess.run([sys.executable, str(EXAMPLES / "tensor_parallel.py"), "--json", "x"], capture_output=True,
                          text=True)
    assert done.returncode == 2 and "unrecognized arguments: --json x" in done.stderr
