"""flp.distill_loss on the CPU: value and gradients beside torch in float64, properties, and what is refused."""
import pytest
import torch

import flp

B, T, D, V, K = 2, 6, 24, 61, 5
NAMES = ["forward_kl", "reverse_kl", "jsd"]


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


def divergence(name, log_p, log_q, counted, rest_min=1e-6, rest_weight=1.0, mix=0.5):
    """In float64, by hand: a list of outcomes a row."""
    values = []
    for p_row, q_row, kept in zip(log_p.flatten(0, -2), log_q.flatten(0, -2), counted.flatten(0, -2)):
        p, q = p_row[kept].exp(), q_row[kept].exp()
        p = torch.cat([p, (1 - p.sum()).clamp(min=rest_min)[None]])
        q = torch.cat([q, (1 - q.sum()).clamp(min=rest_min)[None]])
        scale = torch.ones_like(p)
        scale[-1] = rest_weight
        m = mix * p + (1 - mix) * q
        each = {"forward_kl": p * (p.log() - q.log()), "reverse_kl": q * (q.log() - p.log()),
                "jsd": mix * p * (p.log() - m.log()) + (1 - mix) * q * (q.log() - m.log())}[name]
        values.append((each * scale).sum() if kept.any() else torch.zeros((), dtype=p.dtype))
    return torch.stack(values).reshape(log_p.shape[:-1])


def exact_logprob(hidden, weight, bias, target, temperature=1.0, softcap=None):
    scores = hidden.double() @ weight.double().T
    if bias is not None:
        scores = scores + bias.double()
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    return torch.log_softmax(scores / temperature, -1).gather(-1, target.clamp(min=0))


def grads_of(loss, operands):
    return torch.autograd.grad(loss, [operand for operand in operands if operand is not None])


def expect_close(got, want, tolerance):
    for mine, true in zip(got, want):
        error = (mine.double() - true.double()).norm() / true.double().norm().clamp(min=1e-12)
        assert error < tolerance, error


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("options", [{}, {"temperature": 0.7, "softcap": 8.0}])
def test_value_and_gradients_are_torchs_in_float64(name, options):
    hidden, weight, bias, target, teacher = problem()
    loss, metrics = flp.distill_loss(hidden, weight, target, teacher, bias, loss=name, **options)
    counted = target != -100
    each = divergence(name, teacher.double(), exact_logprob(hidden, weight, bias, target, **options), counted)
    want = each.sum() / counted.any(-1).sum()
    assert loss.item() == pytest.approx(want.item(), rel=2e-6)
    assert metrics[name].item() == pytest.approx(want.item(), rel=2e-6)
    operands = hidden, weight, bias
    expect_close(grads_of(loss, operands), grads_of(want, operands), 5e-6)


def test_weights_mask_and_parameters():
    hidden, weight, _, target, teacher = problem(3, bias=False)
    weights, mask = torch.rand(B, T), torch.ones(B, T)
    mask[1, 2] = 0
    options = {"rest_weight": 0.25, "mix": 0.2}
    loss, metrics = flp.distill_loss(hidden, weight, target, teacher, loss="jsd", row_weight=weights, mask=mask,
                                     parameters=options, entropy=True)
    counted = (target != -100) & (mask != 0)[..., None]
    each = divergence("jsd", teacher.double(), exact_logprob(hidden, weight, None, target), counted, **options)
    want = (each * weights).sum()
    assert loss.item() == pytest.approx(want.item(), rel=2e-6)
    rows = counted.any(-1)
    assert metrics["jsd"].item() == pytest.approx((each.sum() / rows.sum()).item(), rel=2e-6)
    _, entropy = flp.linear_logprob(hidden, weight, target, entropy=True)
    assert metrics["entropy"].item() == pytest.approx(entropy[rows].mean().item(), rel=1e-5)
    expect_close(grads_of(loss, (hidden, weight)), grads_of(want, (hidden, weight)), 5e-6)


