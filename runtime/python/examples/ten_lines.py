import torch, flp
from transformers import LlamaConfig, LlamaForCausalLM
config = LlamaConfig(hidden_size=1024, intermediate_size=2816, num_hidden_layers=4, num_attention_heads=16)
model = LlamaForCausalLM(config).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
for step in range(20):
    ids = torch.arange(8 * 1025, device="cuda").reshape(8, 1025) * (step + 1) % 997  # your tokens go here
    with torch.autocast("cuda", torch.bfloat16):
        loss = -flp.linear_logprob(model.model(ids[:, :-1])[0], model.lm_head.weight, ids[:, 1:]).mean()
    loss.backward(), optimizer.step(), optimizer.zero_grad(), print(step, loss.item())
