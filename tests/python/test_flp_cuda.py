"""What only a GPU shows: streams, CUDA graphs, the caller's allocator, memory that stays bounded."""
import pytest
import torch

import flp
from flp_reference import DEVICE, GRAD_TOLERANCE, doubles, problem, reference, relative
from graphs import capture

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

    replay, captured = capture(step)
    grads = hidden.grad, weight.grad
    with torch.no_grad():
        hidden.copy_(hidden.roll(1, 0))
    replay()
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


def test_a_call_that_was_captured_in_a_phase_is_replayed_after_it():
    """The graph's workspace is not the arena's: that one is gone, and its addresses have been written over since."""
    hidden, weight, target = (tensor.detach() for tensor in big())
    want = flp.linear_logprob(hidden, weight, target)
    graph = torch.cuda.CUDAGraph()
    with flp.phase("inference"):
        flp.linear_logprob(hidden, weight, target)
        assert flp.memory.arena_stats(DEVICE)["reserved_bytes"] > 0
        with torch.cuda.graph(graph):
            captured = flp.linear_logprob(hidden, weight, target)
    assert flp.memory.arena_stats(DEVICE)["reserved_bytes"] == 0
    filler = [torch.full((1 << 22,), -1, dtype=torch.int32, device=DEVICE) for _ in range(64)]
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(captured, want) and all(bool((block == -1).all()) for block in filler)


def test_a_phase_may_not_begin_or_end_in_a_capture():
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), pytest.raises(flp.UnsupportedError, match="begins while the current stream is"):
        with flp.phase("inference"):
            pass


def test_the_arena_serves_every_stream_and_waits_for_none():
    hidden, weight, target = (tensor.detach() for tensor in big())
    want = flp.linear_logprob(hidden, weight, target)
    torch.cuda.synchronize()
    streams, results = [torch.cuda.Stream() for _ in range(3)], []
    with flp.phase("inference"):
        for _ in range(5):
            for stream in streams:
                with torch.cuda.stream(stream):
                    torch.cuda._sleep(10_000_000)
                    results.append(flp.linear_logprob(hidden, weight, target))
        assert not all(stream.query() for stream in streams), "no call waited"
    assert not torch.cuda.current_stream().query(), "the end waits on the device, for every stream"
    torch.cuda.synchronize()
    assert all(torch.equal(result, want) for result in results)


def test_workspace_of_an_arena_is_none_of_torchs():
    hidden, weight, target = (tensor.detach() for tensor in big(n=4096, vocab=65536))
    flp.linear_logprob(hidden, weight, target)
    torch.cuda.empty_cache()
    held = torch.cuda.memory_reserved()
    with flp.memory.Profiler() as profiler, flp.phase("inference"):
        logprob = flp.linear_logprob(hidden, weight, target)
        workspace = flp.memory.arena_stats(DEVICE)["reserved_bytes"]
        assert workspace > 0
    assert torch.cuda.memory_reserved() - held <= 2 << 20 and logprob.isfinite().all()
    seen = profiler.report["devices"]["cuda:%d" % torch.cuda.current_device()]
    assert seen["peaks"]["inference"]["arena"] == workspace and seen["points"][-1][3] == 0


@pytest.mark.skipif(not flp.memory.profiler.TRACES, reason="torch before 2.1 has no times in its traces")
def test_the_profilers_totals_are_torchs():
    torch.cuda.empty_cache()
    idle = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()  # what earlier tests left serves nothing larger
    with flp.memory.Profiler() as profiler:
        kept = []
        with flp.phase("inference", "torch", empty_cache=False):
            for size in (idle + (3 << 20), 700, idle + (30 << 20), idle + (5 << 20)):
                kept.append(torch.empty(size, dtype=torch.uint8, device=DEVICE))
            del kept[::2]
        with flp.phase("training", "torch"):
            kept.append(torch.empty(4 * idle + (90 << 20), dtype=torch.uint8, device=DEVICE))
    seen = profiler.report["devices"]["cuda:%d" % torch.cuda.current_device()]
    assert seen["drift"]["reserved"] == 0 and abs(seen["drift"]["allocated"]) <= 4 << 20 and seen["unmatched"] == 0
    assert seen["points"][-1][1] == torch.cuda.memory_reserved()
    last = [growth for growth in seen["growths"] if growth["path"] == "training"][-1]
    assert last["bytes"] >= 90 << 20 and last["fragmentation"] >= last["idle_by_path"]["inference"] >= 30 << 20