def test_micro_batches_add_up_with_total():
    hidden, weight, _, target, teacher = problem(4, bias=False)
    whole, _ = flp.distill_loss(hidden, weight, target, teacher)
    rows = (target != -100).any(-1).sum()
    parts = sum(flp.distill_loss(hidden[i:i + 1], weight, target[i:i + 1], teacher[i:i + 1], total=rows)[0]
                for i in range(B))
    assert parts.item() == pytest.approx(whole.item(), rel=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_all_of_the_vocabulary_is_the_full_divergence(name):
    """K = V: the rest is as good as empty, and the loss that of the whole distributions."""
    hidden, weight, _, _, _ = problem(5, bias=False)
    teacher = torch.log_softmax(torch.randn(B, T, V, generator=torch.Generator().manual_seed(6)), -1)
    target = torch.arange(V).expand(B, T, V).contiguous()
    loss, _ = flp.distill_loss(hidden, weight, target, teacher, loss=name)
    log_q, log_p = torch.log_softmax(hidden.double() @ weight.double().T, -1), teacher.double()
    p, q = log_p.exp(), log_q.exp()
    log_m = ((p + q) / 2).log()
    each = {"forward_kl": p * (log_p - log_q), "reverse_kl": q * (log_q - log_p),
            "jsd": (p * (log_p - log_m) + q * (log_q - log_m)) / 2}[name].sum(-1)
    assert loss.item() == pytest.approx(each.mean().item(), abs=3e-6)
    expect_close(grads_of(loss, (hidden, weight)), grads_of(each.mean(), (hidden, weight)), 1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_a_teacher_that_is_the_head_pulls_nowhere(name):
    hidden, weight, bias, target, _ = problem(7)
    with torch.no_grad():
        teacher = flp.linear_logprob(hidden, weight, target, bias)
    loss, _ = flp.distill_loss(hidden, weight, target, teacher, bias, loss=name)
    assert abs(loss.item()) < 1e-6
    for grad in grads_of(loss, (hidden, weight, bias)):
        assert grad.abs().max() < 1e-6


def test_gradients_of_scores_sum_to_zero():
    """A constant added to every score changes nothing, so the gradient of the bias sums to 0."""
    hidden, weight, bias, target, teacher = problem(8)
    for name in NAMES:
        loss, _ = flp.distill_loss(hidden, weight, target, teacher, bias, loss=name)
        (grad,) = torch.autograd.grad(loss, bias)
        assert grad.abs().max() > 1e-3 and abs(grad.sum()) < 1e-6


def test_the_same_over_logprobs():
    """losses.divergence of linear_logprob, which serves where no step does."""
    hidden, weight, bias, target, teacher = problem(9)
    for name in NAMES:
        loss, _ = flp.distill_loss(hidden, weight, target, teacher, bias, loss=name)
        counted = target != -100
        each = flp.losses.divergence(name, flp.linear_logprob(hidden, weight, target, bias), teacher, counted=counted)
        want = each.sum() / counted.any(-1).sum()
        assert loss.item() == pytest.approx(want.item(), rel=1e-6)
        expect_close(grads_of(loss, (hidden, weight, bias)), grads_of(want, (hidden, weight, bias)), 1e-6)


def test_a_single_target_and_sixteen_bits():
    hidden, weight, _, target, teacher = problem(10, k=1, dtype=torch.bfloat16, bias=False)
    loss, _ = flp.distill_loss(hidden, weight, target, teacher)
    counted = target != -100
    each = divergence("forward_kl", teacher.double(), exact_logprob(hidden, weight, None, target), counted)
    want = each.sum() / counted.any(-1).sum()
    assert loss.item() == pytest.approx(want.item(), rel=2e-6)
    expect_close(grads_of(loss, (hidden, weight)), grads_of(want, (hidden, weight)), 1e-2)


def test_accumulated_weight_gradient_and_upstream():
    hidden, weight, _, target, teacher = problem(11, bias=False)
    buffer = torch.ones(V, D)
    loss, _ = flp.distill_loss(hidden, weight, target, teacher, grad_weight_accumulate=buffer)
    plain, _ = flp.distill_loss(hidden, weight, target, teacher)
    (3 * plain).backward()
    assert torch.allclose(buffer - 1, weight.grad / 3, atol=1e-6)
    with pytest.raises(RuntimeError, match="flp.distill_loss hands its gradients out once"):
        plain.backward()


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
    each = -(share * exact_logprob(hidden, weight, None, target)).sum(-1)
    assert loss.item() == pytest.approx((each * gain).sum().item() / counted.any(-1).sum().item(), rel=2e-6)
    assert set(metrics) == {"cross"}
    with pytest.raises(ValueError, match="rule is .* a loss over several targets .*flp.distill_loss takes those"):
        flp.policy_loss(str(file), hidden, weight, target[..., 0], torch.ones(B), vectors={"gain": gain})


@pytest.mark.parametrize("change, message", [
    ({"loss": "grpo"}, "loss is 'grpo', which reads no values of several targets"),
    ({"loss": "forward_kl+k3"}, "reads values of targets and logprob"),
    ({"loss": "kl"}, "loss 'kl' is not accepted"),
    ({"teacher_logprob": torch.zeros(B, T, K - 1)}, r"teacher_logprob is of shape \(2, 6, 4\)"),
    ({"target": torch.zeros(B, T, dtype=torch.int64)}, r"target is of shape \(2, 6\)"),
    ({"mask": torch.ones(B, T, K)}, r"mask is of shape \(2, 6, 5\)"),
    ({"row_weight": torch.ones(B)}, r"row_weight is of shape \(2,\)"),
    ({"row_weight": torch.ones(B, T), "total": 3}, "total is given with row_weight"),
    ({"parameters": {"mix": 0.5}}, "parameters is .mix."),
    ({"parameters": {"rest_min": 0.0}}, "rest_min of loss forward_kl is 0"),
    ({"vectors": {"gain": torch.ones(B, T)}}, "vectors is 'gain'"),
], ids=lambda value: ",".join(value) if isinstance(value, dict) else "")
def test_refusals(change, message):
    hidden, weight, bias, target, teacher = problem()
    given = {"hidden": hidden, "weight": weight, "target": target, "teacher_logprob": teacher, "bias": bias, **change}
    with pytest.raises((ValueError, flp.FlpError), match=message):
        flp.distill_loss(**given)
