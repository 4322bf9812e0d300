"""Models whose heads flp.logprob_head refuses, for tests/golden/refused/python: each call here is refused."""
import re

import pytest

import flp
from flp_standin_lm import IDS, TinyLM


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
