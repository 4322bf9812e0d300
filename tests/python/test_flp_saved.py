"""Save and direction modes in linear_logprob: when something is kept, that it reaches both passes, is used once or
by every backward pass, and is then freed. On the stand-in of flp_keeping.py."""
import gc
import types

import pytest
import torch

import flp
from flp._library import _c, _plans
from flp._passes import _autograd, _memory, _run, _watch
from flp_keeping import BYTES, MODES, noted_blocks, passes  # noqa: F401

N, D, V = 6, 16, 40


def operands(dtype=torch.bfloat16):
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(N, D, generator=generator).to(dtype).requires_grad_()
    weight = torch.randn(V, D, generator=generator).to(dtype).requires_grad_()
    return hidden, weight, torch.randint(V, (N,), generator=generator)


def test_forward_keeps_and_the_first_backward_uses_it_up(passes):
    hidden, weight, target = operands()
    logprob = flp.linear_logprob(hidden, weight, target)
    (_, keeps, saved, size, _), = passes.forward()
    assert keeps == 1 and saved and saved % 256 == 0 and size == BYTES
    logprob.sum().backward(retain_graph=True)
    first = hidden.grad.clone()
    logprob.sum().backward()
    assert [seen[1:4] for seen in passes.backward()] == [(1, saved, BYTES), (0, None, 0)]
    assert torch.equal(hidden.grad, 2 * first)


def test_the_memory_goes_with_the_backward_pass(passes, monkeypatch):
    blocks = noted_blocks(monkeypatch)
    hidden, weight, target = operands()
    logprob = flp.linear_logprob(hidden, weight, target)
    gc.collect()
    assert len(blocks) == 1 and blocks[0]() is not None
    logprob.sum().backward(retain_graph=True)
    assert blocks[0]() is None
    other = flp.linear_logprob(hidden, weight, target)
    del other
    gc.collect()
    assert len(blocks) == 2 and blocks[1]() is None


@pytest.mark.parametrize("options, keeps", [
    ({}, True), ({"budget": BYTES + 1000}, True), ({"budget": BYTES + 999}, False), ({"save": False}, False),
    ({"save": True, "budget": BYTES - 1}, True), ({"chunk_rows": 2}, False), ({"chunk_rows": 2, "save": True}, True),
    ({"topk": 3, "rank": True}, True), ({"topk": 3, "save": False}, False)], ids=str)
def test_when_it_keeps(passes, options, keeps):
    hidden, weight, target = operands()
    flp.linear_logprob(hidden, weight, target, **options)
    assert [bool(seen[2]) for seen in passes.forward()] == [keeps]


@pytest.mark.parametrize("options, budget", [({}, 0), ({"budget": 4 * BYTES}, 4 * BYTES), ({"save": True}, 2**64 - 1),
                                             ({"save": True, "budget": 8}, 2**64 - 1)], ids=str)
def test_one_budget_is_passed_on_to_all_that_is_asked(passes, options, budget):
    hidden, weight, target = operands()
    flp.linear_logprob(hidden, weight, target, **options).sum().backward()
    assert passes.asked == [("saved", budget), (_c.PASS_FORWARD_SAVED, budget), (_c.PASS_BACKWARD_SAVED, budget)]


def test_true_needs_a_rung_that_keeps():
    hidden, weight, target = operands()
    with pytest.raises(flp.UnsupportedError, match="save is True, but nothing here keeps exponentials or "
                                                  "directions of torch.bfloat16"):
        flp.linear_logprob(hidden, weight, target, save=True)
    with torch.no_grad():
        flp.linear_logprob(hidden, weight, target, save=True)   # scoring keeps nothing


