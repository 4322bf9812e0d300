"""megatron-core 0.19.2: flp.adapters.megatron.output_processor beside the scores of GPTModel, on one rank and two."""
import copy

import pytest
import torch
from flp_reference import relative
from parity import DTYPES, compare, installed, note_test, with_gradients

pytest.importorskip("megatron.core.models.gpt")
import megatron_cpu as cpu  # noqa: E402
from megatron.core.packed_seq_params import PackedSeqParams  # noqa: E402

import flp  # noqa: E402

processor = flp.adapters.megatron.output_processor
TWO = [dict(sequence_parallel=False), dict(sequence_parallel=True), dict(sequence_parallel=True, tied=True),
       dict(sequence_parallel=False, tied=True)]


@pytest.fixture(autouse=True)
def one(one_rank):
    note_test("megatron")
    cpu.groups()


def given(made, processor, batch, **keywords):
    """Outputs of the model with gradients of every parameter."""
    ids, places, mask, labels, _ = batch
    results = made(ids, places, mask, labels=labels, output_processor=processor, **keywords)
    return with_gradients(results if isinstance(results, tuple) else (results,), list(made.parameters()))


def same(made, dtype, batch, entropy=False, temperature=1.0, **keywords):
    """flp's values and gradients beside those of scores, both against float64."""
    trunks = ["gradient %d" % i for i, (name, _) in enumerate(made.named_parameters()) if "output_layer" not in name]
    results = [given(made, make(temperature=temperature, entropy=entropy), batch, **keywords)
               for make in (cpu.by_scores, processor, cpu.exactly)]
    compare(*results, dtype, rounded=True, trunks=trunks, host_values={torch.float32: 1e-5, torch.bfloat16: 0.2},
            host_gradients={torch.float32: 2e-5, torch.bfloat16: 5e-2})
    return results


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", [{}, {"tied": True}, {"entropy": True}, {"temperature": 0.7}])
def test_one_rank(dtype, options):
    options = dict(options)
    same(cpu.model(dtype, tied=options.pop("tied", False)), dtype, cpu.batch(), **options)


def test_one_rank_as_megatrons_own_loss():
    made, (ids, places, mask, labels, loss_mask) = cpu.model(), cpu.batch()
    own = made(ids, places, mask, labels=labels)
    ours = made(ids, places, mask, labels=labels, loss_mask=loss_mask, output_processor=processor())
    assert torch.allclose(ours, -own * loss_mask, atol=2e-5)
    assert (ours[loss_mask == 0] == 0).all()


@pytest.mark.parametrize("entropy", [False, True])
def test_one_temperature_a_token(entropy, device):
    temperature = torch.rand(cpu.BATCH, cpu.LENGTH, device=device) + 0.5
    same(cpu.model(), torch.float32, cpu.batch(), entropy, temperature)


def test_scale_of_mup():
    made = cpu.model(use_mup=True, mup_output_mult=0.25, mup_width_mult=4.0)
    assert made.config.mup_output_mult == 0.25
    same(made, torch.float32, cpu.batch())


# ---- two ranks ----

def on_two(dtype, options):
    results = []
    for case in options:
        case = dict(case)
        made = cpu.model(dtype, sequence_parallel=case.pop("sequence_parallel"), tied=case.pop("tied", False))
        assert cpu.bare(made).output_layer.weight is None or len(cpu.bare(made).output_layer.weight) == cpu.VOCAB // 2
        results.append(same(made, dtype, cpu.batch(), **case)[1])
    return results


@pytest.mark.two_ranks
@pytest.mark.parametrize("dtype", DTYPES)
def test_two_ranks(dtype):
    cases = [*TWO, dict(sequence_parallel=True, entropy=True, temperature=0.7),
             dict(sequence_parallel=False, entropy=True)]
    first, second = cpu.in_ranks(on_two, dtype, cases)
    for one, other in zip(first, second):
        assert torch.equal(one["0"], other["0"])


# ---- main_grad ----

