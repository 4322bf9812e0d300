"""linear_logprob(tail=...) and what takes it: which bounds are taken, what is kept and passed on, on the stand-in of
flp_keeping.py; over shards, test_flp_parallel_direction.py. tests/simt/test_torch.py runs the kernels."""
import pytest
import torch

import flp
from flp._library import _c, _numbers, _plans
from flp._tensors import _compile
from flp_keeping import BYTES, REPORT, passes  # noqa: F401
from flp_reference import DEVICE, DTYPES, problem
from flp_standin_lm import IDS, TinyLM

N, D, V = 13, 64, 331
TAIL = 2.0**-9


def marked():
    """A report that nobody has written."""
    return torch.full((4,), 7.0, device=DEVICE)


def operands(dtype=torch.bfloat16, frozen=False, **sizes):
    hidden, weight, target, _ = problem(**{"n": N, "depth": D, "vocab": V, **sizes}, dtype=dtype)
    return hidden.requires_grad_(), weight.requires_grad_(not frozen), target


# ---- where nothing is left out ----


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("bound", [0, None, 2**-20, 2**-2, 1e-3], ids=str)
def test_bounds_that_are_accepted(bound):
    hidden, weight, target = operands()
    report = marked()
    flp.linear_logprob(hidden, weight, target, tail=bound, tail_report=report).sum().backward()
    assert not report.any() and hidden.grad.any()


def test_a_call_without_gradients_has_nothing_to_leave_out():
    hidden, weight, target = operands()
    report = marked()
    with torch.no_grad():
        plain = flp.linear_logprob(hidden, weight, target, tail=TAIL, tail_report=report)
    assert torch.equal(plain, flp.linear_logprob(hidden.detach(), weight.detach(), target, tail=TAIL))
    assert report.eq(7).all() and not any(plan.key.tail for plan in _plans.existing())


# ---- what is kept, and who reads it ----

def saved_of(seen):
    return [saved for _, _, saved, _, _ in seen]


def test_every_backward_pass_reads_what_forward_listed(passes):  # noqa: F811
    hidden, weight, target = operands()
    report = marked()
    logprob = flp.linear_logprob(hidden, weight, target, tail=TAIL, tail_report=report)
    (which, keeps, saved, size, _), = passes.forward()
    assert (which, keeps, size) == (_c.PASS_FORWARD, 0, BYTES) and saved and saved % 256 == 0
    assert passes.tails == [(TAIL, None)] and report.eq(7).all()
    logprob.sum().backward(retain_graph=True)
    assert report.tolist() == REPORT
    first = hidden.grad.clone()
    report.fill_(7)
    logprob.sum().backward()
    assert report.tolist() == REPORT and torch.equal(hidden.grad, 2 * first)
    assert saved_of(passes.backward()) == [saved] * 2
    assert passes.tails[1:] == [(TAIL, report.data_ptr())] * 2


@pytest.mark.parametrize("options, keeps", [
    ({}, True), ({"budget": BYTES + 1000}, True), ({"budget": BYTES + 999}, False), ({"tail": 0}, None)], ids=str)
def test_the_budget_decides(passes, options, keeps):  # noqa: F811
    hidden, weight, target = operands()
    report = marked()
    options = {"tail": TAIL, "tail_report": report, **options}
    flp.linear_logprob(hidden, weight, target, **options).sum().backward()
    assert [tail for tail, _ in passes.tails] == [TAIL if keeps else 0.0] * 2
    assert report.tolist() == (REPORT if keeps else [0, 0, 0, 0])
    asked = {budget for _, budget in passes.asked}
    assert asked == {options.get("budget", 0)}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_asks(passes, dtype):  # noqa: F811
    hidden, weight, target = operands(dtype)
    flp.linear_logprob(hidden, weight, target, tail=TAIL).sum().backward()
    assert [tail for tail, _ in passes.tails] == [TAIL, TAIL]


def test_a_second_derivative_is_refused(passes):  # noqa: F811
    hidden, weight, target = operands()
    logprob = flp.linear_logprob(hidden, weight, target, tail=TAIL)
    grad, = torch.autograd.grad((logprob * logprob).sum(), hidden, create_graph=True)
    with pytest.raises(RuntimeError, match="has no second derivative"):
        grad.sum().backward()


def test_what_passes_it_on(passes):  # noqa: F811
    hidden, weight, target = operands()
    report = marked()
    flp.score(hidden, weight, target, cu_seqlens=torch.tensor([0, 2, N]), tail=TAIL,
              tail_report=report).logprob.sum().backward()
    assert passes.tails == [(TAIL, None), (TAIL, report.data_ptr())]
    del passes.tails[:]
    model = TinyLM()
    with flp.logprob_head(model, verify=False, tail=TAIL, tail_report=report):
        model(input_ids=IDS).logprobs.sum().backward()
    assert passes.tails == [(TAIL, None), (TAIL, report.data_ptr())]


