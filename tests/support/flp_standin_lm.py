"""Stand-ins for a causal language model of transformers, for what trainers wrap around one, and for the packages."""
import contextlib
import copy
import dataclasses
import inspect
import io
import pickle
import sys
import types
from typing import Optional

import torch
from torch import nn

from flp_hosts import module_of

IDS = torch.randint(0, 257, (3, 11), generator=torch.Generator().manual_seed(5))


def capped(cap, scores):
    """A softcap, as Gemma's models compute it."""
    return cap * torch.tanh(scores / cap)


@dataclasses.dataclass
class Output:
    logits: Optional[torch.Tensor] = None
    loss: Optional[torch.Tensor] = None
    aux_loss: Optional[torch.Tensor] = None


class TinyLM(nn.Module):
    """Embedding, one layer that looks at earlier tokens, head, and what `after` makes of the scores."""

    def __init__(self, vocab=257, hidden=16, bias=False, tied=False, after=None, seed=0, **config):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.embed = nn.Embedding(vocab, hidden)
            self.mix = nn.Linear(hidden, hidden)
            self.lm_head = nn.Linear(hidden, vocab, bias=bias)
        if tied:
            self.lm_head.weight = self.embed.weight
        self.after, self.config = after, types.SimpleNamespace(**config)

    def get_output_embeddings(self):
        return self.lm_head

    def forward(self, input_ids=None, attention_mask=None, labels=None, inputs_embeds=None, logits_to_keep=0):
        hidden = self.embed(input_ids) if inputs_embeds is None else inputs_embeds
        hidden = torch.tanh(self.mix(hidden.cumsum(1)))
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(hidden[:, kept])
        logits = logits if self.after is None else self.after(logits)
        loss = None
        if labels is not None:
            loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return Output(logits, loss, hidden.square().mean())


def logits_of(model):
    """What a model of the same weights gives that flp has never seen."""
    fresh = TinyLM(bias=model.lm_head.bias is not None).to(model.lm_head.weight.dtype)
    fresh.load_state_dict(model.state_dict())
    with torch.no_grad():
        return fresh(input_ids=IDS).logits


def next_logprobs(logits, ids=IDS):
    """Of the tokens that follow, from scores, in float64."""
    return torch.log_softmax(logits.double(), -1)[:, :-1].gather(-1, ids[:, 1:, None])[..., 0]


def error_of(model):
    """How far flp's log-probabilities are from those of the model's own weights."""
    with torch.no_grad():
        return (model(input_ids=IDS).logprobs - next_logprobs(logits_of(model))).abs().max()


def loaded(file):
    whole = {"weights_only": False} if "weights_only" in inspect.signature(torch.load).parameters else {}
    return torch.load(file, **whole)


def saved(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return loaded(file)


COPIES = {"deepcopy": copy.deepcopy, "pickle": lambda model: pickle.loads(pickle.dumps(model)), "torch.save": saved}


class Wrapper(nn.Module):
    """As DistributedDataParallel and engines hold a model."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, *arguments, **keywords):
        return self.module(*arguments, **keywords)


class Adapted(nn.Module):
    """As a PEFT model holds one: its forward calls the base model's forward, not the module."""

    def __init__(self, base):
        super().__init__()
        self.base_model, self.peft_config = base, {}

    def get_base_model(self):
        return self.base_model

    def get_output_embeddings(self):
        return None

    def forward(self, *arguments, **keywords):
        return self.base_model.forward(*arguments, **keywords)


class SavedCopies(nn.Module):
    """As PEFT holds a head in modules_to_save: a trained copy an adapter, and the original for when they are off."""

    def __init__(self, original, trained):
        super().__init__()
        self.original_module, self.modules_to_save, self.adapted = original, nn.ModuleDict({"default": trained}), True

    def forward(self, hidden):
        return (self.modules_to_save["default"] if self.adapted else self.original_module)(hidden)


# ---- transformers and peft ----

class Config:
    def __init__(self, **fields):
        vars(self).update(fields)


class Trunk(nn.Embedding):
    def forward(self, ids):
        return (super().forward(ids),)


class Llama(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.model = Trunk(config.vocab_size, config.hidden_size)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)


class Qwen(TinyLM):
    def __init__(self, config):
        super().__init__(config.vocab_size, config.hidden_size)


def with_lora(model, config):
    model.disable_adapter = contextlib.nullcontext
    return model


def stand_in(monkeypatch):
    """Small models in the place of both packages."""
    for name, contents in (("transformers", {"LlamaConfig": Config, "LlamaForCausalLM": Llama, "Qwen3Config": Config,
                                             "Qwen3ForCausalLM": Qwen}),
                           ("peft", {"LoraConfig": Config, "get_peft_model": with_lora})):
        monkeypatch.setitem(sys.modules, name, module_of(name, **contents))
