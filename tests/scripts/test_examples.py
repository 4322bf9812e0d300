"""The examples without a GPU: they learn, and what they report is right."""
import contextlib
import functools
import io
import json
import runpy
import subprocess
import sys
from unittest import mock
from pathlib import Path

import pytest
import torch

import flp
import flp_standin_lm
from flp._library import _c
from flp._passes import _run
from installed import run

EXAMPLES = Path(__file__).resolve().parents[2] / "runtime" / "python" / "examples"
sys.path.insert(0, str(EXAMPLES))
import _grpo  # noqa: E402
import _tiny  # noqa: E402
import distill  # noqa: E402
import draft_head  # noqa: E402
import gated_batch  # noqa: E402
import grpo_lora  # noqa: E402
import grpo_tiny  # noqa: E402
import long_context  # noqa: E402
import mtp  # noqa: E402
import preferences  # noqa: E402
import teacher  # noqa: E402

SMALL = ["--device", "cpu", "--prompts", "8", "--length", "8", "--hidden", "32", "--vocab", "32"]


def learn(example, *options):
    return example.train(example.parser().parse_args([*SMALL, *options]), say=lambda line: None)


def run_here(name, *options):
    """Runs an example as a program, in this process, which has torch already -> what it printed."""
    path, printed = str(EXAMPLES / (name + ".py")), io.StringIO()
    with mock.patch.object(sys, "argv", [path, *map(str, options)]), contextlib.redirect_stdout(printed):
        try:
            runpy.run_path(path, run_name="__main__")
        except SystemExit as ended:
            if ended.code not in (None, 0):
                raise
    return printed.getvalue()


def gain_of(rewards):
    return sum(rewards[-3:]) / 3 - sum(rewards[:3]) / 3


@pytest.mark.first
@pytest.mark.parametrize("rule", sorted(flp.losses.RULES))
def test_every_rule_learns(rule):
    results = learn(grpo_tiny, "--rule", rule, "--steps", "14", "--beta", "0" if rule == "gspo" else "0.005")
    assert gain_of(results["rewards"]) > 0.04, results
    assert results["peak_bytes_above_held"] is None and results["seconds"] > 0


@pytest.mark.long
def test_a_tail_is_compared_over_seeds(tmp_path):
    """The CPU leaves nothing out, so the curves are the same; their form and verdict are those of a GPU."""
    out = tmp_path / "record.json"
    grpo_tiny.main([*SMALL, "--steps", "3", "--seeds", "2", "--compare-tail", "--tail", "2^-6", "--json", str(out)])
    results = json.loads(out.read_text())["results"]
    assert results["tail"] == 2**-6 and [len(curve) for curve in results["rewards_tail"]] == [3, 3]
    assert results["rewards_exact"] == results["rewards_tail"] and results["rewards_tail"][0] != results["rewards_tail"][1]
    assert results["agree"] is True and results["apart"] == 0 < results["spread_of_seeds"]
    for name in grpo_tiny.LEFT_OUT:
        assert results[name] == [0, 0]
    with pytest.raises(SystemExit, match="--seeds is 1"):
        grpo_tiny.main([*SMALL, "--seeds", "1", "--compare-tail"])


@pytest.mark.long
def test_wrong_gradients_of_a_tail_do_not_agree(tmp_path, monkeypatch):
    """The record is there all the same."""
    right, out = flp.policy_loss, tmp_path / "record.json"

    def wrong(*operands, tail=None, **options):
        loss, metrics = right(*operands, tail=tail, **options)
        return -loss if tail else loss, metrics

    monkeypatch.setattr(flp, "policy_loss", wrong)
    with pytest.raises(SystemExit, match="mean rewards are 0.[0-9]+ apart, further than seeds, 0.[0-9]+"):
        grpo_tiny.main([*SMALL, "--steps", "14", "--seeds", "2", "--compare-tail", "--json", str(out)])
    assert json.loads(out.read_text())["results"]["agree"] is False


def test_a_gpu_that_serves_no_row_by_its_list_compares_nothing():
    results = {"agree": True, "listed_columns_a_row": [0.0, 0.0], "apart": 0.0, "spread_of_seeds": 0.1}
    assert grpo_tiny.faults(results, torch.device("cpu")) == []
    assert grpo_tiny.faults(results, torch.device("cuda")) == ["no row was served by its list: both ways are exact"]
    assert grpo_tiny.faults({**results, "listed_columns_a_row": [0.0, 1.5]}, torch.device("cuda")) == []


