"""Kept sets of tokens to try linear_logprob(keep=...) on, and the operation over them in float64 torch."""
import torch

from flp_reference import DEVICE, reference


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


def kept_reference(mask, hidden, weight, target, bias=None, **options):
    """flp_reference.reference over the columns of each row's mask alone."""
    rows = []
    only = options.pop("rows", None)
    for i in range(len(target)):
        columns = mask[i].nonzero().flatten()
        skipped = only is not None and i not in only or target[i] == -100
        place = torch.zeros(1, dtype=torch.int64, device=DEVICE) if skipped else (columns == target[i]).nonzero().flatten()
        own = dict(options)
        if isinstance(own.get("temperature"), torch.Tensor):
            own["temperature"] = own["temperature"][i:i + 1]
        row = reference(hidden[i:i + 1], weight[columns], place, None if bias is None else bias[columns], **own)
        rows.append([part * (0 if skipped else 1) for part in row])
    return [torch.cat(parts) for parts in zip(*rows)]
