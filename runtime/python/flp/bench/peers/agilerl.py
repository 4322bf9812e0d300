"""AgileRL: fused_linear_logprobs_chunked, and FusedLinearLogProbsFunction for training.

agilerl itself needs dozens of packages to be imported; this module needs torch and one function of agilerl.distributed,
which gathers sharded tensors and passes plain ones through. So only this module is loaded, with that function's plain
case in its place.
"""
import contextlib
import itertools
import sys

import torch

from .seam import Peer, Result, version_of
from .skeleton import add_package, import_kernel, stand_in

# Where releases have had the module, newest first.
PACKAGES = ("agilerl.algorithms.core.llm_ops", "agilerl.llm_ops")
MODULE = "fused_logprobs"


def import_module():
    for package in PACKAGES:
        name = package + "." + MODULE
        if name in sys.modules:
            return sys.modules[name]
    add_package("agilerl")
    stand_in("agilerl.distributed", materialize_dtensors=lambda *tensors: contextlib.nullcontext(list(tensors)))
    for package in PACKAGES:
        parents = itertools.accumulate(package.split("."), "{}.{}".format)
        try:
            return import_kernel(package + "." + MODULE, parents)
        except ModuleNotFoundError as error:
            missing = error
    raise missing


def chunk_rows(vocab):
    """Its trainers' default: scores of one chunk take 256 MiB in fp32, in 128 to 4096 rows."""
    return min(max((256 << 20) // (4 * vocab), 128), 4096)


class Agile16(Peer):
    name = "agilerl"
    title = "agilerl fused_linear_logprobs_chunked / FusedLinearLogProbsFunction, cast_to_fp32=False"
    distribution = "agilerl"
    needs_cuda = False
    bias = True
    dtypes = ("bf16", "fp16")
    cast = False

    def load(self):
        self.fused = import_module()
        return version_of(self.distribution)

    def run(self, hidden, weight, bias, target, case):
        operands = (hidden[None], weight, bias, target[None], 1.0, self.cast)
        if torch.is_grad_enabled() and case.grads:
            logprob = self.fused.FusedLinearLogProbsFunction.apply(*operands, chunk_rows(case.vocab))
        else:
            logprob = self.fused.fused_linear_logprobs_chunked(*operands, chunk_rows=chunk_rows(case.vocab))
        return Result(logprob[0])

    def details(self, hidden, weight, bias, target, case):
        """It goes on without torch.compile, in silence, when that failed once."""
        state = getattr(self.fused, "_FUSED_LOGPROB_COMPILE_STATE", {})
        return {"compiled": state.get("fn") is not None and not state.get("disabled")}


class AgileFp32(Agile16):
    name = "agilerl-fp32"
    title = "agilerl fused_linear_logprobs_chunked / FusedLinearLogProbsFunction, cast_to_fp32=True (its default)"
    cast = True
