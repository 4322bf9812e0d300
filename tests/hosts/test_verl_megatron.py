"""verl 0.9.1 with megatron-core 0.19.2: its fused forward pass of packed sequences over a Megatron model."""
import pytest
import torch
from parity import DTYPES, bare, compare, installed, note_test, stub, stubs, with_gradients

pytest.importorskip("megatron.core.models.gpt")
import megatron_cpu as cpu  # noqa: E402

bare("verl", "verl.utils", "verl.utils.kernel", "verl.models", "verl.models.mcore")
ABSENT = ("tensordict", "tensordict__tensorclass", "omegaconf", "codetiming", "orjson", "ray", "verl__workers",
          "verl__workers__config")
with stubs(**{name: stub() for name in ABSENT}):
    from verl.models.mcore import model_forward_fused as fused

from flp.adapters import _megatron  # noqa: E402

LENGTHS, ROWS = (6, 12, 9), 3
WIDTH = 128  # verl's kernel takes multiples of it


@pytest.fixture(autouse=True)
def one(one_rank):
    note_test("verl-megatron")
    cpu.groups()


def by_scores(hidden, weight, labels, temperature, reduction, group):
    """What verl's kernel, which needs a GPU, computes."""
    assert reduction == "none" and group.size() >= 1
    scores = cpu.gather_from_tensor_model_parallel_region(hidden.reshape(-1, hidden.shape[-1]) @ weight.t())
    logp = (scores.float() / temperature).log_softmax(-1)
    return logp.gather(-1, labels.reshape(-1, 1)).squeeze(-1), -(logp.exp() * logp).sum(-1)


def forward(made):
    """(B, T) log-probabilities and entropies of sequences that end in padding, and gradients of all parameters."""
    ids, places, _, labels, loss_mask = cpu.batch(rows=ROWS)
    mask = torch.arange(cpu.LENGTH, device=cpu.device()) < torch.tensor(LENGTHS, device=cpu.device()).unsqueeze(1)
    fused.patch_fused_forward(made)
    output = fused.fused_forward_model_gen()(made, ids, places, mask, labels, loss_mask != 0, 0.8, {})
    return with_gradients([output["log_probs"].float(), output["entropy"].float()], list(made.parameters()))


def compared(dtype, monkeypatch, **options):
    made = cpu.model(dtype, hidden=WIDTH, **options)
    if cpu.device() == "cpu":
        monkeypatch.setattr(fused, "linear_cross_entropy", by_scores)
    own = forward(made)
    with installed("verl-megatron", "verl"), monkeypatch.context() as patch:
        ours = forward(made)
        patch.setattr(_megatron, "logprobs", cpu.exact_logprobs)
        wanted = forward(made)
    trunks = ["gradient %d" % i for i, (name, _) in enumerate(made.named_parameters()) if "output_layer" not in name]
    compare(own, ours, {key: value.double() for key, value in wanted.items()}, dtype, rounded=True, trunks=trunks,
            host_values={torch.float32: 5e-3, torch.bfloat16: 0.2},
            host_gradients={torch.float32: 2e-3, torch.bfloat16: 0.1})
    return ours


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tied", [False, True])
def test_one_rank(dtype, tied, monkeypatch):
    compared(dtype, monkeypatch, tied=tied)


def on_two(dtype):
    with pytest.MonkeyPatch.context() as monkeypatch:
        return compared(dtype, monkeypatch, sequence_parallel=True)


@pytest.mark.two_ranks
@pytest.mark.parametrize("dtype", DTYPES)
def test_two_ranks(dtype):
    first, second = cpu.in_ranks(on_two, dtype)
    assert torch.equal(first["0"], second["0"]) and torch.equal(first["1"], second["1"])


def test_heads_of_other_kinds_are_left_to_verl(monkeypatch, left_to_host):
    made = cpu.model()
    monkeypatch.setattr(fused, "linear_cross_entropy", by_scores)
    made.output_layer.register_forward_hook(lambda *_: None)
    own = forward(made)
    with installed("verl-megatron", "verl"):
        ours = forward(made)
    assert all(torch.equal(ours[name], value) for name, value in own.items())
    assert len(left_to_host) == 1 and "forward hooks" in left_to_host.pop()
