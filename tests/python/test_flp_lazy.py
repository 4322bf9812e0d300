"""Tensors whose values are not those in their memory: settled where they are read. Where they
are written, or nowhere, they are refused: tests/golden/refused/python/lazy.txt."""
import re
from pathlib import Path

import pytest
import torch

import flp
from flp._tensors import _address
from flp_reference import DEVICE, problem

PACKAGE = Path(flp.__file__).parent


def negative(tensor):
    """The same values, with torch's negative bit over memory that holds the others."""
    view = torch._neg_view(tensor.detach().neg())
    assert view.is_neg() and view.is_contiguous() and torch.equal(view, tensor)
    return view


def same(got, want):
    for mine, other in zip(got, want):
        assert torch.equal(mine, other)


def operands():
    hidden, weight, target, bias = problem(bias=True)
    temperature = torch.linspace(0.5, 2, 13, device=DEVICE)
    rows = torch.tensor([0, 3, 4, 9], dtype=torch.int32, device=DEVICE)
    return dict(hidden=hidden, weight=weight, target=target, bias=bias, temperature=temperature, rows=rows,
                old_lse=torch.full((13,), 4.0, device=DEVICE))


def trained(given):
    """Values and gradients of linear_logprob."""
    given = dict(given)
    leaves = []
    for name in ("hidden", "weight", "bias"):
        leaves.append(given[name].detach().requires_grad_())
        given[name] = leaves[-1]
    results = flp.linear_logprob(given.pop("hidden"), given.pop("weight"), given.pop("target"), given.pop("bias"),
                                 entropy=True, **given)
    upstream = [negative(torch.linspace(-1, 1, 13, device=DEVICE)), torch.linspace(0, 1, 13, device=DEVICE)]
    return [*results, *torch.autograd.grad(results, leaves, upstream)]


@pytest.mark.parametrize("field", ["hidden", "weight", "target", "bias", "temperature", "rows", "old_lse"])
def test_operands_of_linear_logprob(engine, field):
    given = operands()
    want = trained(given)
    given[field] = negative(given[field])
    same(trained(given), want)
    with torch.no_grad():
        given["hidden"] = given["hidden"].reshape(13, 64)
        got = flp.linear_logprob(given.pop("hidden"), given.pop("weight"), given.pop("target"), **given)
    assert torch.equal(got, want[0])


def test_upstream_gradients(engine):
    hidden, weight, target, _ = problem()
    hidden.requires_grad_()
    upstream = torch.linspace(-1, 1, 13, device=DEVICE)
    want, got = (torch.autograd.grad(flp.linear_logprob(hidden, weight, target), hidden, grad)[0]
                 for grad in (upstream, negative(upstream)))
    assert torch.equal(got, want) and want.any()


def test_the_imaginary_part_of_a_conjugate(engine):
    """Where the public API makes the bit: one element is contiguous whatever its stride."""
    hidden, weight, target, _ = problem(n=1)
    temperature = torch.complex(torch.ones(1), torch.full((1,), -2.0)).to(DEVICE).conj().imag
    assert temperature.is_neg()
    assert torch.equal(flp.linear_logprob(hidden, weight, target, temperature=temperature),
                       flp.linear_logprob(hidden, weight, target, temperature=torch.tensor([2.0], device=DEVICE)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_selective_log_softmax(engine, dtype):
    logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(1), dtype=dtype).to(DEVICE)
    index, upstream = torch.tensor([1, 7, 0, 49], device=DEVICE), torch.linspace(-1, 1, 4, dtype=dtype, device=DEVICE)

    def values(logits, index, upstream):
        leaf = logits.detach().requires_grad_()
        result = flp.selective_log_softmax(leaf, index)
        assert torch.equal(flp.selective_log_softmax(logits, index), result)
        return result, torch.autograd.grad(result, leaf, upstream)[0]

    want = values(logits, index, upstream)
    for place in range(3):
        given = [logits, index, upstream]
        given[place] = negative(given[place])
        same(values(*given), want)


@pytest.mark.parametrize("field", ["advantage", "old_logprob", "ref_logprob", "mask", "temperature"])
def test_policy_loss(field):
    hidden, weight, target, _ = problem(n=12)
    given = dict(hidden=hidden.view(3, 4, 64).requires_grad_(), weight=weight, target=target.view(3, 4))
    rows = {name: torch.linspace(*ends, 12, device=DEVICE).view(3, 4) for name, ends in (
        ("advantage", (-1, 2)), ("old_logprob", (-7, -3)), ("ref_logprob", (-3, -8)), ("temperature", (0.5, 2)))}
    rows["mask"] = torch.tensor([[1.0, 1, 1, 0]] * 3, device=DEVICE)

    def values():
        loss, metrics = flp.policy_loss("grpo", **given, beta=0.1, **rows)
        return [loss, *metrics.values(), *torch.autograd.grad(loss, given["hidden"])]

    want = values()
    rows[field] = negative(rows[field])
    same(values(), want)


def test_shards(engine):
    hidden, weight, target, _ = problem()
    upstream = torch.linspace(-1, 1, 13, device=DEVICE)

    def values(kind):
        partial = flp.linear_logprob_partial(kind(hidden), kind(weight), kind(target), vocab_offset=0, vocab_total=331)
        logprob, _, stats = flp.combine_partials(kind(partial.unsqueeze(0)), kind(target), vocab_total=331)
        return logprob, *flp.linear_logprob_backward(hidden, weight, target, kind(stats), kind(upstream))[:2]

    same(values(negative), values(lambda tensor: tensor))


# ---- one place takes addresses ----

def test_no_other_file_takes_addresses():
    found = {path.name for path in PACKAGE.rglob("*.py") if re.search(r"\bdata_ptr\b", path.read_text())}
    assert found == {"_address.py"}


def test_an_address_is_of_values_as_they_stand():
    plain = torch.arange(6.0)
    assert _address.address(plain[2:]) == _address.address(plain) + 8 and _address.address(None) is None
    for lazy in (negative(plain), torch.complex(plain, plain).conj()):
        with pytest.raises(flp.errors.InternalError, match="unsettled"):
            _address.address(lazy)
