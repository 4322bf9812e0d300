"""SkyRL 0.3.0: the fused head of its Megatron workers with a temperature, its entropies, and log-probabilities of
scores."""
import pytest
import torch
from flp_reference import doubles, problem, reference, relative
from parity import DTYPES, HOST_VALUES, bare, both, both_in_ranks, compare, of_scores, with_gradients

pytest.importorskip("megatron.core")
bare("skyrl", "skyrl.backends", "skyrl.backends.skyrl_train", "skyrl.backends.skyrl_train.distributed",
     "skyrl.backends.skyrl_train.utils")
from skyrl.backends.skyrl_train.distributed.megatron import model_utils  # noqa: E402
from skyrl.backends.skyrl_train.utils import torch_utils  # noqa: E402

BATCH, LENGTH, VOCAB = 3, 12, 1000
# The host divides a copy of the head by the temperature, which in bfloat16 rounds it.
ROUNDED_HEAD = {**HOST_VALUES, torch.bfloat16: 8e-2}


def batch(dtype):
    hidden, weight, tokens, _ = problem(n=BATCH * LENGTH, vocab=VOCAB, dtype=dtype)
    return hidden.view(BATCH, LENGTH, -1).requires_grad_(), weight.requires_grad_(), tokens.view(BATCH, LENGTH)


def wanted_of(inputs, target, temperature):
    """(B,S) log-probabilities of target and entropies, and what they are of, in float64."""
    doubled = doubles(*inputs)
    results = reference(doubled[0].flatten(0, 1), doubled[1], target.flatten(), temperature=temperature)
    return [result.view(BATCH, LENGTH) for result in results], doubled


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("chunk_size", [None, 5])
def test_hidden_states(one_rank, dtype, temperature, chunk_size):
    *inputs, tokens = batch(dtype)

    def call():
        logprob = model_utils.from_parallel_hidden_to_logprobs(
            *inputs, tokens, 0, VOCAB, one_rank, chunk_size=chunk_size, temperature=temperature)
        return with_gradients([logprob], inputs)

    (logprob, _), doubled = wanted_of(inputs, tokens.roll(-1, -1), temperature)
    compare(*both("skyrl", call), with_gradients([logprob[:, :-1]], doubled), dtype, host_values=ROUNDED_HEAD)


@pytest.mark.parametrize("dtype", DTYPES)
def test_packed_sequences(one_rank, dtype):
    """Two sequences of 15 and 21 tokens in one row."""
    hidden, weight, tokens = batch(dtype)
    packed, ids = hidden.detach().reshape(1, 36, -1).requires_grad_(), tokens.reshape(1, 36)
    starts = torch.tensor([0, 15, 36], device=ids.device)

    def call():
        logprob = model_utils.from_parallel_hidden_to_logprobs_packed_sequences(
            packed, weight, ids, starts, 21, 0, VOCAB, one_rank, chunk_size=8, temperature=0.7)
        return with_gradients([logprob], [packed, weight])

    doubled = doubles(packed, weight)
    logprob = torch.zeros(2, 20, dtype=torch.float64, device=ids.device)
    for row, (first, beyond) in enumerate(((0, 15), (15, 36))):
        own, _ = reference(doubled[0][0, first:beyond - 1], doubled[1], ids[0, first + 1:beyond], temperature=0.7)
        logprob = logprob.index_put((torch.tensor([row]), torch.arange(beyond - first - 1)), own)
    compare(*both("skyrl", call), with_gradients([logprob], doubled), dtype, host_values=ROUNDED_HEAD)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_entropies_of_hidden_states(one_rank, dtype, temperature):
    *inputs, tokens = batch(dtype)

    @torch.no_grad()
    def call():
        return {"0": model_utils._fused_vocab_parallel_entropy_from_hidden(*inputs, one_rank, 5, temperature)}

    (_, entropy), _ = wanted_of(inputs, tokens, temperature)
    compare(*both("skyrl", call), {"0": entropy.detach()}, dtype, host_values=ROUNDED_HEAD)


def step_of_a_rank(rank, dtype):
    """Over half of the vocabulary, whose part of the hidden states' gradient the gather before the head sums."""
    hidden, weight, tokens = batch(dtype)
    inputs = [hidden.detach().requires_grad_(), weight.detach().chunk(2)[rank].clone().requires_grad_()]
    half, world = VOCAB // 2, torch.distributed.group.WORLD
    alone = torch.distributed.new_group([rank], use_local_synchronization=True)
    logprob = model_utils.from_parallel_hidden_to_logprobs(*inputs, tokens, rank * half, (rank + 1) * half, world,
                                                           cp_group=alone, temperature=0.7)
    with torch.no_grad():
        entropy = model_utils._fused_vocab_parallel_entropy_from_hidden(*inputs, world, None, 0.7)
    return {**with_gradients([logprob], inputs), "entropy": entropy}


@pytest.mark.two_ranks
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_head_whose_vocabulary_is_sharded(dtype):
    *inputs, tokens = (tensor.cpu() for tensor in batch(dtype))
    (logprob, entropy), doubled = wanted_of(inputs, tokens.roll(-1, -1), 0.7)
    wanted = with_gradients([logprob[:, :-1]], doubled)
    found = both_in_ranks("skyrl", step_of_a_rank, dtype)
    for (own, ours), half in zip(found, wanted["gradient 1"].chunk(2)):
        compare(own, ours, {"0": wanted["0"], "gradient 1": half, "entropy": entropy.detach()}, dtype,
                host_values=ROUNDED_HEAD)
    for results in zip(*found):
        whole = sum(rank["gradient 0"].double() for rank in results)
        assert relative(whole, wanted["gradient 0"]) < {torch.float32: 1e-5}.get(dtype, 3e-2)


def test_a_head_of_another_dtype(one_rank):
    """Hidden states are cast to it, as in the host."""
    hidden, weight, tokens = batch(torch.bfloat16)
    inputs = [hidden, weight.detach().float().requires_grad_()]

    def call():
        logprob = model_utils.from_parallel_hidden_to_logprobs(*inputs, tokens, 0, VOCAB, one_rank)
        return with_gradients([logprob], inputs)

    (logprob, _), doubled = wanted_of(inputs, tokens.roll(-1, -1), 1.0)
    compare(*both("skyrl", call), with_gradients([logprob[:, :-1]], doubled), torch.bfloat16)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("chunk_size", [None, 5])
def test_scores_of_megatron(one_rank, dtype, chunk_size, device):
    of_scores(lambda scores, tokens: model_utils.from_parallel_logits_to_logprobs(
        scores, tokens, 0, 501, one_rank, chunk_size=chunk_size), dtype, device, "skyrl", shifted=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_scores_of_a_model(dtype, device):
    of_scores(lambda *given: torch_utils.logprobs_from_logits(*given), dtype, device, "skyrl", rounded=True)
