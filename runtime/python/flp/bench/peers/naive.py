"""torch alone, with the (N,V) scores in memory: what a trainer does without any library."""
import torch

from .seam import Peer, Result


def logprob_of(scores, target, softcap, entropy):
    """log_softmax and gather, in the dtype of the scores."""
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    logp = torch.log_softmax(scores, dim=-1)
    logprob = logp.gather(-1, target[:, None])[:, 0]
    return logprob, -(logp.exp() * logp).sum(dim=-1) if entropy else None


class NaiveFp32(Peer):
    name = "torch-fp32"
    title = "log_softmax of materialised scores, cast to fp32"
    distribution = "torch"
    install = "pip install torch"
    needs_cuda = False
    entropy = bias = softcap = True
    cast = True

    def load(self):
        return torch.__version__

    def supports(self, case, device):
        if not self.cast and case.dtype == "fp32":
            return "is torch-fp32 on fp32 operands"
        return super().supports(case, device)

    def run(self, hidden, weight, bias, target, case):
        scores = torch.nn.functional.linear(hidden, weight, bias)
        if self.cast:
            scores = scores.float()
        return Result(*logprob_of(scores, target, case.softcap, case.entropy != "none"))


class Naive16(NaiveFp32):
    name = "torch-16bit"
    title = "log_softmax of materialised 16-bit scores"
    cast = False
