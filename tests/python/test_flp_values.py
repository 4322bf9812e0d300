"""Values and gradients against float64 torch, over dtypes and options, on both engines."""
import itertools
import math

import pytest
import torch

import flp
from flp_reference import (DEVICE, DTYPES, GRAD_TOLERANCE, close, doubles, problem, reference, relative)

pytestmark = pytest.mark.usefixtures("engine")

OPTIONS = [
    {}, {"entropy": True}, {"temperature": 0.7}, {"softcap": 5.0}, {"scale": 0.5}, {"bias": True},
    {"bias": True, "entropy": True, "temperature": 1.3, "softcap": 4.0, "scale": 1.5},
    {"entropy": True, "temperature": "rows", "bias": True},
]


def options_of(options, n):
    """Keyword arguments of both functions; whether there is a bias and an entropy."""
    options = dict(options)
    bias, entropy = options.pop("bias", False), options.pop("entropy", False)
    if options.get("temperature") == "rows":
        options["temperature"] = torch.linspace(0.5, 2.0, n, device=DEVICE)
    return options, bias, entropy


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_values_and_gradients(dtype, options):
    n = 13
    keywords, with_bias, entropy = options_of(options, n)
    hidden, weight, target, bias = problem(n=n, dtype=dtype, bias=with_bias, target_dtype=torch.int32)
    target[3] = -100
    wide = doubles(hidden, weight, bias)
    want_logprob, want_entropy = reference(wide[0], wide[1], target, wide[2], **keywords)
    narrow = [None if tensor is None else tensor.requires_grad_() for tensor in (hidden, weight, bias)]
    got = flp.linear_logprob(hidden, weight, target, bias, entropy=entropy, **keywords)
    got_logprob, got_entropy = got if entropy else (got, None)
    close(got_logprob, want_logprob)
    assert float(got_logprob.detach().max()) <= 0
    upstream = torch.linspace(-1, 2, n, device=DEVICE)
    want_loss, got_loss = (want_logprob * upstream).sum(), (got_logprob * upstream).sum()
    if entropy:
        close(got_entropy, want_entropy)
        want_loss, got_loss = want_loss + 0.3 * want_entropy.sum(), got_loss + 0.3 * got_entropy.sum()
    want_loss.backward()
    got_loss.backward()
    for mine, exact in zip(narrow, wide):
        if mine is not None:
            assert mine.grad.dtype is dtype
            assert relative(mine.grad, exact.grad) < GRAD_TOLERANCE[dtype]
    assert not narrow[0].grad[3].any()


@pytest.mark.parametrize("loss", ["logprob", "entropy"])
def test_gradient_of_one_output_alone(loss):
    hidden, weight, target, _ = problem()
    wide = doubles(hidden, weight)
    pick = 0 if loss == "logprob" else 1
    reference(*wide, target)[pick].sum().backward()
    narrow = [hidden.requires_grad_(), weight.requires_grad_()]
    flp.linear_logprob(*narrow, target, entropy=True)[pick].sum().backward()
    for mine, exact in zip(narrow, wide):
        assert relative(mine.grad, exact.grad) < GRAD_TOLERANCE[torch.float32]


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


@pytest.mark.parametrize("lead", [(), (5,), (2, 3), (2, 1, 4), (0,), (2, 0)])
def test_leading_dimensions_are_kept(lead):
    count = int(torch.Size(lead).numel())
    hidden, weight, target, _ = problem(n=count)
    hidden, target = hidden.reshape(*lead, 64).requires_grad_(), target.reshape(lead)
    weight.requires_grad_()
    logprob, entropy = flp.linear_logprob(hidden, weight, target, entropy=True)
    assert logprob.shape == entropy.shape == torch.Size(lead)
    close(logprob.reshape(-1), reference(hidden.reshape(-1, 64).double(), weight.double(), target.reshape(-1))[0])
    (logprob.sum() + entropy.sum()).backward()
    assert hidden.grad.shape == hidden.shape and weight.grad.shape == weight.shape
    assert bool(weight.grad.any()) == (count > 0)


