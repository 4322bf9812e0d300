"""What the examples share: a small causal language model in plain torch, the record that they write, where they run."""
import argparse
import contextlib
import importlib
import json
import math
import sys
import types

import torch
import torch.nn.functional as F
from torch import nn

from flp.bench import record


def causal_attention(query, key, value):
    """(B, heads, T, E) each -> (B, heads, T, E); without the (T, T) weights in memory from torch 2.0 on."""
    if hasattr(F, "scaled_dot_product_attention"):
        return F.scaled_dot_product_attention(query, key, value, is_causal=True)
    later = torch.ones(query.shape[-2], query.shape[-2], dtype=torch.bool, device=query.device).triu(1)
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
    return scores.masked_fill(later, -math.inf).softmax(-1) @ value


class Block(nn.Module):
    """One layer of a pre-norm transformer, of linear maps that an adapter can be put around."""

    def __init__(self, hidden, heads, **where):
        super().__init__()
        self.heads = heads
        self.attention_norm, self.mlp_norm = nn.LayerNorm(hidden, **where), nn.LayerNorm(hidden, **where)
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden, **where), nn.Linear(hidden, hidden, **where)
        self.up, self.down = nn.Linear(hidden, 4 * hidden, **where), nn.Linear(4 * hidden, hidden, **where)

    def forward(self, x):
        """(B, T, D) -> (B, T, D)"""
        parts = self.qkv(self.attention_norm(x)).chunk(3, -1)
        mixed = causal_attention(*(part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts))
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.mlp_norm(x))))


class TinyLM(nn.Module):
    """A causal transformer up to the hidden states that its head is applied to. where: device, dtype"""

    def __init__(self, vocab, hidden, layers, heads, **where):
        super().__init__()
        self.embed = nn.Embedding(vocab, hidden, **where)
        self.blocks = nn.Sequential(*(Block(hidden, heads, **where) for _ in range(layers)))
        self.norm = nn.LayerNorm(hidden, **where)
        self.head = nn.Linear(hidden, vocab, bias=False, **where)
        nn.init.normal_(self.head.weight, std=hidden**-0.5)

    def forward(self, tokens):
        """tokens (B, T) -> hidden states (B, T, D)"""
        return self.norm(self.blocks(self.embed(tokens)))


def batch_of(arguments, step):
    """Sequences that count on by steps of their own: (B, T)"""
    generator = torch.Generator().manual_seed(arguments.seed + step)
    start, stride = torch.randint(arguments.vocab, (2, arguments.batch, 1), generator=generator)
    places = torch.arange(arguments.length).unsqueeze(0)
    return ((start + (stride % 3 + 1) * places) % min(arguments.vocab, 97)).to(arguments.device)


def autocast(device):
    """bfloat16 on a GPU, as trainers run; as it is on the CPU."""
    return torch.autocast("cuda", torch.bfloat16) if device.type == "cuda" else contextlib.nullcontext()


def say(line):
    """A line of progress, at once even where standard output is a file or a pipe."""
    print(line, flush=True)


def needed(name, *others):
    """The module of that name and others, or the end of the example with what to install."""
    try:
        return [importlib.import_module(module) for module in (name, *others)]
    except ModuleNotFoundError as error:
        sys.exit("%s needs %s, which is not installed: pip install %s" % (sys.argv[0], error.name, error.name))


def parser(text):
    """The command line of an example whose help is text, with the options that every example has."""
    options = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--device", type=torch.device, default="cuda" if torch.cuda.is_available() else "cpu")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--json", type=writable, metavar="FILE", help="write the record here")
    return options


def add_sizes(options, kinds=types.MappingProxyType({}), **sizes):
    """--tiny and a whole number each. sizes: name=(default, default with --tiny); kinds: {name: what reads it}, else
    int"""
    options.add_argument("--tiny", action="store_true", help="small sizes, for a machine without a GPU")
    for name, (full, tiny) in sizes.items():
        options.add_argument("--" + name, type=kinds.get(name, int), help="default %d, with --tiny %d" % (full, tiny))
    options.set_defaults(sizes=sizes)


def with_sizes(arguments):
    """The arguments, with the sizes that were not given."""
    for name, values in arguments.sizes.items():
        if getattr(arguments, name) is None:
            setattr(arguments, name, values[arguments.tiny])
    return arguments


def writable(path):
    """A path that a record can be written to, which is checked before the work."""
    try:
        record.probe(path)
    except OSError as error:
        raise argparse.ArgumentTypeError("%s cannot be written: %s" % (path, error.strerror))
    return path


def command_line(json_file):
    """This command, without the place where its record goes."""
    words = [word for word in sys.argv if word != json_file and word not in ("--json", "--json=%s" % json_file)]
    return " ".join(["python", *words])


def write_record(arguments, results):
    """Writes the record to --json, if it is given: where and how it was measured, then the results."""
    if arguments.json:
        whole = {**record.head(command_line(arguments.json), arguments.device), "results": results}
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(record.rounded(whole), file, indent=1)
            file.write("\n")
