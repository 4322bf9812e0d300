"""What only a GPU shows: streams, CUDA graphs, the caller's allocator, memory that stays bounded."""
import pytest
import torch

import flp
from flp_reference import DEVICE, GRAD_TOLERANCE, doubles, problem, reference, relative

pytestmark = pytest.mark.skipif(torch.device(DEVICE).type != "cuda", reason="FLP_TEST_DEVICE names no GPU")


def big(n=512, vocab=20011, depth=256):
    hidden, weight, target, _ = problem(n=n, vocab=vocab, depth=depth, dtype=torch.bfloat16)
    return hidden.requires_grad_(), weight.requires_grad_(), target


def test_a_rung_with_kernels_runs():
    info = flp.explain(*big())
    assert info.rung in ("tuned", "heuristic", "jit", "generic"), info.text


def test_work_is_ordered_on_the_callers_stream():
    """The operands are made on the side stream after a long wait: work on another stream would read them too early."""
    hidden, weight, target = big()
    want = flp.linear_logprob(hidden, weight, target).detach()
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side), torch.no_grad():
        torch.cuda._sleep(200_000_000)
        late = hidden * 1
        got = flp.linear_logprob(late, weight, target)
    side.synchronize()
    assert torch.equal(got, want)


def test_forward_and_backward_are_captured_in_a_graph():
    hidden, weight, target = big()

    def step():
        hidden.grad = weight.grad = None
        logprob, entropy = flp.linear_logprob(hidden, weight, target, entropy=True)
        (logprob.sum() + 0.1 * entropy.sum()).backward()
        return logprob

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    grads = hidden.grad, weight.grad
    with torch.no_grad():
        hidden.copy_(hidden.roll(1, 0))
    graph.replay()
    replayed = [captured.detach().clone()] + [grad.clone() for grad in grads]
    eager = [step().detach(), hidden.grad, weight.grad]
    assert all(torch.equal(a, b) for a, b in zip(replayed, eager))


def test_memory_stays_within_budget_and_outputs():
    hidden, weight, target = big(n=4096, vocab=65536)
    budget = 64 << 20
    flp.linear_logprob(hidden, weight, target, budget=budget).sum().backward()
    hidden.grad = weight.grad = None
    torch.cuda.synchronize()
    held = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    flp.linear_logprob(hidden, weight, target, budget=budget).sum().backward()
    outputs = sum(tensor.grad.nbytes for tensor in (hidden, weight))
    slack = 4096 * 4 * 16  # logprob, stats, upstream gradients and torch's sum
    assert torch.cuda.max_memory_allocated() - held <= budget + outputs + slack
    naive = 4096 * 65536 * 2
    assert budget < naive
    wide = doubles(hidden[:64], weight)
    want = reference(*wide, target[:64])[0]
    want.sum().backward()
    assert relative(hidden.grad[:64], wide[0].grad) < GRAD_TOLERANCE[torch.bfloat16]


def test_a_call_does_not_synchronise():
    hidden, weight, target = big()
    flp.linear_logprob(hidden, weight, target).sum().backward()
    torch.cuda.synchronize()
    torch.cuda._sleep(500_000_000)
    flp.linear_logprob(hidden, weight, target).sum().backward()
    assert not torch.cuda.current_stream().query()
    torch.cuda.synchronize()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_tensors_on_a_device_that_is_not_current():
    hidden, weight, target = (tensor.detach().to("cuda:1").requires_grad_(tensor.requires_grad) for tensor in big())
    want = flp.linear_logprob(*(tensor.detach().to("cuda:0") for tensor in (hidden, weight, target)))
    got = flp.linear_logprob(hidden, weight, target)
    assert torch.equal(got.detach().cpu(), want.cpu())
    got.sum().backward()
    assert hidden.grad.device == hidden.device
