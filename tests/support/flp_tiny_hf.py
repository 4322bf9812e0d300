"""Small random causal language models of transformers, and the log-probabilities that their own scores give."""
import functools

import pytest
import torch
import transformers

VOCAB = 131
IDS = torch.randint(3, VOCAB, (2, 9), generator=torch.Generator().manual_seed(1))
MASK = torch.ones_like(IDS)
MASK[0, :3] = 0
CONFIGS = {
    "llama": {}, "qwen2": {"tie_word_embeddings": True}, "qwen3": {}, "mixtral": {"num_local_experts": 2},
    "phi": {},  # a head with a bias
    "gemma2": {"final_logit_softcapping": 1.5}, "gemma3_text": {"final_logit_softcapping": None},
    "cohere": {"logit_scale": 0.25}, "granite": {"logits_scaling": 8.0}, "gpt2": {},
    "recurrent_gemma": {"logits_soft_cap": 1.5},
}


def make(name, **more):
    """A small random model whose scores are large enough for a forgotten rule to show."""
    common = {"vocab_size": VOCAB, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "use_cache": False}
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4} if name == "gpt2" else {
        "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 8}
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(name, **common, **sizes, **{**CONFIGS[name], **more})
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(3 if weight.dim() > 1 else 1)
    return model


def own(model, temperature=1.0):
    """logprob and entropy (B, T-1) from the model's own scores, in float64."""
    logits = model(input_ids=IDS, attention_mask=MASK).logits
    logp = torch.log_softmax(logits[:, :-1].double() / temperature, -1)
    work = MASK[:, 1:] * MASK[:, :-1]
    return logp.gather(-1, IDS[:, 1:, None])[..., 0] * work, -(logp.exp() * logp).sum(-1) * work


def adapted(model, *names, saved=None):
    """With PEFT's LoRA in layers of these names; saved: modules that it has copies of."""
    peft = pytest.importorskip("peft", reason="PEFT is needed")
    config = peft.LoraConfig(init_lora_weights=False, target_modules=list(names), modules_to_save=saved)
    return peft.get_peft_model(model, config).eval()


def fully_shard():
    """torch's, over this process alone."""
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    if not hasattr(fsdp, "fully_shard"):
        pytest.skip("torch has no fully_shard")
    return functools.partial(fsdp.fully_shard, mesh=torch.distributed.init_device_mesh("cpu", (1,)))
