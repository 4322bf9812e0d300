"""flp.policy_loss under factors that come after its gradients exist: loss scales of fp16, long batches, factors that
are no power of two, infinite ones."""
import math

import pytest
import torch
from flp_reference import DEVICE

import flp
from flp._functions import _scale
from flp._library import _c, _plans

V, D = 24, 8
UNIT = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, torch.float32: 2.0**-24}  # half of one in the last place
LEAST = {torch.float16: 2.0**-24, torch.bfloat16: 2.0**-133, torch.float32: 2.0**-149}
ROUNDINGS = {torch.float16: 1, torch.bfloat16: 2, torch.float32: 2}  # bf16 is rounded before the factor comes, too


class Batch:
    """Leaves of a dtype, and tokens of an update."""

    def __init__(self, dtype, tokens=96, seed=3):
        generator = torch.Generator().manual_seed(seed)

        def draw(*shape):
            return torch.randn(*shape, generator=generator)

        self.leaves = [x.to(dtype).to(DEVICE).requires_grad_() for x in (draw(4, tokens // 4, D), draw(V, D), draw(V))]
        self.target = torch.randint(V, (4, tokens // 4), generator=generator).to(DEVICE)
        self.advantage = draw(4).to(DEVICE)

    def loss(self, rule="ppo", **options):
        hidden, weight, bias = self.leaves
        return flp.policy_loss(rule, hidden, weight, self.target, self.advantage, bias, **options)[0]

    def exact(self, factor=1.0):
        """Gradients in float64, times the factor."""
        leaves = [leaf.detach().double().requires_grad_() for leaf in self.leaves]
        hidden, weight, bias = leaves
        logp = torch.log_softmax(torch.nn.functional.linear(hidden, weight, bias), -1)
        logprob = logp.gather(-1, self.target[..., None])[..., 0]
        return [factor * gradient for gradient in
                torch.autograd.grad(-(self.advantage[:, None].double() * logprob).mean(), leaves)]


def excess(got, wanted):
    """The largest error, in what the roundings of the dtype and fp32 sums, which cancel, may make of it."""
    allowed = ROUNDINGS[got.dtype] * UNIT[got.dtype] * wanted.abs() + LEAST[got.dtype] / 2 + 2e-6 * wanted.abs().max()
    return ((got.double() - wanted).abs() / allowed).max().item()


@pytest.mark.parametrize("dtype, factor", [
    *((torch.float16, factor) for factor in (65536.0, 1 / 3, 2.0**-10, 2.0**-20)),
    *((dtype, factor) for dtype in (torch.bfloat16, torch.float32)
      for factor in (65536.0, 1 / 3, 2.0**-20, 1e30, 1e-30))],
    ids=str)
def test_a_factor_that_comes_later_costs_one_rounding(dtype, factor):
    batch = Batch(dtype)
    got = torch.autograd.grad(batch.loss(), batch.leaves, torch.tensor(factor, device=DEVICE))
    for gradient, wanted in zip(got, batch.exact(torch.tensor(factor).item())):
        assert gradient.dtype is dtype and gradient.isfinite().all() and excess(gradient, wanted) <= 1


@pytest.fixture
def scaled(monkeypatch):
    """(rows, columns) of each call of flp_scale."""
    seen, execute = [], _plans.Plan.execute

    def recorded(plan, args, function="flp_execute"):
        if function == "flp_scale":
            seen.append((args.n, plan.key.vocab))
        return execute(plan, args, function)

    monkeypatch.setattr(_plans.Plan, "execute", recorded)
    return seen


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("factor", [1.0, 1 / 3, 65536.0, float("nan")])
@pytest.mark.parametrize("shape", [(5, 24), (24,), (1, 7)], ids=str)
def test_flp_scale_multiplies_in_place(dtype, factor, shape, scaled):
    values = torch.randn(shape, device=DEVICE).to(dtype)
    wanted = (values.float() * torch.tensor(factor)).to(dtype)
    out = _scale.times(values, torch.tensor([factor], device=DEVICE), dtype)
    assert out is values and scaled == [(shape[0] if len(shape) == 2 else 1, shape[-1])]
    assert torch.equal(out.nan_to_num(0.5), wanted.nan_to_num(0.5))


def test_rows_that_lie_apart_keep_their_gaps(scaled):
    held = torch.full((4, 32), 7.0, dtype=torch.bfloat16, device=DEVICE)
    values = held[:, :24]
    assert _scale.times(values, torch.tensor([0.5], device=DEVICE), torch.bfloat16) is values and scaled == [(4, 24)]
    assert (held[:, :24] == 3.5).all() and (held[:, 24:] == 7).all()


@pytest.mark.parametrize("values", [torch.ones(4, 8).t(), torch.ones(5, 1), torch.ones(0, 8), torch.ones(3, 4, 5),
                                    torch.ones(4, 8, dtype=torch.float64)], ids=lambda values: str(tuple(values.stride())))
def test_torch_multiplies_what_flp_scale_does_not_take(values, scaled):
    values = values.to(DEVICE).clone(memory_format=torch.preserve_format)
    out = _scale.times(values, torch.tensor([0.5], device=DEVICE), values.dtype)
    assert scaled == [] and out is values and (out == 0.5).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_the_product_is_formed_in_float32(dtype):
    """CUDA rounds a factor without dimensions to the dtype of the other operand, in which 65536 is infinite."""
    seen, mul = [], torch.mul

    def recorded(left, right, *, out):
        seen.append(torch.result_type(left, right))
        return mul(left, right, out=out)

    values = torch.tensor([[1.0, -3.0], [2.0**-14, 0.1]], device=DEVICE)
    torch.mul = recorded
    try:
        for given in (dtype, torch.float32):
            out = _scale.by_torch(values.to(given), torch.tensor([1 / 3], device=DEVICE), dtype)
            assert out.dtype is dtype
            assert torch.equal(out, (values.to(given).float() / 3).to(dtype))
    finally:
        torch.mul = mul
    assert seen == [torch.float32] * 2


@pytest.mark.parametrize("tokens", [100_000, pytest.param(1_000_000, marks=pytest.mark.long)])
def test_long_batches_under_a_loss_scale(tokens):
    """Each gradient of a token is below fp16's least number until the loss scale comes."""
    batch, scale = Batch(torch.float16, tokens), 65536.0
    (batch.loss() * scale).backward()
    for leaf, wanted in zip(batch.leaves, batch.exact(scale)):
        error = (leaf.grad.double() - wanted).norm() / wanted.norm()
        assert error < 1e-3, error


class Training:
    """Twelve steps as torch.amp.GradScaler drives them: fp32 parameters, steps of infinite gradients left out and the
    scale halved."""

    def __init__(self, dtype, scale):
        self.batch, self.dtype, self.scale, self.left_out = Batch(torch.float32), dtype, scale, 0
        wide = torch.promote_types(dtype, torch.float32)
        self.parameters = [leaf.detach().to(wide).requires_grad_() for leaf in self.batch.leaves]
        self.optimizer = torch.optim.SGD(self.parameters, lr=0.5)
        self.losses = torch.tensor([value for value in (self.step() for _ in range(12)) if value is not None])

    def loss(self):
        if self.dtype is not torch.float64:
            self.batch.leaves = [parameter.to(self.dtype) for parameter in self.parameters]
            return self.batch.loss("nll")
        hidden, weight, bias = self.parameters
        logits = torch.nn.functional.linear(hidden, weight, bias)
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), self.batch.target.flatten())

    def step(self):
        self.optimizer.zero_grad()
        loss = self.loss()
        (loss * self.scale).backward()
        if not all(parameter.grad.isfinite().all() for parameter in self.parameters):
            self.left_out, self.scale = self.left_out + 1, self.scale / 2
            return None
        for parameter in self.parameters:
            parameter.grad /= self.scale
        self.optimizer.step()
        return loss.item()


def test_training_under_a_loss_scale():
    exact, usual, high = (Training(dtype, scale) for dtype, scale in (
        (torch.float64, 1.0), (torch.float16, 65536.0), (torch.float16, 2.0**26)))
    assert usual.left_out == 0 and exact.losses[-1] < exact.losses[0] - 0.05
    assert (usual.losses - exact.losses).abs().max() < 2e-3
    assert 0 < high.left_out < 10 and (high.losses - exact.losses[:len(high.losses)]).abs().max() < 2e-3


@pytest.mark.parametrize("factor", [0.0, math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("dtype", list(UNIT), ids=str)
def test_factors_at_the_ends_do_what_torch_does(dtype, factor):
    batch = Batch(dtype)
    got = torch.autograd.grad(batch.loss(), batch.leaves, torch.tensor(factor, device=DEVICE))
    for gradient, finite in zip(got, torch.autograd.grad(batch.loss(), batch.leaves)):
        wanted = finite * torch.tensor(factor, device=DEVICE)
        torch.testing.assert_close(gradient, wanted, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype, known, wide", [(torch.float16, False, True), (torch.float16, True, False),
                                                (torch.bfloat16, False, False)], ids=str)
def test_what_waits_for_a_factor_is_float32_of_fp16_alone(dtype, known, wide):
    batch = Batch(dtype)
    buffer = {"grad_weight_accumulate": torch.zeros(V, D, device=DEVICE)} if known else {}
    flp.clear_plans()
    batch.loss(grad_scale=65536.0 if known else 1.0, **buffer)
    key, = [plan.key for plan in _plans.existing()]
    float32 = _c.DTYPE_FP32 if wide else 0
    assert (key.grad_hidden_dtype, key.grad_bias_dtype) == (float32, float32)
    assert key.grad_weight_dtype == (_c.DTYPE_FP32 if known else float32)
    hidden, weight, bias = batch.leaves
    flp.explain(hidden, weight, batch.target, bias, loss="ppo", **buffer)
    assert [plan.key for plan in _plans.existing()] == [key]  # the one that runs is explained


def test_a_factor_that_was_told_is_in_the_gradients():
    """With the caller's buffer the scale is known: fp16 gradients have it from the start."""
    batch, buffer = Batch(torch.float16), torch.zeros(V, D, device=DEVICE)
    (batch.loss(grad_weight_accumulate=buffer, grad_scale=65536.0) * 65536.0).backward()
    hidden, weight, bias = batch.exact(65536.0)
    assert batch.leaves[1].grad is None
    for got, wanted in ((batch.leaves[0].grad, hidden), (batch.leaves[2].grad, bias), (buffer, weight)):
        assert (got.double() - wanted).norm() / wanted.norm() < 1e-3
