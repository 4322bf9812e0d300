"""torch.ops.flp, and torch.compile(fullgraph=True, dynamic=True): whole graphs, symbols for numbers and shapes, the bits
of a call."""
import importlib
import math

import pytest
import torch

import flp
from flp_reference import DEVICE, GRAD_TOLERANCE, doubles, problem, reference, relative

VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])
pytestmark = pytest.mark.skipif(VERSION < (2, 4), reason="torch before 2.4 has no register_autograd")


@pytest.fixture(autouse=True)
def no_graphs():
    """Of the tests before, whose recompilations count to torch's limit."""
    torch._dynamo.reset()


def compiled(function, fullgraph=True):
    torch._dynamo.reset()
    return torch.compile(function, backend="aot_eager", fullgraph=fullgraph, dynamic=True)


def bits(results, leaves):
    """Values and gradients of what a call returned."""
    results = results if isinstance(results, tuple) else (results,)
    loss = sum((values * torch.linspace(-1, 1, values.numel(), device=DEVICE).view(values.shape)).sum()
               for values in results)
    return [*results, *torch.autograd.grad(loss, leaves)]


def same(function, graph, leaves, others, options):
    got, want = (bits(call(*leaves, *others, options), leaves) for call in (graph, function))
    assert len(got) == len(want)
    for mine, other in zip(got, want):
        assert torch.equal(mine, other) and mine.dtype is other.dtype


def head(hidden, weight, bias, target, options):
    return flp.linear_logprob(hidden * 1, weight, target, bias, **options)


@pytest.mark.parametrize("options", [
    [{}], [{"entropy": True}], [{"entropy": "detached"}], [{"softcap": 5.0}, {"softcap": 4.5}],
    [{"scale": 1.3}, {"scale": 0.7}],
    [{"temperature": 0.7}, {"temperature": 2}], [{"budget": 1 << 26}, {"budget": 1 << 27}],
    [{"ignore_index": -5}, {"ignore_index": 7}],
    [{"temperature": torch.tensor(0.7)}, {"temperature": torch.tensor(2.0)}],
    [{"temperature": torch.full((13,), 0.7, device=DEVICE)}], [{"rows": [1, 5, 3]}],
    [{"old_lse": torch.ones(13, device=DEVICE)}]], ids=lambda options: ",".join(options[0]) or "none")
def test_numbers_of_linear_logprob(options):
    graph = compiled(head)
    hidden, weight, target, bias = problem(bias=True)
    for given in options:
        leaves = [tensor.clone().requires_grad_() for tensor in (hidden, weight, bias)]
        same(head, graph, leaves, (target,), given)


def test_shapes_of_linear_logprob():
    graph = compiled(head)
    for lead, vocab in (((13,), 331), ((7,), 331), ((20,), 97), ((3, 4), 97)):
        hidden, weight, target, bias = problem(n=math.prod(lead), vocab=vocab, bias=True)
        leaves = [tensor.requires_grad_() for tensor in (hidden.reshape(*lead, -1), weight, bias)]
        same(head, graph, leaves, (target.reshape(lead),), {"entropy": True})


def scores(logits, index, options):
    return flp.selective_log_softmax(logits * 1, index, **options)


