"""What only a GPU shows of save, stream and direction modes: that they run, their errors beside recompute mode's, graphs,
memory, no waiting."""
import pytest
import torch

import flp
from flp._library import _c
from flp._passes import _run
from flp._tensors import _check
from flp_reference import DEVICE, doubles, problem, relative
from graphs import capture, warm_up

pytestmark = pytest.mark.skipif(torch.device(DEVICE).type != "cuda", reason="FLP_TEST_DEVICE names no GPU")

B, T, V, D = 4, 1024, 65536, 1024  # where the planner takes save and stream modes by itself
N = B * T


class Batch:
    """bf16 operands of N rows, and what GRPO with a divergence and an entropy bonus reads."""

    def __init__(self, scale=1.0, dtype=torch.bfloat16):
        hidden, weight, target, _ = problem(n=N, vocab=V, depth=D, dtype=dtype)
        self.hidden = (hidden * scale).view(B, T, D).requires_grad_()
        self.weight, self.target = weight.requires_grad_(), target.view(B, T)
        generator = torch.Generator(device=DEVICE).manual_seed(4)
        logprob = flp.linear_logprob(self.hidden, self.weight, self.target).detach()
        self.old, self.ref = (logprob + 0.2 * torch.randn(B, T, device=DEVICE, generator=generator) for _ in range(2))
        self.advantage = torch.randn(B, device=DEVICE, generator=generator)
        self.mask = torch.rand(B, T, device=DEVICE, generator=generator) < 0.9

    def rows(self, **options):
        return {"old_logprob": self.old, "ref_logprob": self.ref, "beta": 0.04, "entropy_weight": 1e-3, "mask": self.mask,
                **options}

    def step(self, **options):
        return flp.policy_loss("grpo", self.hidden, self.weight, self.target, self.advantage, **self.rows(), **options)

    def exact(self):
        """Loss and gradients in float64."""
        hidden, weight = doubles(self.hidden, self.weight)
        logp = torch.log_softmax(hidden @ weight.t(), -1)
        logprob, entropy = logp.gather(-1, self.target[..., None])[..., 0], -(logp.exp() * logp).sum(-1)
        loss, _ = flp.losses.policy_loss("grpo", logprob, self.advantage, **self.rows(entropy=entropy))
        return loss, torch.autograd.grad(loss, [hidden, weight])

    def grads(self, loss):
        return torch.autograd.grad(loss, [self.hidden, self.weight], retain_graph=True)

    def saved(self, save, **options):
        logprob, entropy = flp.linear_logprob(self.hidden, self.weight, self.target, entropy=True, save=save, **options)
        return (logprob * self.old).sum() + 0.1 * entropy.sum()

    def frozen(self, save=None, **options):
        """Of a frozen head; the entropy adds to the value alone."""
        logprob, entropy = flp.linear_logprob(self.hidden, self.weight.detach(), self.target, entropy="detached",
                                              save=save, **options)
        return (logprob * self.old).sum() + 0.1 * entropy.sum()


def test_stream_mode_runs_and_is_right():
    batch = Batch()
    step = flp.explain(batch.hidden, batch.weight, batch.target, loss="grpo+k3+entropy", entropy=True).step
    assert (step["mode"], step["products"]) == ("stream", 3)
    frozen = flp.explain(batch.hidden, batch.weight.detach(), batch.target, loss="grpo+k3").step
    assert (frozen["mode"], frozen["products"]) == ("stream", 2)
    want, wanted = batch.exact()
    loss, metrics = batch.step()
    assert abs(loss.item() - want.item()) < 2e-5 and 0 < metrics["clip_fraction"].item() < 1
    over = flp.linear_logprob(batch.hidden, batch.weight, batch.target, entropy=True, save=False)
    apart, _ = flp.losses.policy_loss("grpo", over[0], batch.advantage, **batch.rows(entropy=over[1]))
    for got, expected, recomputed in zip(batch.grads(loss), wanted, batch.grads(apart)):
        assert relative(got, expected) < 1.5 * relative(recomputed, expected)


def test_fp16_under_a_loss_scale():
    """65536, where torch.amp.GradScaler begins, is infinite in fp16; a token's share without it is nearly 0."""
    batch, scale = Batch(dtype=torch.float16), 65536.0
    _, wanted = batch.exact()
    for got, expected in zip(batch.grads(batch.step()[0] * scale), wanted):
        assert got.dtype is torch.float16 and relative(got, scale * expected) < 1.5e-3


