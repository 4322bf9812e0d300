"""Bits: what must not change them. Strides, alignment, budgets, other rows, gradients, threads."""
import threading

import pytest
import torch

import flp
from flp_reference import DEVICE, DTYPES, doubles, problem, reference, relative, rounds_by_place

pytestmark = pytest.mark.usefixtures("engine")


def forward(hidden, weight, target, bias=None, **keywords):
    return torch.stack(flp.linear_logprob(hidden, weight, target, bias, entropy=True, **keywords)).detach()


def gradients(hidden, weight, target, **keywords):
    hidden, weight = hidden.detach().requires_grad_(), weight.detach().requires_grad_()
    logprob, entropy = flp.linear_logprob(hidden, weight, target, entropy=True, **keywords)
    (logprob.sum() + 0.25 * entropy.sum()).backward()
    return hidden.grad, weight.grad


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_with_and_without_gradients(dtype):
    hidden, weight, target, bias = problem(dtype=dtype, bias=True, vocab=3001)
    plain = forward(hidden, weight, target, bias)
    hidden.requires_grad_(), weight.requires_grad_()
    with torch.no_grad():
        assert torch.equal(forward(hidden, weight, target, bias), plain)
    with_grad = flp.linear_logprob(hidden, weight, target, bias, entropy=True)
    assert torch.equal(torch.stack(with_grad), plain)
    assert torch.equal(flp.linear_logprob(hidden, weight, target, bias), plain[0])


