"""Kept sets of tokens to try linear_logprob(keep=...) on."""
import torch

from flp_reference import DEVICE


def lists(target, vocab=331, seed=3, dtype=torch.int64, shuffle=True):
    """Kept sets of 1 to 40 tokens with the target in each, unsorted, some tokens twice -> offsets, ids, mask (n,V)."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.zeros(len(target), vocab, dtype=torch.bool)
    ids = []
    for row, token in enumerate(target.tolist()):
        size = int(torch.randint(0, 40, (), generator=generator)) if row else 0
        own = torch.cat([torch.randint(vocab, (size,), generator=generator),
                         torch.tensor([token] if 0 <= token < vocab else [0])])
        mask[row, own] = True
        order = torch.randperm(len(own), generator=generator)
        ids.append(own[order] if shuffle else own.unique())
    offsets = torch.tensor([0] + [len(own) for own in ids]).cumsum(0)
    return offsets.to(DEVICE), torch.cat(ids).to(dtype).to(DEVICE), mask.to(DEVICE)
