"""slime and Miles at pinned commits, from hidden states: their own train_one_step and forward_only over a Megatron
model, beside their own losses of scores. On one rank, and on two with sequence parallelism."""
import importlib
import importlib.util
import types

import pytest
import torch
from parity import DTYPES, compare, installed, note_test, stub, stubs

pytest.importorskip("megatron.core.models.gpt")
import megatron_cpu as cpu  # noqa: E402

from flp.adapters import _megatron  # noqa: E402

ABSENT = """ray ray.util ray.util.state ray.util.placement_group ray.util.scheduling_strategies ray.actor ray.exceptions
    torch_memory_saver megatron.training megatron.training.global_vars megatron.training.training sglang_router
    megatron.training.checkpointing megatron.training.arguments megatron.core.optimizer.muon wandb sglang sglang.srt
    sglang.srt.entrypoints sglang.srt.entrypoints.openai sglang.srt.entrypoints.openai.protocol sglang.srt.debug_utils
    sglang.srt.debug_utils.dumper""".split()
# Megatron's fused cross entropy, which Miles takes, rounds its gradient to bfloat16.
SINGLE = {"slime": 1e-4, "miles": 5e-3}
TOTAL, RESPONSE = (9, 7, 5), (4, 3, 2)


@pytest.fixture(params=["slime-megatron", "miles-megatron"])
def host(request):
    trainer = request.param.partition("-")[0]
    if importlib.util.find_spec(trainer) is None or importlib.util.find_spec(trainer + ".backends") is None:
        pytest.skip("%s is not on PYTHONPATH" % trainer)
    note_test(request.param)
    return trainer


@pytest.fixture(autouse=True)
def one(one_rank):
    cpu.groups()


class Arguments(types.SimpleNamespace):
    """A trainer's; what is not set is None."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return None


def arguments(**others):
    return Arguments(loss_type="policy_loss", rollout_top_p=1.0, rollout_temperature=0.8, entropy_coef=0.01,
                     log_probs_chunk_size=-1, use_rollout_entropy=True, data_pad_size_multiplier=4, seq_length=24,
                     micro_batch_size=1, check_for_nan_in_loss_and_grad=True, advantage_estimator="grpo", eps_clip=0.2,
                     eps_clip_high=0.2, calculate_per_token_loss=False, qkv_format="thd", allgather_cp=False,
                     recompute_loss_function=False, use_rollout_logprobs=False, observe_training_entropy=True,
                     skip_actor_forward_only=False, use_dynamic_batch_size=False, **others)


class Samples:
    """A data iterator of one batch, the same whenever it is asked."""

    def __init__(self):
        generator = torch.Generator().manual_seed(3)
        device = cpu.device()

        def random(sizes):
            return [torch.randn(size, generator=generator).to(device) for size in sizes]

        self.rollout_data = dict(
            tokens=[torch.randint(0, cpu.VOCAB, (size,), generator=generator).to(device) for size in TOTAL],
            total_lengths=list(TOTAL), response_lengths=list(RESPONSE), advantages=random(RESPONSE),
            loss_masks=[torch.ones(size, dtype=torch.int, device=device) for size in RESPONSE],
            log_probs=[values - 4 for values in random(RESPONSE)],
            rollout_mask_sums=torch.tensor(RESPONSE, dtype=torch.float32, device=device))

    def reset(self):
        pass

    def get_next(self, keys):
        return {key: self.rollout_data.get(key) for key in keys}


class Trainer:
    """One of the two, over a model: a step's loss and gradients, and the log-probabilities of a forward pass."""

    def __init__(self, host, dtype, **options):
        with stubs(**{name.replace(".", "__"): stub() for name in ABSENT}):
            self.module = importlib.import_module(host + ".backends.megatron_utils.model")
            if host == "miles":
                self._parallel_state()
        self.host, self.args = host, arguments()
        self.module.get_args = lambda: self.args
        if host == "slime" and cpu.device() == "cpu":
            data = importlib.import_module("slime.backends.megatron_utils.data")
            data.accelerator = stub(device=cpu.device, current_device=cpu.device)
        self.model = cpu.model(dtype, **options)
        self.model.zero_grad_buffer = lambda: None
        self.found = {}

    def _parallel_state(self):
        parallel = importlib.import_module("miles.backends.training_utils.parallel")
        from megatron.core import parallel_state as groups

        def info(group):
            return parallel.GroupInfo(group.rank(), group.size(), group)

        alone = parallel.GroupInfo(0, 1, None)
        parallel.set_parallel_state(parallel.ParallelState(
            intra_dp=info(groups.get_data_parallel_group()), intra_dp_cp=info(groups.get_data_parallel_group(True)),
            cp=info(groups.get_context_parallel_group()), tp=info(groups.get_tensor_model_parallel_group()),
            pp=info(groups.get_pipeline_model_parallel_group()), ep=alone, etp=alone, indep_dp=alone))

    def step(self):
        """Keeps the gradients at the moment of the optimizer's step; they are nowhere else afterwards."""
        parameters = dict(self.model.named_parameters())
        for parameter in parameters.values():
            parameter.grad = None

        def taken():
            self.found = {"gradient " + name: each.grad for name, each in parameters.items()}
            return True, 1.0, 0

        optimizer = stub(step=taken, scale_loss=None)
        more = (1, len(TOTAL)) if self.host == "slime" else (1, len(TOTAL), None, 0)
        results = self.module.train_one_step(self.args, 0, 0, [Samples()], [self.model], optimizer, stub(), *more)
        return {**{name: torch.as_tensor(results[0][name]) for name in ("loss", "entropy_loss")}, **self.found}

    def scored(self):
        """{"log_probs 0": ..., "entropy 0": ...} of forward_only."""
        function = importlib.import_module(LOSSES[self.host])
        more = () if self.host == "slime" else (0,)
        results = self.module.forward_only(function.get_log_probs_and_entropy, self.args, [self.model], [Samples()],
                                           [1], *more)
        return {"%s %d" % (name, i): value for name, values in results.items() for i, value in enumerate(values)}


