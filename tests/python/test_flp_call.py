"""One Call for every function of a head: what it takes, and the order of its operands."""
import inspect

import pytest
import torch

import flp
import flp.parallel
from flp._library import _together
from flp._tensors._call import Call
from flp._tensors._operands import GRADIENTS, OPERANDS
from flp_reference import problem

OPTIONS = {name for name, parameter in inspect.signature(Call.__init__).parameters.items()
           if parameter.kind is parameter.KEYWORD_ONLY}
# Options that the function itself checks, and those of no head.
OWN = {"kept_mass", "loss", "sequence_parallel", "gather", "eager", "slices", "scores", "target", "reference"}


def test_operands_stand_in_their_order():
    hidden, weight, target, _ = problem()
    bias = torch.zeros_like(weight[:, 0])
    lora = flp.Lora(torch.zeros(8, weight.shape[1]).to(hidden), torch.zeros(weight.shape[0], 8).to(hidden))
    call = Call("a test", hidden.requires_grad_(), weight, target, bias.requires_grad_(), lora=lora)
    assert tuple(call.operands) == OPERANDS and OPERANDS[:3] + OPERANDS[-2:] == tuple(GRADIENTS)
    assert call.grads == GRADIENTS["hidden"] | GRADIENTS["bias"]


def test_it_takes_what_a_head_may_be_asked_for():
    assert set(_together.WITHOUT) | {other for others in _together.WITHOUT.values() for other in others} <= OPTIONS | OWN


@pytest.mark.parametrize("function", [flp.linear_logprob, flp.explain, flp.linear_logprob_partial,
                                      flp.linear_logprob_backward, flp.cross_entropy, flp.distill_loss,
                                      flp.policy_loss, flp.parallel.linear_logprob, flp.divergence,
                                      flp.divergence_loss])
def test_a_default_is_the_same_everywhere(function):
    """An option that is not given means the same in each function. save and mixed are None there, where a Call of a
    function without them has False."""
    usual = {name: parameter.default for name, parameter in inspect.signature(Call.__init__).parameters.items()}
    usual.update(save=None, mixed=None)
    given = {name: parameter.default for name, parameter in inspect.signature(function).parameters.items()
             if name in OPTIONS}
    assert given and given == {name: usual[name] for name in given}
