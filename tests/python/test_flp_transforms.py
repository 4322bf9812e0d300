"""torch.func and forward-mode AD: gradients of reverse mode are autograd's own, all else is refused in one sentence."""
import pytest
import torch
import torch.autograd.forward_ad as forward_ad

import flp
from flp_reference import DEVICE, problem

needs_func = pytest.mark.skipif(not hasattr(torch, "func"), reason="torch before 2.0 has no torch.func")
REVERSE = r"reverse mode: torch\.autograd, or torch\.func\.grad, vjp and jacrev without vmap"
FORWARD_MODE = r" does not support forward-mode derivatives, such as torch\.func\.jvp \(accepted: " + REVERSE + r"\)$"
VMAP = r" does not support torch\.func\.vmap \(accepted: one call with the batch in the leading dimensions\)$"
BATCH = r" does not support a batch of upstream gradients \(accepted: one backward pass for each upstream gradient: "


class Head:
    """linear_logprob as a function of hidden."""

    name = r"^flp\.linear_logprob"

    def __init__(self):
        self.first, self.weight, self.target, self.bias = problem(bias=True)
        self.tensors = self.first, self.weight, self.bias

    def values(self, hidden, weight=None, bias=None):
        return flp.linear_logprob(hidden, self.weight if weight is None else weight, self.target,
                                  self.bias if bias is None else bias, entropy=True, temperature=0.7)


class Scores:
    """selective_log_softmax."""

    name = r"^flp\.selective_log_softmax"

    def __init__(self):
        self.first = torch.randn(13, 50, generator=torch.Generator().manual_seed(2)).to(DEVICE)
        self.index = torch.arange(26, device=DEVICE).view(13, 2)
        self.tensors = (self.first,)

    def values(self, logits):
        return flp.selective_log_softmax(logits, self.index, entropy=True, temperature=0.7)


@pytest.fixture(params=[Head, Scores], ids=["head", "scores"])
def call(request):
    made = request.param()
    made.loss = lambda *tensors: sum((values * torch.linspace(-1, 1, values.numel(), device=DEVICE).view(
        values.shape)).sum() for values in made.values(*tensors))
    return made


def refused(words, function, *arguments):
    with pytest.raises(flp.errors.UnsupportedError, match=words):
        function(*arguments)


@needs_func
def test_gradients_are_those_of_autograd(call, engine):
    leaves = [tensor.clone().requires_grad_() for tensor in call.tensors]
    want = torch.autograd.grad(call.loss(*leaves), leaves)
    got = torch.func.grad(call.loss, argnums=tuple(range(len(leaves))))(*call.tensors)
    assert len(got) == len(want) and all(map(torch.equal, got, want))
    for place, gradient in enumerate(want):
        assert torch.equal(torch.func.grad(call.loss, argnums=place)(*call.tensors), gradient)
    value, pull = torch.func.vjp(call.loss, *call.tensors)
    assert torch.equal(value, call.loss(*call.tensors)) and all(map(torch.equal, pull(torch.ones_like(value)), want))
    assert torch.equal(torch.func.grad(lambda x: call.values(x)[0].sum())(call.first),
                       torch.autograd.grad(call.values(leaves[0])[0].sum(), leaves[0])[0])


@needs_func
def test_functional_call():
    head = Head()

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros_like(head.weight))

        def forward(self, hidden):
            return flp.linear_logprob(hidden, self.weight, head.target).sum()

    leaf = head.weight.clone().requires_grad_()
    want = torch.autograd.grad(flp.linear_logprob(head.first, leaf, head.target).sum(), leaf)[0]
    model = Model()
    got = torch.func.grad(lambda weights: torch.func.functional_call(model, weights, (head.first,)))({"weight": leaf})
    assert torch.equal(got["weight"], want)


@needs_func
def test_a_detached_entropy_is_a_constant():
    head = Head()

    def loss(hidden):
        logprob, entropy = flp.linear_logprob(hidden, head.weight, head.target, entropy="detached")
        return logprob.sum() + entropy.sum()

    leaf = head.first.clone().requires_grad_()
    want, = torch.autograd.grad(flp.linear_logprob(leaf, head.weight, head.target).sum(), leaf)
    assert torch.equal(torch.func.grad(loss)(head.first), want)


