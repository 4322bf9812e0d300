"""TRL 1.16.0: its fused head, the GRPO path over it, the divergence of two heads, the loss of DistillationTrainer over
it, and selective_log_softmax."""
import contextlib
import types

import pytest
import torch
from flp_exact_pair import divergence
from flp_reference import doubles, exact, problem, reference
from parity import DTYPES, both, compare, of_trl, with_gradients

trl_utils = of_trl("trl.trainer.utils")
GRPOTrainer = of_trl("trl.trainer.grpo_trainer").GRPOTrainer
distillation = of_trl("trl.trainer.distillation_trainer")
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


def pair(dtype, device):
    """hidden, weight and bias of a student and of a teacher with hidden states of another size."""
    heads = [problem(n=37, vocab=1000, depth=depth, dtype=dtype, bias=True, seed=depth) for depth in (64, 40)]
    return [tensor.to(device) for hidden, weight, _, bias in heads for tensor in (hidden, weight, bias)]


def exact_pair(tensors, beta, temperature=1.0, scale=1.0, softcap=None, teacher_scale=1.0, teacher_softcap=None):
    """The divergence and the entropy in float64."""
    kind = {0.0: "forward_kl", 1.0: "reverse_kl"}.get(beta, "jsd")
    names = [whose + name for whose in ("", "teacher_") for name in ("hidden", "weight", "bias")]
    found = divergence(kind=kind, parameters={"mix": beta} if kind == "jsd" else None, temperature=temperature,
                       scale=scale, softcap=softcap, teacher_scale=teacher_scale, teacher_softcap=teacher_softcap,
                       **dict(zip(names, (tensor.double().cpu() for tensor in tensors))))
    return [found[name].to(tensors[0].device) for name in ("value", "entropy")]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", [(), (0.7,), (1.3, 0.8, 9.0, 1.2, 7.0)], ids=str)
@pytest.mark.parametrize("beta", [0.0, 0.1, 0.5, 1.0])
def test_two_heads(dtype, beta, options, device):
    tensors = pair(dtype, device)
    inputs = [tensor.requires_grad_() for tensor in tensors[:3]]

    def call():
        value, entropy = distillation.ChunkedDivergenceFunction.apply(*tensors, beta, *options)
        assert not entropy.requires_grad
        return {**with_gradients([value], inputs), "entropy": entropy}

    doubled = doubles(*inputs)
    value, entropy = exact_pair([*doubled, *tensors[3:]], beta, *options)
    compare(*both("trl", call), {**with_gradients([value], doubled), "entropy": entropy}, dtype)


@pytest.mark.parametrize("autocast", [False, True])
def test_two_heads_of_float32_weights(autocast, device):
    """Beside bfloat16 hidden states, or all float32 under autocast: both round operands to bfloat16."""
    tensors = pair(torch.float32, device)
    if not autocast:
        tensors[0], tensors[3] = tensors[0].bfloat16(), tensors[3].bfloat16()
    inputs = [tensor.requires_grad_() for tensor in tensors[:3]]

    def call():
        with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=autocast):
            value, entropy = distillation.ChunkedDivergenceFunction.apply(*tensors, 0.5)
        return {**with_gradients([value], inputs), "entropy": entropy}

    doubled = doubles(*(tensor.bfloat16() for tensor in inputs))
    value, entropy = exact_pair([*doubled, *(tensor.bfloat16() for tensor in tensors[3:])], 0.5)
    compare(*both("trl", call), {**with_gradients([value], doubled), "entropy": entropy}, torch.bfloat16)


@pytest.mark.parametrize("items", [None, 29])
@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_distillation_loss(beta, items, device):
    """The trainer's own loss, entropy and count of a batch (B, K) that is partly masked, and of one that is all so."""
    tensors = pair(torch.float32, device)
    inputs = [tensor.requires_grad_() for tensor in tensors[:3]]
    mask = (torch.arange(36, device=device) % 5 > 0).long()
    states = [tensors[at][:36].view(4, 9, -1) for at in (0, 3)]

    def call(mask):
        loss, entropy, count = distillation._chunked_divergence_loss(
            *states, tensors[1], tensors[4], mask.view(4, 9), beta, items, tensors[2], tensors[5], temperature=0.9)
        return {**with_gradients([loss], inputs), "entropy": entropy, "count": count}

    doubled = doubles(*inputs)
    value, entropy = exact_pair([*doubled, *tensors[3:]], beta, 0.9)
    counted = mask.sum()
    want = {**with_gradients([(value[:36] * mask).sum() / (items or counted)], doubled),
            "entropy": (entropy[:36] * mask).sum(), "count": counted}
    compare(*both("trl", lambda: call(mask)), want, torch.float32)
    own, ours = both("trl", lambda: call(mask * 0))
    assert all(torch.equal(ours[name], own[name]) for name in own) and not ours["gradient 1"].any()


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