@pytest.mark.parametrize("needs", [set(c) for r in range(1, 4) for c in itertools.combinations("hwb", r)], ids=str)
def test_only_the_gradients_asked_for(needs):
    hidden, weight, target, bias = problem(bias=True)
    wide = doubles(hidden, weight, bias)
    reference(wide[0], wide[1], target, wide[2])[0].sum().backward()
    narrow = [tensor.requires_grad_(name in needs) for name, tensor in zip("hwb", (hidden, weight, bias))]
    flp.linear_logprob(hidden, weight, target, bias).sum().backward()
    for name, mine, exact in zip("hwb", narrow, wide):
        if name in needs:
            assert relative(mine.grad, exact.grad) < GRAD_TOLERANCE[torch.float32]
        else:
            assert mine.grad is None


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


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_weight_gradient_is_added_to_the_callers_buffer(dtype):
    hidden, weight, target, _ = problem(dtype=dtype)
    hidden.requires_grad_(), weight.requires_grad_()
    main_grad = torch.full(weight.shape, 3.0, device=DEVICE)
    for _ in range(2):
        flp.linear_logprob(hidden, weight, target, grad_weight_accumulate=main_grad).sum().backward()
    assert weight.grad is None
    wide = doubles(hidden, weight)
    reference(*wide, target)[0].sum().backward()
    assert relative(main_grad - 3.0, 2 * wide[1].grad) < GRAD_TOLERANCE[dtype]


def test_ignore_index_of_ones_own():
    hidden, weight, target, _ = problem()
    target[::2] = 7
    hidden.requires_grad_(), weight.requires_grad_()
    logprob, entropy = flp.linear_logprob(hidden, weight, target, entropy=True, ignore_index=7)
    assert not logprob[::2].any() and not entropy[::2].any()
    wide = doubles(hidden, weight)
    want = reference(*wide, target, ignore_index=7)
    close(logprob, want[0])
    (logprob.sum() + entropy.sum()).backward()
    (want[0].sum() + want[1].sum()).backward()
    assert not hidden.grad[::2].any()
    assert relative(weight.grad, wide[1].grad) < GRAD_TOLERANCE[torch.float32]


def test_all_rows_ignored():
    hidden, weight, target, _ = problem()
    hidden.requires_grad_(), weight.requires_grad_()
    logprob = flp.linear_logprob(hidden, weight, torch.full_like(target, -100))
    assert not logprob.any()
    logprob.sum().backward()
    assert not hidden.grad.any() and not weight.grad.any()


@pytest.mark.parametrize("rows", [[5, 1, 5, 12], torch.tensor([0, 2], dtype=torch.int32), []], ids=str)
def test_row_list(rows):
    hidden, weight, target, _ = problem()
    target[1] = -100
    hidden.requires_grad_(), weight.requires_grad_()
    logprob = flp.linear_logprob(hidden, weight, target, rows=rows)
    wide = doubles(hidden, weight)
    want = reference(*wide, target, rows=rows)[0]
    close(logprob, want)
    logprob.sum().backward()
    want.sum().backward()
    for mine, exact in zip((hidden, weight), wide):
        assert torch.allclose(mine.grad.double(), exact.grad, atol=1e-5)
    flp.check(DEVICE)


def test_row_ids_outside_are_skipped_and_counted():
    hidden, weight, target, _ = problem()
    logprob = flp.linear_logprob(hidden, weight, target, rows=[0, -1, 13, 2**32, 4])
    assert torch.nonzero(logprob).flatten().tolist() == [0, 4]
    with pytest.raises(flp.DataError, match="3"):
        flp.check(DEVICE)
    flp.check(DEVICE)


@pytest.mark.parametrize("temperature", [torch.tensor(0.5), torch.tensor(0.5, dtype=torch.float64), 0.5], ids=str)
def test_scalar_temperature_in_any_form(temperature):
    hidden, weight, target, _ = problem()
    want = reference(hidden.double(), weight.double(), target, temperature=0.5)[0]
    close(flp.linear_logprob(hidden, weight, target, temperature=temperature), want)