@pytest.mark.parametrize("environment, keeps", [("", True), ("2M", True), ("800", False), ("many", None)])
def test_the_budget_of_the_environment_counts(passes, monkeypatch, environment, keeps):
    monkeypatch.setenv("FLP_BUDGET", environment)
    hidden, weight, target = operands()
    if keeps is None:
        with pytest.raises(flp.ArgumentError, match="FLP_BUDGET"):
            flp.linear_logprob(hidden, weight, target)
        return
    assert _run.keeping_plan(_run.Operands(hidden, weight, None, target), settings_of(), _c.GRAD_HIDDEN)[1] == \
        (BYTES if keeps else 0)
    # 6 rows of 16 float32, and 512 bytes of references and slopes: no plan that keeps is made for a budget below that.
    assert [plan.key.keep for plan in _plans.existing()] == [int(keeps)]


def settings_of():
    settings = flp._tensors._check.Settings(1.0, None, 1.0, -100, None, False)
    settings.save = None
    return settings


def test_without_memory_for_it_scores_are_computed_again(passes, monkeypatch):
    said, memory_on = [], _memory.memory_on

    def refuse(device, size):
        if size == BYTES:
            raise torch.cuda.OutOfMemoryError("none left")
        return memory_on(device, size)

    monkeypatch.setattr(_memory, "memory_on", refuse)
    monkeypatch.setattr(_memory._c, "log", lambda level, message: said.append(message))
    _memory._refused.clear()
    for _ in range(2):
        hidden, weight, target = operands()
        flp.linear_logprob(hidden, weight, target).sum().backward()
    assert [seen[1:4] for seen in passes.forward()] == 2 * [(0, None, 0)]
    assert said == ["cpu has no %d bytes for what a forward pass keeps; its backward pass computes the scores again"
                    % BYTES]
    with pytest.raises(torch.cuda.OutOfMemoryError):
        flp.linear_logprob(*operands(), save=True)


def test_what_it_does_not_keep_for(passes):
    hidden, weight, target = operands(torch.float32)
    flp.linear_logprob(hidden, weight, target)
    hidden, weight, target = operands()
    flp.linear_logprob(hidden[:0], weight, target[:0])
    with torch.no_grad():
        flp.linear_logprob(hidden, weight, target)
    assert [seen[1:3] for seen in passes.forward()] == [(0, None)] * 3


def test_an_old_reference_is_handed_on(passes):
    hidden, weight, target = operands()
    lse = torch.logsumexp(hidden.detach().double() @ weight.detach().double().t(), -1)
    logprob = flp.linear_logprob(hidden.view(2, 3, D), weight, target.view(2, 3), old_lse=lse.view(2, 3))
    assert passes.forward()[0][4] and logprob.shape == (2, 3)


# ---- direction mode: a frozen head ----

def frozen():
    hidden, weight, target = operands()
    return hidden, weight.detach(), target


def used(passes):
    """What each backward pass got: (keeps, saved, saved_bytes)"""
    return [seen[1:4] for seen in passes.backward()]


def test_every_backward_pass_uses_directions(passes):
    hidden, weight, target = frozen()
    logprob = flp.linear_logprob(hidden, weight, target)
    (_, keeps, saved, size, _), = passes.forward()
    assert keeps == 1 and saved and saved % 256 == 0 and size == BYTES
    for factor in (1, 2):
        logprob.sum().backward(retain_graph=True)
    (2 * logprob).sum().backward()
    assert used(passes) == [(1, saved, BYTES)] * 3
    alone, = torch.autograd.grad(flp.linear_logprob(hidden, weight, target, save=False).sum(), hidden)
    assert torch.equal(hidden.grad, 4 * alone)
    assert passes.backward()[3][1:3] == (0, None)


@pytest.mark.parametrize("trained, entropy, twice", [
    (False, False, True), (False, "detached", True), (False, True, False), (True, "detached", False)], ids=str)
def test_which_calls_keep_directions(passes, trained, entropy, twice):
    hidden, weight, target = operands() if trained else frozen()
    results = flp.linear_logprob(hidden, weight, target, entropy=entropy)
    logprob = results[0] if entropy else results
    for _ in range(2):
        torch.autograd.grad(logprob.sum(), hidden, retain_graph=True)
    assert [bool(saved) for _, saved, _ in used(passes)] == ([True, twice] if not trained else [False, False])
    assert (flp.explain(hidden, weight, target, entropy=entropy).forward["mode"] == "direction") is twice


