"""torchtitan 0.3.0: ChunkedLossWrapper over hidden states, with its cross entropy and its loss of GRPO."""
import dataclasses
import types

import pytest
import torch
from flp_reference import doubles, problem, reference, relative
from parity import DTYPES, bare, both, both_in_ranks, compare, installed, stub

bare("torchtitan", "torchtitan.experiments", "torchtitan.experiments.rl", "torchtitan.experiments.rl.losses")
from torchtitan.components import loss as losses  # noqa: E402
from torchtitan.experiments.rl.losses.dapo import DAPOLoss  # noqa: E402
from torchtitan.models.common.linear import Linear  # noqa: E402

BATCH, LENGTH, VOCAB = 3, 12, 1000


def head_of(weight):
    """The trainer's own linear layer over a weight."""
    vocab, depth = weight.shape
    made = Linear(Linear.Config(in_features=depth, out_features=vocab))
    made.weight = torch.nn.Parameter(weight)
    return made


def batch(dtype):
    """Hidden states (B,L,D), a head, labels of which the first of each sequence is ignored."""
    hidden, weight, target, _ = problem(n=BATCH * LENGTH, vocab=VOCAB, dtype=dtype)
    labels = target.view(BATCH, LENGTH).clone()
    labels[:, 0] = losses.IGNORE_INDEX
    return hidden.view(BATCH, LENGTH, -1).requires_grad_(), head_of(weight), labels


def wrapped(head, loss=None, num_chunks=4):
    config = losses.ChunkedLossWrapper.Config(num_chunks=num_chunks)
    made = losses.ChunkedLossWrapper(config if loss is None else dataclasses.replace(config, loss_fn=loss))
    made.set_lm_head(head)
    return made


def results_of(call, hidden, head):
    """Loss, metrics and the gradients of hidden states and head."""
    hidden.grad = head.weight.grad = None
    loss, metrics = call()
    loss.backward()
    found = {"loss": loss.detach(), **metrics, "gradient hidden": hidden.grad, "gradient weight": head.weight.grad}
    hidden.grad = head.weight.grad = None
    return found


@pytest.mark.parametrize("dtype", DTYPES)
def test_cross_entropy(dtype):
    hidden, head, labels = batch(dtype)
    count = torch.tensor(33.0, device=hidden.device)
    doubled = doubles(hidden, head.weight)
    logprob, _ = reference(doubled[0].flatten(0, 1), doubled[1], labels.flatten())
    loss = -logprob.sum() / count
    gradients = torch.autograd.grad(loss, doubled)
    wanted = {"loss": loss.detach(), "gradient hidden": gradients[0], "gradient weight": gradients[1]}
    fused = wrapped(head)
    compare(*both("torchtitan", lambda: results_of(lambda: fused(hidden, labels, count), hidden, head)), wanted, dtype)


def test_validation_has_no_graph():
    hidden, head, labels = batch(torch.float32)
    fused, given = wrapped(head), hidden.detach()
    for guard in (torch.no_grad(), torch.enable_grad()):
        with guard:
            own, ours = both("torchtitan", lambda: fused(given, labels)[0])
        assert torch.allclose(own, ours, rtol=1e-6) and not ours.requires_grad


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_loss_of_reinforcement_learning(dtype):
    """Its log-probabilities come from hidden states; loss, metrics and gradients as from scores in float64."""
    hidden, head, labels = batch(dtype)
    labels[:, 0] = 1
    torch.manual_seed(3)
    shape = labels.shape
    doubled = doubles(hidden, head.weight)
    with torch.no_grad():
        near, _ = reference(doubled[0].flatten(0, 1), doubled[1], labels.flatten())
    mask = torch.rand(shape, device=labels.device) < 0.7
    inputs = {"generator_logprobs": (near.view(shape) + 0.3 * torch.randn(shape, device=labels.device)).float(),
              "advantages": torch.randn(shape, device=labels.device), "loss_mask": mask}
    config = DAPOLoss.Config(ratio_clip_high=0.28)
    count = float(mask.sum())
    loss, metrics = DAPOLoss(config)(doubled[0] @ doubled[1].t(), labels, count, **inputs)
    gradients = torch.autograd.grad(loss, doubled)
    wanted = {"loss": loss.detach().double(), **{name: value.double() for name, value in metrics.items()},
              "gradient hidden": gradients[0], "gradient weight": gradients[1]}
    fused = wrapped(head, config)
    own, ours = both("torchtitan", lambda: results_of(lambda: fused(hidden, labels, count, **inputs), hidden, head))
    for name in ("loss/ratio_clipped_frac", "bit_wise/ratio_tokens_different/mean"):  # counts of what a bound divides
        assert abs(float(ours[name] - wanted.pop(name))) < 0.1
    compare(own, ours, wanted, dtype)


