"""What autograd keeps for a backward pass, of every function that has one: it is torch's to guard and to move. A tensor
that is changed in place before the backward pass gives torch's error or the same gradients, and hooks of saved tensors
(offload) free all that was given."""
import gc
import weakref

import pytest
import torch

import flp
import flp.parallel
from flp_reference import DEVICE, problem

pytestmark = pytest.mark.usefixtures("one_rank")
N, V, D = 6, 331, 64


def operands():
    """The tensors of a call by name; gradients reach hidden, weight and bias."""
    hidden, weight, target, bias = problem(n=N, vocab=V, depth=D, bias=True)
    rows = torch.linspace(0.5, 1.5, N, device=DEVICE)
    several = torch.stack([target, (target + 1) % V], 1)
    lists = torch.arange(N + 1, device=DEVICE) * 2, several.reshape(-1).clone()
    teacher_hidden, teacher_weight, _, _ = problem(n=N, vocab=V, depth=16, seed=2)
    small = torch.linspace(-0.1, 0.1, 8 * D, device=DEVICE).view(8, D)
    return {"hidden": hidden, "weight": weight, "bias": bias, "target": target, "several": several, "temperature": rows,
            "rows": torch.tensor([0, 2, 5], device=DEVICE, dtype=torch.int32), "offsets": lists[0], "ids": lists[1],
            "numbers": -rows.clone(), "a": small, "b": small.new_full((V, 8), 0.05), "logits": hidden @ weight.t(),
            "teacher_hidden": teacher_hidden, "teacher_weight": teacher_weight, "mask": target % 2 == 0,
            "teacher_logits": teacher_hidden @ teacher_weight.t()}


def head(t):
    return t["hidden"], t["weight"], t["target"], t["bias"]


def policy(rule):
    def call(t):
        batch = [t[name].view(2, 3) for name in ("target", "numbers", "temperature")]
        return flp.policy_loss(rule, t["hidden"].view(2, 3, D), t["weight"], batch[0], batch[1], t["bias"],
                               old_logprob=batch[1] - 3, temperature=batch[2])[0]
    return call


def lora_of(t):
    return {"lora": flp.Lora(t["a"], t["b"]), "temperature": t["temperature"]}


def pair(t):
    """A student, and a teacher of as many rows."""
    return t["hidden"], t["weight"], t["teacher_hidden"], t["teacher_weight"], "reverse_kl", t["bias"]


# The call, and the tensors that it is given.
HEAD = ("hidden", "weight", "bias", "target", "temperature")
PAIR = ("hidden", "weight", "bias", "teacher_hidden", "teacher_weight", "temperature")
ADAPTED = ("hidden", "bias", "a", "b", "weight", "target", "temperature")
CASES = {
    "linear_logprob": (lambda t: flp.linear_logprob(*head(t), temperature=t["temperature"], entropy=True), HEAD),
    "rows": (lambda t: flp.linear_logprob(*head(t), rows=t["rows"]), (*HEAD[:4], "rows")),
    "several": (lambda t: flp.linear_logprob(*head({**t, "target": t["several"]})), ("hidden", "weight", "bias", "several")),
    "keep": (lambda t: flp.linear_logprob(*head(t), keep=(t["offsets"], t["ids"])), (*HEAD[:4], "offsets", "ids")),
    "lora": (lambda t: flp.linear_logprob(*head(t), **lora_of(t)), ADAPTED),
    "topk": (lambda t: flp.linear_logprob(*head(t), temperature=t["temperature"], topk=3)[0], HEAD),
    "parallel": (lambda t: flp.parallel.linear_logprob(*head(t), temperature=t["temperature"]), HEAD),
    "parallel lora": (lambda t: flp.parallel.linear_logprob(*head(t), **lora_of(t)), ADAPTED),
    "selective_log_softmax": (lambda t: flp.selective_log_softmax(t["logits"], t["target"]), ("logits", "target")),
    "selective_divergence": (lambda t: flp.selective_divergence(t["logits"], t["teacher_logits"], "jsd", mask=t["mask"],
                                                                temperature=t["temperature"]).value,
                             ("logits", "teacher_logits", "mask", "temperature")),
    "cross_entropy none": (lambda t: flp.cross_entropy(*head(t), temperature=t["temperature"], row_weight=t["numbers"],
                                                       reduction="none"), (*HEAD, "numbers")),
    "cross_entropy mean": (lambda t: flp.cross_entropy(*head(t), temperature=t["temperature"]), HEAD),
    "distill_loss": (lambda t: flp.distill_loss(t["hidden"], t["weight"], t["several"], -torch.ones_like(t["several"]).float(),
                                                t["bias"], temperature=t["temperature"])[0],
                     ("hidden", "weight", "bias", "several", "temperature")),
    "divergence": (lambda t: flp.divergence(*pair(t), temperature=t["temperature"]).value, PAIR),
    "divergence_loss": (lambda t: flp.divergence_loss(*pair(t), row_weight=t["numbers"],
                                                      temperature=t["temperature"])[0], (*PAIR, "numbers")),
    "policy_loss": (policy("ppo"), (*HEAD, "numbers")), "policy_loss gspo": (policy("gspo"), (*HEAD, "numbers")),
}


