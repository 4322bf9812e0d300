"""grad_weight_accumulate in memory that the call uses otherwise: refused by name, in every call that takes it."""
import pytest
import torch

import flp
from flp_reference import DEVICE, problem


def parts(*shapes):
    """Tensors of these shapes in one piece of memory, one behind the other, and the whole of it."""
    sizes = [torch.Size(shape).numel() for shape in shapes]
    whole = torch.randn(sum(sizes), generator=torch.Generator().manual_seed(3)).to(DEVICE)
    return [part.view(shape) for part, shape in zip(whole.split(sizes), shapes)], whole


def linear_logprob(given, buffer):
    flp.linear_logprob(**given, grad_weight_accumulate=buffer).sum().backward()


def explain(given, buffer):
    flp.explain(**given, grad_weight_accumulate=buffer)


def policy_loss(given, buffer):
    rows = {name: given[name].reshape(1, *given[name].shape) for name in ("hidden", "target")}
    flp.policy_loss("nll", **{**given, **rows}, grad_weight_accumulate=buffer)


def shard(given, buffer):
    stats, grad = torch.zeros(16, 4, device=DEVICE), torch.zeros(16, device=DEVICE)
    given = {name: value.detach() for name, value in given.items()}
    flp.linear_logprob_backward(stats=stats, grad_logprob=grad, **given, grad_weight_accumulate=buffer)


CALLS = [linear_logprob, explain, policy_loss, shard]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
@pytest.mark.parametrize("field", ["hidden", "weight", "bias"])
def test_memory_of_an_operand(call, field):
    """The last element of the operand is the first one of the buffer."""
    given = dict(hidden=torch.randn(16, 8, device=DEVICE), weight=torch.randn(32, 8, device=DEVICE),
                 bias=torch.randn(32, device=DEVICE), target=torch.arange(16, device=DEVICE))
    count = given[field].numel()
    whole = torch.zeros(count + 32 * 8 - 1, device=DEVICE)
    given[field] = whole[:count].view(given[field].shape)
    for name in ("hidden", "weight", "bias"):
        given[name].requires_grad_()
    message = (r"^grad_weight_accumulate is at addresses 0x\w+ to 0x\w+, which overlap those of %s, 0x\w+ to 0x\w+ "
               r"\(accepted: memory that nothing else of the call uses\)$" % field)
    with pytest.raises(ValueError, match=message):
        call(given, whole.detach()[count - 1:].view(32, 8))
    call(given, torch.zeros(32, 8, device=DEVICE))


@pytest.mark.parametrize("field", ["hidden", "bias"])
def test_memory_of_another_gradient(field):
    """Autograd adds to it in the same backward pass."""
    (hidden, bias), _ = parts((32, 8), (32,))
    weight = torch.randn(32, 8, device=DEVICE).requires_grad_()
    given = dict(hidden=hidden.requires_grad_(), weight=weight, bias=bias.requires_grad_(),
                 target=torch.arange(32, device=DEVICE))
    (buffer, beside), whole = parts((32, 8), (32,))
    given[field].grad = buffer if field == "hidden" else whole[8:40]
    with pytest.raises(ValueError, match=r"overlap those of %s\.grad, " % field):
        linear_logprob(given, buffer)
    given[field].grad = beside if field == "bias" else None
    linear_logprob(given, buffer)


def test_the_gradient_of_the_weight_itself():
    """As a whole it takes each gradient once; a part of it that lies otherwise is refused."""
    hidden, weight, target, _ = problem()
    weight.requires_grad_()
    want = torch.autograd.grad(flp.linear_logprob(hidden, weight, target).sum(), weight)[0]
    weight.grad = torch.zeros_like(weight)
    linear_logprob(dict(hidden=hidden, weight=weight, target=target), weight.grad)
    assert torch.allclose(weight.grad, want, atol=1e-6)
    wider = torch.zeros(332, 64, device=DEVICE)
    weight.grad = wider[1:]
    with pytest.raises(ValueError, match=r"overlap those of weight\.grad, "):
        linear_logprob(dict(hidden=hidden, weight=weight, target=target), wider[:-1])


def test_parts_of_one_piece_of_memory():
    """Buffers beside each other in one allocation, as Megatron has them."""
    (hidden, weight, buffer, old), _ = parts((16, 8), (32, 8), (32, 8), (16,))
    weight.requires_grad_()
    before = hidden.clone(), weight.detach().clone(), old.clone()
    flp.linear_logprob(hidden, weight, torch.arange(16, device=DEVICE), old_lse=old,
                       grad_weight_accumulate=buffer).sum().backward()
    assert all(map(torch.equal, before, (hidden, weight, old))) and weight.grad is None


@pytest.mark.parametrize("field", ["temperature", "old_lse", "advantage", "old_logprob"])
def test_memory_of_rows(field):
    weight, buffer = torch.randn(32, 8, device=DEVICE).requires_grad_(), torch.ones(32, 8, device=DEVICE)
    given = dict(hidden=torch.randn(2, 4, 8, device=DEVICE), weight=weight,
                 target=torch.arange(8, device=DEVICE).view(2, 4))
    given[field] = buffer[5].view(2, 4)
    with pytest.raises(ValueError, match="overlap those of %s, " % field):
        if field in ("temperature", "old_lse"):
            flp.linear_logprob(**given, grad_weight_accumulate=buffer)
        else:
            given.setdefault("advantage", torch.ones(2, 4, device=DEVICE))
            flp.policy_loss("ppo", **given, grad_weight_accumulate=buffer)