def test_curves_agree_within_the_spread_of_seeds():
    seeds = [[0.5, 0.6], [0.5, 0.8]]
    spread = ((0.1 * 2**0.5) ** 2 / 2) ** 0.5
    for off, agree in ((0.0, True), (0.09, True), (-0.2, False)):
        found = grpo_tiny.agreement({"exact": seeds, "tail": [[value + off for value in seed] for seed in seeds]})
        assert abs(found["apart"] - abs(off)) < 1e-12 and abs(found["spread_of_seeds"] - spread) < 1e-12
        assert found["agree"] is agree and found["mean_rewards_exact"] == pytest.approx([0.5, 0.7])
    assert grpo_tiny.agreement({"exact": seeds[:1], "tail": seeds[:1]})["agree"] is None


def test_what_was_left_out_is_the_worst_share_and_means():
    arguments = grpo_tiny.parser().parse_args(["--prompts", "2", "--group", "5", "--length", "10"])
    reports = [torch.tensor([1.0, 1000.0, 20.0, 300.0]), torch.tensor([3.0, 1000.0, 0.0, 500.0]), torch.zeros(4)]
    found = grpo_tiny.left_out(reports, arguments)
    assert [found[name] for name in grpo_tiny.LEFT_OUT] == pytest.approx([0.003, 20 / 300, 800 / 300])


def test_bounds_are_written_as_powers():
    assert (grpo_tiny.bound("2^-9"), grpo_tiny.bound("0.01")) == (2**-9, 0.01)


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


def test_rewards_and_advantages_are_what_they_should_be():
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


# ---- a gate, and several heads ----

@pytest.mark.long
def test_a_gate_learns_from_three_of_thirty():
    said = []
    rewards = gated_batch.train(50, 0.1, say=said.append)
    assert sum(rewards[-5:]) / 5 > sum(rewards[:5]) / 5 + 0.15, rewards
    assert len(said) == 5 and all("kept 3 of 30" in line for line in said)


def mtp_options(*options):
    return _tiny.with_sizes(mtp.parser().parse_args(["--tiny", "--device", "cpu", *options]))


@pytest.mark.long
def test_every_head_learns_and_its_forms_agree(monkeypatch):
    said, scalar = [], torch.Tensor.__float__
    warned = "a newer torch warns of a scalar of what has a gradient"
    monkeypatch.setattr(torch.Tensor, "__float__", lambda t: pytest.fail(warned) if t.requires_grad else scalar(t))
    torch.manual_seed(0)
    results = mtp.train(mtp_options("--compare"), say=said.append)
    first, last = results["losses"][0], results["losses"][-1]
    assert len(first) == 3 and len(said) == 40 and all(end < start - 1 for start, end in zip(first, last))
    assert results["largest_difference"] < 1e-5


def of_two_heads(example, *options):
    """An example that begins with a teacher, in few steps."""
    torch.manual_seed(0)
    given = example.parser().parse_args(["--tiny", "--device", "cpu", "--lessons", "30", "--steps", "25", *options])
    return example.train(_tiny.with_sizes(given), say=lambda line: None)


@pytest.mark.parametrize("options", [["--kind", "jsd"], ["--payload"]], ids=" ".join)
def test_a_student_nears_its_teacher(options):
    divergences = of_two_heads(distill, *options)["divergences"]
    assert divergences[-1] < 0.7 * divergences[0], divergences


@pytest.mark.parametrize("asks, most", [("topk", 250), ("ids", 100), ("payload", 300)])
def test_a_student_learns_from_what_a_teacher_sends(asks, most):
    found = of_two_heads(teacher, "--asks", asks)
    divergences = found["divergences"]
    assert divergences[-1] < 0.7 * divergences[0], divergences
    assert found["bytes_per_token"] < most  # 844 are scores in float32


def test_a_teacher_sends_what_its_whole_distribution_says():
    """Over HTTP, against the softmax of its scores."""
    torch.manual_seed(0)
    model = _tiny.TinyLM(211, 32, 1, 4)
    server, tokens, head = teacher.served(model, torch.device("cpu")), torch.randint(211, (2, 9)), torch.randn(211, 16)
    logprobs = torch.log_softmax(model(tokens) @ model.head.weight.t(), -1).detach()
    ask = functools.partial(teacher.ask, server, "cpu", tokens=tokens)
    top, ids = ask(asks="topk", k=5)[0], torch.randint(211, (2, 9, 3))
    assert torch.allclose(top["logprobs"], logprobs.topk(5).values, atol=1e-5)
    assert torch.allclose(top["rest"], 1 - logprobs.topk(5).values.exp().sum(-1), atol=1e-5)
    assert torch.allclose(ask(asks="ids", ids=ids)[0]["logprobs"], logprobs.gather(-1, ids), atol=1e-5)
    assert torch.allclose(ask(asks="payload", head=head)[0]["mean"], logprobs.exp() @ head, atol=1e-5)
    server.shutdown()


def test_a_draft_learns_what_is_accepted():
    acceptance = of_two_heads(draft_head)["acceptance"]
    assert acceptance[-1] > acceptance[0] + 0.1, acceptance


