#!/usr/bin/env python3
"""Policy updates on a causal language model of transformers, scored by its own forward without materialised scores: old
policy, reference (the adapter switched off) and current policy. Runs anywhere: a random model, a GPU if there is one."""
import torch
from peft import LoraConfig, get_peft_model
from transformers import Qwen3Config, Qwen3ForCausalLM

import flp

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
config = Qwen3Config(vocab_size=4096, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
                     num_key_value_heads=2, head_dim=32, use_cache=False)
model = get_peft_model(Qwen3ForCausalLM(config), LoraConfig(target_modules=["q_proj", "v_proj"])).to(device)
optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad], lr=1e-2)

ids = torch.randint(0, 4096, (8, 64), device=device)        # prompts and what the policy answered
attention = torch.ones_like(ids)
answered = torch.zeros(8, 63, device=device)                # logprobs[:, t] is of token t + 1
answered[:, 31:] = 1
advantage = torch.randn(8, device=device)

with flp.logprob_head(model, entropy=True):
    with torch.no_grad():
        old = model(input_ids=ids, attention_mask=attention).logprobs
        with model.disable_adapter():
            reference = model(input_ids=ids, attention_mask=attention).logprobs
    for step in range(8):
        out = model(input_ids=ids, attention_mask=attention)
        loss, metrics = flp.losses.policy_loss("grpo", out.logprobs, advantage, old_logprob=old, ref_logprob=reference,
                                               entropy=out.entropy, mask=answered, beta=0.04)
        loss.backward(), optimizer.step(), optimizer.zero_grad()
        print("step %d  loss %.4f  ratio %.4f  kl %.5f" % (step, loss.item(), metrics["ratio"], metrics["kl"]))
