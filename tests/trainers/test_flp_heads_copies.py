"""flp.logprob_head: copies that are made of a model and of its head inside the block, however they are made."""
import copy
import functools
import pickle
import sys
import threading
import types
from pathlib import Path

import pytest
import torch
from torch import nn

import flp
import flp_standin_lm
from flp_standin_lm import COPIES, IDS, Adapted, TinyLM, Wrapper, error_of, logits_of, next_logprobs
from installed import run

WAYS = {
    **COPIES,
    "protocol 0": lambda model: pickle.loads(pickle.dumps(model, 0)),
    "of a wrapper": lambda model: copy.deepcopy(Wrapper(model)).module,
    "of an adapted model": lambda model: copy.deepcopy(Adapted(model)).base_model,
    "of a copy": lambda model: copy.deepcopy(copy.deepcopy(model)),
}


def changed(model):
    """The model, with weights of its own values."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5).add_(0.01)
    return model


def check_plain(model):
    """A model of its own class and attributes, whose scores come from its own weights."""
    assert type(model) is TinyLM and type(model.lm_head) is nn.Linear
    assert set(vars(model)) == set(vars(TinyLM())) and set(vars(model.lm_head)) == set(vars(nn.Linear(1, 1)))
    with torch.no_grad():
        assert torch.equal(model(input_ids=IDS).logits, logits_of(model))


def check_scored(model):
    assert error_of(model) < 5e-6


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_a_copy_is_a_plain_model_with_weights_of_its_own(way, bias):
    model = TinyLM(bias=bias)
    with flp.logprob_head(model):
        reference = changed(WAYS[way](model))
        assert not torch.allclose(logits_of(reference), logits_of(model), atol=0.1)
        check_plain(reference)
        check_scored(model)
        with flp.logprob_head(reference):
            check_scored(reference)
            check_scored(model)
    check_plain(reference)
    check_plain(model)
    with flp.logprob_head(reference):
        check_scored(reference)


def test_gradients_of_a_copy_are_its_own():
    model = TinyLM()
    with flp.logprob_head(model):
        other = copy.deepcopy(model)
        other(input_ids=IDS).logits.square().sum().backward()
        with flp.logprob_head(other):
            other(input_ids=IDS).logprobs.sum().backward()
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(parameter.grad.abs().sum() > 0 for parameter in other.parameters())


def test_copies_between_nested_blocks():
    model = TinyLM()
    with flp.logprob_head(model):
        outer = changed(copy.deepcopy(model))
        with flp.logprob_head(model, temperature=2.0), flp.logprob_head(outer):
            inner = changed(copy.deepcopy(outer))
            check_plain(inner)
            check_scored(outer)
        for plain in (outer, inner):
            check_plain(plain)
        check_scored(model)
    check_plain(model)


@pytest.mark.parametrize("way", COPIES)
def test_a_copy_of_the_head_alone(way):
    model, hidden = TinyLM(bias=True), torch.randn(5, 16)
    with flp.logprob_head(model):
        head = changed(WAYS[way](model.lm_head))
        inside = head(hidden)
        model.lm_head = changed(copy.deepcopy(head))
        with pytest.raises(flp.UnsupportedError, match="head is another one than when logprob_head was installed"):
            model(input_ids=IDS)
    assert type(head) is nn.Linear
    for got in (inside, head(hidden)):
        assert torch.equal(got, nn.functional.linear(hidden, head.weight, head.bias))
    check_plain(model)


def test_a_shallow_copy_is_refused_inside_the_block_and_plain_after_it():
    model = TinyLM()
    with flp.logprob_head(model):
        shallow, head = copy.copy(model), copy.copy(model.lm_head)
        assert type(shallow) is TinyLM and type(head) is nn.Linear
        assert torch.equal(head(torch.ones(1, 16)), nn.functional.linear(torch.ones(1, 16), model.lm_head.weight))
        with pytest.raises(flp.UnsupportedError, match="head is called outside of one"):
            shallow(input_ids=IDS)
        shallow._modules = dict(shallow._modules, lm_head=nn.Linear(16, 257, bias=False))
        check_plain(shallow)
        check_scored(model)
    check_plain(shallow)


def test_replicas_run_their_own_parameters():
    """As DataParallel makes them: attributes copied one by one, then modules and parameters replaced."""
    model, other = TinyLM(), TinyLM(seed=1)
    with flp.logprob_head(model):
        replica, head = model._replicate_for_data_parallel(), model.lm_head._replicate_for_data_parallel()
        head._parameters = dict(other.lm_head._parameters)
        replica._modules = {"embed": other.embed, "mix": other.mix, "lm_head": head}
        inside = replica(input_ids=IDS).logits
        check_scored(model)
    for got in (inside, replica(input_ids=IDS).logits):
        assert torch.equal(got, logits_of(other))


class OwnCopy(TinyLM):
    """Copies itself attribute by attribute, as some models do."""

    def __deepcopy__(self, memo):
        made = type(self).__new__(type(self))
        memo[id(self)] = made
        vars(made).update(copy.deepcopy(vars(self), memo))
        return made


def test_models_that_copy_themselves():
    model = OwnCopy()
    with flp.logprob_head(model):
        other = changed(copy.deepcopy(model))
        assert torch.equal(other(input_ids=IDS).logits, logits_of(other))
        again = pickle.loads(pickle.dumps(other))
        assert type(again) is OwnCopy and torch.equal(again(input_ids=IDS).logits, logits_of(other))
    with flp.logprob_head(other):
        check_scored(other)
    assert type(other) is OwnCopy and torch.equal(other(input_ids=IDS).logits, logits_of(other))


def test_a_model_made_from_the_class_is_plain():
    model = TinyLM()
    with flp.logprob_head(model):
        made = type(model)(seed=3)
        assert type(model).__name__ == "TinyLM" and torch.equal(made(input_ids=IDS).logits, logits_of(made))
        with flp.logprob_head(made):
            check_scored(made)
    check_plain(made)


def test_a_saved_model_is_loaded_where_flp_is_not(tmp_path):
    model = TinyLM()
    with flp.logprob_head(model):
        torch.save({"model": model, "state": model.state_dict()}, tmp_path / "model.pt")
        assert list(model.state_dict()) == list(TinyLM().state_dict())
    torch.save(logits_of(model), tmp_path / "scores.pt")
    script = """if True:
        import sys, torch
        from flp_standin_lm import IDS, loaded
        sys.modules["flp"] = None
        model = loaded(sys.argv[1] + "/model.pt")["model"]
        assert torch.equal(model(input_ids=IDS).logits, loaded(sys.argv[1] + "/scores.pt")), "other scores"
    """
    run(sys.executable, "-c", script, tmp_path, env={"PYTHONPATH": str(Path(flp_standin_lm.__file__).parent)})


# ---- forwards of others ----

def hooked(model):
    """A forward in the model's attributes, as accelerate's hooks put one; it notes whose it was."""
    calls = []

    def entered(module, *arguments, **keywords):
        calls.append(module)
        return module._old_forward(*arguments, **keywords)

    model._old_forward = model.forward
    model.forward = functools.update_wrapper(functools.partial(entered, model), model.forward)
    return calls


def test_a_forward_of_another_is_copied_and_put_back():
    model = TinyLM()
    hooked(model)
    own = model.forward
    with flp.logprob_head(model):
        check_scored(model)
        with flp.logprob_head(model):
            other = changed(copy.deepcopy(model))
        assert torch.equal(other(input_ids=IDS).logits, logits_of(other)) and other._old_forward.__self__ is other
    assert vars(model)["forward"] is own
    assert torch.equal(other(input_ids=IDS).logits, logits_of(other))
    assert torch.equal(model(input_ids=IDS).logits, logits_of(model))
    with flp.logprob_head(other):
        check_scored(other)


def test_a_forward_that_was_kept_is_the_models_own_after_the_block():
    model = TinyLM()
    with flp.logprob_head(model):
        kept, head = model.forward, model.lm_head.forward
        model.forward, model.lm_head.forward = kept, head  # as accelerate does when it removes its hooks
        check_scored(model)
    check_plain(model)
    assert torch.equal(kept(input_ids=IDS).logits, logits_of(model)) and head(torch.zeros(2, 16)).shape == (2, 257)
    model.forward, model.lm_head.forward = (lambda **keywords: kept(**keywords)), head
    inspected = functools.wraps(kept)(model.forward)
    model.forward = inspected
    with flp.logprob_head(model):
        check_scored(model)
    assert vars(model)["forward"] is inspected and vars(model.lm_head)["forward"] is head


def test_a_class_made_over_the_model_stays_and_scores_on():
    """As fully_shard gives a model a class over its own."""
    model = TinyLM()
    with flp.logprob_head(model):
        model.__class__ = over = type("FSDPTinyLM", (type(model),), {})
        check_scored(model)
    assert type(model) is over and torch.equal(model(input_ids=IDS).logits, logits_of(model))
    with flp.logprob_head(model), flp.logprob_head(model):
        check_scored(model)
    assert torch.equal(model(input_ids=IDS).logits, logits_of(model))


# ---- installations ----

def test_a_copy_of_the_installation_is_not_installed():
    trainer = types.SimpleNamespace(model=TinyLM())
    trainer.head = flp.logprob_head(trainer.model, temperature=1.0).install()
    other = copy.deepcopy(trainer)
    other.head.uninstall()
    check_plain(changed(other.model))
    with other.head:
        check_scored(other.model)
        check_scored(trainer.model)
    check_plain(other.model)
    check_scored(trainer.model)
    trainer.head.uninstall()
    check_plain(trainer.model)


class Fixed(nn.Linear):
    """Keeps its class."""

    def __setattr__(self, name, value):
        if name == "__class__":
            raise TypeError("the class stays")
        super().__setattr__(name, value)


def test_an_installation_that_fails_leaves_nothing():
    model = TinyLM()
    model.lm_head = Fixed(16, 257, bias=False)
    hooked(model)
    before = {name: (type(module), dict(vars(module))) for name, module in model.named_modules()}
    head = flp.logprob_head(model)
    for _ in range(2):
        with pytest.raises(flp.UnsupportedError, match="a Fixed whose class cannot be replaced .the class stays."):
            head.install()
        assert {name: (type(module), dict(vars(module))) for name, module in model.named_modules()} == before
    head.uninstall()
    assert torch.equal(model(input_ids=IDS).logits, logits_of(model))


def test_threads_take_turns():
    """The second thread comes while the first is between the model's forward and its head."""
    model, inside, both, results = TinyLM(), threading.Event(), threading.Event(), {}
    ids = {"first": IDS, "second": (IDS + 1) % 257}

    def wait(*_given):
        if inside.is_set():
            both.set()
        inside.set()
        both.wait(0.3)

    def call(name):
        with torch.no_grad():
            results[name] = model(input_ids=ids[name]).logprobs

    handle = model.mix.register_forward_hook(wait)
    with flp.logprob_head(model):
        threads = [threading.Thread(target=call, args=(name,)) for name in ids]
        threads[0].start()
        assert inside.wait(30)
        threads[1].start()
        for thread in threads:
            thread.join()
    handle.remove()
    for name in ids:
        want = next_logprobs(model(input_ids=ids[name]).logits, ids[name])
        assert (results[name] - want).abs().max() < 5e-6