# ---- what stands in the graph: directions of a frozen head, lists of tail mode ----

WAYS = pytest.mark.parametrize("tail", [None, 2.0**-9], ids=["directions", "lists"])


def kept(passes, tail):
    """Operands, and a call that keeps for every backward pass."""
    hidden, weight, target = frozen() if tail is None else operands()
    return hidden, lambda: flp.linear_logprob(hidden, weight, target, tail=tail)


@WAYS
def test_it_goes_with_the_graph_and_its_saved_tensors(passes, monkeypatch, tail):
    blocks = noted_blocks(monkeypatch)
    _, call = kept(passes, tail)
    logprob = call()
    assert logprob.grad_fn.saved_tensors[-1].dtype is torch.uint8
    logprob.sum().backward(retain_graph=True)
    gc.collect()
    assert len(blocks) == 1 and blocks[0]() is not None
    logprob.sum().backward()
    gc.collect()
    assert blocks[0]() is None and logprob.grad_fn is not None
    with pytest.raises(RuntimeError, match="second time"):
        logprob.sum().backward()


@WAYS
def test_hooks_of_saved_tensors_may_move_it(passes, tail):
    """As torch.autograd.graph.save_on_cpu does; here to an address that libflp does not take."""
    held = []                                     # no other block comes where the first one stood

    def pack(tensor):
        if tensor.dtype is not torch.uint8:
            return tensor
        held.append(tensor)
        moved = torch.empty(tensor.numel() + 257, dtype=torch.uint8)
        start = -moved.data_ptr() % 256 + 1
        return moved[start:start + tensor.numel()].copy_(tensor)

    _, call = kept(passes, tail)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        logprob = call()
    logprob.sum().backward()
    (keeps, saved, size), = used(passes)
    assert (keeps, size) == (tail is None, BYTES) and saved % 256 == 0 and saved != passes.forward()[0][2]


@WAYS
def test_a_checkpoint_makes_it_again(passes, monkeypatch, tail):
    """The first forward pass lets go of it; the one inside the backward pass makes what is used."""
    blocks = noted_blocks(monkeypatch)
    hidden, call = kept(passes, tail)
    logprob = torch.utils.checkpoint.checkpoint(lambda _: call(), hidden, use_reentrant=False)
    gc.collect()
    assert len(blocks) == 1 and blocks[0]() is None
    logprob.sum().backward()
    first, second = passes.forward()
    assert second[1] == (tail is None) and used(passes) == [(tail is None, second[2], BYTES)]


@pytest.mark.skipif(_autograd._will_run is None, reason="this torch does not report which gradients a pass is for")
@pytest.mark.parametrize("tail", [None, 2.0**-9])
def test_other_gradients_than_were_planned_recompute(passes, tail):
    hidden, weight, target = operands()
    report = torch.full((4,), 7.0)
    logprob = flp.linear_logprob(hidden * 1, weight, target, tail=tail, tail_report=None if tail is None else report)
    torch.autograd.grad(logprob.sum(), weight)
    assert used(passes) == [(0, None, 0)] and (tail is None or passes.tails[-1] == (0.0, None) and not report.any())


def test_a_detached_entropy_is_a_value():
    hidden, weight, target = operands()
    results, gradients = {}, {}
    for entropy in (True, "detached"):
        results[entropy] = flp.linear_logprob(hidden, weight, target, entropy=entropy)
        gradients[entropy] = torch.autograd.grad(results[entropy][0].sum(), (hidden, weight), retain_graph=True)
    assert all(map(torch.equal, results[True], results["detached"]))
    assert all(map(torch.equal, gradients[True], gradients["detached"]))
    assert results[True][1].requires_grad and not results["detached"][1].requires_grad
    logprob, entropy = results["detached"]
    together, = torch.autograd.grad((logprob + entropy).sum(), hidden)
    assert torch.equal(together, gradients[True][0])
    for save in (None, False):
        with torch.no_grad():
            assert len(flp.linear_logprob(hidden, weight, target, entropy="detached", save=save)) == 2