class Hooked:
    """What Megatron's DistributedDataParallel does about a parameter: main_grad, and what is left over added to it."""

    def __init__(self, made, fused):
        layer, self.parameters = cpu.bare(made).output_layer, list(made.parameters())
        layer.gradient_accumulation_fusion = fused
        for parameter in self.parameters:
            parameter.main_grad = torch.full_like(parameter, 0.5, dtype=torch.float32)
            parameter.grad_added_to_main_grad = False

    def after(self):
        for parameter in self.parameters:
            assert parameter.grad is not None  # Megatron's overlap_grad_reduce insists
            if not parameter.grad_added_to_main_grad or getattr(parameter, "zero_out_wgrad", False):
                parameter.main_grad.add_(parameter.grad)
            parameter.grad = None
        return [parameter.main_grad for parameter in self.parameters]


@pytest.mark.parametrize("tied", [False, True])
def test_main_grad(tied):
    ids, places, mask, labels, _ = cpu.batch()
    found = []
    for fused in (False, True):
        made = cpu.model(tied=tied)
        hooks = Hooked(made, fused)
        made(ids, places, mask, labels=labels, output_processor=processor()).sum().backward()
        weight = cpu.bare(made).shared_embedding_or_output_weight() if tied else cpu.bare(made).output_layer.weight
        assert weight.grad_added_to_main_grad == fused
        found.append(hooks.after())
    for own, ours in zip(*found):
        assert torch.allclose(own, ours, rtol=1e-5, atol=1e-4)


def test_main_grad_of_another_dtype_is_left_to_megatron():
    ids, places, mask, labels, _ = cpu.batch()
    made = cpu.model()
    Hooked(made, True)
    weight = made.output_layer.weight
    weight.main_grad = weight.main_grad.bfloat16()
    made(ids, places, mask, labels=labels, output_processor=processor()).sum().backward()
    assert not weight.grad_added_to_main_grad and weight.grad.abs().sum() > 0


# ---- which rows ----

def test_packed_sequences_without_labels(device):
    """Each token's label is the next of its own sequence; paddings and prompts have none."""
    ends, padded = torch.tensor([[0, 5, 8, 8, 15], [0, 6, 10, 10, 18]], dtype=torch.int32, device=device)
    packed = PackedSeqParams(qkv_format="thd", cu_seqlens_q=ends, cu_seqlens_kv=ends, cu_seqlens_q_padded=padded,
                             cu_seqlens_kv_padded=padded, max_seqlen_q=8, max_seqlen_kv=8)
    ids, places, mask, _, loss_mask = cpu.batch(length=20, rows=1)
    made = cpu.model()
    ours = made(ids, places, mask, packed_seq_params=packed, loss_mask=loss_mask, output_processor=processor())
    own, = made(ids, places, mask, labels=ids.roll(-1, -1), packed_seq_params=packed, output_processor=cpu.exactly())
    counted = torch.zeros(1, 20, dtype=torch.bool, device=device)
    for begin, count in ((0, 5), (6, 3), (10, 0), (10, 7)):
        counted[:, begin:begin + count - 1] = True
    counted &= loss_mask.roll(-1, -1) != 0
    assert torch.allclose(ours.double(), torch.where(counted, own, 0.0), atol=1e-5) and counted.any()


def test_context_of_a_call():
    made, (ids, places, mask, labels, loss_mask) = cpu.model(), cpu.batch()
    mine = loss_mask.roll(1, -1)
    logprob, entropy = made(ids, places, mask, loss_mask=loss_mask, output_processor=processor(temperature=2.0),
                            output_processor_context=dict(temperature=0.5, entropy="detached", labels=labels,
                                                          mask=mine))
    own = made(ids, places, mask, labels=labels, output_processor=cpu.exactly(0.5, True))
    for ours, want in zip((logprob, entropy), own):
        assert torch.allclose(ours.double(), want * loss_mask * mine, atol=1e-5)
    assert logprob.requires_grad and not entropy.requires_grad


@pytest.mark.parametrize("options, of", [({"vocab_size": 80}, lambda scores: scores[..., :80]),
                                         ({"softcap": 2.0}, lambda scores: 2 * torch.tanh(scores / 2))], ids=str)
