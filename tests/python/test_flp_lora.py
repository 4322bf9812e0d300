"""flp.Lora: a low-rank adapter on the head, its values and gradients against float64."""
import pytest

torch = pytest.importorskip("torch")
import flp  # noqa: E402


def tensors(dtype=torch.float32, rank=8, n=9, hidden=24, vocab=70, adapter=None):
    torch.manual_seed(3)
    made = [torch.randn(n, hidden), torch.randn(rank, hidden) * 0.3, torch.randn(vocab, rank) * 0.3]
    kinds = [dtype, adapter or dtype, adapter or dtype]
    hidden_, a, b = (x.to(kind).requires_grad_() for x, kind in zip(made, kinds))
    return hidden_, (torch.randn(vocab, hidden) * 0.3).to(dtype), a, b, torch.randint(vocab, (n,))


def truth(hidden, weight, a, b, target, scale, temperature=1.0):
    """logprob, entropy in float64, with autograd; u rounded to hidden's dtype, its rounding not differentiated."""
    h, w, a64, b64 = hidden.double(), weight.double(), a.to(hidden.dtype).double(), b.to(hidden.dtype).double()
    u = scale * (h @ a64.t())
    u = u + (u.detach().float().to(hidden.dtype).double() - u.detach())
    logp = torch.log_softmax((h @ w.t() + u @ b64.t()) / temperature, -1)
    return logp.gather(-1, target[:, None]).squeeze(-1), -(logp.exp() * logp).sum(-1)


def gradients(values, inputs):
    return torch.autograd.grad((values[0] * torch.linspace(-1, 2, len(values[0]))).sum() + 0.3 * values[1].sum(), inputs)


@pytest.mark.parametrize("dtype,adapter,rank,bound", [
    (torch.float32, None, 8, 1e-5), (torch.float32, None, 3, 1e-5), (torch.bfloat16, None, 16, 1e-2),
    (torch.bfloat16, torch.float32, 4, 1e-2), (torch.float16, None, 24, 2e-3)])
def test_values_and_gradients(dtype, adapter, rank, bound):
    hidden, weight, a, b, target = tensors(dtype, rank, adapter=adapter)
    made = flp.linear_logprob(hidden, weight, target, entropy=True, temperature=0.7, lora=flp.Lora(a, b, 1.5))
    want = truth(hidden, weight, a, b, target, 1.5, 0.7)
    near = 1e-4 if dtype is torch.float32 else 2e-3  # u rounds to another neighbour where its sum in fp32 differs
    assert all(torch.allclose(x.double(), y, atol=near) for x, y in zip(made, want))
    got, wanted = (gradients(values, (hidden, a, b)) for values in (made, want))
    for x, y in zip(got, wanted):
        assert x.dtype is y.dtype and (x.double() - y.double()).norm() <= bound * y.double().norm()


def test_shapes_rows_and_the_reference_in_one_call():
    hidden, weight, a, b, target = tensors(n=12)
    shaped = hidden.reshape(3, 4, -1)
    logprob, reference = flp.linear_logprob(shaped, weight, target.reshape(3, 4), lora=flp.Lora(a, b), reference=True)
    plain = flp.linear_logprob(hidden.detach(), weight, target)
    assert logprob.shape == (3, 4) and not reference.requires_grad and logprob.requires_grad
    assert torch.equal(reference.flatten(), plain) and not torch.allclose(logprob.flatten(), plain, atol=1e-3)
    three = flp.linear_logprob(shaped, weight, target.reshape(3, 4), entropy=True, lora=flp.Lora(a, b), reference=True)
    assert len(three) == 3 and torch.equal(three[2], reference) and torch.equal(three[0], logprob)
    some = flp.linear_logprob(hidden, weight, target, rows=torch.tensor([2, 5]), lora=flp.Lora(a, b))
    assert torch.equal(some[[2, 5]], logprob.flatten()[[2, 5]]) and not some[[0, 1, 3]].any()


@pytest.mark.parametrize("off", ["b", "scale"])
def test_an_adapter_that_does_nothing_leaves_every_bit(off):
    hidden, weight, a, b, target = tensors(torch.bfloat16)
    lora = flp.Lora(a, torch.zeros_like(b) if off == "b" else b, 0.0 if off == "scale" else 2.0)
    made = flp.linear_logprob(hidden, weight, target, entropy=True, lora=lora)
    plain = flp.linear_logprob(hidden, weight, target, entropy=True)
    assert all(torch.equal(x, y) for x, y in zip(made, plain))
    assert torch.equal(*(torch.autograd.grad(x[0].sum(), hidden)[0] for x in (made, plain)))


def test_no_second_derivative():
    hidden, weight, a, b, target = tensors()
    made = torch.autograd.grad(flp.linear_logprob(hidden, weight, target, lora=flp.Lora(a, b)).sum(), a, create_graph=True)
    with pytest.raises(RuntimeError, match="second derivative"):
        made[0].sum().backward()