def logits_of(*shape, dtype=torch.float32, targets=()):
    generator = torch.Generator().manual_seed(4)
    logits = torch.randn(*shape, 50, generator=generator).to(dtype).to(DEVICE)
    return logits.requires_grad_(), torch.randint(0, 50, (*shape, *targets), generator=generator).to(DEVICE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("options", [
    [{}], [{"entropy": True}], [{"temperature": 0.6}, {"temperature": 2}], [{"ignore_index": 3}, {"ignore_index": 4}],
    [{"inplace_backward": True}], [{"out_dtype": "sums", "entropy": True}]],
    ids=lambda options: ",".join(options[0]) or "none")
def test_selective_log_softmax(dtype, options):
    graph = compiled(scores)
    for given in options:
        if given.get("out_dtype"):
            given = {**given, "out_dtype": torch.float64 if dtype is torch.float64 else torch.float32}
        for shape, targets in (((13,), ()), ((3, 4), (2,)), ((5, 2), (2,)), ((), ())):
            logits, index = logits_of(*shape, dtype=dtype, targets=targets)
            same(scores, graph, [logits], (index,), given)


def test_views_of_scores():
    graph = compiled(scores)
    logits, index = logits_of(4, 6)
    for view, ids in ((lambda x: x[:, :-1], index[:, 1:]), (lambda x: x.transpose(0, 1), index.t()),
                      (lambda x: x[..., :40], index % 40)):
        same(lambda x, i, o: scores(view(x), i, o), lambda x, i, o: graph(view(x), i, o), [logits], (ids,), {})


def compared(scores, teacher, options):
    return flp.selective_divergence(scores * 1, teacher, **options).value


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("options", [
    [{}], [{"kind": "jsd", "parameters": {"mix": 0.2}}, {"kind": "jsd", "parameters": {"mix": 0.7}}],
    [{"temperature": 0.6}, {"temperature": 2}], [{"temperature": 0.6, "teacher_temperature": 1.5}],
    [{"temperature": torch.linspace(0.5, 2, 12, device=DEVICE).view(3, 4)}],
    [{"mask": torch.arange(12, device=DEVICE).view(3, 4) % 3 > 0}]],
    ids=lambda options: ",".join(options[-1]) or "none")
def test_selective_divergence(dtype, options):
    graph = compiled(compared)
    for given in options:
        has_rows = any(isinstance(each, torch.Tensor) for each in given.values())
        for shape in ((3, 4),) if has_rows else ((13,), (3, 4), ()):
            (logits, _), (teacher, _) = logits_of(*shape, dtype=dtype), logits_of(*shape)
            same(compared, graph, [logits], (teacher.detach().flip(-1),), given)


def test_a_graph_of_bad_numbers_says_so():
    (logits, _), (teacher, _) = logits_of(13), logits_of(13)
    for options, words in (({"temperature": -1.0}, "temperature is -1"),
                           ({"kind": "jsd", "parameters": {"mix": 2.0}}, "mix")):
        with pytest.raises(Exception, match=words):
            compiled(compared)(logits, teacher, options)


def test_the_operator_of_two_rows_is_well_formed():
    (logits, _), (teacher, _) = logits_of(3, 4), logits_of(3, 4, dtype=torch.bfloat16)
    torch.library.opcheck(torch.ops.flp.selective_divergence.default, (
        logits, teacher.detach(), None, None, None, "jsd", "mix", [0.7, 1.3, 0.2]))


@pytest.mark.parametrize("numbers", [None, (0.7, 3.0, 1.5)])
@pytest.mark.parametrize("entropy", [False, True])
def test_operator_is_well_formed(entropy, numbers):
    hidden, weight, target, bias = problem(bias=True)
    for tensor in (hidden, weight, bias):
        tensor.requires_grad_()
    numbers = numbers and torch.tensor(numbers, dtype=torch.float64)
    arguments = (hidden, weight, bias, target, None, None, 0.7, None, 1.0, -100, None, entropy, numbers)
    torch.library.opcheck(torch.ops.flp.linear_logprob.default, arguments)


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


@pytest.mark.parametrize("entropy", [False, True])
@pytest.mark.parametrize("ignore_index", [None, 3])
def test_the_operator_of_scores_is_well_formed(entropy, ignore_index):
    logits, index = logits_of(3, 4, targets=(2,))
    torch.library.opcheck(torch.ops.flp.selective_log_softmax.default, (logits, index, 0.7, ignore_index, entropy))


@pytest.mark.parametrize("name", ["linear_logprob", "selective_log_softmax"])
def test_operators_refuse_a_second_derivative(name):
    if name == "linear_logprob":
        leaf, weight, target, _ = problem()
        others = weight, None, target, None, None, 1.0, None, 1.0, -100, None, False
    else:
        leaf, index = logits_of(3)
        others = index.unsqueeze(-1), 1.0, None, False
    logprob = getattr(torch.ops.flp, name)(leaf.requires_grad_(), *others)[0]
    (grad,) = torch.autograd.grad(logprob.sum(), [leaf], create_graph=True)
    with pytest.raises(RuntimeError, match=r"^flp\.%s has no second derivative" % name):
        grad.sum().backward()


@pytest.mark.parametrize("function, options, kind, says", [
    (head, {"softcap": 0.0}, ValueError, r"^softcap is 0\.0 \(accepted: None, or a finite number above 0\)$"),
    (head, {"softcap": float("nan")}, ValueError, r"^softcap is nan \(accepted: "),
    (head, {"scale": float("inf")}, ValueError, r"^scale is inf \(accepted: a finite number\)$"),
    (head, {"temperature": 0.0}, flp.errors.ArgumentError, r"^temperature is 0\.0 \(accepted: 1\.18e-38 to 3\.4e38\)$"),
    (head, {"budget": 0}, ValueError, r"^budget is 0 \(accepted: None, or at least 1 byte\)$"),
    (scores, {"temperature": 0.0}, ValueError, r"^temperature is 0\.0 \(accepted: 1\.18e-38 to 3\.4e38"),
    (scores, {"temperature": float("inf")}, ValueError, r"^temperature is inf \(accepted: ")],
    ids=lambda value: str(value) if isinstance(value, dict) else getattr(value, "__name__", ""))
def test_numbers_are_checked_when_the_graph_runs(function, options, kind, says):
    hidden, weight, target, bias = problem(bias=True)
    operands = (hidden, weight, bias, target) if function is head else logits_of(3)
    with pytest.raises(kind, match=says):
        compiled(function)(*operands, options)


def test_lazy_bits_inside_a_graph():
    hidden, weight, target, bias = problem(bias=True)
    want = head(hidden, weight, bias, target, {})
    assert torch.equal(compiled(head)(torch._neg_view(-hidden), weight, bias, target, {}), want)


def test_transforms_are_left_to_the_eager_call():
    """An operator has no rule for them: torch would give 0 for a derivative in forward mode."""
    hidden, weight, target, _ = problem()

    def loss(hidden):
        return flp.linear_logprob(hidden, weight, target).sum()

    want = torch.func.grad(loss)(hidden)
    assert torch.equal(compiled(lambda x: torch.func.grad(loss)(x), fullgraph=False)(hidden), want) and want.any()
    with pytest.raises(flp.errors.UnsupportedError, match="does not support forward-mode derivatives"):
        compiled(lambda x: torch.func.jvp(loss, (x,), (x,)), fullgraph=False)(hidden)


def test_compile_leaves_the_callers_buffer_to_the_eager_call():
    hidden, weight, target, _ = problem()
    weight.requires_grad_()

    def train(buffer):
        flp.linear_logprob(hidden * 2, weight, target, grad_weight_accumulate=buffer).sum().backward()

    buffers = [torch.zeros_like(weight), torch.zeros_like(weight)]
    train(buffers[0])
    torch.compile(train, backend="aot_eager")(buffers[1])
    assert buffers[0].any() and torch.equal(*buffers) and weight.grad is None


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


def test_compile_goes_around_a_budget_that_is_a_text():
    hidden, weight, target, bias = problem(bias=True)
    want = head(hidden, weight, bias, target, {})
    assert torch.equal(compiled(head, fullgraph=False)(hidden, weight, bias, target, {"budget": "64M"}), want)


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


@pytest.mark.long
def test_inductor():
    """torch.compile's own code around the operators, which a compiler makes."""
    hidden, weight, target, _ = problem()
    graph = torch.compile(lambda h, t: flp.linear_logprob(h * 2, weight, target, temperature=t) * 3, fullgraph=True,
                          dynamic=True)
    want = flp.linear_logprob(hidden * 2, weight, target, temperature=0.7) * 3
    assert torch.equal(graph(hidden, 0.7), want)


def over(function):
    """A call whose temperature, or scale, or softcap changes, and is used in arithmetic too."""
    return lambda hidden, weight, target, T: function(hidden * T, weight, target, T)


CHANGING = {
    "temperature": lambda h, w, y, T: flp.linear_logprob(h, w, y, temperature=T),
    "and arithmetic": over(lambda h, w, y, T: flp.linear_logprob(h, w, y, temperature=T)),
    "of it": over(lambda h, w, y, T: flp.linear_logprob(h, w, y, temperature=1 / T, softcap=10 * T, scale=T + 1)),
    "twice": over(lambda h, w, y, T: flp.linear_logprob(h, w, y, temperature=2 * T)),
    "entropy": over(lambda h, w, y, T: flp.linear_logprob(h, w, y, scale=T, entropy=True)[1]),
    "scores": over(lambda h, w, y, T: flp.selective_log_softmax(h @ w.t(), y, temperature=T + 1e-3)),
}


@pytest.mark.skipif(not hasattr(importlib.import_module("torch.fx.experimental.symbolic_shapes"), "has_static_value"),
                    reason="this torch does not tell which numbers of a graph may change")
@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
@pytest.mark.parametrize("name", CHANGING)
def test_floats_that_change_make_two_graphs_and_are_those_of_the_call(name, backend):
    """torch alone makes a graph for each, up to its limit, and may keep the value of an earlier call (pytorch#197889)."""
    torch._dynamo.utils.counters.clear()
    graph = torch.compile(CHANGING[name], backend=backend, fullgraph=True)
    hidden, weight, target, _ = problem()
    for T in [0.5 + step / 10 for step in range(12)]:
        leaves = [tensor.clone().requires_grad_() for tensor in (hidden, weight)]
        got, want = ([value, *torch.autograd.grad(value.sum(), leaves)] for value in (
            call(*leaves, target, T) for call in (graph, CHANGING[name])))
        for mine, other in zip(got, want):
            torch.testing.assert_close(mine, other, atol=2e-5, rtol=1e-5)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 2