def test_a_vocabulary_without_its_padding_and_a_softcap_of_the_caller(options, of):
    made, (ids, places, mask, labels, _) = cpu.model(), cpu.batch()
    made.config.final_logit_softcapping, labels = options.get("softcap"), labels % 80
    ours = made(ids, places, mask, labels=labels, output_processor=processor(**options))
    want = of(made(ids, places, mask).double()).log_softmax(-1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    assert torch.allclose(ours.double(), want, atol=1e-5)


# ---- refusals ----

def changed(config):
    config = copy.copy(config)
    config.defer_embedding_wgrad_compute = True
    return config


@pytest.mark.parametrize("change, field", [
    (lambda made: setattr(made, "config", changed(made.config)), "defer_embedding_wgrad_compute"),
    (lambda made: made.output_layer.register_forward_hook(lambda *_: None), "forward hooks"),
    (lambda made: setattr(made.output_layer, "forward", lambda *_: None), "forward"),
    (lambda made: setattr(made, "_scale_logits", lambda scores: 30 * torch.tanh(scores / 30)), "scale_logits"),
    (lambda made: setattr(made.config, "final_logit_softcapping", 30.0), "softcap"),
    (lambda made: setattr(made, "output_layer", torch.nn.Linear(cpu.HIDDEN, cpu.VOCAB).to(cpu.device())), "torch.nn"),
    (lambda made: setattr(made.output_layer.weight, "__fsdp_param__", True), "FSDP"),
])
def test_refused(change, field):
    made, (ids, places, mask, labels, _) = cpu.model(), cpu.batch()
    change(made)
    with pytest.raises(flp.UnsupportedError, match=field):
        made(ids, places, mask, labels=labels, output_processor=processor())


def test_contexts_refused():
    made, (ids, places, mask, labels, loss_mask) = cpu.model(), cpu.batch()
    for context, field in (({"Temperature": 1.0}, "Temperature"), ({"mask": loss_mask[:, 1:]}, "mask")):
        with pytest.raises(ValueError, match=field):
            made(ids, places, mask, labels=labels, output_processor=processor(), output_processor_context=context)
    with pytest.raises(TypeError, match="output_processor_context"):
        made(ids, places, mask, labels=labels, output_processor=processor(), output_processor_context=0.7)
    made.config.context_parallel_size = 2
    with pytest.raises(flp.UnsupportedError, match="labels"):
        made(ids, places, mask, output_processor=processor())


# ---- heads that predict further tokens ----

def losses_of_heads(made, with_labels=True, training=True):
    """The gradients that the heads' losses and the model's own leave, and what is logged of the heads."""
    from megatron.core.transformer.multi_token_prediction import MTPLossLoggingHelper

    MTPLossLoggingHelper.tracker.clear()
    ids, places, mask, labels, loss_mask = cpu.batch()
    made.train(training)
    more = {} if with_labels else {"output_processor_context": {"labels": labels}}
    result = made(ids, places, mask, labels=labels if with_labels else None, loss_mask=loss_mask,
                  output_processor=processor(), **more)
    parameters = dict(made.named_parameters())
    found = torch.autograd.grad(result.sum(), list(parameters.values()), allow_unused=True)
    logged = {name: value.clone() for name, value in MTPLossLoggingHelper.tracker.items() if name.endswith("_values")}
    assert bool(logged) == training and any("mtp" in name for name in parameters)
    return {**logged, **{name: grad for name, grad in zip(parameters, found) if grad is not None}}


def with_heads(dtype, **options):
    """What Megatron's own losses of two heads give, and flp's."""
    for made in (cpu.model(dtype, mtp=2, **options), cpu.model(dtype, mtp=2, mtp_detach_heads=True, **options)):
        for call in ({}, {"with_labels": False}, {"training": False}):
            own = losses_of_heads(made, **call)
            with installed("megatron", "megatron"):
                ours = losses_of_heads(made, **call)
            assert own.keys() == ours.keys()
            for name, value in own.items():
                limit = 1e-6 if "correct" in name or "total" in name else 3e-5 if dtype is torch.float32 else 5e-2
                assert relative(ours[name], value.double()) <= limit, (name, call, relative(ours[name], value.double()))


@pytest.mark.parametrize("dtype", DTYPES)
def test_heads_of_further_tokens(dtype):
    with_heads(dtype)


def heads_on_two():
    for parallel in (False, True):
        with_heads(torch.float32, sequence_parallel=parallel)


@pytest.mark.two_ranks
def test_heads_of_further_tokens_on_two_ranks():
    cpu.in_ranks(heads_on_two)
