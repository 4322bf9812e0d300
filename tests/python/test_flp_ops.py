"""torch.ops.flp: registered where torch can, harmless where it cannot."""
import pytest
import torch

import flp
from flp._tensors import _compile
from flp_reference import GRAD_TOLERANCE, doubles, problem, reference, relative

VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])
needs_registration = pytest.mark.skipif(VERSION < (2, 4), reason="torch before 2.4 has no register_autograd")


def test_support_follows_the_version_of_torch():
    assert _compile.HAS_OPERATORS == (VERSION >= (2, 4))


@needs_registration
@pytest.mark.parametrize("numbers", [None, (0.7, 3.0, 1.5)])
@pytest.mark.parametrize("entropy", [False, True])
def test_operator_is_well_formed(entropy, numbers):
    hidden, weight, target, bias = problem(bias=True)
    for tensor in (hidden, weight, bias):
        tensor.requires_grad_()
    numbers = numbers and torch.tensor(numbers, dtype=torch.float64)
    arguments = (hidden, weight, bias, target, None, None, 0.7, None, 1.0, -100, None, entropy, numbers)
    torch.library.opcheck(torch.ops.flp.linear_logprob.default, arguments)


@needs_registration
@pytest.mark.parametrize("entropy", [False, True])
def test_operator_gives_the_functions_values_and_gradients(entropy):
    hidden, weight, target, bias = problem(bias=True)
    want = flp.linear_logprob(hidden, weight, target, bias, entropy=True)
    wide = doubles(hidden, weight, bias)
    exact = reference(wide[0], wide[1], target, wide[2])
    narrow = [tensor.requires_grad_() for tensor in (hidden, weight, bias)]
    logprob, got_entropy, _ = torch.ops.flp.linear_logprob(hidden, weight, bias, target, None, None, 1.0, None, 1.0,
                                                           -100, None, entropy)
    assert torch.equal(logprob, want[0])
    assert torch.equal(got_entropy, want[1]) if entropy else got_entropy.numel() == 0
    (logprob.sum() + got_entropy.sum()).backward()
    (exact[0].sum() + exact[1].sum() * entropy).backward()
    for mine, other in zip(narrow, wide):
        assert relative(mine.grad, other.grad) < GRAD_TOLERANCE[torch.float32]


@needs_registration
def test_operator_refuses_a_second_derivative():
    hidden, weight, target, _ = problem()
    hidden.requires_grad_()
    options = (1.0, None, 1.0, -100, None, False)
    logprob = torch.ops.flp.linear_logprob(hidden, weight, None, target, None, None, *options)[0]
    (grad,) = torch.autograd.grad(logprob.sum(), [hidden], create_graph=True)
    with pytest.raises(RuntimeError, match=r"^flp\.linear_logprob has no second derivative"):
        grad.sum().backward()


@needs_registration
@pytest.mark.parametrize("entropy", [False, True])
def test_compile_keeps_the_call_whole(entropy):
    hidden, weight, target, _ = problem(n=12)
    hidden = hidden.reshape(3, 4, 64)

    def loss_of(hidden, weight):
        result = flp.linear_logprob(hidden * 1.0, weight, target.reshape(3, 4), temperature=0.9, entropy=entropy)
        return result[0].sum() + result[1].sum() if entropy else result.sum()

    results = []
    for function in (loss_of, torch.compile(loss_of, backend="aot_eager", fullgraph=True)):
        operands = [hidden.clone().requires_grad_(), weight.clone().requires_grad_()]
        loss = function(*operands)
        loss.backward()
        results.append([loss.detach()] + [tensor.grad for tensor in operands])
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(*results))


@needs_registration
def test_compile_leaves_the_callers_buffer_to_the_eager_call():
    hidden, weight, target, _ = problem()
    weight.requires_grad_()

    def train(buffer):
        flp.linear_logprob(hidden * 2, weight, target, grad_weight_accumulate=buffer).sum().backward()

    buffers = [torch.zeros_like(weight), torch.zeros_like(weight)]
    train(buffers[0])
    torch.compile(train, backend="aot_eager")(buffers[1])
    assert buffers[0].any() and torch.equal(*buffers) and weight.grad is None


@needs_registration
def test_compile_goes_around_the_calls_that_no_operator_expresses():
    hidden, weight, target, _ = problem()

    def shards(hidden):
        parts = [flp.linear_logprob_partial(hidden * 2, weight[:200], target, vocab_offset=0, vocab_total=331),
                 flp.linear_logprob_partial(hidden * 2, weight[200:], target, vocab_offset=200, vocab_total=331)]
        logprob, _, stats = flp.combine_partials(parts, target, vocab_total=331)
        gradients = flp.linear_logprob_backward(hidden * 2, weight, target, stats, torch.ones_like(logprob))
        flp.check()
        return logprob, gradients[0], gradients[1]

    assert all(torch.equal(a, b) for a, b in zip(shards(hidden), torch.compile(shards, backend="aot_eager")(hidden)))


@needs_registration
def test_operator_called_from_a_broken_graph():
    hidden, weight, target, _ = problem()
    weight.requires_grad_()

    def train(hidden):
        print(end="")  # breaks the graph
        options = (1.0, None, 1.0, -100, None, False)
        results = torch.ops.flp.linear_logprob(hidden * 2, weight, None, target, None, None, *options)
        print(end="")
        results[0].sum().backward()
        grad, weight.grad = weight.grad, None
        return grad

    assert torch.equal(train(hidden), torch.compile(train, backend="aot_eager")(hidden))
