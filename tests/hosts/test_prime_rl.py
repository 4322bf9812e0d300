"""prime-rl at a pinned commit: the heads that inject_prime_lm_head gives a model, with a temperature per token."""
import pytest
import torch
from flp_reference import doubles, problem, reference
from parity import DTYPES, bare, both, compare, installed, stub, with_gradients

bare("prime_rl", "prime_rl.trainer", "prime_rl.trainer.models", "prime_rl.trainer.models.layers")
from prime_rl.trainer.models.layers import lm_head, lm_head_gemma  # noqa: E402

CAP = 3.0


def head_of(weight, gemma, chunk_size=7):
    """The trainer's own module over a weight."""
    vocab, depth = weight.shape
    made = lm_head_gemma.GemmaFusedOutputLinear(depth, vocab, chunk_size, CAP) if gemma else \
        lm_head.FusedOutputLinear(depth, vocab, chunk_size)
    made.weight = torch.nn.Parameter(weight)
    return made


def batch(dtype, vocab=1000):
    """Hidden states (3,12,D), labels, temperatures of the three sequences that change within them, and a head."""
    hidden, weight, target, _ = problem(n=36, vocab=vocab, dtype=dtype)
    temperature = torch.linspace(0.5, 1.6, 36, device=hidden.device).view(3, 12)
    return hidden.view(3, 12, -1).requires_grad_(), weight, target.view(3, 12), temperature


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("gemma", [False, True])
@pytest.mark.parametrize("frozen", [False, True])
def test_fused_output_linear(dtype, gemma, frozen):
    hidden, weight, labels, temperature = batch(dtype)
    head = head_of(weight, gemma)
    head.weight.requires_grad_(not frozen)
    inputs = [hidden] if frozen else [hidden, head.weight]

    def call():
        out = head(hidden, labels, temperature)
        return {**with_gradients([out["logprobs"]], inputs), "entropy": out["entropy"].detach()}

    doubled = doubles(hidden, head.weight)
    logprob, entropy = (value.view(3, 12) for value in reference(
        doubled[0].flatten(0, 1), doubled[1], labels.flatten(), temperature=temperature.flatten(),
        softcap=CAP if gemma else None))
    wanted = {**with_gradients([logprob], doubled[:len(inputs)]), "entropy": entropy.detach()}
    compare(*both("prime-rl", call, "prime_rl"), wanted, dtype)


@pytest.mark.parametrize("gemma", [False, True])
def test_without_gradients(gemma):
    hidden, weight, labels, temperature = batch(torch.float32)
    head = head_of(weight, gemma)

    @torch.no_grad()
    def call():
        return dict(head(hidden, labels, temperature))

    want = reference(hidden.detach().double().flatten(0, 1), weight.double(), labels.flatten(),
                     temperature=temperature.flatten(), softcap=CAP if gemma else None)
    wanted = {name: value.view(3, 12) for name, value in zip(("logprobs", "entropy"), want)}
    compare(*both("prime-rl", call, "prime_rl"), wanted, torch.float32)


def test_the_entropy_has_no_gradient_as_in_the_host():
    hidden, weight, labels, temperature = batch(torch.float32)
    head = head_of(weight, False)
    with pytest.raises(AssertionError, match="through entropy"):
        head(hidden, labels, temperature)["entropy"].sum().backward()
    with installed("prime-rl", "prime_rl"):
        out = head(hidden, labels, temperature)
        with pytest.raises(RuntimeError, match="entropy.detach"):
            (out["logprobs"] - 0.01 * out["entropy"]).sum().backward()


def test_a_model_of_transformers(monkeypatch):
    """inject_prime_lm_head over a small Llama: loss and every gradient."""
    transformers = pytest.importorskip("transformers")
    monkeypatch.setattr(lm_head, "get_logger", stub)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(vocab_size=500, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                                      num_attention_heads=4, initializer_range=0.2)
    model = transformers.LlamaForCausalLM(config)
    lm_head.inject_prime_lm_head(model, chunk_size=5)
    ids = torch.randint(0, 500, (2, 11))
    temperature = torch.full((2, 11), 0.7)
    temperature[1, 4:] = 1.2

    def call():
        model.zero_grad()
        out = model(input_ids=ids, labels=ids.roll(-1, 1), temperature=temperature)
        (-out["logprobs"][:, :-1].mean()).backward()
        return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}

    own, ours = both("prime-rl", call, "prime_rl")
    for name, want in own.items():
        assert torch.allclose(ours[name], want, rtol=1e-3, atol=2e-6 * float(want.abs().max())), name
