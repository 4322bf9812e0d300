"""grad_weight_accumulate gets its gradient once, whatever makes the call again: torch.utils.checkpoint of both kinds, nested,
with and without its early stop, and hooks that move saved tensors. Without a backward pass it gets none there."""
import functools

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import flp
from flp_reference import DEVICE, problem

N, V, D = 6, 331, 64


def head():
    hidden, weight, target, bias = problem(n=N, vocab=V, depth=D, bias=True)
    return hidden.requires_grad_(), weight.requires_grad_(), target, bias.requires_grad_()


def batch(hidden, target):
    """Two sequences, and numbers of their tokens."""
    numbers = torch.linspace(-1, 1, N, device=DEVICE).view(2, 3)
    return hidden.view(2, 3, D), target.view(2, 3), numbers


def policy(rule, hidden, weight, target, bias, **options):
    hidden, target, numbers = batch(hidden, target)
    return flp.policy_loss(rule, hidden, weight, target, numbers, bias, old_logprob=numbers - 6, ref_logprob=numbers - 7,
                           beta=0.1, entropy_weight=0.01, temperature=numbers + 2, **options)[0]


def logprob(hidden, weight, target, bias, grad_scale=1.0, **options):
    return flp.linear_logprob(hidden, weight, target, bias, **options).sum()


def distilled(hidden, weight, target, bias, **options):
    several = torch.stack([target, (target + 1) % V], 1)
    return flp.distill_loss(hidden, weight, several, torch.full_like(several, -1, dtype=torch.float32), bias, **options)[0]


def diverged(function, hidden, weight, target, bias, grad_scale=1.0, **options):
    """From a teacher whose states are those of the rows behind."""
    if function is flp.divergence_loss and options:
        options["grad_scale"] = grad_scale
    found = function(hidden, weight, hidden.detach().flip(0), weight.detach(), "jsd", bias, **options)
    return found[0] if function is flp.divergence_loss else found.value.sum()


def cross_entropy(hidden, weight, target, bias, **options):
    return flp.cross_entropy(hidden, weight, target, bias, label_smoothing=0.1, z_loss=1e-3, **options)


CALLS = {"linear_logprob": logprob, "cross_entropy": cross_entropy, "distill_loss": distilled,
         "divergence": functools.partial(diverged, flp.divergence),
         "divergence_loss": functools.partial(diverged, flp.divergence_loss),
         **{rule: functools.partial(policy, rule) for rule in ("ppo", "grpo", "gspo")}}


def once(call, reentrant):
    return lambda *tensors: checkpoint(call, *tensors, use_reentrant=reentrant)


def without_early_stop(call):
    stop = getattr(torch.utils.checkpoint, "set_checkpoint_early_stop", None)
    if stop is None:
        pytest.skip("this torch has no early stop")

    def made(*tensors):
        with stop(False):
            return checkpoint(lambda *tensors: call(*tensors) * 1, *tensors, use_reentrant=False)
    return made


def moved(call):
    def made(*tensors):
        with torch.autograd.graph.saved_tensors_hooks(torch.clone, torch.clone):
            return call(*tensors)
    return made


WAYS = {"plain": lambda call: call, "checkpoint": lambda call: once(call, False), "reentrant": lambda call: once(call, True),
        "nested": lambda call: once(once(call, False), False), "reentrant in one": lambda call: once(once(call, True), False),
        "one in reentrant": lambda call: once(once(call, False), True), "no early stop": without_early_stop, "moved": moved,
        "followed by more": lambda call: once(lambda *tensors: call(*tensors).exp().log(), False)}


def gradients(call, way, scale=1.0, buffer=None, times=1):
    leaves = hidden, weight, target, bias = head()
    options = {} if buffer is None else {"grad_weight_accumulate": buffer, "grad_scale": scale}
    for _ in range(times):
        (WAYS[way](functools.partial(call, **options))(*leaves) * scale).backward()
    return hidden.grad, weight.grad, bias.grad


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CALLS)
def test_a_buffer_gets_its_gradient_once(name, way):
    want_hidden, want_weight, want_bias = gradients(CALLS[name], "plain", 0.5, times=2)
    buffer = torch.full((V, D), 0.25, device=DEVICE)
    hidden, weight, bias = gradients(CALLS[name], way, 0.5, buffer, times=2)
    assert weight is None
    for got, want in ((buffer - 0.25, want_weight), (hidden, want_hidden), (bias, want_bias)):
        torch.testing.assert_close(got, want, atol=2e-6, rtol=2e-5)


@pytest.mark.parametrize("way", ["checkpoint", "reentrant", "nested"])
@pytest.mark.parametrize("name", CALLS)
def test_without_a_backward_pass_it_gets_none_there(name, way):
    buffer = torch.zeros(V, D, device=DEVICE)
    WAYS[way](functools.partial(CALLS[name], grad_weight_accumulate=buffer))(*head())
    assert not buffer.any()


STEPS = [name for name in CALLS if name not in ("linear_logprob", "divergence", "gspo")]


@pytest.mark.parametrize("way", ["plain", "checkpoint"])
@pytest.mark.parametrize("name", STEPS)
def test_one_backward_pass_and_its_scale(name, way):
    """Another upstream gradient than the buffer was told of makes the gradients NaN."""
    buffer = torch.zeros(V, D, device=DEVICE)
    leaves = hidden, *_ = head()
    loss = WAYS[way](functools.partial(CALLS[name], grad_weight_accumulate=buffer, grad_scale=2.0))(*leaves)
    loss.backward(retain_graph=True)
    assert hidden.grad.isnan().all()
    with pytest.raises(RuntimeError, match="hands its gradients out once"):
        loss.backward()


@pytest.mark.parametrize("name", STEPS)
def test_without_gradients_it_is_the_same_value(name):
    loss = CALLS[name](*head())
    with torch.no_grad():
        quiet = CALLS[name](*head())
    assert not quiet.requires_grad and torch.equal(quiet, loss)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="hands its gradients out once"):
        loss.backward()
