"""flp.logprob_head: a model and a head that change inside the block are scored as they then are, or refused by name."""
import functools
import re

import pytest
import torch
from torch import nn

import flp
from flp_standin_lm import IDS, SavedCopies, TinyLM, capped, error_of, logits_of, next_logprobs

# ---- scored ----

def another_weight(model):
    model.lm_head.weight = nn.Parameter(torch.randn(257, 16))


def another_bias(model):
    model.lm_head.bias = nn.Parameter(torch.randn(257))


def tied(model):
    model.lm_head.weight = model.embed.weight


def in_place(model):
    with torch.no_grad():
        model.lm_head.weight.mul_(-2)


def loaded(model):
    model.load_state_dict(TinyLM(seed=9).state_dict())


def through_data(model):
    model.lm_head.weight.data = torch.randn(257, 16)


@pytest.mark.parametrize("change", [another_weight, another_bias, tied, in_place, loaded, through_data])
@pytest.mark.parametrize("eager", [False, True], ids=["libflp", "eager"])
def test_weights_that_change_are_the_ones_scored(change, eager):
    model = TinyLM()
    before = next_logprobs(logits_of(model))
    with flp.logprob_head(model, eager=eager):
        assert error_of(model) < 5e-6
        change(model)
        assert (next_logprobs(logits_of(model)) - before).abs().max() > 0.05 and error_of(model) < 5e-6


def test_a_model_that_is_cast_is_scored_in_its_new_dtype():
    model = TinyLM()
    with flp.logprob_head(model):
        model.to(torch.bfloat16)
        assert model(input_ids=IDS).output.aux_loss.dtype is torch.bfloat16 and error_of(model) < 0.05
        model.double()
        with pytest.raises(flp.UnsupportedError, match="head.weight is of dtype torch.float64"):
            model(input_ids=IDS)
        assert error_of(model.float()) < 5e-6


def test_gradients_reach_the_weight_that_stands_there():
    model = TinyLM()
    before = model.lm_head.weight
    with flp.logprob_head(model):
        another_weight(model)
        model(input_ids=IDS).logprobs.sum().backward()
    assert before.grad is None and model.lm_head.weight.grad.abs().sum() > 0


def test_a_head_that_is_merged_out_of_its_copies_is_scored():
    """As merge_and_unload of PEFT leaves the trained copy of modules_to_save where the wrapper stood."""
    model = TinyLM()
    trained = nn.Linear(16, 257, bias=False)
    model.lm_head = SavedCopies(model.lm_head, trained)
    with flp.logprob_head(model):
        model.lm_head = trained
        assert error_of(model) < 5e-6


# ---- refused ----
# The golden text heads_spoilt.txt asks with these what is refused.

def called(model, **options):
    """The first call inside the block."""
    with flp.logprob_head(model, **options):
        model(input_ids=IDS)


def changed(change):
    """The call after a change to a model that was scored before."""
    model = TinyLM()
    flp.logprob_head(model).install()
    assert model(input_ids=IDS).logprobs.shape == (3, 10)
    change(model)
    model(input_ids=IDS)


def spoilt(spoil):
    """The installation on what was changed before, refused as the call after a change is."""
    with pytest.raises(flp.UnsupportedError) as refused:
        changed(spoil)
    model = TinyLM()
    spoil(model)
    with pytest.raises(flp.UnsupportedError, match=f"^{re.escape(str(refused.value))}$"):
        flp.logprob_head(model).install()
    assert "forward" not in vars(model)
    raise refused.value


def misread(after, **config):
    """The call of a model that makes of its scores what config does not say, without how far they are apart; where nothing
    verifies, it is scored."""
    model = TinyLM(after=after, **config)
    with flp.logprob_head(model, verify=False):
        assert model(input_ids=IDS).logprobs.shape == (3, 10)
    with pytest.raises(flp.UnsupportedError) as refused:
        called(model)
    raise flp.UnsupportedError(re.sub(r"\(by [\d.]+\)", "(by ...)", str(refused.value)))


def new_head(model):
    model.lm_head = nn.Linear(16, 257, bias=False)


def new_copy(model):
    model.lm_head = SavedCopies(model.lm_head, nn.Linear(16, 257, bias=False))


@pytest.mark.parametrize("change", [new_head, new_copy])
def test_a_block_ends_well_after_the_head_was_replaced(change):
    model = TinyLM()
    old = model.lm_head
    with flp.logprob_head(model):
        change(model)
    assert type(model) is TinyLM and set(vars(model)) == set(vars(TinyLM()))
    assert type(old) is nn.Linear and set(vars(old)) == set(vars(nn.Linear(1, 1)))
    assert model(input_ids=IDS).logits.shape == (3, 11, 257)
    with flp.logprob_head(model), torch.no_grad():
        assert model(input_ids=IDS).logprobs.shape == (3, 10)


def test_a_rule_that_changes_with_the_model_is_that_of_the_next_installation():
    model = TinyLM(final_logit_softcapping=1.5, after=functools.partial(capped, 1.5))
    with flp.logprob_head(model):
        model(input_ids=IDS)
        model.config.final_logit_softcapping, model.after = 3.0, functools.partial(capped, 3.0)
        with pytest.raises(flp.UnsupportedError, match="softcap 3.0 .accepted: scale 1 and softcap 1.5"):
            model(input_ids=IDS)
    want = next_logprobs(model(input_ids=IDS).logits)
    with flp.logprob_head(model):
        assert (model(input_ids=IDS).logprobs - want).abs().max() < 5e-6