def test_every_run_is_the_same():
    hidden, weight, target, _ = problem(dtype=torch.bfloat16, vocab=3001)
    first, again = gradients(hidden, weight, target), gradients(hidden, weight, target)
    assert all(torch.equal(a, b) for a, b in zip(first, again))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_row_does_not_know_its_neighbours(dtype, engine):
    if engine == "torch form" and rounds_by_place():
        pytest.skip("this processor's BLAS rounds a row by its place in a product")
    hidden, weight, target, _ = problem(n=300, dtype=dtype, vocab=3001)
    whole = forward(hidden, weight, target)
    order = torch.randperm(300, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    assert torch.equal(forward(hidden[order], weight, target[order]), whole[:, order])
    for row in (0, 77, 299):
        assert torch.equal(forward(hidden[row:row + 1], weight, target[row:row + 1]), whole[:, row:row + 1])
    some = target.clone()
    some[::3] = -100
    kept = torch.arange(300, device=DEVICE) % 3 != 0
    assert torch.equal(forward(hidden, weight, some)[:, kept], whole[:, kept])


def test_budgets_change_no_bit_of_the_forward_pass():
    hidden, weight, target, _ = problem(n=300, vocab=3001)
    whole = forward(hidden, weight, target)
    for budget in (32 << 20, 64 << 20, 512 << 20):
        assert torch.equal(forward(hidden, weight, target, budget=budget), whole)


def test_small_budgets_give_the_same_gradients():
    hidden, weight, target, _ = problem(n=700, vocab=3001)
    wide = doubles(hidden, weight)
    logprob, entropy = reference(*wide, target)
    (logprob.sum() + 0.25 * entropy.sum()).backward()
    for budget in (24 << 20, 1 << 30):
        for mine, exact in zip(gradients(hidden, weight, target, budget=budget), wide):
            assert relative(mine, exact.grad) < 1e-5


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_strides_and_alignment_change_nothing(dtype):
    hidden, weight, target, bias = problem(dtype=dtype, bias=True)
    want, want_grads = forward(hidden, weight, target, bias), gradients(hidden, weight, target)
    for pad in (8, 1, 3):
        room = torch.zeros(13, 64 + pad, dtype=dtype, device=DEVICE)
        room[:, pad:] = hidden
        wide = torch.zeros(331, 64 + pad, dtype=dtype, device=DEVICE)
        wide[:, :64] = weight
        ids = torch.stack([target, target + 1], 1)[:, 0]
        shifted = torch.cat([bias[:1], bias])[1:]
        assert torch.equal(forward(room[:, pad:], wide[:, :64], ids, shifted), want)
        for mine, exact in zip(gradients(room[:, pad:], wide[:, :64], target), want_grads):
            assert relative(mine, exact) < 1e-6


@pytest.mark.parametrize("make", [
    lambda hidden: hidden.t().contiguous().t(),
    lambda hidden: torch.stack([hidden, hidden], 2)[:, :, 0],
    lambda hidden: hidden.flip(0).flip(0),
], ids=["columns first", "every other element", "flipped twice"])
def test_rows_that_are_not_adjacent(make):
    hidden, weight, target, _ = problem()
    assert torch.equal(forward(make(hidden), make(weight), target), forward(hidden, weight, target))


def test_expanded_row():
    hidden, weight, target, _ = problem()
    wide = hidden[:1].expand(13, 64)
    assert torch.equal(forward(wide, weight, target), forward(wide.contiguous(), weight, target))


def test_gradient_reaches_a_view_through_its_base():
    hidden, weight, target, _ = problem()
    base = torch.zeros(13, 80, device=DEVICE)
    base[:, 16:] = hidden
    base.requires_grad_()
    flp.linear_logprob(base[:, 16:], weight, target).sum().backward()
    hidden.requires_grad_()
    flp.linear_logprob(hidden, weight, target).sum().backward()
    assert torch.equal(base.grad[:, 16:], hidden.grad) and not base.grad[:, :16].any()


def test_threads_share_plans():
    hidden, weight, target, _ = problem(n=64, vocab=997)
    want = [forward(hidden, weight, target)] + list(gradients(hidden, weight, target))
    flp.clear_plans()
    failures, start = [], threading.Barrier(8)

    def work():
        try:
            start.wait()
            for _ in range(5):
                got = [forward(hidden, weight, target)] + list(gradients(hidden, weight, target))
                assert all(torch.equal(a, b) for a, b in zip(got, want))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


# Calls with the same contract: what else may be in one. Each with its operands' names that have gradients.
SAME = [{}, {"entropy": True}, {"topk": 5}, {"rank": True}, {"statistics": True}, {"budget": "1M"},
        {"ignore_index": 17}, {"grads": ("hidden", "weight")}, {"grads": ("hidden",)},
        {"grads": ("hidden", "weight"), "tail": 2**-9, "entropy": "detached"}, {"target": 3}, {"rows": True}]
# Calls whose numbers differ from those of any other here.
OTHERS = [{}, {"temperature": 0.7}, {"temperature": "rows"}, {"softcap": 30.0}, {"scale": 0.5}, {"bias": True},
          {"mixed": "split"}, {"shards": 2}]


def words_of(weight, bias=None, **options):
    kinds = {"softcap", "scale", "temperature", "mixed", "grads", "hidden_dtype", "shards", "expect"}
    return flp.contract(weight, bias, **{name: value for name, value in options.items() if name in kinds})


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_contract_holds_whatever_else_a_call_has(dtype, engine):
    hidden, weight, target, _ = problem(n=40, dtype=dtype, vocab=3001)
    if engine == "torch form":
        with pytest.raises(flp.UnsupportedError, match="chunked torch operations"):
            flp.contract(weight)
        return
    words, wanted = flp.contract(weight), flp.linear_logprob(hidden, weight, target)
    for options in SAME:
        assert words_of(weight, expect=words, **options) == words
        more = {name: value for name, value in options.items() if name not in ("grads", "target", "rows")}
        operands = [tensor.detach().requires_grad_(name in options.get("grads", ()))
                    for name, tensor in (("hidden", hidden), ("weight", weight))]
        part = torch.tensor([31, 2], device=DEVICE) if "rows" in options else torch.arange(40, device=DEVICE)
        ids = target if "target" not in options else torch.stack([target, target.roll(1), target], 1)
        found = flp.linear_logprob(*operands, ids, rows=part.int() if "rows" in options else None, **more)
        logprob = found[0] if isinstance(found, tuple) else found
        logprob = logprob.detach() if logprob.dim() == 1 else logprob.detach()[:, 0]
        assert torch.equal(logprob[part], wanted[part]), options


def test_a_contract_names_every_number_of_a_call(engine):
    if engine == "torch form":
        pytest.skip("has no contract")
    _, weight, _, bias = problem(dtype=torch.bfloat16, vocab=3001, bias=True)
    found = {words_of(weight, bias if options.pop("bias", None) else None, hidden_dtype=torch.float32 if options.get(
        "mixed") else None, **options) for options in map(dict, OTHERS)}
    assert len(found) == len(OTHERS) and all(" code=" in words for words in found)
    with pytest.raises(flp.ContractError, match="this side has temperature=1 where the other has temperature=0.5"):
        flp.contract(weight, expect=flp.contract(weight, temperature=0.5))