class Margin(losses.BaseLoss):
    """Looks at the scores themselves."""

    @dataclasses.dataclass(kw_only=True, slots=True)
    class Config(losses.BaseLoss.Config):
        pass

    def __init__(self, config, *, compile_config=None):
        pass

    def __call__(self, logits, labels, global_valid_tokens=None):
        return logits.float().amax(-1).sum(), {}


def test_a_loss_of_scores_stays_with_the_host(left_to_host):
    hidden, head, labels = batch(torch.float32)
    fused = wrapped(head, Margin.Config())
    own, ours = both("torchtitan", lambda: results_of(lambda: fused(hidden, labels), hidden, head))
    assert all(torch.equal(own[name], ours[name]) for name in own)
    assert len(left_to_host) == 1 and "Margin does more with the scores" in left_to_host.pop()


def test_a_hook_on_the_head_keeps_its_scores(left_to_host):
    hidden, head, labels = batch(torch.float32)
    seen = []
    head.register_forward_hook(lambda module, arguments, scores: seen.append(scores.shape[-1]))
    fused = wrapped(head)
    both("torchtitan", lambda: results_of(lambda: fused(hidden, labels), hidden, head))
    assert seen == [VOCAB] * 8 and "forward hooks" in left_to_host.pop()


class Trunk(torch.nn.Module):
    """What is left of a decoder: its norm before the head, which its forward leaves to the loss."""

    def __init__(self, depth, head):
        super().__init__()
        self.norm, self.lm_head = torch.nn.LayerNorm(depth), head

    def forward(self, hidden):
        return self.norm(hidden)


@pytest.mark.parametrize("grouped", [False, True])
def test_a_head_that_fsdp_shards(one_rank, grouped):
    """In mixed precision: the weight is float32 in its shards, bfloat16 in the head's forward. Also in one group with
    the norm, as the trainer shards it: there its own loop does not run with the torch of these tests."""
    own = sharded_step(False)
    with installed("torchtitan", "torchtitan"):
        ours = sharded_step(grouped)
    for name, want in own.items():
        assert relative(ours[name], want) < (1e-3 if name == "loss" else 1e-2), name


def sharded_step(grouped):
    """Loss and gradients of one step."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    hidden, head, labels = batch(torch.float32)
    model = Trunk(hidden.shape[-1], head).to(hidden.device)
    options = {"mesh": init_device_mesh(hidden.device.type, (1,)), "reshard_after_forward": not grouped,
               "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)}
    for part in [[model.norm, head]] if grouped else [model.norm, head]:
        fully_shard(part, **options)
    fully_shard(model, **options)
    loss, _ = wrapped(head)(model(hidden), labels, torch.tensor(33.0, device=hidden.device))
    loss.backward()
    return {"loss": loss.detach(), "hidden": hidden.grad,
            **{name: weight.grad.full_tensor() for name, weight in model.named_parameters()}}


def step_of_a_rank(rank, dtype):
    """Over half of the vocabulary; by the spmd_types backend the trainer shards the head and wraps its forward."""
    from torchtitan.distributed import ParallelDims, spmd_types, utils
    from torchtitan.models.common.decoder_sharding import set_decoder_sharding_config

    utils.set_spmd_backend("spmd_types")
    dims = ParallelDims(dp_replicate=1, dp_shard=1, cp=1, tp=2, pp=1, ep=1, world_size=2)
    dims.build_mesh()
    config = types.SimpleNamespace(tok_embeddings=stub(), norm=stub(), lm_head=stub())
    set_decoder_sharding_config(config, enable_sp=True)
    hidden, head, labels = batch(dtype)
    head._sharding_config = config.lm_head.sharding_config
    head.parallelize(dims)
    assert "forward" in vars(head) and head.weight.shape[0] == VOCAB // 2
    fused = wrapped(head, losses.CrossEntropyLoss.Config(global_vocab_size=VOCAB))
    with spmd_types.set_current_spmd_mesh(dims.get_mesh("tp")):
        return results_of(lambda: fused(hidden, labels, torch.tensor(33.0)), hidden, head)


@pytest.mark.two_ranks
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_head_whose_vocabulary_is_sharded(dtype):
    """Each rank has its part of the hidden states' gradient, as in the host, whose gather before the head sums them."""
    hidden, head, labels = batch(dtype)
    doubled = doubles(hidden.cpu(), head.weight.cpu())
    logprob, _ = reference(doubled[0].flatten(0, 1), doubled[1], labels.cpu().flatten())
    loss = -logprob.sum() / 33
    gradients = torch.autograd.grad(loss, doubled)
    found = both_in_ranks("torchtitan", step_of_a_rank, dtype)
    for (own, ours), half in zip(found, gradients[1].chunk(2)):
        compare(own, ours, {"loss": loss.detach(), "gradient weight": half}, dtype)
        assert relative(ours["gradient hidden"], own["gradient hidden"]) < {torch.float32: 1e-5}.get(dtype, 2e-2)
    whole = sum(ours["gradient hidden"].double() for _, ours in found)
    assert relative(whole, gradients[0]) < {torch.float32: 1e-5}.get(dtype, 8e-3)
