"""flp.Lora: shapes, the reference in one call, an adapter that does nothing."""
import pytest

torch = pytest.importorskip("torch")
import flp  # noqa: E402


def tensors(dtype=torch.float32, rank=8, n=9, hidden=24, vocab=70):
    torch.manual_seed(3)
    made = [torch.randn(n, hidden), torch.randn(rank, hidden) * 0.3, torch.randn(vocab, rank) * 0.3]
    hidden_, a, b = (x.to(dtype).requires_grad_() for x in made)
    return hidden_, (torch.randn(vocab, hidden) * 0.3).to(dtype), a, b, torch.randint(vocab, (n,))


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
