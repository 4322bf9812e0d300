"""flp.distill_loss on the CPU: value and gradients beside torch in float64, properties."""
import pytest
import torch

import flp
import flp_exact

B, T, D, V, K = 2, 6, 24, 61, 5
NAMES = list(flp.losses.DIVERGENCES)


def problem(seed=0, k=K, dtype=torch.float32, bias=True):
    """hidden, weight, bias, target, teacher_logprob; row (0, 0) is ignored, row (0, 1) has two targets, (1, 1) none less."""
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(B, T, D, generator=generator).to(dtype).requires_grad_()
    weight = (torch.randn(V, D, generator=generator) / 2).to(dtype).requires_grad_()
    offset = torch.randn(V, generator=generator).to(dtype).requires_grad_() if bias else None
    teacher = torch.log_softmax(2 * torch.randn(B, T, V, generator=generator), -1)
    logprob, target = teacher.topk(k, -1)
    target, logprob = target.clone(), logprob.clone()
    target[0, 0] = -100
    target[0, 1, 2:] = -100
    logprob[0, 1, 2:] = float("nan")  # of ignored ids nothing is read
    return hidden, weight, offset, target, logprob


@pytest.mark.parametrize("name", NAMES)
def test_a_teacher_that_is_the_head_pulls_nowhere(name):
    hidden, weight, bias, target, _ = problem(7)
    with torch.no_grad():
        teacher = flp.linear_logprob(hidden, weight, target, bias)
    loss, _ = flp.distill_loss(hidden, weight, target, teacher, bias, loss=name)
    assert abs(loss.item()) < 1e-6
    for grad in torch.autograd.grad(loss, (hidden, weight, bias)):
        assert grad.abs().max() < 1e-6


def test_a_file_with_a_loss_over_targets(tmp_path):
    file = tmp_path / "cross.lua"
    file.write_text("""return {vectors = {"gain"}, loss = function(row)
  local loss = -sum(exp(row.teacher_logprob) * row.target_logprob)
  return row.weight * row.gain * loss, {cross = loss}
end}""")
    hidden, weight, _, target, teacher = problem(12, bias=False)
    gain = torch.rand(B, T)
    loss, metrics = flp.distill_loss(hidden, weight, target, teacher, loss=str(file), vectors={"gain": gain})
    counted = target != -100
    share = torch.where(counted, teacher.double().exp(), torch.zeros((), dtype=torch.float64))
    exact = flp_exact.linear_logprob(hidden=hidden.double(), weight=weight.double(), target=target)["logprob"]
    each = -(share * exact).sum(-1)
    assert loss.item() == pytest.approx((each * gain).sum().item() / counted.any(-1).sum().item(), rel=2e-6)
    assert set(metrics) == {"cross"}
    with pytest.raises(ValueError, match="rule is .* a loss over several targets .*flp.distill_loss takes those"):
        flp.policy_loss(str(file), hidden, weight, target[..., 0], torch.ones(B), vectors={"gain": gain})