def test_functions_over_it_pass_it_on(passes):
    hidden, weight, target = frozen()
    scores = flp.score(hidden, weight, target, cu_seqlens=torch.tensor([0, 2, N]), entropy="detached")
    assert scores.logprob.requires_grad and not scores.entropy.requires_grad and passes.forward()[-1][2]
    flp.score(hidden, weight, target, cu_seqlens=torch.tensor([0, 2, N]), save=False)
    assert not passes.forward()[-1][2]
    chunks = flp.heads._chunks.linear_logprob(hidden, weight, target, entropy="detached")
    assert chunks[0].requires_grad and not chunks[1].requires_grad


def test_a_rule_of_sequences_keeps_directions(passes, logged):
    """gspo runs over linear_logprob; an entropy that is only reported has no gradient."""
    hidden, weight, target = frozen()
    batch = hidden.detach().view(2, 3, D).requires_grad_(), weight, target.view(2, 3), torch.tensor([1.0, -1.0])
    for weighed in (0.0, 0.1):
        loss, metrics = flp.policy_loss("gspo", *batch, entropy=True, entropy_weight=weighed)
        loss.backward()
        assert metrics["entropy"] > 0
    assert [text.rsplit(" ", 1)[1] for _, text in logged if "gspo" in text] == ["direction", "save"]
    assert [bool(seen[2]) for seen in passes.forward()] == [True, True]


def test_directions_under_autocast(passes):
    hidden, weight, target = frozen()
    wide = hidden.detach().float().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        logprob = flp.linear_logprob(wide, weight.float(), target)
    for _ in range(2):
        logprob.sum().backward(retain_graph=True)
    assert used(passes) == [(1, passes.forward()[0][2], BYTES)] * 2 and wide.grad.dtype is torch.float32


@pytest.mark.parametrize("trained, options, mode", [
    (True, {}, "save"), (False, {}, "direction"), (True, {"tail": 2.0**-9}, "tail"), (False, {"entropy": True}, "save"),
    (False, {"entropy": "detached"}, "direction"), (True, {"save": False}, None), (True, {"tail": 0}, "save"),
    (True, {"tail": 0, "save": False}, None), (False, {"save": False}, None)], ids=str)
def test_it_is_explained(passes, monkeypatch, trained, options, mode):
    """Of tensors, and of sizes, which keep only what they are asked to; a budget without room keeps nothing."""
    info = flp.explain(*(operands() if trained else frozen()), **options)
    asked = {"vocab": V, "hidden": D, "n": N, "grads": ["hidden", "weight"][:1 + trained]}
    assert mode is None or info.backward["saved_bytes"] == BYTES and mode in ("save", info.forward["mode"])
    for found in (info, flp.plan_info(**asked, **{"save": None, **options})):
        assert found.backward["mode"] == mode or mode is None and found.backward["mode"] not in MODES
    unasked = flp.plan_info(**asked, **options).backward["mode"]
    assert unasked == mode if mode == "tail" else unasked not in MODES
    for without in ({"save": False, "tail": 0}, {"budget": BYTES}):
        assert flp.plan_info(**asked, **{"save": None, **options, **without}).backward["mode"] not in MODES
    watcher = types.SimpleNamespace(ran=None)
    monkeypatch.setattr(_watch.watching, "call", watcher)
    flp.linear_logprob(*(operands() if trained else frozen()), **options)
    assert watcher.ran == ("eager", mode or "recompute")


def test_the_eager_rung_keeps_nothing(engine):
    hidden, weight, target = frozen()
    logprob, _ = flp.linear_logprob(hidden, weight, target, entropy="detached")
    assert logprob.grad_fn.saved_tensors[-1] is None and logprob.grad_fn.kept is None
    with pytest.raises(flp.UnsupportedError, match="keeps exponentials or directions"):
        flp.linear_logprob(hidden, weight, target, save=True)
