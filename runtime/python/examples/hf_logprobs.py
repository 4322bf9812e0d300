#!/usr/bin/env python3
"""Policy updates on a causal language model of transformers inside PEFT, scored by its own forward.

    python3 runtime/python/examples/hf_logprobs.py [--steps 8] [--device cuda] [--json FILE]

Old policy, reference (the adapter switched off) and current policy give log-probabilities in place of scores. The model
is small and random, so that this runs in seconds, on a GPU or without one. Needs transformers and peft.
"""
import _tiny
import torch

import flp


def model_of(device):
    """A small model of random weights with an adapter."""
    transformers, peft = _tiny.needed("transformers", "peft")
    config = transformers.Qwen3Config(vocab_size=4096, hidden_size=128, intermediate_size=256, num_hidden_layers=2,
                                      num_attention_heads=4, num_key_value_heads=2, head_dim=32, use_cache=False)
    adapter = peft.LoraConfig(target_modules=["q_proj", "v_proj"])
    return peft.get_peft_model(transformers.Qwen3ForCausalLM(config), adapter).to(device)


def train(arguments, say=_tiny.say):
    """-> the loss of every step"""
    torch.manual_seed(arguments.seed)
    device, losses = arguments.device, []
    model = model_of(device)
    optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad], lr=1e-2)
    ids = torch.randint(0, 4096, (8, 64), device=device)        # prompts and what the policy answered
    attention = torch.ones_like(ids)
    answered = torch.zeros(8, 63, device=device)                # logprobs[:, t] is of token t + 1
    answered[:, 31:] = 1
    advantage = torch.randn(8, device=device)
    with flp.logprob_head(model, entropy="detached"):           # only reported, so it needs no gradient
        with torch.no_grad():
            old = model(input_ids=ids, attention_mask=attention).logprobs
            with model.disable_adapter():
                reference = model(input_ids=ids, attention_mask=attention).logprobs
        for step in range(arguments.steps):
            out = model(input_ids=ids, attention_mask=attention)
            loss, metrics = flp.losses.policy_loss("grpo", out.logprobs, advantage, old_logprob=old, mask=answered,
                                                   ref_logprob=reference, entropy=out.entropy, beta=0.04)
            loss.backward(), optimizer.step(), optimizer.zero_grad()
            losses.append(loss.item())
            say("step %d  loss %.4f  ratio %.4f  kl %.5f" % (step, losses[-1], metrics["ratio"], metrics["kl"]))
    return losses


def parser():
    options = _tiny.parser(__doc__)
    options.add_argument("--steps", type=int, default=8)
    return options


if __name__ == "__main__":
    given = parser().parse_args()
    _tiny.write_record(given, {"losses": train(given)})
