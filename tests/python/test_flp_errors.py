"""Bad input at the Python surface: the exception's class and its exact words."""
import math

import pytest
import torch

import flp
from flp_reference import DEVICE, problem, reference


def refused(kind, message, *operands, **keywords):
    with pytest.raises(kind) as caught:
        flp.linear_logprob(*operands, **keywords)
    assert str(caught.value) == message


@pytest.fixture
def good():
    return problem()[:3]


@pytest.mark.parametrize("field, place", [("hidden", 0), ("weight", 1), ("target", 2), ("bias", 3)])
def test_not_a_tensor(good, field, place):
    operands = list(good) + [torch.zeros(331, device=DEVICE)]
    operands[place] = [1.0]
    refused(TypeError, "%s is of type list (accepted: a torch.Tensor)" % field, *operands)


def test_unsupported_dtype(good):
    hidden, weight, target = good
    refused(TypeError, "hidden is of dtype torch.float64 (accepted: torch.bfloat16, torch.float16, torch.float32)",
            hidden.double(), weight.double(), target)


def test_mixed_dtypes_name_both(good):
    hidden, weight, target = good
    offer = ('(accepted: one dtype for both, or mixed="round" or "split" with torch.float32 beside torch.bfloat16 or '
             "torch.float16)")
    refused(TypeError, "weight is of dtype torch.float32 while hidden is of dtype torch.bfloat16 " + offer,
            hidden.bfloat16(), weight, target)
    refused(TypeError, "bias is of dtype torch.float16 while hidden is of dtype torch.float32 " + offer, hidden, weight,
            target, torch.zeros(331, dtype=torch.float16, device=DEVICE))


CALLS = {
    "linear_logprob": flp.linear_logprob, "cross_entropy": flp.cross_entropy,
    "policy_loss": lambda hidden, weight, target, **more: flp.policy_loss(
        "grpo", hidden, weight, target, torch.ones(len(target), device=DEVICE), **more),
    "lora": lambda hidden, weight, target: flp.linear_logprob(
        hidden, weight, target, lora=flp.Lora(torch.zeros(8, 64, device=DEVICE), torch.zeros(331, 8, device=DEVICE)))}


@pytest.mark.parametrize("call, mixed", [*((name, None) for name in CALLS), ("linear_logprob", "round"),
                                         ("policy_loss", "split")])
@pytest.mark.parametrize("kind", [name for name in ("float8_e4m3fn", "float8_e5m2", "int8", "uint8") if hasattr(torch, name)])
def test_quantised_operands(good, call, mixed, kind):
    hidden, weight, target = (tensor.detach() for tensor in good)
    more = {"mixed": mixed} if mixed else {}
    for field, operands in (("hidden", (hidden.to(getattr(torch, kind)), weight)),
                            ("weight", (hidden, weight.to(getattr(torch, kind))))):
        with pytest.raises(TypeError, match=r"^%s is of dtype torch\.%s .*\(accepted: (one dtype|torch\.)" % (field, kind)):
            CALLS[call](*operands, target, **more)


def test_target_dtype(good):
    hidden, weight, target = good
    refused(TypeError, "target is of dtype torch.int16 (accepted: torch.int32, torch.int64)", hidden, weight,
            target.short())


def test_shapes(good):
    hidden, weight, target = good
    refused(ValueError, "weight is of shape (331, 56) (accepted: (V, 64), as hidden ends in 64)", hidden,
            weight[:, :56], target)
    refused(ValueError, "weight is of shape (64,) (accepted: (V, 64), as hidden ends in 64)", hidden, weight[0], target)
    refused(ValueError, "target is of shape (12,) (accepted: (13,), as hidden without its last dimension, or (13, K) with "
            "K targets a row)", hidden, weight, target[1:])
    refused(ValueError, "bias is of shape (330,) (accepted: (331,), as weight has 331 rows)", hidden, weight, target,
            torch.zeros(330, device=DEVICE))
    refused(ValueError, "hidden is of shape () (accepted: (..., D))", hidden[0, 0], weight, target)


@pytest.mark.parametrize("depth", [4, 12, 63])
def test_hidden_size_not_a_multiple_of_8(depth):
    hidden, weight, target, _ = problem(depth=depth)
    message = r"^spec\.hidden is %d \(accepted: multiples of 8 from 8 to \d+\)$" % depth
    with pytest.raises(flp.ArgumentError, match=message):
        flp.linear_logprob(hidden, weight, target)


