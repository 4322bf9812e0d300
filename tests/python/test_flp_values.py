"""linear_logprob on both engines: central differences, sizes, digits, the largest scores, autograd and autocast."""
import math

import pytest
import torch

import flp
from flp_reference import DEVICE, GRAD_TOLERANCE, close, doubles, problem, reference, relative

pytestmark = pytest.mark.usefixtures("engine")


def test_gradients_by_central_differences():
    """Independent of the reference's derivative: only values of flp are used. Steps of 2^-6 lose h² ≈ 2e-4."""
    hidden, weight, target, bias = problem(n=3, vocab=17, depth=8, bias=True)
    keywords = {"temperature": 0.8, "softcap": 3.0, "scale": 1.2, "entropy": True}

    def loss_of(*operands):
        logprob, entropy = flp.linear_logprob(operands[0], operands[1], target, operands[2], **keywords)
        return logprob.double().sum() + 0.5 * entropy.double().sum()

    operands = [tensor.clone().requires_grad_() for tensor in (hidden, weight, bias)]
    loss_of(*operands).backward()
    step = 2.0**-6
    for place, tensor in enumerate((hidden, weight, bias)):
        for element in range(0, tensor.numel(), 5):
            moved = []
            for sign in (1, -1):
                copies = [hidden.clone(), weight.clone(), bias.clone()]
                copies[place].view(-1)[element] += sign * step
                moved.append(float(loss_of(*copies)))
            difference = (moved[0] - moved[1]) / (2 * step)
            assert float(operands[place].grad.view(-1)[element]) == pytest.approx(difference, abs=2e-3)


def test_autograd_grad_of_one_input_leaves_the_others():
    hidden, weight, target, _ = problem()
    hidden.requires_grad_(), weight.requires_grad_()
    main_grad = torch.zeros_like(weight)
    loss = flp.linear_logprob(hidden, weight, target, grad_weight_accumulate=main_grad).sum()
    (grad,) = torch.autograd.grad(loss, [hidden])
    wide = doubles(hidden, weight)
    reference(*wide, target)[0].sum().backward()
    assert relative(grad, wide[0].grad) < GRAD_TOLERANCE[torch.float32]
    assert weight.grad is None
    # Before torch 2.0 a backward pass cannot know that the weight's gradient is of no use.
    assert bool(main_grad.any()) == (not hasattr(torch._C, "_will_engine_execute_node"))


@pytest.mark.parametrize("largest,alive", [(0.99, True), (1.01, False), (-0.99, True), (-1.01, False)])
def test_the_largest_score_decides_on_a_row(largest, alive):
    """Up to 2^30 in units of ln 2, and whatever stands below it."""
    octave, top = math.log(2), largest * 2**30
    weight = torch.tensor([top, top - 2**28, -2.0**100], device=DEVICE).mul(octave)[:, None].repeat(1, 8)
    hidden, target = torch.eye(8, device=DEVICE)[:3], torch.tensor([0, 1, 2], device=DEVICE)
    logprob, entropy = flp.linear_logprob(hidden, weight, target, entropy=True)
    assert (logprob.isnan() | entropy.isnan()).tolist() == [not alive] * 3
    if alive:
        close(logprob.cpu(), torch.tensor([0.0, -2.0**28 * octave, -2.0**100 * octave], dtype=torch.float64))
        flp.check(DEVICE)
    else:
        with pytest.raises(flp.DataError, match="3"):
            flp.check(DEVICE)


def test_shifted_scores_keep_their_digits():
    """Scores near 1e4 with gaps of order 1, exact in fp32: the uncentred form would lose three digits."""
    hidden = torch.zeros(4, 8, device=DEVICE)
    hidden[:, 0], hidden[:, 1] = 1.0, torch.arange(4, device=DEVICE) / 4
    weight = torch.zeros(40, 8, device=DEVICE)
    weight[:, 0], weight[:, 1] = 8192.0, torch.arange(40, device=DEVICE) / 8
    target = torch.tensor([0, 13, 39, 20], device=DEVICE)
    want = reference(hidden.double(), weight.double(), target)
    logprob, entropy = flp.linear_logprob(hidden, weight, target, entropy=True)
    assert torch.allclose(logprob.double(), want[0], atol=0, rtol=1e-6)
    assert torch.allclose(entropy.double(), want[1], atol=0, rtol=2e-6)


@pytest.mark.parametrize("vocab, depth", [(2, 8), (7, 8), (2049, 16), (4099, 24)])
def test_ragged_sizes(vocab, depth):
    hidden, weight, target, _ = problem(n=5, vocab=vocab, depth=depth, dtype=torch.bfloat16)
    target[0] = vocab - 1
    hidden.requires_grad_(), weight.requires_grad_()
    logprob = flp.linear_logprob(hidden, weight, target)
    wide = doubles(hidden, weight)
    want = reference(*wide, target)[0]
    close(logprob, want)
    logprob.sum().backward()
    want.sum().backward()
    for mine, exact in zip((hidden, weight), wide):
        assert relative(mine.grad, exact.grad) < GRAD_TOLERANCE[torch.bfloat16]


def test_autocast_is_followed():
    dtype, (hidden, weight, target, bias) = torch.bfloat16, problem(bias=True)
    plain = flp.linear_logprob(hidden.to(dtype), weight.to(dtype), target, bias.to(dtype))
    hidden.requires_grad_(), weight.requires_grad_()
    with torch.autocast(torch.device(DEVICE).type, dtype=dtype):
        cast = flp.linear_logprob(hidden, weight.to(dtype), target, bias)
    assert torch.equal(cast, plain)
    cast.sum().backward()
    assert hidden.grad.dtype is torch.float32 and weight.grad.dtype is torch.float32


@pytest.mark.skipif(DEVICE == "cpu", reason="TF32 is a setting of CUDA")
def test_tf32_settings_are_left_as_they_were():
    hidden, weight, target, _ = problem(depth=1024)
    want = reference(hidden.double(), weight.double(), target)[0]
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        close(flp.linear_logprob(hidden, weight, target), want)
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)
