#!/usr/bin/env python3
"""GRPO steps of a small model whose head is divided between two processes; their losses are those of one process.

    python3 runtime/python/examples/tensor_parallel.py [--json FILE]    # NCCL on two GPUs, or gloo on the CPU
"""
import json
import tempfile
from pathlib import Path

import _tiny
import torch
import torch.distributed as dist
from torch import nn

import flp

VOCAB, HIDDEN, RANKS = 1000, 64, 2
ENDS = [0, 600, 1000]  # shards may have different sizes


def train(score, model, head, device, steps=5):
    """score(hidden, head, tokens) -> logprob, entropy. Returns the losses."""
    draw = torch.Generator().manual_seed(1)
    tokens = torch.randint(VOCAB, (8, 17), generator=draw).to(device)
    advantage = torch.randn(8, generator=draw).to(device)
    optimizer = torch.optim.Adam([*model.parameters(), head], lr=3e-3)
    old, losses = None, []
    for _ in range(steps):
        logprob, entropy = score(model(tokens[:, :-1]), head, tokens[:, 1:])
        old = logprob.detach() if old is None else old
        loss, _ = flp.losses.policy_loss("grpo", logprob, advantage, old_logprob=old, entropy=entropy,
                                         entropy_weight=0.01)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def work(rank, folder, cuda, seed):
    """One process: prints what it found, and leaves it in the folder."""
    device = torch.device("cuda", rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo", init_method="file://%s/store" % folder, rank=rank,
                            world_size=RANKS)
    found = []
    for shard, linear_logprob in ((slice(ENDS[rank], ENDS[rank + 1]), flp.parallel.linear_logprob),
                                  (slice(None), flp.linear_logprob)):
        torch.manual_seed(seed)
        model = _tiny.TinyLM(VOCAB, HIDDEN, layers=1, heads=4)
        head = nn.Parameter(model.head.weight[shard].to(device))
        found.append(train(lambda *given: linear_logprob(*given, entropy=True), model.to(device), head, device))
    print("rank %d: two processes %.6f -> %.6f, one %.6f -> %.6f, largest difference %.1e\n" % (
        rank, found[0][0], found[0][-1], found[1][0], found[1][-1], max(abs(a - b) for a, b in zip(*found))),
          end="", flush=True)  # one write, which the other process's does not get into
    Path(folder, "rank%d.json" % rank).write_text(json.dumps({"losses_two_processes": found[0], "losses_one": found[1]}))
    dist.destroy_process_group()


def main():
    given = _tiny.parser(__doc__).parse_args()
    cuda = given.device.type == "cuda" and torch.cuda.device_count() >= RANKS
    given.device = torch.device("cuda" if cuda else "cpu")
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.start_processes(work, (folder, cuda, given.seed), RANKS, start_method="forkserver")
        ranks = [json.loads(Path(folder, "rank%d.json" % rank).read_text()) for rank in range(RANKS)]
    _tiny.write_record(given, {"ranks": ranks})


if __name__ == "__main__":
    main()
