"""Direction and tail modes in flp.parallel: when a rank keeps directions or lists, within which budget, that backward
passes use them. On the stand-in of flp_keeping.py; tests/simt/test_torch.py runs the kernels."""
import contextlib
import gc
import types

import pytest
import torch

from flp._library import _c, _plans
from flp._passes import _run, _watch
from flp.parallel import _call
from flp_keeping import BYTES, REPORT, WORKSPACE, noted_blocks, parallel_call, passes  # noqa: F401
from flp_reference import problem

N = 12
TAIL = 2.0**-9
THREE = 3 * BYTES + WORKSPACE  # what directions of three chunks take


def scored(call, dtype=torch.bfloat16, trained=False):
    """-> logprob or (logprob, entropy), and the leaves: hidden, of a trained head the weight too"""
    hidden, weight, target, _ = (None if tensor is None else tensor.cpu() for tensor in problem(n=N, dtype=dtype))
    hidden.requires_grad_(), weight.requires_grad_(trained)
    grads = _c.GRAD_HIDDEN | _c.GRAD_WEIGHT * trained
    logprob = _call.ParallelLogprob.apply(hidden, weight, None, target, *[None] * 6, call, grads)
    return logprob, hidden, *[weight] * trained


def places(seen):
    """Whether each pass of a plan that keeps was given something kept, and what."""
    return [(keeps, saved) for _, keeps, saved, *_ in seen]


@pytest.mark.parametrize("listed", [False, True], ids=["directions", "lists"])
@pytest.mark.parametrize("chunk, chunks", [(0, 1), (N, 1), (5, 3), (4, 3)])
def test_each_chunk_keeps_its_own_for_every_backward_pass(passes, monkeypatch, chunk, chunks, listed):  # noqa: F811
    """Lists of a tail, whose reports are summed, are of a trained head."""
    report, watcher = torch.full((4,), 7.0), types.SimpleNamespace(ran=None)
    monkeypatch.setattr(_watch.watching, "call", watcher)
    logprob, *leaves = scored(parallel_call(chunk, **{"tail": TAIL, "tail_report": report} if listed else {}),
                              trained=listed)
    kept = places(passes.forward())
    assert len(kept) == len(set(kept)) == chunks and all(keeps != listed and saved for keeps, saved in kept)
    assert watcher.ran[1] == ("tail" if listed else "direction")
    watcher.ran = None
    other, *again = scored(parallel_call(chunk, save=False), trained=listed)
    assert watcher.ran[1] == "recompute"
    recomputed = torch.autograd.grad(other.sum(), again)
    del passes.seen[:]
    for _ in range(2):
        got = torch.autograd.grad(logprob.sum(), leaves, retain_graph=True)
        assert all(map(torch.equal, got, recomputed)) and torch.equal(logprob, other)
        assert not listed or report.tolist() == [chunks * value for value in REPORT]
    assert places(passes.backward()) == 2 * kept


@pytest.mark.parametrize("chunk, options", [(4, {"budget": 3 * BYTES + WORKSPACE - 1}), (0, {"empty": True}),
                                            (5, {"empty": True})], ids=str)
def test_what_does_not_fit_and_a_shard_of_padding_leave_nothing_out(passes, chunk, options):  # noqa: F811
    report = torch.full((4,), 7.0)
    logprob, *leaves = scored(parallel_call(chunk, tail=TAIL, tail_report=report, **options), trained=True)
    torch.autograd.grad(logprob.sum(), leaves)
    assert not any(saved for _, saved in places(passes.seen)) and not report.any()
    assert bool(passes.forward()) != options.get("empty", False)


def test_best_tokens_come_beside_directions(passes):  # noqa: F811
    (logprob, ids, *_), hidden = scored(parallel_call(4, topk=3))
    assert all(keeps and saved for keeps, saved in places(passes.forward())) and ids.shape == (N, 3)
    assert [plan.key.topk for plan in _plans.existing() if plan.key.keep] == [3]
    assert torch.equal(logprob, scored(parallel_call(4, save=False))[0])


@pytest.mark.parametrize("budget, save, keeps", [
    (None, None, True), (THREE, None, True), (THREE - 1, None, False), (THREE - 1, True, True), (THREE, False, False)])
def test_the_directions_of_all_chunks_share_one_budget(passes, budget, save, keeps):  # noqa: F811
    logprob, hidden = scored(parallel_call(4, budget=budget, save=save))
    logprob.sum().backward()
    assert [bool(saved) for _, saved in places(passes.forward() + passes.backward())] == [keeps] * 6
    left = {None: (1 << 30) - 2 * BYTES, THREE: BYTES + WORKSPACE}.get(budget)
    if save:
        left = _run.UNBOUNDED
    asked = {(which, given) for which, given in passes.asked if which in _run.SAVED_PASSES.values()}
    assert asked == ({(which, left) for which in _run.SAVED_PASSES.values()} if keeps else set())


def test_the_budget_of_the_environment_counts(passes, monkeypatch):  # noqa: F811
    for budget, keeps in ((THREE, True), (THREE - 1, False)):
        monkeypatch.setenv("FLP_BUDGET", str(budget))
        del passes.seen[:]
        scored(parallel_call(4))
        assert [bool(saved) for _, saved in places(passes.forward())] == [keeps] * 3


@pytest.mark.parametrize("options", [{"trained": True}, {"entropy": True}, {"empty": True}, {"dtype": torch.float16}],
                         ids=str)
def test_what_keeps_nothing(passes, options):  # noqa: F811
    of_call = {name: options[name] for name in ("entropy", "empty") if name in options}
    others = {name: value for name, value in options.items() if name not in of_call}
    results, hidden, *_ = scored(parallel_call(4, **of_call), **others)
    logprob = results[0] if "entropy" in options else results
    logprob.sum().backward()
    assert not any(saved for _, saved in places(passes.seen)) and hidden.grad is not None
    assert not any(plan.key.keep for plan in _plans.existing())  # nor kernels of it made
    assert len(passes.backward()) == (0 if "empty" in options else 3)


def test_a_detached_entropy_has_no_gradient(passes):  # noqa: F811
    (logprob, entropy), hidden = scored(parallel_call(entropy="detached"))
    assert logprob.requires_grad and not entropy.requires_grad and (entropy > 0).all()
    logprob.sum().backward()
    (_, kept), = places(passes.backward())
    assert kept and kept == passes.forward()[0][2]


def test_directions_go_with_the_graph(passes, monkeypatch):  # noqa: F811
    blocks = noted_blocks(monkeypatch)
    logprob, _ = scored(parallel_call(4))
    logprob.sum().backward(retain_graph=True)
    gc.collect()
    assert len(blocks) == 3 and all(block() is not None for block in blocks)
    logprob.sum().backward()
    gc.collect()
    assert not any(block() is not None for block in blocks)


def test_values_are_gathered_for_both_passes(passes):  # noqa: F811
    """direction_rows reads the weight's rows of the targets."""
    entered, call = [], parallel_call()

    @contextlib.contextmanager
    def gathered():
        entered.append(len(passes.backward()))
        yield

    call.gather = gathered
    logprob, _ = scored(call)
    logprob.sum().backward()
    assert entered == [0] and places(passes.backward())[0][1] and passes.backward()[0][0] == _c.PASS_BACKWARD
