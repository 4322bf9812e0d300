"""NeMo-RL at a pinned tag: the fused head of its Megatron workers, and log-probabilities of scores."""
import pytest
import torch
from flp_reference import doubles, problem, reference
from parity import DTYPES, bare, both, both_in_ranks, compare, of_scores, with_gradients

bare("nemo_rl", "nemo_rl.distributed", "nemo_rl.algorithms")
from nemo_rl.distributed import model_utils  # noqa: E402

BATCH, LENGTH, VOCAB = 3, 12, 1000


def batch(dtype):
    """Hidden states as Megatron has them, (S,B,D), a head, tokens (B,S)."""
    hidden, weight, tokens, _ = problem(n=BATCH * LENGTH, vocab=VOCAB, dtype=dtype)
    return hidden.view(LENGTH, BATCH, -1).requires_grad_(), weight.requires_grad_(), tokens.view(BATCH, LENGTH)


def wanted_of(inputs, tokens):
    doubled = doubles(*inputs)
    logprob, _ = reference(doubled[0].flatten(0, 1), doubled[1], tokens.roll(-1, -1).t().flatten())
    return with_gradients([logprob.view(LENGTH, BATCH).t()[:, :-1]], doubled)


def scored(hidden, weight, tokens, start, end, group, chunk_size):
    return model_utils.from_parallel_hidden_states_to_logprobs(hidden, weight, None, tokens, start, end, group,
                                                               chunk_size=chunk_size)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("chunk_size", [5, 64])
def test_hidden_states(one_rank, dtype, chunk_size):
    *inputs, tokens = batch(dtype)

    def call():
        return with_gradients([scored(*inputs, tokens, 0, VOCAB, one_rank, chunk_size)], inputs)

    compare(*both("nemo-rl", call, "nemo_rl"), wanted_of(inputs, tokens), dtype)


def test_for_inference(one_rank):
    *inputs, tokens = batch(torch.float32)

    def call():
        return {"0": model_utils.from_parallel_hidden_states_to_logprobs(
            *inputs, None, tokens, 0, VOCAB, one_rank, inference_only=True, chunk_size=5).detach()}

    compare(*both("nemo-rl", call, "nemo_rl"), {"0": wanted_of(inputs, tokens)["0"]}, torch.float32)


def step_of_a_rank(rank, dtype):
    """Over half of the vocabulary and half of the sequence."""
    hidden, weight, tokens = batch(dtype)
    inputs = [tensor.detach().chunk(2)[rank].clone().requires_grad_() for tensor in (hidden, weight)]
    half = VOCAB // 2
    return with_gradients([scored(*inputs, tokens, rank * half, (rank + 1) * half, torch.distributed.group.WORLD, 5)],
                          inputs)


@pytest.mark.two_ranks
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_head_whose_vocabulary_is_sharded(dtype):
    *inputs, tokens = (tensor.cpu() for tensor in batch(dtype))
    wanted = wanted_of(inputs, tokens)
    for rank, (own, ours) in enumerate(both_in_ranks("nemo-rl", step_of_a_rank, dtype)):
        parts = {name: wanted[name].chunk(2)[rank] for name in ("gradient 0", "gradient 1")}
        compare(own, ours, {"0": wanted["0"], **parts}, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("chunk_size", [None, 5])
def test_scores(one_rank, dtype, chunk_size, device):
    of_scores(lambda scores, tokens: model_utils.from_parallel_logits_to_logprobs(
        scores, tokens, 0, 501, one_rank, chunk_size=chunk_size), dtype, device, "nemo-rl", "nemo_rl", shifted=True)
