"""flp.logprob_head on models of transformers that are copied, adapted, wrapped or sharded inside the block."""
import copy

import pytest
import torch

import flp
from flp_reference import relative
from flp_standin_lm import COPIES

pytest.importorskip("transformers", reason="models of transformers are needed")
from flp_tiny_hf import IDS, MASK, VOCAB, adapted, fully_shard, make, own  # noqa: E402


def scored(model):
    return model(input_ids=IDS, attention_mask=MASK).logprobs


def check_scored(model, want):
    assert (scored(model) - want).abs().max() < 5e-6


def check_refused(model, words):
    with pytest.raises(flp.UnsupportedError, match=words):
        scored(model)


def changed(model):
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1.2 if weight.dim() > 1 else 1)
    return model


# ---- copies ----

@pytest.mark.parametrize("way", COPIES)
@pytest.mark.parametrize("name", ["qwen2", "gemma2"])
def test_a_reference_model_is_made_inside_the_block(name, way):
    model = make(name)
    policy = own(model)[0]
    fresh = changed(make(name))
    with flp.logprob_head(model):
        reference = changed(COPIES[way](model))
        assert type(reference) is type(fresh)
        want, _ = own(fresh)
        assert (want - policy).abs().max() > 0.01 and torch.equal(own(reference)[0], want)
        assert reference.generate(IDS, max_new_tokens=2, do_sample=False).shape == (2, 11)
        check_scored(model, policy)
        with flp.logprob_head(reference):
            check_scored(reference, want)
    assert torch.equal(own(reference)[0], want) and torch.equal(own(model)[0], policy)


def test_a_model_is_saved_inside_the_block(tmp_path):
    model = make("llama")
    with flp.logprob_head(model):
        model.save_pretrained(tmp_path)
        loaded = type(model).from_pretrained(tmp_path)
        assert loaded.config.architectures == ["LlamaForCausalLM"]
        assert torch.equal(own(loaded)[0], own(copy.deepcopy(model))[0])


def test_parameters_of_functional_call_are_the_ones_scored():
    model = make("llama")
    other = changed(copy.deepcopy(model))
    with flp.logprob_head(model):
        out = torch.func.functional_call(model, dict(other.named_parameters()),
                                         kwargs={"input_ids": IDS, "attention_mask": MASK})
    assert (out.logprobs - own(other)[0]).abs().max() < 5e-6


# ---- embeddings ----

def test_embeddings_that_are_tied_or_resized():
    model = make("qwen2")
    with flp.logprob_head(model):
        model.get_input_embeddings().weight = torch.nn.Parameter(torch.randn(VOCAB, 32))
        model.tie_weights()
        reference = copy.deepcopy(model)
        assert reference.lm_head.weight is reference.get_input_embeddings().weight
        check_scored(model, own(reference)[0])
        model.resize_token_embeddings(VOCAB + 5)  # which keeps the module of a tied head
        check_scored(model, own(copy.deepcopy(model))[0])


@pytest.mark.parametrize("change", [
    lambda model: model.resize_token_embeddings(VOCAB + 5),
    lambda model: model.set_output_embeddings(torch.nn.Linear(32, VOCAB, bias=False))], ids=["resized", "set"])
def test_a_head_that_transformers_replaces_is_refused(change):
    model = make("llama")
    with flp.logprob_head(model):
        change(model)
        check_refused(model, "head is another one")
        want = own(copy.deepcopy(model))[0]
    with flp.logprob_head(model):
        check_scored(model, want)


# ---- PEFT and accelerate ----

def test_an_adapter_that_comes_and_is_merged_inside_the_block():
    model = make("llama")
    bare = own(model)[0]
    with flp.logprob_head(model):
        policy = adapted(model, "q_proj")
        got = scored(policy)
        with policy.disable_adapter():
            check_scored(policy, bare)
        reference = copy.deepcopy(policy)
        merged = policy.merge_and_unload()
        check_scored(merged, got)
    assert (got - bare).abs().max() > 1e-3
    for plain in (merged, reference):
        assert (own(plain)[0] - got).abs().max() < 5e-6


def test_an_adapter_that_comes_to_the_head_is_refused_until_it_is_merged():
    model = make("llama")
    with flp.logprob_head(model):
        policy = adapted(model, "lm_head")
        check_refused(policy, "head is another one than when logprob_head was installed")
        merged = policy.merge_and_unload()
        check_scored(merged, own(copy.deepcopy(merged))[0])