@needs_func
def test_vmap_is_refused(call):
    refused(call.name + VMAP, torch.vmap(call.loss), torch.stack([call.first] * 2))
    refused(call.name + VMAP, torch.vmap(torch.func.grad(call.loss)), torch.stack([call.first] * 2))
    assert torch.equal(torch.vmap(lambda x: x + call.loss(call.first))(torch.zeros(2, device=DEVICE)),
                       call.loss(call.first).expand(2))


@needs_func
def test_forward_mode_of_torch_func_is_refused(call):
    refused(call.name + FORWARD_MODE, torch.func.jvp, call.loss, (call.first,), (call.first,))
    refused(call.name + FORWARD_MODE, torch.func.jacfwd(call.loss), call.first)
    refused(call.name + FORWARD_MODE, torch.func.hessian(call.loss), call.first)


def test_dual_tensors_are_refused(call):
    """Their tangents would be dropped, which reads as a derivative of 0."""
    with forward_ad.dual_level():
        for first in (call.first, call.first.clone().requires_grad_()):
            refused(call.name + FORWARD_MODE, call.values, forward_ad.make_dual(first, torch.ones_like(first)))
        assert torch.equal(call.values(call.first)[0], call.values(call.first.clone())[0])


@needs_func
def test_functionalize_is_refused(call):
    refused(call.name + r" does not support torch\.func\.functionalize ", torch.func.functionalize(call.loss),
            call.first)


def test_batches_of_upstream_gradients_are_refused(call):
    leaf = call.first.clone().requires_grad_()
    logprob = call.values(leaf)[0]
    upstream = torch.ones((2, *logprob.shape), device=DEVICE)
    refused(r"^a backward pass of flp" + BATCH, lambda: torch.autograd.grad(logprob, leaf, upstream,
                                                                            is_grads_batched=True))
    if hasattr(torch, "func"):
        refused(call.name + BATCH, torch.func.jacrev(lambda x: call.values(x)[0]), call.first)


def test_second_derivatives_are_refused(call):
    leaf = call.first.clone().requires_grad_()
    gradient = torch.autograd.grad(call.loss(leaf), leaf, create_graph=True)[0]
    message = call.name + r" has no second derivative \(accepted: one backward pass over it\)$"
    with pytest.raises(RuntimeError, match=message):
        (gradient.sum() + leaf.sum()).backward()
    if hasattr(torch, "func"):
        with pytest.raises(RuntimeError, match=message):
            torch.func.grad(lambda x: torch.func.grad(call.loss)(x).sum())(call.first)


@needs_func
@pytest.mark.parametrize("word, options", [
    ("save=True", {"save": True}), ("tail", {"tail": 2.0**-9}),
    ("tail_report", {"tail_report": torch.zeros(4, device=DEVICE)}),
    ("grad_weight_accumulate", {"grad_weight_accumulate": torch.zeros(331, 64, device=DEVICE)})], ids=str)
def test_what_torch_func_cannot_have(word, options):
    head = Head()
    words = r"^flp\.linear_logprob does not support %s under torch\.func \(accepted: None there\)$" % word
    refused(words, torch.func.grad(lambda w: flp.linear_logprob(head.first, w, head.target, **options).sum()),
            head.weight)
    assert torch.func.grad(lambda x: flp.linear_logprob(x, head.weight, head.target, tail=0).sum())(head.first).any()


@needs_func
def test_functions_that_no_transform_takes():
    head = Head()
    target = head.target.view(1, 13)

    def policy(hidden):
        return flp.policy_loss("nll", hidden.unsqueeze(0), head.weight, target)[0]

    def shard(hidden):
        return flp.linear_logprob_partial(hidden, head.weight, head.target, vocab_offset=0, vocab_total=331).sum()

    for name, function in (("policy_loss", policy), ("linear_logprob_partial", shard)):
        refused(r"^flp\.%s does not support the transforms of torch\.func \(accepted: torch\.autograd" % name,
                torch.func.grad(function), head.first)
        refused(r"^flp\.%s" % name + FORWARD_MODE, torch.func.jvp, function, (head.first,), (head.first,))