@pytest.mark.skipif(not hasattr(torch, "compile"), reason="torch has no compile")
@pytest.mark.parametrize("verify", [True, False])
def test_compiled_models_follow_copies_and_changes(verify):
    model = TinyLM()
    compiled = torch.compile(model, backend="eager")
    for _ in range(2):
        with flp.logprob_head(compiled, verify=verify), torch.no_grad():
            assert (compiled(input_ids=IDS).logprobs - next_logprobs(logits_of(model))).abs().max() < 5e-6
            reference = changed(copy.deepcopy(model))
            assert torch.equal(torch.compile(reference, backend="eager")(input_ids=IDS).logits, logits_of(reference))
            assert torch.equal(copy.deepcopy(compiled)(input_ids=IDS).logits, logits_of(model))
            before, model.lm_head = model.lm_head, nn.Linear(16, 257, bias=False)
            with pytest.raises(flp.UnsupportedError, match="head is another one"):
                compiled(input_ids=IDS)
            model.lm_head = changed(before)
            assert (compiled(input_ids=IDS).logprobs - next_logprobs(logits_of(model))).abs().max() < 5e-6
        with torch.no_grad():
            assert torch.equal(compiled(input_ids=IDS).logits, logits_of(model))


@pytest.mark.skipif(not hasattr(torch, "compile"), reason="torch has no compile")
def test_a_compiled_model_stays_one_graph():
    model = TinyLM()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    for _ in range(2):
        with flp.logprob_head(compiled, verify=False):
            assert (compiled(input_ids=IDS).logprobs - next_logprobs(logits_of(model))).abs().max() < 5e-6
    check_plain(model)
