"""torch.compile over chunks of rows; training recomputes each chunk's scores (activation checkpointing)."""
import importlib

import torch
import torch.utils.checkpoint

from ..cases import CROSS_ENTROPY, TEACHER_SHARES
from .naive import cross_entropy_of, divergence_of, logprob_of
from .seam import Peer, Result

# 16-bit scores of one chunk at V = 151936: 311 MB.
CHUNK_ROWS = 1024
# A graph for each combination of shape, entropy and gradients that a run asks for.
RECOMPILES = 64


def chunk(hidden, weight, bias, target, entropy, softcap):
    scores = torch.nn.functional.linear(hidden, weight, bias).float()
    return logprob_of(scores, target, entropy, softcap)


def chunk_loss(hidden, weight, bias, target):
    return cross_entropy_of(torch.nn.functional.linear(hidden, weight, bias).float(), target)


def chunk_divergence(hidden, weight, teacher_hidden, teacher_weight, kind):
    linear = torch.nn.functional.linear
    return divergence_of(linear(hidden, weight).float(), linear(teacher_hidden, teacher_weight).float(), kind)


class TorchCompile(Peer):
    name = "torch-compile"
    title = "log_softmax over chunks of %d rows, compiled and checkpointed" % CHUNK_ROWS
    distribution = "torch"
    install = "pip install 'torch>=2.1'"
    entropy = bias = softcap = True
    lacks = None

    def load(self):
        if not hasattr(torch, "compile"):
            raise ImportError("torch %s has no torch.compile" % torch.__version__)
        config = importlib.import_module("torch._dynamo").config
        for limit in ("recompile_limit", "cache_size_limit"):
            if hasattr(config, limit):
                setattr(config, limit, RECOMPILES)
                break
        self.chunk, self.chunk_loss = torch.compile(chunk), torch.compile(chunk_loss)
        return torch.__version__

    def run(self, hidden, weight, bias, target, case):
        parts = []
        for start in range(0, case.n, CHUNK_ROWS):
            rows = slice(start, start + CHUNK_ROWS)
            arguments = (hidden[rows], weight, bias, target[rows], case.entropy != "none", case.softcap)
            if torch.is_grad_enabled() and case.grads:
                parts.append(torch.utils.checkpoint.checkpoint(self.chunk, *arguments, use_reentrant=False))
            else:
                parts.append(self.chunk(*arguments))
        logprob, entropy = zip(*parts)
        return Result(torch.cat(logprob), torch.cat(entropy) if case.entropy != "none" else None)

    def step(self, hidden, weight, bias, target, batch, case):
        if case.loss != CROSS_ENTROPY:
            return super().step(hidden, weight, bias, target, batch, case)
        parts = [torch.utils.checkpoint.checkpoint(self.chunk_loss, hidden[start:start + CHUNK_ROWS], weight, bias,
                                                   target[start:start + CHUNK_ROWS], use_reentrant=False)
                 for start in range(0, case.n, CHUNK_ROWS)]
        return Result(loss=torch.stack(parts).sum() / case.n)


class TorchCompileDivergence(TorchCompile):
    name = "torch-compile-divergence"
    title = "the formula over chunks of %d rows, compiled and checkpointed" % CHUNK_ROWS
    divergences = tuple(TEACHER_SHARES)

    def load(self):
        version = super().load()
        self.chunk = torch.compile(chunk_divergence)
        return version

    def run(self, hidden, weight, teacher, case):
        parts = []
        for start in range(0, case.n, CHUNK_ROWS):
            rows = slice(start, start + CHUNK_ROWS)
            arguments = (hidden[rows], weight, teacher.hidden[rows], teacher.weight, case.loss)
            if torch.is_grad_enabled() and case.grads:
                parts.append(torch.utils.checkpoint.checkpoint(self.chunk, *arguments, use_reentrant=False))
            else:
                parts.append(self.chunk(*arguments))
        return Result(divergence=torch.cat(parts))