def test_vocabulary_of_one():
    hidden, weight, target, _ = problem(vocab=1)
    with pytest.raises(flp.ArgumentError, match=r"spec\.vocab is 1 \(accepted: 2 to \d+\)"):
        flp.linear_logprob(hidden, weight, target)


@pytest.mark.parametrize("softcap", [0.0, -1.0, 0])
def test_softcap_not_above_zero(good, softcap):
    refused(ValueError, "softcap is %s (accepted: None, or a finite number above 0)" % softcap, *good, softcap=softcap)


@pytest.mark.parametrize("field", ["softcap", "scale"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_not_finite(good, field, value):
    refused(ValueError, "%s is %s (accepted: a finite number)" % (field, value), *good, **{field: value})


def test_a_number_that_no_float_holds(good):
    refused(ValueError, "scale is %d (accepted: a finite number)" % 10**400, *good, scale=10**400)


@pytest.mark.parametrize("value, word", [(0.0, "0.0"), (-2, "-2.0"), (math.nan, "nan"), (math.inf, "inf"),
                                         (1e-46, "1e-46"), (1e-40, "1e-40"), (3.41e38, "3.41e+38"),
                                         pytest.param(10**400, "inf", id="no float")])
def test_scalar_temperature(good, engine, value, word):
    refused(flp.ArgumentError, "temperature is %s (accepted: 1.18e-38 to 3.4e38)" % word, *good, temperature=value)


@pytest.mark.parametrize("field", ["softcap", "scale"])
@pytest.mark.parametrize("value", [1e-46, 1e-300, 1e-40, 3.41e38, 1e300])
def test_a_number_that_float32_does_not_hold(good, engine, field, value):
    """In a C struct it would be 0, which means no softcap, or infinite."""
    refused(ValueError, "%s is %s (accepted: 0, or magnitudes from 1.18e-38 to 3.4e38)" % (field, value), *good,
            **{field: value})


@pytest.mark.parametrize("given, field, words", [
    (dict(scale=1e30, temperature=1e-10), "temperature is 1e-10", "scale/T·log2(e) is a normal number of float32"),
    (dict(scale=-1e-10, temperature=1e30), "temperature is 1e+30", "scale/T·log2(e) is a normal number of float32"),
    (dict(softcap=1e30, temperature=1e-10), "temperature is 1e-10", "softcap/T·log2(e) is a normal number of float32"),
    (dict(softcap=1e-20, temperature=1e20), "temperature is 1e+20", "softcap/T·log2(e) is a normal number of float32"),
    (dict(softcap=1e-20, scale=1e20), "scale is 1e+20 while softcap is 1e-20", "2·scale/softcap is a normal number of"),
    (dict(softcap=1e20, scale=-1e-20), "scale is -1e-20 while softcap is 1e+20", "2·scale/softcap is a normal number")])
def test_products_that_float32_does_not_hold(good, engine, given, field, words):
    with pytest.raises(ValueError) as caught:
        flp.linear_logprob(*good, **given)
    assert str(caught.value).startswith(field + " (accepted: ") and words in str(caught.value)


@pytest.mark.parametrize("given", [dict(scale=0), dict(scale=0, softcap=1e-30, temperature=1e-4), dict(softcap=2e-37),
                                   dict(scale=1e30, temperature=1e30), dict(scale=2.0**-120, temperature=2.0**-120)])
def test_numbers_at_the_ends_of_float32(good, engine, given):
    """As float64 has it; and every rung, libflp's own checks among them, takes what is accepted here."""
    want = reference(*good, **given)[0]
    assert torch.allclose(flp.linear_logprob(*good, **given).double(), want, rtol=1e-4, atol=1e-4)


def test_temperature_tensor(good):
    refused(ValueError, "temperature is of shape (12,) (accepted: (), or (13,), as target)", *good,
            temperature=torch.ones(12, device=DEVICE))
    refused(ValueError, "temperature is a tensor that requires a gradient (accepted: a tensor without, as gradients "
            "reach hidden, weight and bias only)", *good, temperature=torch.ones(13, device=DEVICE, requires_grad=True))
    refused(TypeError, "temperature is of dtype torch.bool (accepted: a real dtype)", *good,
            temperature=torch.ones(13, dtype=torch.bool, device=DEVICE))
    refused(TypeError, "temperature is of type str (accepted: a number, or a tensor of one a row)", *good,
            temperature="1")


@pytest.mark.parametrize("budget, kind, message", [
    (0, ValueError, "budget is 0 (accepted: None, or at least 1 byte)"),
    (-5, ValueError, "budget is -5 (accepted: None, or at least 1 byte)"),
    ("1G", TypeError, "budget is of type str (accepted: an integer)"),
    (2**63, ValueError, "budget is 9223372036854775808 (accepted: an integer of 64 bits)"),
])
def test_budget(good, budget, kind, message):
    refused(kind, message, *good, budget=budget)


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


def test_ignore_index_and_scale_types(good):
    refused(TypeError, "ignore_index is of type float (accepted: an integer)", *good, ignore_index=-100.0)
    refused(TypeError, "scale is of type str (accepted: a finite number)", *good, scale="2")


def test_row_list(good):
    refused(TypeError, "rows is of dtype torch.bool (accepted: torch.int32, torch.int64)", *good,
            rows=torch.ones(13, dtype=torch.bool))
    refused(ValueError, "rows is of shape (1, 2) (accepted: (row count,))", *good, rows=[[0, 1]])
    refused(TypeError, "rows is of dtype torch.float32 (accepted: torch.int32, torch.int64)", *good, rows=[0.5, 1.7])
    refused(TypeError, "rows is of dtype torch.bool (accepted: torch.int32, torch.int64)", *good, rows=[True, False])
    refused(TypeError, "rows is of type str (accepted: integers of 64 bits, or a tensor of them)", *good, rows="ab")
    refused(TypeError, "rows is of type list (accepted: integers of 64 bits, or a tensor of them)", *good, rows=[2**70])


def test_accumulation_buffer(good):
    hidden, weight, target = good
    trained = weight.clone().requires_grad_()
    refused(TypeError, "grad_weight_accumulate is of dtype torch.bfloat16 (accepted: torch.float32)", hidden, trained,
            target, grad_weight_accumulate=torch.zeros(331, 64, dtype=torch.bfloat16, device=DEVICE))
    refused(ValueError, "grad_weight_accumulate is of shape (330, 64) (accepted: (331, 64), as weight)", hidden,
            trained, target, grad_weight_accumulate=torch.zeros(330, 64, device=DEVICE))
    refused(ValueError, "grad_weight_accumulate is of strides (1, 331) (accepted: rows without overlap whose elements "
            "are adjacent)", hidden, trained, target, grad_weight_accumulate=torch.zeros(64, 331, device=DEVICE).t())
    refused(ValueError, "grad_weight_accumulate is given while weight does not require a gradient (accepted: a weight "
            "that requires a gradient, or None)", hidden, weight, target,
            grad_weight_accumulate=torch.zeros(331, 64, device=DEVICE))


def test_other_devices(good):
    hidden, weight, target = good
    refused(ValueError, "hidden is on device meta (accepted: a cpu or cuda device)", hidden.to("meta"),
            weight.to("meta"), target.to("meta"))
    refused(ValueError, "target is on device meta while hidden is on %s (accepted: one device for all)" % hidden.device,
            hidden, weight, target.to("meta"))


def test_sparse_layout(good):
    hidden, weight, target = good
    refused(TypeError, "weight is of layout torch.sparse_coo (accepted: torch.strided)", hidden, weight.to_sparse(),
            target)


def test_address_below_element_alignment():
    raw = torch.zeros(13 * 64 * 4 + 4, dtype=torch.uint8)
    hidden = torch.frombuffer(raw.numpy().data, dtype=torch.float32, count=13 * 64, offset=1).reshape(13, 64)
    _, weight, target, _ = problem()
    message = r"^args\.hidden is 0x[0-9a-f]+ \(accepted: multiples of .*4 bytes"
    with pytest.raises(flp.ArgumentError, match=message):
        flp.linear_logprob(hidden, weight.cpu(), target.cpu())


def test_strict_mode_raises_in_the_call(good, monkeypatch):
    hidden, weight, target = good
    target[1] = 1000
    monkeypatch.setenv("FLP_STRICT", "1")
    flp.clear_plans()
    with pytest.raises(flp.DataError):
        flp.linear_logprob(hidden, weight, target)


def test_misspelt_environment(good, monkeypatch):
    monkeypatch.setenv("FLP_FORCE", "fastest")
    flp.clear_plans()
    with pytest.raises(flp.ArgumentError, match=r'^FLP_FORCE is "fastest" \(accepted: tuned, heuristic, jit, generic, '
                                                r'eager\)$'):
        flp.linear_logprob(*good)