def test_temperature_per_row_keeps_leading_dimensions():
    hidden, weight, target, _ = problem(n=6)
    temperature = torch.linspace(0.5, 2, 6, device=DEVICE)
    want = reference(hidden.double(), weight.double(), target, temperature=temperature)[0]
    got = flp.linear_logprob(hidden.reshape(2, 3, 64), weight, target.reshape(2, 3),
                             temperature=temperature.reshape(2, 3))
    close(got.reshape(-1), want)


@pytest.mark.parametrize("bad", [331, -1, 2**40, -2**40])
def test_target_outside_is_nan_in_its_row_only(bad):
    hidden, weight, target, bias = problem(bias=True)
    clean = flp.linear_logprob(hidden, weight, target, bias)
    target[4] = bad
    for tensor in (hidden, weight, bias):
        tensor.requires_grad_()
    logprob, entropy = flp.linear_logprob(hidden, weight, target, bias, entropy=True)
    assert logprob.isnan().nonzero().tolist() == entropy.isnan().nonzero().tolist() == [[4]]
    keep = torch.arange(13, device=DEVICE) != 4
    assert torch.equal(logprob[keep], clean[keep])
    logprob.sum().backward()
    assert hidden.grad[4].isnan().all() and not hidden.grad[keep].isnan().any()
    assert not weight.grad.isnan().any() and not bias.grad.isnan().any()
    with pytest.raises(flp.DataError):
        flp.check()
    flp.check()


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf"), 1e-40, 1e-12])
def test_bad_temperature_of_a_row_is_nan_in_its_row_only(bad):
    hidden, weight, target, _ = problem()
    temperature = torch.ones(13, device=DEVICE)
    temperature[2] = bad
    logprob = flp.linear_logprob(hidden, weight, target, temperature=temperature)
    assert logprob.isnan().nonzero().tolist() == [[2]]
    with pytest.raises(flp.DataError, match="1"):
        flp.check(DEVICE)


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


def test_nan_in_a_row_stays_in_it():
    hidden, weight, target, _ = problem()
    clean = flp.linear_logprob(hidden, weight, target)
    hidden[6, 3] = float("nan")
    hidden.requires_grad_()
    logprob = flp.linear_logprob(hidden, weight, target)
    assert logprob.isnan().nonzero().tolist() == [[6]]
    keep = torch.arange(13, device=DEVICE) != 6
    assert torch.equal(logprob[keep], clean[keep])
    logprob.sum().backward()
    assert not hidden.grad[keep].isnan().any() and hidden.grad[6].isnan().any()
    flp.check(DEVICE)


def test_all_scores_minus_infinity_is_nan():
    hidden, weight, target, _ = problem()
    bias = torch.full((331,), float("-inf"), device=DEVICE)
    assert flp.linear_logprob(hidden, weight, target, bias).isnan().all()


def test_minus_infinity_bias_removes_its_column():
    hidden, weight, target, _ = problem()
    bias = torch.zeros(331, device=DEVICE)
    gone = [v for v in range(331) if v not in set(target.tolist())][:50]
    bias[gone] = float("-inf")
    kept = torch.tensor([v for v in range(331) if v not in set(gone)], device=DEVICE)
    position = {int(v): i for i, v in enumerate(kept)}
    narrow = torch.tensor([position[int(v)] for v in target], device=DEVICE)
    want = reference(hidden.double(), weight[kept].double(), narrow)
    logprob, entropy = flp.linear_logprob(hidden, weight, target, bias, entropy=True)
    close(logprob, want[0])
    close(entropy, want[1])


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


def test_a_second_derivative_is_refused():
    hidden, weight, target, _ = problem()
    hidden.requires_grad_()
    (grad,) = torch.autograd.grad(flp.linear_logprob(hidden, weight, target).sum(), [hidden], create_graph=True)
    with pytest.raises(RuntimeError, match=r"^flp\.linear_logprob has no second derivative"):
        grad.sum().backward()


@pytest.mark.parametrize("dtype", [torch.bfloat16], ids=str)
def test_autocast_is_followed(dtype):
    hidden, weight, target, bias = problem(bias=True)
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