def test_a_factor_is_not_rounded_to_bf16():
    """CUDA rounds a factor without dimensions to the dtype of the tensor: 1/3 to 0.334."""
    batch = Batch()
    plain, third = (batch.grads(batch.step()[0] * factor) for factor in (1.0, torch.tensor(1 / 3, device=DEVICE)))
    assert all(torch.equal(got, (whole.float() / 3).bfloat16()) for got, whole in zip(third, plain))


def test_a_grad_scaler_trains_fp16():
    """torch's own, over fp32 parameters of fp16 operands: no step of its usual scale is left out."""
    batch, scaler = Batch(dtype=torch.float16), torch.cuda.amp.GradScaler()
    parameters = [leaf.detach().float().requires_grad_() for leaf in (batch.hidden, batch.weight)]
    optimizer, values = torch.optim.SGD(parameters, lr=2.0), []
    for _ in range(4):
        batch.hidden, batch.weight = (parameter.half() for parameter in parameters)
        loss, _ = flp.policy_loss("nll", batch.hidden, batch.weight, batch.target)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        values.append(loss.item())
    assert scaler.get_scale() == 65536 and sorted(values, reverse=True) == values and values[-1] < values[0]


def test_the_callers_buffer_gathers():
    batch = Batch()
    _, (_, wanted) = batch.exact()
    buffer = torch.zeros(V, D, device=DEVICE)
    for _ in range(2):
        loss, _ = batch.step(grad_weight_accumulate=buffer, grad_scale=0.5)
        (0.5 * loss).backward()
    assert relative(buffer, wanted) < 6e-3 and batch.weight.grad is None and batch.hidden.grad.isfinite().all()


@pytest.mark.parametrize("scale", [1.0, 30.0], ids=["random", "peaked"])
def test_save_mode_is_as_right_as_recompute_mode(scale):
    batch = Batch(scale)
    info = flp.explain(batch.hidden, batch.weight, batch.target, entropy=True, save=True)
    assert info.backward["mode"] == "save" and info.forward["products"] + info.backward["products"] == 3
    hidden, weight = doubles(batch.hidden, batch.weight)
    logp = torch.log_softmax(hidden @ weight.t(), -1)
    logprob, entropy = logp.gather(-1, batch.target[..., None])[..., 0], -(logp.exp() * logp).sum(-1)
    wanted = torch.autograd.grad((logprob * batch.old).sum() + 0.1 * entropy.sum(), [hidden, weight])
    lse = torch.logsumexp(hidden @ weight.t(), -1).detach()
    recomputed = batch.grads(batch.saved(False))
    for kept in (batch.saved(True), batch.saved(True, old_lse=lse)):
        first, second = batch.grads(kept), batch.grads(kept)   # the second pass recomputes
        for got, again, other, expected in zip(first, second, recomputed, wanted):
            assert relative(got, expected) < 1.5 * relative(other, expected) and torch.equal(again, other)


@pytest.mark.parametrize("options", [{}, {"softcap": 20.0}, {"temperature": 0.7}], ids=str)
def test_directions_are_as_right_as_recomputing(options):
    batch = Batch()
    info = flp.explain(batch.hidden, batch.weight.detach(), batch.target, entropy="detached", **options)
    assert (info.forward["mode"], info.forward["products"], info.backward["products"]) == ("direction", 2, 0)
    assert info.backward["saved_bytes"] < N * D * 4 + (1 << 20)
    hidden, weight = doubles(batch.hidden, batch.weight)
    scores = hidden @ weight.detach().t()
    if "softcap" in options:
        scores = options["softcap"] * torch.tanh(scores / options["softcap"])
    logp = torch.log_softmax(scores / options.get("temperature", 1.0), -1)
    wanted, = torch.autograd.grad((logp.gather(-1, batch.target[..., None])[..., 0] * batch.old).sum(), hidden)
    kept, recomputed = batch.frozen(**options), batch.frozen(save=False, **options)
    assert torch.equal(kept, recomputed)
    first, second = (torch.autograd.grad(kept, batch.hidden, retain_graph=True)[0] for _ in range(2))
    other, = torch.autograd.grad(recomputed, batch.hidden)
    assert torch.equal(first, second) and relative(first, wanted) < 1.5 * relative(other, wanted)