def test_shards_by_hand_keep_lists(passes):  # noqa: F811
    hidden, weight, target = (tensor.detach() for tensor in operands())
    partial, saved = flp.linear_logprob_partial(hidden, weight, target, vocab_offset=0, vocab_total=V, tail=TAIL,
                                                needs=["weight"])
    assert saved.dtype is torch.uint8 and saved_of(passes.forward()) == [saved.data_ptr()]
    pair = flp.linear_logprob_partial(hidden, weight, target, vocab_offset=0, vocab_total=V, tail=0)
    assert len(pair) == 2 and pair[1] is None
    _, _, stats = flp.combine_partials([partial], target, vocab_total=V)
    report = marked()
    flp.linear_logprob_backward(hidden, weight, target, stats, torch.ones(N, device=DEVICE), needs=["weight"],
                                tail=TAIL, saved=saved, tail_report=report)
    assert saved_of(passes.backward()) == [saved.data_ptr()] and report.tolist() == REPORT


# ---- policy_loss ----

def batch_of(dtype=torch.bfloat16):
    hidden, weight, target, _ = problem(n=12, vocab=V, depth=D, dtype=dtype)
    hidden = hidden.view(3, 4, D).requires_grad_()
    return hidden, weight.requires_grad_(), target.view(3, 4), torch.tensor([1.0, -1.0, 0.5], device=DEVICE)


def test_a_step_is_made_for_the_bound():
    batch = batch_of()
    flp.policy_loss("grpo", *batch, tail=TAIL)
    assert [plan.key.tail for plan in _plans.existing() if plan.key.loss] == [TAIL]
    with torch.no_grad():
        flp.policy_loss("grpo", *batch, tail=TAIL)
    assert {(plan.key.grads, plan.key.tail) for plan in _plans.existing() if plan.key.loss} == {(3, TAIL), (0, 0.0)}
    assert flp.explain(batch[0], batch[1], batch[2], loss="grpo", tail=TAIL).step["mode"]


def test_a_rule_of_sequences_takes_tail_mode(passes, logged):  # noqa: F811
    report = marked()
    loss, _ = flp.policy_loss("gspo", *batch_of(), tail=TAIL, tail_report=report)
    assert report.eq(7).all()
    loss.backward()
    assert report.tolist() == REPORT and [text.rsplit(" ", 1)[1] for _, text in logged if "gspo" in text] == ["tail"]


# ---- graphs ----

@pytest.mark.skipif(not _compile.HAS_OPERATORS, reason="torch before 2.4 has no register_autograd")
def test_a_compiled_call_leaves_the_graph(passes):  # noqa: F811
    def loss(hidden, weight, target, report):
        return flp.linear_logprob(hidden * 1, weight, target, tail=TAIL, tail_report=report).sum() * 2

    torch._dynamo.reset()
    made, report = operands(), marked()
    torch.compile(loss, backend="aot_eager")(*made, report).backward()
    assert report.tolist() == REPORT and saved_of(passes.backward()) == saved_of(passes.forward()) != [None]
    got = made[0].grad.clone()
    made[0].grad = None
    loss(*made, report).backward()
    assert torch.equal(got, made[0].grad)


# ---- what is refused ----

def test_a_report_has_memory_of_its_own():
    hidden, weight, target = operands(torch.float32)
    for field, tensor in (("hidden", hidden), ("weight", weight)):
        with pytest.raises(ValueError, match="^tail_report is at addresses .* which overlap those of " + field):
            flp.linear_logprob(hidden, weight, target, tail=TAIL, tail_report=tensor.detach()[0, :4])
    buffer = torch.zeros(V, D, device=DEVICE)
    with pytest.raises(ValueError, match="^tail_report is at .* overlap those of grad_weight_accumulate"):
        flp.linear_logprob(hidden, weight, target, tail=TAIL, tail_report=buffer[1, :4], grad_weight_accumulate=buffer)


def test_the_range_is_that_of_libflp():
    """Bounds that are accepted here make a plan, and what is just outside does not."""
    spec = {"vocab": V, "hidden": D, "grads": _c.GRAD_HIDDEN}
    for bound in (_numbers.TAIL_LEAST, _numbers.TAIL_MOST, 1e-3):
        _plans.get(_plans.Spec(_c.DEVICE_HOST, **spec, tail=bound))
    for bound in (_numbers.TAIL_LEAST * 0.99, _numbers.TAIL_MOST * 1.01, -1.0):
        with pytest.raises(flp.ArgumentError, match="tail"):
            _plans.get(_plans.Spec(_c.DEVICE_HOST, **spec, tail=bound))
