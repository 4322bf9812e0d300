"""NeMo-RL at a pinned tag: the fused head of its Megatron workers, log-probabilities of scores, and divergences over
the whole vocabulary."""
import types

import pytest
import torch
from flp_exact_pair import selective_divergence
from flp_reference import doubles, problem, reference
from parity import DTYPES, bare, both, both_in_ranks, compare, of_scores, stub, stubs, with_gradients

bare("nemo_rl", "nemo_rl.distributed", "nemo_rl.algorithms", "nemo_rl.algorithms.loss", "nemo_rl.algorithms.x_token",
     "nemo_rl.data", "nemo_rl.models", "nemo_rl.models.dtensor")
from nemo_rl.distributed import model_utils  # noqa: E402

with stubs(hydra=stub(), hydra__utils=stub(), nemo_rl__utils__logger=stub(), nemo_rl__models__policy=stub(),
           nemo_rl__distributed__batched_data_dict=stub()):
    from nemo_rl.algorithms.loss import loss_functions

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


def scores(dtype, device, *widths):
    """(B,S,V) each"""
    draw = torch.Generator().manual_seed(0)
    return [(2 * torch.randn(BATCH, LENGTH, width, generator=draw)).to(dtype).to(device) for width in widths]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reverse, kind", [(False, "forward_kl"), (True, "reverse_kl")])
def test_kl_of_averaged_teachers(dtype, reverse, kind, device):
    """Of a shared vocabulary; the teachers' heads are filled up beyond it."""
    student, *teachers = scores(dtype, device, VOCAB, VOCAB + 24, VOCAB + 24)
    student.requires_grad_()
    loss = loss_functions.CrossTokenizerDistillationLossFn.__new__(loss_functions.CrossTokenizerDistillationLossFn)
    vars(loss).update(temperature=1.7, reverse_kl=reverse, num_teachers=2, teacher_weights=[1.0, 3.0],
                      projection_matrix_paths=[None, None])
    every = torch.arange(BATCH * LENGTH, device=device).view(BATCH, LENGTH)
    align = types.SimpleNamespace(student_token_mask=every % 5 > 0,
                                  sample_mask=torch.tensor([1.0, 0.0, 1.0], device=device))
    total = torch.tensor(17.0, device=device)

    def call():
        loss_of_call, metrics = loss._averaged_logits_kd(student, None, dict(enumerate(teachers)), {0: align}, total,
                                                         tp_group=None, cp_group=None)
        assert metrics == {"kl_loss": loss_of_call.item()}
        return with_gradients([loss_of_call], [student])

    doubled = doubles(student)
    mixed = sum(teacher.double() * weight for teacher, weight in zip(teachers, (0.25, 0.75)))[..., :VOCAB]
    value = selective_divergence(doubled[0].cpu(), mixed.cpu(), kind=kind, temperature=1.7)["value"].to(device)
    counted = (every.roll(-1, 1) % 5 > 0) * align.sample_mask[:, None]
    counted[:, -1] = 0
    wanted = with_gradients([(value * counted).sum() / total * 1.7**2], doubled)
    compare(*both("nemo-rl", call, "nemo_rl"), wanted, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_soft_cross_entropy_of_a_draft(one_rank, dtype, device):
    student, target = scores(dtype, device, VOCAB, VOCAB)
    student.requires_grad_()
    masks = torch.ones(BATCH, LENGTH, device=device), {"sample_mask": torch.tensor([1.0, 0.0, 1.0], device=device)}
    loss = loss_functions.DraftCrossEntropyLossFn(one_rank)

    def call():
        return with_gradients([loss(target, student, *masks, None, torch.tensor(24.0, device=device))], [student])

    doubled = doubles(student)
    value = -(target.double().softmax(-1) * doubled[0].log_softmax(-1)).sum(-1)
    wanted = with_gradients([(value * masks[1]["sample_mask"][:, None]).sum() / 24], doubled)
    compare(*both("nemo-rl", call, "nemo_rl"), wanted, dtype)