def test_directions_over_vocab_shards():
    """The parts of both shards, of partials and directions from one forward pass of each."""
    batch, half = Batch(), V // 2
    logprob = flp.linear_logprob(batch.hidden, batch.weight.detach(), batch.target)
    whole, = torch.autograd.grad((logprob * batch.old).sum(), batch.hidden)
    hidden, target = batch.hidden.detach().view(N, D), batch.target.view(N)
    calls, partials, parts = [], [], 0
    for first in (0, half):
        settings = _check.Settings(1.0, None, 1.0, -100, None, False)
        settings.save, settings.wide_grads = None, _c.GRAD_HIDDEN
        settings.offset, settings.valid, settings.total = first, half, V
        ops = _run.Operands(hidden, batch.weight.detach()[first:first + half], None, target)
        kept = _run.keep_piece(ops, _run.settings_that_keep(ops, settings, {N: 1}, _c.GRAD_HIDDEN)[N], _c.GRAD_HIDDEN)
        partials.append(_run.partial(ops, kept.settings, kept))
        calls.append((ops, kept))
    combine = calls[0][1].plan, torch.stack(partials), target, None, None, calls[0][1].settings
    merged, _, stats = _run.combine(*combine)
    for ops, kept in calls:
        parts = parts + _run.backward(ops, kept.settings, _c.GRAD_HIDDEN, stats, batch.old.view(N), None, kept)[0]
    assert (merged - logprob.view(N)).abs().max() < 2e-5
    assert parts.dtype is torch.float32 and relative(parts.view(B, T, D), whole) < 6e-3


@pytest.mark.parametrize("way", ["step", "saved", "frozen"])
def test_they_are_captured_and_wait_for_nothing(way):
    batch = Batch()
    call = {"step": lambda: batch.step()[0], "saved": lambda: batch.saved(True), "frozen": batch.frozen}[way]
    leaves = [batch.hidden] if way == "frozen" else [batch.hidden, batch.weight]

    def step():
        batch.hidden.grad = batch.weight.grad = None
        loss = call()
        loss.backward()
        return loss.detach()

    warm_up(step)
    torch.cuda.synchronize()
    torch.cuda._sleep(500_000_000)
    step()
    assert not torch.cuda.current_stream().query()
    replay, captured = capture(step)
    grads = [leaf.grad for leaf in leaves]
    with torch.no_grad():
        batch.hidden.copy_(batch.hidden.roll(1, 0))
    replay()
    replayed = [captured.clone()] + [grad.clone() for grad in grads]
    eager = [step()] + [leaf.grad for leaf in leaves]
    assert all(torch.equal(a, b) for a, b in zip(replayed, eager))


def test_a_graph_of_each_pass_shares_directions():
    """Forward once, backward as often as one likes, with another upstream gradient each time."""
    batch = Batch()
    weight = batch.weight.detach()

    def logprob_of(hidden):
        return flp.linear_logprob(hidden, weight, batch.target)

    graphed = torch.cuda.make_graphed_callables(logprob_of, (torch.zeros_like(batch.hidden).requires_grad_(),))
    logprob = graphed(batch.hidden)
    for upstream in (batch.old, batch.ref):
        replayed = torch.autograd.grad(logprob, batch.hidden, upstream, retain_graph=True)[0].clone()
        assert torch.equal(replayed, torch.autograd.grad(logprob_of(batch.hidden), batch.hidden, upstream)[0])


def peak_of(call):
    call()
    torch.cuda.synchronize()
    held = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - held


def test_a_step_stays_within_budget_and_outputs():
    batch, budget = Batch(), 400 << 20
    buffer = torch.zeros(V, D, device=DEVICE)

    def step():
        batch.step(budget=budget, grad_weight_accumulate=buffer)

    slack = 64 * N * 4 + (1 << 20)  # what the loss reads and gives a row, metrics, rounding by the allocator
    assert peak_of(step) <= budget + batch.hidden.nbytes + slack


def test_exponentials_go_with_the_backward_pass():
    batch = Batch()
    loss = batch.saved(True)
    held = torch.cuda.memory_allocated()
    loss.backward(retain_graph=True)
    grads = batch.hidden.grad.nbytes + batch.weight.grad.nbytes
    assert torch.cuda.memory_allocated() <= held - 2 * N * V + grads + (1 << 20)


def test_a_frozen_head_stays_within_its_budget():
    """A forward pass that keeps directions, and its backward pass, beyond the gradient."""
    batch, budget = Batch(), 128 << 20

    def step():
        batch.frozen(budget=budget).backward()
        batch.hidden.grad = None

    info = flp.explain(batch.hidden, batch.weight.detach(), batch.target, entropy="detached", budget=budget)
    assert info.forward["mode"] == "direction" and info.forward["bytes"] + info.forward["saved_bytes"] <= budget
    assert peak_of(step) <= budget + batch.hidden.nbytes + 64 * N * 4 + (1 << 20)
