"""What linear_logprob refuses under a setting, at an address or on libflp alone; tests/golden/refused/python has what it
refuses everywhere."""
import pytest
import torch

import flp
from flp_reference import problem, reference


@pytest.fixture
def good():
    return problem()[:3]


@pytest.mark.parametrize("sizes, message", [
    *(({"depth": depth}, r"hidden is %d \(accepted: multiples of 8 from 8 to \d+\)$" % depth) for depth in (4, 12, 63)),
    ({"vocab": 1}, r"vocab is 1 \(accepted: 2 to \d+\)")], ids=str)
def test_sizes(sizes, message):
    with pytest.raises(flp.ArgumentError, match=r"^spec\." + message):
        flp.linear_logprob(*problem(**sizes)[:3])


@pytest.mark.parametrize("given", [dict(scale=0), dict(scale=0, softcap=1e-30, temperature=1e-4), dict(softcap=2e-37),
                                   dict(scale=1e30, temperature=1e30), dict(scale=2.0**-120, temperature=2.0**-120)])
def test_numbers_at_the_ends_of_float32(good, engine, given):
    """As float64 has it; and every rung, libflp's own checks among them, takes what is accepted here."""
    want = reference(*good, **given)[0]
    assert torch.allclose(flp.linear_logprob(*good, **given).double(), want, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("engine")
def test_budget_too_small_names_the_smallest_that_would_do(good):
    import re
    with pytest.raises(flp.BudgetError) as caught:
        flp.linear_logprob(*good, budget=1)
    sizes = [int(word) for word in re.findall(r"\d+", str(caught.value))]
    smallest = min(size for size in sizes if size > 1000)
    flp.linear_logprob(*good, budget=smallest)
    with pytest.raises(flp.BudgetError):
        flp.linear_logprob(*good, budget=smallest - 1)


@pytest.mark.usefixtures("engine")
def test_a_budget_may_be_a_text(good):
    assert torch.equal(flp.linear_logprob(*good, budget="0.5G"), flp.linear_logprob(*good, budget=1 << 29))
    with pytest.raises(flp.BudgetError):
        flp.linear_logprob(*good, budget="1")


def test_address_below_element_alignment():
    raw = torch.zeros(13 * 64 * 4 + 4, dtype=torch.uint8)
    hidden = torch.frombuffer(raw.numpy().data, dtype=torch.float32, count=13 * 64, offset=1).reshape(13, 64)
    _, weight, target, _ = problem()
    message = r"^args\.hidden is 0x[0-9a-f]+ \(accepted: multiples of .*4 bytes"
    with pytest.raises(flp.ArgumentError, match=message):
        flp.linear_logprob(hidden, weight.cpu(), target.cpu())
