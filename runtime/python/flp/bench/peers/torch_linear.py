"""torch's own torch.nn.functional.linear_cross_entropy, in chunks (torch 2.13 or newer)."""
import torch

from .seam import Peer, Result


class TorchLinear(Peer):
    name = "torch-linear"
    title = "torch.nn.functional.linear_cross_entropy(options=LinearCrossEntropyOptions())"
    distribution = "torch"
    install = "pip install 'torch>=2.13'"
    note = "takes the gradient of the mean loss only"
    any_upstream = False
    bias = True

    def load(self):
        if not hasattr(torch.nn, "LinearCrossEntropyOptions"):
            raise ImportError("torch %s has no chunked linear_cross_entropy" % torch.__version__)
        return torch.__version__

    def run(self, hidden, weight, bias, target, case):
        return Result(loss=torch.nn.functional.linear_cross_entropy(
            hidden, weight, target, linear_bias=bias, options=torch.nn.LinearCrossEntropyOptions()))
