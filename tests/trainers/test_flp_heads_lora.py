"""flp.logprob_head on a head with PEFT's LoRA: as PEFT's own forward, adapters on and off, and what is refused. The stand-in
has the attributes and the forward of peft.tuners.lora.layer.Linear (0.21); test_flp_heads_hf.py has PEFT itself."""
import pytest
import torch
from torch import nn

import flp
from flp_standin_lm import IDS, TinyLM, next_logprobs


class Linear(nn.Module):
    """peft.tuners.lora.layer.Linear without what other methods and quantised bases need."""

    def __init__(self, base, names=("default",), rank=4, alpha=8, dropout=0.0, bias=False, dtype=None):
        super().__init__()
        self.base_layer, self.in_features, self.out_features = base, base.in_features, base.out_features
        self.lora_A, self.lora_B, self.lora_dropout = nn.ModuleDict(), nn.ModuleDict(), nn.ModuleDict()
        self.lora_magnitude_vector, self.scaling, self.use_dora, self.lora_variant = nn.ModuleDict(), {}, {}, {}
        self.merged_adapters, self._disable_adapters, self._active_adapter = [], False, names[0]
        self.fan_in_fan_out = False
        base.requires_grad_(False)
        for seed, name in enumerate(names):
            torch.manual_seed(seed)
            self.lora_A[name] = nn.Linear(base.in_features, rank, bias=False, dtype=dtype)
            self.lora_B[name] = nn.Linear(rank, base.out_features, bias=bias, dtype=dtype)
            self.lora_dropout[name] = nn.Dropout(dropout) if dropout else nn.Identity()
            self.scaling[name], self.use_dora[name] = alpha / rank, False

    weight = property(lambda self: self.base_layer.weight)
    bias = property(lambda self: self.base_layer.bias)
    merged = property(lambda self: bool(self.merged_adapters))
    disable_adapters = property(lambda self: self._disable_adapters)
    active_adapter = property(lambda self: self._active_adapter)
    active_adapters = property(lambda self: [self._active_adapter] if isinstance(self._active_adapter, str) else
                               self._active_adapter)

    def merge(self, name="default"):
        self.base_layer.weight.data += self.scaling[name] * self.lora_B[name].weight.data @ self.lora_A[name].weight.data
        self.merged_adapters.append(name)

    def forward(self, x):
        result = self.base_layer(x)
        if self.disable_adapters or self.merged:
            return result
        for name in self.active_adapters:
            if name in self.lora_A:
                x = x.to(self.lora_A[name].weight.dtype)
                result = result + self.lora_B[name](self.lora_A[name](self.lora_dropout[name](x))) * self.scaling[name]
        return result.to(x.dtype)


Linear.__module__ = "peft.tuners.lora.layer"
OTHER = type("Linear4bit", (Linear,), {"__module__": "peft.tuners.lora.bnb", "forward": lambda self, x: self.base_layer(x)})


def adapted(**options):
    model = TinyLM(bias=options.pop("head_bias", False))
    model.lm_head = options.pop("kind", Linear)(model.lm_head, **options)
    return model


def own(model):
    """Log-probabilities of the next tokens by the model's own forward."""
    return next_logprobs(model(input_ids=IDS).logits)


@pytest.mark.parametrize("options", [{}, {"rank": 8, "head_bias": True}, {"names": ("default", "second")}])
def test_values_and_gradients_are_those_of_peft(options):
    model = adapted(**options)
    want = own(model)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad and "second" not in name}
    wanted = torch.autograd.grad(want.sum(), list(trained.values()))
    with flp.logprob_head(model):
        got = model(input_ids=IDS).logprobs
        made = torch.autograd.grad(got.sum(), list(trained.values()))
    assert (got - want).abs().max() < 5e-6 and {"lm_head.lora_A.default.weight", "mix.weight"} <= set(trained)
    for x, y in zip(made, wanted):
        assert torch.allclose(x, y, atol=2e-5)
    assert torch.equal(own(model), want), "the model is what it was"


def test_adapters_are_chosen_disabled_and_merged_inside_the_block():
    model = adapted(names=("default", "second"))
    head, want = model.lm_head, []

    def each(run):
        head._active_adapter = "second"
        run("second")
        head._active_adapter = "none of these"
        run("no adapter of the head")
        head._active_adapter, head._disable_adapters = "default", True
        run("disabled")
        head._disable_adapters = False
        run("default")

    with torch.no_grad():
        each(lambda _: want.append(own(model)))
        with flp.logprob_head(model):
            got = []
            each(lambda _: got.append(model(input_ids=IDS).logprobs))
            head.merge()
            merged = model(input_ids=IDS).logprobs
    assert all((x - y).abs().max() < 5e-6 for x, y in zip(got, want)) and (merged - want[3]).abs().max() < 5e-6
    assert torch.equal(got[1], got[2]) and not torch.allclose(got[0], got[3], atol=1e-3)


FP8 = getattr(torch, "float8_e4m3fn", torch.uint8)  # which older torch has not


def packed(module, name):
    """Puts a layer without a weight below the adapter."""
    def spoil(head):
        base = type(name, (nn.Module,), {"__module__": module, "forward": lambda self, x: x})()
        base.register_buffer("qweight", torch.zeros(2, 257, dtype=torch.int32))
        head.base_layer = base
    return spoil


def spoilt(spoil, **options):
    """The installation on a head that is refused: tests/golden/refused/python/heads_lora.txt has more."""
    model = adapted(**options)
    spoil(model.lm_head)
    flp.logprob_head(model).install()


def test_a_base_of_fp8_is_refused():
    weight = nn.Parameter(torch.zeros(257, 16).to(FP8), requires_grad=False)
    with pytest.raises(flp.UnsupportedError, match=r"head.weight is of dtype %s .accepted: torch.bfloat16" % FP8):
        spoilt(lambda head: setattr(head.base_layer, "weight", weight))


def test_dropout_is_fine_while_the_model_is_evaluated_and_float32_adapters_beside_bf16():
    model = adapted(dropout=0.1).eval()
    with torch.no_grad(), flp.logprob_head(model):
        got = model(input_ids=IDS).logprobs
        model.train()
        with pytest.raises(flp.UnsupportedError, match="lora_dropout"):
            model(input_ids=IDS)
    with torch.no_grad():
        assert (got - own(model.eval())).abs().max() < 5e-6
    half = adapted(dtype=torch.float32)
    half.embed.bfloat16(), half.mix.bfloat16(), half.lm_head.base_layer.bfloat16()
    with flp.logprob_head(half, verify=False):
        half(input_ids=IDS).logprobs.sum().backward()
    assert half.lm_head.lora_B["default"].weight.grad.dtype is torch.float32
    assert half.lm_head.base_layer.weight.grad is None
