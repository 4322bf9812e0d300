"""TRL 1.16.0: its fused head, the GRPO path over it, and selective_log_softmax."""
import contextlib
import types

import pytest
import torch
from flp_reference import doubles, exact, problem, reference
from parity import DTYPES, both, compare, of_trl, with_gradients

trl_utils = of_trl("trl.trainer.utils")
GRPOTrainer = of_trl("trl.trainer.grpo_trainer").GRPOTrainer
# What TRL gives, in its order, and its name in flp_exact.py.
OUTPUTS = {"log_probs": "logprob", "entropy": "entropy", "log_sum_sq_probs": "statistics.log_squares",
           "mean_logits": "statistics.mean_score", "is_top1": "statistics.is_best"}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", [
    {},
    {"temperature": 0.7, "outputs": ("log_probs", "entropy")},
    {"temperature": 1.2, "bias": True, "softcap": 8.0, "scale": 0.5, "outputs": ("log_probs", "entropy")},
    {"temperature": 1.2, "bias": True, "softcap": 8.0, "scale": 0.5, "outputs": tuple(OUTPUTS)},
    {"outputs": ("log_probs", "is_top1")},
])
def test_fused_head(dtype, options):
    options = {"temperature": 1.0, "bias": False, "softcap": None, "scale": 1.0, "outputs": ("log_probs",), **options}
    hidden, weight, target, bias = problem(n=37, vocab=1000, dtype=dtype, bias=options["bias"])
    clear_best(hidden, weight, target, bias)
    inputs = [tensor.requires_grad_() for tensor in (hidden, weight, bias) if tensor is not None]

    def call():
        results = trl_utils._ChunkedLogProbFunction.apply(hidden, weight, bias, target, options["temperature"], 256,
                                                          options["softcap"], options["scale"], options["outputs"])
        assert len(results) == 5
        return with_gradients([result for result in results if result is not None], inputs)

    doubled = doubles(*inputs)
    found = exact(doubled[0], doubled[1], target, doubled[2] if options["bias"] else None, options["temperature"],
                  options["softcap"], options["scale"], statistics=True)
    want = [found[name] for asked, name in OUTPUTS.items() if asked in options["outputs"]]
    own, ours = both("trl", call)
    compare(own, ours, with_gradients(want, doubled), dtype)


def clear_best(hidden, weight, target, bias):
    """Makes the best token, where it is so whatever rounds, the target of every other row."""
    t = hidden.double() @ weight.double().t() + (0 if bias is None else bias.double())
    best, ids = t.topk(2)
    chosen = (best[:, 0] - best[:, 1] > 0.25) & (torch.arange(len(t), device=t.device) % 2 == 0)
    assert chosen.any()
    target[chosen] = ids[chosen, 0]


def test_fused_head_of_float32_beside_bfloat16():
    """TRL rounds weight and bias to hidden's dtype, so that is what float64 is given; its gradients are float32."""
    hidden, weight, target, bias = problem(n=37, vocab=1000, bias=True)
    inputs = [hidden.bfloat16().requires_grad_(), weight.requires_grad_(), bias.requires_grad_()]

    def call():
        logprob, *_ = trl_utils._ChunkedLogProbFunction.apply(*inputs, target, 0.7, 256, None, 1.0, ("log_probs",))
        return with_gradients([logprob], inputs)

    doubled = doubles(*(tensor.bfloat16() for tensor in inputs))
    want = reference(doubled[0], doubled[1], target, doubled[2], 0.7)
    own, ours = both("trl", call)
    compare(own, ours, with_gradients(want[:1], doubled), torch.bfloat16)
    assert all(result["gradient 1"].dtype is torch.float32 for result in (own, ours))


@pytest.mark.parametrize("dtype", DTYPES)
def test_grpo_path(dtype, device):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=1000, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                                         num_attention_heads=4, initializer_range=0.2)).to(device, dtype)
    trl_utils.add_fused_lm_head(model, temperature=0.8, outputs=("log_probs", "entropy"))
    accelerator = types.SimpleNamespace(autocast=contextlib.nullcontext, is_main_process=True)
    trainer = types.SimpleNamespace(accelerator=accelerator)
    ids = torch.randint(0, 1000, (4, 24), device=device)
    mask = torch.ones_like(ids)
    mask[1, -5:] = mask[2, :3] = 0
    inputs = [model.lm_head.weight, model.model.layers[0].mlp.up_proj.weight]

    def call():
        logps, entropies, _ = GRPOTrainer._get_per_token_logps_and_entropies(
            trainer, model, ids, mask, 10, batch_size=3, compute_entropy=True)
        return with_gradients([logps, entropies], inputs)

    hidden = model.model(ids, attention_mask=mask)[0][:, -11:-1]
    logp = (hidden.double() @ model.lm_head.weight.double().t() / 0.8).log_softmax(-1)
    scored = mask[:, -10:]
    want = [logp.gather(-1, ids[:, -10:].unsqueeze(-1)).squeeze(-1) * scored, -(logp.exp() * logp).sum(-1) * scored]
    compare(*both("trl", call), with_gradients(want, inputs), dtype, trunks=["gradient 1"])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", ["one", "several", "masked"])
def test_selective_log_softmax(dtype, form, device):
    """On a GPU TRL has a kernel for one index a row, whose results are float32."""
    torch.manual_seed(0)
    logits = (torch.randn(3, 11, 501, device=device) * 3).to(dtype).requires_grad_()
    index = torch.randint(0, 501, (3, 11, 4) if form == "several" else (3, 11), device=device)
    mask = (torch.rand(3, 11, device=device) < 0.6).long() if form == "masked" else None

    def call():
        return with_gradients([trl_utils.selective_log_softmax(logits, index, row_mask=mask)], [logits])

    doubled = doubles(logits)
    chosen = doubled[0].log_softmax(-1).gather(-1, index if form == "several" else index.unsqueeze(-1))
    chosen = chosen if form == "several" else chosen.squeeze(-1)
    own, ours = both("trl", call)
    compare(own, ours, with_gradients([chosen if mask is None else chosen * mask], doubled), dtype,
            rounded=device == "cpu" or form == "several")