def given(name):
    """Leaves that get gradients, and the tensors of a case; those with gradients are made of leaves."""
    tensors = {field: tensor for field, tensor in operands().items() if field in CASES[name][1]}
    frozen = {"weight"} if "lora" in name else set()
    leaves = {field: tensor.clone().requires_grad_() for field, tensor in tensors.items()
              if field in ("hidden", "weight", "bias", "a", "b", "logits") and field not in frozen}
    return leaves, {field: leaves[field] * 1 if field in leaves else tensor for field, tensor in tensors.items()}


def total(name, tensors):
    results = CASES[name][0]({**operands(), **tensors})
    results = results if isinstance(results, tuple) else (results,)
    return sum((values * torch.linspace(1, 2, values.numel(), device=DEVICE).view(values.shape)).sum() for values in results)


def gradients(name):
    leaves, tensors = given(name)
    return torch.autograd.grad(total(name, tensors), list(leaves.values()))


@pytest.mark.parametrize("name, field", [(name, field) for name, (_, fields) in CASES.items() for field in fields])
def test_a_change_in_place_is_found_or_harmless(name, field):
    want = gradients(name)
    leaves, tensors = given(name)
    loss = total(name, tensors)
    with torch.no_grad():
        tensors[field].copy_(tensors[field].flip(0))
        if tensors[field].is_floating_point():
            tensors[field].mul_(3)
    try:
        got = torch.autograd.grad(loss, list(leaves.values()))
    except RuntimeError as error:
        assert "modified by an inplace operation" in str(error)
    else:
        assert all(torch.equal(mine, other) for mine, other in zip(got, want))


@pytest.mark.parametrize("name", CASES)
def test_hooks_of_saved_tensors_free_what_was_given(name):
    want = gradients(name)
    leaves, tensors = given(name)
    with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda tensor: tensor.clone()):
        loss = total(name, tensors)
    seen = {field: weakref.ref(tensor) for field, tensor in tensors.items()}
    del tensors
    gc.collect()
    assert [field for field, tensor in seen.items() if tensor() is not None] == []
    got = torch.autograd.grad(loss, list(leaves.values()))
    assert all(torch.equal(mine, other) for mine, other in zip(got, want))


@pytest.mark.parametrize("name", ["cross_entropy mean", "distill_loss", "divergence_loss", "policy_loss"])
def test_gradients_that_exist_are_saved_tensors_too(name):
    _, tensors = given(name)
    shapes = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: shapes.append(tuple(tensor.shape)) or tensor, lambda tensor: tensor):
        CASES[name][0]({**operands(), **tensors})
    assert shapes.count((V, D)) == shapes.count((N, D)) == 2
