"""A default device (torch.set_default_device, torch.device as a context) changes nothing: whatever the package makes, it
makes on the device that it names, or that of a tensor."""
import ast
from pathlib import Path

import pytest
import torch

import flp
from flp_reference import DEVICE, problem

FACTORIES = {"tensor", "as_tensor", "zeros", "ones", "empty", "full", "arange", "linspace", "eye", "rand", "randn",
             "randint", "randperm", "scalar_tensor", "empty_strided"}


def factory_calls(path):
    """Calls of torch's factories in a file, those that name a device aside."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in FACTORIES and \
                isinstance(node.func.value, ast.Name) and node.func.value.id == "torch":
            given = {keyword.arg for keyword in node.keywords}
            if "device" not in given and None not in given:
                yield "%s:%d" % (path.name, node.lineno)


def test_what_is_made_names_its_device():
    package = Path(flp.__file__).parent
    files = [path for path in package.rglob("*.py") if "bench" not in path.relative_to(package).parts]
    assert len(files) > 50
    assert [call for path in files for call in factory_calls(path)] == []


@pytest.mark.skipif(not hasattr(torch, "set_default_device"), reason="torch before 2.0 has no default device")
@pytest.mark.parametrize("call", [
    lambda h, w, y, b: flp.linear_logprob(h, w, y, b, rows=[0, 3]), lambda h, w, y, b: flp.linear_logprob(h, w, y, b, topk=3)[0],
    lambda h, w, y, b: flp.linear_logprob(h, w, y, b, rows=(), temperature=0.7), lambda h, w, y, b: flp.cross_entropy(h, w, y, b),
    lambda h, w, y, b: flp.cross_entropy(h, w, y, b, reduction="none", z_loss=1e-3),
    lambda h, w, y, b: flp.selective_log_softmax(h @ w.t() + b, y),
    lambda h, w, y, b: flp.linear_logprob(h, w, y, b, keep=(torch.arange(14, device=DEVICE), y)),
    lambda h, w, y, b: flp.policy_loss("ppo", h[None], w, y[None], torch.ones(1, device=DEVICE), b)[0],
    lambda h, w, y, b: flp.policy_loss("gspo", h[None], w, y[None], torch.ones(1, device=DEVICE), b)[0],
    lambda h, w, y, b: flp.linear_logprob(h, w, y, b, lora=flp.Lora(h[:4].detach(), w[:, :4].detach()))])
def test_a_default_device_changes_nothing(call):
    hidden, weight, target, bias = problem(bias=True)

    def values_and_gradient():
        leaf = hidden.clone().requires_grad_()
        values = call(leaf, weight, target, bias)
        return values.detach(), *torch.autograd.grad(values.sum(), leaf)

    want = values_and_gradient()
    with torch.device("meta"):
        got = values_and_gradient()
    assert all(torch.equal(mine, other) for mine, other in zip(got, want))