@pytest.mark.parametrize("heads", [1, 4])
def test_targets_and_weights_of_rows_of_several_heads(heads):
    """A head further ahead has a token less to predict in each sequence; together those ahead weigh a share."""
    tokens = torch.arange(20).view(2, 10)
    targets, weights = mtp.rows_of(tokens, heads, 0.3)
    assert targets.shape == (heads, 2, 10) and torch.equal(targets[0, :, :9], tokens[:, 1:])
    assert [int((row == mtp.IGNORED).sum()) for row in targets] == [2 * (k + 1) for k in range(heads)]
    share = ((targets != mtp.IGNORED) * weights).sum((1, 2))
    assert torch.allclose(share, torch.tensor([1.0] + [0.3 / max(heads - 1, 1)] * (heads - 1)))


def test_states_of_a_head_do_not_see_what_they_predict():
    """Those of head k read tokens up to t + k, so a change of token t + 1 + k leaves them as they are."""
    torch.manual_seed(0)
    model, tokens = mtp.Model(50, 32, 1, 3), torch.randint(50, (1, 12))
    with torch.no_grad():
        before = model(tokens)
        tokens[0, 8] = (tokens[0, 8] + 1) % 50
        after = model(tokens)
    for k in range(3):
        assert torch.equal(before[k, 0, :8 - k], after[k, 0, :8 - k])
        assert not torch.equal(before[k, 0, 8 - k], after[k, 0, 8 - k])


# ---- adapters ----

@pytest.mark.long
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
    run_here("long_context", "--tiny", "--device", "cpu", "--json", out)
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


def test_a_way_that_runs_out_of_memory_reports_what_it_asked_for():
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


def test_an_unwritable_record_is_reported_before_the_work(tmp_path, capsys):
    path = tmp_path / "no" / "record.json"
    with pytest.raises(SystemExit) as ended:
        grpo_tiny.parser().parse_args([*SMALL, "--json", str(path)])
    assert ended.value.code == 2
    assert "argument --json: %s cannot be written: No such file or directory\n" % path in capsys.readouterr().err


@pytest.mark.parametrize("rule", sorted(flp.losses.PREFERENCES))
def test_every_preference_is_learned(rule):
    given = preferences.parser().parse_args(["--tiny", "--device", "cpu", "--rule", rule])
    found = preferences.train(_tiny.with_sizes(given), say=lambda line: None)
    assert found["losses"][-1] < found["losses"][0] and found["margins"][-1] > found["margins"][0] + 0.1, found


# ---- what every example promises ----

NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py") if not path.stem.startswith("_"))


@pytest.mark.parametrize("name", NAMES)
def test_every_example_has_help_a_device_and_a_record(name):
    printed = run_here(name, "--help")
    assert "runtime/python/examples/%s.py" % name in printed or "python %s.py" % name in printed
    assert {"--device", "--json"} <= set(printed.split())


@pytest.mark.long
def test_the_example_of_two_processes_leaves_a_record(tmp_path):
    run(sys.executable, EXAMPLES / "tensor_parallel.py", "--json", tmp_path / "record.json",
        env={"CUDA_VISIBLE_DEVICES": ""})
    ranks = json.loads((tmp_path / "record.json").read_text())["results"]["ranks"]
    assert len(ranks) == 2
    for rank in ranks:
        assert rank["losses_two_processes"] == pytest.approx(rank["losses_one"], abs=1e-5) and len(rank["losses_one"]) == 5


def test_progress_is_seen_while_it_runs(tmp_path):
    """Lines come as steps end, not when the example does."""
    command = [sys.executable, "-c", "import sys; sys.path.insert(0, %r)\nimport train_tiny_lm\n"
               "train_tiny_lm.main(['--tiny', '--device', 'cpu', '--steps', '100000'])" % str(EXAMPLES)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        lines = [running.stdout.readline() for _ in range(3)]
        running.kill()
    assert [line.split()[:3] for line in lines] == [["flp", "step", str(step)] for step in (1, 2, 3)]


@pytest.mark.parametrize("name,options,steps", [("ten_lines", ["--tiny"], 20), ("hf_logprobs", [], 8)])
def test_examples_of_transformers_need_no_gpu(tmp_path, monkeypatch, name, options, steps):
    flp_standin_lm.stand_in(monkeypatch)
    printed = run_here(name, *options, "--device", "cpu", "--json", tmp_path / "record.json")
    losses = json.loads((tmp_path / "record.json").read_text())["results"]["losses"]
    assert len(losses) == len(printed.splitlines()) == steps and losses[-1] < losses[0]


@pytest.mark.parametrize("name", ["ten_lines", "hf_logprobs", "train_tiny_lm"])
def test_a_package_that_is_not_there_is_named(monkeypatch, name):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(SystemExit, match="needs transformers, which is not installed: pip install transformers$"):
        run_here(name)
