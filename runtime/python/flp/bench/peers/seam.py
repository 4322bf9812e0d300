"""The seam: what a peer must provide.

Invariants: importing an adapter imports nothing of the library behind it, load() does; run() computes on the caller's
tensors and returns tensors of N elements that autograd can reach hidden and weight from; whatever a peer raises is a
reason in the record, never the end of the run.
"""
import importlib.metadata
from typing import NamedTuple, Optional

import torch

from ..cases import CROSS_ENTROPY, DIVERGE
from .pins import install_of
from .skeleton import import_kernel


class Result(NamedTuple):
    """What one forward pass gave. A peer without logprobs of its own gives their negative mean as loss."""

    logprob: Optional[torch.Tensor] = None  # (N)
    entropy: Optional[torch.Tensor] = None  # (N)
    loss: Optional[torch.Tensor] = None  # ()
    divergence: Optional[torch.Tensor] = None  # (N) of two heads; without it their mean is the loss


class Peer:
    """One way of one library."""

    name = ""  # as --peers takes it
    title = ""  # the call that is timed
    distribution = ""  # what pip knows it as
    needs = ()  # other distributions that its kernels need, beside torch, Triton and transformers
    note = ""  # what a reader of its figures should know
    needs_cuda = True
    any_upstream = True  # takes any gradient per row; else only that of the mean loss
    dtypes = ("bf16", "fp16", "fp32")
    entropy = bias = softcap = False  # whether it can
    depth_multiple = rows_multiple = vocab_multiple = 1
    lacks = "label smoothing or z-loss"  # of what cross entropy of fine-tuning needs; None: nothing
    module = function_name = ""  # what load imports, and the function in it that is timed
    packages = ()  # those around the module that are not to be started, parents first
    divergences = ()  # of two heads that it can, by the names of flp.losses.DIVERGENCES; it can those alone
    payload = False  # whether it takes what stands for the teacher
    policies = False  # whether it has a divergence beside the loss of a policy update
    losses = None  # the losses that it can, of those that are no function of logprobs to it; None: all

    @property
    def install(self):
        """The command that brings the release that it is tried with."""
        return install_of((self.distribution, *self.needs))

    def load(self):
        """Imports the library, self.function -> its version; raises whatever importing raises."""
        module = import_kernel(self.module, self.packages)
        self.function = getattr(module, self.function_name)
        return version_of(self.distribution, module)

    def run(self, hidden, weight, bias, target, case):
        """One forward pass -> Result. Of a divergence run(hidden, weight, teacher, case), teacher a pairs.Teacher"""
        raise NotImplementedError

    def step(self, hidden, weight, bias, target, batch, case):
        """The loss of one step -> Result with loss: plain torch operations on the logprobs that run gives.

        batch  data.Batch: what the loss reads
        """
        result = self.run(hidden, weight, bias, target, case)
        return Result(loss=batch.loss_of(result.logprob) if result.loss is None else result.loss)

    def buffer(self, weight, case):
        """The caller's fp32 buffer that step adds the weight's gradient to, or None."""
        return None

    def details(self, *arguments):
        """Fields that belong into the record beside the figures. arguments: those of run"""
        return {}

    def supports(self, case, device):
        """Why this peer cannot run a case, or None."""
        if self.needs_cuda and device.type != "cuda":
            return "needs a CUDA device"
        if case.dtype not in self.dtypes:
            return "takes %s only, not %s" % (" and ".join(self.dtypes), case.dtype)
        if case.op == DIVERGE and case.loss not in self.divergences:
            return "gives no %s" % case.loss
        if case.policy and not self.policies:
            return "has no loss of a policy beside it"
        if case.op == DIVERGE:
            return "takes no payload" if case.payload and not self.payload else self.misfit(case)
        if case.entropy != "none" and not self.entropy:
            return "gives no entropy"
        if case.bias and not self.bias:
            return "takes no bias"
        if case.softcap is not None and not self.softcap:
            return "takes no softcap"
        if case.loss == CROSS_ENTROPY:
            return "takes no %s" % self.lacks if self.lacks else self.misfit(case)
        if case.loss and (self.losses is not None or not self.any_upstream) and case.loss not in (self.losses or ("nll",)):
            return "does not train by %s" % case.loss
        if not case.loss and self.losses is not None:
            return "is a loss, which --loss asks for"
        return self.misfit(case)

    def misfit(self, case):
        """Why it does not take the sizes, or None."""
        for what, size, multiple in (("a hidden size", case.hidden, self.depth_multiple),
                                     ("a vocab", case.vocab, self.vocab_multiple),
                                     ("a number of rows", case.n, self.rows_multiple)):
            if size % multiple:
                return "needs %s that is a multiple of %d" % (what, multiple)
        return None


def version_of(distribution, module=None):
    """The installed version by its metadata, else by the module's attribute."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return getattr(module, "__version__", "unknown")
