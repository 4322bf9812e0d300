#!/usr/bin/env python3
"""Ten lines that train a causal language model of transformers through flp; train() has them.

    python3 runtime/python/examples/ten_lines.py [--tiny] [--device cuda] [--json FILE]

--tiny takes sizes for a machine without a GPU. Needs transformers.
"""
import _tiny
import torch

import flp


def train(arguments, say=_tiny.say):
    """-> the loss of every step"""
    transformers, = _tiny.needed("transformers")
    batch, length, device, losses = arguments.batch, arguments.length, arguments.device, []
    config = transformers.LlamaConfig(hidden_size=arguments.hidden, intermediate_size=11 * arguments.hidden // 4,
                                      num_hidden_layers=4, num_attention_heads=16, vocab_size=arguments.vocab)
    model = transformers.LlamaForCausalLM(config).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.3 / arguments.hidden)
    for step in range(arguments.steps):
        ids = torch.arange(batch * (length + 1), device=device).reshape(batch, length + 1) * (step + 1) % 997
        with _tiny.autocast(device):
            loss = -flp.linear_logprob(model.model(ids[:, :-1])[0], model.lm_head.weight, ids[:, 1:]).mean()
        loss.backward(), optimizer.step(), optimizer.zero_grad()
        losses.append(loss.item())
        say("step %3d  loss %.4f" % (step, losses[-1]))
    return losses


def parser():
    options = _tiny.parser(__doc__)
    _tiny.add_sizes(options, steps=(20, 20), batch=(8, 2), length=(1024, 32), vocab=(32000, 1000), hidden=(1024, 64))
    return options


if __name__ == "__main__":
    given = _tiny.with_sizes(parser().parse_args())
    torch.manual_seed(given.seed)
    _tiny.write_record(given, {"losses": train(given)})
