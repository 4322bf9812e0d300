"""flp.logprob_head on models of transformers, alone and inside PEFT: against the scores that they compute themselves."""
import contextlib
import copy
import sys
from pathlib import Path

import pytest
import torch

import flp
from flp_reference import relative
from installed import run

pytest.importorskip("transformers", reason="models of transformers are needed")
from flp_tiny_hf import CONFIGS, IDS, MASK, VOCAB, adapted, fully_shard, make, own  # noqa: E402


@pytest.mark.parametrize("eager", [False, True], ids=["libflp", "eager"])
@pytest.mark.parametrize("name", CONFIGS)
def test_logprobs_entropies_and_gradients_are_those_of_the_models_scores(name, eager):
    model = make(name)
    wide = copy.deepcopy(model)
    logprob, entropy = own(wide, 0.7)
    with flp.logprob_head(model, entropy=True, temperature=0.7, eager=eager, chunk_rows=5):
        for _ in range(2):
            out = model(input_ids=IDS, attention_mask=MASK)
            assert (out.logprobs - logprob).abs().max() < 5e-6 and (out.entropy - entropy).abs().max() < 5e-6
    (out.logprobs.mean() + 0.1 * out.entropy.mean()).backward()
    (logprob.mean() + 0.1 * entropy.mean()).backward()
    for (field, got), want in zip(model.named_parameters(), wide.parameters()):
        if want.grad is not None and want.grad.norm() > 1e-6:
            assert relative(got.grad, want.grad) < 2e-4, field
    assert out.output.logits is None and out.output.loss is None
    assert model(input_ids=IDS, labels=IDS).loss > 0


def test_what_else_a_model_returns_stays():
    model = make("mixtral", output_router_logits=True)
    with flp.logprob_head(model):
        out = model(input_ids=IDS, attention_mask=MASK, output_hidden_states=True)
        assert out.output.aux_loss > 0 and len(out.output.hidden_states) == 3
        pair = model(input_ids=IDS, attention_mask=MASK, return_dict=False)
        assert isinstance(pair.output, tuple) and torch.equal(pair.logprobs, out.logprobs)


def test_a_rule_that_config_does_not_name_is_found_out():
    model = make("cohere")
    model.logit_scale = 0.3
    with flp.logprob_head(model), pytest.raises(flp.UnsupportedError, match="otherwise than by scale 0.25"):
        model(input_ids=IDS)


def test_a_trunk_under_gradient_checkpointing():
    model = make("llama").train()
    with flp.logprob_head(model):
        want = torch.autograd.grad(model(input_ids=IDS).logprobs.sum(), model.model.layers[0].mlp.up_proj.weight)[0]
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model(input_ids=IDS).logprobs.sum().backward()
    assert torch.allclose(model.model.layers[0].mlp.up_proj.weight.grad, want)


# ---- PEFT ----

@pytest.mark.parametrize("saved", [None, ["lm_head"]], ids=["head frozen", "head in modules_to_save"])
def test_policy_and_reference_of_an_adapted_model(saved):
    model = adapted(make("llama"), "q_proj", "v_proj", saved=saved)
    if saved:
        with torch.no_grad():
            model.get_base_model().lm_head.modules_to_save["default"].weight.mul_(1.5)
    want = {}
    for off in (False, True):
        with model.disable_adapter() if off else contextlib.nullcontext(), torch.no_grad():
            want[off] = own(model)[0]
    assert not torch.allclose(want[False], want[True], atol=1e-3)
    with flp.logprob_head(model):
        with torch.no_grad(), model.disable_adapter():
            reference = model(input_ids=IDS, attention_mask=MASK).logprobs
        policy = model(input_ids=IDS, attention_mask=MASK).logprobs
        policy.sum().backward()
    assert (reference - want[True]).abs().max() < 5e-6 and (policy - want[False]).abs().max() < 5e-6
    grads = {name for name, weight in model.named_parameters() if weight.grad is not None}
    trained = {name for name, weight in model.named_parameters() if weight.requires_grad}
    assert grads == trained and any("lora_A" in name for name in grads)
    assert any("lm_head" in name for name in grads) == bool(saved)


def test_a_head_inside_lora_has_its_adapter_in_the_kernel():
    model = adapted(make("llama"), "q_proj", "lm_head")
    want, _ = own(model)
    with flp.logprob_head(model):
        got = model(input_ids=IDS, attention_mask=MASK).logprobs
        got.sum().backward()
        with torch.no_grad(), model.disable_adapter():
            reference = model(input_ids=IDS, attention_mask=MASK).logprobs
    assert (got - want).abs().max() < 5e-6 and not torch.allclose(got, reference, atol=1e-3)
    grads = {name for name, weight in model.named_parameters() if weight.grad is not None}
    assert {name for name, weight in model.named_parameters() if weight.requires_grad} == grads
    assert any("lm_head.lora_B" in name for name in grads)
    with torch.no_grad(), model.disable_adapter():
        assert (reference - own(model)[0]).abs().max() < 5e-6
    merged = model.merge_and_unload()
    want, _ = own(merged)
    with flp.logprob_head(merged), torch.no_grad():
        assert (merged(input_ids=IDS, attention_mask=MASK).logprobs - want).abs().max() < 5e-6


def test_the_example_runs():
    pytest.importorskip("peft", reason="PEFT is needed")
    script = Path(__file__).resolve().parents[2] / "runtime" / "python" / "examples" / "hf_logprobs.py"
    printed = run(sys.executable, script, env={"CUDA_VISIBLE_DEVICES": ""})
    losses = [float(line.split()[3]) for line in printed.splitlines()]
    assert len(losses) == 8 and losses[-1] < losses[0] - 0.01


def test_a_compiled_model_is_seen_through():
    model = make("llama")
    want, _ = own(model)
    compiled = torch.compile(model, backend="eager")
    with flp.logprob_head(compiled):
        for _ in range(2):
            out = compiled(input_ids=IDS, attention_mask=MASK)
            assert (out.logprobs - want).abs().max() < 5e-6
        out.logprobs.sum().backward()
    assert model.lm_head.weight.grad is not None
    assert compiled(input_ids=IDS, attention_mask=MASK).logits.shape == (2, 9, VOCAB)


# ---- models of several processes, here of one ----


@pytest.mark.parametrize("options", [{}, {"find_unused_parameters": True}, {"static_graph": True}], ids=str)
def test_under_distributed_data_parallel(one_rank, options):
    model = make("llama")
    want = torch.autograd.grad(own(model)[0].sum(), model.lm_head.weight)[0]
    parallel = torch.nn.parallel.DistributedDataParallel(model, **options)
    with flp.logprob_head(parallel):
        parallel(input_ids=IDS, attention_mask=MASK).logprobs.sum().backward()
    assert relative(model.lm_head.weight.grad, want) < 1e-5


def test_fsdp2_may_shard_the_trunk_but_not_the_head(one_rank):
    shard, model = fully_shard(), make("llama")
    want, _ = own(model)
    for layer in model.model.layers:
        shard(layer)
    with flp.logprob_head(model):
        out = model(input_ids=IDS, attention_mask=MASK)
        out.logprobs.sum().backward()
    assert (out.logprobs - want).abs().max() < 5e-6 and model.model.layers[0].mlp.up_proj.weight.grad is not None
    shard(model)
    with pytest.raises(flp.UnsupportedError, match=r"head.weight is sharded \(DTensor\).*fully_shard"):
        flp.logprob_head(model).install()
