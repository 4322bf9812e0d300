"""flp.logprob_head: heads, models, calls and options that it refuses, and its messages."""
import functools
import weakref

import pytest
import torch
from torch import nn

import flp
from flp_standin_lm import IDS, TinyLM, capped


class OtherLinear(nn.Linear):
    def forward(self, hidden):
        return super().forward(hidden)


class Sharded(nn.Parameter):
    def to_local(self):
        return self


def lora(model):
    model.lm_head.base_layer = nn.Identity()


def other_class(model):
    model.lm_head.__class__ = OtherLinear


def replaced(model):
    model.lm_head.forward = lambda hidden: hidden


def computed(model):
    torch.nn.utils.weight_norm(model.lm_head)


def sharded(model):
    model.lm_head.weight = Sharded(model.lm_head.weight.data)


def subclass(model):
    model.lm_head.weight = type("Params4bit", (nn.Parameter,), {})(model.lm_head.weight.data)


def gathered_later(model):
    model.lm_head.weight = nn.Parameter(torch.empty(0))
    model.lm_head.weight.ds_id = 1


def flat(model):
    model.lm_head.weight = nn.Parameter(torch.zeros(100))


@pytest.mark.parametrize("inside", [False, True], ids=["at once", "at the next call"])
@pytest.mark.parametrize("spoil, words", [
    (lora, r"head is of type torch.nn.modules.linear.Linear, which an adapter changes \(accepted: peft.tuners.lora.layer.Linear"),
    (other_class, r"head is of type .*OtherLinear \(accepted: torch.nn.Linear, unquantised: .*llm_int8_skip_modules"),
    (replaced, r"head.forward is replaced by .*lambda.*accelerate's hooks"),
    (lambda model: model.lm_head.register_forward_hook(lambda *given: None), "head is under 1 forward hooks"),
    (lambda model: model.lm_head.register_full_backward_hook(lambda *given: None), "head is under 1 backward hooks"),
    (computed, r"head.weight is computed from other parameters"),
    (sharded, r"head.weight is sharded \(Sharded\) \(accepted: a whole \(V, D\) weight on every rank: leave the head out of what fully_shard"),
    (gathered_later, r"head.weight is sharded .*ZeRO-3"),
    (flat, r"head.weight is of shape \(100,\) \(accepted: a whole"),
    (subclass, "head.weight is of type Params4bit"),
    (lambda model: model.lm_head.to("meta"), "head.weight is on the device meta"),
    (lambda model: model.lm_head.double(), "head.weight is of dtype torch.float64"),
    (lambda model: setattr(model, "lm_head", None), "head is None"),
    (lambda model: setattr(model, "lm_head", nn.Identity()), "head is of type torch.nn.modules.linear.Identity"),
])
def test_a_head_that_cannot_be_stood_in_for_is_refused(spoil, words, inside):
    model = TinyLM()
    if inside:
        flp.logprob_head(model).install()
        assert model(input_ids=IDS).logprobs.shape == (3, 10)
    spoil(model)
    with pytest.raises(flp.UnsupportedError, match=words):
        model(input_ids=IDS) if inside else flp.logprob_head(model).install()
    assert inside or "forward" not in vars(model)


@pytest.mark.parametrize("after, config, words", [
    (lambda scores: scores * 1.001, {}, "otherwise than by scale 1 and softcap None"),
    (lambda scores: scores, {"logit_scale": 0.5}, "otherwise than by scale 0.5"),
    (lambda scores: scores, {"final_logit_softcapping": 30.0}, "softcap 30.0"),
    (functools.partial(capped, 30.0), {"final_logit_softcapping": 31.0}, "softcap 31.0"),
    (lambda scores: scores.flip(-1), {}, "otherwise than"),
    (lambda scores: scores - scores.amax(0), {}, "otherwise than"),
    (lambda scores: scores.mul_(2), {}, "otherwise than"),
    (lambda scores: scores[..., :200], {}, r"a tensor of shape \(1, 1, 200\) of scores of shape \(1, 1, 257\)"),
    (lambda scores: None, {}, "makes NoneType of scores"),
])
def test_what_config_does_not_name_is_found_out(after, config, words):
    model = TinyLM(after=after, **config)
    with flp.logprob_head(model):
        with pytest.raises(flp.UnsupportedError, match=words):
            model(input_ids=IDS)
    with flp.logprob_head(model, verify=False):
        assert model(input_ids=IDS).logprobs.shape == (3, 10)


def test_a_model_is_verified_once(monkeypatch):
    shown = []
    model = TinyLM(after=lambda scores: shown.append(tuple(scores.shape)) or scores)
    for _ in range(2):
        with flp.logprob_head(model), torch.no_grad():
            model(input_ids=IDS)
    assert shown == [(1, 1, 257), (3, 11, 0)]
    model.config.logit_scale = 2.0
    with flp.logprob_head(model), pytest.raises(flp.UnsupportedError):
        model(input_ids=IDS)
    alive = weakref.ref(model)
    del model
    assert alive() is None


class HeadTwice(TinyLM):
    def forward(self, input_ids):
        self.lm_head(self.embed(input_ids))
        return super().forward(input_ids)


class HeadNever(TinyLM):
    def forward(self, input_ids):
        return self.embed(input_ids) @ self.lm_head.weight.t()


@pytest.mark.parametrize("kind, words", [(HeadTwice, "head is called twice in a forward pass"),
                                         (HeadNever, "model is one whose forward does not call its head")])
def test_a_head_is_called_once_a_forward_pass(kind, words):
    model = kind()
    with flp.logprob_head(model), pytest.raises(flp.UnsupportedError, match=words):
        model(input_ids=IDS)


def test_a_head_is_not_called_alone():
    model = TinyLM()
    with flp.logprob_head(model), pytest.raises(flp.UnsupportedError, match="head is called outside of one"):
        model.lm_head(torch.zeros(2, 16))
