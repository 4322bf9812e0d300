"""A step on the torch form of the eager rung beside libflp's: every built-in loss, and one with every operation, on rows
where they differ if anything does: of weight 0, ignored, bad, infinite, NaN, at kinks."""
import math
from pathlib import Path

import pytest
import torch
from binding_fixtures import torch_form

import flp
from flp._library import _plans, _programs
from flp._passes import _run
from flp._tensors import _check

TREE = Path(__file__).resolve().parents[2]
N, V, D, K = 40, 57, 16, 3
BUILT_IN = sorted(path.stem for path in (TREE / "templates" / "losses").glob("*.lua"))
SUMS = ["grpo+k3+entropy", "grpo+token_entropy", "nll+z_loss+k2", "jsd+entropy"]
GENERATOR = _plans._c.library_path().replace("libflp.so", "libflpgen.so")
OF_TARGETS = {"target_logprob", "teacher_logprob"}


def rows_of(program, spoiled):
    """Operands and a Loss: rows that add nothing to a gradient of the weight, and, spoiled, those that make it NaN."""
    generator = torch.Generator().manual_seed(1)

    def draw(*shape):
        return torch.randn(*shape, generator=generator)

    hidden, weight, bias = draw(N, D), draw(V, D), draw(V)
    target = torch.stack([torch.randperm(V - 2, generator=generator)[:K] for _ in range(N)])
    logp = torch.log_softmax(hidden @ weight.t() + bias, -1).gather(1, target)
    old, ref, teacher = logp[:, 0] + draw(N), logp[:, 0] + draw(N), logp + draw(N, K).abs() * -0.1
    advantage, row_weight = draw(N), torch.rand(N, generator=generator)
    vectors = {name: draw(N) for name in program.vectors}
    if "mean_score" not in program.inputs:
        bias[-1] = -math.inf
    row_weight[:3], hidden[1], old[2], advantage[2], target[2, 0] = torch.tensor([0, 0, -0.0]), math.nan, -math.inf, 0, V - 1
    old[3], old[4], old[5], advantage[3:6] = old[3] - 95, old[4] - 80, old[5] + 60, torch.tensor([1.0, 0, 1])
    target[6], target[7], target[8, 1:] = -100, V, -100
    if spoiled:
        hidden[9], ref[10], old[11], old[12], advantage[12] = math.nan, ref[10] + 85, math.nan, old[12] - 95, -1
        teacher[13], teacher[14, 1], target[15, 0], old[16], advantage[16] = math.nan, -math.inf, V - 1, -math.inf, 0
    if not program.inputs & OF_TARGETS:
        target, teacher = target[:, 0].contiguous(), None
    parameters = {name: 0.3 for name in program.parameters if name not in ("low", "high", "rest_min")}
    return _run.Operands(hidden, weight, bias, target, torch.rand(N, generator=generator) + 0.5), \
        _run.Loss(program, parameters, old, ref, advantage, row_weight, vectors, teacher)


def step(program, spoiled):
    ops, loss = rows_of(program, spoiled)
    settings = _check.Settings(1.0, 9.0, 1.3, -100, None, True)
    made = _run.step(ops, settings, 7, loss)
    with pytest.raises(flp.DataError) as counted:
        flp.check()
    outputs = [made.loss, made.logprob, made.entropy, *made.metrics, *made.gradients]
    return outputs[:-2] if spoiled else outputs, str(counted.value).split()[0]


@pytest.mark.parametrize("spoiled", [False, True], ids=["finite", "spoiled"])
@pytest.mark.parametrize("name", [*BUILT_IN, *SUMS, "every_word.lua"])
def test_both_forms(name, spoiled, monkeypatch):
    if name.endswith(".lua"):
        monkeypatch.setenv("FLP_JIT_LIBRARY", GENERATOR)
        name = str(TREE / "tests" / "golden" / "losses" / name)
    program = _programs.named(name)
    want, count = step(program, spoiled)
    flp.clear_plans()
    monkeypatch.setattr(_plans, "_create", torch_form)
    got, count_of_torch = step(program, spoiled)
    assert count == count_of_torch
    for a, b in zip(got, want):
        assert spoiled or b[-20:].isfinite().all()
        torch.testing.assert_close(a, b, atol=1e-4, rtol=2e-4, equal_nan=True)