LOSSES = {"slime": "slime.backends.megatron_utils.loss",
          "miles": "miles.backends.training_utils.loss_hub.logit_processors"}


def compared(host, dtype, act, **options):
    """What the trainer does with its own scores and with flp, both against float64."""
    trainer = Trainer(host, dtype, **options)
    own = getattr(trainer, act)()
    with installed(host + "-megatron", host), pytest.MonkeyPatch.context() as patch:
        ours = getattr(trainer, act)()
        patch.setattr(_megatron, "logprobs", cpu.exact_logprobs)
        wanted = getattr(trainer, act)()
    again = getattr(trainer, act)()
    assert own.keys() == ours.keys() and all(torch.equal(again[key], value) for key, value in own.items())
    assert len(own) >= 4
    compare(own, ours, {key: value.double() for key, value in wanted.items()}, dtype, rounded=True,
            trunks=[key for key in own if "output_layer" not in key],
            host_values={torch.float32: 2e-5, torch.bfloat16: 0.2},
            host_gradients={torch.float32: SINGLE[host], torch.bfloat16: 0.1})
    return ours


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("act", ["step", "scored"])
@pytest.mark.parametrize("tied", [False, True])
def test_one_rank(host, dtype, act, tied):
    compared(host, dtype, act, tied=tied)


def on_two(host, dtype):
    return [compared(host, dtype, act, sequence_parallel=parallel) for parallel in (False, True)
            for act in ("step", "scored")]


@pytest.mark.two_ranks
@pytest.mark.parametrize("dtype", DTYPES)
def test_two_ranks(host, dtype):
    first, second = cpu.in_ranks(on_two, host, dtype)
    assert all(torch.equal(one["log_probs 1"], other["log_probs 1"]) for one, other in zip(first, second)
               if "log_probs 1" in one)

