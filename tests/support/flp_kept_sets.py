"""Kept sets of tokens to try linear_logprob(keep=...) on."""
import torch

from flp_reference import DEVICE


def lists(target, shuffle=True):
    """Kept sets of 1 to 40 of 331 tokens with the target in each, unsorted, some tokens twice -> offsets, ids"""
    generator = torch.Generator().manual_seed(3)
    ids = []
    for row, token in enumerate(target.tolist()):
        size = int(torch.randint(0, 40, (), generator=generator)) if row else 0
        own = torch.cat([torch.randint(331, (size,), generator=generator),
                         torch.tensor([token] if 0 <= token < 331 else [0])])
        order = torch.randperm(len(own), generator=generator)
        ids.append(own[order] if shuffle else own.unique())
    offsets = torch.tensor([0] + [len(own) for own in ids]).cumsum(0)
    return offsets.to(DEVICE), torch.cat(ids).to(DEVICE)