def test_heads_in_modules_to_save_that_come_inside_the_block():
    model = make("llama")
    with flp.logprob_head(model):
        policy = adapted(model, "q_proj", saved=["lm_head"])
        check_refused(policy, "head is another one")
    with flp.logprob_head(policy):
        check_scored(policy, own(copy.deepcopy(policy))[0])
        kind = type(policy.peft_config["default"])
        policy.add_adapter("second", kind(target_modules=["q_proj"], modules_to_save=["lm_head"]))
        policy.set_adapter("second")
        check_refused(policy, "head is another one")
    with torch.no_grad():
        model.lm_head.modules_to_save["second"].weight.mul_(1.5)
    with flp.logprob_head(policy):
        check_scored(policy, own(copy.deepcopy(policy))[0])
        merged = policy.merge_and_unload()
        assert type(merged.lm_head).__name__ == "Linear"
        check_scored(merged, own(copy.deepcopy(merged))[0])


def test_forwards_of_accelerate_are_copied_and_put_back():
    accelerate = pytest.importorskip("accelerate", reason="accelerate is needed")
    model = make("llama")
    want = own(model)[0]
    prepared = accelerate.Accelerator(cpu=True, mixed_precision="bf16").prepare(model)
    forward = vars(prepared)["forward"]
    with flp.logprob_head(prepared):
        assert 1e-5 < (scored(prepared) - want).abs().max() < 0.05
        reference = changed(copy.deepcopy(prepared))
    assert vars(prepared)["forward"] is forward
    got = own(reference)[0]
    assert 1e-5 < (got - own(changed(make("llama")))[0]).abs().max() < 0.05


def test_hooks_of_accelerate_that_come_and_go_inside_the_block():
    hooks = pytest.importorskip("accelerate.hooks", reason="accelerate is needed")
    model = make("llama")
    want = own(model)[0]
    with flp.logprob_head(model):
        for module in (model, model.model.layers[0]):
            hooks.add_hook_to_module(module, hooks.ModelHook())
            check_scored(model, want)
            hooks.remove_hook_from_module(module)
        hooks.add_hook_to_module(model.lm_head, hooks.ModelHook())
        check_refused(model, "head.forward is replaced by")
        hooks.remove_hook_from_module(model.lm_head)
        check_scored(model, want)
    assert torch.equal(own(model)[0], want) and type(model) is type(make("llama"))


# ---- wrappers that come inside the block; process groups of one process ----


def head_gradient(model):
    return torch.autograd.grad(own(model)[0].sum(), model.lm_head.weight)[0]


def test_distributed_data_parallel_inside_the_block(one_rank):
    model = make("llama")
    want, gradient = own(model)[0], head_gradient(model)
    with flp.logprob_head(model):
        parallel = torch.nn.parallel.DistributedDataParallel(model)
        check_scored(parallel, want)
        scored(parallel).sum().backward()
    assert relative(model.lm_head.weight.grad, gradient) < 1e-5


@pytest.mark.parametrize("options", [{"use_orig_params": True}, {"use_orig_params": False}], ids=str)
def test_fsdp_inside_the_block(one_rank, options):
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    model = make("llama")
    want, gradient = own(model)[0].detach(), head_gradient(model)
    with flp.logprob_head(model):
        sharded = fsdp.FullyShardedDataParallel(model, device_id=torch.device("cpu"), **options)
        if options["use_orig_params"]:
            check_scored(sharded, want)
            scored(sharded).sum().backward()
        else:
            check_refused(sharded, "head.weight is computed from other parameters")
    if options["use_orig_params"]:
        assert relative(model.lm_head.weight.grad, gradient) < 1e-5
        sharded.zero_grad()
    assert (own(sharded)[0] - want).abs().max() < 5e-6


@pytest.mark.parametrize("what", ["layers", "model", "head"])
def test_fully_shard_inside_the_block(one_rank, what):
    shard, model = fully_shard(), make("llama")
    want, gradient = own(model)[0].detach(), head_gradient(model)
    with flp.logprob_head(model):
        for module in {"layers": model.model.layers, "model": [model], "head": [model.lm_head]}[what]:
            shard(module)
        if what == "head":
            check_refused(model, "head is under 1 forward hooks")
        else:
            check_scored(model, want)
            scored(model).sum().backward()
            found = model.lm_head.weight.grad
            assert relative(found.full_tensor() if hasattr(found, "full_tensor") else found, gradient) < 1e-5
    assert (own(model)[0] - want).abs().max() < 5e-6
